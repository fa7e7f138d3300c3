// Texts asked for by many threads: answers as alone, whoever else is there, leaves or is late; faults.
#include "sched/text/text_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <stdexcept>
#include <thread>

#include "base/rng.h"
#include "engine/decode/prompt_lookup.h"
#include "sched/text/test_answers.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

std::shared_ptr<const DecodeModel> tiny_decoder() {
  static const auto model = std::make_shared<const DecodeModel>(tests::tiny_llama().graph);
  return model;
}

TextService::MakeSession decode_sessions(const DecodeOptions& options) {
  return [options] { return std::make_unique<DecodeSession>(tiny_decoder(), options); };
}

/// Keeps what it is told.
class Kept final : public TextListener {
 public:
  void on_begin(int64_t known) override { known_ = known; }
  bool on_token(const GenerateEvent& event) override {
    tokens.push_back(event.token);
    if (wanted > 0 && tokens.size() == wanted) return end(FinishReason::stop), false;
    if (leaves_after > 0 && tokens.size() == leaves_after) gone = true;
    return true;
  }
  void on_end(FinishReason how) override { end(how); }
  void on_error(const base::Error& e) override {
    error = e;
    end(FinishReason::none);
  }
  bool is_gone() const override { return gone; }

  void wait() const { over.wait(0); }

  std::vector<int64_t> tokens;
  FinishReason reason = FinishReason::none;
  std::optional<base::Error> error;
  std::atomic<int> over{0};
  std::atomic<bool> gone{false};
  size_t wanted = 0, leaves_after = 0;
  int64_t known_ = -1;

 private:
  void end(FinishReason r) {
    reason = r;
    EXPECT_EQ(over.fetch_add(1), 0) << "told twice that it is over";
    over.notify_all();
  }
};

GenerateRequest service_request(int64_t i) {
  GenerateRequest r;
  for (int64_t t = 0; t <= (i * 7) % 40; ++t) r.prompt.push_back((i * 13 + t * 5) % 61);
  r.max_tokens = 3 + (i * 5) % 30;
  r.sampling.temperature = i % 3 == 0 ? 0 : 0.9;
  r.sampling.repetition_penalty = i % 5 == 2 ? 1.3 : 1;
  r.sampling.frequency_penalty = i % 7 == 3 ? 0.5 : 0;
  r.sampling.seed = i;
  return r;
}

/// What a request gives when nothing else runs.
const std::vector<int64_t>& tokens_alone(int64_t i) {
  static std::map<int64_t, std::vector<int64_t>> known;
  std::vector<int64_t>& answer = known[i];
  if (!answer.empty()) return answer;
  DecodeSession session(tiny_decoder(), {.threads = 1});
  TokenScheduler scheduler(session);
  scheduler.add(service_request(i));
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) {
      if (e.token >= 0) answer.push_back(e.token);
    }
  }
  return answer;
}

std::shared_ptr<Kept> ask(TextService& service, int64_t i, Standing standing = {}) {
  auto kept = std::make_shared<Kept>();
  service.submit({.generate = service_request(i), .standing = standing, .listener = kept});
  return kept;
}

base::SystemClock& system_clock() {
  static base::SystemClock clock;
  return clock;
}

