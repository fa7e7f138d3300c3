// Prompts that begin alike and come together: what they share is read once, whoever leaves or is put back
// meanwhile, and every answer is as alone.
#include "sched/text/shared_reading.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/rng.h"
#include "sched/text/token_scheduler.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

constexpr int64_t kSharedPage = 4;  // tokens

DecodeOptions reading_options(int64_t pages = 200, int64_t chunk = 16) {
  DecodeOptions o{.threads = 1, .page_tokens = kSharedPage, .max_sequences = 12, .max_tokens = chunk};
  o.cache_bytes = pages * kSharedPage * 2 * 2 * 2 * 8 * 4;  // layers, keys and values, heads, dim, f32
  return o;
}

std::shared_ptr<const DecodeModel> reading_model() {
  static const auto model = std::make_shared<const DecodeModel>(tests::tiny_llama().graph, reading_options());
  return model;
}

/// One of several answers to the prompt of a family.
GenerateRequest shared_request(int64_t family, int64_t tokens, int64_t seed) {
  GenerateRequest r{.max_tokens = 5, .sampling = {.temperature = seed % 2 == 0 ? 0 : 0.9}};
  for (int64_t t = 0; t < tokens; ++t) r.prompt.push_back((family * 17 + t * 5) % 61);
  r.sampling.repetition_penalty = seed % 3 == 2 ? 1.3 : 1;
  r.sampling.seed = seed;
  return r;
}

std::vector<int64_t> shared_alone(const GenerateRequest& request) {
  static DecodeSession session(reading_model(), [] {
    DecodeOptions options = reading_options();
    options.share_prefixes = false;
    return options;
  }());
  TokenScheduler scheduler(session);
  scheduler.add(request);
  std::vector<int64_t> tokens;
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) {
      if (e.token >= 0) tokens.push_back(e.token);
    }
  }
  return tokens;
}

struct SharedRun {
  std::map<int64_t, std::vector<int64_t>> answers;
  std::map<int64_t, TokenScheduler::Begun> begun;
  std::map<int64_t, int64_t> first_step;  ///< in which a token of the text came
  int64_t ran = 0, steps = 0;             ///< tokens that were computed

  void step(TokenScheduler& scheduler) {
    for (const GenerateEvent& e : scheduler.step()) {
      if (e.token < 0) continue;
      answers[e.request].push_back(e.token);
      first_step.emplace(e.request, steps);
    }
    for (const TokenScheduler::Begun& b : scheduler.begun())
      EXPECT_TRUE(begun.emplace(b.request, b).second) << "began twice";
    ran += scheduler.step_tokens();
    ++steps;
  }
  void finish(TokenScheduler& scheduler) {
    while (!scheduler.is_idle()) {
      ASSERT_LT(steps, 10'000) << "nobody goes on";
      step(scheduler);
    }
  }
};

/// Sixty tokens, eight answers: all but the last four tokens are shared.
TEST(SharedReading, APromptOfManyAnswersIsReadOnce) {
  DecodeSession session(reading_model(), reading_options());
  TokenScheduler scheduler(session);
  for (int64_t i = 0; i < 8; ++i) scheduler.add(shared_request(0, 60, i));
  SharedRun run;
  run.finish(scheduler);
  EXPECT_EQ(run.ran, 60 + 7 * 4 + 8 * 4);
  EXPECT_EQ(scheduler.shared_tokens(), 7 * 56);
  ASSERT_EQ(run.begun.size(), 8u);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(run.answers[i], shared_alone(shared_request(0, 60, i))) << i;
    EXPECT_EQ(run.begun[i].known_tokens, i == 0 ? 0 : 56) << i;
    EXPECT_EQ(run.begun[i].prompt_tokens, 60) << i;
  }
  EXPECT_EQ(session.free_pages(), session.pool().pages());
}

TEST(SharedReading, AnotherOneReadsOnWhereTheReaderLeaves) {
  DecodeSession session(reading_model(), reading_options());
  TokenScheduler scheduler(session);
  for (int64_t i = 0; i < 5; ++i) scheduler.add(shared_request(0, 60, i));
  SharedRun run;
  run.step(scheduler);
  EXPECT_EQ(run.ran, 16);
  EXPECT_EQ(run.begun.size(), 1u);
  scheduler.cancel(0);
  run.finish(scheduler);
  // The second text takes what the first one had read, and the others what the second one reads.
  EXPECT_EQ(run.ran, 60 + 3 * 4 + 4 * 4);
  EXPECT_EQ(run.begun[1].known_tokens, 16);
  for (int64_t i = 1; i < 5; ++i) EXPECT_EQ(run.answers[i], shared_alone(shared_request(0, 60, i))) << i;
  EXPECT_EQ(session.free_pages(), session.pool().pages());
}

