// Sessions with 16-bit products: results near f32, the same bits for any number of threads and any batch, and
// one copy of the weights.
#include "lower/low_precision.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/session/session.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/zoo.h"
#include "runtime/open_device.h"
#include "tensor/compare.h"
#include "tensor/rounded.h"
#include "tests/test_device.h"

namespace trireme::engine {
namespace {

using passes::Precision;
using tensor::DType;
using tensor::Tensor;

struct NetworkCase {
  const char* network;
  std::vector<std::string> options;
  DType input;
  tensor::Dims row;  ///< without the batch dimension
};

const NetworkCase kNetworks[] = {
    {"mlp", {}, DType::f32, {1, 28, 28}},
    {"cnn", {}, DType::f32, {1, 28, 28}},
    {"gpt2", {"vocabulary=64", "positions=16", "width=64", "layers=2", "heads=4"}, DType::i64, {16}},
};

Tensor input_of(const NetworkCase& c, int64_t rows) {
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
  Session session(model, {.device = tests::device_under_test(),
                          .threads = threads,
                          .strategy = {.precision = {.compute = precision}}});
  return session.run({input})[0].clone();
}

TEST(LowPrecision, IsNearF32AndIndependentOfThreadsAndCompany) {
  for (const NetworkCase& c : kNetworks) {
    auto model = std::make_shared<const PreparedModel>(model::zoo::build(c.network, c.options).graph);
    const Tensor input = input_of(c, 5);
    const Tensor exact = run(model, Precision::f32, input);
    for (Precision precision : {Precision::bf16, Precision::f16}) {
      const Tensor low = run(model, precision, input);
      ASSERT_EQ(low.dtype(), exact.dtype()) << c.network;
      double largest = 0;
      for (float x : exact.data<float>()) largest = std::max(largest, std::abs(double(x)));
      const double error = tensor::absolute_error(low, exact) / largest;
      EXPECT_GT(error, 0) << c.network;  // shows that it computed in 16 bits
      EXPECT_LT(error, precision == Precision::bf16 ? 3e-2 : 4e-3) << c.network;
      EXPECT_TRUE(low.same_as(run(model, precision, input, 3))) << c.network;
      const Tensor alone = run(model, precision, input.rows(2, 3).clone());
      EXPECT_TRUE(alone.same_as(low.rows(2, 3).clone())) << c.network << " alone";
    }
  }
}

TEST(LowPrecision, EightBitProductsAreNearAndIndependentOfThreadsAndCompany) {
  // Extents of mlp and gpt2 are multiples of 16; the last product of each keeps 16 bits.
  for (const NetworkCase& c : {kNetworks[0], kNetworks[2]}) {
    auto model = std::make_shared<const PreparedModel>(model::zoo::build(c.network, c.options).graph);
    const Tensor input = input_of(c, 5);
    const Tensor exact = run(model, Precision::f32, input), bf16 = run(model, Precision::bf16, input),
                 low = run(model, Precision::fp8, input);
    double largest = 0;
    for (float x : exact.data<float>()) largest = std::max(largest, std::abs(double(x)));
    const double error = tensor::absolute_error(low, exact) / largest;
    EXPECT_GT(error, tensor::absolute_error(bf16, exact) / largest) << c.network;
    EXPECT_LT(error, 0.1) << c.network;
    EXPECT_TRUE(low.same_as(run(model, Precision::fp8, input, 3))) << c.network;
    const Tensor alone = run(model, Precision::fp8, input.rows(2, 3).clone());
    EXPECT_TRUE(alone.same_as(low.rows(2, 3).clone())) << c.network << " alone";
  }
}

TEST(LowPrecision, WeightsAreRoundedOnceForAllSessionsAndBuckets) {
  const NetworkCase& c = kNetworks[0];
  auto model = std::make_shared<const PreparedModel>(model::zoo::build(c.network, c.options).graph);
  Session one(model, {.device = tests::device_under_test(),
                      .threads = 1,
                      .strategy = {.precision = {.compute = Precision::bf16}}}),
      two(model, {.device = tests::device_under_test(),
                  .threads = 1,
                  .strategy = {.precision = {.compute = Precision::bf16}}});
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

TEST(LowPrecision, WeightsThatArePackedTakeNoOtherMemory) {
  const NetworkCase& c = kNetworks[0];
  auto model = std::make_shared<const PreparedModel>(model::zoo::build(c.network, c.options).graph);
  Session packed(model, {.threads = 2, .strategy = {.precision = {.compute = Precision::bf16}}});
  const Tensor x = input_of(c, 2);
  const Tensor want = packed.run({x})[0];
  const auto count = [](Session& session, bool unread) {
    size_t found = 0;
    for (const compile::Slot& s : session.prepare({{2, 1, 28, 28}}).slots) {
      const bool is_later = s.kind == compile::SlotKind::constant && tensor::source_of(s.constant).defined();
      found += is_later && s.unread == unread ? 1 : 0;
    }
    return found;
  };
  bool has_products = false;
  for (const compile::Step& s : packed.prepare({{2, 1, 28, 28}}).steps)
    has_products = has_products || s.kernel == "gemm_bf16";
  if (!has_products) GTEST_SKIP() << "the processor has no bf16 products";
  EXPECT_GT(count(packed, true), 0u);
  EXPECT_EQ(count(packed, false), 0u);
  // Kernels that read unpacked weights find their content.
  Session plain(model, {.threads = 2,
                        .only_kernel = "reference_via_f32",
                        .strategy = {.precision = {.compute = Precision::bf16}}});
  EXPECT_GT(count(plain, false), 0u);
  EXPECT_LT(tensor::absolute_error(plain.run({x})[0], want), 0.05);
  EXPECT_TRUE(packed.run({x})[0].same_as(want));
}

/// The same weights in separate memory.
class Copied final : public model::ParamSource {
 public:
  Tensor get(const std::string& name, const tensor::Dims& dims, const model::Init& init) override {
    return source_.get(name, dims, init).clone();
  }

 private:
  model::RepeatedParams source_{1};
};

bool is_there(const char* device) {
  try {
    return runtime::open_device(device) != nullptr;
  } catch (const base::Error&) {
    return false;
  }
}

TEST(LowPrecision, WeightsThatRepeatABlockAreRoundedAndUploadedAsIfTheyDidNot) {
  model::zoo::Gpt2Config config;
  config.vocabulary = 66000, config.positions = 8, config.width = 64, config.layers = 1, config.heads = 2;
  model::RepeatedParams repeated(1);
  Copied copied;
  const NetworkCase& gpt = kNetworks[2];
  Tensor ids = input_of({gpt.network, {}, DType::i64, {4}}, 1);
  ids.mutable_data<int64_t>()[1] = 65999;  // beyond the end of the block
  for (const char* device : {"cpu", "emulated", "cuda:0"}) {
    if (!is_there(device)) continue;
    for (Precision precision : {Precision::f32, Precision::bf16}) {
      std::vector<Tensor> results;
      for (model::ParamSource* source :
           {static_cast<model::ParamSource*>(&copied), static_cast<model::ParamSource*>(&repeated)}) {
        const auto model = std::make_shared<const PreparedModel>(model::zoo::gpt2(config, *source).graph);
        Session session(model,
                        {.device = device, .threads = 1, .strategy = {.precision = {.compute = precision}}});
        results.push_back(session.run({ids})[0].clone());
      }
      EXPECT_TRUE(results[0].same_as(results[1])) << device;
    }
  }
}

}  // namespace
}  // namespace trireme::engine
