// Convolutions followed by a maximum, against the plain convolution, a naive maximum and double precision.
#include <cstring>
#include <numeric>

#include "ops/conv/against_double.h"
#include "ops/test_eval.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

struct PooledLayer {
  int64_t n, h, w, c, oc, pad;
  int64_t oh() const { return h + 2 * pad - 2; }
  int64_t ow() const { return w + 2 * pad - 2; }
  Dims image() const { return {n, oh(), ow(), oc}; }
  Dims windows() const { return {n, oh() / 2, ow() / 2, oc}; }
};

/// Odd extents, every padding, channels that do not fill vectors, the layer of an MNIST network, many tiles
/// with few sums.
std::vector<PooledLayer> pooled_layers() {
  return {{2, 10, 12, 16, 16, 0}, {2, 9, 11, 17, 37, 1},   {1, 7, 6, 20, 24, 2},  {3, 26, 26, 32, 64, 0},
          {1, 15, 8, 64, 48, 1},  {2, 13, 10, 130, 16, 2}, {3, 98, 97, 32, 16, 0}};
}

ir::Attrs pooled_attrs(const PooledLayer& l) {
  return {{"pads", Ints{l.pad, l.pad, l.pad, l.pad}}, {"kernel_shape", Ints{3, 3}}};
}

/// The image that has the values of windows at their places and zeros elsewhere.
Tensor spread(const PooledLayer& l, const Tensor& p, const Tensor& which) {
  Tensor image = Tensor::zeros(DType::f32, l.image());
  const Dims d = p.dims();
  const auto value = p.data<float>();
  const auto place = which.data<uint8_t>();
  size_t at = 0;
  for (int64_t n = 0; n < d[0]; ++n) {
    for (int64_t h = 0; h < d[1]; ++h) {
      for (int64_t w = 0; w < d[2]; ++w) {
        for (int64_t c = 0; c < d[3]; ++c, ++at) {
          if (place[at] > 3) continue;
          const int64_t line = n * l.oh() + 2 * h + place[at] / 2, column = 2 * w + place[at] % 2;
          image.mutable_data<float>()[static_cast<size_t>((line * l.ow() + column) * l.oc + c)] = value[at];
        }
      }
    }
  }
  return image;
}

/// Maxima of an image and their places: the first of equal values, the last NaN; 4 if none is above zero.
std::pair<Tensor, Tensor> maxima(const PooledLayer& l, const Tensor& y, bool rectified) {
  Tensor p = Tensor::empty(DType::f32, l.windows()), which = Tensor::empty(DType::u8, l.windows());
  const Dims d = p.dims();
  size_t at = 0;
  for (int64_t n = 0; n < d[0]; ++n) {
    for (int64_t h = 0; h < d[1]; ++h) {
      for (int64_t w = 0; w < d[2]; ++w) {
        for (int64_t c = 0; c < d[3]; ++c, ++at) {
          float best = 0;
          uint8_t place = 0;
          for (int64_t i = 0; i < 4; ++i) {
            const int64_t line = n * l.oh() + 2 * h + i / 2, column = 2 * w + i % 2;
            const float v = y.data<float>()[static_cast<size_t>((line * l.ow() + column) * l.oc + c)];
            if (i == 0 || v > best || v != v) best = v, place = static_cast<uint8_t>(i);
          }
          p.mutable_data<float>()[at] = best;
          which.mutable_data<uint8_t>()[at] = rectified && !(best > 0) ? 4 : place;
        }
      }
    }
  }
  return {p, which};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dims() == b.dims() &&
         std::memcmp(a.raw(), b.raw(), static_cast<size_t>(tensor::bytes_of(a.type()))) == 0;
}

/// The indices of all operands: none is a constant.
std::vector<size_t> all_fed(const std::vector<Tensor>& in) {
  std::vector<size_t> fed(in.size());
  std::iota(fed.begin(), fed.end(), size_t{0});
  return fed;
}

