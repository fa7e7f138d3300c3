// KServe's service: each call is the core's answer in protobuf's form.
#if TRIREME_GRPC
#include "serve/grpc_service.h"

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include <utility>

#include "serve/grpc_infer.h"
#include "serve/kserve_core.h"
#include "serve/proto/kserve.grpc.pb.h"

namespace trireme::serve {
namespace {

using base::Json;
using grpc::ByteBuffer;
using Context = grpc::CallbackServerContext;
using Reactor = grpc::ServerUnaryReactor;
using Kserve = inference::GRPCInferenceService;

/// Calls `run` and gives its errors as a status.
template <class Run>
grpc::Status status_of(const Run& run) {
  try {
    run();
    return grpc::Status::OK;
  } catch (const base::Error& e) {
    return grpc_status(e);
  } catch (const std::exception& e) {
    return {grpc::StatusCode::INTERNAL, e.what()};
  }
}

/// Fills a message from JSON whose keys are its fields: the protocol's two forms have the same names.
void fill(google::protobuf::Message& message, const Json& json) {
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // JSON says more in places: batching parameters of our own
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

/// No value clears a setting, as null does in JSON.
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

// Each With... makes one call asynchronous; inference calls see bytes, the others messages.
using Inference =
    Kserve::WithRawCallbackMethod_ModelInfer<Kserve::WithRawCallbackMethod_ModelStreamInfer<Kserve::Service>>;
using Health = Kserve::WithCallbackMethod_ServerLive<
    Kserve::WithCallbackMethod_ServerReady<Kserve::WithCallbackMethod_ModelReady<Inference>>>;
using Metadata = Kserve::WithCallbackMethod_ServerMetadata<Kserve::WithCallbackMethod_ModelMetadata<
    Kserve::WithCallbackMethod_ModelConfig<Kserve::WithCallbackMethod_ModelStatistics<Health>>>>;
using Control = Kserve::WithCallbackMethod_RepositoryIndex<Kserve::WithCallbackMethod_RepositoryModelLoad<
    Kserve::WithCallbackMethod_RepositoryModelUnload<Metadata>>>;
using SystemMemory =
    Kserve::WithCallbackMethod_SystemSharedMemoryStatus<Kserve::WithCallbackMethod_SystemSharedMemoryRegister<
        Kserve::WithCallbackMethod_SystemSharedMemoryUnregister<Control>>>;
using CudaMemory =
    Kserve::WithCallbackMethod_CudaSharedMemoryStatus<Kserve::WithCallbackMethod_CudaSharedMemoryRegister<
        Kserve::WithCallbackMethod_CudaSharedMemoryUnregister<SystemMemory>>>;
using Asynchronous =
    Kserve::WithCallbackMethod_TraceSetting<Kserve::WithCallbackMethod_LogSettings<CudaMemory>>;

class KserveService final : public Asynchronous {
 public:
  explicit KserveService(KserveCore& core) : core_(core) {}

  Reactor* ModelInfer(Context* context, const ByteBuffer* request, ByteBuffer* response) override {
    return grpc_infer(core_, context, request, response);
  }
  grpc::ServerBidiReactor<ByteBuffer, ByteBuffer>* ModelStreamInfer(Context* context) override {
    return grpc_stream_infer(core_, context);
  }

  Reactor* ServerLive(Context* context, const inference::ServerLiveRequest*,
                      inference::ServerLiveResponse* response) override {
    return answer(context, __func__, [&] { response->set_live(true); });
  }
  Reactor* ServerReady(Context* context, const inference::ServerReadyRequest*,
                       inference::ServerReadyResponse* response) override {
    return answer(context, __func__, [&] { response->set_ready(core_.is_ready()); });
  }
  Reactor* ModelReady(Context* context, const inference::ModelReadyRequest* request,
                      inference::ModelReadyResponse* response) override {
    return answer(context, __func__, [&] {
      response->set_ready(core_.is_ready() && core_.is_served(request->name(), request->version()));
    });
  }
  Reactor* ServerMetadata(Context* context, const inference::ServerMetadataRequest*,
                          inference::ServerMetadataResponse* response) override {
    return answer(context, __func__, [&] { fill(*response, core_.server_metadata()); });
  }
  Reactor* ModelMetadata(Context* context, const inference::ModelMetadataRequest* request,
                         inference::ModelMetadataResponse* response) override {
    return answer(context, __func__,
                  [&] { fill(*response, core_.metadata(request->name(), request->version())); });
  }
  Reactor* ModelConfig(Context* context, const inference::ModelConfigRequest* request,
                       inference::ModelConfigResponse* response) override {
    return answer(context, __func__, [&] {
      const auto model = core_.find(request->name(), request->version());
      fill(*response->mutable_config(), config_json(model->config()));
    });
  }
  Reactor* ModelStatistics(Context* context, const inference::ModelStatisticsRequest* request,
                           inference::ModelStatisticsResponse* response) override {
    return answer(context, __func__,
                  [&] { fill(*response, core_.statistics(request->name(), request->version())); });
  }

  Reactor* RepositoryIndex(Context* context, const inference::RepositoryIndexRequest* request,
                           inference::RepositoryIndexResponse* response) override {
    return answer(context, __func__, [&] {
      require_no_repository(request->repository_name());
      fill(*response, Json::object({{"models", core_.index(request->ready())}}));
    });
  }
  Reactor* RepositoryModelLoad(Context* context, const inference::RepositoryModelLoadRequest* request,
                               inference::RepositoryModelLoadResponse*) override {
    return control(context, __func__, [&](const Repository::Done& done) {
      require_no_repository(request->repository_name());
      core_.load(request->model_name(), parameters_json(request->parameters()), done);
    });
  }
  Reactor* RepositoryModelUnload(Context* context, const inference::RepositoryModelUnloadRequest* request,
                                 inference::RepositoryModelUnloadResponse*) override {
    return control(context, __func__, [&](const Repository::Done& done) {
      require_no_repository(request->repository_name());
      core_.unload(request->model_name(), parameters_json(request->parameters()), done);
    });
  }

  Reactor* SystemSharedMemoryStatus(Context* context,
                                    const inference::SystemSharedMemoryStatusRequest* request,
                                    inference::SystemSharedMemoryStatusResponse* response) override {
    return answer(context, __func__, [&] {
      const Json regions = core_.regions().status(request->name());
      for (const Json& region : regions.as_array()) {
        fill((*response->mutable_regions())[region.at("name").as_string()], region);
      }
    });
  }
  Reactor* SystemSharedMemoryRegister(Context* context,
                                      const inference::SystemSharedMemoryRegisterRequest* request,
                                      inference::SystemSharedMemoryRegisterResponse*) override {
    return answer(context, __func__, [&] {
      core_.regions().add(request->name(), request->key(), request->offset(), request->byte_size());
    });
  }
  Reactor* SystemSharedMemoryUnregister(Context* context,
                                        const inference::SystemSharedMemoryUnregisterRequest* request,
                                        inference::SystemSharedMemoryUnregisterResponse*) override {
    return answer(context, __func__, [&] { core_.regions().remove(request->name()); });
  }
  Reactor* CudaSharedMemoryStatus(Context* context, const inference::CudaSharedMemoryStatusRequest* request,
                                  inference::CudaSharedMemoryStatusResponse*) override {
    return answer(context, __func__, [&] {
      if (!request->name().empty()) refuse_cuda();
    });
  }
  Reactor* CudaSharedMemoryRegister(Context* context, const inference::CudaSharedMemoryRegisterRequest*,
                                    inference::CudaSharedMemoryRegisterResponse*) override {
    return answer(context, __func__, [] { refuse_cuda(); });
  }
  Reactor* CudaSharedMemoryUnregister(Context* context,
                                      const inference::CudaSharedMemoryUnregisterRequest* request,
                                      inference::CudaSharedMemoryUnregisterResponse*) override {
    return answer(context, __func__, [&] {
      if (!request->name().empty()) refuse_cuda();
    });
  }

  Reactor* TraceSetting(Context* context, const inference::TraceSettingRequest* request,
                        inference::TraceSettingResponse* response) override {
    return answer(context, __func__, [&] {
      fill_trace(*response, core_.trace_settings(request->model_name(), trace_changes(*request)));
    });
  }
  Reactor* LogSettings(Context* context, const inference::LogSettingsRequest* request,
                       inference::LogSettingsResponse* response) override {
    return answer(context, __func__, [&] { fill_log(*response, core_.log_settings(log_changes(*request))); });
  }

 private:
  /// A call that is answered at once.
  template <class Run>
  Reactor* answer(Context* context, const char* call, const Run& run) const {
    Reactor* reactor = context->DefaultReactor();
    reactor->Finish(status_of([&] {
      require_access(core_, *context, category_of_call(call));
      run();
    }));
    return reactor;
  }
  /// A call that is answered when a load or unload has ended.
  template <class Start>
  Reactor* control(Context* context, const char* call, const Start& start) const {
    Reactor* reactor = context->DefaultReactor();
    const Repository::Done done = [reactor](const std::optional<base::Error>& error) {
      reactor->Finish(error ? grpc_status(*error) : grpc::Status::OK);
    };
    const grpc::Status refused = status_of([&] {
      require_access(core_, *context, category_of_call(call));
      start(done);
    });
    if (!refused.ok()) reactor->Finish(refused);  // refused before it was queued
    return reactor;
  }

  KserveCore& core_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_kserve_service(KserveCore& core) {
  return std::make_unique<KserveService>(core);
}

}  // namespace trireme::serve
#endif
