// Products over experts against naive loops in double, the dense expansion, and products with one matrix,
// whose bits they must have; also how much of the weights they read.
#include "ops/experts/experts.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <mutex>
#include <random>
#include <set>

#include "backend/cpu/blocks/block_groups.h"
#include "ops/test_eval.h"
#include "ops/test_grad.h"
#include "tests/cut_trial.h"
#include "tests/run_kernels.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;

/// Random choices of a router, and the other operands of a product over experts.
struct Case {
  int64_t tokens, choices, experts, n, k;
  bool sums, has_bias;

  static Case random(std::mt19937& engine, int64_t unit) {
    const auto below = [&](int64_t most) {
      return static_cast<int64_t>(engine() % static_cast<uint32_t>(most));
    };
    Case c{.tokens = 1 + below(20), .choices = 1, .experts = 1 + below(12)};
    c.choices = 1 + below(std::min<int64_t>(4, c.experts));
    c.n = unit * (1 + below(4));
    c.k = unit == 1 ? 1 + below(70) : 128 * (1 + below(2));
    if (unit == 1) c.n = 1 + below(70);
    c.sums = below(2) == 1;
    c.has_bias = below(2) == 1;
    return c;
  }
  Tensor x() const {
    return tests::random_tensor(sums ? Dims{tokens, choices, k} : Dims{tokens, k}, 3, 0.5f);
  }
  Tensor bias() const { return has_bias ? tests::random_tensor({experts, n}, 4) : Tensor(); }
  Tensor shares() const { return sums ? tests::random_tensor({tokens, choices}, 5) : Tensor(); }
  /// Chooses different experts for each token.
  Tensor chosen(uint32_t seed) const {
    std::mt19937 engine(seed);
    Tensor t = Tensor::empty(DType::i64, {tokens, choices});
    for (int64_t i = 0; i < tokens; ++i) {
      std::set<int64_t> own;
      while (static_cast<int64_t>(own.size()) < choices)
        own.insert(static_cast<int64_t>(engine() % static_cast<uint32_t>(experts)));
      std::vector<int64_t> order(own.begin(), own.end());
      std::shuffle(order.begin(), order.end(), engine);
      std::copy(order.begin(), order.end(), t.mutable_data<int64_t>().begin() + i * choices);
    }
    return t;
  }
  std::string text() const {
    return base::concat(tokens, "x", choices, " of ", experts, " experts [", n, ", ", k, "]",
                        sums ? " summed" : "", has_bias ? " with bias" : "");
  }
};

/// Drops absent operands at the end.
std::vector<Tensor> operands(std::vector<Tensor> in) {
  while (!in.back().defined()) in.pop_back();
  return in;
}

std::vector<double> naive(const Case& c, const Tensor& chosen, const Tensor& weights) {
  const auto x = c.x().to_doubles(), w = weights.to_doubles();
  const auto bias = c.has_bias ? c.bias().to_doubles() : std::vector<double>{};
  const auto shares = c.sums ? c.shares().to_doubles() : std::vector<double>{};
  const auto at = chosen.to_ints();
  std::vector<double> y(static_cast<size_t>(c.tokens * (c.sums ? 1 : c.choices) * c.n), 0);
  for (int64_t row = 0; row < c.tokens * c.choices; ++row) {
    const int64_t e = at[static_cast<size_t>(row)], from = c.sums ? row : row / c.choices;
    for (int64_t n = 0; n < c.n; ++n) {
      double sum = c.has_bias ? bias[static_cast<size_t>(e * c.n + n)] : 0;
      for (int64_t k = 0; k < c.k; ++k)
        sum += x[static_cast<size_t>(from * c.k + k)] * w[static_cast<size_t>((e * c.n + n) * c.k + k)];
      const int64_t to = c.sums ? row / c.choices : row;
      y[static_cast<size_t>(to * c.n + n)] += c.sums ? shares[static_cast<size_t>(row)] * sum : sum;
    }
  }
  return y;
}

TEST(Experts, RandomRoutersEqualNaiveLoopsAndTheDenseExpansion) {
  std::mt19937 engine(7);
  for (uint32_t round = 0; round < 40; ++round) {
    const Case c = Case::random(engine, 1);
    const Tensor w = tests::random_tensor({c.experts, c.n, c.k}, 6, 0.3f), chosen = c.chosen(round);
    const auto in = operands({c.x(), chosen, w, c.bias(), c.shares()});
    const std::vector<double> want = naive(c, chosen, w);
    const auto results = tests::run_kernels("expert_linear", {}, in);
    ASSERT_EQ(results.size(), 2u) << c.text();
    for (const auto& r : results) tests::expect_close(r.out[0], want, 2e-5, 2e-5, r.kernel + " " + c.text());
    tests::expect_close(tests::run_expanded("expert_linear", {}, in)[0], want, 2e-5, 2e-5, c.text());
  }
}

