// The KServe v2 routes over HTTP.
#include "serve/kserve.h"

#include <algorithm>

#include "base/json.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr std::string_view kModels = "/v2/models/";
constexpr std::string_view kVersions = "/versions/";

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
  Json extensions = Json::array({"classification", "model_repository", "model_configuration",
                                 "schedule_policy", "binary_tensor_data", "parameters", "statistics"});
  return http_json(
      200, Json::object({{"name", "trireme"}, {"version", "0.1.0"}, {"extensions", extensions}}).dump());
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

KserveApi::KserveApi(const Repository& repository, const base::Env& env, std::function<bool()> is_ready)
    : repository_(repository), env_(env), is_ready_(std::move(is_ready)) {}

void KserveApi::handle(HttpRequest&& request, HttpReply reply) const {
  const std::string_view path = request.path;
  if (starts_with(path, kModels) && path != "/v2/models/stats") {
    const ModelPath model = ModelPath::of(path.substr(kModels.size()));
    return handle_model(model, std::move(request), std::move(reply));
  }
  reply.send(answer(path, request.method, request.body.view()));
}

HttpResponse KserveApi::answer(std::string_view path, std::string_view method, std::string_view body) const {
  struct Route {
    std::string_view path, method;
    HttpResponse (*run)(const KserveApi& api, std::string_view body);
  };
  static constexpr Route kRoutes[] = {
      {"/v2", "GET", [](const KserveApi&, std::string_view) { return server_metadata(); }},
      {"/v2/health/live", "GET", [](const KserveApi&, std::string_view) { return health(true); }},
      {"/v2/health/ready", "GET",
       [](const KserveApi& api, std::string_view) { return health(api.is_ready_()); }},
      {"/v2/models/stats", "GET", [](const KserveApi& api, std::string_view) { return api.all_stats(); }},
      {"/v2/repository/index", "POST", [](const KserveApi& api, std::string_view b) { return api.index(b); }},
  };
  while (path.size() > 3 && path.back() == '/') path.remove_suffix(1);
  for (const Route& r : kRoutes) {
    if (r.path != path) continue;
    const bool fits = r.method == method || (method == "HEAD" && r.method == "GET");
    return fits ? r.run(*this, body) : wrong_method(r.method);
  }
  if (starts_with(path, "/v2/repository/models/")) {
    if (method != "POST") return wrong_method("POST");
    return http_error(503,
                      "explicit model load / unload is not allowed: the repository is read at the start");
  }
  return not_found();
}

void KserveApi::handle_model(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
  if (path.action == "infer") {
    if (request.method != "POST") return reply.send(wrong_method("POST"));
    return infer(path, std::move(request), std::move(reply));
  }
  const bool is_known =
      path.action.empty() || path.action == "ready" || path.action == "config" || path.action == "stats";
  if (!is_known || path.name.empty()) return reply.send(not_found());
  if (request.method != "GET" && request.method != "HEAD") return reply.send(wrong_method("GET"));
  const auto model = repository_.find(path.name, path.version);
  if (path.action == "ready") return reply.send(health(is_ready_()));
  if (path.action == "config") return reply.send(http_json(200, config_json(model->config()).dump()));
  if (path.action == "stats") {
    return reply.send(http_json(200, Json::object({{"model_stats", Json::array({model->stats()})}}).dump()));
  }
  reply.send(http_json(200, model->metadata(repository_.versions(path.name)).dump()));
}

void KserveApi::infer(const ModelPath& path, HttpRequest&& request, HttpReply reply) const {
  if (!is_ready_() && repository_.models().empty()) {
    base::fail(base::ErrorCode::unavailable, "the server is loading its models");
  }
  const auto model = repository_.find(path.name, path.version);
  // Inputs look into the body, so the request lives until the last of them is gone.
  const auto kept = std::make_shared<HttpRequest>(std::move(request));
  const std::string_view body = kept->body.view();
  constexpr std::string_view kHeader = "Inference-Header-Content-Length";
  const size_t json_bytes = infer_json_bytes(kept->header(kHeader), kept->has_header(kHeader), body.size());
  if (kept->has_header(kHeader) && json_bytes == 0) {
    base::fail_unsupported("raw binary requests (Inference-Header-Content-Length: 0) are not served");
  }
  InferRequest parsed = parse_infer_request(body, json_bytes, kept);
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
    entry.set("state", e.state);
    if (!e.reason.empty()) entry.set("reason", e.reason);
    list.push_back(std::move(entry));
  }
  return http_json(200, list.dump());
}

HttpResponse KserveApi::all_stats() const {
  Json list = Json::array();
  for (const auto& model : repository_.models()) list.push_back(model->stats());
  return http_json(200, Json::object({{"model_stats", std::move(list)}}).dump());
}

}  // namespace trireme::serve
