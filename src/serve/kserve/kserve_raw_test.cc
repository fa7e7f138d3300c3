// Tests the shape that a raw body implies, and bodies that leave it undetermined.
#include "serve/kserve/kserve_raw.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::serve {
namespace {

TEST(RawRequest, TakesTheShapeFromTheSize) {
  const std::string body(48, '\0');
  const std::vector<TensorConfig> open{{.name = "x", .type = tensor::DType::f32, .dims = {3, -1}}};
  EXPECT_EQ(raw_infer_request("m", open, true, body, nullptr).inputs.at(0).dims, (tensor::Dims{1, 3, 4}));
  EXPECT_EQ(raw_infer_request("m", open, false, body, nullptr).inputs.at(0).dims, (tensor::Dims{3, 4}));
  EXPECT_THROW(raw_infer_request("m", open, true, body.substr(1), nullptr), base::Error);
  EXPECT_THROW(raw_infer_request("m", open, true, body.substr(4), nullptr), base::Error);  // 11 elements
  const std::vector<TensorConfig> twice{{.name = "x", .type = tensor::DType::f32, .dims = {-1, -1}}};
  EXPECT_THROW(raw_infer_request("m", twice, true, body, nullptr), base::Error);
  EXPECT_THROW(raw_infer_request("m", {open[0], open[0]}, true, body, nullptr), base::Error);
  EXPECT_THROW(raw_infer_request("m", {}, true, body, nullptr), base::Error);
}

TEST(RawRequest, IsOneTextForBytes) {
  const std::vector<TensorConfig> text{{.name = "t", .type = std::nullopt, .dims = {1}}};
  const InferRequest r = raw_infer_request("m", text, true, "a\0b", nullptr);
  EXPECT_EQ(r.inputs.at(0).strings, (std::vector<std::string>{"a"}));
  EXPECT_TRUE(r.binary_output);
  const std::vector<TensorConfig> two{{.name = "t", .type = std::nullopt, .dims = {2}}};
  EXPECT_THROW(raw_infer_request("m", two, true, "a", nullptr), base::Error);
}

}  // namespace
}  // namespace trireme::serve
