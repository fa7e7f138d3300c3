// The KServe v2 routes over HTTP.
#include "serve/kserve/kserve.h"

#include <algorithm>

#include "base/text/base64.h"
#include "base/text/json.h"
#include "serve/kserve/kserve_generate.h"
#include "serve/kserve/kserve_raw.h"
#include "serve/kserve/kserve_reply.h"
#include "serve/kserve/kserve_request.h"
#include "serve/kserve/kserve_response.h"
#include "serve/infer/request_json.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kModels = "/v2/models/";
constexpr std::string_view kVersions = "/versions/";
constexpr std::string_view kControl = "/v2/repository/models/";
constexpr std::string_view kRegions = "/v2/systemsharedmemory", kCudaRegions = "/v2/cudasharedmemory";

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

http::Response not_found() { return http::error_response(404, "Not Found"); }

http::Response wrong_method(std::string_view allowed) {
  http::Response response = http::error_response(405, "Method Not Allowed");
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

/// Parses a body as a JSON object; null if the body is empty.
Json object_of(std::string_view body) {
  if (body.empty()) return {};
  Json json = request_json(body);
  base::require(json.is_object(), "failed to parse the request JSON buffer: expected an object");
  return json;
}

/// The parameters for the load or unload in a control request's body.
Json control_parameters(std::string_view body) {
  const Json json = object_of(body);
  const Json* parameters = json.find("parameters");
  if (parameters == nullptr || !parameters->is_object()) return parameters == nullptr ? Json() : *parameters;
  Json decoded = Json::object();  // files are in base64, as JSON cannot hold bytes
  for (const auto& [key, value] : parameters->as_object()) {
    const bool is_file = starts_with(key, "file:") && value.is_string();
    if (!is_file) {
      decoded.set(key, value);
      continue;
    }
    try {
      decoded.set(key, base::decode_base64(value.as_string()));
    } catch (const base::Error& e) {
      throw e.with("parameter '" + key + "'");
    }
  }
  return decoded;
}

http::Response ok_json(const Json& json) { return http::json_response(200, json.dump()); }

/// Answers with `otherwise` (usually 503) while loading or draining, so that load balancers look elsewhere.
http::Response health(bool is_well, int otherwise, std::string_view word, std::string_view model = {}) {
  if (!is_well) return http::error_response(otherwise, "server is not ready");
  Json json = model.empty() ? Json::object() : Json::object({{"name", std::string(model)}});
  json.set(std::string(word), true);
  return ok_json(json);
}

/// JSON has no FP16 and BF16: refuses this before anything is computed for an answer that cannot be written.
void refuse_half_in_json(const InferRequest& request, const std::vector<TensorConfig>& outputs) {
  const auto is_half = [](const TensorConfig& t) {
    return t.type == tensor::DType::f16 || t.type == tensor::DType::bf16;
  };
  for (const TensorConfig& output : outputs) {
    if (!is_half(output)) continue;
    bool is_json = request.outputs.empty() && !request.binary_output;
    for (const OutputWish& wish : request.outputs) {
      const bool is_written = wish.classification == 0 && wish.span.region.empty() &&
                              !wish.is_binary.value_or(request.binary_output);
      is_json = is_json || (wish.name == output.name && is_written);
    }
    base::require(!is_json, "output '", output.name, "' has datatype ", wire_name(output.type),
                  ", which JSON cannot carry; ask for binary data");
  }
}

bool wants_ready_only(std::string_view body) {
  const Json json = object_of(body);
  const Json* ready = json.find("ready");
  if (ready == nullptr) return false;
  base::require(ready->is_bool(), "Invalid value for 'ready': expected a boolean");
  return ready->as_bool();
}

}  // namespace

/// The header value that distinguishes tenants; empty if none does.
std::string KserveApi::tenant_of(const http::Request& request) const {
  if (!core_.tenants().names_by_header()) return {};
  return std::string(request.header(core_.tenants().header()));
}

/// The parts of a path /v2/models/{name}[/versions/{version}][/{action}].
struct KserveApi::ModelPath {
  std::string name, version;
  std::string_view action;

  static ModelPath of(std::string_view rest) {
    ModelPath out;
    const size_t end = std::min(rest.find('/'), rest.size());
    out.name = http::percent_decode(rest.substr(0, end));
    rest.remove_prefix(end);
    if (starts_with(rest, kVersions)) {
      rest.remove_prefix(kVersions.size());
      const size_t stop = std::min(rest.find('/'), rest.size());
      out.version = std::string(rest.substr(0, stop));
      if (out.version.empty()) return {};  // an empty version does not mean the latest
      rest.remove_prefix(stop);
    }
    if (!rest.empty()) rest.remove_prefix(1);
    out.action = rest;
    return out;
  }
};

/// A path [/region/{name}]/{status,register,unregister} after /v2/systemsharedmemory or /v2/cudasharedmemory.
struct KserveApi::RegionPath {
  bool is_cuda = false;
  std::string_view path;
};

