// Tests facts that schemas state about operators against the operators: what passes conclude from a class, a
// mask or index notation must be true of every operator that has it.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "ir/notation.h"
#include "ops/precision_rules.h"
#include "ops/table.h"
#include "ops/test_eval.h"
#include "tests/op_cases.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::OpCase;
using Ints = std::vector<int64_t>;

Tensor random_floats(Dims dims, uint64_t seed = 7) {
  return testing::random_tensor(DType::f32, std::move(dims), -2, 2, seed);
}
Tensor number(float v) { return Tensor::scalar<float>(v); }

std::vector<OpCase> moving_cases() {
  const Tensor x = random_floats({2, 6}), image = random_floats({1, 4, 6, 6}),
               last = random_floats({1, 6, 6, 4}), dy = random_floats({2, 6}, 8);
  const Tensor yes = testing::run("greater", {x, dy})[0];
  const ir::Attrs window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  return {{"reshape", {x, testing::ints({3, 4})}},
          {"flatten", {image}},
          {"squeeze", {random_floats({2, 1})}, {}},
          {"unsqueeze", {x, testing::ints({0})}},
          {"identity", {x}},
          {"transpose", {x}},
          {"expand", {x, testing::ints({3, 2, 6})}},
          {"tile", {x, testing::ints({2, 3})}},
          {"concat", {x, dy}, {{"axis", int64_t{1}}}},
          {"split", {x}, {{"axis", int64_t{1}}, {"num_outputs", int64_t{2}}}, 2},
          {"slice", {x, testing::ints({1}), testing::ints({5}), testing::ints({1})}},
          {"slice_grad",
           {random_floats({2, 4}), testing::ints({1}), testing::ints({5}), testing::ints({1})},
           {{"shape", Ints{2, 6}}}},
          {"depth_to_space", {image}, {{"blocksize", int64_t{2}}}},
          {"space_to_depth", {image}, {{"blocksize", int64_t{2}}}},
          {"pad", {x, testing::ints({1, 0, 0, 2}), number(9)}},
          {"gather", {x, testing::ints({1, 0, 1})}},
          {"gather_elements", {x, testing::run("cast", {yes}, {{"to", int64_t{7}}})[0]}},
          {"gather_nd", {x, testing::run("reshape", {testing::ints({1, 5}), testing::ints({1, 2})})[0]}},
          {"max_pool", {image}, window},
          {"max_pool_nhwc", {last}, window},
          {"global_max_pool", {image}},
          {"where", {yes, x, dy}},
          {"clip", {x, number(-0.5f), number(0.75f)}},
          {"clip_grad", {dy, x, number(-0.5f), number(0.75f)}},
          {"abs", {x}},
          {"neg", {x}},
          {"relu", {x}},
          {"max", {x, dy}},
          {"min", {x, dy}},
          {"abs_grad", {dy, x}},
          {"relu_grad", {dy, x}},
          {"thresholded_relu_grad", {dy, x}},
          {"shrink_grad", {dy, x}}};
}

bool is_moved(const ir::OpSchema& op, size_t operand) {
  return operand < 32 && (op.moves >> operand & 1u) != 0;
}

TEST(SchemaFacts, WhatMovesIsElementsOfItsOperands) {
  std::set<std::string> tried;
  for (const OpCase& c : moving_cases()) {
    const ir::OpSchema& op = table().need(c.op).schema;
    std::set<double> magnitudes{0};
    for (size_t i = 0; i < c.in.size(); ++i) {
      if (!is_moved(op, i)) continue;
      for (double v : c.in[i].to_doubles()) magnitudes.insert(std::abs(v));
    }
    for (const Tensor& y : testing::run(c.op, c.in, c.attrs, c.results)) {
      for (double v : y.to_doubles()) EXPECT_TRUE(magnitudes.contains(std::abs(v))) << c.op << " gave " << v;
    }
    tried.insert(c.op);
  }
  for (const ir::OpDef& op : table().all()) {
    EXPECT_EQ(op.schema.moves != 0, tried.contains(op.schema.name)) << op.schema.name;
    EXPECT_TRUE(op.schema.moves != 0 || !op.schema.is_rearrangement) << op.schema.name;
  }
}

Tensor transposed(const Tensor& x) { return testing::run("transpose", {x})[0]; }

/// Operands [2, 3] of the first type that the op accepts; numbers for operands that do not spread over
/// results.
std::vector<Tensor> operands_of(const ir::OpSchema& op, const ir::Attrs& attrs) {
  const size_t count = std::max(op.min_in, std::min<size_t>(op.max_in, 3));
  for (DType type : {DType::f32, DType::i64, DType::boolean, DType::u8}) {
    const bool is_real = type == DType::f32;
    std::vector<Tensor> in;
    for (size_t i = 0; i < count; ++i) {
      const bool is_choice = op.name == "where" && i == 0;
      const Tensor x =
          testing::random_tensor(DType::f32, {2, 3}, is_real ? 0.1 : 1, is_real ? 0.9 : 4, 5 + i);
      const int64_t own = type == DType::boolean ? 9 : type == DType::u8 ? 2 : is_real ? 1 : 7;
      const int64_t to = is_choice ? 9 : own;  // ONNX numbers of types
      const Tensor typed = testing::run("cast", {x}, {{"to", to}})[0];
      in.push_back(ir::spreads_over_results(op, i) ? typed : number(0.25f * static_cast<float>(i)));
    }
    try {
      testing::run(op.name, in, attrs);
      return in;
    } catch (const base::Error&) {
      continue;  // the op does not take this type
    }
  }
  return {};
}

