// Which strategies are refused for each purpose, and the text forms of a strategy's parts.
#include "passes/strategy.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::passes {
namespace {

constexpr Purpose kPurposes[] = {Purpose::training, Purpose::inference, Purpose::decoding};

/// The error message for a refused strategy; empty if it is accepted.
std::string refusal(const Strategy& strategy, Purpose purpose) {
  try {
    strategy.check(purpose);
    return {};
  } catch (const base::Error& e) {
    return e.what();
  }
}

/// Numbers that form no mesh are refused for every purpose.
TEST(Strategy, RefusesNumbersThatMakeNoMesh) {
  for (const Purpose purpose : kPurposes) {
    EXPECT_EQ(refusal({}, purpose), "");
    for (const Strategy& s : {Strategy{.dp = 0}, Strategy{.tp = 0}, Strategy{.pp = 0}, Strategy{.zero = 4},
                              Strategy{.tp = 4, .kv_ranks = 3}, Strategy{.chunks = 2}})
      EXPECT_NE(refusal(s, purpose), "");
  }
}

/// The purposes that accept a strategy: t(raining), i(nference), d(ecoding).
std::string allowed(const Strategy& strategy) {
  std::string text;
  for (const Purpose purpose : kPurposes) {
    if (refusal(strategy, purpose).empty()) text += "tid"[static_cast<int>(purpose)];
  }
  return text;
}

TEST(Strategy, SaysWhatEachPurposeTakes) {
  EXPECT_EQ(allowed({.tp = 4}), "tid");
  EXPECT_EQ(allowed({.dp = 2}), "t");
  EXPECT_EQ(allowed({.dp = 2, .tp = 2, .pp = 2, .zero = 3}), "t");
  EXPECT_EQ(allowed({.pp = 2}), "tid");
  EXPECT_EQ(allowed({.tp = 2, .sequence = true}), "ti");
  for (const Precision p : {Precision::f32, Precision::bf16, Precision::f16, Precision::fp8})
    EXPECT_EQ(allowed({.tp = 2, .precision = {.compute = p}}), "tid");
  EXPECT_EQ(allowed({.recompute = {.mode = RecomputeMode::full}}), "t");
  EXPECT_EQ(allowed({.recompute = {.activation_bytes = 1}}), "t");
  EXPECT_EQ(allowed({.weights = {.weights = WeightBits::int4}}), "id");
  EXPECT_EQ(allowed({.weights = {.weight_rows = ops::BlockRows::f32}}), "id");
  EXPECT_EQ(
      allowed({.recompute = {.mode = RecomputeMode::selective}, .weights = {.weights = WeightBits::q4_k}}),
      "");
}

TEST(Strategy, TellsWhatIsWrong) {
  EXPECT_NE(refusal({.weights = {.weights = WeightBits::int8}}, Purpose::training).find("8 or 4 bits"),
            std::string::npos);
  EXPECT_NE(refusal({.dp = 3}, Purpose::inference).find("dp=3 is for training"), std::string::npos);
  EXPECT_NE(refusal({.dp = 2}, Purpose::decoding).find("dp=2"), std::string::npos);
}

TEST(Strategy, KeepsItsPartsOverOtherRanks) {
  const Strategy low{.dp = 8,
                     .precision = {.compute = Precision::bf16, .keep = {"softmax"}},
                     .recompute = {.mode = RecomputeMode::full},
                     .weights = {.weights = WeightBits::int8}};
  const Strategy two = low.over({.tp = 2, .rules = {"w:whole"}});
  EXPECT_EQ(two.dp, 1);
  EXPECT_EQ(two.tp, 2);
  EXPECT_EQ(two.rules.size(), 1u);
  EXPECT_EQ(two.precision.compute, Precision::bf16);
  EXPECT_EQ(two.precision.keep.size(), 1u);
  EXPECT_EQ(two.recompute.mode, RecomputeMode::full);
  EXPECT_EQ(two.weights, low.weights);
}

TEST(Strategy, ReadsWhatIsComputedAgain) {
  for (const RecomputeMode mode : {RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full}) {
    const RecomputeOptions read = RecomputeOptions::parse(to_string(mode), "key");
    EXPECT_EQ(read.mode, mode);
    EXPECT_EQ(read.is_on(), mode != RecomputeMode::none);
  }
  EXPECT_EQ(RecomputeOptions::parse("budget:3MiB", "key").activation_bytes, 3 << 20);
  for (const char* text : {"", "some", "budget:", "budget:x", "Full"})
    EXPECT_THROW(RecomputeOptions::parse(text, "key"), base::Error) << text;
}

}  // namespace
}  // namespace trireme::passes
