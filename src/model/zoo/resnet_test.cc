// Tests ResNet from the builder: shapes, the paper's parameter counts, finite activations, and the same
// network through ONNX.
#include "model/zoo/resnet.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "model/interpret.h"
#include "model/onnx/export.h"
#include "model/onnx/import.h"

namespace trireme::model::zoo {
namespace {

using tensor::Tensor;

/// Weights that are trained: all parameters except the running statistics.
int64_t trained_weights(const ir::Graph& g) {
  int64_t count = 0;
  for (const ir::Value& v : g.values()) {
    const bool is_statistic = v.name.ends_with(".running_mean") || v.name.ends_with(".running_var");
    if (v.kind == ir::ValueKind::param && !is_statistic) count += v.data.elements();
  }
  return count;
}

TEST(Resnet, HasTheKnownParameterCounts) {
  // The counts that torchvision gives.
  EXPECT_EQ(trained_weights(random_resnet(18).graph), 11689512);
  EXPECT_EQ(trained_weights(random_resnet(50).graph), 25557032);
  EXPECT_THROW(random_resnet(51), base::Error);
}

TEST(Resnet, RunsTheSameThroughOnnx) {
  const Model model = random_resnet(18, 3, 32, 10);
  const auto bytes = std::make_shared<std::string>(onnx::export_onnx(model.graph));
  const Model again = onnx::import_onnx(*bytes, bytes, "");
  Tensor image = Tensor::empty(tensor::DType::f32, {2, 3, 32, 32});
  base::Rng rng(5);
  for (float& v : image.mutable_data<float>()) v = static_cast<float>(rng.normal());
  const Tensor logits = interpret(model.graph, {image})[0], twin = interpret(again.graph, {image})[0];
  ASSERT_EQ(logits.dims(), (tensor::Dims{2, 10}));
  EXPECT_TRUE(logits.same_as(twin));
  double largest = 0;
  for (float v : logits.data<float>()) largest = std::max(largest, std::abs(double{v}));
  EXPECT_GT(largest, 1e-3);
  EXPECT_LT(largest, 1e3);
  EXPECT_EQ(again.graph.type(again.graph.outputs()[0]).to_string(), "f32[batch,10]");
}

}  // namespace
}  // namespace trireme::model::zoo