/// One storage form of weights: the operator over experts, the one with a single matrix, and their operands.
struct Way {
  std::string name, experts, one;
  ir::Attrs attrs;
  std::vector<Tensor> weights;  ///< weights of all experts, by rows
  ExpertPlaces at;
  bool rounds() const { return attrs.get_string("rows", "f32") != "f32"; }
};

/// All storage forms with the same extents.
std::vector<Way> ways(const Case& c) {
  const Dims all{c.experts * c.n, c.k};
  std::vector<Way> list;
  list.push_back({"f32", "expert_linear", "linear", {}, {tests::random_tensor(all, 6)}, kExpertPlaces});
  for (const int64_t bits : {8, 4}) {
    for (const bool has_zero : {false, true}) {
      const Dims groups{all[0], c.k / 32};
      std::vector<Tensor> w{tests::random_bytes<uint8_t>({all[0], c.k * bits / 8}, 8, 0, 255),
                            tests::random_tensor(groups, 9, 0.02f)};
      if (has_zero) w.push_back(tests::random_bytes<int8_t>(groups, 10, bits == 8 ? -20 : 0, 15));
      list.push_back({base::concat("int", bits, has_zero ? " with zeros" : ""),
                      "weight_only_experts",
                      "weight_only_linear",
                      {{"bits", bits}, {"group", int64_t{32}}},
                      w,
                      kExpertStoredPlaces});
    }
  }
  for (const auto& [type, onnx] : {std::pair{"bf16", 16}, std::pair{"f16", 10}})
    list.push_back({type,
                    "weight_only_experts",
                    "weight_only_linear",
                    {},
                    {testing::run("cast", {tests::random_tensor(all, 6)}, {{"to", int64_t{onnx}}})[0]},
                    kExpertStoredPlaces});
  for (const char* format : {"q4_0", "q8_0", "q4_k", "q6_k", "mxfp4", "int4_g32", "bf16", "f16"}) {
    const tensor::BlockFormat& f = tensor::need_block_format(format);
    if (c.k % f.weights != 0) continue;
    Tensor w = Tensor::empty(DType::u8, {all[0], f.row_bytes(c.k)});
    const Tensor values = tests::random_tensor(all, 6);
    f.encode(values.data<float>().data(), all[0] * c.k / f.weights,
             reinterpret_cast<uint8_t*>(w.mutable_raw()), nullptr);
    for (const std::string_view rows : {"f32", "q8", "bf16"}) {
      if (rows != "f32" && rows != (f.is_floats() ? f.name : "q8")) continue;
      list.push_back({base::concat(format, " ", rows),
                      "block_experts",
                      "block_linear",
                      {{"format", std::string(format)}, {"rows", std::string(rows)}},
                      {w},
                      kExpertPlaces});
    }
  }
  return list;
}

std::vector<Tensor> operands_of(const Way& way, const Case& c, const Tensor& chosen) {
  std::vector<Tensor> in{c.x(), chosen};
  for (const Tensor& w : way.weights) in.push_back(w);
  if (way.experts == "expert_linear") in[2] = in[2].reshaped({c.experts, c.n, c.k});
  in.resize(way.at.shares + 1);
  in[way.at.bias] = c.bias();
  in[way.at.shares] = c.shares();
  return operands(in);
}

ir::Attrs attrs_of(const Way& way, const Case& c) {
  ir::Attrs attrs = way.attrs;
  if (way.experts != "expert_linear") attrs.set("experts", c.experts);
  return attrs;
}

/// The result of the first kernel.
Tensor run(const Way& way, const Case& c, const Tensor& chosen, int threads = 3) {
  return tests::run_kernels(way.experts, attrs_of(way, c), operands_of(way, c, chosen), 1, {}, threads)
      .at(0)
      .out[0];
}

