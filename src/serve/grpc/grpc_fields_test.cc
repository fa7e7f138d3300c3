// Tests that only the known fields of a message are kept, in bounded memory.
#include "serve/grpc/grpc_fields.h"

#include <gtest/gtest.h>

#include <random>

#include "serve/grpc/grpc_unary.h"
#include "serve/proto/kserve.pb.h"
#include "serve/proto/reflection_v1.pb.h"

namespace trireme::serve {
namespace {

using grpc::reflection::v1::ServerReflectionRequest;
using inference::RepositoryModelLoadRequest;
using inference::TraceSettingRequest;

http::Bytes bytes_of(std::string_view text) {
  http::Bytes bytes;
  bytes.append(text);
  return bytes;
}

RepositoryModelLoadRequest load_request() {
  RepositoryModelLoadRequest request;
  request.set_model_name("m");
  (*request.mutable_parameters())["config"].set_string_param("{}");
  (*request.mutable_parameters())["file:1/model.onnx"].set_bytes_param(std::string(1000, '\xff'));
  return request;
}

std::string error_of(std::string_view message) {
  try {
    grpc_parse<ServerReflectionRequest>(bytes_of(message));
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
  return "";
}

TEST(KnownFields, KnownMessagesStay) {
  const RepositoryModelLoadRequest request = load_request();
  const auto read = grpc_parse<RepositoryModelLoadRequest>(bytes_of(request.SerializeAsString()));
  EXPECT_EQ(read.model_name(), "m");
  EXPECT_EQ(read.parameters().at("file:1/model.onnx").bytes_param(), std::string(1000, '\xff'));
  TraceSettingRequest trace;
  (*trace.mutable_settings())["trace_level"].add_value("TIMESTAMPS");
  (*trace.mutable_settings())["trace_rate"];  // a missing value clears the setting
  EXPECT_EQ(grpc_parse<TraceSettingRequest>(bytes_of(trace.SerializeAsString())).settings_size(), 2);
}

/// If kept as objects and sent back, 64 KiB of unknown fields would take 2.9 GB.
TEST(KnownFields, UnknownFieldsAreDropped) {
  const std::string known = [] {
    ServerReflectionRequest request;
    request.set_host("h");
    request.set_list_services("*");
    return request.SerializeAsString();
  }();
  std::string message = known;
  for (int i = 0; i < 20'000; ++i)
    message.append("\xf8\x07\x01", 3).append("\xf2\x07\x00", 3);  // fields 127, 126
  const auto read = grpc_parse<ServerReflectionRequest>(bytes_of(message));
  EXPECT_EQ(read.SerializeAsString(), known);
  EXPECT_LT(read.SpaceUsedLong(), 1000u);
  EXPECT_EQ(known_fields(*ServerReflectionRequest::descriptor(), std::string("\x08\x01", 2)),
            "");  // a host that is a number
}

TEST(KnownFields, GroupsAndDepthAreBounded) {
  EXPECT_NE(error_of(std::string(65'536, '\x0b')).find("wire type 3"), std::string::npos);
  EXPECT_NE(error_of(std::string("\x0a\xff\xff\xff\xff\x0f")).find("ends within a field"), std::string::npos);
  EXPECT_NE(error_of(std::string(12, '\xff')).find("10 bytes"), std::string::npos);
  EXPECT_NE(error_of(std::string("\x00\x01", 2)).find("field number"), std::string::npos);
  EXPECT_NE(error_of("\x0a").find("ends within"), std::string::npos);
  std::string many;
  for (int i = 0; i < 100'000; ++i) many.append("\x1a\x00", 2);  // a setting without name
  try {
    grpc_parse<TraceSettingRequest>(bytes_of(many));
    many.clear();
    for (int i = 0; i < 100'000; ++i) many.append("\x0a\x00", 2);
    grpc_parse<TraceSettingRequest>(bytes_of(many));
    FAIL() << "so many fields were read";
  } catch (const base::Error& e) {
    EXPECT_NE(e.message().find("limit of 65536"), std::string::npos) << e.message();
  }
}

TEST(KnownFields, MutatedMessagesAreReadOrRefused) {
  std::mt19937 rng(7);
  const std::string whole = load_request().SerializeAsString();
  for (int round = 0; round < 5000; ++round) {
    std::string text = whole;
    for (int i = 0; i < 3; ++i) text[rng() % text.size()] = static_cast<char>(rng());
    text.resize(rng() % (text.size() + 1));
    try {
      const auto read = grpc_parse<RepositoryModelLoadRequest>(bytes_of(text));
      RepositoryModelLoadRequest plain;
      ASSERT_TRUE(plain.ParseFromString(text));
      plain.DiscardUnknownFields();
      EXPECT_EQ(read.model_name(), plain.model_name());
      EXPECT_EQ(read.parameters_size(), plain.parameters_size());
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    }
  }
}

}  // namespace
}  // namespace trireme::serve
