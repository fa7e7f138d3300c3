// Mixed precision: the resulting graph, results near PyTorch's autocast, and the fallback to f32.
#include "passes/precision/precision.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/files/file.h"
#include "base/text/json.h"
#include "ops/test_grad.h"
#include "passes/train/train.h"
#include "passes/precision/wide_gradients.h"
#include "tests/test_data.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using ops::testing::run_graph;
using tensor::DType;
using tensor::Shape;
using tensor::Tensor;

const base::Json& reference() {
  static const base::Json file = base::parse_json(
      base::read_file((tests::source_dir() / "src/passes/testdata/autocast_mlp.json").string()));
  return file;
}

Tensor floats(const base::Json& values, tensor::Dims dims) {
  Tensor t = Tensor::empty(DType::f32, std::move(dims));
  const auto out = t.mutable_data<float>();
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(values.at(i).as_double());
  return t;
}

tensor::Dims shape_of(const std::string& param) {
  tensor::Dims dims;
  for (const base::Json& d : reference().at("shapes").at(param).as_array()) dims.push_back(d.as_int());
  return dims;
}

const std::vector<std::string> kParams{"w1", "b1", "scale", "bias", "w2", "b2", "w3", "b3"};

/// The network of the reference file; weights are states (or inputs, to run the graph without a session).
struct Mlp {
  ir::Graph g;
  std::map<std::string, ValueId> param;

  explicit Mlp(bool as_states = false) {
    const auto op = [&](const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
      return g.add1(ops::table().need(name), std::move(in), std::move(attrs), name);
    };
    const ValueId x = g.add_input("x", {DType::f32, {6, 12}});
    const ValueId labels = g.add_input("labels", {DType::i64, {6}});
    for (const std::string& name : kParams) {
      const tensor::TensorType type{DType::f32, Shape::of(shape_of(name))};
      param[name] = as_states ? g.add_state(name, type) : g.add_input(name, type);
    }
    const ir::Attrs rows{{"transposed", int64_t{1}}};
    const ValueId h = op("gelu", {op("linear", {x, param["w1"], param["b1"]}, rows)});
    const ValueId n = op("layer_norm", {h, param["scale"], param["bias"]}, {{"epsilon", 1e-5}});
    const ValueId y = op("add", {op("linear", {n, param["w2"], param["b2"]}, rows), h});
    const ValueId logits = op("linear", {op("relu", {y}), param["w3"], param["b3"]}, rows);
    g.add_output(g.add(ops::table().need("cross_entropy"), {logits, labels}, {}, 4, "loss")[0], "loss");
    g.add_output(logits, "logits");
    g.sort();
  }
};

struct Step {
  double loss;
  std::vector<double> logits;
  std::map<std::string, std::vector<double>> grads;
};

Step run_step(Precision compute, float loss_scale, bool wide = false) {
  Mlp m;
  lower_precision(m.g, {.compute = compute});
  std::vector<ValueId> params;
  for (ValueId id : m.g.inputs()) {
    if (std::find(kParams.begin(), kParams.end(), m.g.value(id).name) != kParams.end()) params.push_back(id);
  }
  std::vector<std::string> names{"loss", "logits"};
  std::vector<ValueId> outputs = m.g.outputs();
  for (const ParamGradient& p : differentiate(m.g, outputs[0], params)) {
    EXPECT_EQ(m.g.type(p.gradient).dtype, DType::f32) << "gradients of weights are f32";
    outputs.push_back(p.gradient);
    names.push_back(m.g.value(p.param).name);
  }
  m.g.set_outputs(outputs, names);
  m.g.sort();
  const size_t widened = wide ? widen_weight_gradients(m.g) : 3;
  EXPECT_EQ(widened, 3u);
  widen_unsupported(m.g, tensor::DeviceKind::cpu);
  ir::verify(m.g);
  std::vector<Tensor> in;
  for (ValueId id : m.g.inputs()) {
    const std::string& name = m.g.value(id).name;
    if (name == "x") {
      in.push_back(floats(reference().at("x"), {6, 12}));
    } else if (name == "labels") {
      in.push_back(Tensor::empty(DType::i64, {6}));
      for (size_t i = 0; i < 6; ++i)
        in.back().mutable_data<int64_t>()[i] = reference().at("labels").at(i).as_int();
    } else if (name == kLossWeightInput) {
      in.push_back(Tensor::scalar(loss_scale / 6));
    } else {
      in.push_back(floats(reference().at("params").at(name), shape_of(name)));
    }
  }
  const std::vector<Tensor> out = run_graph(m.g, in);
  Step step{out[0].to_doubles()[0], out[1].to_doubles(), {}};
  for (size_t i = 2; i < out.size(); ++i) step.grads[names[i]] = out[i].to_doubles();
  return step;
}

