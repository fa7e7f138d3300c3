// Calls with one question as a protobuf message: reading it, and writing the answer.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "serve/grpc/grpc_call.h"
#include "serve/grpc/grpc_fields.h"

namespace trireme::serve {

/// A message (protobuf's generated) as buffers to send.
template <class Message>
std::vector<http::BodyPart> grpc_message(const Message& message) {
  std::vector<http::BodyPart> parts;
  parts.emplace_back(message.SerializeAsString());
  return parts;
}

/// What questions of names and settings need at most.
inline constexpr size_t kSmallMessageBytes = size_t{1} << 20;

/// Reads a message, and of it only the fields that its type has. Throws invalid_argument if the bytes are
/// none.
template <class Message>
Message grpc_parse(const http::Bytes& bytes) {
  Message message;
  base::require(message.ParseFromString(known_fields(*Message::descriptor(), bytes.view())),
                "malformed message: it is no ", message.GetTypeName());
  return message;
}

/// Reads the question, of at most `most_bytes`, and calls `run(call, question)` when the client has ended.
template <class Request, class Run>
class GrpcUnary final : public GrpcHandler {
 public:
  GrpcUnary(std::shared_ptr<GrpcCall> call, Run run, size_t most_bytes)
      : call_(std::move(call)), run_(std::move(run)), most_bytes_(most_bytes) {}

  size_t most_bytes() const override { return most_bytes_; }
  bool takes_one() const override { return true; }
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
  const size_t most_bytes_;
  Request request_;
  bool has_request_ = false;
};

template <class Request, class Run>
std::unique_ptr<GrpcHandler> grpc_unary(const std::shared_ptr<GrpcCall>& call, Run run,
                                        size_t most_bytes = kSmallMessageBytes) {
  return std::make_unique<GrpcUnary<Request, Run>>(call, std::move(run), most_bytes);
}

}  // namespace trireme::serve
