// Tests random quantized layers: compares dequantize -> f32 product -> quantize on plain kernels with the
// integer kernels.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "engine/session/session.h"
#include "ops/table.h"
#include "passes/lists/lists.h"
#include "tests/test_device.h"

namespace trireme::passes {
namespace {

using ir::ValueId;
using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

/// One layer: a quantized input, a convolution or matrix product with quantized weights, perhaps a bias and
/// relu, and a quantized result.
class Layer {
 public:
  explicit Layer(uint64_t seed) : rng_(seed) {}

  ir::Graph build() {
    const size_t kind = below(4);
    const ValueId y = kind == 0 ? product() : kind == 1 ? product_of_two() : conv();
    const ValueId active = below(2) == 0 ? add("relu", {y}) : y;
    // The step fits the range of the results, so that they cover the whole range of bytes.
    step_ = 0.05f;
    const ValueId out = quantized(active, step_, below(2) == 0);
    graph_.add_output(out, "y");
    graph_.sort();
    return std::move(graph_);
  }
  float step() const { return step_; }
  const Dims& input() const { return input_; }

 private:
  size_t below(size_t n) { return rng_() % static_cast<uint32_t>(n); }
  ValueId add(const char* op, std::vector<ValueId> in, ir::Attrs attrs = {}) {
    return graph_.add1(ops::table().need(op), std::move(in), std::move(attrs));
  }
  ValueId scalar(float v) { return graph_.add_constant(Tensor::scalar<float>(v)); }
  ValueId zero_point(bool is_signed) {
    if (is_signed) return graph_.add_constant(Tensor::scalar<int8_t>(static_cast<int8_t>(below(30)) - 15));
    return graph_.add_constant(Tensor::scalar<uint8_t>(static_cast<uint8_t>(100 + below(60))));
  }
  ValueId quantized(ValueId x, float step, bool is_signed) {
    const ValueId scale = scalar(step), zero = zero_point(is_signed);
    return add("dequantize_linear", {add("quantize_linear", {x, scale, zero}), scale, zero});
  }

  /// Symmetric signed weights with one scale, or with one per channel along `axis`.
  ValueId weights(const Dims& dims, int64_t axis) {
    Tensor q = Tensor::empty(DType::i8, dims);
    for (int8_t& v : q.mutable_data<int8_t>()) v = static_cast<int8_t>(static_cast<int>(below(255)) - 127);
    const bool per_channel = below(2) == 0;
    const int64_t count = per_channel ? dims[static_cast<size_t>(axis)] : 1;
    Tensor scale = Tensor::empty(DType::f32, per_channel ? Dims{count} : Dims{});
    for (float& v : scale.mutable_data<float>()) v = 0.002f * static_cast<float>(1 + below(4));
    return add("dequantize_linear", {graph_.add_constant(q), graph_.add_constant(scale)}, {{"axis", axis}});
  }
  ValueId bias(int64_t n) {
    Tensor b = Tensor::empty(DType::f32, {n});
    for (float& v : b.mutable_data<float>()) v = static_cast<float>(2 * rng_.uniform() - 1);
    return graph_.add_constant(b);
  }

  /// The input in bytes, perhaps through a function between two quantizations, which becomes an exact table.
  ValueId input(const Dims& dims) {
    input_ = dims;
    const ValueId x =
        quantized(graph_.add_input("x", {DType::f32, tensor::Shape::of(dims)}), 0.02f, below(2) == 0);
    if (below(2) == 0) return x;
    const ValueId gate = quantized(add("sigmoid", {x}), 1.0f / 255, below(2) == 0);
    return quantized(add("mul", {x, gate}), 0.015f, below(2) == 0);
  }