double largest_difference(const std::vector<double>& got, const base::Json& want) {
  double largest = 0, scale = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    largest = std::max(largest, std::abs(got[i] - want.at(i).as_double()));
    scale = std::max(scale, std::abs(want.at(i).as_double()));
  }
  return largest / scale;
}

/// Distance to the reference relative to the largest entry; `half_ulp`: that of the compute type.
void expect_like_autocast(Precision compute, const char* name, double half_ulp) {
  const base::Json& want = reference().at(name);
  const Step got = run_step(compute, static_cast<float>(want.at("loss_scale").as_double()));
  EXPECT_NEAR(got.loss, want.at("loss").as_double(), 2 * half_ulp * got.loss) << name;
  EXPECT_LE(largest_difference(got.logits, want.at("logits")), 2 * half_ulp) << name;
  ASSERT_EQ(got.grads.size(), kParams.size());
  for (const auto& [param, grad] : got.grads)
    EXPECT_LE(largest_difference(grad, want.at("grads").at(param)), 6 * half_ulp) << name << " " << param;
}

TEST(Precision, IsPyTorchWithoutIt) { expect_like_autocast(Precision::f32, "f32", 1e-6); }
TEST(Precision, Bf16IsLikeAutocast) { expect_like_autocast(Precision::bf16, "bf16", 1.0 / 512); }
TEST(Precision, F16IsLikeAutocast) { expect_like_autocast(Precision::f16, "f16", 1.0 / 4096); }

/// The root mean square of the differences of all weight gradients.
double distance(const Step& got, const Step& want) {
  double sum = 0;
  size_t count = 0;
  for (const auto& [param, grad] : got.grads) {
    if (!param.starts_with("w")) continue;
    for (size_t i = 0; i < grad.size(); ++i, ++count) sum += std::pow(grad[i] - want.grads.at(param)[i], 2);
  }
  return std::sqrt(sum / static_cast<double>(count));
}

TEST(Precision, GradientsOfWeightsKeepTheF32OfTheirSums) {
  const Step exact = run_step(Precision::f32, 1);
  for (const Precision compute : {Precision::bf16, Precision::f16}) {
    const Step rounded = run_step(compute, 1), wide = run_step(compute, 1, true);
    EXPECT_EQ(wide.loss, rounded.loss);
    EXPECT_EQ(wide.logits, rounded.logits);
    // Only the last rounding is left out.
    EXPECT_LT(distance(wide, rounded), distance(rounded, exact));
    EXPECT_LT(distance(wide, exact), distance(rounded, exact));
    const double ulp = compute == Precision::bf16 ? 1.0 / 128 : 1.0 / 1024;
    for (const auto& [param, grad] : wide.grads) {
      for (size_t i = 0; i < grad.size(); ++i)
        EXPECT_NEAR(grad[i], rounded.grads.at(param)[i], 0.51 * ulp * std::abs(grad[i]) + 1e-7) << param;
    }
  }
}

TEST(Precision, SaysWhatStaysF32AndWhy) {
  Mlp m(true);
  const PrecisionReport report = lower_precision(m.g, {.compute = Precision::bf16});
  EXPECT_EQ(report.text(),
            "linear x 3: 16-bit: product, sums in f32\n"
            "gelu x 1: 16-bit: one rounding per element\n"
            "layer_norm x 1: f32: statistics\n"
            "add x 1: 16-bit: one rounding per element\n"
            "relu x 1: 16-bit: moves elements\n"
            "cross_entropy x 1: f32: loss\n"
            "casts: 10, of them of weights: 6\n");
  ir::verify(m.g);
  for (size_t i = 0; i < m.g.outputs().size(); ++i)
    EXPECT_EQ(m.g.type(m.g.outputs()[i]).dtype, DType::f32) << m.g.output_names()[i];
}