TEST(SchemaFacts, ElementwiseOpsTakeTransposesAsTheyCome) {
  std::vector<int64_t> table_of_bytes(256);
  for (size_t i = 0; i < 256; ++i) table_of_bytes[i] = static_cast<int64_t>(i * 7 % 256);
  const std::map<std::string, ir::Attrs> attrs{
      {"byte_map", {{"table", table_of_bytes}}},
      {"cast", {{"to", int64_t{10}}}},
      {"bit_shift", {{"direction", std::string("LEFT")}}},
      {"fused_elementwise",
       {{"steps", std::vector<std::string>{"r0 mul i0 i1", "o0 add r0 i2"}},
        {"params", std::vector<double>(4)}}}};
  size_t tried = 0;
  for (const ir::OpDef& op : table().all()) {
    const std::string& name = op.schema.name;
    // A random mask depends on the places of elements, so the results of transposes differ.
    if (!ir::is_elementwise(op.schema) || op.schema.is_random || name == "dropout_train") continue;
    const auto given = attrs.find(name);
    const ir::Attrs a = given == attrs.end() ? ir::Attrs{} : given->second;
    std::vector<Tensor> in = operands_of(op.schema, a);
    ASSERT_FALSE(in.empty()) << name;
    const std::vector<double> y = testing::run(name, in, a)[0].to_doubles();
    for (size_t i = 0; i < in.size(); ++i) {
      if (ir::spreads_over_results(op.schema, i)) in[i] = transposed(in[i]);
    }
    const std::vector<double> again = transposed(testing::run(name, in, a)[0]).to_doubles();
    ASSERT_EQ(again.size(), y.size()) << name;
    for (size_t i = 0; i < y.size(); ++i)
      EXPECT_TRUE(again[i] == y[i] || (std::isnan(again[i]) && std::isnan(y[i]))) << name;
    ++tried;
  }
  EXPECT_GT(tried, 100u);
}

TEST(SchemaFacts, ClassesOfPrecisionFitTheOps) {
  for (const ir::OpDef& op : table().all()) {
    const ir::OpSchema& s = op.schema;
    const ir::PrecisionRule rule = ir::precision_of(s);
    EXPECT_FALSE(rule.why.empty()) << s.name;
    if (!s.precision && s.moves == 0) {
      EXPECT_EQ(rule.kind, PrecisionKind::kept) << s.name;
      EXPECT_EQ(rule.why, kUnknown.why) << s.name;
    }
    EXPECT_TRUE(rule.kind != PrecisionKind::product || ir::has_products(s)) << s.name;
    EXPECT_TRUE(s.sums.empty() || rule.kind == PrecisionKind::product) << s.name;
    EXPECT_TRUE(rule.kind != PrecisionKind::paged || rule.operands < s.min_in) << s.name;
    const bool keeps_error_small =
        ir::is_elementwise(s) || s.moves != 0 || s.name == "rotary_embedding" || s.name == "batch_norm_train";
    EXPECT_TRUE(rule.kind != PrecisionKind::follows || keeps_error_small) << s.name;
  }
}

TEST(SchemaFacts, ClassesThatPassesRelyOn) {
  const std::vector<std::pair<const char*, ir::PrecisionRule>> known{
      {"linear", kProduct}, {"conv", kProduct},  {"add", kRounds},          {"gelu", kRounds},
      {"reshape", kMoves},  {"relu", kMoves},    {"where", kMoves},         {"softmax", kStatistics},
      {"exp", kRange},      {"mean", kSumsMany}, {"reduce_sum", kSumsMany}, {"reduce_max", kUnknown},
      {"mod", kUnknown},    {"tan", kUnknown},   {"relu_grad", kUnknown},   {"cross_entropy", kLoss},
      {"lstm", kUnknown}};
  for (const auto& [name, rule] : known) {
    const ir::PrecisionRule is = ir::precision_of(table().need(name).schema);
    EXPECT_EQ(is.kind, rule.kind) << name;
    EXPECT_EQ(is.why, rule.why) << name;
  }
  EXPECT_EQ(ir::precision_of(table().need("attention_qkv").schema).operands, 1u);
  EXPECT_EQ(ir::precision_of(table().need("attention").schema).operands, 3u);
}

TEST(SchemaFacts, RowsThatMayBeHalf) {
  for (const ir::OpDef& op : table().all()) {
    const ir::HalfRows& rows = op.schema.half_rows;
    const auto has_attr = [&](std::string_view name) {
      return std::any_of(op.schema.attrs.begin(), op.schema.attrs.end(),
                         [&](const ir::AttrSpec& a) { return a.name == name; });
    };
    EXPECT_LT(rows.operands, 1u << std::min<size_t>(op.schema.max_in, 31)) << op.schema.name;
    EXPECT_EQ(rows.alone & ~rows.operands, 0u) << op.schema.name;
    EXPECT_EQ(rows.rounded >= 0, has_attr("rounded")) << op.schema.name;
    EXPECT_TRUE(rows.rounded < 0 || static_cast<size_t>(rows.rounded) + 1 == op.schema.max_out)
        << op.schema.name;
  }
}

TEST(SchemaFacts, KernelsAreCalledWhatTheyAre) {
  for (const ir::OpDef& op : table().all()) {
    for (const ir::Kernel& k : op.kernels) {
      EXPECT_EQ(k.is_via_f32, k.name.ends_with("_via_f32")) << op.schema.name << " " << k.name;
      EXPECT_EQ(k.is_reference, k.name.starts_with("reference")) << op.schema.name << " " << k.name;
    }
  }
}

}  // namespace
}  // namespace trireme::ops