/// A hundred requests from four threads, pages for a few of them: some are put back, all are answered as
/// alone, and every page comes back. Nothing runs beyond a step before all are there.
TEST(TextService, AnswersAsAloneWhereverPagesRunOut) {
  for (const int64_t pages : {5, 6, 200}) {
    std::atomic<bool> are_there{false};
    TextService service(
        decode_sessions({.threads = 2, .cache_bytes = pages * kTinyPageBytes, .max_tokens = 33}),
        {.on_step = [&](const TextStats&) { are_there.wait(false); }}, system_clock());
    ASSERT_EQ(service.limits().pages, pages);
    std::vector<std::shared_ptr<Kept>> kept(100);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (size_t i = t; i < kept.size(); i += 4)
          kept[i] = ask(service, static_cast<int64_t>(i), {.priority = static_cast<uint32_t>(i % 2)});
      });
    }
    for (std::thread& t : threads) t.join();
    are_there = true;
    are_there.notify_all();
    for (size_t i = 0; i < kept.size(); ++i) {
      kept[i]->wait();
      EXPECT_EQ(kept[i]->tokens, tokens_alone(static_cast<int64_t>(i)))
          << "request " << i << ", pages " << pages;
      EXPECT_EQ(kept[i]->reason, FinishReason::length);
      EXPECT_GE(kept[i]->known_, 0);
    }
    service.drain();
    const TextStats stats = service.stats();
    EXPECT_EQ(stats.page_use, 0);
    EXPECT_EQ(stats.running + stats.waiting, 0u);
    if (pages < 10) {
      EXPECT_GT(stats.put_back, 0);
    } else {
      EXPECT_EQ(stats.put_back, 0);
    }
    int64_t generated = 0;
    for (const auto& k : kept) generated += static_cast<int64_t>(k->tokens.size());
    EXPECT_EQ(stats.generated_tokens, generated);
  }
}

TEST(TextService, WhoLeavesGivesItsPagesBack) {
  TextService service(decode_sessions({.threads = 1, .max_sequences = 3}), {}, system_clock());
  std::vector<std::shared_ptr<Kept>> leavers;
  for (int64_t i = 0; i < 30; ++i) {
    auto kept = std::make_shared<Kept>();
    kept->leaves_after = 1 + static_cast<size_t>(i) % 2;
    GenerateRequest r = service_request(i);
    r.max_tokens = 80;
    r.prompt.resize(5);
    service.submit({.generate = r, .standing = {}, .listener = kept});
    leavers.push_back(kept);
  }
  const auto stays = ask(service, 4);
  for (const auto& k : leavers) {
    k->wait();
    EXPECT_EQ(k->reason, FinishReason::cancelled);
    EXPECT_LE(k->tokens.size(), k->leaves_after + 1);
  }
  stays->wait();
  EXPECT_EQ(stays->tokens, tokens_alone(4));
  service.drain();
  EXPECT_EQ(service.stats().page_use, 0);
  EXPECT_GT(service.stats().told_ns, 0);
  EXPECT_GT(service.stats().busy_ns, 0);
}

TEST(TextService, AListenerThatHasEnoughIsToldNoMore) {
  TextService service(decode_sessions({.threads = 1}), {}, system_clock());
  auto kept = std::make_shared<Kept>();
  kept->wanted = 2;
  service.submit({.generate = service_request(11), .standing = {}, .listener = kept});
  const auto other = ask(service, 5);
  kept->wait();
  other->wait();
  service.drain();
  EXPECT_EQ(kept->tokens.size(), 2u);
  EXPECT_EQ(other->tokens, tokens_alone(5));
}

/// Throws what nobody expects, and is told of it alone.
class Thrower final : public TextListener {
 public:
  void on_begin(int64_t) override {}
  bool on_token(const GenerateEvent&) override { throw std::runtime_error("no room to write"); }
  void on_end(FinishReason) override {}
  void on_error(const base::Error& e) override {
    message = e.message();
    over = 1;
    over.notify_all();
  }
  bool is_gone() const override { return false; }
  std::string message;
  std::atomic<int> over{0};
};

TEST(TextService, WhatAListenerThrowsIsItsOwnEnd) {
  TextService service(decode_sessions({.threads = 1}), {}, system_clock());
  const auto thrower = std::make_shared<Thrower>();
  service.submit({.generate = service_request(20), .standing = {}, .listener = thrower});
  const auto other = ask(service, 5);
  other->wait();
  thrower->over.wait(0);
  EXPECT_NE(thrower->message.find("no room to write"), std::string::npos);
  EXPECT_EQ(other->tokens, tokens_alone(5));
  service.drain();
  EXPECT_EQ(service.stats().page_use, 0);
}

