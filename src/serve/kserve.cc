// The KServe v2 routes over HTTP.
#include "serve/kserve.h"

#include <algorithm>

#include "base/json.h"
#include "serve/kserve_generate.h"
#include "serve/kserve_raw.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kModels = "/v2/models/";
constexpr std::string_view kVersions = "/versions/";
constexpr std::string_view kControl = "/v2/repository/models/";
constexpr std::string_view kRegions = "/v2/systemsharedmemory";

bool starts_with(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

HttpResponse not_found() { return http_error(404, "Not Found"); }

HttpResponse wrong_method(std::string_view allowed) {
  HttpResponse response = http_error(405, "Method Not Allowed");
  response.headers.emplace_back("Allow", std::string(allowed));
  return response;
}

/// The JSON object in a body; empty: null.
Json object_of(std::string_view body) {
  if (body.empty()) return {};
  Json json = base::parse_json(body);
  base::require(json.is_object(), "failed to parse the request JSON buffer: expected an object");
  return json;
}

/// What a control request's body says of the load or unload.
Json control_parameters(std::string_view body) {
  const Json json = object_of(body);
  const Json* parameters = json.find("parameters");
  if (parameters == nullptr || !parameters->is_object()) return parameters == nullptr ? Json() : *parameters;
  Json decoded = Json::object();  // files come in base64, as JSON carries no bytes
  for (const auto& [key, value] : parameters->as_object()) {
    const bool is_file = starts_with(key, "file:") && value.is_string();
    decoded.set(key, is_file ? Json(http_base64_decode(value.as_string())) : value);
  }
  return decoded;
}

HttpResponse ok_json(const Json& json) { return http_json(200, json.dump()); }

/// `otherwise` (usually 503) while loading or draining, so that balancers look elsewhere.
HttpResponse health(bool is_well, int otherwise, std::string_view word, std::string_view model = {}) {
  if (!is_well) return http_error(otherwise, "server is not ready");
  Json json = model.empty() ? Json::object() : Json::object({{"name", std::string(model)}});
  json.set(std::string(word), true);
  return ok_json(json);
}

bool wants_ready_only(std::string_view body) {
  const Json json = object_of(body);
  const Json* ready = json.find("ready");
  if (ready == nullptr) return false;
  base::require(ready->is_bool(), "Invalid value for 'ready': expected a boolean");
  return ready->as_bool();
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
  while (path.size() > 3 && path.back() == '/') path.remove_suffix(1);
  std::string allowed;
  for (const Route& r : kRoutes) {
    if (r.path != path) continue;
    if (r.method == method || (method == "HEAD" && r.method == "GET")) return r.run(*this, body);
    allowed.append(allowed.empty() ? "" : ", ").append(r.method);
  }
  if (!allowed.empty()) return wrong_method(allowed);
  if (starts_with(path, kRegions)) return region_answer(path.substr(kRegions.size()), method, body);
  if (starts_with(path, "/v2/cudasharedmemory")) {
    // Nothing is registered, so there is nothing to show, and forgetting all of it is done.
    if (path == "/v2/cudasharedmemory/status" && method == "GET") return http_json(200, "[]");
    if (path == "/v2/cudasharedmemory/unregister" && method == "POST") return HttpResponse{};
    base::fail_unsupported("CUDA shared memory is not served: this server runs on the CPU");
  }
  if (starts_with(path, "/v2/repository/"))
    base::fail_unsupported("'repository_name' specification is not supported");
  return not_found();
}

/// [/region/{name}]/{status,register,unregister}, after /v2/systemsharedmemory.
HttpResponse KserveApi::region_answer(std::string_view rest, std::string_view method,
                                      std::string_view body) const {
  std::string name;
  constexpr std::string_view kRegion = "/region/";
  if (starts_with(rest, kRegion)) {
    rest.remove_prefix(kRegion.size());
    const size_t slash = std::min(rest.find('/'), rest.size());
    name = http_percent_decode(rest.substr(0, slash));
    rest.remove_prefix(slash);
  }
  const bool is_status = rest == "/status", is_register = rest == "/register" && !name.empty();
  if (!is_status && !is_register && rest != "/unregister") return not_found();
  if (method != (is_status ? "GET" : "POST")) return wrong_method(is_status ? "GET" : "POST");
  if (is_status) return ok_json(core_.regions().status(name));
  if (is_register) {
    const Json json = object_of(body);
    core_.regions().add(name, json.at("key").as_string(), json.get_or<uint64_t>("offset", 0),
                        json.at("byte_size").as_uint());
  } else {
    core_.regions().remove(name);
  }
  return HttpResponse{};
}

/// /v2/repository/models/{name}/load and /unload, without the prefix. The answer comes when it is done.
void KserveApi::control(std::string_view rest, const HttpRequest& request, HttpReply reply) const {
  const size_t slash = rest.rfind('/');
  const std::string_view action = slash == std::string_view::npos ? "" : rest.substr(slash + 1);
  if (action != "load" && action != "unload") return reply.send(not_found());
  if (request.method != "POST") return reply.send(wrong_method("POST"));
  const std::string name = http_percent_decode(rest.substr(0, slash));
  const Json parameters = control_parameters(request.body.view());
  const auto shared = std::make_shared<HttpReply>(std::move(reply));
  const Repository::Done done = [shared](const std::optional<base::Error>& error) {
    shared->send(error ? http_error(*error) : HttpResponse{});
  };
  try {
    action == "load" ? core_.load(name, parameters, done) : core_.unload(name, parameters, done);
  } catch (const base::Error& e) {
    shared->send(http_error(e));  // refused before it was queued, so the reply is still unused
  }
}

void KserveApi::handle_model(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
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

/// Answers as one object or as events of a stream.
void KserveApi::generate(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
  const auto model = core_.find(path.name, path.version);
  InferRequest parsed =
      generate_request(request.body.view(), model->offered_inputs(), model->config().is_batched());
  parsed.traceparent = request.header("traceparent");
  if (core_.tenants().names_by_header()) parsed.tenant = request.header(core_.tenants().header());
  InferSink sink =
      generate_sink(std::move(reply), path.action == "generate_stream", model->config().is_decoupled);
  sink.received_ns = request.received_ns;
  const auto failed = sink.failed;
  try {
    core_.infer(model, std::move(parsed), std::move(sink));
  } catch (const base::Error& e) {
    failed(e);  // thrown before anything was queued, so the reply is still unused
  }
}

void KserveApi::infer(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
  const auto model = core_.find(path.name, path.version);
  // Inputs look into the body, so the request lives until the last of them is gone.
  const auto kept = std::make_shared<HttpRequest>(std::move(request));
  const std::string_view body = kept->body.view();
  constexpr std::string_view kHeader = "Inference-Header-Content-Length";
  const size_t json_bytes = infer_json_bytes(kept->header(kHeader), kept->has_header(kHeader), body.size());
  const bool is_raw = kept->has_header(kHeader) && json_bytes == 0;
  InferRequest parsed = is_raw ? raw_infer_request(model->name(), model->offered_inputs(),
                                                   model->config().is_batched(), body, kept)
                               : parse_infer_request(body, json_bytes, kept, &core_.regions());
  parsed.traceparent = kept->header("traceparent");
  if (core_.tenants().names_by_header()) parsed.tenant = kept->header(core_.tenants().header());
  const auto shared = std::make_shared<HttpReply>(std::move(reply));
  InferSink sink{.done =
                     [shared](InferResponse&& r) {
                       const auto* tell = std::exchange(r.before_send, nullptr);
                       HttpResponse answer = infer_http_response(std::move(r));
                       if (tell != nullptr) (*tell)();
                       shared->send(std::move(answer));
                     },
                 .failed = [shared](const base::Error& e) { shared->send(http_error(e)); },
                 .cancelled = [shared] { return shared->client_gone(); },
                 .received_ns = kept->received_ns};
  try {
    core_.infer(model, std::move(parsed), std::move(sink));
  } catch (const base::Error& e) {
    shared->send(http_error(e));  // thrown before anything was queued, so the reply is still unused
  }
}

}  // namespace trireme::serve
