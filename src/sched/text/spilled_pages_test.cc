// Texts whose beginnings come back from a store: the same answers as computed ones, and fewer tokens that
// run.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/files/file.h"
#include "base/files/scratch.h"
#include "base/rng.h"
#include "engine/pages/page_store.h"
#include "sched/text/token_scheduler.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

constexpr int64_t kPageTokens = 4;

/// Few pages of four tokens.
DecodeOptions small_cache(int64_t pages) {
  DecodeOptions o{.threads = 1, .page_tokens = kPageTokens, .max_sequences = 3, .max_tokens = 24};
  const int64_t token_bytes = 2 * 2 * 2 * 8 * 4;  // layers, keys and values, heads, dim, f32
  o.cache_bytes = pages * kPageTokens * token_bytes;
  return o;
}

/// Prompts that begin like others of four families and go on by themselves.
std::vector<GenerateRequest> random_requests(base::Rng& random, size_t count) {
  std::vector<GenerateRequest> list;
  for (size_t i = 0; i < count; ++i) {
    GenerateRequest r;
    const uint64_t family = random.below(4), shared = random.below(40), own = 1 + random.below(8);
    for (uint64_t t = 0; t < shared; ++t)
      r.prompt.push_back(static_cast<int64_t>((family * 17 + t * 5) % 61));
    for (uint64_t t = 0; t < own; ++t) r.prompt.push_back(static_cast<int64_t>(random.below(61)));
    r.max_tokens = 1 + static_cast<int64_t>(random.below(8));
    r.sampling.temperature = i % 2 == 0 ? 0 : 0.9;
    r.sampling.seed = static_cast<int64_t>(i);
    list.push_back(std::move(r));
  }
  return list;
}

struct Seen {
  /// Of each text tokens and the logarithms of their probabilities, to the bit.
  std::map<int64_t, std::vector<std::pair<int64_t, double>>> answers;
  int64_t known = 0;  ///< tokens of prompts that did not run
  int64_t ran = 0;    ///< tokens that did
  int64_t steps = 0;
  bool operator==(const Seen& other) const { return answers == other.answers; }
};

/// The texts come a few at a time.
Seen run(DecodeSession& session, const std::vector<GenerateRequest>& requests, size_t beside = 3) {
  Seen seen;
  TokenScheduler scheduler(session);
  size_t next = 0;
  std::map<int64_t, bool> under_way;
  while (next < requests.size() || !scheduler.is_idle()) {
    while (next < requests.size() && under_way.size() < beside) {
      under_way[scheduler.add(requests[next])] = true;
      ++next;
    }
    for (const GenerateEvent& e : scheduler.step()) {
      if (e.token >= 0) seen.answers[e.request].emplace_back(e.token, e.log_probability);
      if (e.finish != FinishReason::none) under_way.erase(e.request);
    }
    seen.ran += scheduler.step_tokens();
    seen.steps += scheduler.step_tokens() > 0 ? 1 : 0;
  }
  seen.known = scheduler.shared_tokens();
  EXPECT_EQ(session.free_pages(), session.pool().pages());
  return seen;
}

void damage_all(const std::string& directory, base::Rng& random) {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().extension() != ".page") continue;
    std::string bytes = base::read_file(entry.path().string());
    if (random.below(2) == 0) {
      bytes.resize(random.below(bytes.size()));
    } else {
      bytes[random.below(bytes.size())] ^= 4;
    }
    std::ofstream(entry.path(), std::ios::binary) << bytes;
  }
}

struct SpilledPages : testing::Test {
  DecodeOptions with(DecodeOptions options, const std::shared_ptr<PageStore>& store) const {
    options.store = store;
    options.store_model = page_model(model.graph, options);
    return options;
  }
  Seen run_with(const DecodeOptions& options, const std::vector<GenerateRequest>& requests,
                size_t beside = 3) const {
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, options), options);
    return run(session, requests, beside);
  }
  std::shared_ptr<PageStore> on_disk() const {
    return std::make_shared<PageStore>(PageStore::Options{.directory = *scratch + "/pages"});
  }
  model::Model model = tests::tiny_llama();
  std::shared_ptr<const std::string> scratch = base::make_scratch("trireme-spilled");
};

