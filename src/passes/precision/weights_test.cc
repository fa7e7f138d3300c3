// Storing weights: which products are replaced and by what, the report, and the results of the graph.
#include "passes/precision/weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "ops/weight_only/weight_only.h"
#include "ops/table.h"
#include "passes/pass.h"
#include "passes/precision/byte_products.h"

namespace trireme::passes {
namespace {

using tensor::Tensor;

constexpr const char* kNet = R"(graph "g"
  %0 = input "x" : f32[3,64]
  %1 = param "w" : f32[64,96]#seed=1
  %2 = param "v" : f32[64,96]#seed=2
  %3 = param "b" : f32[1,64]#seed=3
  %4 = param "u" : f32[64,64]#seed=4
  %5 = param "c" : f32[64]#seed=5
  %6 = param "t" : f32[64,5]#seed=6
  %7 = matmul(%0, %1)
  %8 = gemm(%7, %2, %3) {transB=1}
  %9 = linear(%8, %4, %5, %0) {activation="relu"}
  %10 = matmul(%9, %6)
  return %10 "y"
)";

ir::Graph net() {
  ir::Graph g = ir::parse(kNet, ops::table());
  g.sort();
  return g;
}

/// The ops of a graph in order, with the extents of their results.
std::string shape_outline(const ir::Graph& g) {
  std::string out;
  for (const ir::Node& n : g.nodes()) {
    if (n.op != nullptr)
      out += base::concat(n.op_name(), " ", g.type(n.out[0]).shape.to_string(), " of ", n.in.size(), "\n");
  }
  return out;
}

TEST(StoreWeights, ProductsWithConstantMatrices) {
  ir::Graph g = net();
  const WeightReport report =
      store_weights(g, {.weights = WeightBits::int8, .weight_group = 32, .least_elements = 1000});
  EXPECT_EQ(shape_outline(g),
            "weight_only_linear [3,96] of 3\n"
            "weight_only_linear [3,64] of 5\n"
            "weight_only_linear [3,64] of 5\n"
            "add [3,64] of 2\n"
            "relu [3,64] of 1\n"
            "matmul [3,5] of 2\n");
  ASSERT_EQ(report.rows.size(), 4u);
  EXPECT_EQ(report.stored(), 3u);
  EXPECT_EQ(report.rows[3].why, "few weights");
  EXPECT_EQ(report.rows[0].bytes_before, 64 * 96 * 4);
  EXPECT_EQ(report.rows[0].bytes_after, 64 * 96 + 64 * 96 / 32 * 4);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GT(report.rows[i].relative, 1e-4);
    EXPECT_LT(report.rows[i].relative, 0.01);
  }
  EXPECT_NE(report.text().find("3 of 4 matrices stored"), std::string::npos) << report.text();
}

/// Files may give one range of bytes two names, with extents of their own.
TEST(StoreWeights, ViewsOfOneMemoryAreStoredApart) {
  Tensor w = Tensor::empty(tensor::DType::f32, {64, 128});
  base::Rng rng(1);
  for (float& v : w.mutable_data<float>()) v = static_cast<float>(rng.normal());
  ir::Graph g;
  const ir::ValueId x = g.add_input("x", {tensor::DType::f32, {3, 64}});
  const ir::ValueId y = g.add1(ops::table().need("matmul"), {x, g.add_param("w", w)});
  g.add_output(g.add1(ops::table().need("matmul"), {y, g.add_param("v", w.reshaped({128, 64}))}), "y");
  StoredWeightCache cache;
  store_weights(g, {.weights = WeightBits::int8, .weight_group = 32, .least_elements = 1}, &cache);
  EXPECT_EQ(shape_outline(g), "weight_only_linear [3,128] of 3\nweight_only_linear [3,64] of 3\n");
}

TEST(StoreWeights, GroupsThatDoNotDivideTheDepthStay) {
  ir::Graph g = net();
  const WeightReport report =
      store_weights(g, {.weights = WeightBits::int4, .weight_group = 64, .least_elements = 1});
  EXPECT_EQ(report.stored(), 3u);  // those of depth 64; the gemm has 96
  EXPECT_NE(report.rows[1].why.find("a depth of 96"), std::string::npos) << report.rows[1].why;
  EXPECT_THROW(store_weights(g, {.weights = WeightBits::int8, .weight_group = 48}), base::Error);
}

