// The services grpc.reflection.v1 and v1alpha, on protobuf's own descriptors.
#include "serve/grpc/grpc_reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <algorithm>
#include <array>

#include "serve/grpc/grpc_unary.h"
#include "serve/proto/health.pb.h"
#include "serve/proto/kserve.pb.h"
#include "serve/proto/reflection_v1.pb.h"
#include "serve/proto/reflection_v1alpha.pb.h"

namespace trireme::serve {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

std::array<const FileDescriptor*, 4> service_files() {
  return {inference::ModelInferRequest::descriptor()->file(),
          grpc::health::v1::HealthCheckRequest::descriptor()->file(),
          grpc::reflection::v1::ServerReflectionRequest::descriptor()->file(),
          grpc::reflection::v1alpha::ServerReflectionRequest::descriptor()->file()};
}

/// Collects a file and all files it imports, each once.
void collect(const FileDescriptor& file, std::vector<const FileDescriptor*>& into) {
  if (std::find(into.begin(), into.end(), &file) != into.end()) return;
  into.push_back(&file);
  for (int i = 0; i < file.dependency_count(); ++i) collect(*file.dependency(i), into);
}

void answer_file(ServerReflectionResponse& response, const FileDescriptor* file, const std::string& name) {
  if (file == nullptr) {
    response.mutable_error_response()->set_error_code(static_cast<int>(GrpcCode::not_found));
    response.mutable_error_response()->set_error_message("not found: " + name);
    return;
  }
  std::vector<const FileDescriptor*> files;
  collect(*file, files);
  for (const FileDescriptor* f : files) {
    google::protobuf::FileDescriptorProto proto;
    f->CopyTo(&proto);
    response.mutable_file_descriptor_response()->add_file_descriptor_proto(proto.SerializeAsString());
  }
}

void answer_extension(ServerReflectionResponse& response, const std::string& type, int number) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* message = pool.FindMessageTypeByName(type);
  const auto* extension = message == nullptr ? nullptr : pool.FindExtensionByNumber(message, number);
  answer_file(response, extension == nullptr ? nullptr : extension->file(), type);
}

void answer_extension_numbers(ServerReflectionResponse& response, const std::string& type) {
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  const auto* message = pool.FindMessageTypeByName(type);
  if (message == nullptr) return answer_file(response, nullptr, type);
  std::vector<const google::protobuf::FieldDescriptor*> extensions;
  pool.FindAllExtensions(message, &extensions);
  response.mutable_all_extension_numbers_response()->set_base_type_name(type);
  for (const auto* e : extensions)
    response.mutable_all_extension_numbers_response()->add_extension_number(e->number());
}

ServerReflectionResponse answer(const ServerReflectionRequest& request) {
  using Choice = ServerReflectionRequest::MessageRequestCase;
  const DescriptorPool& pool = *DescriptorPool::generated_pool();
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Choice::kFileByFilename:
      answer_file(response, pool.FindFileByName(request.file_by_filename()), request.file_by_filename());
      break;
    case Choice::kFileContainingSymbol:
      answer_file(response, pool.FindFileContainingSymbol(request.file_containing_symbol()),
                  request.file_containing_symbol());
      break;
    case Choice::kFileContainingExtension:
      answer_extension(response, request.file_containing_extension().containing_type(),
                       request.file_containing_extension().extension_number());
      break;
    case Choice::kAllExtensionNumbersOfType:
      answer_extension_numbers(response, request.all_extension_numbers_of_type());
      break;
    case Choice::kListServices:
      for (const std::string& name : grpc_service_names())
        response.mutable_list_services_response()->add_service()->set_name(name);
      break;
    default:
      response.mutable_error_response()->set_error_code(static_cast<int>(GrpcCode::invalid_argument));
      response.mutable_error_response()->set_error_message("the request asks for nothing");
  }
  return response;
}

class Reflection final : public GrpcHandler {
 public:
  explicit Reflection(std::shared_ptr<GrpcCall> call) : call_(std::move(call)) {}

  size_t most_bytes() const override { return kMostBytes; }
  // Answers have kilobytes for a request of bytes, so one is sent at a time: clients that do not read wait.
  void on_message(http::Bytes&& message) override {
    is_sending_ = true;
    call_->hold(true);
    call_->send(grpc_message(answer(grpc_parse<ServerReflectionRequest>(message))));
    call_->count();
  }
  void on_sent() override {
    is_sending_ = false;
    call_->hold(false);
  }
  void on_end() override { call_->finish({}); }
  void on_drain() override {
    if (!is_sending_) call_->finish({GrpcCode::unavailable, "the server is shutting down"});
  }

 private:
  static constexpr size_t kMostBytes = 4096;  // a request holds a name, and the answer repeats it
  const std::shared_ptr<GrpcCall> call_;
  bool is_sending_ = false;
};

}  // namespace

std::unique_ptr<GrpcHandler> grpc_reflection(std::string_view method, const std::shared_ptr<GrpcCall>& call) {
  if (method != "ServerReflectionInfo") return nullptr;
  return std::make_unique<Reflection>(call);
}

std::vector<std::string> grpc_service_names() {
  std::vector<std::string> names;
  for (const FileDescriptor* file : service_files()) {
    for (int i = 0; i < file->service_count(); ++i) names.push_back(file->service(i)->full_name());
  }
  return names;
}

}  // namespace trireme::serve