/// x [k] multiplied by the matrix of one expert.
Tensor product(const Way& way, const Case& c, const Tensor& x, int64_t expert) {
  std::vector<Tensor> in{x};
  for (const Tensor& w : way.weights) in.push_back(w.rows(expert * c.n, (expert + 1) * c.n));
  ir::Attrs attrs = way.attrs;
  if (way.one == "linear") attrs.set("transposed", int64_t{1});
  if (c.has_bias) {
    in.resize(way.one == "weight_only_linear" ? 5 : 3);
    in.back() = c.bias().rows(expert, expert + 1).reshaped({c.n});
  }
  return tests::run_kernels(way.one, attrs, in).at(0).out[0];
}

TEST(Experts, EachRowHasTheBitsOfAProductByItsExpertAlone) {
  std::mt19937 engine(11);
  for (uint32_t round = 0; round < 6; ++round) {
    Case c = Case::random(engine, 16);
    c.sums = false;
    if (round % 2 == 0) c.k = 256;
    const Tensor chosen = c.chosen(round), x = c.x();
    for (const Way& way : ways(c)) {
      const Tensor y = run(way, c, chosen).reshaped({c.tokens * c.choices, c.n});
      EXPECT_TRUE(run(way, c, chosen, 1).reshaped(y.dims()).same_as(y)) << way.name;
      for (int64_t row = 0; row < c.tokens * c.choices; ++row) {
        const int64_t token = row / c.choices, e = chosen.to_ints()[static_cast<size_t>(row)];
        const Tensor alone = product(way, c, x.rows(token, token + 1), e);
        ASSERT_TRUE(y.rows(row, row + 1).same_as(alone)) << way.name << " " << c.text() << " row " << row;
      }
    }
  }
}

TEST(Experts, StoredWeightsEqualTheDenseExpansion) {
  std::mt19937 engine(13);
  for (uint32_t round = 0; round < 8; ++round) {
    const Case c = Case::random(engine, 16);
    const Tensor chosen = c.chosen(round);
    for (const Way& way : ways(c)) {
      const Tensor want = tests::run_expanded(way.experts, attrs_of(way, c), operands_of(way, c, chosen))[0];
      const bool rounds = way.rounds();
      tests::expect_close(run(way, c, chosen), want.to_doubles(), rounds ? 0.05 : 1e-4, rounds ? 0.5 : 1e-3,
                          way.name + " " + c.text());
    }
  }
}

TEST(Experts, ATokenDoesNotDependOnItsMates) {
  std::mt19937 engine(17);
  const Case c{.tokens = 13, .choices = 3, .experts = 7, .n = 48, .k = 256, .sums = true, .has_bias = true};
  const Tensor chosen = c.chosen(1);
  for (const Way& way : ways(c)) {
    const Tensor all = run(way, c, chosen);
    for (int64_t t = 0; t < c.tokens; ++t) {
      std::vector<Tensor> in = operands_of(way, c, chosen);
      for (const size_t i : {size_t{kExX}, size_t{kExChosen}, way.at.shares}) in[i] = in[i].rows(t, t + 1);
      const Tensor alone = tests::run_kernels(way.experts, attrs_of(way, c), in, 1, {}, 1).at(0).out[0];
      ASSERT_TRUE(all.rows(t, t + 1).same_as(alone)) << way.name << " token " << t;
    }
  }
}

TEST(Experts, WrongChoicesAreReported) {
  const Case c{.tokens = 2, .choices = 1, .experts = 3, .n = 16, .k = 32, .sums = false, .has_bias = false};
  base::ThreadPool pool(1);
  for (const Way& way : ways(c)) {
    for (const int64_t bad : {int64_t{-1}, int64_t{3}}) {
      const Tensor chosen = Tensor::from<int64_t>({2, 1}, {0, bad});
      EXPECT_THROW(
          evaluate(table().need(way.experts), attrs_of(way, c), operands_of(way, c, chosen), 1, pool),
          base::Error)
          << way.name;
    }
  }
}

/// Memory that records which of its pages were read: pages are protected until the first access.
class WatchedMemory {
 public:
  explicit WatchedMemory(size_t bytes) : bytes_(bytes) {
    at_ = static_cast<std::byte*>(
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    base::check(at_ != MAP_FAILED, "no memory");
  }
  ~WatchedMemory() { munmap(at_, bytes_); }
  WatchedMemory(const WatchedMemory&) = delete;
  WatchedMemory& operator=(const WatchedMemory&) = delete;
  std::byte* at() const { return at_; }

  /// Bytes of the pages that `f` reads.
  template <class F>
  size_t read_by(const F& f) {
    watched_ = this;
    read_ = 0;
    opened_.clear();
    struct sigaction own {
    }, before{};
    own.sa_sigaction = [](int, siginfo_t* info, void*) { watched_->open(info->si_addr); };
    own.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &own, &before);
    mprotect(at_, bytes_, PROT_NONE);
    f();
    mprotect(at_, bytes_, PROT_READ | PROT_WRITE);
    sigaction(SIGSEGV, &before, nullptr);
    return read_;
  }

