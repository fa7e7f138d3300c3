// dequantize_blocks, block_linear, block_gather: kernels against each other and against the expansion; what
// they refuse.
#include <gtest/gtest.h>

#include <cmath>

#include "ops/blocks/blocks.h"
#include "ops/table.h"
#include "ops/test_eval.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

/// A matrix of normally distributed numbers in a block format.
Tensor blocks_of(const tensor::BlockFormat& f, int64_t n, int64_t k) {
  const Tensor w = testing::random_tensor(DType::f32, {n, k}, -1, 1, 3);
  Tensor out = Tensor::empty(DType::u8, {n, f.row_bytes(k)});
  f.encode(w.data<float>().data(), n * k / f.weights, reinterpret_cast<uint8_t*>(out.mutable_raw()), nullptr);
  return out;
}

ir::Attrs attrs_of(const tensor::BlockFormat& f, const char* rows = nullptr) {
  ir::Attrs attrs{{"format", std::string(f.name)}};
  if (rows != nullptr) attrs.set("rows", std::string(rows));
  return attrs;
}

/// How rows may meet weights in a format.
std::vector<const char*> rows_of(const tensor::BlockFormat& f) {
  if (f.name == "f16") return {"f32"};
  return {"f32", f.name == "bf16" ? "bf16" : "q8"};
}

void expect_small_error(const Tensor& a, const Tensor& b, double most, std::string_view what) {
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  ASSERT_EQ(x.size(), y.size()) << what;
  double missed = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) missed += (x[i] - y[i]) * (x[i] - y[i]), all += y[i] * y[i];
  EXPECT_LE(std::sqrt(missed / all), most) << what;
}

/// Runs the op with fed operands, which cannot be packed.
Tensor run_fed(const char* op, const std::vector<Tensor>& in, const ir::Attrs& attrs) {
  base::ThreadPool pool(2);
  HostRun on(pool);
  for (size_t i = 0; i < in.size(); ++i) on.fed.push_back(i);
  return evaluate(table().need(op), attrs, in, 1, on)[0];
}

TEST(Blocks, ProductsByAllKernelsAndByTheExpansion) {
  for (const tensor::BlockFormat& f : tensor::all_block_formats()) {
    const Tensor w = blocks_of(f, 21, 2 * f.weights);
    const Tensor x = testing::random_tensor(DType::f32, {2, 3, 2 * f.weights}, -1, 1, 4);
    const Tensor bias = testing::random_tensor(DType::f32, {21}, -1, 1, 5);
    const Tensor wide = testing::run("dequantize_blocks", {w}, attrs_of(f))[0];
    const Tensor whole = testing::run("linear", {x, wide, bias}, {{"transposed", int64_t{1}}})[0];
    for (const char* rows : rows_of(f)) {
      const bool is_exact = std::string_view(rows) == "f32";
      const Tensor packed = testing::run("block_linear", {x, w, bias}, attrs_of(f, rows))[0];
      expect_small_error(packed, run_fed("block_linear", {x, w, bias}, attrs_of(f, rows)), 1e-5, f.name);
      expect_small_error(packed, whole, is_exact ? 1e-5 : 0.02, f.name);
    }
  }
}

/// Norms, residuals and gates run inside the loops of products: the same bits as separate nodes, and close to
/// the expansion.
TEST(Blocks, NormsResidualsAndGates) {
  for (const char* name : {"q4_0", "q8_0", "q4_k", "bf16", "f16"}) {
    const tensor::BlockFormat& f = tensor::need_block_format(name);
    const ir::Attrs own = attrs_of(f, rows_of(f).back());
    const int64_t k = 2 * f.weights;
    const Tensor w = blocks_of(f, 53, k), bias = testing::random_tensor(DType::f32, {53}, -1, 1, 5);
    const Tensor norm = testing::random_tensor(DType::f32, {k}, 0.5, 1.5, 6), none;
    for (const int64_t rows : {1, 5, 40}) {
      const Tensor x = testing::random_tensor(DType::f32, {1, rows, k}, -1, 1, 4);
      const Tensor add = testing::random_tensor(DType::f32, {1, rows, 53}, -1, 1, 8);
      const Tensor even = testing::run("rms_norm", {x, norm}, {{"epsilon", 1e-3}})[0];
      ir::Attrs attrs = own;
      const Tensor plain = testing::run("block_linear", {even, w, bias}, attrs)[0];
      attrs.set("epsilon", 1e-3);
      const std::vector<Tensor> all{x, w, bias, norm, add};
      const Tensor got = testing::run("block_linear", all, attrs)[0];
      EXPECT_TRUE(got.same_as(testing::run("add", {plain, add})[0])) << name << ", rows " << rows;
      expect_small_error(got, run_fed("block_linear", all, attrs), 1e-5, name);
      const Tensor residual = testing::run("block_linear", {even, w, none, none, add}, own)[0];
      const Tensor apart = testing::run("block_linear", {even, w}, own)[0];
      EXPECT_TRUE(residual.same_as(testing::run("add", {apart, add})[0])) << name << ", rows " << rows;

      const Tensor up = testing::run("block_linear", {even, w}, own)[0];
      const Tensor gate = testing::run("swish", {plain})[0];
      attrs.set("gated", int64_t{1});
      const std::vector<Tensor> gated{x, w, w, bias, none, norm};
      const Tensor both = testing::run("block_linears", gated, attrs)[0];
      EXPECT_TRUE(both.same_as(testing::run("mul", {gate, up})[0])) << name << ", rows " << rows;
      expect_small_error(both, run_fed("block_linears", gated, attrs), 1e-5, name);
    }
  }
}

