// The KServe v2 routes over HTTP.
#include "serve/kserve.h"

#include <algorithm>

#include "base/json.h"
#include "serve/kserve_raw.h"
#include "serve/kserve_settings.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kModels = "/v2/models/";
constexpr std::string_view kVersions = "/versions/";
constexpr std::string_view kControl = "/v2/repository/models/";

HttpResponse not_found() { return http_error(404, "Not Found"); }

HttpResponse wrong_method(std::string_view allowed) {
  HttpResponse response = http_error(405, "Method Not Allowed");
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

/// 503 while loading or draining, so that balancers look elsewhere.
HttpResponse health(bool is_well) {
  if (!is_well) return http_error(503, "server is not ready");
  return HttpResponse{};
}

HttpResponse server_metadata() {
  Json extensions = Json::array({"classification", "model_repository", "model_repository(unload_dependents)",
                                 "model_configuration", "schedule_policy", "binary_tensor_data", "parameters",
                                 "statistics", "logging"});
  return http_json(
      200, Json::object({{"name", "trireme"}, {"version", "0.1.0"}, {"extensions", extensions}}).dump());
}

/// Trace settings after what `body` asks for, or as they are.
HttpResponse trace_answer(std::string_view body) {
  update_trace_settings(body);
  return http_json(200, trace_settings().dump());
}

/// Takes unload_dependents (there are none: ensembles are not served); refuses what would change a model.
void check_control_parameters(std::string_view action, std::string_view body) {
  if (body.empty()) return;
  const Json json = base::parse_json(body);
  base::require(json.is_object(), "failed to parse the request JSON buffer: expected an object");
  const Json* parameters = json.find("parameters");
  if (parameters == nullptr || parameters->is_null()) return;
  base::require(parameters->is_object(), "Unable to parse 'parameters': expected an object");
  for (const auto& [key, value] : parameters->as_object()) {
    if (action == "unload" && key == "unload_dependents") {
      base::require(value.is_bool(), "Invalid value for 'unload_dependents': expected a boolean");
    } else if (action == "load" && (key == "config" || key.rfind("file:", 0) == 0)) {
      base::fail_unsupported("load parameter '", key, "' is not served: change the model's directory");
    } else {
      base::fail_invalid("unrecognized ", action, " parameter '", key, "'");
    }
  }
}

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

}  // namespace

/// The parts of /v2/models/{name}[/versions/{version}][/{action}].
struct KserveApi::ModelPath {
  std::string name, version;
  std::string_view action;

