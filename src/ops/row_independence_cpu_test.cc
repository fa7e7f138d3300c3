// What cut rules state about rows, for every operator and its attributes: entry i of a result depends only on
// entry i of the operands, bit for bit. Attributes are varied according to the schema.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "ops/table.h"
#include "ops/test_eval.h"
#include "tests/row_trial.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using tests::OpCase;
using Ints = std::vector<int64_t>;

Tensor f(Dims dims, double low = -1, double high = 1) {
  return testing::random_tensor(DType::f32, std::move(dims), low, high, 7);
}
Tensor typed(DType type, Dims dims, double low, double high) {
  return testing::random_tensor(type, std::move(dims), low, high, 7);
}
/// 8-bit floats.
Tensor codes(Dims dims) {
  return testing::run("cast", {f(std::move(dims), -9, 9)}, {{"to", int64_t{17}}})[0];
}
Tensor real(double v) { return Tensor::scalar<float>(static_cast<float>(v)); }

/// Products and lookups with weights in blocks.
std::vector<OpCase> block_cases() {
  return {
      {"dequantize_blocks", {typed(DType::u8, {6, 36}, 0, 60)}, {{"format", std::string("q4_0")}}},
      {"block_linear",
       {f({2, 4, 64}), typed(DType::u8, {6, 36}, 0, 60), f({6})},
       {{"format", std::string("q4_0")}, {"rows", std::string("q8")}}},
      {"block_linear",
       {f({2, 4, 256}), typed(DType::u8, {6, 210}, 0, 60)},
       {{"format", std::string("q6_k")}, {"rows", std::string("f32")}}},
      {"block_linears",
       {f({2, 4, 64}), typed(DType::u8, {6, 36}, 0, 60), typed(DType::u8, {3, 36}, 0, 60), f({6})},
       {{"format", std::string("q4_0")}, {"rows", std::string("q8")}},
       2},
      {"block_linear",
       {f({2, 4, 64}), typed(DType::u8, {6, 36}, 0, 60), f({6}), f({64}, 0.5, 1), f({2, 4, 6})},
       {{"format", std::string("q4_0")}, {"epsilon", 1e-3}}},
      {"block_linears",
       {f({2, 4, 64}), typed(DType::u8, {6, 36}, 0, 60), typed(DType::u8, {6, 36}, 0, 60), f({6}), f({6}),
        f({64}, 0.5, 1)},
       {{"format", std::string("q4_0")}, {"gated", int64_t{1}}}},
      {"block_gather",
       {typed(DType::u8, {6, 36}, 0, 60), typed(DType::i64, {2, 4}, 0, 5.9)},
       {{"format", std::string("q4_0")}}},
  };
}

/// Products over experts.
std::vector<OpCase> expert_cases() {
  return {
      {"expert_linear", {f({2, 4, 8}), typed(DType::i64, {2, 4, 2}, 0, 2.9), f({3, 6, 8}), f({3, 6})}},
      {"expert_linear",
       {f({2, 4, 2, 8}), typed(DType::i64, {2, 4, 2}, 0, 2.9), f({3, 6, 8}), f({3, 6}), f({2, 4, 2})}},
      {"weight_only_experts",
       {f({2, 4, 32}), typed(DType::i64, {2, 4, 2}, 0, 2.9), typed(DType::u8, {18, 32}, 0, 255),
        f({18, 1}, 0.1, 1)},
       {{"bits", int64_t{8}}, {"group", int64_t{32}}, {"experts", int64_t{3}}}},
      {"block_experts",
       {f({2, 4, 64}), typed(DType::i64, {2, 4, 2}, 0, 2.9), typed(DType::u8, {48, 36}, 0, 60)},
       {{"format", std::string("q4_0")}, {"experts", int64_t{3}}}},
  };
}