TEST(TextService, RefusesWhatIsTooMuchOrTooLong) {
  TextService service(decode_sessions({.threads = 1, .cache_bytes = 3 * kTinyPageBytes}), {.max_waiting = 0},
                      system_clock());
  const auto code_of = [&](GenerateRequest r) {
    try {
      service.submit({.generate = std::move(r), .standing = {}, .listener = std::make_shared<Kept>()});
    } catch (const base::Error& e) {
      return e.code();
    }
    return base::ErrorCode::internal;
  };
  EXPECT_EQ(code_of(service_request(1)), base::ErrorCode::exhausted);  // nobody may wait
  GenerateRequest strange{.prompt = {61}};
  EXPECT_EQ(code_of(strange), base::ErrorCode::invalid_argument);
  GenerateRequest large{.prompt = std::vector<int64_t>(40, 1), .max_tokens = 50};
  EXPECT_EQ(code_of(large), base::ErrorCode::exhausted);  // pages that there are not
  EXPECT_EQ(service.limits().most_length(), 48);
  service.drain();
  EXPECT_EQ(code_of(service_request(1)), base::ErrorCode::unavailable);
}

/// Where two requests may wait, those of a batch wait beside them; the answers of one request come together.
TEST(TextService, CountsClientsThatWait) {
  std::atomic<bool> are_there{false};
  TextService service(decode_sessions({.threads = 1, .max_sequences = 1}),
                      {.max_waiting = 2, .on_step = [&](const TextStats&) { are_there.wait(false); }},
                      system_clock());
  std::vector<std::shared_ptr<Kept>> kept;
  for (int64_t i = 0; i < 10; ++i) kept.push_back(ask(service, i, {.priority = kBackground}));
  const auto code_of = [&](size_t count) {
    std::vector<TextRequest> requests;
    for (size_t i = 0; i < count; ++i) {
      auto listener = std::make_shared<Kept>();
      requests.push_back({.generate = service_request(3), .standing = {}, .listener = listener});
      kept.push_back(listener);
    }
    try {
      service.submit_all(std::move(requests));
    } catch (const base::Error& e) {
      kept.resize(kept.size() - count);
      return e.code();
    }
    return base::ErrorCode::internal;
  };
  EXPECT_EQ(code_of(3), base::ErrorCode::invalid_argument);  // however long it waits
  EXPECT_EQ(code_of(1), base::ErrorCode::internal) << "it is queued";
  EXPECT_EQ(code_of(2), base::ErrorCode::exhausted) << "none of two";
  EXPECT_EQ(code_of(1), base::ErrorCode::internal) << "it is queued";
  EXPECT_EQ(code_of(1), base::ErrorCode::exhausted);
  kept.push_back(ask(service, 10, {.priority = kBackground}));
  are_there = true;
  are_there.notify_all();
  for (const std::shared_ptr<Kept>& k : kept) {
    k->wait();
    EXPECT_EQ(k->reason, FinishReason::length);
  }
}

TEST(TextService, DeadlinesEndWhatWaits) {
  base::FakeClock clock(1000);
  TextService service(decode_sessions({.threads = 1, .max_sequences = 1}), {}, clock);
  const auto first = std::make_shared<Kept>();
  GenerateRequest endless = service_request(2);
  endless.max_tokens = 50;
  service.submit({.generate = endless, .standing = {.deadline_ns = 500}, .listener = first});  // too late
  const auto second = ask(service, 3, {.deadline_ns = 5000});
  first->wait();
  second->wait();
  EXPECT_EQ(first->reason, FinishReason::expired);
  EXPECT_EQ(second->tokens, tokens_alone(3));
}

/// A step that fails ends what it held, and the next request finds a new session.
TEST(TextService, GoesOnBehindAStepThatFails) {
  std::atomic<int> made{0};
  DecodeOptions o{.threads = 2};
  o.strategy.tp = 2;
  model::zoo::LlamaConfig c = tests::tiny_llama_config();
  c.layers = 1;
  const auto model = std::make_shared<const DecodeModel>(tests::tiny_llama(c).graph, o);
  TextService service(
      [&] {
        auto session = std::make_unique<DecodeSession>(model, o);
        if (made++ == 0) session->ranks().lose(1);
        return session;
      },
      {}, system_clock());
  const auto lost = ask(service, 1);
  lost->wait();
  ASSERT_TRUE(lost->error);
  EXPECT_EQ(lost->error->code(), base::ErrorCode::unavailable);
  const auto answered = ask(service, 1);
  answered->wait();
  EXPECT_FALSE(answered->error);
  EXPECT_EQ(static_cast<int64_t>(answered->tokens.size()), service_request(1).max_tokens);
  EXPECT_EQ(made, 2);
}