void KserveApi::handle(http::Request&& request, http::Reply reply) const {
  std::string_view path = request.path;
  while (path.size() > 3 && path.back() == '/') path.remove_suffix(1);
  if (starts_with(path, kModels) && path != "/v2/models/stats") {
    const ModelPath model = ModelPath::of(path.substr(kModels.size()));
    return handle_model(model, std::move(request), std::move(reply));
  }
  if (starts_with(path, kControl)) return control(path.substr(kControl.size()), request, std::move(reply));
  if (starts_with(path, kRegions))
    return reply.send(region_answer({.path = path.substr(kRegions.size())}, request));
  if (starts_with(path, kCudaRegions))
    return reply.send(region_answer({.is_cuda = true, .path = path.substr(kCudaRegions.size())}, request));
  reply.send(answer(path, request.method, request.body.view()));
}

http::Response KserveApi::answer(std::string_view path, std::string_view method,
                                 std::string_view body) const {
  using Api = const KserveApi&;
  using Body = std::string_view;
  struct Route {
    std::string_view path, method;
    http::Response (*run)(Api api, Body body);
  };
  static constexpr Route kRoutes[] = {
      {"/v2", "GET", [](Api api, Body) { return ok_json(api.core_.server_metadata()); }},
      {"/v2/health/live", "GET", [](Api, Body) { return health(true, 503, "live"); }},
      {"/v2/health/ready", "GET",
       [](Api api, Body) { return health(api.core_.is_ready(), api.core_.unready_status(), "ready"); }},
      {"/v2/models/stats", "GET", [](Api api, Body) { return ok_json(api.core_.statistics("", "")); }},
      {"/v2/repository/index", "POST",
       [](Api api, Body b) { return ok_json(api.core_.index(wants_ready_only(b))); }},
      {"/v2/logging", "GET", [](Api api, Body) { return ok_json(api.core_.log_settings({})); }},
      {"/v2/logging", "POST", [](Api api, Body b) { return ok_json(api.core_.log_settings(object_of(b))); }},
      {"/v2/trace/setting", "GET", [](Api api, Body) { return ok_json(api.core_.trace_settings("", {})); }},
      {"/v2/trace/setting", "POST",
       [](Api api, Body b) { return ok_json(api.core_.trace_settings("", object_of(b))); }},
  };
  std::string allowed;
  for (const Route& r : kRoutes) {
    if (r.path != path) continue;
    if (r.method == method || (method == "HEAD" && r.method == "GET")) return r.run(*this, body);
    allowed.append(allowed.empty() ? "" : ", ").append(r.method);
  }
  if (!allowed.empty()) return wrong_method(allowed);
  if (starts_with(path, "/v2/repository/"))
    base::fail_unsupported("'repository_name' specification is not supported");
  return not_found();
}

http::Response KserveApi::region_answer(RegionPath at, const http::Request& request) const {
  const std::string_view method = request.method;
  std::string name;
  std::string_view rest = at.path;
  constexpr std::string_view kRegion = "/region/";
  if (starts_with(rest, kRegion)) {
    rest.remove_prefix(kRegion.size());
    const size_t slash = std::min(rest.find('/'), rest.size());
    name = http::percent_decode(rest.substr(0, slash));
    rest.remove_prefix(slash);
  }
  const bool is_status = rest == "/status", is_register = rest == "/register" && !name.empty();
  if (!is_status && !is_register && rest != "/unregister") return not_found();
  if (method != (is_status ? "GET" : "POST")) return wrong_method(is_status ? "GET" : "POST");
  if (at.is_cuda) {
    // No region is ever registered, so the status is empty, and unregistering succeeds.
    if (is_register) base::fail_unsupported("CUDA shared memory is not served: this server runs on the CPU");
    if (!is_status) return http::Response{};
    if (name.empty()) return http::json_response(200, "[]");
    base::fail(base::ErrorCode::not_found, "Unable to find cuda shared memory region: '", name, "'");
  }
  SharedRegions& regions = core_.regions(tenant_of(request));
  if (is_status) return ok_json(regions.status(name));
  if (is_register) {
    regions.require_allowed();
    const Json json = object_of(request.body.view());
    const auto number = [&json](const char* key) -> uint64_t {
      const Json* value = json.find(key);
      if (value == nullptr) return 0;
      base::require(value->is_integer() && !(value->as_double() < 0), "Unable to parse '", key,
                    "': expected an unsigned integer");
      return value->as_uint();
    };
    const Json* key = json.find("key");
    base::require(key != nullptr && key->is_string(), "Unable to parse 'key': expected a string");
    base::require(json.contains("byte_size"), "Unable to parse 'byte_size': expected an unsigned integer");
    regions.add(name, key->as_string(), number("offset"), number("byte_size"));
  } else {
    regions.remove(name);
  }
  return http::Response{};
}