/// Operators made by passes, which no model file can name.
std::vector<OpCase> inner_cases() {
  const Tensor x = f({2, 4, 8}), image = f({2, 6, 5, 8}), c = f({8}, 0.5, 1);
  const ir::Attrs window{{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}};
  const ir::Attrs to_bf16{{"type", std::string("f32")}};
  const Tensor zero = Tensor::scalar<uint8_t>(3);
  std::vector<OpCase> cases{
      {"linear", {x, f({8, 5}), f({5}), f({2, 4, 5})}},
      {"linear", {x, f({8, 5})}, {{"activation", std::string("relu")}}},
      {"linear", {f({2, 3, 8}), f({5, 8}), f({5})}, {{"transposed", int64_t{1}}}},
      {"batched_gemm", {f({2, 3, 4, 5}), f({2, 3, 5, 6})}},
      {"conv_nhwc", {image, f({6, 8, 3, 3}), f({6})}, {{"pads", Ints{1, 1, 1, 1}}}},
      {"conv_nhwc", {image, f({6, 8, 1, 1}), f({6}), f({2, 6, 5, 6})}, {{"activation", std::string("relu")}}},
      {"conv_nhwc", {image, f({8, 1, 3, 3})}, {{"group", int64_t{8}}}},
      {"conv_pool_nhwc", {f({2, 12, 12, 16}), f({16, 16, 3, 3}), f({16})}, {{"pads", Ints{1, 1, 1, 1}}}, 2},
      {"fused_elementwise",
       {x, f({8})},
       {{"steps", std::vector<std::string>{"r0 mul i0 i1", "r1 gelu r0", "o0 add r1 c0"}},
        {"params", std::vector<double>(6, 0.0)},
        {"constants", std::vector<double>{0.5}}}},
      {"l2_normalize", {x}},
      {"linear_grad_x", {f({2, 4, 5}), f({8, 5})}},
      {"linear_grad_w", {x, f({2, 4, 5})}},
      {"dropout_train", {x, testing::ints({1, 2, 0})}},
      {"reduce_sum", {f({3, 4, 5}), testing::ints({1})}},
      {"reduce_max", {f({3, 4, 5}), testing::ints({1})}},
      {"softmax", {f({3, 40, 5})}, {{"axis", int64_t{1}}}},
      {"cos", {f({3, 40}, -9, 9)}},
      // Sums of more elements than a vector holds.
      {"matmul", {f({3, 300}), f({300, 5})}},
      {"matmul", {f({2, 3, 70}), f({2, 70, 5})}},
      {"gemm", {f({3, 300}), f({5, 300}), f({5})}, {{"transB", int64_t{1}}}},
      {"linear", {f({3, 300}), f({300, 40}), f({40})}},
      {"log_softmax", {f({3, 40, 5})}, {{"axis", int64_t{1}}}},
      {"lp_norm", {f({3, 40, 5})}, {{"axis", int64_t{1}}}},
      {"l2_normalize", {f({3, 40, 5})}, {{"axis", int64_t{1}}}},
      {"layer_norm", {f({2, 3, 70}), f({70}), f({70})}},
      {"mean_variance_norm", {f({2, 40, 7, 5})}},
      {"conv", {f({2, 40, 7, 6}), f({24, 40, 3, 3})}},
      {"conv_nhwc", {f({2, 7, 6, 40}), f({24, 40, 3, 3})}},
      {"average_pool", {f({2, 3, 30, 20})}, {{"kernel_shape", Ints{9, 9}}}},
      {"global_average_pool", {f({2, 3, 30, 20})}},
      {"attention_bsnd", {f({2, 20, 4, 32}), f({2, 40, 4, 32}), f({2, 40, 4, 32})}},
      {"einsum", {f({3, 70}), f({70, 5})}, {{"equation", std::string("ij,jk->ki")}}},
      {"reduce_mean", {f({3, 40, 50}), testing::ints({1, 2})}},
      {"separable_conv_nhwc", {image, f({8, 1, 3, 3}), f({6, 8, 1, 1}), f({8}), f({6})}},
      {"max_pool_nhwc", {image}, window},
      {"average_pool_nhwc", {image}, window},
      {"global_average_pool_nhwc", {image}},
      {"group_norm_nhwc", {image, f({8}), f({8})}, {{"num_groups", int64_t{2}}}},
      {"attention_bsnd", {f({2, 3, 4, 8}), f({2, 5, 2, 8}), f({2, 5, 2, 8})}},
      {"attention_bsnd", {f({2, 5, 4, 8}), f({2, 5, 4, 8}), f({2, 5, 4, 8})}, {{"is_causal", int64_t{1}}}},
      {"attention_bsnd", {f({2, 3, 4, 8}), f({2, 5, 4, 8}), f({2, 5, 4, 8}), f({2, 1, 3, 5})}},
      {"attention_qkv", {f({2, 5, 48})}, {{"heads", int64_t{2}}}},
      {"attention_qkv", {f({2, 5, 48}), f({2, 1, 1, 5})}, {{"heads", int64_t{2}}}},
      {"add_layer_norm", {x, f({2, 4, 8}), c, c}},
      {"masked_mean_pool", {x, typed(DType::i64, {2, 4}, 0, 1.99)}},
      {"qlinear",
       {typed(DType::u8, {2, 4, 8}, 0, 200), real(0.1), zero, typed(DType::i8, {8, 5}, -99, 99), real(0.02),
        Tensor::scalar<int8_t>(0), real(0.3), zero}},
      {"qconv_nhwc",
       {typed(DType::u8, {2, 6, 5, 8}, 0, 200), real(0.1), zero, typed(DType::i8, {6, 8, 3, 3}, -99, 99),
        real(0.02), Tensor::scalar<int8_t>(0), real(0.3), zero}},
      {"qadd",
       {typed(DType::u8, {2, 4, 8}, 0, 200), real(0.1), zero, typed(DType::u8, {2, 4, 8}, 0, 200), real(0.2),
        zero, real(0.3), zero}},
      {"float8_rows", {x}, {}, 2},
      {"float8_columns", {x}, {}, 2},
      {"float8_both", {x}, {}, 4},
      {"float8_values", {codes({2, 4, 8}), f({2, 4}, 0.1, 1)}, to_bf16},
      {"float8_product", {codes({2, 4, 16}), f({2, 4}, 0.1, 1), codes({16, 16}), f({16}, 0.1, 1)}, to_bf16},
      {"weight_only_linear",
       {f({2, 4, 32}), typed(DType::u8, {6, 32}, 0, 255), f({6, 1}, 0.1, 1)},
       {{"bits", int64_t{8}}, {"group", int64_t{32}}}},
      {"cross_entropy", {x, typed(DType::i64, {2, 4}, 0, 7.9)}, {}, 2},
      {"batch_norm_train", {f({2, 4, 8}), f({4}), f({4})}, {}, 3},
  };
  return cases;
}

