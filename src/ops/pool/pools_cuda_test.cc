// Pooling on the device against the CPU's results: windows of every kind, both layouts, gradients.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using Ints = std::vector<int64_t>;

/// Values with many ties, because the first maximum of a window counts.
Tensor coarse(const tensor::Dims& dims, uint32_t seed) {
  return as_type(tests::random_bytes<int8_t>(dims, seed, -3, 3), DType::f32);
}

void expect(const std::string& op, const std::vector<Tensor>& in, const ir::Attrs& attrs,
            size_t out_count = 1) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(base::concat(op, " ", tensor::to_string(in[0].dims()), " ", name_of(dtype)));
    const bool last = op.find("nhwc") != std::string::npos;
    if (last && dtype == DType::bf16) continue;  // the CPU's kernels take only f32
    std::vector<Tensor> typed;
    for (const Tensor& t : in) typed.push_back(as_type(t, dtype));
    const double rounding = dtype == DType::f32 ? 1e-5 : 1e-2;
    tests::expect_as_cpu({.op = op,
                          .in = typed,
                          .attrs = attrs,
                          .out_count = out_count,
                          .relative = rounding,
                          .absolute = rounding});
  }
}

const std::vector<ir::Attrs> kWindows{
    {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}},
    {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}, {"pads", Ints{1, 1, 1, 1}}},
    {{"kernel_shape", Ints{3, 2}},
     {"strides", Ints{1, 2}},
     {"dilations", Ints{2, 1}},
     {"pads", Ints{2, 0, 1, 1}}},
    {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 3}}, {"ceil_mode", int64_t{1}}}};

TEST(PoolsCuda, WindowsOfImages) {
  for (const ir::Attrs& window : kWindows) {
    for (const tensor::Dims& x : {tensor::Dims{2, 3, 9, 8}, {1, 8, 7, 10}}) {
      ir::Attrs counted = window;
      counted.set("count_include_pad", int64_t{1});
      const Tensor values = coarse(x, 1);
      expect("max_pool", {values}, window);
      expect("average_pool", {values}, window);
      expect("average_pool", {values}, counted);
      expect("lp_pool", {values}, window);
      ir::Attrs cubes = window;
      cubes.set("p", int64_t{3});
      expect("lp_pool", {values}, cubes);
      expect("max_pool_nhwc", {values.reshaped({x[0], x[2], x[3], x[1]})}, window);
      expect("average_pool_nhwc", {values.reshaped({x[0], x[2], x[3], x[1]})}, counted);
    }
  }
}

TEST(PoolsCuda, IndicesAndOtherRanks) {
  for (const int64_t column_major : {0, 1}) {
    ir::Attrs attrs = kWindows[1];
    attrs.set("storage_order", column_major);
    expect("max_pool", {coarse({2, 2, 7, 6}, 2)}, attrs, 2);
  }
  expect("max_pool", {coarse({2, 3, 20}, 3)}, {{"kernel_shape", Ints{3}}, {"strides", Ints{2}}});
  expect("average_pool", {coarse({1, 2, 5, 6, 4}, 4)}, {{"kernel_shape", Ints{2, 3, 2}}});
}

TEST(PoolsCuda, GradientsInTheOrderOfTheWindows) {
  base::ThreadPool pool(1);
  for (const ir::Attrs& window : kWindows) {
    for (const bool last : {false, true}) {
      for (const int64_t channels : {3, 8}) {
        const tensor::Dims dims = last ? tensor::Dims{2, 9, 8, channels} : tensor::Dims{2, channels, 9, 8};
        const Tensor x = coarse(dims, 5);
        const std::string suffix = last ? "_nhwc" : "";
        const Tensor y = evaluate(table().need("max_pool" + suffix), window, {x}, 1, pool)[0];
        const Tensor dy = tests::random_tensor(y.dims(), 6);
        expect("max_pool" + suffix + "_grad", {x, dy}, window);
        ir::Attrs average = window;
        average.set("in_shape", Ints{9, 8});
        expect("average_pool" + suffix + "_grad", {dy}, average);
      }
    }
  }
  ir::Attrs rectified = kWindows[1];
  rectified.set("rectified", int64_t{1});
  const Tensor x = coarse({1, 6, 6, 4}, 7);
  expect("max_pool_nhwc_grad", {x, tests::random_tensor({1, 3, 3, 4}, 8)}, rectified);
}

TEST(PoolsCuda, WholePlanes) {
  for (const char* op : {"global_average_pool", "global_max_pool", "global_average_pool_nhwc"}) {
    expect(op, {tests::random_tensor({3, 5, 7, 4}, 9)}, {});
    expect(op, {tests::random_tensor({1, 40, 2, 64}, 10)}, {});
  }
}

}  // namespace
}  // namespace trireme::ops
