// top_k on the device against the CPU's results: ties, NaN, all axes.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

void expect(const Tensor& x, int64_t k, int64_t axis) {
  for (const int64_t largest : {0, 1}) {
    SCOPED_TRACE(base::concat(tensor::to_string(x.dims()), " ", name_of(x.dtype()), " axis ", axis));
    tests::expect_as_cpu({.op = "top_k",
                          .in = {x, testing::ints({k})},
                          .attrs = {{"axis", axis}, {"largest", largest}},
                          .out_count = 2,
                          .relative = 0,
                          .absolute = 0});
  }
}

TEST(SortCuda, TheFirstOfAnyAxis) {
  base::ThreadPool pool(1);
  const Tensor many = tests::random_tensor({3, 1000}, 1);
  expect(many, 1, 1);
  expect(many, 50, -1);
  expect(many, 3, 0);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32}) {
    const Tensor coarse =
        evaluate(table().need("cast_like"), {},
                 {tests::random_bytes<int8_t>({4, 70, 3}, 2, -5, 5), Tensor::empty(dtype, {1})}, 1, pool)[0];
    expect(coarse, 70, 1);
    expect(coarse, 2, 2);
  }
}

TEST(SortCuda, ManyAreSorted) {
  base::ThreadPool pool(1);
  const Tensor many = tests::random_tensor({3, 2000}, 1);
  expect(many, 1500, 1);
  expect(many, 129, -1);
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32}) {
    const Tensor coarse =
        evaluate(table().need("cast_like"), {},
                 {tests::random_bytes<int8_t>({2, 300, 3}, 2, -5, 5), Tensor::empty(dtype, {1})}, 1, pool)[0];
    expect(coarse, 300, 1);
  }
}

TEST(SortCuda, NanIsTheLargestAndZerosAreEqual) {
  for (const int64_t n : {40, 200}) {
    Tensor x = tests::random_tensor({n}, 3);
    x.mutable_data<float>()[7] = x.mutable_data<float>()[30] = std::numeric_limits<float>::quiet_NaN();
    x.mutable_data<float>()[3] = -0.0f;
    x.mutable_data<float>()[2] = 0.0f;
    x.mutable_data<float>()[5] = std::numeric_limits<float>::infinity();
    expect(x, n, 0);
  }
}

}  // namespace
}  // namespace trireme::ops
