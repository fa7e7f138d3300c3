// Pooling of planes: every kernel against the reference, for ranks, strides, dilations, padding and
// non-finite values; results do not depend on the team or on the batch.
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

class Draw {
 public:
  explicit Draw(uint32_t seed) : engine_(seed) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }

  Dims input() {
    Dims x{1 + below(3), 1 + below(4)};
    const int64_t axes = 1 + below(3);
    for (int64_t a = 0; a < axes; ++a) x.push_back(1 + below(a + 1 == axes ? 70 : 9));
    return x;
  }

  /// Windows that fit into x and whose padding is smaller than the kernel.
  ir::Attrs window(const Dims& x) {
    Ints kernel, strides, dilations, begin, end;
    for (size_t d = 2; d < x.size(); ++d) {
      kernel.push_back(1 + below(5));
      strides.push_back(1 + below(4));
      dilations.push_back(below(3) == 0 ? 2 : 1);
      begin.push_back(below(kernel.back()));
      end.push_back(below(kernel.back()));
      while (x[d] + begin.back() + end.back() < (kernel.back() - 1) * dilations.back() + 1) --kernel.back();
      begin.back() = std::min(begin.back(), kernel.back() - 1);
      end.back() = std::min(end.back(), kernel.back() - 1);
      while (x[d] + begin.back() + end.back() < (kernel.back() - 1) * dilations.back() + 1)
        dilations.back() = 1, kernel.back() = 1, begin.back() = end.back() = 0;
    }
    begin.insert(begin.end(), end.begin(), end.end());
    return {{"kernel_shape", kernel},
            {"strides", strides},
            {"dilations", dilations},
            {"pads", begin},
            {"ceil_mode", below(2)}};
  }

  Tensor values(const Dims& x) {
    Tensor t = tests::random_tensor(x, engine_());
    for (float& v : t.mutable_data<float>()) {
      const int64_t kind = below(400);
      if (kind == 0) v = std::numeric_limits<float>::quiet_NaN();
      if (kind == 1) v = std::numeric_limits<float>::infinity();
      if (kind == 2) v = -std::numeric_limits<float>::infinity();
    }
    return t;
  }

 private:
  std::mt19937 engine_;
};

/// Expects values equal within `relative` of the largest magnitude that sums reach; NaN and infinities must
/// be at the same places.
void expect_like(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  const std::vector<double> a = got.to_doubles(), b = want.to_doubles();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i]))
      ASSERT_NEAR(a[i], b[i], tolerance) << what << " at " << i;
    else
      ASSERT_TRUE(std::isnan(b[i]) ? std::isnan(a[i]) : a[i] == b[i]) << what << " at " << i << " " << a[i];
  }
}

TEST(PoolLines, WindowsAreThoseOfTheReference) {
  Draw draw(1);
  for (int trial = 0; trial < 600; ++trial) {
    const char* names[] = {"max_pool", "average_pool", "lp_pool"};
    const std::string op = names[draw.below(3)];
    const Dims x = draw.input();
    ir::Attrs attrs = draw.window(x);
    if (op == "average_pool") attrs.set("count_include_pad", draw.below(2));
    if (op == "lp_pool") attrs.set("p", 1 + draw.below(2));
    const Tensor in = draw.values(x);
    const auto results = tests::run_kernels(op, attrs, {in});
    ASSERT_EQ(results.size(), 2u) << op;
    EXPECT_EQ(results[0].kernel, "lines");
    const double tolerance = op == "max_pool" ? 0 : 2e-5;
    expect_like(results[0].out[0], results[1].out[0], tolerance,
                op + tensor::to_string(x) + attrs.to_string());
    const auto alone = tests::run_kernels(op, attrs, {in}, 1, {}, 1);
    ASSERT_EQ(0, std::memcmp(alone[0].out[0].raw(), results[0].out[0].raw(),
                             static_cast<size_t>(alone[0].out[0].bytes())));
  }
}

TEST(PoolLines, MaximaWithTheirPlaces) {
  Draw draw(5);
  for (int trial = 0; trial < 400; ++trial) {
    const Dims x = draw.input();
    ir::Attrs attrs = draw.window(x);
    attrs.set("storage_order", draw.below(2));
    Tensor in = draw.values(x);
    if (trial % 3 == 0) {  // equal values: the first place wins
      for (float& v : in.mutable_data<float>()) v = std::round(v);
    }
    for (const int threads : {1, 3}) {
      const auto results = tests::run_kernels("max_pool", attrs, {in}, 2, {}, threads);
      ASSERT_EQ(results.size(), 2u);
      EXPECT_EQ(results[0].kernel, "placed_lines");
      expect_like(results[0].out[0], results[1].out[0], 0, tensor::to_string(x) + attrs.to_string());
      EXPECT_EQ(results[0].out[1].to_ints(), results[1].out[1].to_ints())
          << tensor::to_string(x) << attrs.to_string();
    }
  }
}