TEST_F(SpilledPages, AnswersAreTheSameBits) {
  base::Rng random(11);
  for (int round = 0; round < 4; ++round) {
    const auto requests = random_requests(random, 40);
    const int64_t pages = 14 + static_cast<int64_t>(random.below(12));
    const Seen without = run_with(small_cache(pages), requests);
    const std::string at = base::concat("round ", round, ", ", pages, " pages");
    {
      const auto host = std::make_shared<PageStore>(PageStore::Options{.host_bytes = int64_t{1} << 20});
      const Seen seen = run_with(with(small_cache(pages), host), requests);
      EXPECT_EQ(seen, without) << at;
      EXPECT_GT(host->counts().loaded_pages, 0) << at;
      EXPECT_GT(seen.known, without.known) << at;
      EXPECT_LT(seen.ran, without.ran) << at;
    }
    auto disk = on_disk();
    const Seen first = run_with(with(small_cache(pages), disk), requests);
    EXPECT_EQ(first, without) << at;
    EXPECT_GT(disk->counts().loaded_pages, 0) << at;
    EXPECT_GT(first.known, without.known) << at;
    // The next process finds them; damaged ones are refused and computed.
    disk.reset();
    disk = on_disk();
    const Seen second = run_with(with(small_cache(pages), disk), requests);
    EXPECT_EQ(second, without) << at;
    EXPECT_GT(second.known, first.known) << at;
    EXPECT_EQ(disk->counts().refused, 0) << at;
    disk.reset();
    damage_all(*scratch + "/pages", random);
    disk = on_disk();
    EXPECT_EQ(run_with(with(small_cache(pages), disk), requests), without) << at;
    EXPECT_GT(disk->counts().refused, 0) << at;
    disk.reset();
    std::filesystem::remove_all(*scratch + "/pages");
  }
}

/// A prompt that an earlier process knew runs one token.
TEST_F(SpilledPages, AKnownPromptRunsWhatIsBehindItsLastPage) {
  GenerateRequest request;
  for (int64_t t = 0; t < 81; ++t) request.prompt.push_back(t * 7 % 61);
  request.max_tokens = 2;
  const Seen first = run_with(with(small_cache(30), on_disk()), {request});
  EXPECT_EQ(first.known, 0);
  EXPECT_EQ(first.steps, 4 + 1);  // 24 tokens of the prompt a step
  const Seen again = run_with(with(small_cache(30), on_disk()), {request});
  EXPECT_EQ(again, first);
  EXPECT_EQ(again.known, 80);
  EXPECT_EQ(again.ran, 2);
  EXPECT_EQ(again.steps, 2);
  // Nobody else's: another model, options with other bits, another salt.
  auto others = with(small_cache(30), on_disk());
  others.store_model[0] ^= 1;
  EXPECT_EQ(run_with(others, {request}).known, 0);
  others.store.reset();
  request.salt = "a";
  EXPECT_EQ(run_with(with(small_cache(30), on_disk()), {request}).known, 0);
  EXPECT_EQ(run_with(with(small_cache(30), on_disk()), {request}).known, 80);
  request.salt = "b";
  EXPECT_EQ(run_with(with(small_cache(30), on_disk()), {request}).known, 0);
}

TEST_F(SpilledPages, ModelsTellTheirPagesApart) {
  const DecodeOptions plain = small_cache(30);
  DecodeOptions half = plain, stored = plain, ranks = plain, stages = plain, large = plain;
  half.cache_type = tensor::DType::bf16;
  stored.strategy.weights.weights = passes::WeightBits::int8;
  ranks.strategy.tp = 2;
  stages.strategy.pp = 2;
  large.page_tokens = 8;
  auto config = tests::tiny_llama_config();
  const model::Model other = tests::tiny_llama(config, 10);  // other weights
  std::vector<PageId> ids{page_model(other.graph, plain)};
  for (const DecodeOptions& o : {plain, half, stored, ranks, stages, large})
    ids.push_back(page_model(model.graph, o));
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
  EXPECT_EQ(page_model(model.graph, plain), page_model(tests::tiny_llama().graph, plain));
}

