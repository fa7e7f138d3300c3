// Ops that move elements, on the device against the CPU's results: every element size, contiguous dimensions
// anywhere.
#include "ops/test_eval.h"
#include "tests/run_kernels.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;
using testing::as_type;
using testing::ints;

/// Expects the same bits.
void expect(const std::string& op, std::vector<Tensor> in, ir::Attrs attrs = {}, size_t out_count = 1) {
  SCOPED_TRACE(base::concat(op, " ", tensor::to_string(in[0].dims()), " ", name_of(in[0].dtype())));
  tests::expect_as_cpu({.op = op,
                        .in = std::move(in),
                        .attrs = std::move(attrs),
                        .out_count = out_count,
                        .relative = 0,
                        .absolute = 0});
}

TEST(CopiesCuda, TransposesInEveryOrderAndSize) {
  const std::vector<std::pair<tensor::Dims, std::vector<int64_t>>> cases{{{}, {}},
                                                                         {{0, 3}, {1, 0}},
                                                                         {{33, 70}, {1, 0}},
                                                                         {{64, 48}, {1, 0}},
                                                                         {{2, 9, 40}, {0, 2, 1}},
                                                                         {{2, 40, 3, 8}, {0, 2, 1, 3}},
                                                                         {{3, 16, 5, 7}, {0, 2, 3, 1}},
                                                                         {{2, 5, 7, 16}, {0, 3, 1, 2}},
                                                                         {{9, 2, 10, 3}, {3, 2, 1, 0}},
                                                                         {{4, 3, 2, 3, 4}, {2, 4, 0, 3, 1}}};
  for (const auto& [dims, perm] : cases) {
    for (const DType dtype : {DType::u8, DType::bf16, DType::f32, DType::f64})
      expect("transpose", {as_type(tests::random_tensor(dims, 1, 9), dtype)}, {{"perm", perm}});
  }
}

TEST(CopiesCuda, RepeatsCutsAndJoins) {
  for (const DType dtype : {DType::f16, DType::f32, DType::boolean}) {
    const Tensor x = as_type(tests::random_tensor({2, 1, 6}, 2, 9), dtype);
    const Tensor y = as_type(tests::random_tensor({2, 3, 6}, 3, 9), dtype);
    expect("expand", {x, ints({2, 5, 6})});
    expect("expand", {x, ints({4, 2, 3, 1})});
    expect("tile", {x, ints({2, 3, 2})});
    expect("concat", {x, y}, {{"axis", int64_t{1}}});
    expect("concat", {y, y, y}, {{"axis", int64_t{-1}}});
    expect("split", {y}, {{"axis", int64_t{1}}}, 3);
    expect("split", {y, ints({1, 4, 1})}, {{"axis", int64_t{2}}}, 3);
    expect("slice", {y, ints({1, 0}), ints({3, 5}), ints({1, 2})});
    expect("slice", {y, ints({-1, 5}), ints({-9, 0}), ints({1, 2}), ints({-1, -2})});
    expect("depth_to_space", {as_type(tests::random_tensor({2, 8, 3, 5}, 4), dtype)},
           {{"blocksize", int64_t{2}}});
    expect("space_to_depth", {as_type(tests::random_tensor({1, 3, 4, 6}, 5), dtype)},
           {{"blocksize", int64_t{2}}});
  }
  const Tensor dy = tests::random_tensor({2, 2, 3}, 6);
  expect("slice_grad", {dy, ints({1, 0}), ints({3, 6}), ints({1, 2}), ints({1, 2})},
         {{"shape", std::vector<int64_t>{2, 3, 6}}});
}

TEST(CopiesCuda, PadsInEveryMode) {
  for (const char* mode : {"constant", "edge", "reflect", "wrap"}) {
    for (const DType dtype : {DType::f32, DType::u8}) {
      const Tensor x = as_type(tests::random_tensor({3, 4, 5}, 7, 9), dtype);
      expect("pad", {x, ints({1, 0, 2, 2, -1, 3})}, {{"mode", std::string(mode)}});
      expect("pad", {x, ints({0, 2, 0, 1}), as_type(Tensor::scalar(7.0f), dtype), ints({0, 2})},
             {{"mode", std::string(mode)}});
    }
  }
}

TEST(CopiesCuda, FillsOddNumbersOfBytes) {
  for (const int64_t n : {0, 1, 15, 16, 17, 1000}) {
    expect("constant_of_shape", {ints({n})}, {{"value", as_type(Tensor::scalar(3.5f), DType::bf16)}});
    expect("constant_of_shape", {ints({n})}, {{"value", as_type(Tensor::scalar(3.5f), DType::u8)}});
    expect("constant_of_shape", {ints({n, 3})}, {{"value", as_type(Tensor::scalar(-2.5f), DType::f64)}});
  }
}

}  // namespace
}  // namespace trireme::ops