TEST(TextService, StopFailsWhatIsThere) {
  std::vector<std::shared_ptr<Kept>> kept;
  {
    TextService service(decode_sessions({.threads = 1, .max_sequences = 1}), {}, system_clock());
    for (int64_t i = 0; i < 20; ++i) kept.push_back(ask(service, i));
    EXPECT_TRUE(service.stop());
    EXPECT_TRUE(service.stop());
  }
  for (const auto& k : kept) {
    k->wait();
    const bool is_answered = k->reason == FinishReason::length;
    EXPECT_TRUE(is_answered || (k->error && k->error->code() == base::ErrorCode::unavailable));
  }
}

/// Random companions with random lives: those that stay are answered as alone, for any chunk.
TEST(TextService, RandomCompaniesChangeNothing) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    base::Rng rng(seed);
    const int64_t chunk = 1 + rng() % 40, pages = 7 + rng() % 12;
    TextService service(decode_sessions({.threads = 1 + static_cast<int>(rng() % 3),
                                         .page_tokens = 16,
                                         .cache_bytes = pages * kTinyPageBytes,
                                         .max_sequences = 1 + static_cast<int64_t>(rng() % 8),
                                         .max_tokens = chunk}),
                        {}, system_clock());
    std::vector<std::pair<int64_t, std::shared_ptr<Kept>>> kept;
    for (int i = 0; i < 60; ++i) {
      auto listener = std::make_shared<Kept>();
      const auto which = static_cast<int64_t>(rng() % 100);
      if (rng() % 3 == 0) listener->leaves_after = 1 + rng() % 10;
      const Standing standing{.priority = static_cast<uint32_t>(rng() % 3),
                              .tenant = static_cast<uint32_t>(rng() % 4),
                              .weight = 1.0 + static_cast<double>(rng() % 3)};
      service.submit({.generate = service_request(which), .standing = standing, .listener = listener});
      kept.emplace_back(which, listener);
    }
    for (const auto& [which, listener] : kept) {
      listener->wait();
      const std::vector<int64_t>& want = tokens_alone(which);
      ASSERT_LE(listener->tokens.size(), want.size());
      EXPECT_TRUE(std::equal(listener->tokens.begin(), listener->tokens.end(), want.begin())) << which;
      if (listener->reason == FinishReason::length) {
        EXPECT_EQ(listener->tokens.size(), want.size());
      }
      EXPECT_FALSE(listener->error);
    }
    service.drain();
    EXPECT_EQ(service.stats().page_use, 0);
  }
}

TEST(TextService, GuessedTokensAreCountedAndChangeNothing) {
  TextService service(decode_sessions({.threads = 1, .cache_bytes = 40 * kTinyPageBytes}),
                      {.make_drafter = [] { return std::make_unique<PromptLookup>(1); }, .draft_tokens = 4},
                      system_clock());
  std::vector<std::shared_ptr<Kept>> kept;
  for (int64_t i = 0; i < 40; ++i) kept.push_back(ask(service, i));
  for (int64_t i = 0; i < 40; ++i) {
    kept[static_cast<size_t>(i)]->wait();
    EXPECT_EQ(kept[static_cast<size_t>(i)]->tokens, tokens_alone(i)) << i;
  }
  service.drain();
  const DraftCounts counts = service.stats().drafts;
  EXPECT_GT(counts.drafts, 0);
  EXPECT_GE(counts.tokens, counts.drafts);
  EXPECT_GE(counts.tokens, counts.accepted);
}

}  // namespace
}  // namespace trireme::sched