TEST_F(SpilledPages, EachRankHasItsPart) {
  base::Rng random(3);
  const auto requests = random_requests(random, 24);
  DecodeOptions two = small_cache(16);
  two.threads = 2;
  two.cache_bytes /= 2;  // of each
  two.strategy.tp = 2;
  const Seen without = run_with(two, requests);
  const Seen first = run_with(with(two, on_disk()), requests);
  EXPECT_EQ(first, without);
  EXPECT_GT(first.known, without.known);
  const Seen second = run_with(with(two, on_disk()), requests);
  EXPECT_EQ(second, without);
  EXPECT_GT(second.known, first.known);
}

/// Stages differ in how many layers they have, and so in how much of a page.
TEST_F(SpilledPages, EachStageHasItsLayers) {
  base::Rng random(5);
  const auto requests = random_requests(random, 24);
  auto config = tests::tiny_llama_config();
  config.layers = 3;
  model = tests::tiny_llama(config);
  DecodeOptions alone = small_cache(16);
  alone.cache_bytes = alone.cache_bytes / 2 * 3;
  const Seen one = run_with(alone, requests);
  for (const int tp : {1, 2}) {
    DecodeOptions stages = small_cache(16);
    stages.threads = 2;
    stages.cache_bytes /= tp;  // of each rank of the stage with two layers
    stages.strategy.tp = tp;
    stages.strategy.pp = 2;
    const Seen without = run_with(stages, requests);
    EXPECT_TRUE(tp > 1 || without == one);  // ranks of a stage add other sums
    const Seen first = run_with(with(stages, on_disk()), requests);
    EXPECT_EQ(first, without) << tp;
    EXPECT_GT(first.known, without.known) << tp;
    const Seen second = run_with(with(stages, on_disk()), requests);
    EXPECT_EQ(second, without) << tp;
    EXPECT_GT(second.known, first.known) << tp;
  }
}

/// With company a text that waits for its pages holds nobody up, and is not lost.
TEST_F(SpilledPages, TextsGoOnBesideOnesThatWait) {
  base::Rng random(29);
  const auto requests = random_requests(random, 60);
  const Seen without = run_with(small_cache(40), requests, 1);
  run_with(with(small_cache(40), on_disk()), requests);
  for (const size_t beside : {size_t{1}, size_t{5}, size_t{20}})
    EXPECT_EQ(run_with(with(small_cache(40), on_disk()), requests, beside), without);
}

TEST_F(SpilledPages, OnADevice) {
  const auto device = tests::cuda_device();
  if (!device) GTEST_SKIP() << tests::kNoGpu;
  base::Rng random(17);
  const auto requests = random_requests(random, 8);
  DecodeOptions o = small_cache(20);
  o.device = *device;
  const auto host = std::make_shared<PageStore>(PageStore::Options{.host_bytes = int64_t{1} << 20});
  // One at a time: sums of a GPU may depend on how many rows there are.
  const Seen first = run_with(with(o, host), requests, 1);
  EXPECT_GT(host->counts().saved_pages, 0);
  const Seen disk = run_with(with(o, on_disk()), requests, 1);
  const Seen again = run_with(with(o, on_disk()), requests, 1);
  EXPECT_GT(again.known, disk.known);
  for (const auto& [number, answer] : first.answers) {
    EXPECT_EQ(disk.answers.at(number).size(), answer.size());
    EXPECT_EQ(again.answers.at(number).size(), answer.size());
  }
  if (*device == "emulated") {
    EXPECT_EQ(first, run_with(o, requests, 1));
    EXPECT_EQ(again, first);
  }
}

}  // namespace
}  // namespace trireme::sched
