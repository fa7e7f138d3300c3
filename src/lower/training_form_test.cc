// Which values of a loss graph become states: tensors behind identities, statistics of batch norms, but not
// frozen weights. Dropout gets its training form.
#include "lower/training_form.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/table.h"

namespace trireme::lower {
namespace {

using ir::ValueId;
using tensor::DType;
using tensor::Tensor;
using tensor::TensorType;

/// batch_norm of x with tensors behind identities, and a sum as the loss.
class Network {
 public:
  ir::Graph graph;

  ValueId add(const char* op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph.add1(ops::table().need(op), std::move(in), std::move(attrs));
  }
  ValueId param(const char* name) { return graph.add_param(name, Tensor::zeros(DType::f32, {4})); }
  ValueId handed_on(ValueId id) { return add("identity", {add("identity", {id})}); }
  ValueId batch_norm(ValueId x, const char* scale, ValueId mean, ValueId variance) {
    const ValueId own = param(scale);
    return add("batch_norm", {x, own, handed_on(own), mean, variance});
  }
  ValueId input() { return graph.add_input("x", TensorType{DType::f32, {2, 4, 3, 3}}); }
  ir::Graph with_loss(ValueId y) {
    graph.add_output(add("reduce_sum", {y}, {{"keepdims", int64_t{0}}}), kLossOutput);
    graph.sort();
    return graph;
  }
};

bool names(const std::vector<std::string>& list, const char* name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

TEST(TrainingForm, TensorsBehindIdentitiesAreStates) {
  Network n;
  const ValueId mean = n.param("mean"), variance = n.param("variance");
  const ValueId y = n.batch_norm(n.input(), "scale", n.handed_on(mean), n.handed_on(variance));
  const TrainingForm form = training_form(n.with_loss(y), {});
  for (const char* name : {"mean", "variance", "scale"}) EXPECT_TRUE(names(form.states, name)) << name;
  ASSERT_EQ(form.params.size(), 1u);
  EXPECT_EQ(form.params[0].name, "scale");
  for (const ir::Node& node : form.graph.nodes()) EXPECT_NE(node.op_name(), "identity");
}

TEST(TrainingForm, SharedStatisticsAreRefusedByName) {
  Network n;
  const ValueId mean = n.param("merged_mean");
  const ValueId first = n.batch_norm(n.input(), "a", n.handed_on(mean), n.param("va"));
  const ValueId second = n.batch_norm(first, "b", n.handed_on(mean), n.param("vb"));
  try {
    training_form(n.with_loss(second), {});
    FAIL() << "two batch norms keep one mean";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("merged_mean"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("training mode"), std::string::npos) << e.what();
  }
}

TEST(TrainingForm, ABiasOfOneElementIsAWeightAndAScalarIsNone) {
  Network n;
  const ValueId bias = n.graph.add_param("head.bias", Tensor::zeros(DType::f32, {1}));
  const ValueId scale = n.graph.add_param("scale", Tensor::scalar<float>(2));
  const ValueId y = n.add("add", {n.add("mul", {n.input(), scale}), bias});
  const TrainingForm form = training_form(n.with_loss(y), {});
  EXPECT_EQ(form.states, std::vector<std::string>{"head.bias"});
  ASSERT_EQ(form.params.size(), 1u);
  EXPECT_EQ(form.params[0].dims, (tensor::Dims{1}));
}

TEST(TrainingForm, FrozenTensorsStayAndDropoutTrains) {
  Network n;
  const ValueId x = n.input();
  const ValueId table = n.handed_on(n.graph.add_param("table.inv_freq", Tensor::zeros(DType::f32, {3})));
  const ValueId y = n.add("dropout", {n.add("mul", {x, table})});
  const TrainingForm form = training_form(n.with_loss(y), {"inv_freq"});
  EXPECT_TRUE(form.states.empty());
  const auto trains = [](const ir::Node& node) { return node.op_name() == "dropout_train"; };
  EXPECT_TRUE(std::any_of(form.graph.nodes().begin(), form.graph.nodes().end(), trains));
}

}  // namespace
}  // namespace trireme::lower