 private:
  void open(void* address) {
    const auto page = static_cast<size_t>(getpagesize());
    auto* first = at_ + static_cast<size_t>(static_cast<std::byte*>(address) - at_) / page * page;
    if (first < at_ || first >= at_ + bytes_) _exit(1);
    // Two threads may fault on one page: it is counted once. Locking in a signal handler is safe here,
    // because the threads were reading weights and not allocating.
    const std::lock_guard lock(mutex_);
    if (opened_.insert(first).second) read_ += page;
    mprotect(first, page, PROT_READ);
  }

  static inline WatchedMemory* watched_ = nullptr;
  std::byte* at_;
  size_t bytes_;
  std::atomic<size_t> read_{0};
  std::mutex mutex_;
  std::set<std::byte*> opened_;
};

/// Number of distinct experts among the choices of the first `tokens` tokens.
int64_t used(const Tensor& chosen, int64_t tokens) {
  const auto all = chosen.to_ints();
  return static_cast<int64_t>(std::set<int64_t>(all.begin(), all.begin() + tokens * chosen.dims()[1]).size());
}

TEST(Experts, OnlyTheWeightsOfChosenExpertsAreRead) {
  // 8 bits: an expert has 64 rows of 1024 weights, which are 16 pages.
  const Case whole{.tokens = 16, .choices = 2, .experts = 24, .n = 64, .k = 1024, .sums = false};
  const int64_t bytes = whole.n * whole.k;
  WatchedMemory memory(static_cast<size_t>(whole.experts * bytes));
  const Tensor codes = tests::random_bytes<uint8_t>({whole.experts * whole.n, whole.k}, 8, 0, 255);
  const Tensor scale = tests::random_tensor({whole.experts * whole.n, whole.k / 32}, 9, 0.02f);
  const Tensor chosen = whole.chosen(5);
  for (const int64_t tokens : {int64_t{1}, int64_t{16}}) {
    Case c = whole;
    c.tokens = tokens;
    std::memcpy(memory.at(), codes.raw(), static_cast<size_t>(codes.bytes()));
    const Tensor w = Tensor::view(DType::u8, codes.dims(), {memory.at(), static_cast<size_t>(codes.bytes())},
                                  std::shared_ptr<const void>(&memory, [](const void*) {}));
    const std::vector<Tensor> in{c.x(), chosen.rows(0, tokens), w, scale};
    const ir::Attrs attrs{{"bits", int64_t{8}}, {"group", int64_t{32}}, {"experts", c.experts}};
    const size_t read = memory.read_by([&] { tests::run_kernels("weight_only_experts", attrs, in); });
    EXPECT_EQ(static_cast<int64_t>(read), used(chosen, tokens) * bytes) << tokens << " tokens";
    EXPECT_EQ(used(chosen, 1), c.choices);
  }
}

