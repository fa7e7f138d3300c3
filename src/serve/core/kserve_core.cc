// The operations that KServe clients can request, independent of the protocol.
#include "serve/core/kserve_core.h"

#include <utility>

#include "base/text/shortened.h"
#include "serve/core/kserve_settings.h"
#include "serve/core/tensor_bytes.h"

namespace trireme::serve {
namespace {

using base::Json;

/// The content of a load request: a config, and files by their paths.
LoadOverride override_of(const Json& parameters) {
  LoadOverride given;
  if (parameters.is_null()) return given;
  base::require(parameters.is_object(), "Unable to parse 'parameters': expected an object");
  constexpr std::string_view kFile = "file:";
  for (const auto& [key, value] : parameters.as_object()) {
    if (key == "config") {
      base::require(value.is_string(), "Unable to parse 'config': expected a string");
      given.config = value.as_string();
    } else if (key.rfind(kFile, 0) == 0) {
      base::require(value.is_string(), "Unable to parse '", key, "': expected a string");
      given.files[key.substr(kFile.size())] = value.as_string();
    } else {
      base::fail_invalid("unrecognized load parameter '", key, "'");
    }
  }
  return given;
}

bool wants_dependents(const Json& parameters) {
  if (parameters.is_null()) return false;
  base::require(parameters.is_object(), "Unable to parse 'parameters': expected an object");
  bool wanted = false;
  for (const auto& [key, value] : parameters.as_object()) {
    base::require(key == "unload_dependents", "unrecognized unload parameter '", key, "'");
    base::require(value.is_bool(), "Invalid value for 'unload_dependents': expected a boolean");
    wanted = value.as_bool();
  }
  return wanted;
}

/// Writes outputs to the client's shared memory if it asked for that; the answer then only names the region.
void write_regions(const SharedRegions& regions, InferResponse& response) {
  for (InferOutput& o : response.outputs) {
    if (o.span.region.empty()) continue;
    const http::BodyPart part = tensor_bytes(o.tensor);
    regions.write(o.span, part.bytes());
    o.span.bytes = part.bytes().size();
  }
}

/// Writes outputs to the client's shared memory if it asked for that, and records the trace of the request as
/// it progresses.
class Follower final : public RequestObserver {
 public:
  /// A null pointer switches off what it is for.
  Follower(const SharedRegions* regions, Tracer& tracer, std::shared_ptr<Trace> trace,
           const base::Clock& clock, const InferSink& sink)
      : regions_(regions),
        tracer_(tracer),
        trace_(std::move(trace)),
        clock_(clock),
        is_http_(sink.begun_ns > 0) {
    if (!trace_ || !is_http_) return;
    auto& times = trace_->times;  // these come before REQUEST_START
    times.insert(times.begin(), {{"HTTP_RECV_START", sink.begun_ns}, {"HTTP_RECV_END", sink.received_ns}});
  }
  void on_answer(InferResponse& response) override {
    if (trace_) {
      if (response.pages_ns != 0) {
        trace_->times.emplace_back("PAGES_START", response.pages_asked_ns);
        trace_->times.emplace_back("PAGES_END", response.pages_ns);
      }
      trace_->add(response.timing, clock_.now_ns());
      response.traceparent = trace_->own.header();
    }
    answered_ns_ = clock_.now_ns();
    if (regions_ != nullptr) write_regions(*regions_, response);
  }
  void on_failure() override {
    if (!trace_) return;
    if (!trace_->has_ended()) trace_->add({}, clock_.now_ns());
    trace_->has_failed = true;
  }
  void on_told() override {
    if (!trace_) return;
    if (is_http_ && !trace_->has_failed) {  // sent to the connection; Triton calls this sending, too
      trace_->times.emplace_back("HTTP_SEND_START", answered_ns_);
      trace_->times.emplace_back("HTTP_SEND_END", clock_.now_ns());
    }
    tracer_.finish(trace_);
  }

