// block_attention against its parts. With constant weights the kernel runs; with fed weights the expansion
// does, whose products are sums in f64. Results do not depend on other rows, on pieces or on the team.
#include "ops/blocks/block_attention.h"

#include "base/rng.h"
#include "tests/paged_cases.h"

namespace trireme::ops {
namespace {

using namespace paged_cases;

struct Trial {
  Case c;
  int64_t rotated = 0, interleaved = 0;
  const char* format = "q4_0";
  bool has_norm = true, has_bias = false;
  const char* value_format = nullptr;  // null: the same as `format`
};

Tensor blocks_of(const char* format, int64_t n, int64_t k, uint32_t seed) {
  const tensor::BlockFormat& f = tensor::need_block_format(format);
  const Tensor w = random_tensor({n, k}, seed, 1.0f / std::sqrt(static_cast<float>(k)));
  Tensor out = Tensor::empty(DType::u8, {n, f.row_bytes(k)});
  f.encode(w.data<float>().data(), n * k / f.weights, reinterpret_cast<uint8_t*>(out.mutable_raw()), nullptr);
  return out;
}

/// The operands of a trial; `x` replaces the queries of the decoding step.
std::vector<Tensor> operands(const Trial& t, const Tensor& x, std::vector<Tensor> step) {
  const int64_t k = x.dims().back(), q = t.c.heads * t.c.dim, kv = t.c.kv_heads * t.c.dim;
  std::vector<Tensor> in{x, blocks_of(t.format, q, k, 32), blocks_of(t.format, kv, k, 33),
                         blocks_of(t.value_format == nullptr ? t.format : t.value_format, kv, k, 34)};
  in.insert(in.end(), step.begin() + kDaKeyPages, step.end());
  in.resize(kBaNorm);
  in.push_back(t.has_norm ? random_tensor({k}, 31) : Tensor());
  in.push_back(t.has_bias ? random_tensor({q}, 35) : Tensor());
  in.push_back(Tensor());
  in.push_back(t.has_bias ? random_tensor({kv}, 36) : Tensor());
  return in;
}

ir::Attrs attrs_of(const Trial& t) {
  ir::Attrs attrs = t.c.attrs();
  attrs.set("interleaved", t.interleaved);
  set_block_formats(attrs, {t.format, t.format, t.value_format == nullptr ? t.format : t.value_format});
  attrs.set("epsilon", 1e-4);
  if (tensor::need_block_format(t.format).is_floats())
    attrs.set("rows", std::string(t.value_format == nullptr ? t.format : "f32"));
  return attrs;
}

std::vector<Tensor> run(const Trial& t, const std::vector<Tensor>& in, int threads) {
  const auto results = tests::run_kernels("block_attention", attrs_of(t), in, 3, {}, threads);
  EXPECT_EQ(results.size(), 1u);
  return results.at(0).out;
}

/// Expects two tensors to be close; in pages, NaN marks what nobody wrote.
void expect_near(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  const auto a = got.to_doubles(), b = want.to_doubles();
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    ASSERT_NEAR(a[i], b[i], tolerance * (1 + std::abs(b[i]))) << what << " at " << i;
  }
}

TEST(BlockAttention, IsItsParts) {
  const std::vector<Trial> trials{
      {{4, 2, 16, 16, {5, 300, 1}, {1, 1, 1}}, 16},
      {{4, 2, 16, 16, {700}, {1}}, 0, 0, "q8_0", false, true},
      {{4, 4, 8, 4, {9, 3}, {9, 3}}, 4, 1, "q4_0", true, true},  // heads are not whole groups of rows
      {{6, 1, 128, 16, {260, 255}, {40, 4}, DType::bf16, DType::f32, 2}, 128, 0, "q4_k"},
      {{2, 2, 24, 7, {300, 520}, {150, 2}, DType::f32, DType::f32, 0, 256, 0.5}, 24},
      {{4, 2, 32, 16, {90, 17}, {1, 5}}, 32, 0, "q4_k", true, false, "q6_k"},
      {{4, 2, 32, 16, {90, 17}, {1, 5}}, 32, 0, "bf16", true, true},
      {{4, 2, 32, 16, {90, 17}, {1, 5}}, 0, 0, "f16", false, true, "bf16"},
      {{8, 2, 64, 16, std::vector<int>(16, 40), std::vector<int>(16, 1), DType::f16}, 64},
      {{2, 1, 32, 16, {0, 20, 0}, {0, 4, 0}, DType::f32, DType::f32, 2}, 32},
  };
  for (const Trial& t : trials) {
    const auto step = decode_operands(t.c, t.rotated, DType::f32);
    const Tensor x = random_tensor({1, step[0].dims()[1], 512}, 41);
    const std::vector<Tensor> in = operands(t, x, step);
    base::ThreadPool pool(2);
    HostRun parts(pool);
    parts.fed = {kBaQuery, kBaKey, kBaValue};  // with fed matrices no kernel accepts the node
    const auto want = evaluate(table().need("block_attention"), attrs_of(t), in, 3, parts);
    const auto alone = run(t, in, 1);
    const double tolerance = t.c.pages == DType::f32 ? 1e-4 : 2e-2;
    for (size_t i = 0; i < 3; ++i)
      expect_near(alone[i], want[i], tolerance, base::concat(t.format, " dim ", t.c.dim, " result ", i));
    for (const int threads : {2, 3, 5}) {
      const auto team = run(t, in, threads);
      for (size_t i = 0; i < 3; ++i)
        EXPECT_EQ(std::memcmp(team[i].raw(), alone[i].raw(), static_cast<size_t>(team[i].bytes())), 0)
            << t.format << ", " << threads << " threads, result " << i;
    }
  }
}

/// Each row gives the same alone as together with rows of other sequences.
TEST(BlockAttention, RowsDoNotDependOnMates) {
  const Trial one{{4, 2, 16, 16, {300}, {3}}, 16};
  const Tensor x = random_tensor({1, 3, 64}, 41), others = random_tensor({1, 6, 64}, 42);
  const std::vector<Tensor> step = decode_operands(one.c, 16, DType::f32);
  const Tensor want = run(one, operands(one, x, step), 2)[0];
  // Two more sequences precede it, with other pages of the same pool; their rows have slot -1 and append
  // nothing.
  std::vector<Tensor> wide = step;
  Tensor rows = Tensor::empty(DType::f32, {1, 9, 64});
  std::copy_n(others.data<float>().data(), 6 * 64, rows.mutable_data<float>().data());
  std::copy_n(x.data<float>().data(), 3 * 64, rows.mutable_data<float>().data() + 6 * 64);
  const auto slots = step[kDaSlots].to_ints(), pages = step[kDaTable].to_ints(),
             positions = step[kDaPositions].to_ints();
  std::vector<int32_t> all_slots(6, -1), table, starts{0, 3, 6, 9}, lengths{200, 20, 300};
  std::vector<int64_t> all_positions(6, 2);
  for (int s = 0; s < 3; ++s) table.insert(table.end(), pages.begin(), pages.end());
  all_slots.insert(all_slots.end(), slots.begin(), slots.end());
  all_positions.insert(all_positions.end(), positions.begin(), positions.end());
  const auto most = static_cast<int64_t>(pages.size());
  wide[kDaSlots] = ints({9}, all_slots);
  wide[kDaTable] = ints({3, most}, table);
  wide[kDaLengths] = ints({3}, lengths);
  wide[kDaStarts] = ints({4}, starts);
  wide[kDaPositions] = Tensor::from<int64_t>({1, 9}, std::span<const int64_t>(all_positions));
  for (const int threads : {1, 3}) {
    const Tensor got = run(one, operands(one, rows, wide), threads)[0];
    EXPECT_EQ(std::memcmp(got.data<float>().data() + 6 * 64, want.raw(), static_cast<size_t>(want.bytes())),
              0);
  }
}

TEST(BlockAttention, ReportsWhatDoesNotFit) {
  const Trial t{{4, 2, 16, 16, {20, 5}, {2, 5}}, 16};
  const auto step = decode_operands(t.c, 16, DType::f32);
  const std::vector<Tensor> good = operands(t, random_tensor({1, 7, 64}, 41), step);
  const auto said = [&](size_t operand, const Tensor& by) {
    std::vector<Tensor> in = good;
    in[operand] = by;
    base::ThreadPool pool(2);
    try {
      evaluate(table().need("block_attention"), attrs_of(t), in, 3, pool);
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument) << e.message();
      return e.message();
    }
    return std::string();
  };
  EXPECT_EQ(said(kBaX, good[kBaX]), "");
  EXPECT_NE(said(kBaX, random_tensor({1, 7, 32}, 1)).find("depth"), std::string::npos);
  EXPECT_NE(said(kBaNorm, random_tensor({3}, 1)).find("norm"), std::string::npos);
  EXPECT_NE(said(kBaKeyBias, random_tensor({3}, 1)).find("bias"), std::string::npos);
  EXPECT_NE(said(kBaSlots, ints({7}, {0, 1, 2, 3, 4, 5, 1 << 20})).find("slot out of range"),
            std::string::npos);
  EXPECT_NE(said(kBaLengths, ints({2}, {1, 5})).find("fewer tokens"), std::string::npos);
}

}  // namespace
}  // namespace trireme::ops