TEST(Blocks, LookupsInRowsAndInThePackedForm) {
  for (const tensor::BlockFormat& f : tensor::all_block_formats()) {
    const Tensor w = blocks_of(f, 19, f.weights);
    const Tensor at = testing::ints({0, 18, -1, 7, 16, -19});
    const Tensor wide = testing::run("dequantize_blocks", {w}, attrs_of(f))[0];
    const Tensor want = testing::run("gather", {wide, at}, {})[0];
    EXPECT_TRUE(testing::run("block_gather", {w, at}, attrs_of(f))[0].same_as(want)) << f.name;
    ir::Attrs packed = attrs_of(f);
    packed.set("packed", int64_t{1});
    EXPECT_TRUE(testing::run("block_gather", {w, at}, packed)[0].same_as(want)) << f.name;
    EXPECT_THROW(testing::run("block_gather", {w, testing::ints({19})}, attrs_of(f)), base::Error);
  }
}

TEST(Blocks, RowsOf16Bits) {
  const tensor::BlockFormat& f = tensor::need_block_format("q4_k");
  const Tensor w = blocks_of(f, 5, 512);
  const Tensor x = testing::random_tensor(DType::f32, {4, 512}, -1, 1, 4);
  const Tensor want = testing::run("block_linear", {x, w}, attrs_of(f, "f32"))[0];
  const Tensor half = testing::run("cast", {x}, {{"to", int64_t{16}}})[0];
  const Tensor got = testing::run("block_linear", {half, w}, attrs_of(f, "f32"))[0];
  EXPECT_EQ(got.dtype(), DType::bf16);
  expect_small_error(got, want, 0.01, "bf16");
}

std::string said_of(const char* op, const std::vector<Tensor>& in, const ir::Attrs& attrs) {
  try {
    testing::run(op, in, attrs);
    return "";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
    return e.message();
  }
}

TEST(Blocks, WhatIsNoMatrixInBlocksIsAnError) {
  const tensor::BlockFormat& f = tensor::need_block_format("q4_0");
  const Tensor w = blocks_of(f, 3, 64), x = testing::random_tensor(DType::f32, {2, 64}, -1, 1);
  const auto expect = [&](const std::string& part, const std::string& said) {
    EXPECT_NE(said.find(part), std::string::npos) << said;
  };
  expect("no block format", said_of("dequantize_blocks", {w}, {{"format", std::string("q4")}}));
  expect("no block format", said_of("dequantize_blocks", {w}, {}));
  expect("no whole blocks", said_of("dequantize_blocks", {Tensor::zeros(DType::u8, {3, 35})}, attrs_of(f)));
  expect("u8 [n, bytes of a row]", said_of("dequantize_blocks", {x}, attrs_of(f)));
  expect("neither f32 nor q8", said_of("block_linear", {x, w}, attrs_of(f, "q4")));
  expect("do not meet weights", said_of("block_linear", {x, w}, attrs_of(f, "bf16")));
  for (const char* name : {"bf16", "f16"}) {
    const tensor::BlockFormat& floats = tensor::need_block_format(name);
    expect("do not meet weights",
           said_of("block_linear", {x, blocks_of(floats, 3, 64)}, attrs_of(floats, "q8")));
  }
  expect("for weights of depth 64",
         said_of("block_linear", {Tensor::zeros(DType::f32, {2, 32}), w}, attrs_of(f)));
  expect("bias", said_of("block_linear", {x, w, Tensor::zeros(DType::f32, {4})}, attrs_of(f)));
  const Tensor none;
  expect("the norm's scale",
         said_of("block_linear", {x, w, none, Tensor::zeros(DType::f32, {3})}, attrs_of(f)));
  expect("a residual", said_of("block_linear", {x, w, none, none, x}, attrs_of(f)));
  ir::Attrs gated = attrs_of(f);
  gated.set("gated", int64_t{1});
  expect("two equal matrices", said_of("block_linears", {x, w, blocks_of(f, 4, 64)}, gated));
  expect("indices must be", said_of("block_gather", {w, x}, attrs_of(f)));
}

}  // namespace
}  // namespace trireme::ops