TEST(Precision, KeepsWhatIsAskedFor) {
  Mlp m(true);
  const PrecisionReport report = lower_precision(m.g, {.compute = Precision::bf16, .keep = {"linear"}});
  for (const PrecisionRow& row : report.rows) EXPECT_FALSE(row.is_low) << row.op;
  EXPECT_EQ(report.casts, 0u);
}

TEST(Precision, F32ChangesNothing) {
  Mlp a(true), b(true);
  lower_precision(a.g, {.compute = Precision::f32});
  EXPECT_EQ(ir::print(a.g), ir::print(b.g));
}

/// A model of 16-bit floats: its answers are read as the type that its outputs declare.
TEST(Precision, OutputsKeepTheirTypes) {
  for (const Precision compute : {Precision::bf16, Precision::f16}) {
    ir::Graph g;
    const ValueId x = g.add_input("x", {DType::f16, {2, 4}});
    const ValueId moved = g.add1(ops::table().need("relu"), {x});
    const ValueId kept = g.add1(ops::table().need("exp"), {x});
    g.add_output(moved, "moved");
    g.add_output(kept, "kept");
    g.add_output(g.add1(ops::table().need("cast"), {kept}, {{"to", int64_t{1}}}), "wide");
    g.sort();
    lower_precision(g, {.compute = compute});
    ir::verify(g);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_EQ(g.type(g.outputs()[i]).dtype, i < 2 ? DType::f16 : DType::f32) << g.output_names()[i];
  }
}

/// What stays f32 becomes the low type before the next product, whose weight, like x, is of the model's type.
TEST(Precision, TypesOf16BitsDoNotMix) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f16, {2, 4}});
  const ValueId w = g.add_state("w", {DType::f16, {4, 4}});
  const ValueId y = g.add1(ops::table().need("linear"), {g.add1(ops::table().need("exp"), {x}), w});
  g.add_output(g.add1(ops::table().need("add"), {y, x}), "z");
  g.sort();
  lower_precision(g, {.compute = Precision::bf16});
  ir::verify(g);
  for (const ir::Node& node : g.nodes()) {
    if (node.op_name() == "linear" || node.op_name() == "add") {
      EXPECT_EQ(g.type(node.in[0]).dtype, g.type(node.in[1]).dtype) << node.op_name();
    }
  }
  EXPECT_EQ(g.type(g.outputs()[0]).dtype, DType::f16);
}

TEST(Precision, AWeightReadTwiceIsCastOnce) {
  ir::Graph g;
  const ValueId x = g.add_input("x", {DType::f32, {2, 4}});
  const ValueId w = g.add_state("w", {DType::f32, {4, 4}});
  const ValueId y = g.add1(ops::table().need("linear"), {x, w});
  g.add_output(g.add1(ops::table().need("linear"), {y, w}), "z");
  g.sort();
  const PrecisionReport report = lower_precision(g, {.compute = Precision::f16});
  EXPECT_EQ(report.weight_casts, 1u);
  EXPECT_EQ(report.casts, 3u);  // of x, of w, and of z back to f32
}

TEST(Precision, AScalarFollowsOnlyIfExact) {
  for (const auto& [value, low] : {std::pair{0.5f, true}, {0.1f, false}}) {
    ir::Graph g;
    const ValueId x = g.add_input("x", {DType::f32, {2, 4}});
    const ValueId w = g.add_state("w", {DType::f32, {4, 4}});
    const ValueId y = g.add1(ops::table().need("linear"), {x, w});
    g.add_output(g.add1(ops::table().need("mul"), {y, g.add_constant(Tensor::scalar(value))}), "z");
    g.sort();
    const PrecisionReport report = lower_precision(g, {.compute = Precision::bf16});
    EXPECT_EQ(report.rows.back().is_low, low) << value;
  }
}