 private:
  const SharedRegions* const regions_;
  Tracer& tracer_;
  const std::shared_ptr<Trace> trace_;
  const base::Clock& clock_;
  const bool is_http_;
  int64_t answered_ns_ = 0;
};

}  // namespace

KserveCore::KserveCore(Repository& repository, const ServeOptions& options, const base::Env& env)
    : repository_(repository),
      options_(options),
      env_(env),
      rules_(access_rules(options.access.restrict, options.access.restrict_file), &repository.keys()),
      tenant_regions_(std::make_unique<TenantRegions>(options.allow_client_shm)),
      tracer_(std::make_unique<Tracer>(options.trace, env)),
      started_s_(env.clock.wall_ns() / base::kNsPerSecond) {}

bool KserveCore::is_ready() const {
  return state_.load() == ServerState::serving && !(options_.strict_readiness && repository_.has_failures());
}

void KserveCore::require_loaded() const {
  if (state_.load() == ServerState::loading)
    base::fail(base::ErrorCode::unavailable, "the server is loading its models");
}

Json KserveCore::server_metadata() const {
  Json extensions =
      Json::array({"classification", "sequence", "model_repository", "model_repository(unload_dependents)",
                   "model_configuration", "schedule_policy", "binary_tensor_data", "parameters", "statistics",
                   "trace", "logging"});
  if (options_.allow_client_shm) extensions.push_back("system_shared_memory");
  return Json::object(
      {{"name", options_.server_name}, {"version", "0.1.0"}, {"extensions", std::move(extensions)}});
}

std::shared_ptr<ServedModel> KserveCore::find(const std::string& name, const std::string& version) const {
  require_loaded();
  return repository_.catalog()->find(name, version);
}

bool KserveCore::is_served(const std::string& name, const std::string& version) const {
  try {
    return find(name, version)->is_well();
  } catch (const base::Error&) {
    return false;
  }
}

std::vector<std::shared_ptr<ServedModel>> KserveCore::serving() const {
  require_loaded();
  return repository_.catalog()->serving();
}

Json KserveCore::metadata(const std::string& name, const std::string& version) const {
  require_loaded();
  const auto catalog = repository_.catalog();
  return catalog->find(name, version)->metadata(catalog->versions(name));
}

Json KserveCore::statistics(const std::string& name, const std::string& version) const {
  require_loaded();
  Json list = Json::array();
  const auto catalog = repository_.catalog();
  if (!name.empty() && !version.empty()) {
    list.push_back(catalog->find(name, version)->stats());
  } else if (!name.empty()) {
    static_cast<void>(catalog->find(name, ""));  // throws if none serves
    for (const std::string& own : catalog->versions(name)) list.push_back(catalog->find(name, own)->stats());
  } else {
    for (const auto& model : catalog->serving()) list.push_back(model->stats());
  }
  return Json::object({{"model_stats", std::move(list)}});
}

Json KserveCore::index(bool ready_only) const {
  require_loaded();
  Json list = Json::array();
  for (const RepositoryEntry& e : repository_.index()) {
    if (ready_only && e.state != "READY") continue;
    Json entry = Json::object({{"name", e.name}});
    if (!e.version.empty()) entry.set("version", e.version);
    if (!e.state.empty()) entry.set("state", e.state);
    if (!e.reason.empty()) entry.set("reason", base::shortened(e.reason));
    list.push_back(std::move(entry));
  }
  return list;
}

Json KserveCore::log_settings(const Json& changes) const {
  if (!changes.is_null()) update_log_settings(env_.log, changes);
  return serve::log_settings(env_.log);
}

Json KserveCore::trace_settings(const std::string& model, const Json& changes) const {
  if (!model.empty()) find(model, "");
  if (!changes.is_null()) tracer_->update(model, changes);
  return tracer_->settings(model);
}

void KserveCore::load(const std::string& name, const Json& parameters, Repository::Done done) const {
  require_loaded();
  Repository::Done told = [name, done = std::move(done)](const std::optional<base::Error>& error) {
    // Scripts search for these words, whatever the error was.
    const std::string words = "failed to load '" + name + "'";
    const bool lacks_words = error && error->message().find(words) == std::string::npos;
    done(lacks_words ? error->with(words) : error);
  };
  repository_.request_load(name, override_of(parameters), std::move(told));
}

void KserveCore::change_adapter(AdapterChange change, Repository::Done done) const {
  require_loaded();
  repository_.request_adapter(std::move(change), std::move(done));
}

void KserveCore::unload(const std::string& name, const Json& parameters, Repository::Done done) const {
  require_loaded();
  repository_.request_unload(name, wants_dependents(parameters), std::move(done));
}

void KserveCore::infer(const std::shared_ptr<ServedModel>& model, InferRequest request,
                       InferSink sink) const {
  bool writes_regions = false;
  for (const OutputWish& wish : request.outputs) {
    if (wish.span.region.empty()) continue;
    base::require(wish.classification == 0, "output '", wish.name,
                  "': classification can not be written to shared memory");
    writes_regions = true;
  }
  if (writes_regions && model->config().is_decoupled)
    base::fail_unsupported("shared memory holds one answer, and model '", model->name(), "' is decoupled");
  const SharedRegions* regions =
      writes_regions ? &this->regions(tenants().names_by_header() ? request.tenant : std::string()) : nullptr;
  const auto trace = tracer_->begin(model->name(), request.traceparent, sink.received_ns);
  if (trace) {
    trace->version = model->version();
    trace->request_id = request.id;
  }
  if (trace || regions != nullptr)
    sink.observer = std::make_shared<Follower>(regions, *tracer_, trace, env_.clock, sink);
  model->infer(std::move(request), std::move(sink));
}

}  // namespace trireme::serve