/// Rows ordered by columns modulo the stride would take memory for each column that a stride skips.
TEST(PoolLines, VeryLargeStridesAreLeftToTheReference) {
  const Tensor x = tests::random_tensor({1, 1, 8, 1}, 4);
  const ir::Attrs attrs{{"kernel_shape", Ints{3, 1}}, {"strides", Ints{1, 1 << 20}}};
  const auto results = tests::run_kernels("max_pool", attrs, {x}, 2);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].kernel, "reference");
}

TEST(PoolLines, MaximaOfBytesAreExact) {
  Draw draw(2);
  for (int trial = 0; trial < 100; ++trial) {
    const Dims x = draw.input();
    const ir::Attrs attrs = draw.window(x);
    for (const Tensor& in :
         {tests::random_bytes<uint8_t>(x, 7, 0, 255), tests::random_bytes<int8_t>(x, 8, -128, 127)}) {
      const auto results = tests::run_kernels("max_pool", attrs, {in});
      ASSERT_EQ(results.size(), 2u);
      EXPECT_TRUE(results[0].out[0].same_as(results[1].out[0])) << tensor::to_string(x) << attrs.to_string();
    }
  }
}

/// Negative padding leaves out values: the windows are those of the rest.
TEST(PoolLines, NegativePadding) {
  const Tensor x = tests::random_tensor({1, 2, 12}, 9);
  Tensor cut = Tensor::empty(tensor::DType::f32, {1, 2, 8});
  for (size_t i = 0; i < 16; ++i) cut.mutable_data<float>()[i] = x.data<float>()[i / 8 * 12 + 3 + i % 8];
  for (const char* op : {"max_pool", "average_pool", "lp_pool"}) {
    const ir::Attrs whole{{"kernel_shape", Ints{2}}};
    ir::Attrs narrow = whole;
    narrow.set("pads", Ints{-3, -1});
    const Tensor want = tests::run_kernels(op, whole, {cut}).back().out[0];
    for (const auto& r : tests::run_kernels(op, narrow, {x}))
      tests::expect_close(r.out[0], want.to_doubles(), 0, 0, op + (" by " + r.kernel));
  }
}

/// PyTorch gives one window: with ceil_mode the first one, too, may reach beyond the image.
TEST(PoolLines, RoundingUpTakesAWindowLargerThanTheImage) {
  const Tensor x = Tensor::from<float>({1, 1, 2, 2}, {1, 2, 3, 6});
  ir::Attrs attrs{{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"ceil_mode", int64_t{1}}};
  for (const auto& r : tests::run_kernels("max_pool", attrs, {x})) {
    EXPECT_EQ(r.out[0].dims(), (Dims{1, 1, 1, 1}));
    EXPECT_EQ(r.out[0].data<float>()[0], 6) << r.kernel;
  }
  for (const auto& r : tests::run_kernels("average_pool", attrs, {x}))
    EXPECT_EQ(r.out[0].data<float>()[0], 3) << r.kernel;
  for (const auto& r : tests::run_kernels("max_pool_nhwc", attrs, {x.reshaped({1, 2, 2, 1})}))
    EXPECT_EQ(r.out[0].data<float>()[0], 6) << r.kernel;
  attrs.set("kernel_shape", Ints{4, 4});
  EXPECT_THROW(tests::run_kernels("max_pool", attrs, {x}), base::Error);
}

TEST(PoolLines, WholePlanesAreThoseOfTheReference) {
  Draw draw(3);
  for (int trial = 0; trial < 100; ++trial) {
    const Dims x = draw.input();
    const Tensor in = trial % 3 == 0 ? draw.values(x) : tests::random_tensor(x, static_cast<uint32_t>(trial));
    for (const char* op : {"global_max_pool", "global_average_pool", "global_lp_pool"}) {
      const auto results = tests::run_kernels(op, {{"p", 1 + draw.below(2)}}, {in});
      ASSERT_EQ(results.size(), 2u);
      expect_like(results[0].out[0], results[1].out[0], op[7] == 'm' ? 0 : 2e-2, op + tensor::to_string(x));
    }
  }
}

}  // namespace
}  // namespace trireme::ops
