// Tests KServe bodies: every datatype in both forms, shapes, parameters, and refusals.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>

#include "base/text/json.h"
#include "base/memory/memory_budget.h"
#include "http/local_request.h"
#include "serve/infer/classify.h"
#include "serve/kserve/kserve_generate.h"
#include "serve/kserve/kserve_reply.h"
#include "serve/kserve/kserve_request.h"
#include "serve/kserve/kserve_response.h"
#include "serve/infer/request_json.h"

namespace trireme::serve {
namespace {

InferRequest parse(std::string_view json) { return parse_infer_request(json, json.size(), nullptr); }

std::string refusal(std::string_view body, size_t json_bytes) {
  try {
    parse_infer_request(body, json_bytes, nullptr);
  } catch (const base::Error& e) {
    return e.message();
  }
  return "accepted";
}
std::string refusal(const std::string& json) { return refusal(json, json.size()); }

std::string input(const std::string& type, const std::string& shape, const std::string& data) {
  return R"({"inputs":[{"name":"x","datatype":")" + type + R"(","shape":)" + shape + R"(,"data":)" + data +
         "}]}";
}

#define EXPECT_REFUSED(json, fragment) \
  EXPECT_NE(refusal(json).find(fragment), std::string::npos) << refusal(json)

TEST(KserveRequest, ReadsEveryJsonDatatype) {
  for (const char* type :
       {"UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP32", "FP64"}) {
    const InferRequest r = parse(input(type, "[2,2]", "[1,2,3,100]"));
    EXPECT_EQ(wire_name(r.inputs.at(0).type), type);
    EXPECT_EQ(r.inputs[0].values.to_doubles(), (std::vector<double>{1, 2, 3, 100})) << type;
  }
  const InferRequest booleans = parse(input("BOOL", "[4]", "[true,false,1,0]"));
  EXPECT_EQ(booleans.inputs[0].values.to_ints(), (std::vector<int64_t>{1, 0, 1, 0}));
  const InferRequest texts = parse(input("BYTES", "[2]", R"(["a\u00e9",""])"));
  EXPECT_EQ(texts.inputs[0].strings, (std::vector<std::string>{"a\xc3\xa9", ""}));
  const InferRequest floats = parse(input("FP32", "[3]", "[NaN,Infinity,-Infinity]"));
  EXPECT_TRUE(std::isnan(floats.inputs[0].values.data<float>()[0]));
  EXPECT_EQ(floats.inputs[0].values.data<float>()[2], -INFINITY);
  EXPECT_EQ(parse(input("UINT64", "[1]", "[18446744073709551615]")).inputs[0].values.data<uint64_t>()[0],
            UINT64_MAX);
}

TEST(KserveRequest, TakesNestedDataAndDataBeforeItsShape) {
  const std::vector<double> wanted{1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(parse(input("FP32", "[2,2,2]", "[[[1,2],[3,4]],[[5,6],[7,8]]]")).inputs[0].values.to_doubles(),
            wanted);
  const InferRequest late = parse(
      R"({"inputs":[{"data":[[[1,2],[3,4]],[[5,6],[7,8]]],"name":"x","shape":[2,2,2],"datatype":"FP32"},
          {"name":"b","shape":[1],"datatype":"INT8","data":[7]}]})");
  EXPECT_EQ(late.inputs[0].values.to_doubles(), wanted);
  EXPECT_EQ(late.inputs[1].values.to_ints(), (std::vector<int64_t>{7}));
  EXPECT_EQ(parse(input("FP32", "[0,3]", "[]")).inputs[0].values.elements(), 0);
  EXPECT_EQ(parse(input("FP32", "[2,0]", "[[],[]]")).inputs[0].values.elements(), 0);
  EXPECT_EQ(parse(input("FP32", "[]", "[5]")).inputs[0].values.elements(), 1);
}

TEST(KserveRequest, EmptyTensorsHaveBoundedExtents) {
  for (const char* shape :
       {"[0,268435456]", "[268435456,0]", "[0,0,16777217]", "[1,0,4096,4097]", "[0,36028797018963968,8]"}) {
    EXPECT_REFUSED(input("FP32", shape, "[]"), "has no elements; its other extents make") << shape;
    EXPECT_REFUSED(input("BYTES", shape, "[]"), "has no elements; its other extents make") << shape;
  }
  EXPECT_REFUSED(input("FP32", "[0,9223372036854775807,2]", "[]"), "total element count");
  EXPECT_EQ(parse(input("FP32", "[0,4096,4096]", "[]")).inputs[0].values.elements(), 0);
  EXPECT_THROW(tensor_from_bytes("x", tensor::DType::f32, {0, 1 << 28}, {""}), base::Error);
  EXPECT_THROW(tensor_from_bytes("x", std::nullopt, {0, 1 << 28}, {""}), base::Error);
}

/// Limits the memory of the process to `more_bytes` beyond its current use, until destroyed.
struct MemoryLimit {
  explicit MemoryLimit(int64_t more_bytes) {
    base::process_memory().set_limit(base::process_memory().used_bytes() + more_bytes);
  }
  ~MemoryLimit() { base::process_memory().set_limit(INT64_MAX); }
};

// An empty string takes three bytes in JSON, four in binary data, and 32 in memory.
TEST(KserveRequest, ManyStringsCountForWhatTheyTake) {
  constexpr int64_t kCount = 1 << 20;
  std::string data = "[\"\"";
  for (int64_t i = 1; i < kCount; ++i) data += ",\"\"";
  const std::string json = input("BYTES", "[1048576]", data + "]");
  const std::string bytes(4 * kCount, '\0');
  const int64_t before = base::process_memory().used_bytes();
  {
    const InferRequest r = parse(json);
    EXPECT_GE(base::process_memory().used_bytes() - before, kCount * int64_t{sizeof(std::string)});
  }
  EXPECT_EQ(base::process_memory().used_bytes(), before);
  const MemoryLimit limit(int64_t{16} << 20);
  EXPECT_REFUSED(json, "bytes allowed");
  EXPECT_THROW(tensor_from_bytes("x", std::nullopt, {kCount}, {bytes}), base::Error);
  EXPECT_EQ(parse(input("BYTES", "[2]", "[\"a\",\"b\"]")).inputs[0].strings.size(), 2u);
}

// The text of an answer may be five times as large as its numbers.
TEST(KserveResponse, TextCountsBeforeItIsWritten) {
  InferResponse response{.model_name = "m", .model_version = "1"};
  WireTensor t{.name = "y", .type = tensor::DType::f32, .dims = {1 << 20}};
  t.values = tensor::Tensor::zeros(tensor::DType::f32, {1 << 20});
  response.outputs.push_back({std::move(t), false});
  const int64_t before = base::process_memory().used_bytes();
  {
    const http::Response kept = infer_http_response(response);
    EXPECT_GE(base::process_memory().used_bytes() - before, 2 << 20);
  }
  EXPECT_EQ(base::process_memory().used_bytes(), before);
  const MemoryLimit limit(int64_t{4} << 20);
  EXPECT_THROW(infer_http_response(response), base::Error);
}

TEST(KserveRequest, TakesListsAroundExtentsOfOne) {
  const std::vector<double> wanted{1, 2, 3, 4};
  for (const char* data : {"[[1,2],[3,4]]", "[[[1,2],[3,4]]]", "[[[1],[2]],[[3],[4]]]", "[1,2,3,4]"}) {
    for (const char* shape : {"[2,2]", "[1,2,2]", "[2,2,1]"}) {
      EXPECT_EQ(parse(input("FP32", shape, data)).inputs[0].values.to_doubles(), wanted) << data << shape;
    }
  }
  const std::string deep = std::string(50, '[') + "7" + std::string(50, ']');
  EXPECT_EQ(parse(input("INT64", "[1,1]", deep)).inputs[0].values.to_ints(), (std::vector<int64_t>{7}));
}

TEST(KserveRequest, NullIsAnAbsentField) {
  const InferRequest r = parse(R"({"id":null,"parameters":null,"outputs":null,"inputs":[
      {"name":"x","datatype":"INT8","shape":[1],"data":[1],"parameters":null}]})");
  EXPECT_FALSE(r.has_id);
  EXPECT_TRUE(r.outputs.empty());
  EXPECT_REFUSED(R"({"inputs":null})", "Unable to parse 'inputs'");
}