/// The results of the only kernel, which must have the same bits for every team.
std::vector<Tensor> only_kernel(const std::string& op, const ir::Attrs& attrs, const std::vector<Tensor>& in,
                                size_t results) {
  const auto first = tests::run_kernels(op, attrs, in, results, all_fed(in), 1);
  EXPECT_EQ(first.size(), 1u) << op;
  for (const int threads : {2, 3, 4}) {
    const auto again = tests::run_kernels(op, attrs, in, results, all_fed(in), threads);
    for (size_t i = 0; i < results; ++i)
      EXPECT_TRUE(same_bits(first[0].out[i], again[0].out[i])) << op << ", threads " << threads;
  }
  return first[0].out;
}

/// The result of the named kernel of a plain op.
Tensor plain(const std::string& op, const std::string& kernel, const ir::Attrs& attrs,
             const std::vector<Tensor>& in) {
  for (const tests::KernelResult& r : tests::run_kernels(op, attrs, in, 1, all_fed(in), 2)) {
    if (r.kernel == kernel) return r.out[0];
  }
  ADD_FAILURE() << op << " has no kernel " << kernel << " here";
  return in[0];
}

TEST(ConvPool, IsTheMaximumOfTheConvolution) {
  for (const PooledLayer& l : pooled_layers()) {
    SCOPED_TRACE(base::concat(l.h, "x", l.w, " c ", l.c, " oc ", l.oc, " pad ", l.pad));
    const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1), b = tests::random_tensor({l.oc}, 3);
    const Tensor w = tests::random_tensor({l.oc, l.c, 3, 3}, 2, 0.1f);
    for (const std::string activation : {"none", "relu"}) {
      ir::Attrs attrs = pooled_attrs(l);
      attrs.set("activation", activation);
      const auto [p, which] =
          maxima(l, plain("conv_nhwc", "winograd_live", attrs, {x, w, b}), activation == "relu");
      const std::vector<Tensor> got = only_kernel("conv_pool_nhwc", attrs, {x, w, b}, 2);
      EXPECT_TRUE(same_bits(got[0], p)) << activation;
      EXPECT_TRUE(same_bits(got[1], which)) << activation;
    }
  }
}

/// If nobody asks for the places of the maxima, nothing but the maxima is written.
TEST(ConvPool, MaximaAreWrittenAlone) {
  constexpr size_t kGuard = 4096;
  constexpr float kUntouched = 77;
  for (const PooledLayer& l : pooled_layers()) {
    SCOPED_TRACE(base::concat(l.h, "x", l.w, " c ", l.c, " oc ", l.oc, " pad ", l.pad));
    const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1);
    const Tensor w = tests::random_tensor({l.oc, l.c, 3, 3}, 2, 0.1f);
    const ir::Attrs attrs = pooled_attrs(l);
    const Tensor want = only_kernel("conv_pool_nhwc", attrs, {x, w}, 2)[0];
    const ir::OpDef& def = table().need("conv_pool_nhwc");
    for (const size_t results : {1, 2}) {
      const tensor::TensorType absent;
      ir::NodeView node{.attrs = attrs,
                        .in = {x.type(), w.type()},
                        .out = {want.type()},
                        .known = {nullptr, nullptr},
                        .is_present = {true, true},
                        .out_count = results};
      if (results == 2) node.out.push_back(absent);
      ASSERT_EQ(def.kernels[0].refuse(node), std::nullopt);
      base::ThreadPool pool(2);
      base::SharedCache packs;
      const ir::BoundKernel bound = def.kernels[0].prepare({node, packs, pool.size()});
      Tensor space = Tensor::empty(DType::u8, {bound.workspace_bytes});
      // The memory after the windows has room for the whole image, so a kernel that wrongly writes it is
      // caught safely.
      const size_t count = static_cast<size_t>(want.elements()), room = 5 * count + 2 * kGuard;
      std::vector<float> memory(room, kUntouched);
      const void* in[] = {x.raw(), w.raw()};
      void* out[] = {memory.data() + kGuard, nullptr};
      cpu::CpuStream stream(pool);
      bound.run({in, out, space.mutable_raw(), stream});
      EXPECT_EQ(std::memcmp(memory.data() + kGuard, want.raw(), count * sizeof(float)), 0);
      EXPECT_EQ(static_cast<size_t>(std::count(memory.begin(), memory.end(), kUntouched)), room - count);
    }
  }
}