/// A 16-bit value that a device without 16-bit kernels computes with the op `moving` between casts, read at
/// once and 30 nodes later, as in forward and backward passes. `from`: the op whose result the first reader
/// then reads.
void expect_casts_beside_readers(const char* moving, std::string_view from) {
  const ir::Attrs to_f32{{"to", int64_t{1}}}, to_bf16{{"to", int64_t{16}}};
  ir::Graph g;
  const auto op = [&](const char* name, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return g.add1(ops::table().need(name), std::move(in), std::move(attrs));
  };
  const ValueId x = g.add_input("x", {DType::bf16, {6, 40}});
  const ValueId kept = op("cast", {op(moving, {op("cast", {x}, to_f32)})}, to_bf16);
  const ValueId shared = op("cast", {kept}, to_f32);
  ValueId y = shared;
  for (int i = 0; i < 30; ++i) y = op("tanh", {y});
  g.add_output(op("mul", {y, shared}), "y");
  g.sort();
  const std::vector<Tensor> in{
      ops::testing::run("cast", {ops::testing::random_tensor(DType::f32, {6, 40}, -2, 2)}, to_bf16)[0]};
  const Tensor want = run_graph(g, in)[0];
  EXPECT_EQ(localise_casts(g), from == "cast" ? 1u : 2u) << moving;
  ir::verify(g);
  EXPECT_TRUE(run_graph(g, in)[0].same_as(want));
  // The first reader gets the f32 result itself, the later one the 16-bit value, widened again.
  const auto made_by = [&](ValueId id) { return g.producer(id)->op_name(); };
  for (const ir::Node& node : g.nodes()) {
    const bool starts_chain = node.op_name() == "tanh" && made_by(node.in[0]) != "tanh";
    EXPECT_TRUE(!starts_chain || made_by(node.in[0]) == from) << ir::print(g);
    EXPECT_TRUE(node.op_name() != "mul" || made_by(node.in[1]) == "cast") << ir::print(g);
  }
}

TEST(Precision, CastsStandBesideTheirReaders) {
  for (const char* moving : {"relu", "abs", "flatten"}) expect_casts_beside_readers(moving, moving);
  expect_casts_beside_readers("tanh", "cast");  // rounds: the f32 result differs
}

/// Every op that supports 16 bits returns the result of f32 arithmetic on the rounded operands, rounded once.
TEST(Precision, OpsRoundOnce) {
  const ir::Attrs to_bf16{{"to", int64_t{16}}}, to_f32{{"to", int64_t{1}}};
  const auto rounded = [&](const tensor::Dims& dims, uint64_t seed) {
    return ops::testing::run("cast", {ops::testing::random_tensor(DType::f32, dims, -2, 2, seed)},
                             to_bf16)[0];
  };
  const struct {
    const char* op;
    std::vector<Tensor> in;
    ir::Attrs attrs = {};
  } cases[] = {
      {"linear", {rounded({5, 40}, 1), rounded({40, 9}, 2), rounded({9}, 3)}},
      {"matmul", {rounded({2, 5, 40}, 1), rounded({2, 40, 9}, 2)}},
      {"gelu", {rounded({300}, 1)}},
      {"tanh", {rounded({300}, 1)}},
      {"mul", {rounded({5, 7}, 1), rounded({7}, 2)}},
      {"add", {rounded({5, 7}, 1), rounded({5, 7}, 2)}},
      {"conv", {rounded({1, 3, 8, 8}, 1), rounded({4, 3, 3, 3}, 2)}},
      {"conv_nhwc", {rounded({1, 8, 8, 3}, 1), rounded({3, 3, 3, 4}, 2)}},
      {"attention_bsnd", {rounded({2, 6, 2, 8}, 1), rounded({2, 6, 2, 8}, 2), rounded({2, 6, 2, 8}, 3)}}};
  for (const auto& c : cases) {
    ir::Graph g;
    std::vector<ValueId> in;
    std::vector<Tensor> wide;
    for (const Tensor& t : c.in) {
      in.push_back(g.add_constant(t));
      wide.push_back(ops::testing::run("cast", {t}, to_f32)[0]);
    }
    g.add_output(g.add1(ops::table().need(c.op), in, c.attrs), "y");
    g.sort();
    widen_unsupported(g, tensor::DeviceKind::cpu);
    const Tensor got = run_graph(g, {})[0];
    const Tensor exact = ops::testing::run(c.op, wide, c.attrs)[0];
    ASSERT_EQ(got.dtype(), DType::bf16) << c.op;
    const std::vector<double> a = got.to_doubles(), b = exact.to_doubles();
    for (size_t i = 0; i < a.size(); ++i)  // one rounding, and the last bits of f32 where kernels differ
      ASSERT_NEAR(a[i], b[i], std::abs(b[i]) / 256 + 1e-6) << c.op << " " << i;
  }
}

}  // namespace
}  // namespace trireme::passes