TEST(KserveRequest, ParametersThatAreNoObjectAreNotLostWithoutAWord) {
  for (const std::string value : {"5", "[]", "\"a\"", "true", "[{}]"}) {
    EXPECT_REFUSED("{\"parameters\":" + value + "}", "Unable to parse 'parameters': expected an object");
    EXPECT_REFUSED("{\"inputs\":[{\"parameters\":" + value + "}]}", "Unable to parse 'parameters'");
    EXPECT_REFUSED("{\"outputs\":[{\"parameters\":" + value + "}]}", "Unable to parse 'parameters'");
  }
}

TEST(KserveRequest, SaysWhatWasParsed) {
  EXPECT_REFUSED("{", "failed to parse the request JSON buffer: JSON is malformed");
  const std::string body =
      R"({"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":0}}]})";
  try {
    parse_infer_request(body, body.size(), nullptr, nullptr, "m");
    ADD_FAILURE();
  } catch (const base::Error& e) {
    EXPECT_EQ(e.message(), "input byte size mismatch for input 'x' for model 'm'. Expected 8, got 0");
  }
}

TEST(KserveRequest, ReadsIdParametersAndOutputs) {
  const InferRequest r =
      parse(R"({"id":"q","parameters":{"timeout":500,"priority":2,"binary_data_output":true,"own":"x"},
      "inputs":[{"name":"x","datatype":"INT8","shape":[1],"data":[1]}],"unknown":{"a":[[{}]]},
      "outputs":[{"name":"y","parameters":{"binary_data":false}},
                 {"name":"z","parameters":{"classification":3}}]})");
  EXPECT_TRUE(r.has_id);
  EXPECT_EQ(r.id, "q");
  EXPECT_EQ(r.timeout_us, 500u);
  EXPECT_EQ(r.priority, 2u);
  EXPECT_TRUE(r.binary_output);
  ASSERT_EQ(r.outputs.size(), 2u);
  EXPECT_EQ(r.outputs[0].is_binary, std::optional<bool>(false));
  EXPECT_EQ(r.outputs[1].classification, 3);
}

