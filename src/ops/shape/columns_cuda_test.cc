// im2col and col2im on the device against the CPU's results.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Ints = std::vector<int64_t>;

Tensor extents(const Ints& v) {
  return Tensor::from<int64_t>({static_cast<int64_t>(v.size())}, std::span<const int64_t>(v));
}

TEST(ColumnsCuda, ThereAndBack) {
  const std::vector<ir::Attrs> windows{
      {},
      {{"strides", Ints{2, 1}}, {"pads", Ints{1, 2, 0, 1}}},
      {{"dilations", Ints{1, 2}}, {"pads", Ints{1, 1, 1, 1}}, {"strides", Ints{1, 3}}}};
  for (const ir::Attrs& attrs : windows) {
    const Tensor x = tests::random_tensor({2, 3, 7, 6}, 1), image = extents({7, 6}), block = extents({3, 2});
    base::ThreadPool pool(1);
    for (const DType type : {DType::f32, DType::bf16, DType::f64, DType::i8}) {
      const Tensor typed = as_type(x, type);
      tests::expect_as_cpu({.op = "im2col", .in = {typed, image, block}, .attrs = attrs});
      if (type == DType::i8) continue;
      const Tensor columns = evaluate(table().need("im2col"), attrs, {typed, image, block}, 1, pool)[0];
      const double within = type == DType::bf16 ? 3e-2 : 1e-5;
      tests::expect_as_cpu({.op = "col2im",
                            .in = {columns, image, block},
                            .attrs = attrs,
                            .relative = within,
                            .absolute = within});
    }
  }
  tests::expect_as_cpu(
      {.op = "im2col",
       .in = {tests::random_tensor({1, 2, 3, 4, 5}, 2), extents({3, 4, 5}), extents({2, 1, 3})}});
}

}  // namespace
}  // namespace trireme::ops
