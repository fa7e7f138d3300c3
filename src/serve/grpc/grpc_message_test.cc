// Tests gRPC's inference messages: tensors across any split of the bytes, typed contents, and refusals.
#include "serve/grpc/grpc_message.h"

#include <gtest/gtest.h>

#include <cstring>
#include <protozero/pbf_writer.hpp>

namespace trireme::serve {
namespace {

using protozero::pbf_writer;

void add_input(pbf_writer& request, const std::string& name, const std::string& type,
               std::vector<int64_t> dims, const std::string& contents = {}) {
  pbf_writer input(request, 5);
  input.add_string(1, name);
  input.add_string(2, type);
  input.add_packed_int64(3, dims.begin(), dims.end());
  if (!contents.empty()) input.add_message(5, contents);
}

GrpcInferRequest parse(std::string_view message) {
  return parse_grpc_infer(std::span(&message, 1), nullptr, nullptr);
}

std::string refusal(std::string_view message) {
  try {
    parse(message);
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
  return "accepted";
}

std::string two_floats() {
  std::string message;
  pbf_writer request(message);
  request.add_string(1, "m");
  request.add_string(3, "id");
  add_input(request, "x", "FP32", {2, 300});
  add_input(request, "y", "INT64", {3});
  std::vector<float> x(600);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const int64_t y[] = {7, -8, 9};
  request.add_bytes(7, reinterpret_cast<const char*>(x.data()), x.size() * 4);
  request.add_bytes(7, reinterpret_cast<const char*>(y), sizeof y);
  return message;
}

/// The transport may split a message anywhere, even inside a number or a tensor.
TEST(GrpcMessage, ReadsAMessageInPiecesOfAnySize) {
  const std::string message = two_floats();
  for (const size_t step : {size_t{1}, size_t{2}, size_t{7}, size_t{64}, size_t{1000}, message.size()}) {
    std::vector<std::string_view> pieces;
    for (size_t at = 0; at < message.size(); at += step) {
      pieces.push_back(std::string_view(message).substr(at, step));
      pieces.emplace_back();  // empty pieces occur too
    }
    const GrpcInferRequest r = parse_grpc_infer(pieces, nullptr, nullptr);
    EXPECT_EQ(r.model_name, "m");
    EXPECT_EQ(r.request.id, "id");
    ASSERT_EQ(r.request.inputs.size(), 2u);
    EXPECT_EQ(r.request.inputs[0].values.data<float>()[599], 599);
    EXPECT_EQ(r.request.inputs[1].values.to_ints(), (std::vector<int64_t>{7, -8, 9}));
  }
}

TEST(GrpcMessage, ViewsWhatIsAlignedAndWhole) {
  const std::string message = two_floats();
  const size_t raw = message.find(std::string("\x3a\xe0\x12", 3)) + 3;  // field 7, 2400 bytes
  std::string shifted(message.size() + 8, '\0');
  const size_t pad = (8 - (reinterpret_cast<uintptr_t>(shifted.data()) + raw) % 8) % 8;
  std::memcpy(shifted.data() + pad, message.data(), message.size());
  const std::string_view view(shifted.data() + pad, message.size());
  const GrpcInferRequest r = parse(view);
  EXPECT_EQ(reinterpret_cast<const char*>(r.request.inputs[0].values.raw()), view.data() + raw);
}

TEST(GrpcMessage, ReadsTypedContentsPackedOrNot) {
  std::string packed, single;
  const std::vector<int64_t> values{1, -2, 3};
  pbf_writer(packed).add_packed_int64(3, values.begin(), values.end());
  pbf_writer one(single);
  for (int64_t v : values) one.add_int64(3, v);
  for (const std::string& contents : {packed, single}) {
    std::string message;
    pbf_writer request(message);
    add_input(request, "x", "INT64", {3}, contents);
    EXPECT_EQ(parse(message).request.inputs[0].values.to_ints(), values);
  }
  std::string texts, message;
  pbf_writer text_writer(texts);
  text_writer.add_bytes(8, "a", 1);
  text_writer.add_bytes(8, "", 0);
  pbf_writer request(message);
  add_input(request, "x", "BYTES", {1, 2}, texts);
  EXPECT_EQ(parse(message).request.inputs[0].strings, (std::vector<std::string>{"a", ""}));
}

TEST(GrpcMessage, ReadsParametersAsJsonHasThem) {
  std::string message;
  pbf_writer request(message);
  const auto add = [&](const char* key, auto&& put) {
    pbf_writer entry(request, 4);
    entry.add_string(1, key);
    pbf_writer choice(entry, 2);
    put(choice);
  };
  add("timeout", [](pbf_writer& w) { w.add_int64(2, 5000); });
  add("priority", [](pbf_writer& w) { w.add_uint64(5, 3); });
  add("sequence_id", [](pbf_writer& w) { w.add_string(3, "abc"); });
  add("sequence_start", [](pbf_writer& w) { w.add_bool(1, true); });
  add("triton_enable_empty_final_response", [](pbf_writer& w) { w.add_bool(1, true); });
  const GrpcInferRequest r = parse(message);
  EXPECT_EQ(r.request.timeout_us, 5000u);
  EXPECT_EQ(r.request.priority, 3u);
  EXPECT_EQ(r.request.sequence.text, "abc");
  EXPECT_TRUE(r.request.sequence.is_start && !r.request.sequence.is_end && r.wants_empty_final);
  std::string bad;
  pbf_writer other(bad);
  {
    pbf_writer entry(other, 4);
    entry.add_string(1, "triton_x");
    pbf_writer choice(entry, 2);
    choice.add_bool(1, true);
  }
  EXPECT_NE(refusal(bad).find("reserved"), std::string::npos);
}

// Protobuf allows the parts of an embedded message to be sent one after another.
TEST(GrpcMessage, JoinsContentsThatComeInParts) {
  std::string message;
  pbf_writer request(message);
  {
    pbf_writer input(request, 5);
    input.add_string(1, "x");
    input.add_message(5, std::string("\x1a\x02\x07\x08", 4));  // int64_contents [7, 8]
    input.add_string(2, "INT64");
    const std::vector<int64_t> dims{3};
    input.add_packed_int64(3, dims.begin(), dims.end());
    input.add_message(5, std::string());
    input.add_message(5, std::string("\x1a\x01\x09", 3));
  }
  EXPECT_EQ(parse(message).request.inputs.at(0).values.to_ints(), (std::vector<int64_t>{7, 8, 9}));
}

// The answer repeats the id, and its reader would refuse the whole answer.
TEST(GrpcMessage, AnIdIsUtf8) {
  EXPECT_EQ(parse("\x1a\x02\xc3\xa4").request.id, "\u00e4");
  EXPECT_NE(refusal("\x1a\x01\xff").find("UTF-8"), std::string::npos);
}

TEST(GrpcMessage, RefusesWhatDoesNotFit) {
  const std::string good = two_floats();
  EXPECT_NE(refusal(std::string_view(good).substr(0, good.size() - 1)).find("malformed"), std::string::npos);
  EXPECT_NE(refusal(std::string_view("\x3a\xff\xff\xff\xff\x7f", 6)).find("longer than the message"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(12, '\xff')).find("10 bytes"), std::string::npos);
  EXPECT_NE(refusal("\x0b").find("wire type"), std::string::npos);
  EXPECT_NE(refusal(std::string("\x08\x01", 2)).find("wrong wire type"),
            std::string::npos);  // a name given as a number
  EXPECT_NE(refusal(std::string("\x2d\0\0\0\0", 5)).find("wrong wire type"), std::string::npos);
  std::string huge;
  pbf_writer request(huge);
  add_input(request, "x", "INT8", {int64_t{1} << 40}, std::string("\x12\x01\x01", 3));
  EXPECT_NE(refusal(huge).find("Shape does not match"), std::string::npos);
  std::string half;
  pbf_writer half_request(half);
  add_input(half_request, "x", "FP16", {1}, std::string("\x10\x01", 2));
  EXPECT_NE(refusal(half).find("only raw_input_contents"), std::string::npos);
}

TEST(GrpcMessage, RefusesMoreThanAnyModelHasBeforeItCostsMemory) {
  const auto repeated = [](uint32_t field, int times) {
    std::string message;
    pbf_writer request(message);
    for (int i = 0; i < times; ++i) request.add_bytes(field, "");
    return message;
  };
  const char* limit = "more inputs or outputs than the limit of 4096";
  EXPECT_NE(refusal(repeated(6, 4097)).find(limit), std::string::npos);
  EXPECT_EQ(refusal(repeated(6, 4096)).find(limit), std::string::npos);
  EXPECT_NE(refusal(repeated(7, 4097)).find(limit), std::string::npos);
  std::string inputs, dims;
  pbf_writer request(inputs), shaped(dims);
  for (int i = 0; i < 4097; ++i) add_input(request, std::to_string(i), "INT8", {1});
  EXPECT_NE(refusal(inputs).find(limit), std::string::npos);
  add_input(shaped, "x", "INT8", std::vector<int64_t>(257, 1));
  EXPECT_NE(refusal(dims).find("more dimensions than the limit of 256"), std::string::npos);
}

TEST(GrpcMessage, AnswersViewLargeTensorsAndNestInStreams) {
  InferResponse response{.id = "7", .has_id = true, .model_name = "m", .model_version = "2", .outputs = {}};
  const tensor::Tensor large = tensor::Tensor::zeros(tensor::DType::f32, {1000});
  response.outputs.push_back({{.name = "y", .type = tensor::DType::f32, .dims = {1000}, .values = large}});
  response.outputs.push_back({{.name = "s", .type = std::nullopt, .dims = {1}, .strings = {"abc"}}});
  const std::vector<http::BodyPart> parts = grpc_infer_response(response, false);
  ASSERT_EQ(parts.size(), 3u);
  EXPECT_EQ(parts[1].bytes().data(), reinterpret_cast<const char*>(large.raw()));
  std::string whole, streamed;
  for (const http::BodyPart& p : parts) whole += p.bytes();
  EXPECT_EQ(whole.substr(whole.size() - 9), std::string("\x32\x07\x03\0\0\0abc", 9));
  for (const http::BodyPart& p : grpc_infer_response(response, true)) streamed += p.bytes();
  EXPECT_EQ(streamed[0], '\x12');
  EXPECT_GT(streamed.size(), whole.size());
}

}  // namespace
}  // namespace trireme::serve