TEST(KserveRequest, RefusesMalformedJson) {
  EXPECT_REFUSED("[]", "expected an object");
  EXPECT_REFUSED("3", "expected an object");
  EXPECT_REFUSED(R"({"inputs":[1]})", "expected an object");
  EXPECT_REFUSED(R"({"inputs":1})", "expected an array");
  EXPECT_REFUSED(R"({"id":1})", "'id'");
  EXPECT_REFUSED(R"({"id":["a"]})", "'id'");
  EXPECT_REFUSED(R"({"id":{"a":1}})", "'id'");
  EXPECT_REFUSED(R"({"outputs":{"name":"y"}})", "'outputs'");
  EXPECT_REFUSED(R"({"parameters":{"triton_x":1}})", "triton_");
  EXPECT_REFUSED(R"({"parameters":{"timeout":-1}})", "timeout");
  EXPECT_REFUSED(R"({"parameters":{"x":null}})", "must be a number");
  EXPECT_REFUSED(R"({"parameters":{"x":[1]}})", "array");
  EXPECT_REFUSED(R"({"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]})", "no name");
  EXPECT_REFUSED(R"({"inputs":[{"name":"x","shape":[1],"data":[1]}]})", "datatype");
  EXPECT_REFUSED(R"({"inputs":[{"name":"x","datatype":"FP32","data":[1]}]})", "shape");
  EXPECT_REFUSED(R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]})", "exactly one of");
  EXPECT_REFUSED(R"({"outputs":[{"name":"y"},{"name":"y"}]})", "already exists in request");
  EXPECT_REFUSED("{\"a\":" + std::string(200, '[') + std::string(200, ']') + "}",
                 "JSON nesting depth exceeds");
  EXPECT_REFUSED(R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"datatype":"BYTES"}]})",
                 "twice");
}