  ValueId product_of_two() {
    const int64_t batch = 1 + static_cast<int64_t>(below(9)), m = 1 + static_cast<int64_t>(below(40));
    const ValueId a = input({batch, m, 1 + static_cast<int64_t>(below(70))});
    const ValueId turned = add("transpose", {a}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
    return add("matmul", {a, quantized(turned, 0.03f, below(2) == 0)});
  }

  ValueId conv() {
    const int64_t groups[]{1, 1, 2, 8};
    const int64_t group = groups[below(4)],
                  channels = group == 8 ? 8 : 4 * static_cast<int64_t>(1 + below(3));
    const int64_t results = group == 8 ? 8 : 4 * static_cast<int64_t>(1 + below(5));
    const int64_t k = below(2) == 0 ? 3 : 1, dilation = k == 3 && below(4) == 0 ? 2 : 1;
    const int64_t stride = 1 + static_cast<int64_t>(below(2)), pad = static_cast<int64_t>(below(2));
    const ValueId x = input({1 + static_cast<int64_t>(below(2)), channels, 7, 6});
    std::vector<ValueId> in{x, weights({results, channels / group, k, k}, 0)};
    if (below(2) == 0) in.push_back(bias(results));
    return add("conv", in,
               {{"group", group},
                {"pads", std::vector<int64_t>(4, pad)},
                {"strides", std::vector<int64_t>{stride, 1}},
                {"dilations", std::vector<int64_t>{dilation, 1}}});
  }

  ValueId product() {
    const int64_t m = 1 + static_cast<int64_t>(below(9)), k = 1 + static_cast<int64_t>(below(70));
    const int64_t n = 1 + static_cast<int64_t>(below(40));
    const ValueId x = input({m, k});
    if (below(2) == 0) return add("matmul", {x, weights({k, n}, 1)});
    const bool transposed = below(2) == 0;
    std::vector<ValueId> in{x, transposed ? weights({n, k}, 0) : weights({k, n}, 1)};
    if (below(2) == 0) in.push_back(bias(n));
    return add("gemm", in, {{"transB", int64_t{transposed}}});
  }

  base::Rng rng_;
  ir::Graph graph_;
  Dims input_;
  float step_ = 1;
};

std::vector<double> run_quantized(const ir::Graph& graph, const Dims& dims, const PassOptions& passes,
                                  const char* kernel) {
  const auto model = std::make_shared<const engine::PreparedModel>(graph, passes);
  engine::Session session(
      model, {.device = tests::device_under_test(), .threads = 2, .only_kernel = kernel, .passes = passes});
  Tensor x = Tensor::empty(DType::f32, dims);
  base::Rng rng(3);
  for (float& v : x.mutable_data<float>()) v = static_cast<float>(4 * rng.uniform() - 2);
  return session.run({x})[0].to_doubles();
}

TEST(RandomQuantizedLayers, IntegerKernelsAgreeToOneStep) {
  PassOptions plain;
  for (const auto* list : {&prepare_passes(), &bucket_passes()}) {
    for (const Pass& p : *list) plain.off.push_back(p.name);
  }
  size_t integer = 0, elements = 0, moved = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Layer layer(seed);
    const ir::Graph graph = layer.build();
    const auto count = [&](const PassRecord& r, const ir::Graph&) {
      integer += r.name == "integer" ? r.changes : 0;
    };
    const std::vector<double> want = run_quantized(graph, layer.input(), plain, "reference");
    const std::vector<double> got = run_quantized(graph, layer.input(), {.verify = true, .after = count}, "");
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_LE(std::abs(want[i] - got[i]), 1.001 * layer.step()) << "seed " << seed << "\n"
                                                                  << ir::print(graph);
      moved += std::abs(want[i] - got[i]) > 0.5 * layer.step();
    }
    elements += want.size();
  }
  EXPECT_GE(integer, 390u);  // all but the layers whose bias does not fit
  // Ties and the rounding of the bias may change a result by one step, but only rarely.
  EXPECT_LE(static_cast<double>(moved), 0.01 * static_cast<double>(elements)) << moved << " of " << elements;
}

}  // namespace
}  // namespace trireme::passes
