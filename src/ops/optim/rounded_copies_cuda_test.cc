// 16-bit copies that updates write beside their parameters have the bits of a cast of the new parameter, for
// every rule, in place or not, skipped or not, on CPU and device.
#include <gtest/gtest.h>

#include "ops/optim/test_update_cpu.h"
#include "tests/run_on_device.h"

namespace trireme::ops::testing {
namespace {

struct Rule {
  std::string op;
  tensor::Dims dims;  ///< of the largest parameter
  ir::Attrs attrs = {};
};

const std::vector<Rule> kRules{
    {"sgd_update", {40001}},         {"momentum_update", {40001}, {{"momentum", 0.9}}},
    {"adam_update", {40001}},        {"lamb_update", {48, 801}},
    {"lars_update", {48, 801}},      {"adafactor_vector_update", {20001}},
    {"adafactor_update", {131, 70}}, {"muon_update", {67, 33}}};

/// Three parameters (large, empty, small), of rank 1 or 2 as the rule requires.
std::vector<Group> groups_of(const Rule& rule) {
  const size_t rank = rule.dims.size(), states = update_layout(rule.op).states;
  std::vector<Group> groups;
  uint64_t seed = 1;
  for (const tensor::Dims& dims : {rule.dims, tensor::Dims(rank, 0), tensor::Dims(rank, 3)}) {
    Group g;
    for (size_t i = 0; i < states + 2; ++i) {
      tensor::Dims own = dims;
      if (rule.op == "adafactor_update" && i >= 2) own[i == 2 ? 1 : 0] = 1;
      g.push_back(random_tensor(DType::f32, own, i < 2 ? -2 : 0.1, 2, seed++));
    }
    groups.push_back(std::move(g));
  }
  if (!update_layout(rule.op).is_elementwise) return groups;
  // Values that round up to infinity, and values that truncation would round differently.
  const auto p = groups[0][0].mutable_data<float>();
  p[0] = 3.4e38f;
  p[1] = 70000;
  p[2] = 1.00390625f;
  return groups;
}

ir::Attrs with_copies(const Rule& rule, DType type) {
  ir::Attrs attrs = rule.attrs;
  return attrs.set("copies", std::vector<int64_t>{0, 1, 2})
      .set("copy_type", std::string(tensor::name_of(type)));
}

/// The expected rounding of f32, element by element.
Tensor rounded(const Tensor& x, DType type) {
  Tensor out = Tensor::empty(type, x.dims());
  auto* bits = reinterpret_cast<uint16_t*>(out.mutable_raw());
  for (size_t i = 0; i < x.data<float>().size(); ++i) {
    const float v = x.data<float>()[i];
    bits[i] = type == DType::bf16 ? tensor::BFloat16(v).bits : tensor::Half(v).bits;
  }
  return out;
}

TEST(RoundedCopies, AreTheNewParametersRounded) {
  for (const Rule& rule : kRules) {
    for (const DType type : {DType::bf16, DType::f16}) {
      for (const bool skip : {false, true}) {
        for (const bool in_place : {true, false}) {
          std::vector<Group> plain = groups_of(rule), got = clones(plain);
          Update update{
              .op = rule.op, .attrs = rule.attrs, .lr = 0.01, .step = 2, .skip = skip, .in_place = in_place};
          run_update(update, plain);
          update.attrs = with_copies(rule, type);
          // One copy whose operand is unknown, like a state, and one without an operand.
          for (const size_t g : {0, 1}) update.copies.push_back(Tensor::zeros(type, got[g][0].dims()));
          update.copies.emplace_back();
          base::ThreadPool pool(2);
          BoundUpdate bound(update, got, pool);
          bound.run();
          const std::string what = base::concat(rule.op, skip ? " skipped" : "", in_place ? " in place" : "");
          EXPECT_EQ(difference(got, plain), "") << what;
          for (size_t g = 0; g < 3; ++g)
            EXPECT_TRUE(bound.copy(g).same_as(rounded(got[g][0], type))) << what << " parameter " << g;
          EXPECT_EQ(bound.copy(0).raw() == update.copies[0].raw(), in_place) << what;
        }
      }
    }
  }
}

TEST(RoundedCopies, CostTwoBytesAnElement) {
  std::vector<Group> groups = groups_of(kRules[2]);
  base::ThreadPool pool(1);
  Update update{.op = "adam_update"};
  const ir::Cost plain = BoundUpdate(update, groups, pool).cost();
  update.attrs = with_copies(kRules[2], DType::bf16);
  update.copies.resize(3);
  const ir::Cost with = BoundUpdate(update, groups, pool).cost();
  EXPECT_EQ(with.bytes - plain.bytes, 2.0 * (40001 + 3));
  EXPECT_EQ(with.flop, plain.flop);
}

TEST(RoundedCopies, OnTheDeviceAsOnTheCpu) {
  for (const Rule& rule : kRules) {
    for (const DType type : {DType::bf16, DType::f16}) {
      for (const bool skip : {false, true}) {
        std::vector<Tensor> in{Tensor::scalar(0.01f), Tensor::scalar<int64_t>(2), Tensor::scalar(0.5f),
                               Tensor::scalar(skip)};
        for (const Group& g : groups_of(rule)) in.insert(in.end(), g.begin(), g.end());
        in.resize(in.size() + 3);
        // Rules with norms may sum in another order: their parameters differ in the last bits, and where one
        // lies between two 16-bit numbers, its copy differs by one step.
        const bool is_elementwise = update_layout(rule.op).is_elementwise;
        tests::expect_as_cpu({.op = rule.op,
                              .in = in,
                              .attrs = with_copies(rule, type),
                              .out_count = 3 * update_layout(rule.op).results() + 3,
                              .relative = is_elementwise        ? 0
                                          : type == DType::bf16 ? 0.008
                                                                : 0.001,
                              .absolute = is_elementwise ? 0 : 1e-4});
      }
    }
  }
}

TEST(RoundedCopies, RefuseWhatDoesNotFit) {
  const auto run = [](std::vector<int64_t> copies, const std::string& type, const Tensor& state) {
    std::vector<Group> groups{{Tensor::zeros(DType::f32, {3}), Tensor::zeros(DType::f32, {3})},
                              {Tensor::zeros(DType::f32, {4}), Tensor::zeros(DType::f32, {4})}};
    Update update{.op = "sgd_update", .attrs = {{"copies", copies}, {"copy_type", type}}};
    update.copies.assign(copies.size(), state);
    run_update(update, groups);
  };
  EXPECT_NO_THROW(run({0, 1}, "bf16", Tensor()));
  EXPECT_NO_THROW(run({1}, "f16", Tensor::zeros(DType::f16, {4})));
  EXPECT_THROW(run({1, 0}, "bf16", Tensor()), base::Error);
  EXPECT_THROW(run({0, 0}, "bf16", Tensor()), base::Error);
  EXPECT_THROW(run({2}, "bf16", Tensor()), base::Error);
  EXPECT_THROW(run({0}, "f32", Tensor()), base::Error);
  EXPECT_THROW(run({0}, "bf16", Tensor::zeros(DType::f16, {3})), base::Error);
  EXPECT_THROW(run({0}, "bf16", Tensor::zeros(DType::bf16, {4})), base::Error);
}

}  // namespace
}  // namespace trireme::ops::testing
