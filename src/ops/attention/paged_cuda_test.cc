// Kernels of paged attention for GPUs against the CPU's.
#include "backend/cuda/attention/paged_view.h"
#include "tests/paged_cases.h"
#include "tests/run_on_device.h"

namespace trireme::ops {
namespace {

using namespace paged_cases;

TEST(PagedCuda, AttendsAsOnCpu) {
  std::vector<Case> cases{
      {2, 2, 16, 16, {1}, {1}},
      {4, 2, 64, 16, {5, 300, 1}, {1, 1, 1}},
      {4, 4, 8, 4, {9, 3}, {9, 3}},
      {8, 2, 24, 7, {300, 17, 40}, {1, 17, 40}, DType::f32, DType::f32, 3},
      {6, 1, 128, 16, {260, 255}, {2, 5}, DType::bf16},
      {2, 1, 80, 32, {70, 256}, {70, 1}, DType::f16, DType::f16},
      {3, 3, 5, 1, {4, 2}, {2, 1}, DType::bf16, DType::bf16, 1},
      {1, 1, 256, 256, {257}, {257}},
      {2, 2, 200, 16, {40, 3}, {4, 3}, DType::bf16, DType::bf16},
      {2, 1, 32, 16, {0, 20, 0}, {0, 4, 0}, DType::f32, DType::f32, 2},
      {8, 2, 128, 16, {67, 1, 530}, {33, 1, 3}, DType::bf16, DType::bf16, 5},
      {4, 1, 64, 16, {100}, {100}, DType::f16},
      {4, 2, 16, 16, {300, 700, 5}, {1, 3, 5}, DType::f32, DType::f32, 0, 0},
      {4, 2, 64, 16, {300, 70}, {100, 3}, DType::bf16, DType::bf16, 1, 41},
      {2, 2, 24, 7, {300, 520}, {150, 2}, DType::f32, DType::f32, 0, 256, 0.5},
      {4, 1, 64, 16, {100}, {100}, DType::f16, DType::f16, 0, -1, 1.5},
      // 16 bits, few new tokens: widths between those of the kernels, several chunks of query vectors, a cap,
      // windows that leave whole parts and parts of a warp's tokens unseen, parts of more than one turn.
      {8, 2, 96, 16, {400, 70}, {2, 4}, DType::bf16, DType::bf16},
      {16, 1, 128, 16, {700, 65}, {4, 1}, DType::bf16, DType::bf16, 2},
      {4, 4, 64, 7, {129, 1, 64}, {1, 1, 4}, DType::f16, DType::f16, 0, -1, 1.5},
      {4, 1, 40, 16, {4300, 90}, {2, 3}, DType::bf16, DType::bf16, 0, 100},
      {2, 1, 32, 16, {8300, 3}, {1, 1}, DType::f16, DType::f16},
      // Codes: few and many new tokens, widths that are no multiples of 4, a window, a cap.
      {4, 2, 64, 16, {5, 300, 1}, {1, 1, 1}, DType::i8},
      {8, 2, 128, 16, {260, 90, 700}, {2, 90, 1}, DType::i8, DType::bf16, 3},
      {3, 3, 5, 1, {40, 2}, {2, 1}, DType::i8, DType::f32, 1},
      {4, 4, 96, 7, {300, 20}, {100, 4}, DType::f8e4m3fn, DType::f16, 0, 41},
      {2, 1, 200, 16, {70, 256}, {70, 1}, DType::f8e4m3fn, DType::f32, 0, -1, 1.5},
  };
  // More sequences than a warp looks at in one turn, those with most tokens last.
  Case many{2, 1, 16, 4, std::vector<int>(40, 5), std::vector<int>(40, 1), DType::bf16, DType::bf16};
  many.lengths[37] = 140, many.lengths[39] = 80, many.fresh[38] = 4;
  cases.push_back(many);
  for (const Case& c : cases) {
    std::vector<int> seeds;
    for (size_t i = 0; i < c.lengths.size(); ++i) seeds.push_back(static_cast<int>(i));
    const double tolerance = c.type == DType::f32 ? 2e-5 : 1e-2;
    tests::expect_as_cpu({.op = "paged_attention",
                          .in = make(c, seeds).list(),
                          .attrs = c.attrs(),
                          .relative = tolerance,
                          .absolute = tolerance});
  }
}

TEST(PagedCuda, AppendsAsOnCpu) {
  for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
      tests::expect_as_cpu({.op = "kv_append",
                            .in = {as(tests::random_tensor({1, 4, 10}, 1), from),
                                   as(tests::random_tensor({1, 4, 10}, 2), from),
                                   as(tests::random_tensor({4, 2, 3, 5}, 3), to),
                                   as(tests::random_tensor({4, 2, 3, 5}, 4), to), ints({4}, {7, -1, 2, 11})},
                            .out_count = 2,
                            .relative = 0,
                            .absolute = 0});
    }
    for (const DType to : {DType::i8, DType::f8e4m3fn}) {
      tests::expect_as_cpu(
          {.op = "kv_append",
           .in = {as(tests::random_tensor({1, 4, 70}, 1), from),
                  as(tests::random_tensor({1, 4, 70}, 2), from),
                  coded(tests::random_tensor({4, 2, 3, 35}, 3), to),
                  coded(tests::random_tensor({4, 2, 3, 35}, 4), to), ints({4}, {7, -1, 2, 11})},
           .out_count = 2,
           .relative = 0,
           .absolute = 0});
    }
  }
}