TEST(KserveRequest, RefusesMoreThanAnyModelHasBeforeItCostsMemory) {
  const auto repeated = [](const std::string& text, size_t times) {
    std::string out = text;
    for (size_t i = 1; i < times; ++i) out += "," + text;
    return out;
  };
  EXPECT_REFUSED("{\"inputs\":[" + repeated("{}", 4097) + "]}",
                 "more inputs or outputs than the limit of 4096");
  EXPECT_REFUSED("{\"inputs\":[" + repeated("{}", 4096) + "]}", "datatype");
  EXPECT_REFUSED("{\"outputs\":[" + repeated("{}", 4097) + "]}", "more inputs or outputs than the limit");
  EXPECT_REFUSED("{\"inputs\":[{\"name\":\"x\",\"shape\":[" + repeated("1", 257) + "]}]}",
                 "more dimensions than the limit of 256");
  const std::string values = "[" + repeated("0", 1'000'000) + "]";  // a million values and the array
  EXPECT_THROW(request_json(values), base::Error);
  EXPECT_EQ(request_json("[" + repeated("0", 999'999) + "]").size(), 999'999u);
}

TEST(KserveRequest, RefusesDataThatDoesNotFit) {
  EXPECT_REFUSED(input("FP32", "[2]", "[1]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[2]", "[1,2,3]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[2,2]", "[[1,2,3],[4]]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[2,2]", "[[1,2],3,4]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[1,4]", "[[1,2],[3,4]]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[2,2]", "[[[1],[2]],[[3]],[[4]]]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[1]", "[1,[]]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[1]", "[[],1]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[2]", "[1,null]"), "holds a null");
  EXPECT_REFUSED(input("INT64", "[1]", std::string(120, '[') + "1" + std::string(120, ']')),
                 "JSON nesting depth exceeds maximum allowed limit (100)");
  EXPECT_REFUSED(input("FP32", "[1000000000000]", "[1]"), "Shape does not match true shape");
  EXPECT_REFUSED(input("FP32", "[-1]", "[1]"), "Unable to parse 'shape'");
  EXPECT_REFUSED(input("FP32", "[1.5]", "[1]"), "Unable to parse 'shape'");
  EXPECT_REFUSED(input("FP32", "[[1]]", "[1]"), "array");
  EXPECT_REFUSED(input("FP32", "[4611686018427387904,4611686018427387904]", "[1]"),
                 "causes total element count to exceed maximum size of");
  EXPECT_REFUSED(input("FP32", "[4,1152921504606846978]", "[1]"), "byte size overflow for input 'x'");
  EXPECT_REFUSED(input("INT8", "[1]", "[128]"), "out of range");
  EXPECT_REFUSED(input("UINT32", "[1]", "[-1]"), "out of range");
  EXPECT_REFUSED(input("INT64", "[1]", "[1.0]"), "fraction");
  EXPECT_REFUSED(input("BOOL", "[1]", "[2]"), "number");
  EXPECT_REFUSED(input("INT8", "[1]", "[true]"), "boolean");
  EXPECT_REFUSED(input("BYTES", "[1]", "[1]"), "number");
  EXPECT_REFUSED(input("FP16", "[1]", "[1]"), "JSON cannot carry");
  EXPECT_REFUSED(input("BF16", "[1]", "[1]"), "JSON cannot carry");
  EXPECT_REFUSED(input("FP32", "[1]", "[{}]"), "object");
  EXPECT_REFUSED(input("FP33", "[1]", "[1]"), "unknown datatype");
}

/// A request with one binary input `bytes`, and the length of its JSON part.
std::pair<std::string, size_t> binary(const std::string& type, const std::string& shape,
                                      const std::string& bytes, size_t declared) {
  std::string json = R"({"inputs":[{"name":"x","datatype":")" + type + R"(","shape":)" + shape +
                     R"(,"parameters":{"binary_data_size":)" + std::to_string(declared) + "}}]}";
  const size_t size = json.size();
  return {json + bytes, size};
}

TEST(KserveRequest, ReadsBinaryInputsAtAnyAlignment) {
  const float values[] = {1.5f, -2, 3};
  const std::string bytes(reinterpret_cast<const char*>(values), sizeof values);
  for (size_t shift = 0; shift < 8; ++shift) {
    const auto [body, json_bytes] = binary("FP32", "[3]" + std::string(shift, ' '), bytes, bytes.size());
    const InferRequest r = parse_infer_request(body, json_bytes, nullptr);
    EXPECT_EQ(r.inputs[0].values.to_doubles(), (std::vector<double>{1.5, -2, 3})) << shift;
  }
  const auto [half, half_json] = binary("FP16", "[1]", std::string("\0\x3c", 2), 2);
  EXPECT_EQ(parse_infer_request(half, half_json, nullptr).inputs[0].values.to_doubles(),
            (std::vector<double>{1}));
  const auto [flags, flags_json] = binary("BOOL", "[2]", std::string("\x05\0", 2), 2);
  EXPECT_EQ(parse_infer_request(flags, flags_json, nullptr).inputs[0].values.to_ints(),
            (std::vector<int64_t>{1, 0}));
  const auto [text, text_json] = binary("BYTES", "[2]", bytes_of_strings({"ab", ""}), 10);
  EXPECT_EQ(parse_infer_request(text, text_json, nullptr).inputs[0].strings,
            (std::vector<std::string>{"ab", ""}));
}

TEST(KserveRequest, RefusesBinarySizesThatDoNotFit) {
  const auto refused = [](const std::pair<std::string, size_t>& r) { return refusal(r.first, r.second); };
  const std::string four(4, 'a');
  EXPECT_NE(refused(binary("FP32", "[2]", four, 4)).find("byte size mismatch"), std::string::npos);
  EXPECT_NE(refused(binary("FP32", "[1]", four, 8)).find("unexpected size"), std::string::npos);
  EXPECT_NE(refused(binary("FP32", "[1]", four + "x", 4)).find("additional input data"), std::string::npos);
  EXPECT_NE(refused(binary("BYTES", "[1]", four, 4)).find("incomplete string data"), std::string::npos);
  EXPECT_NE(refused(binary("BYTES", "[1]", "abc", 3)).find("incomplete string length"), std::string::npos);
  const std::string two = bytes_of_strings({"a", "b"});
  EXPECT_NE(refused(binary("BYTES", "[1]", two, two.size())).find("unexpected number of string elements"),
            std::string::npos);
  EXPECT_NE(refused(binary("BYTES", "[3]", two, two.size())).find("expected 3 string elements"),
            std::string::npos);
}

TEST(KserveRequest, ChecksTheHeader) {
  EXPECT_EQ(infer_json_bytes("", false, 9), 9u);
  EXPECT_EQ(infer_json_bytes("5", true, 9), 5u);
  for (const char* bad : {"", "-1", "x", "5 ", "10", "99999999999999999999999"}) {
    EXPECT_THROW(infer_json_bytes(bad, true, 9), base::Error) << bad;
  }
}

TEST(KserveResponse, WritesWhatItsReaderReads) {
  InferResponse response{.id = "a\"b", .has_id = true, .model_name = "m", .model_version = "1"};
  const auto numbers = tensor::Tensor::from<float>({2, 2}, {1, 0.1f, -3e20f, NAN});
  response.outputs.push_back(
      {{.name = "y", .type = tensor::DType::f32, .dims = {2, 2}, .values = numbers}, false});
  response.outputs.push_back(
      {{.name = "z", .type = tensor::DType::f32, .dims = {2, 2}, .values = numbers}, true});
  response.outputs.push_back({{.name = "s", .type = std::nullopt, .dims = {1}, .strings = {"h\n"}}, false});
  const http::Response http = infer_http_response(std::move(response));
  ASSERT_EQ(http.body.size(), 2u);
  const base::Json json = base::parse_json(http.body[0].bytes(), {.nan_and_infinity = true});
  EXPECT_EQ(json.at("id").as_string(), "a\"b");
  const base::Json& y = json.at("outputs").at(0);
  EXPECT_EQ(static_cast<float>(y.at("data").at(1).as_double()), 0.1f);
  EXPECT_TRUE(std::isnan(y.at("data").at(3).as_double()));
  EXPECT_EQ(json.at("outputs").at(1).at("parameters").at("binary_data_size").as_int(), 16);
  EXPECT_EQ(json.at("outputs").at(2).at("data").at(0).as_string(), "h\n");
  EXPECT_EQ(http.body[1].bytes(), std::string_view(reinterpret_cast<const char*>(numbers.raw()), 16));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(http.body[1].bytes().data()), numbers.raw());  // not copied
}

TEST(KserveResponse, Classifies) {
  const auto scores = tensor::Tensor::from<float>({2, 3}, {0.5f, 2, 1, NAN, 7, 7});
  const WireTensor t{.name = "y", .type = tensor::DType::f32, .dims = {2, 3}, .values = scores};
  const WireTensor best = classify(t, 2, true, {"a", "b"});
  EXPECT_EQ(best.dims, (tensor::Dims{2, 2}));
  EXPECT_EQ(best.strings,
            (std::vector<std::string>{"2.000000:1:b", "1.000000:2", "7.000000:1:b", "7.000000:2"}));
  EXPECT_EQ(classify(t, 100, false, {}).dims, (tensor::Dims{6}));
}

TEST(KserveResponse, ClassifiesIntegersThatNoDoubleHolds) {
  const auto large = tensor::Tensor::from<int64_t>({2}, {9007199254740992, 9007199254740993});
  EXPECT_EQ(
      classify({.name = "y", .type = tensor::DType::i64, .dims = {2}, .values = large}, 2, false, {}).strings,
      (std::vector<std::string>{"9007199254740993:1", "9007199254740992:0"}));
  const auto top = tensor::Tensor::from<uint64_t>({2}, {5, UINT64_MAX});
  EXPECT_EQ(
      classify({.name = "y", .type = tensor::DType::u64, .dims = {2}, .values = top}, 1, false, {}).strings,
      (std::vector<std::string>{"18446744073709551615:1"}));
}

TEST(KserveGenerate, MapsKeysToInputsAndTheRestToParameters) {
  const std::vector<TensorConfig> inputs{{.name = "text", .type = std::nullopt, .dims = {1}},
                                         {.name = "count", .type = tensor::DType::u64, .dims = {-1}}};
  const InferRequest r = generate_request(
      R"({"id":"","text":"a","max_tokens":5,"stream":false,
          "parameters":{"count":[18446744073709551615],"priority":3}})",
      inputs, false);
  EXPECT_FALSE(r.has_id);
  EXPECT_EQ(r.priority, 3u);
  ASSERT_EQ(r.inputs.size(), 2u);
  EXPECT_EQ(r.inputs[0].values.data<uint64_t>()[0], UINT64_MAX);
  EXPECT_EQ(r.inputs[1].strings, (std::vector<std::string>{"a"}));
  const auto refused = [&](std::string_view body) {
    try {
      generate_request(body, inputs, false);
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused(R"({"text":"a","x":{}})").find("parameter 'x' has invalid type"), std::string::npos);
  EXPECT_NE(refused(R"({"parameters":1})").find("Expected JSON object for keyword: 'parameters'"),
            std::string::npos);
  EXPECT_NE(
      refused(R"({"text":"a","parameters":{"text":"b"}})").find("input 'text' already exists in request"),
      std::string::npos);
  EXPECT_NE(refused(R"({"id":5})").find("Unable to parse 'id'"), std::string::npos);
}

