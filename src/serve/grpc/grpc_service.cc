// KServe's gRPC service: converts between protobuf messages and the core.
#include "serve/grpc/grpc_service.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "serve/grpc/grpc_access.h"
#include "serve/grpc/grpc_health.h"
#include "serve/grpc/grpc_infer.h"
#include "serve/grpc/grpc_reflection.h"
#include "serve/grpc/grpc_unary.h"
#include "serve/core/kserve_core.h"
#include "serve/proto/kserve.pb.h"

namespace trireme::serve {
namespace {

using base::Json;
/// Fills a message from JSON with equal names: both forms of the protocol use the same field names.
void fill(google::protobuf::Message& message, const Json& json) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // the JSON has extensions: own batching parameters
  const auto status = google::protobuf::util::JsonStringToMessage(json.dump(), &message, options);
  base::check(status.ok(), "an answer does not fit its message: ", status.ToString());
}

void require_no_repository(const std::string& name) {
  if (!name.empty()) base::fail_unsupported("'repository_name' specification is not supported");
}

Json parameters_json(const google::protobuf::Map<std::string, inference::ModelRepositoryParameter>& map) {
  using Choice = inference::ModelRepositoryParameter;
  if (map.empty()) return {};
  Json json = Json::object();
  for (const auto& [key, value] : map) {
    switch (value.parameter_choice_case()) {
      case Choice::kBoolParam: json.set(key, value.bool_param()); break;
      case Choice::kInt64Param: json.set(key, int64_t{value.int64_param()}); break;
      case Choice::kStringParam: json.set(key, value.string_param()); break;
      case Choice::kBytesParam: json.set(key, value.bytes_param()); break;
      default: base::fail_invalid("parameter '", key, "' has no value");
    }
  }
  return json;
}

Json log_changes(const inference::LogSettingsRequest& request) {
  using Choice = inference::LogSettingsRequest::SettingValue;
  if (request.settings().empty()) return {};
  Json json = Json::object();
  for (const auto& [key, value] : request.settings()) {
    switch (value.parameter_choice_case()) {
      case Choice::kBoolParam: json.set(key, value.bool_param()); break;
      case Choice::kUint32Param: json.set(key, int64_t{value.uint32_param()}); break;
      case Choice::kStringParam: json.set(key, value.string_param()); break;
      default: base::fail_invalid("log setting '", key, "' has no value");
    }
  }
  return json;
}

/// A setting without a value is cleared, like null in JSON.
Json trace_changes(const inference::TraceSettingRequest& request) {
  if (request.settings().empty()) return {};
  Json json = Json::object();
  for (const auto& [key, value] : request.settings()) {
    if (value.value().empty()) {
      json.set(key, nullptr);
    } else if (key == "trace_level") {
      Json list = Json::array();
      for (const std::string& v : value.value()) list.push_back(v);
      json.set(key, std::move(list));
    } else {
      json.set(key, value.value(0));
    }
  }
  return json;
}

void fill_trace(inference::TraceSettingResponse& response, const Json& settings) {
  for (const auto& [key, value] : settings.as_object()) {
    auto& to = (*response.mutable_settings())[key];
    if (value.is_array()) {
      for (const Json& v : value.as_array()) to.add_value(v.as_string());
    } else {
      to.add_value(value.as_string());
    }
  }
}

void fill_log(inference::LogSettingsResponse& response, const Json& settings) {
  for (const auto& [key, value] : settings.as_object()) {
    auto& to = (*response.mutable_settings())[key];
    if (value.is_bool()) {
      to.set_bool_param(value.as_bool());
    } else if (value.is_string()) {
      to.set_string_param(value.as_string());
    } else {
      to.set_uint32_param(static_cast<uint32_t>(value.as_uint()));
    }
  }
}

[[noreturn]] void refuse_cuda() {
  base::fail_unsupported("CUDA shared memory is not served: this server runs on the CPU");
}

using Core = KserveCore;

/// One method: how its request is read, and what answers it, at once or when a load has ended.
struct Method {
  std::string_view name;
  std::unique_ptr<GrpcHandler> (*open)(Core& core, const std::shared_ptr<GrpcCall>& call, Category category);
};

/// The model that a request concerns; empty for none or all.
template <class Request>
std::string_view model_of(const Request& request) {
  if constexpr (requires { request.model_name(); }) {
    return request.model_name();
  } else if constexpr (requires { request.name(), request.version(); }) {
    return request.name();  // other requests with only a name concern regions
  } else {
    return {};
  }
}

/// The tenant given in the call's metadata; it has regions of its own.
std::string tenant_of(const Core& core, const GrpcCall& call) {
  return std::string(core.tenants().names_by_header() ? call.field(core.tenants().header())
                                                      : std::string_view());
}

/// A method that is answered at once: `kFill` calls the core and fills the response.
template <class Request, class Response, auto kFill>
std::unique_ptr<GrpcHandler> at_once(Core& core, const std::shared_ptr<GrpcCall>& call, Category category) {
  return grpc_unary<Request>(call, [&core, category](GrpcCall& to, const Request& request) {
    require_access(core.rules(), to, category, model_of(request));
    Response response;
    if constexpr (requires { kFill(core.regions(""), request, response); }) {
      kFill(core.regions(tenant_of(core, to)), request, response);
    } else {
      kFill(core, request, response);
    }
    to.answer(grpc_message(response));
  });
}

/// A method that is answered when a load or unload has ended.
template <class Request, void (KserveCore::*kStart)(const std::string&, const Json&, Repository::Done) const>
std::unique_ptr<GrpcHandler> in_time(Core& core, const std::shared_ptr<GrpcCall>& call, Category category) {
  const auto run = [&core, category](GrpcCall& to, const Request& request) {
    require_access(core.rules(), to, category, model_of(request));
    require_no_repository(request.repository_name());
    const Repository::Done done = [kept = to.shared_from_this()](const std::optional<base::Error>& error) {
      if (error) return kept->finish(grpc_status(*error));
      kept->answer({});  // the response has no fields
    };
    (core.*kStart)(request.model_name(), parameters_json(request.parameters()), done);
  };
  return grpc_unary<Request>(call, run, SIZE_MAX);  // it may contain a model's files
}

/// An inference call checks access itself, because each message of a stream names a model.
template <std::unique_ptr<GrpcHandler> (*kOpen)(KserveCore&, const std::shared_ptr<GrpcCall>&)>
std::unique_ptr<GrpcHandler> inference(Core& core, const std::shared_ptr<GrpcCall>& call, Category) {
  return kOpen(core, call);
}

namespace pb = inference;

void server_live(Core&, const pb::ServerLiveRequest&, pb::ServerLiveResponse& to) { to.set_live(true); }

void server_ready(Core& core, const pb::ServerReadyRequest&, pb::ServerReadyResponse& to) {
  to.set_ready(core.is_ready());
}

void model_ready(Core& core, const pb::ModelReadyRequest& request, pb::ModelReadyResponse& to) {
  to.set_ready(core.is_ready() && core.is_served(request.name(), request.version()));
}

void server_metadata(Core& core, const pb::ServerMetadataRequest&, pb::ServerMetadataResponse& to) {
  fill(to, core.server_metadata());
}

void model_metadata(Core& core, const pb::ModelMetadataRequest& request, pb::ModelMetadataResponse& to) {
  fill(to, core.metadata(request.name(), request.version()));
}

void model_config(Core& core, const pb::ModelConfigRequest& request, pb::ModelConfigResponse& to) {
  const auto model = core.find(request.name(), request.version());
  fill(*to.mutable_config(), config_json(model->config()));
}

void model_statistics(Core& core, const pb::ModelStatisticsRequest& request,
                      pb::ModelStatisticsResponse& to) {
  fill(to, core.statistics(request.name(), request.version()));
}

void repository_index(Core& core, const pb::RepositoryIndexRequest& request,
                      pb::RepositoryIndexResponse& to) {
  require_no_repository(request.repository_name());
  fill(to, Json::object({{"models", core.index(request.ready())}}));
}

void shared_status(SharedRegions& regions, const pb::SystemSharedMemoryStatusRequest& request,
                   pb::SystemSharedMemoryStatusResponse& to) {
  const Json list = regions.status(request.name());
  for (const Json& region : list.as_array())
    fill((*to.mutable_regions())[region.at("name").as_string()], region);
}

void shared_register(SharedRegions& regions, const pb::SystemSharedMemoryRegisterRequest& request,
                     pb::SystemSharedMemoryRegisterResponse&) {
  regions.add(request.name(), request.key(), request.offset(), request.byte_size());
}

void shared_unregister(SharedRegions& regions, const pb::SystemSharedMemoryUnregisterRequest& request,
                       pb::SystemSharedMemoryUnregisterResponse&) {
  regions.remove(request.name());
}

void cuda_status(Core&, const pb::CudaSharedMemoryStatusRequest& request,
                 pb::CudaSharedMemoryStatusResponse&) {
  if (!request.name().empty()) refuse_cuda();
}

void cuda_register(Core&, const pb::CudaSharedMemoryRegisterRequest&, pb::CudaSharedMemoryRegisterResponse&) {
  refuse_cuda();
}

void cuda_unregister(Core&, const pb::CudaSharedMemoryUnregisterRequest& request,
                     pb::CudaSharedMemoryUnregisterResponse&) {
  if (!request.name().empty()) refuse_cuda();
}

void trace_setting(Core& core, const pb::TraceSettingRequest& request, pb::TraceSettingResponse& to) {
  fill_trace(to, core.trace_settings(request.model_name(), trace_changes(request)));
}

void log_settings(Core& core, const pb::LogSettingsRequest& request, pb::LogSettingsResponse& to) {
  fill_log(to, core.log_settings(log_changes(request)));
}

#define TRIREME_AT_ONCE(name, fill) \
  { #name, at_once < pb::name##Request, pb::name##Response, fill> }

constexpr Method kMethods[] = {
    {"ModelInfer", inference<grpc_infer>},
    {"ModelStreamInfer", inference<grpc_stream_infer>},
    TRIREME_AT_ONCE(ServerLive, server_live),
    TRIREME_AT_ONCE(ServerReady, server_ready),
    TRIREME_AT_ONCE(ModelReady, model_ready),
    TRIREME_AT_ONCE(ServerMetadata, server_metadata),
    TRIREME_AT_ONCE(ModelMetadata, model_metadata),
    TRIREME_AT_ONCE(ModelConfig, model_config),
    TRIREME_AT_ONCE(ModelStatistics, model_statistics),
    TRIREME_AT_ONCE(RepositoryIndex, repository_index),
    {"RepositoryModelLoad", in_time<pb::RepositoryModelLoadRequest, &KserveCore::load>},
    {"RepositoryModelUnload", in_time<pb::RepositoryModelUnloadRequest, &KserveCore::unload>},
    TRIREME_AT_ONCE(SystemSharedMemoryStatus, shared_status),
    TRIREME_AT_ONCE(SystemSharedMemoryRegister, shared_register),
    TRIREME_AT_ONCE(SystemSharedMemoryUnregister, shared_unregister),
    TRIREME_AT_ONCE(CudaSharedMemoryStatus, cuda_status),
    TRIREME_AT_ONCE(CudaSharedMemoryRegister, cuda_register),
    TRIREME_AT_ONCE(CudaSharedMemoryUnregister, cuda_unregister),
    TRIREME_AT_ONCE(TraceSetting, trace_setting),
    TRIREME_AT_ONCE(LogSettings, log_settings),
};

#undef TRIREME_AT_ONCE

class Routes final : public GrpcRoutes {
 public:
  Routes(KserveCore& core, const GrpcHealth& health) : core_(core), health_(health) {}

  /// The only entry to every method of every service: access is checked before a message is read.
  std::unique_ptr<GrpcHandler> open(const std::shared_ptr<GrpcCall>& call) override {
    std::string_view path = call->field(":path");
    if (path.empty() || path.front() != '/') return nullptr;
    path.remove_prefix(1);
    const size_t slash = path.find('/');
    if (slash == path.npos) return nullptr;
    const std::string_view service = path.substr(0, slash), method = path.substr(slash + 1);
    const std::optional<Category> category = category_of(service, method);
    if (!category) return nullptr;
    require_access(core_.rules(), *call, *category);
    if (*category == Category::health && service != kGrpcServiceName) return health_.open(method, call);
    if (service != kGrpcServiceName) return grpc_reflection(method, call);
    return method_of(method)->open(core_, call, *category);
  }

 private:
  static const Method* method_of(std::string_view name) {
    const auto at = std::find_if(std::begin(kMethods), std::end(kMethods),
                                 [&](const Method& m) { return m.name == name; });
    return at == std::end(kMethods) ? nullptr : at;
  }
  /// Nothing if there is no such service, or KServe's service has no such method.
  static std::optional<Category> category_of(std::string_view service, std::string_view method) {
    if (service == kGrpcServiceName) {
      if (method_of(method) == nullptr) return {};
      return category_of_call(method);
    }
    if (service == "grpc.health.v1.Health") return Category::health;
    if (service == "grpc.reflection.v1.ServerReflection" ||
        service == "grpc.reflection.v1alpha.ServerReflection")
      return Category::metadata;
    return {};
  }

  KserveCore& core_;
  const GrpcHealth& health_;
};

}  // namespace

std::unique_ptr<GrpcRoutes> make_kserve_routes(KserveCore& core, const GrpcHealth& health) {
  return std::make_unique<Routes>(core, health);
}

}  // namespace trireme::serve