TEST(PagedCuda, DecodesAsItsPartsOnCpu) {
  struct Trial {
    Case c;
    int64_t rotated = 0, interleaved = 0;
    DType angles = DType::f32;
  };
  const std::vector<Trial> trials{
      {{4, 2, 16, 16, {5, 300, 1}, {1, 1, 1}}, 16},
      {{4, 2, 16, 16, {5, 300, 1}, {1, 1, 1}}, 0},
      {{4, 4, 8, 4, {9, 3}, {9, 3}}, 4, 1},
      {{6, 1, 128, 16, {260, 255}, {2, 4}, DType::bf16, DType::bf16, 2}, 128},
      {{6, 1, 64, 16, {260, 4200}, {1, 1}, DType::bf16, DType::bf16}, 64, 0, DType::bf16},
      {{2, 1, 80, 32, {70, 256}, {70, 1}, DType::f16, DType::f16, 1}, 32, 1},
      {{2, 2, 24, 7, {300, 520}, {150, 2}, DType::bf16, DType::f32, 0, 256, 0.5}, 24},
  };
  for (const Trial& t : trials) {
    const double tolerance = t.c.type == DType::f32 && t.c.pages == DType::f32 ? 2e-5 : 1e-2;
    ir::Attrs attrs = t.c.attrs();
    attrs.set("interleaved", t.interleaved);
    tests::expect_as_cpu({.op = "decode_attention",
                          .in = decode_operands(t.c, t.rotated, t.angles),
                          .attrs = attrs,
                          .out_count = 3,
                          .relative = tolerance,
                          .absolute = tolerance,
                          .kernels = 1});
  }
}

/// A row's bits depend on its own sequence only: alone, in a batch, and in a page table with more room.
TEST(PagedCuda, BatchMatesDoNotChangeABit) {
  const auto device = tests::device_or_skip();
  if (device == nullptr) return;
  const auto run = [&](const Case& c, const std::vector<int>& seeds) {
    const std::vector<Tensor> in = make(c, seeds).list();
    tests::DeviceTrial trial{.op = "paged_attention", .in = in, .attrs = c.attrs()};
    return tests::run_on(*device, trial)[0];
  };
  const Case alone{4, 2, 64, 16, {700}, {2}, DType::bf16, DType::bf16};
  const Case beside{4, 2, 64, 16, {40, 700, 3000, 9}, {1, 2, 4, 9}, DType::bf16, DType::bf16, 3};
  const Tensor one = run(alone, {7}), many = run(beside, {1, 7, 2, 3});
  const auto row_bytes = static_cast<size_t>(one.bytes() / 2);
  EXPECT_EQ(std::memcmp(many.raw() + row_bytes, one.raw(), 2 * row_bytes), 0);
}

TEST(PagedCuda, PartsOfASequenceAreFewAndFollowFromItsLength) {
  for (int64_t length = 1; length < 300000; length = length * 9 / 8 + 1) {
    const int64_t parts = cuda::parts_of(length), part = cuda::part_tokens(length);
    EXPECT_LE(parts, cuda::kMostParts) << length;
    EXPECT_LT((parts - 1) * part, length);
    EXPECT_GE(parts * part, length);
    EXPECT_TRUE(length > 64 * 64 || part == 64) << length;
  }
}

}  // namespace
}  // namespace trireme::ops