TEST(KserveGenerate, WritesValuesAsTheirTypeHasThem) {
  InferResponse response{.id = "7", .has_id = true, .model_name = "m", .model_version = "1"};
  const auto add = [&](const char* name, const tensor::Tensor& values) {
    response.outputs.push_back(
        {{.name = name, .type = values.dtype(), .dims = values.dims(), .values = values}, false});
  };
  add("f", tensor::Tensor::from<float>({2}, {0.1f, INFINITY}));
  add("u", tensor::Tensor::from<uint64_t>({1}, {UINT64_MAX}));
  add("h", tensor::Tensor::from<tensor::Half>({1}, {tensor::Half(0.5f)}));
  response.outputs.push_back(
      {{.name = "s", .type = std::nullopt, .dims = {1, 1}, .strings = {"a\n"}}, false});
  EXPECT_EQ(generate_response(response),
            R"({"id":"7","model_name":"m","model_version":"1","f":[0.1,Infinity],"u":18446744073709551615,)"
            R"("h":0.5,"s":"a\n"})");
}

/// Calls `answers` while another thread calls `asks` again and again.
void beside(const std::function<bool()>& asks, const std::function<void()>& answers) {
  std::atomic<bool> is_asking{false}, is_over{false};
  std::thread other([&] {
    while (!is_over.load()) {
      asks();
      is_asking = true;
    }
  });
  while (!is_asking.load()) std::this_thread::yield();
  answers();
  is_over = true;
  other.join();
}