TEST(Experts, OnlyTheBlocksOfChosenExpertsAreRead) {
  // q8_0: sixteen rows of 1024 weights take 17 KiB packed, so an expert of 64 rows has 17 pages.
  const Case c{.tokens = 16, .choices = 2, .experts = 24, .n = 64, .k = 1024, .sums = false};
  const tensor::BlockFormat& format = tensor::need_block_format("q8_0");
  const int64_t bytes = cpu::packed_block_bytes(format, c.n, c.k);
  ASSERT_EQ(bytes, 17 * 4096);
  WatchedMemory memory(static_cast<size_t>(c.experts * bytes));
  const Tensor rows = tests::random_bytes<uint8_t>({c.experts * c.n, format.row_bytes(c.k)}, 8, 0, 60);
  base::ThreadPool pool(2);
  const cpu::PackedBlocks packed =
      cpu::pack_blocks({&format, reinterpret_cast<const uint8_t*>(rows.raw()), c.experts * c.n, c.k},
                       reinterpret_cast<uint8_t*>(memory.at()), pool);
  const Tensor chosen = c.chosen(5), x = tests::random_tensor({32, c.k}, 3);
  Tensor y = Tensor::empty(DType::f32, {32, c.n});
  for (const int64_t tokens : {int64_t{1}, int64_t{16}}) {
    WatchedMemory fresh(static_cast<size_t>(c.experts * bytes));
    std::memcpy(fresh.at(), memory.at(), static_cast<size_t>(c.experts * bytes));
    cpu::PackedBlocks watched = packed;
    watched.data = reinterpret_cast<const uint8_t*>(fresh.at());
    std::vector<int64_t> place(32), source(32), counts(24);
    std::vector<cpu::RowGroup> groups(24);
    const auto own = chosen.to_ints();
    const auto sorted = cpu::group_rows({own.data(), static_cast<size_t>(tokens * c.choices)}, c.experts,
                                        {place.data(), source.data(), groups.data(), counts.data()});
    Tensor workspace = Tensor::empty(DType::u8, {cpu::block_groups_workspace(watched, 24, 32)});
    const size_t read = fresh.read_by([&] {
      cpu::block_groups({.groups = sorted,
                         .weights = watched,
                         .n = c.n,
                         .x = x.data<float>().data(),
                         .y = y.mutable_data<float>().data()},
                        workspace.mutable_raw(), pool);
    });
    EXPECT_EQ(static_cast<int64_t>(read), used(chosen, tokens) * bytes) << tokens << " tokens";
  }
}

