// Tests safetensors: values, metadata, and every kind of invalid header.
#include "model/safetensors.h"

#include <gtest/gtest.h>

namespace trireme::model {
namespace {

Safetensors parse(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  auto owner = std::make_shared<std::string>(bytes + header + data);
  return Safetensors::parse(*owner, owner);
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const Safetensors file =
      parse(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I32","shape":[2],"data_offsets":[4,12]},)"
            R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})",
            std::string("\x80\x3f\x00\xc0\x07\x00\x00\x00\xff\xff\xff\xff", 12));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].first, "a");
  EXPECT_EQ(file.need("a").dtype(), tensor::DType::bf16);
  EXPECT_EQ(file.need("a").to_doubles(), (std::vector<double>{1.0, -2.0}));
  EXPECT_EQ(file.need("b").to_ints(), (std::vector<int64_t>{7, -1}));
  EXPECT_EQ(file.metadata()[0].second, "pt");
  EXPECT_THROW(file.need("c"), base::Error);
}

TEST(Safetensors, RefusesLies) {
  const std::string data(16, '\0');
  for (const char* bad : {
           "",
           "[]",
           "{",
           R"({"a":1})",
           R"({"a":{"dtype":"F32","shape":[1]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",   // wrong size
           R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[4,20]}})",  // past the end
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",   // backwards
           R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",  // negative
           R"({"a":{"dtype":"Q7","shape":[1],"data_offsets":[0,4]}})",    // unknown type
           R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]},)"
           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
           R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}})",
       }) {
    EXPECT_THROW(parse(bad, data), base::Error) << bad;
  }
  // Gaps, also at the end, and two tensors with the same name: the format forbids both.
  EXPECT_NO_THROW(parse(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", data));
  for (const char* bad : {
           R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})",
           R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[4,16]}})",
           R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
           R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
           R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
           R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       }) {
    EXPECT_THROW(parse(bad, data), base::Error) << bad;
  }
  EXPECT_THROW(Safetensors::parse("1234567", nullptr), base::Error);
  EXPECT_THROW(Safetensors::parse(std::string(8, '\xff'), nullptr), base::Error);
}

TEST(Safetensors, WritesWhatItReads) {
  using tensor::Tensor;
  const NamedTensors tensors{{"byte", Tensor::from<uint8_t>({3}, {1, 2, 3})},
                             {"b.weight", Tensor::from<float>({2, 2}, {1.5f, -2.0f, 0.0f, 4.0f})},
                             {"step", Tensor::scalar<int64_t>(7)},
                             {"a", Tensor::from<float>({1}, {9.0f})},
                             {"none", Tensor::zeros(tensor::DType::f32, {0, 4})}};
  const std::string path = testing::TempDir() + "/written.safetensors";
  save_safetensors(path, tensors, {{"format", "pt"}});
  const Safetensors file = Safetensors::open(path);
  ASSERT_EQ(file.tensors().size(), tensors.size());
  for (const auto& [name, t] : tensors) EXPECT_TRUE(file.need(name).same_as(t)) << name;
  EXPECT_EQ(file.metadata()[0].second, "pt");
  const std::vector<size_t> order = safetensors_order(tensors);
  EXPECT_EQ(order, (std::vector<size_t>{2, 3, 1, 4, 0}));
  EXPECT_EQ(safetensors_header(tensors, order).size() % 64, 0u);
}

}  // namespace
}  // namespace trireme::model