TEST(ConvPool, OperandsThatContradictEachOtherAreRefused) {
  const Tensor x = tests::random_tensor({1, 8, 8, 16}, 1), w = tests::random_tensor({16, 16, 3, 3}, 2);
  const Tensor small = tests::random_tensor({16, 16, 1, 1}, 2), bias = tests::random_tensor({8}, 3);
  const Tensor dp = tests::random_tensor({1, 3, 3, 16}, 4), few = tests::random_tensor({1, 3, 3, 8}, 4);
  const Tensor which = tests::random_bytes<uint8_t>({1, 3, 3, 16}, 5, 0, 4);
  const ir::Attrs attrs{{"kernel_shape", Ints{3, 3}}};
  const auto runs = [&](const std::string& op, const std::vector<Tensor>& in, size_t results) {
    return tests::run_kernels(op, attrs, in, results, all_fed(in)).size();
  };
  EXPECT_EQ(runs("conv_pool_nhwc", {x, w}, 2), 1u);
  EXPECT_EQ(runs("conv_pool_nhwc", {x, small}, 2), 0u);
  EXPECT_EQ(runs("conv_pool_nhwc", {x, w, bias}, 2), 0u);
  EXPECT_EQ(runs("conv_pool_nhwc_grad", {x, dp, which, w}, 3), 1u);
  EXPECT_EQ(runs("conv_pool_nhwc_grad", {x, few, which, w}, 3), 0u);
  EXPECT_EQ(runs("conv_pool_nhwc_grad", {x, dp, dp, w}, 3), 0u);
  EXPECT_EQ(runs("conv_pool_nhwc_grad", {x, dp, which, small}, 3), 0u);
  EXPECT_THROW(runs("conv_pool_nhwc_grad", {x, dp, which, w}, 2), base::Error);
}

TEST(ConvPool, NotANumberIsAMaximumWithoutGradientBehindARectifier) {
  const PooledLayer l{1, 6, 6, 16, 16, 0};
  Tensor x = tests::random_tensor({1, 6, 6, 16}, 1);
  x.mutable_data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const Tensor w = tests::random_tensor({16, 16, 3, 3}, 2);
  ir::Attrs attrs = pooled_attrs(l);
  attrs.set("activation", std::string("relu"));
  const auto got = only_kernel("conv_pool_nhwc", attrs, {x, w}, 2);
  EXPECT_TRUE(std::isnan(got[0].data<float>()[0]));
  EXPECT_EQ(got[1].data<uint8_t>()[0], 4);
}

TEST(ConvPool, GradientsAreThoseOfTheImageBetween) {
  for (const PooledLayer& l : pooled_layers()) {
    SCOPED_TRACE(base::concat(l.h, "x", l.w, " c ", l.c, " oc ", l.oc, " pad ", l.pad));
    const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1), dp = tests::random_tensor(l.windows(), 4);
    const Tensor w = tests::random_tensor({l.oc, l.c, 3, 3}, 2, 0.1f);
    const Tensor which = tests::random_bytes<uint8_t>(l.windows(), 5, 0, 4);
    const Tensor dy = spread(l, dp, which);
    ir::Attrs to_x = pooled_attrs(l);
    to_x.set("in_shape", Ints{l.h, l.w});
    const Tensor dx = plain("conv_nhwc_grad_x", "winograd", to_x, {dy, w});
    const std::vector<Tensor> got = only_kernel("conv_pool_nhwc_grad", pooled_attrs(l), {x, dp, which, w}, 3);
    EXPECT_TRUE(same_bits(got[0], dx));
    EXPECT_TRUE(same_bits(got[1], plain("conv_nhwc_grad_w", "winograd", pooled_attrs(l), {x, dy})));
    const Tensor db =
        testing::run("reduce_sum", {dy, testing::ints({0, 1, 2})}, {{"keepdims", int64_t{0}}})[0];
    EXPECT_LT(testing::largest_difference(got[2], db), 2e-6);
    ir::Attrs rectified = pooled_attrs(l);
    rectified.set("rectified", int64_t{1});
    const std::vector<Tensor> gated = only_kernel("conv_pool_nhwc_grad", rectified, {x, dp, which, w}, 3);
    EXPECT_EQ(testing::largest_difference(gated[0], testing::run("relu_grad", {dx, x})[0]), 0);
    EXPECT_TRUE(same_bits(gated[1], got[1]));
  }
}

