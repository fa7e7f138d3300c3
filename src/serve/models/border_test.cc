// Tests what passes a model's border: order, rows, and the messages of refusals.
#include "serve/models/border.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::serve {
namespace {

using tensor::DType;
using tensor::Tensor;

WireTensor floats(const std::string& name, const tensor::Dims& dims) {
  return {.name = name, .type = DType::f32, .dims = dims, .values = Tensor::zeros(DType::f32, dims)};
}

ModelConfig two_inputs() {
  ModelConfig config;
  config.name = "m";
  config.max_batch_size = 4;
  config.inputs = {{.name = "a", .type = DType::f32, .dims = {3}},
                   {.name = "b", .type = DType::f32, .dims = {-1, 2}}};
  config.outputs = {{.name = "y", .type = DType::f32, .dims = {1}},
                    {.name = "z", .type = DType::f32, .dims = {1}}};
  return config;
}

/// The border's error for these inputs; empty if they pass.
std::string refusal(std::vector<WireTensor> inputs) {
  const ModelConfig config = two_inputs();
  InferRequest request;
  request.inputs = std::move(inputs);
  try {
    Border(config).take(request);
    return "";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Border, GivesInputsInTheOrderOfTheConfiguration) {
  const ModelConfig config = two_inputs();
  InferRequest request;
  request.inputs = {floats("b", {2, 5, 2}), floats("a", {2, 3})};
  const CheckedInputs inputs = Border(config).take(request);
  ASSERT_EQ(inputs.tensors.size(), 2u);
  EXPECT_EQ(inputs.tensors[0].name, "a");
  EXPECT_EQ(inputs.tensors[1].dims, (tensor::Dims{2, 5, 2}));
  EXPECT_EQ(inputs.rows, 2);
}

TEST(Border, AModelWithoutInputsHasOneRow) {
  ModelConfig config = two_inputs();
  config.inputs.clear();
  config.max_batch_size = 0;
  InferRequest request;
  const CheckedInputs inputs = Border(config).take(request);
  EXPECT_EQ(inputs.rows, 1);
  EXPECT_TRUE(inputs.tensors.empty());
}

TEST(Border, NamesWhatDoesNotFit) {
  EXPECT_EQ(refusal({floats("a", {4, 3}), floats("b", {4, 1, 2})}), "");
  EXPECT_TRUE(holds(refusal({floats("a", {1, 4}), floats("b", {1, 1, 2})}), "Expected [-1,3], got [1,4]"));
  EXPECT_TRUE(holds(refusal({floats("a", {3}), floats("b", {1, 1, 2})}), "unexpected shape for input 'a'"));
  EXPECT_TRUE(holds(refusal({floats("a", {0, 3}), floats("b", {0, 1, 2})}), "batch-size must be >= 1"));
  EXPECT_TRUE(holds(refusal({floats("a", {5, 3}), floats("b", {5, 1, 2})}), "batch-size must be <= 4"));
  EXPECT_TRUE(holds(refusal({floats("a", {1, 3}), floats("b", {2, 1, 2})}), "differ in their batch-size"));
  EXPECT_TRUE(holds(refusal({floats("a", {1, 3})}), "missing required input(s) ['b']"));
  EXPECT_TRUE(holds(refusal({floats("a", {1, 3}), floats("b", {1, 1, 2}), floats("c", {1})}),
                    "expected 2 inputs but got 3"));
  WireTensor text{.name = "a", .type = std::nullopt, .dims = {1, 3}, .values = {}, .strings = {"", "", ""}};
  EXPECT_TRUE(holds(refusal({text, floats("b", {1, 1, 2})}), "data-type is 'BYTES'"));
}

TEST(Border, WantsAllOutputsOrThoseNamed) {
  const ModelConfig config = two_inputs();
  InferRequest request;
  request.binary_output = true;
  EXPECT_EQ(Border(config).wishes(request).size(), 2u);
  request.outputs = {{.name = "z", .is_binary = false}};
  const std::vector<AnswerWish> one = Border(config).wishes(request);
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].output, 1u);
  EXPECT_FALSE(one[0].is_binary);
  request.outputs[0].name = "x";
  EXPECT_THROW(Border(config).wishes(request), base::Error);
}

TEST(Border, ReshapesThereAndBack) {
  const TensorConfig t{.name = "a", .type = DType::f32, .dims = {-1, 6}, .reshape = tensor::Dims{2, -1, 3}};
  EXPECT_EQ(model_shape(t, true, {5, 7, 6}), (tensor::Dims{5, 2, 7, 3}));
  EXPECT_EQ(client_shape(t, true, {5, 2, 7, 3}), (tensor::Dims{5, 7, 6}));
  EXPECT_EQ(client_shape(t, false, {2, 7, 3}), (tensor::Dims{7, 6}));
}

}  // namespace
}  // namespace trireme::serve