/// What a prompt that is read leaves of a step goes to those behind the ones that wait for it.
TEST(SharedReading, OthersReadBesideIt) {
  DecodeSession session(reading_model(), reading_options(200, 24));
  TokenScheduler scheduler(session);
  for (int64_t i = 0; i < 3; ++i) scheduler.add(shared_request(0, 20, i));
  const int64_t other = scheduler.add(shared_request(1, 4, 0));
  SharedRun run;
  run.step(scheduler);
  EXPECT_EQ(run.ran, 24);
  run.finish(scheduler);
  EXPECT_EQ(run.first_step[0], 0);
  EXPECT_EQ(run.first_step[other], 0);
  EXPECT_EQ(run.first_step[1], 1);
  EXPECT_EQ(run.first_step[2], 1);
  EXPECT_EQ(run.answers[other], shared_alone(shared_request(1, 4, 0)));
}

/// A text in the background pauses: nobody waits for it but others there.
TEST(SharedReading, NobodyWaitsForTheBackground) {
  DecodeSession session(reading_model(), reading_options());
  TokenScheduler scheduler(session);
  const int64_t paused = scheduler.add(shared_request(0, 60, 0), {.priority = kBackground});
  SharedRun run;
  run.step(scheduler);
  EXPECT_EQ(run.ran, 16);
  const int64_t client = scheduler.add(shared_request(0, 60, 1), {.priority = 1});
  run.finish(scheduler);
  EXPECT_LT(run.first_step[client], run.first_step[paused]);
  EXPECT_EQ(run.answers[client], shared_alone(shared_request(0, 60, 1)));
  EXPECT_EQ(run.answers[paused], shared_alone(shared_request(0, 60, 0)));
}

TEST(SharedReading, WhatIsNotSharedIsNotWaitedFor) {
  const auto ran = [](const DecodeOptions& options, const std::vector<GenerateRequest>& requests) {
    DecodeSession session(reading_model(), options);
    TokenScheduler scheduler(session);
    for (const GenerateRequest& r : requests) scheduler.add(r);
    SharedRun run;
    run.finish(scheduler);
    EXPECT_EQ(run.begun.size(), requests.size());
    return run.ran;
  };
  GenerateRequest one = shared_request(0, 40, 0), scored = one, salted = one;
  one.max_tokens = scored.max_tokens = salted.max_tokens = 1;
  scored.scores_prompt = true;
  salted.salt = "a";
  EXPECT_EQ(ran(reading_options(), {one, one}), 40 + 4);
  EXPECT_EQ(ran(reading_options(), {scored, scored}), 80);
  EXPECT_EQ(ran(reading_options(), {one, salted}), 80);
  DecodeOptions apart = reading_options();
  apart.share_prefixes = false;
  EXPECT_EQ(ran(apart, {one, one}), 80);
}

/// Random companies: some leave while they wait or are waited for, some run in the background, and pages run
/// out.
TEST(SharedReading, RandomCompaniesChangeNothing) {
  std::map<std::vector<int64_t>, std::vector<int64_t>> known;  // answers by prompt and seed
  int64_t put_back = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    base::Rng random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int64_t>(random.below(n)); };
    DecodeSession session(reading_model(), reading_options(24 + below(30), 3 + below(30)));
    TokenScheduler scheduler(session);
    std::map<int64_t, GenerateRequest> asked;
    SharedRun run;
    for (int turn = 0; turn < 25; ++turn) {
      const int64_t family = below(3), answers = 1 + below(4);
      const uint32_t priority = below(4) == 0 ? kBackground : static_cast<uint32_t>(below(2));
      for (int64_t i = 0; i < answers; ++i) {
        // Answers to one prompt, or prompts each of which goes on from the one before.
        const GenerateRequest r = shared_request(family, 20 + below(2) * 4 * i + turn, i);
        asked[scheduler.add(r, {.priority = priority})] = r;
      }
      for (int64_t i = below(6); i > 0; --i) run.step(scheduler);
      if (below(3) == 0) {
        const int64_t gone = below(asked.size());
        scheduler.cancel(gone);
        asked.erase(gone);
      }
    }
    run.finish(scheduler);
    for (const auto& [number, request] : asked) {
      std::vector<int64_t> key = request.prompt;
      key.push_back(request.sampling.seed);
      std::vector<int64_t>& want = known[key];
      if (want.empty()) want = shared_alone(request);
      ASSERT_EQ(run.answers[number], want) << "seed " << seed << ", text " << number;
      EXPECT_TRUE(run.begun.contains(number));
    }
    EXPECT_EQ(scheduler.running() + scheduler.waiting(), 0u);
    EXPECT_EQ(session.free_pages(), session.pool().pages());
    put_back += scheduler.put_back();
  }
  EXPECT_GT(put_back, 0);
}

}  // namespace
}  // namespace trireme::sched