TEST(ConvPool, TheGradientMayTakeTheMemoryOfTheInput) {
  const PooledLayer l{3, 26, 26, 32, 64, 0};
  const Tensor x = tests::random_tensor({l.n, l.h, l.w, l.c}, 1), dp = tests::random_tensor(l.windows(), 4);
  const Tensor w = tests::random_tensor({l.oc, l.c, 3, 3}, 2, 0.1f);
  const Tensor which = tests::random_bytes<uint8_t>(l.windows(), 5, 0, 4);
  ir::Attrs attrs = pooled_attrs(l);
  attrs.set("rectified", int64_t{1});
  const std::vector<Tensor> want = only_kernel("conv_pool_nhwc_grad", attrs, {x, dp, which, w}, 3);
  const ir::OpDef& def = table().need("conv_pool_nhwc_grad");
  ir::NodeView node{.attrs = attrs,
                    .in = {x.type(), dp.type(), which.type(), w.type()},
                    .out = {x.type(), w.type(), want[2].type()},
                    .known = {nullptr, nullptr, nullptr, nullptr},
                    .is_present = {true, true, true, true},
                    .out_count = 3};
  base::ThreadPool pool(4);
  base::SharedCache packs;
  ASSERT_EQ(def.kernels[0].may_overwrite, 1u);
  const ir::BoundKernel bound = def.kernels[0].prepare({node, packs, pool.size()});
  Tensor both = Tensor::empty(DType::f32, x.dims()), dw = Tensor::empty(DType::f32, w.dims());
  Tensor db = Tensor::empty(DType::f32, {l.oc}), space = Tensor::empty(DType::u8, {bound.workspace_bytes});
  std::memcpy(both.mutable_raw(), x.raw(), static_cast<size_t>(x.bytes()));
  const void* in[] = {both.raw(), dp.raw(), which.raw(), w.raw()};
  void* out[] = {both.mutable_raw(), dw.mutable_raw(), db.mutable_raw()};
  cpu::CpuStream stream(pool);
  bound.run({in, out, space.mutable_raw(), stream});
  EXPECT_TRUE(same_bits(both, want[0]));
  EXPECT_TRUE(same_bits(dw, want[1]));
  EXPECT_TRUE(same_bits(db, want[2]));
}

TEST(ConvPool, OnlyWinogradShapesAreTaken) {
  const Tensor x = tests::random_tensor({1, 8, 8, 16}, 1), w5 = tests::random_tensor({16, 16, 5, 5}, 2);
  const Tensor w = tests::random_tensor({16, 16, 3, 3}, 2), few = tests::random_tensor({8, 16, 3, 3}, 2);
  EXPECT_EQ(tests::run_kernels("conv_pool_nhwc", {}, {x, w}, 2, {1}).size(), 1u);
  EXPECT_TRUE(tests::run_kernels("conv_pool_nhwc", {}, {x, w5}, 2, {1}).empty());
  EXPECT_TRUE(tests::run_kernels("conv_pool_nhwc", {}, {x, few}, 2, {1}).empty());
  EXPECT_TRUE(
      tests::run_kernels("conv_pool_nhwc", {{"activation", std::string("tanh")}}, {x, w}, 2, {1}).empty());
  EXPECT_TRUE(tests::run_kernels("conv_pool_nhwc", {{"strides", Ints{2, 2}}}, {x, w}, 2, {1}).empty());
}

}  // namespace
}  // namespace trireme::ops
