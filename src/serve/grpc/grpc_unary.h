// Calls with one question as a protobuf message: reading it, and writing the answer.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/grpc/grpc_call.h"

namespace trireme::serve {

/// A message (protobuf's generated) as buffers to send.
template <class Message>
std::vector<http::BodyPart> grpc_message(const Message& message) {
  std::vector<http::BodyPart> parts;
  parts.emplace_back(message.SerializeAsString());
  return parts;
}

/// Reads a message. Throws invalid_argument if the bytes are none.
template <class Message>
Message grpc_parse(const http::Bytes& bytes) {
  Message message;
  base::require(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
                "malformed message: it is no ", message.GetTypeName());
  return message;
}

/// Reads the question and calls `run(call, question)` when the client has ended.
template <class Request, class Run>
class GrpcUnary final : public GrpcHandler {
 public:
  GrpcUnary(std::shared_ptr<GrpcCall> call, Run run) : call_(std::move(call)), run_(std::move(run)) {}

  void on_message(http::Bytes&& message) override {
    if (has_request_) base::fail_unsupported("the method takes one message");
    request_ = grpc_parse<Request>(message);
    has_request_ = true;
  }
  void on_end() override {
    if (!has_request_) base::fail_unsupported("the method takes one message");
    run_(*call_, request_);
  }

 private:
  const std::shared_ptr<GrpcCall> call_;
  const Run run_;
  Request request_;
  bool has_request_ = false;
};

template <class Request, class Run>
std::unique_ptr<GrpcHandler> grpc_unary(const std::shared_ptr<GrpcCall>& call, Run run) {
  return std::make_unique<GrpcUnary<Request, Run>>(call, std::move(run));
}

}  // namespace trireme::serve