/// /v2/repository/models/{name}/load and /unload, without the prefix. Answered when the change is complete.
void KserveApi::control(std::string_view rest, const http::Request& request, http::Reply reply) const {
  const size_t slash = rest.rfind('/');
  const std::string_view action = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  if (action != "load" && action != "unload") return reply.send(not_found());
  if (request.method != "POST") return reply.send(wrong_method("POST"));
  const std::string name = http::percent_decode(rest.substr(0, slash));
  const Json parameters = control_parameters(request.body.view());
  const auto shared = std::make_shared<http::Reply>(std::move(reply));
  const Repository::Done done = [shared](const std::optional<base::Error>& error) {
    shared->send(error ? http::error_response(*error) : http::Response{});
  };
  try {
    action == "load" ? core_.load(name, parameters, done) : core_.unload(name, parameters, done);
  } catch (const base::Error& e) {
    shared->send(http::error_response(e));  // refused before it was queued, so the reply is still unused
  }
}

void KserveApi::handle_model(const ModelPath& path, http::Request&& request, http::Reply reply) const {
  if (path.action == "infer") {
    if (request.method != "POST") return reply.send(wrong_method("POST"));
    return infer(path, std::move(request), std::move(reply));
  }
  if (path.action == "generate" || path.action == "generate_stream") {
    if (request.method != "POST") return reply.send(wrong_method("POST"));
    return generate(path, std::move(request), std::move(reply));
  }
  if (path.action == "trace/setting" && path.version.empty()) {
    if (request.method != "GET" && request.method != "POST") return reply.send(wrong_method("GET, POST"));
    const bool is_change = request.method == "POST";
    return reply.send(
        ok_json(core_.trace_settings(path.name, is_change ? object_of(request.body.view()) : Json())));
  }
  const bool is_known =
      path.action.empty() || path.action == "ready" || path.action == "config" || path.action == "stats";
  if (!is_known || path.name.empty()) return reply.send(not_found());
  if (request.method != "GET" && request.method != "HEAD") return reply.send(wrong_method("GET"));
  if (path.action == "ready") {
    const bool is_well = core_.find(path.name, path.version)->is_well();
    return reply.send(health(core_.is_ready() && is_well, core_.unready_status(), "ready", path.name));
  }
  if (path.action == "config") {
    return reply.send(ok_json(config_json(core_.find(path.name, path.version)->config())));
  }
  if (path.action == "stats") return reply.send(ok_json(core_.statistics(path.name, path.version)));
  reply.send(ok_json(core_.metadata(path.name, path.version)));
}

/// Answers with one object or with a stream of events.
void KserveApi::generate(const ModelPath& path, http::Request&& request, http::Reply reply) const {
  const auto model = core_.find(path.name, path.version);
  InferRequest parsed =
      generate_request(request.body.view(), model->offered_inputs(), model->config().is_batched());
  parsed.traceparent = request.header("traceparent");
  if (core_.tenants().names_by_header()) parsed.tenant = tenant_of(request);
  InferSink sink =
      generate_sink(std::move(reply), path.action == "generate_stream", model->config().is_decoupled);
  sink.received_ns = request.received_ns;
  sink.begun_ns = request.begun_ns;
  sink.wants_one_part = path.action == "generate";
  const auto failed = sink.failed;
  try {
    core_.infer(model, std::move(parsed), std::move(sink));
  } catch (const base::Error& e) {
    failed(e);  // thrown before anything was queued, so the reply is still unused
  }
}

void KserveApi::infer(const ModelPath& path, http::Request&& request, http::Reply reply) const {
  const auto model = core_.find(path.name, path.version);
  // Inputs are views of the body, so the request must live until the last of them is destroyed.
  const auto kept = std::make_shared<http::Request>(std::move(request));
  const std::string_view body = kept->body.view();
  constexpr std::string_view kHeader = "Inference-Header-Content-Length";
  const size_t json_bytes = infer_json_bytes(kept->header(kHeader), kept->has_header(kHeader), body.size());
  const bool is_raw = kept->has_header(kHeader) && json_bytes == 0;
  const std::string tenant = tenant_of(*kept);
  InferRequest parsed =
      is_raw ? raw_infer_request(model->name(), model->offered_inputs(), model->config().is_batched(), body,
                                 kept)
             : parse_infer_request(body, json_bytes, kept, &core_.regions(tenant), model->name());
  refuse_half_in_json(parsed, model->config().outputs);
  parsed.traceparent = kept->header("traceparent");
  if (core_.tenants().names_by_header()) parsed.tenant = tenant;
  const auto shared = std::make_shared<KserveReply>(std::move(reply));
  InferSink sink{.done =
                     [shared](InferResponse&& r) {
                       const auto* tell = std::exchange(r.before_send, nullptr);
                       http::Response answer = infer_http_response(std::move(r));
                       if (tell != nullptr) (*tell)();
                       shared->send(std::move(answer));
                     },
                 .failed = [shared](const base::Error& e) { shared->send(http::error_response(e)); },
                 .cancelled = [shared] { return shared->is_gone(); },
                 .received_ns = kept->received_ns,
                 .begun_ns = kept->begun_ns};
  try {
    core_.infer(model, std::move(parsed), std::move(sink));
  } catch (const base::Error& e) {
    shared->send(http::error_response(e));  // thrown before anything was queued, so the reply is still unused
  }
}

}  // namespace trireme::serve