// Whether a client has left is asked on other threads while one answers it. What goes wrong there, the
// sanitizers show: an answer lets go of its request.
TEST(KserveReply, IsAskedForItsClientWhileItIsAnswered) {
  for (int i = 0; i < 200; ++i) {
    std::string got;
    const auto take = [&](http::Response&& response) {
      for (const http::BodyPart& part : response.body) got += part.bytes();
    };
    KserveReply whole(http::local_reply(take)), stream(http::local_reply(take));
    EXPECT_FALSE(whole.is_gone());
    beside([&] { return whole.is_gone(); }, [&] { whole.send(http::text_response(200, "whole")); });
    EXPECT_TRUE(whole.is_gone());
    beside([&] { return stream.is_gone(); },
           [&] {
             stream.open(http::text_response(200, "; "));
             EXPECT_FALSE(stream.is_gone());
             stream.write("pieces");
             stream.finish();
           });
    EXPECT_TRUE(stream.is_gone());
    EXPECT_EQ(got, "whole; pieces");
  }
}

TEST(KserveGenerate, IsAskedForItsClientWhileEventsAreSent) {
  for (int i = 0; i < 200; ++i) {
    std::string got;
    const auto take = [&](http::Response&& response) {
      for (const http::BodyPart& part : response.body) got += part.bytes();
    };
    const InferSink sink = generate_sink(http::local_reply(take), true, true);
    beside(sink.cancelled, [&] {
      sink.part({.model_name = "m", .model_version = "1"});
      sink.done({});
    });
    EXPECT_TRUE(sink.cancelled());
    EXPECT_EQ(got, "data: {\"model_name\":\"m\",\"model_version\":\"1\"}\n\n");
  }
}

}  // namespace
}  // namespace trireme::serve