  static ModelPath of(std::string_view rest) {
    ModelPath out;
    const size_t end = std::min(rest.find('/'), rest.size());
    out.name = http_percent_decode(rest.substr(0, end));
    rest.remove_prefix(end);
    if (starts_with(rest, kVersions)) {
      rest.remove_prefix(kVersions.size());
      const size_t stop = std::min(rest.find('/'), rest.size());
      out.version = std::string(rest.substr(0, stop));
      rest.remove_prefix(stop);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    out.action = rest;
    return out;
  }
};

KserveApi::KserveApi(Repository& repository, const base::Env& env, std::function<bool()> is_ready)
    : repository_(repository), env_(env), is_ready_(std::move(is_ready)) {}

void KserveApi::handle(HttpRequest&& request, HttpReply reply) const {
  const std::string_view path = request.path;
  if (starts_with(path, kModels) && path != "/v2/models/stats") {
    const ModelPath model = ModelPath::of(path.substr(kModels.size()));
    return handle_model(model, std::move(request), std::move(reply));
  }
  if (starts_with(path, kControl)) return control(path.substr(kControl.size()), request, std::move(reply));
  reply.send(answer(path, request.method, request.body.view()));
}

HttpResponse KserveApi::answer(std::string_view path, std::string_view method, std::string_view body) const {
  using Api = const KserveApi&;
  using Body = std::string_view;
  struct Route {
    std::string_view path, method;
    HttpResponse (*run)(Api api, Body body);
  };
  static constexpr Route kRoutes[] = {
      {"/v2", "GET", [](Api, Body) { return server_metadata(); }},
      {"/v2/health/live", "GET", [](Api, Body) { return health(true); }},
      {"/v2/health/ready", "GET", [](Api api, Body) { return health(api.is_ready_()); }},
      {"/v2/models/stats", "GET", [](Api api, Body) { return api.all_stats(); }},
      {"/v2/repository/index", "POST", [](Api api, Body b) { return api.index(b); }},
      {"/v2/logging", "GET", [](Api api, Body) { return http_json(200, log_settings(api.env_.log).dump()); }},
      {"/v2/logging", "POST",
       [](Api api, Body b) {
         update_log_settings(api.env_.log, b);
         return http_json(200, log_settings(api.env_.log).dump());
       }},
      {"/v2/trace/setting", "GET", [](Api, Body) { return trace_answer({}); }},
      {"/v2/trace/setting", "POST", [](Api, Body b) { return trace_answer(b); }},
      {"/v2/systemsharedmemory/status", "GET", [](Api, Body) { return http_json(200, "[]"); }},
      {"/v2/cudasharedmemory/status", "GET", [](Api, Body) { return http_json(200, "[]"); }},
  };
  while (path.size() > 3 && path.back() == '/') path.remove_suffix(1);
  std::string allowed;
  for (const Route& r : kRoutes) {
    if (r.path != path) continue;
    if (r.method == method || (method == "HEAD" && r.method == "GET")) return r.run(*this, body);
    allowed.append(allowed.empty() ? "" : ", ").append(r.method);
  }
  if (!allowed.empty()) return wrong_method(allowed);
  if (starts_with(path, "/v2/systemsharedmemory/") || starts_with(path, "/v2/cudasharedmemory/"))
    base::fail_unsupported("shared memory is not served");
  if (starts_with(path, "/v2/repository/"))
    base::fail_unsupported("'repository_name' specification is not supported");
  return not_found();
}

/// /v2/repository/models/{name}/load and /unload, without the prefix. The answer comes when it is done.
void KserveApi::control(std::string_view rest, const HttpRequest& request, HttpReply reply) const {
  const size_t slash = rest.rfind('/');
  const std::string_view action = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  if (action != "load" && action != "unload") return reply.send(not_found());
  if (request.method != "POST") return reply.send(wrong_method("POST"));
  const std::string name = http_percent_decode(rest.substr(0, slash));
  check_control_parameters(action, request.body.view());
  const auto shared = std::make_shared<HttpReply>(std::move(reply));
  const Repository::Done done = [shared](const std::optional<base::Error>& error) {
    shared->send(error ? http_error(*error) : HttpResponse{});
  };
  try {
    action == "load" ? repository_.request_load(name, done) : repository_.request_unload(name, done);
  } catch (const base::Error& e) {
    shared->send(http_error(e));  // refused before it was queued, so the reply is still unused
  }
}

void KserveApi::handle_model(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
  if (path.action == "infer") {
    if (request.method != "POST") return reply.send(wrong_method("POST"));
    return infer(path, std::move(request), std::move(reply));
  }
  if (path.action == "trace/setting" && path.version.empty()) {
    if (request.method != "GET" && request.method != "POST") return reply.send(wrong_method("GET, POST"));
    repository_.catalog()->find(path.name, "");
    return reply.send(trace_answer(request.method == "POST" ? request.body.view() : std::string_view()));
  }
  const bool is_known =
      path.action.empty() || path.action == "ready" || path.action == "config" || path.action == "stats";
  if (!is_known || path.name.empty()) return reply.send(not_found());
  if (request.method != "GET" && request.method != "HEAD") return reply.send(wrong_method("GET"));
  const auto catalog = repository_.catalog();
  const auto model = catalog->find(path.name, path.version);
  if (path.action == "ready") return reply.send(health(is_ready_()));
  if (path.action == "config") return reply.send(http_json(200, config_json(model->config()).dump()));
  if (path.action == "stats") {
    return reply.send(http_json(200, Json::object({{"model_stats", Json::array({model->stats()})}}).dump()));
  }
  reply.send(http_json(200, model->metadata(catalog->versions(path.name)).dump()));
}

void KserveApi::infer(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
  const auto model = repository_.catalog()->find(path.name, path.version);
  // Inputs look into the body, so the request lives until the last of them is gone.
  const auto kept = std::make_shared<HttpRequest>(std::move(request));
  const std::string_view body = kept->body.view();
  constexpr std::string_view kHeader = "Inference-Header-Content-Length";
  const size_t json_bytes = infer_json_bytes(kept->header(kHeader), kept->has_header(kHeader), body.size());
  const bool is_raw = kept->has_header(kHeader) && json_bytes == 0;
  InferRequest parsed = is_raw ? raw_infer_request(model->name(), model->offered_inputs(),
                                                   model->config().is_batched(), body, kept)
                               : parse_infer_request(body, json_bytes, kept);
  const auto shared = std::make_shared<HttpReply>(std::move(reply));
  InferSink sink{.done = [shared](InferResponse&& r) { shared->send(infer_http_response(std::move(r))); },
                 .failed = [shared](const base::Error& e) { shared->send(http_error(e)); },
                 .cancelled = [shared] { return shared->client_gone(); },
                 .received_ns = kept->received_ns};
  try {
    model->infer(std::move(parsed), std::move(sink));
  } catch (const base::Error& e) {
    shared->send(http_error(e));  // thrown before anything was queued, so the reply is still unused
  }
}

HttpResponse KserveApi::index(std::string_view body) const {
  bool ready_only = false;
  if (!body.empty()) {
    const Json json = base::parse_json(body);
    if (const Json* ready = json.find("ready")) {
      base::require(ready->is_bool(), "Invalid value for 'ready': expected a boolean");
      ready_only = ready->as_bool();
    }
  }
  Json list = Json::array();
  for (const RepositoryEntry& e : repository_.index()) {
    if (ready_only && e.state != "READY") continue;
    Json entry = Json::object({{"name", e.name}});
    if (!e.version.empty()) entry.set("version", e.version);
    if (!e.state.empty()) entry.set("state", e.state);
    if (!e.reason.empty()) entry.set("reason", e.reason);
    list.push_back(std::move(entry));
  }
  return http_json(200, list.dump());
}

HttpResponse KserveApi::all_stats() const {
  Json list = Json::array();
  for (const auto& model : repository_.catalog()->serving()) list.push_back(model->stats());
  return http_json(200, Json::object({{"model_stats", std::move(list)}}).dump());
}

}  // namespace trireme::serve
