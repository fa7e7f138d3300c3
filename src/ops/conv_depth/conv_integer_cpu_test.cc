// conv_integer's packed and planar kernels against the reference kernel, bit for bit, over random windows,
// groups, types and zero points.
#include <map>

#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

/// A random convolution whose result is not empty.
struct Trial {
  ir::Attrs attrs;
  std::vector<Tensor> operands;
  std::string text;
};

class Trials {
 public:
  explicit Trials(uint32_t seed) : engine_(seed) {}

  int64_t draw(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }

  Tensor bytes(bool is_signed, const Dims& dims) {
    const auto seed = static_cast<uint32_t>(draw(0, 1 << 30));
    return is_signed ? tests::random_bytes<int8_t>(dims, seed, -128, 127)
                     : tests::random_bytes<uint8_t>(dims, seed, 0, 255);
  }

  /// `is_small`: groups of few channels and filters; else of up to 40 of each.
  Trial next(size_t axes, bool is_small) {
    const int64_t groups = is_small ? draw(2, 9) : draw(1, 3), most = is_small ? 3 : 40;
    const int64_t each = draw(1, most), filters = draw(1, most);
    Dims x{draw(1, 3), groups * each}, w{groups * filters, each};
    Ints strides, dilations, begins, ends;
    for (size_t i = 0; i < axes; ++i) {
      w.push_back(draw(1, axes == 3 ? 3 : 4));
      strides.push_back(draw(1, 3));
      dilations.push_back(draw(1, 3));
      begins.push_back(draw(0, 3));
      ends.push_back(draw(0, 3));
      const int64_t reach = (w.back() - 1) * dilations.back() + 1;
      x.push_back(std::max<int64_t>(reach - begins.back() - ends.back(), 1) + draw(0, axes == 3 ? 4 : 23));
    }
    begins.insert(begins.end(), ends.begin(), ends.end());
    Trial t{.attrs = {{"group", groups}, {"strides", strides}, {"dilations", dilations}, {"pads", begins}}};
    const bool x_signed = draw(0, 1) == 1, w_signed = draw(0, 1) == 1;
    t.operands = {bytes(x_signed, x), bytes(w_signed, w)};
    const int64_t zeros = draw(0, 4);  // none, of x, and of the weights: one, one in a vector, one per filter
    if (zeros > 0) t.operands.push_back(bytes(x_signed, draw(0, 1) == 1 ? Dims{} : Dims{1}));
    if (zeros > 1) t.operands.push_back(bytes(w_signed, zeros == 2 ? Dims{} : Dims{zeros == 3 ? 1 : w[0]}));
    t.text = base::concat("x ", tensor::to_string(x), " w ", tensor::to_string(w), " groups ", groups,
                          " signed ", x_signed, w_signed, " zero points ", zeros);
    return t;
  }

 private:
  std::mt19937 engine_;
};

/// Runs `count` trials and counts the nodes that each kernel took. Zero points are constants in half of them,
/// and known in each run only in the others.
std::map<std::string, int> expect_reference(size_t axes, bool is_small, int count) {
  std::map<std::string, int> taken;
  Trials trials(static_cast<uint32_t>(axes * 2 + is_small));
  for (int i = 0; i < count; ++i) {
    const Trial t = trials.next(axes, is_small);
    std::vector<size_t> fed{0};
    for (size_t zero = 2; i % 2 == 0 && zero < t.operands.size(); ++zero) fed.push_back(zero);
    const auto results = tests::run_kernels("conv_integer", t.attrs, t.operands, 1, fed, 1 + i % 3);
    EXPECT_EQ(results.back().kernel, "reference");
    const std::vector<int64_t> want = results.back().out[0].to_ints();
    for (const auto& r : results) {
      ++taken[r.kernel];
      EXPECT_EQ(r.out[0].to_ints(), want) << r.kernel << " " << t.text;
    }
  }
  return taken;
}

TEST(ConvInteger, PackedSumsAreThoseOfTheReference) {
  for (size_t axes : {1, 2, 3}) EXPECT_EQ(expect_reference(axes, false, 60)["packed_8_bit"], 60) << axes;
}

TEST(ConvInteger, SmallGroupsReadPlanes) {
  for (size_t axes : {1, 2}) EXPECT_GT(expect_reference(axes, true, 60)["planes_8_bit"], 50) << axes;
  EXPECT_EQ(expect_reference(3, true, 30)["planes_8_bit"], 0);
}

/// The largest sums that a kernel in floats takes are exact; larger groups are left to others.
TEST(ConvInteger, ExtremeBytesAreExact) {
  for (int64_t length : {128, 129}) {
    const std::vector<Tensor> operands{tests::random_bytes<uint8_t>({1, 4, length}, 1, 255, 255),
                                       tests::random_bytes<uint8_t>({2, 2, length}, 1, 0, 0),
                                       Tensor::scalar<uint8_t>(0), Tensor::scalar<uint8_t>(255)};
    const auto results = tests::run_kernels("conv_integer", {{"group", int64_t{2}}}, operands);
    EXPECT_EQ(results[0].kernel, length == 128 ? "planes_8_bit" : "packed_8_bit");
    for (const auto& r : results) EXPECT_EQ(r.out[0].to_ints(), Ints(2, -255 * 255 * 2 * length)) << r.kernel;
  }
}

/// Kernels count padding in 32 bits.
TEST(ConvInteger, PaddingThatNoKernelCountsIsRefused) {
  const ir::Attrs attrs{{"auto_pad", std::string("SAME_UPPER")}, {"dilations", Ints{(1 << 24) - 1}}};
  const std::vector<Tensor> operands{tests::random_bytes<uint8_t>({1, 1, 4}, 1, 0, 255),
                                     tests::random_bytes<uint8_t>({1, 1, 300}, 2, 0, 255)};
  EXPECT_THROW(tests::run_kernels("conv_integer", attrs, operands), base::Error);
}

/// Images that fill several blocks, and bands of lines.
TEST(ConvInteger, LargeImagesAreCutExactly) {
  Trials trials(7);
  for (int64_t groups : {1, 40}) {
    const ir::Attrs attrs{{"group", groups}, {"pads", Ints{1, 1, 1, 1}}};
    const std::vector<Tensor> operands{trials.bytes(false, {9, 40, 61, 67}),
                                       trials.bytes(true, {40, 40 / groups, 3, 3}),
                                       Tensor::scalar<uint8_t>(77), trials.bytes(true, {40})};
    const auto results = tests::run_kernels("conv_integer", attrs, operands);
    ASSERT_EQ(results.size(), groups == 1 ? 2u : 3u);
    for (const auto& r : results) EXPECT_EQ(r.out[0].to_ints(), results.back().out[0].to_ints()) << r.kernel;
  }
}

/// Weights that are computed have no packed form.
TEST(ConvInteger, ComputedWeightsRun) {
  Trials trials(8);
  const std::vector<Tensor> operands{trials.bytes(true, {1, 8, 9}), trials.bytes(false, {5, 8, 3})};
  const auto results = tests::run_kernels("conv_integer", {}, operands, 1, {0, 1});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].kernel, "reference");
}

}  // namespace
}  // namespace trireme::ops
