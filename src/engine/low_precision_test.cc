// Sessions with 16-bit products: near f32, the same bits for any thread count and any company, weights once.
#include "engine/low_precision.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/session.h"
#include "model/zoo/zoo.h"
#include "tensor/compare.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using passes::Precision;
using tensor::DType;
using tensor::Tensor;

struct Case {
  const char* network;
  std::vector<std::string> options;
  DType input;
  tensor::Dims row;  ///< without the batch
};

const Case kCases[] = {
    {"mlp", {}, DType::f32, {1, 28, 28}},
    {"cnn", {}, DType::f32, {1, 28, 28}},
    {"gpt2", {"vocabulary=64", "positions=16", "width=64", "layers=2", "heads=4"}, DType::i64, {16}},
};

Tensor input_of(const Case& c, int64_t rows) {
  tensor::Dims dims = c.row;
  dims.insert(dims.begin(), rows);
  Tensor t = Tensor::empty(c.input, dims);
  base::Rng random(3);
  if (c.input == DType::f32) {
    for (float& x : t.mutable_data<float>()) x = static_cast<float>(random.normal());
  } else {
    for (int64_t& x : t.mutable_data<int64_t>()) x = static_cast<int64_t>(random.below(60));
  }
  return t;
}

Tensor run(const std::shared_ptr<const PreparedModel>& model, Precision precision, const Tensor& input,
           int threads = 1) {
  Session session(model, {.device = tests::device_under_test(), .threads = threads, .precision = precision});
  return session.run({input})[0].clone();
}

TEST(LowPrecision, IsNearF32AndIndependentOfThreadsAndCompany) {
  for (const Case& c : kCases) {
    auto model = std::make_shared<const PreparedModel>(model::zoo::build(c.network, c.options).graph);
    const Tensor input = input_of(c, 5);
    const Tensor exact = run(model, Precision::f32, input);
    for (Precision precision : {Precision::bf16, Precision::f16}) {
      const Tensor low = run(model, precision, input);
      ASSERT_EQ(low.dtype(), exact.dtype()) << c.network;
      double largest = 0;
      for (float x : exact.data<float>()) largest = std::max(largest, std::abs(double(x)));
      const double error = tensor::absolute_error(low, exact) / largest;
      EXPECT_GT(error, 0) << c.network;  // it did compute in 16 bits
      EXPECT_LT(error, precision == Precision::bf16 ? 3e-2 : 4e-3) << c.network;
      EXPECT_TRUE(low.same_as(run(model, precision, input, 3))) << c.network;
      const Tensor alone = run(model, precision, input.rows(2, 3).clone());
      EXPECT_TRUE(alone.same_as(low.rows(2, 3).clone())) << c.network << " alone";
    }
  }
}

TEST(LowPrecision, WeightsAreRoundedOnceForAllSessionsAndBuckets) {
  const Case& c = kCases[0];
  auto model = std::make_shared<const PreparedModel>(model::zoo::build(c.network, c.options).graph);
  Session one(model, {.device = tests::device_under_test(), .threads = 1, .precision = Precision::bf16}),
      two(model, {.device = tests::device_under_test(), .threads = 1, .precision = Precision::bf16});
  const auto constants = [](Session& session, int64_t rows) {
    std::vector<const std::byte*> found;
    for (const compile::Slot& s : session.prepare({{rows, 1, 28, 28}}).slots) {
      if (s.kind == compile::SlotKind::constant && s.dtype == DType::bf16) found.push_back(s.constant.raw());
    }
    return found;
  };
  const auto first = constants(one, 4);
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, constants(two, 4));
}

}  // namespace
}  // namespace trireme::engine