/// Values to try for an attribute: small numbers, lists of axes, and every word of its description.
std::vector<ir::AttrValue> values_of(const ir::AttrSpec& spec, const OpCase& c) {
  std::vector<ir::AttrValue> out;
  if (spec.kind == "int") {
    for (int64_t v : {-3, -2, -1, 0, 1, 2, 3}) out.emplace_back(v);
  } else if (spec.kind == "float") {
    for (double v : {0.0, 0.25, 2.0}) out.emplace_back(v);
  } else if (spec.kind == "ints") {
    out = {Ints{0}, Ints{1}, Ints{-1}, Ints{0, 1}, Ints{1, 2}, Ints{0, 2, 1}, Ints{1, 0, 2}, Ints{2, 1, 0}};
    if (const auto* given = c.attrs.find(spec.name)) {
      if (const auto* list = std::get_if<Ints>(given)) out.emplace_back(Ints(list->rbegin(), list->rend()));
    }
  } else if (spec.kind == "string") {
    std::string word;
    for (const char letter : spec.doc + " ") {
      const bool is_part = std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
      if (is_part) word += letter;
      if (!is_part && !word.empty()) out.emplace_back(std::exchange(word, {}));
    }
  }
  return out;
}

bool runs(const OpCase& c) {
  base::ThreadPool pool(1);
  try {
    evaluate(table().need(c.op), c.attrs, c.in, c.results, pool);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

/// Tries the case with each attribute set to other values. Passes set attributes of inner operators, which
/// are not checked; for those, each form has a case of its own.
void try_attributes(const OpCase& c, tests::RowCounts& counts) {
  const bool is_inner = table().need(c.op).schema.onnx.empty();
  tests::try_rows(c, !is_inner, counts);
  if (is_inner) return;
  for (const ir::AttrSpec& spec : table().need(c.op).schema.attrs) {
    for (const ir::AttrValue& value : values_of(spec, c)) {
      OpCase other = c;
      other.attrs.set(spec.name, value);
      if (runs(other)) tests::try_rows(other, false, counts);
    }
  }
  // With other numbers of results, other kernels or rules may apply.
  for (size_t results = 1; results <= 4; ++results) {
    OpCase other = c;
    other.results = results;
    const ir::OpSchema& op = table().need(c.op).schema;
    if (results != c.results && results >= op.min_out && results <= op.max_out && runs(other))
      tests::try_rows(other, false, counts);
  }
}

/// The reason why an operator needs no case; empty if it needs one.
std::string excuse(const ir::OpSchema& op) {
  if (op.is_control) return "runs subgraphs: never shown";
  if (op.is_collective) return "meets other ranks: never shown";
  if (op.is_random) return "draws numbers: never shown";
  if (op.updates_state()) return "writes state: never shown";
  if (!op.cut && op.dims.empty()) return "has no rule, so nothing is shown of it";
  // The tests of their cut rules run their cases through the same trial.
  if (op.onnx.empty() && !op.why_no_grad.empty()) return "a training op: tests of its cut rule try its rows";
  return {};
}

std::vector<OpCase> cases_of(const std::string& op) {
  std::vector<OpCase> found;
  for (const auto& list :
       {tests::window_cases(), tests::index_cases(), tests::shape_cases(), tests::layer_cases(),
        tests::product_cases(), inner_cases(), block_cases(), expert_cases()}) {
    for (const OpCase& c : list) {
      if (c.op == op) found.push_back(c);
    }
  }
  return found;
}

TEST(RowIndependence, HoldsForEveryOperatorAndAttribute) {
  tests::RowCounts counts;
  for (const ir::OpDef& op : table().all()) {
    std::vector<OpCase> cases = cases_of(op.schema.name);
    for (const OpCase& c : cases) EXPECT_TRUE(runs(c)) << "the case of " << c.op << " is refused";
    if (cases.empty() &&
        !op.schema.onnx.empty()) {  // attributes of inner operators, set by passes, are unchecked
      if (const auto plain = tests::plain_case(op.schema)) cases.push_back(*plain);
    }
    EXPECT_FALSE(cases.empty() && excuse(op.schema).empty()) << "no case for " << op.schema.name;
    for (const OpCase& c : cases) {
      if (runs(c)) try_attributes(c, counts);
    }
  }
  std::string finer;
  for (const auto& [op, count] : counts.held_unshown) finer += base::concat(" ", op, " ", count);
  std::cout << counts.shown << " results shown to hold entries apart, " << counts.unshown
            << " not; of these held in all trials:" << finer << "\n";
  EXPECT_GT(counts.shown, 1000);
}

}  // namespace
}  // namespace trireme::ops