TEST(Experts, CostCountsTheWeightsOfChosenExperts) {
  const ir::OpDef& op = table().need("expert_linear");
  const auto bytes = [&](int64_t tokens) {
    const ir::Attrs attrs;
    ir::NodeView n{.attrs = attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
    n.in = {{DType::f32, tensor::Shape{tokens, 64}},
            {DType::i64, tensor::Shape{tokens, 2}},
            {DType::f32, tensor::Shape{8, 32, 64}}};
    n.known.resize(3);
    n.is_present.resize(3, true);
    n.out = ir::infer_types(op.schema, n);
    return ir::cost_of(op.schema, n).bytes;
  };
  const double expert = 32 * 64 * 4, token = 64 * 4 + 2 * 8 + 2 * 32 * 4;
  EXPECT_EQ(bytes(1), 2 * expert + token);
  EXPECT_EQ(bytes(16), 8 * expert + 16 * token);
}

TEST(Experts, EveryCutAddsUp) {
  const auto values = [](Dims dims, uint64_t seed) {
    return testing::random_tensor(DType::f64, std::move(dims), -1, 1, seed);
  };
  const Tensor chosen = Tensor::from<int64_t>({2, 4, 2}, {0, 1, 2, 0, 1, 2, 2, 1, 0, 2, 1, 0, 0, 1, 2, 1});
  for (int parts : {2, 4}) {
    EXPECT_EQ(
        tests::expect_cuts({.op = "expert_linear",
                            .in = {values({2, 4, 12}, 1), chosen, values({3, 8, 12}, 2), values({3, 8}, 3)},
                            .parts = parts})
            .size(),
        parts == 2 ? 5u : 4u);
    EXPECT_EQ(tests::expect_cuts({.op = "expert_linear",
                                  .in = {values({2, 4, 2, 12}, 1), chosen, values({3, 8, 12}, 2),
                                         values({3, 8}, 3), values({2, 4, 2}, 4)},
                                  .parts = parts})
                  .size(),
              4u);
  }
}

/// What a rank that has experts [first, first + own.experts) makes of the rows of all experts' part.
Tensor run_here(const Way& way, const Case& all, int64_t first, int64_t count, const Tensor& chosen) {
  std::vector<Tensor> in = operands_of(way, all, chosen);
  const size_t last = all.has_bias ? way.at.bias + 1 : way.at.bias;
  for (size_t i = kExWeights; i < std::min(last, in.size()); ++i) {
    if (!in[i].defined()) continue;
    const int64_t each = in[i].dims()[0] / all.experts;
    in[i] = in[i].rows(first * each, (first + count) * each);
  }
  if (all.sums) in[kExX] = in[kExX].reshaped({1, all.tokens, all.choices, all.k});
  ir::Attrs attrs = way.attrs;
  if (way.experts != "expert_linear") attrs.set("experts", count);
  attrs.set("parts", int64_t{1});
  attrs.set("first", first);
  attrs.set("of", all.experts);
  const auto results = tests::run_kernels(way.experts, attrs, in, 1, {}, 3);
  const Tensor want = tests::run_expanded(way.experts, attrs, in)[0];
  const bool rounds = way.rounds();
  for (const auto& r : results)
    tests::expect_close(r.out[0], want.to_doubles(), rounds ? 0.05 : 1e-4, rounds ? 0.5 : 1e-3,
                        base::concat(way.name, " ", r.kernel, " expanded, ", all.text()));
  return results.at(0).out[0];
}

TEST(Experts, RanksWithSomeOfThemAddUpToTheWhole) {
  std::mt19937 engine(23);
  for (uint32_t round = 0; round < 8; ++round) {
    Case c = Case::random(engine, 16);
    c.experts = 6;
    c.choices = 3;
    if (round == 0) c.tokens = 1;  // ranks without any row
    const Tensor chosen = c.chosen(round);
    for (const Way& way : ways(c)) {
      const Tensor want = run(way, c, chosen);
      std::vector<float> sum(static_cast<size_t>(want.elements()), 0);
      for (int64_t first = 0; first < c.experts; first += 2) {
        const Tensor own = run_here(way, c, first, 2, chosen);
        ASSERT_EQ(own.elements(), want.elements()) << way.name;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += own.data<float>()[i];
      }
      // Without shares a row is one rank's, bit for bit, and zero on the others.
      const Tensor got = Tensor::from<float>(want.dims(), std::span<const float>(sum));
      EXPECT_TRUE(c.sums || got.same_as(want)) << way.name << " " << c.text();
      tests::expect_close(got, want.to_doubles(), 1e-5, 1e-5, way.name + " " + c.text());
    }
  }
}

TEST(Experts, EveryCutBetweenExpertsAddsUp) {
  const auto values = [](Dims dims, uint64_t seed) {
    return testing::random_tensor(DType::f64, std::move(dims), -1, 1, seed);
  };
  const Tensor chosen = Tensor::from<int64_t>({2, 4, 2}, {0, 7, 2, 0, 1, 5, 2, 1, 3, 2, 6, 0, 0, 4, 2, 7});
  for (int parts : {2, 4}) {
    const ir::Attrs attrs{{"parts", int64_t{4}}};
    const std::string rows =
        tests::expect_cuts({.op = "expert_linear",
                            .in = {values({2, 4, 12}, 1), chosen, values({8, 3, 12}, 2), values({8, 3}, 3)},
                            .attrs = attrs,
                            .parts = parts});
    EXPECT_NE(rows.find('E'), std::string::npos) << rows;
    const std::string sums =
        tests::expect_cuts({.op = "expert_linear",
                            .in = {values({4, 2, 4, 2, 12}, 1), chosen, values({8, 3, 12}, 2),
                                   values({8, 3}, 3), values({2, 4, 2}, 4)},
                            .attrs = attrs,
                            .parts = parts});
    EXPECT_NE(sums.find('E'), std::string::npos) << sums;
    const std::vector<Tensor> in{values({2, 4, 12}, 1), chosen, values({8, 3, 12}, 2), values({8, 3}, 3)};
    base::ThreadPool pool(2);
    const Tensor all = evaluate(table().need("expert_linear"), attrs, in, 1, pool)[0];
    tests::expect_close(tests::run_expanded("expert_linear", attrs, in)[0], all.to_doubles(), 1e-11, 1e-11,
                        "expanded");
  }
}

TEST(Experts, GradientsAreThoseOfTheDenseExpansion) {
  const auto values = [](Dims dims, uint64_t seed) {
    return testing::random_tensor(DType::f64, std::move(dims), -1, 1, seed);
  };
  const Tensor chosen = Tensor::from<int64_t>({5, 2}, {0, 1, 3, 0, 1, 3, 3, 1, 0, 3});
  testing::expect_gradient({.op = "expert_linear",
                            .in = {values({5, 6}, 1), chosen, values({4, 3, 6}, 2), values({4, 3}, 3)},
                            .constant = {1}});
  testing::expect_gradient(
      {.op = "expert_linear",
       .in = {values({5, 2, 6}, 1), chosen, values({4, 3, 6}, 2), values({4, 3}, 3), values({5, 2}, 4)},
       .constant = {1}});
  testing::expect_gradient({.op = "expert_linear",
                            .in = {values({5, 6}, 1), chosen, values({4, 3, 6}, 2), values({4, 3}, 3)},
                            .attrs = {{"parts", int64_t{2}}},
                            .constant = {1}});
}

}  // namespace
}  // namespace trireme::ops