TEST(StoreWeights, BlockFormatsUnderProductsAndLookups) {
  ir::Graph g = ir::parse(R"(graph "g"
  %0 = input "at" : i64[3]
  %1 = param "w" : f32[40,256]#seed=1
  %2 = param "v" : f32[96,256]#seed=2
  %3 = param "u" : f32[96,32]#seed=3
  %4 = param "t" : f32[32,40]#seed=4
  %5 = param "s" : f32[40,24]#seed=5
  %6 = gather(%1, %0)
  %7 = gemm(%6, %2) {transB=1}
  %8 = matmul(%7, %3)
  %9 = linear(%8, %4)
  %10 = matmul(%9, %5)
  %11 = gemm(%6, %1) {transB=1}
  return %10 "y", %11 "z"
)",
                          ops::table());
  g.sort();
  const WeightReport report = store_weights(g, {.weights = WeightBits::q4_k, .least_elements = 1});
  EXPECT_EQ(shape_outline(g),
            "block_gather [3,256] of 2\n"
            "block_linear [3,96] of 2\n"
            "block_linear [3,32] of 2\n"
            "block_linear [3,40] of 2\n"
            "matmul [3,24] of 2\n"
            "block_linear [3,40] of 2\n");
  const char* formats[] = {"q4_k", "q4_k", "q8_0", "q8_0", "", "q4_k"};
  ASSERT_EQ(report.rows.size(), 6u);
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(report.rows[i].format, formats[i]) << i;
  EXPECT_NE(report.rows[4].why.find("no multiple of 32"), std::string::npos) << report.rows[4].why;
  EXPECT_EQ(report.rows[0].bytes_after, 40 * 144);
  EXPECT_NEAR(report.rows[0].relative, 0.07, 0.02);
  EXPECT_NEAR(report.rows[1].rows_error, 0.005, 0.002);
  // The lookup and the last product share one matrix in memory.
  EXPECT_EQ(g.nodes()[0].in[0], g.nodes()[5].in[1]);
  EXPECT_EQ(g.nodes()[0].attrs.get_int("packed", 0), 1);
  for (const ir::Node& n : g.nodes()) {
    if (n.op_name() != "block_linear") continue;
    EXPECT_EQ(n.attrs.get_string("rows", ""), "q8");
  }
  // For weights that are blocks already only the type of rows is set.
  store_weights(g, {.weight_rows = ops::BlockRows::f32});
  for (const ir::Node& n : g.nodes()) {
    if (n.op_name() != "block_linear") continue;
    EXPECT_EQ(n.attrs.get_string("rows", ""), "f32");
  }
}

TEST(StoreWeights, WeightsThatAreNotFiniteHaveNoBlocks) {
  ir::Graph g = net();
  g.value(ir::ValueId(1)).data = Tensor::from<float>({64, 96}, std::vector<float>(64 * 96, INFINITY));
  EXPECT_THROW(store_weights(g, {.weights = WeightBits::q8_0, .least_elements = 1}), base::Error);
}

/// The output of the graph, computed node by node.
Tensor value_of(const ir::Graph& g, const Tensor& x) {
  base::ThreadPool pool(1);
  std::vector<Tensor> at(g.values().size());
  for (size_t i = 0; i < at.size(); ++i) at[i] = g.values()[i].data;
  at[ir::index(g.inputs()[0])] = x;
  for (const ir::Node& n : g.nodes()) {
    if (n.op == nullptr) continue;
    std::vector<Tensor> in;
    for (ir::ValueId id : n.in) in.push_back(id == ir::kNoValue ? Tensor() : at[ir::index(id)]);
    at[ir::index(n.out[0])] = ops::evaluate(ops::table().need(n.op_name()), n.attrs, in, 1, pool)[0];
  }
  return at[ir::index(g.outputs()[0])];
}

Tensor random_rows(tensor::Dims dims, uint64_t seed) {
  Tensor x = Tensor::empty(tensor::DType::f32, std::move(dims));
  base::Rng rng(seed);
  for (float& v : x.mutable_data<float>()) v = static_cast<float>(rng.normal());
  return x;
}

TEST(StoreWeights, TheGraphComputesNearlyTheSame) {
  const Tensor x = random_rows({3, 64}, 7);
  const std::vector<double> want = value_of(net(), x).to_doubles();
  double largest = 0;
  for (double v : want) largest = std::max(largest, std::abs(v));
  for (const bool zeros : {false, true}) {
    for (const WeightBits bits : {WeightBits::int8, WeightBits::int4, WeightBits::q8_0, WeightBits::q4_0}) {
      ir::Graph g = net();
      store_weights(g, {.weights = bits, .weight_group = 32, .weight_zeros = zeros, .least_elements = 1});
      const std::vector<double> got = value_of(g, x).to_doubles();
      const double off = bits == WeightBits::int8 || bits == WeightBits::q8_0 ? 0.03 : 0.3;
      for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], off * largest) << i;
    }
  }
}

