// Ranges, triangles, one-hot codes, reversed sequences and sums over padding: device against CPU.
#include "tests/half_tensors.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::rounded_to;

constexpr DType kFloats[] = {DType::f32, DType::f16, DType::bf16};

Tensor longs(std::vector<int64_t> v) {
  const auto n = static_cast<int64_t>(v.size());
  return Tensor::from<int64_t>({n}, v);
}

TEST(FillsCuda, RangesAndDiagonals) {
  tests::expect_as_cpu(
      {.op = "range",
       .in = {Tensor::scalar<int64_t>(-3), Tensor::scalar<int64_t>(2000), Tensor::scalar<int64_t>(7)}});
  tests::expect_as_cpu(
      {.op = "range", .in = {Tensor::scalar(1.0f), Tensor::scalar(-9.0f), Tensor::scalar(-0.3f)}});
  tests::expect_as_cpu(
      {.op = "range", .in = {Tensor::scalar(1.0f), Tensor::scalar(1.0f), Tensor::scalar(1.0f)}});
  for (const int64_t k : {-7, -1, 0, 2, 9}) {
    for (const DType type : kFloats) {
      tests::expect_as_cpu(
          {.op = "eye_like", .in = {rounded_to(type, tests::random_tensor({5, 7}, 1))}, .attrs = {{"k", k}}});
    }
  }
}

TEST(FillsCuda, Triangles) {
  for (const Dims& dims : {Dims{5, 7}, Dims{3, 4, 4}, Dims{1, 1}, Dims{2, 0, 3}}) {
    for (const int64_t upper : {0, 1}) {
      for (const DType type : kFloats) {
        const Tensor x = rounded_to(type, tests::random_tensor(dims, 1));
        tests::expect_as_cpu({.op = "trilu", .in = {x}, .attrs = {{"upper", upper}}});
        for (const int64_t k : {int64_t{-2}, int64_t{1}, int64_t{99}, INT64_MIN, INT64_MAX})
          tests::expect_as_cpu(
              {.op = "trilu", .in = {x, Tensor::scalar<int64_t>(k)}, .attrs = {{"upper", upper}}});
      }
    }
  }
}

TEST(FillsCuda, OneHot) {
  const Tensor depth = Tensor::scalar<int64_t>(5);
  for (const int64_t axis : {-1, 0, 1}) {
    tests::expect_as_cpu({.op = "one_hot",
                          .in = {Tensor::from<int64_t>({2, 3}, {0, 4, -1, 7, -6, 2}), depth,
                                 Tensor::from<float>({2}, {0.5f, 2})},
                          .attrs = {{"axis", axis}}});
    tests::expect_as_cpu(
        {.op = "one_hot",
         .in = {Tensor::from<float>({2, 2}, {0, 4, -1, 2.7f}), depth, Tensor::from<int64_t>({2}, {3, 9})},
         .attrs = {{"axis", axis}}});
  }
}

TEST(FillsCuda, ReversedAndCropped) {
  for (const int64_t time_axis : {0, 1}) {
    for (const DType type : kFloats) {
      tests::expect_as_cpu({.op = "reverse_sequence",
                            .in = {rounded_to(type, tests::random_tensor({4, 4, 3}, 1)), longs({1, 4, 0, 3})},
                            .attrs = {{"time_axis", time_axis}, {"batch_axis", 1 - time_axis}}});
    }
  }
  for (const DType type : kFloats) {
    tests::expect_as_cpu({.op = "center_crop_pad",
                          .in = {rounded_to(type, tests::random_tensor({7, 4, 5}, 1)), longs({4, 7, 5})}});
  }
}

TEST(FillsCuda, SumsOverPadding) {
  // Extents [3, 4, 5] padded by (2, 1), (0, 0), (3, 4), and an axis of one element.
  for (const char* mode : {"reflect", "edge", "wrap"}) {
    for (const DType type : kFloats) {
      const double off = tests::half_tolerance(type);
      tests::expect_as_cpu(
          {.op = "pad_grad",
           .in = {rounded_to(type, tests::random_tensor({6, 4, 12}, 1)), longs({2, 0, 3, 1, 0, 4})},
           .attrs = {{"mode", mode}, {"shape", std::vector<int64_t>{3, 4, 5}}},
           .relative = off,
           .absolute = off});
    }
    tests::expect_as_cpu({.op = "pad_grad",
                          .in = {tests::random_tensor({4, 3}, 1), longs({1, 0, 2, 0})},
                          .attrs = {{"mode", mode}, {"shape", std::vector<int64_t>{1, 3}}}});
  }
}

}  // namespace
}  // namespace trireme::ops