/// Two products with one matrix and one with another, of depth 256.
constexpr const char* kDeep = R"(graph "g"
  %0 = input "x" : f32[5,256]
  %1 = param "w" : f32[256,256]#seed=1
  %2 = param "v" : f32[40,256]#seed=2
  %3 = param "c" : f32[40]#seed=3
  %4 = gemm(%0, %1) {transB=1}
  %5 = gemm(%4, %1) {transB=1}
  %6 = gemm(%5, %2, %3) {transB=1}
  return %6 "y"
)";

TEST(ByteProducts, ReadGroupsAsBlocksExactly) {
  const Tensor x = random_rows({5, 256}, 8);
  for (const WeightBits bits : {WeightBits::int4, WeightBits::int8}) {
    for (const int64_t group : {32, 64, 128}) {
      for (const bool zeros : {false, true}) {
        SCOPED_TRACE(base::concat(bits == WeightBits::int4 ? 4 : 8, " bits in groups of ", group,
                                  zeros ? " with zero points" : ""));
        ir::Graph g = ir::parse(kDeep, ops::table());
        g.sort();
        store_weights(g,
                      {.weights = bits, .weight_group = group, .weight_zeros = zeros, .least_elements = 1});
        const std::vector<double> want = value_of(g, x).to_doubles();
        size_t matrices = 0;
        EXPECT_EQ(use_byte_products(g, ops::BlockRows::q8,
                                    [&](const Tensor& codes) {
                                      EXPECT_EQ(codes.dtype(), tensor::DType::u8);
                                      ++matrices;
                                    }),
                  3u);
        EXPECT_EQ(matrices, 2u);  // the first is read twice and converted once
        EXPECT_EQ(shape_outline(g),
                  "block_linear [5,256] of 2\nblock_linear [5,256] of 2\nblock_linear [5,40] of 3\n");
        double largest = 0;
        for (double v : want) largest = std::max(largest, std::abs(v));
        const std::vector<double> rounded = value_of(g, x).to_doubles();
        store_weights(g, {.weight_rows = ops::BlockRows::f32});
        const std::vector<double> exact = value_of(g, x).to_doubles();
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_NEAR(exact[i], want[i], 1e-5 * largest) << i;
          EXPECT_NEAR(rounded[i], want[i], 0.03 * largest) << i;
        }
      }
    }
  }
}

TEST(ByteProducts, FloatsOf16BitsAreBlocksWhereTheyLie) {
  using Rows = ops::BlockRows;
  for (const auto& [type, rows] : {std::pair("bf16", Rows::q8), std::pair("bf16", Rows::bf16),
                                   std::pair("f16", Rows::bf16), std::pair("bf16", Rows::f32)}) {
    ir::Graph g = ir::parse(base::concat(R"(graph "g"
  %0 = input "x" : f32[5,64]
  %1 = param "h" : )",
                                         type, R"([40,64]#seed=2
  %2 = weight_only_linear(%0, %1) {}
  return %2 "y"
)"),
                            ops::table());
    g.sort();
    const Tensor x = random_rows({5, 64}, 3);
    const std::vector<double> want = value_of(g, x).to_doubles();
    const std::byte* bytes = g.known(g.nodes()[0].in[1])->raw();
    EXPECT_EQ(use_byte_products(g, rows, [](const Tensor&) { FAIL() << "nothing was copied"; }), 1u);
    const ir::Node& product = g.nodes().back();
    EXPECT_EQ(product.op_name(), "block_linear");
    EXPECT_EQ(g.known(product.in[1])->raw(), bytes);
    EXPECT_EQ(g.value(product.in[1]).name, "h");
    const std::vector<double> got = value_of(g, x).to_doubles();
    const bool rounds = rows == Rows::bf16 && std::string_view(type) == "bf16";
    EXPECT_EQ(product.attrs.get_string("rows", ""), rounds ? "bf16" : "f32");
    double largest = 0;
    for (double v : want) largest = std::max(largest, std::abs(v));
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(got[i], want[i], (rounds ? 5e-3 : 1e-6) * largest) << type << " " << i;
  }
}

TEST(ByteProducts, LeaveWhatIsFed) {
  ir::Graph g = ir::parse(R"(graph "g"
  %0 = input "x" : f32[5,64]
  %1 = input "h" : bf16[40,64]
  %2 = input "w" : u8[40,32]
  %3 = param "s" : f32[40,2]#seed=4
  %4 = weight_only_linear(%0, %1) {}
  %5 = weight_only_linear(%0, %2, %3) {bits=4,group=32}
  return %4 "y", %5 "z"
)",
                          ops::table());
  g.sort();
  const std::string before = ir::print(g);
  EXPECT_EQ(use_byte_products(g, ops::BlockRows::q8, [](const Tensor&) { FAIL(); }), 0u);
  EXPECT_EQ(ir::print(g), before);
}

}  // namespace
}  // namespace trireme::passes
