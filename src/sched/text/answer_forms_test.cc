// Answers with grammars, biases and lists of the likeliest tokens, among others without: nobody's tokens
// change.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "sched/text/grammar_filter.h"
#include "sched/text/token_scheduler.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

constexpr int64_t kEnd = 60;  // of 61 tokens
constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxy";

std::shared_ptr<AnswerGrammar> grammar(const char* regex) {
  static const auto tokenizer = data::character_tokenizer(kLetters);
  static const auto tokens = std::make_shared<const data::TokenTrie>(*tokenizer, std::vector<int64_t>{kEnd});
  return std::make_shared<AnswerGrammar>(data::grammar_of_regex(regex), tokens);
}

std::string letters_of(const std::vector<int64_t>& tokens) {
  std::string text;
  for (int64_t id : tokens) text += kLetters.at(static_cast<size_t>(id));
  return text;
}

struct FormAnswer {
  std::vector<int64_t> tokens;
  std::vector<double> logs;
  FinishReason finish = FinishReason::none;
  std::shared_ptr<const base::Error> error;
  bool operator==(const FormAnswer& other) const { return tokens == other.tokens && finish == other.finish; }
};
using FormAnswers = std::map<int64_t, FormAnswer>;

void PrintTo(const FormAnswer& a, std::ostream* out) {
  *out << to_string(a.finish) << ":";
  for (int64_t id : a.tokens) *out << " " << id;
}

FormAnswers run_forms(TokenScheduler& scheduler) {
  FormAnswers answers;
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) {
      FormAnswer& a = answers[e.request];
      if (e.token >= 0) {
        a.tokens.push_back(e.token);
        a.logs.push_back(e.log_probability);
      }
      a.finish = e.finish;
      if (e.error != nullptr) a.error = e.error;
    }
  }
  return answers;
}

constexpr const char* kRegexes[] = {"[a-c]{3,20}x", "(AB|CD)*[0-9]{4}", "[A-Za-x0-9]{12,}"};

/// Request i of twelve: every other one has a grammar, some have penalties, biases, a least length.
GenerateRequest formed_request(int64_t i, const std::vector<std::shared_ptr<AnswerGrammar>>& grammars) {
  GenerateRequest r;
  for (int64_t t = 0; t <= (i * 7) % 40; ++t) r.prompt.push_back((i * 13 + t * 5) % 61);
  r.max_tokens = 10 + (i * 5) % 20;
  r.stop = {kEnd};
  r.sampling.temperature = i % 3 == 0 ? 0 : 0.9;
  r.sampling.repetition_penalty = i % 5 == 2 ? 1.3 : 1;
  r.sampling.seed = i;
  if (i % 2 == 1) r.filter = AnswerGrammar::filter(grammars[static_cast<size_t>(i / 2) % grammars.size()]);
  if (i % 4 == 2) r.biases = {{static_cast<int32_t>(i), 3.0f}, {17, -50.0f}};
  r.least_tokens = i % 3 == 1 ? 6 : 0;
  r.likeliest = i % 4;
  return r;
}

std::vector<std::shared_ptr<AnswerGrammar>> grammars() {
  std::vector<std::shared_ptr<AnswerGrammar>> list;
  for (const char* regex : kRegexes) list.push_back(grammar(regex));
  return list;
}

constexpr int64_t kFormRequests = 12;

TEST(AnswerForms, AreKeptAndChangeNobodyElsesTokens) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  FormAnswers alone;
  for (int64_t i = 0; i < kFormRequests; ++i) {
    DecodeSession session(prepared, {.threads = 1});
    TokenScheduler scheduler(session);
    GenerateRequest r = formed_request(i, grammars());
    if (i % 2 == 0) r.likeliest = 0;  // what is listed beside changes no draw either
    scheduler.add(r);
    alone[i] = run_forms(scheduler)[0];
    EXPECT_EQ(scheduler.mask_cost().masks > 0, r.filter != nullptr || r.least_tokens > 0);
  }
  const std::string text = letters_of(alone[1].tokens);
  EXPECT_EQ(text.find_first_not_of("abcx"), std::string::npos) << text;
  for (const DecodeOptions& o : {DecodeOptions{.threads = 3}, DecodeOptions{.threads = 2, .max_sequences = 3},
                                 DecodeOptions{.threads = 1, .max_tokens = 13},
                                 DecodeOptions{.threads = 2, .cache_bytes = 5 * 2 * 2 * 2 * 16 * 8 * 4}}) {
    DecodeSession session(prepared, o);
    TokenScheduler scheduler(session);
    const auto shared = grammars();
    for (int64_t i = 0; i < kFormRequests; ++i) scheduler.add(formed_request(i, shared));
    const FormAnswers got = run_forms(scheduler);
    EXPECT_EQ(got, alone);
    if (o.cache_bytes > 0) {
      EXPECT_GT(scheduler.put_back(), 0) << "answers under way go on where they were";
    }
    EXPECT_EQ(session.free_pages(), session.pool().pages());
  }
}

/// Guesses the tokens of known answers, and something else now and then.
class FormProphet final : public Drafter {
 public:
  FormProphet(double right, const FormAnswers& answers) : right_(right), answers_(answers) {}
  void draft(std::span<const DraftWish> wishes) override {
    for (const DraftWish& wish : wishes) {
      const std::vector<int64_t>& answer = answers_.at(wish.text).tokens;
      for (int64_t i = 0; i < wish.most; ++i) {
        const auto at = static_cast<size_t>(wish.position + i);
        const int64_t token = at < answer.size() ? answer[at] : kEnd;
        wish.drafts->push_back(rng_.uniform() < right_ ? token : static_cast<int64_t>(rng_.below(61)));
      }
    }
  }
  void forget(int64_t) override {}
  bool runs_steps() const override { return false; }
  int64_t memory_bytes() const override { return 0; }

 private:
  double right_;
  const FormAnswers& answers_;
  base::Rng rng_{5, 0};
};

/// Each draw behind a guess has the mask that it would have had alone: tokens, ends and chances are those
/// without guesses, whatever was guessed.
TEST(AnswerForms, AreTheSameWithGuessedTokens) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  FormAnswers alone;
  {
    DecodeSession session(prepared, {.threads = 1});
    TokenScheduler scheduler(session);
    const auto own = grammars();
    for (int64_t i = 0; i < kFormRequests; ++i) scheduler.add(formed_request(i, own));
    alone = run_forms(scheduler);
  }
  int64_t accepted = 0;
  for (const double right : {1.0, 0.8, 0.0}) {
    for (const DecodeOptions& o : {DecodeOptions{.threads = 1}, DecodeOptions{.threads = 2, .max_tokens = 20},
                                   DecodeOptions{.threads = 1, .cache_bytes = 6 * 2 * 2 * 2 * 16 * 8 * 4}}) {
      FormProphet drafter(right, alone);
      DecodeSession session(prepared, o);
      TokenScheduler scheduler(session, {.drafter = &drafter, .draft_tokens = 5});
      const auto shared = grammars();
      for (int64_t i = 0; i < kFormRequests; ++i) scheduler.add(formed_request(i, shared));
      const FormAnswers got = run_forms(scheduler);
      EXPECT_EQ(got, alone) << right;
      for (int64_t i = 0; i < kFormRequests; ++i)
        EXPECT_EQ(got.at(i).logs, alone.at(i).logs) << "request " << i;
      EXPECT_EQ(session.free_pages(), session.pool().pages());
      accepted += scheduler.draft_counts().accepted;
    }
  }
  EXPECT_GT(accepted, 100);
}

/// A text with a form alone: right guesses bring several tokens a step, and what the form does not let come
/// takes no row.
TEST(AnswerForms, TakeSeveralTokensAStep) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  const auto run = [&](Drafter* drafter, int64_t& steps, DraftCounts& counts) {
    DecodeSession session(prepared, {.threads = 1});
    TokenScheduler scheduler(session, {.drafter = drafter, .draft_tokens = 4});
    GenerateRequest r{.prompt = {3, 6, 7}, .max_tokens = 80, .stop = {kEnd}};
    r.filter = AnswerGrammar::filter(grammar("([a-c][0-9]){25,30}x"));
    scheduler.add(r);
    FormAnswers answers;
    for (steps = 0; !scheduler.is_idle(); ++steps) {
      for (const GenerateEvent& e : scheduler.step()) {
        if (e.token >= 0) answers[0].tokens.push_back(e.token);
        answers[0].finish = e.finish;
      }
    }
    counts = scheduler.draft_counts();
    return answers;
  };
  int64_t plain = 0, guessed = 0, refused = 0;
  DraftCounts counts;
  const FormAnswers want = run(nullptr, plain, counts);
  FormProphet prophet(1.0, want);
  EXPECT_EQ(run(&prophet, guessed, counts), want);
  EXPECT_LT(guessed, plain / 3);
  EXPECT_EQ(counts.accepted, counts.tokens);
  FormAnswers strange = want;
  for (int64_t& token : strange[0].tokens) token = 40;  // a letter that the form does not have
  FormProphet fool(1.0, strange);
  EXPECT_EQ(run(&fool, refused, counts), want);
  EXPECT_EQ(refused, plain);
  EXPECT_EQ(counts.tokens, 0);
}

/// Nothing but answers with grammars, and pages for few: what was accepted before a text was put back is not
/// accepted again, nor is what it lost.
TEST(AnswerForms, GoOnWhereTheyWereOnceTheyArePutBack) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  const auto formed = [](int64_t i) {
    GenerateRequest r{.prompt = {i, 2 * i, 7}, .max_tokens = 80, .stop = {kEnd}};
    r.filter = AnswerGrammar::filter(grammar("([a-c][0-9]){25,30}x"));
    r.sampling.seed = i;
    return r;
  };
  FormAnswers alone;
  for (int64_t i = 0; i < 6; ++i) {
    DecodeSession session(prepared, {.threads = 1});
    TokenScheduler scheduler(session);
    scheduler.add(formed(i));
    alone[i] = run_forms(scheduler)[0];
    EXPECT_EQ(alone[i].finish, FinishReason::stop);
    EXPECT_EQ(letters_of(alone[i].tokens).back(), 'x');
  }
  DecodeSession session(prepared, {.threads = 1, .cache_bytes = 6 * 2 * 2 * 2 * 16 * 8 * 4});
  TokenScheduler scheduler(session);
  for (int64_t i = 0; i < 6; ++i) scheduler.add(formed(i));
  EXPECT_EQ(run_forms(scheduler), alone);
  EXPECT_GT(scheduler.put_back(), 0);
}

TEST(AnswerForms, AreTheSameOnDevicesAndRanks) {
  const model::Model model = tests::tiny_llama();
  const auto run = [&](DecodeOptions o, int tp) {
    o.strategy.tp = tp;
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    TokenScheduler scheduler(session);
    const auto shared = grammars();
    for (int64_t i = 0; i < kFormRequests; ++i) {
      GenerateRequest r = formed_request(i, shared);
      r.sampling.temperature = 0;  // a device sums in another order for another number of rows
      scheduler.add(r);
    }
    const FormAnswers answers = run_forms(scheduler);
    EXPECT_EQ(session.ranks().first().host_operators(), "");
    return answers;
  };
  const FormAnswers want = run({.threads = 2}, 1);
  EXPECT_EQ(run({.threads = 4}, 2), want);
  if (tests::cuda_device() != "emulated") return;
  for (const bool ahead : {false, true})
    EXPECT_EQ(run({.device = "emulated", .run_ahead = ahead, .threads = 1, .max_sequences = 5}, 1), want);
}

/// The logits of one step with what comes behind them, against formulas.
TEST(AnswerForms, BiasesAndListsFollowTheirFormulas) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  DecodeSession session(prepared, {.threads = 1});
  const std::vector<int64_t> prompt{1, 2, 3};
  const SequenceId id = session.open();
  const DecodePiece piece{.sequence = id, .tokens = prompt};
  const auto row = session.step({&piece, 1});
  std::vector<double> logits(row.begin(), row.end());
  session.close(id);
  logits[30] += 2.5;
  logits[31] -= 100;
  double sum = 0;
  for (double x : logits) sum += std::exp(x);
  std::vector<int64_t> order(61);
  for (int64_t i = 0; i < 61; ++i) order[static_cast<size_t>(i)] = i;
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  GenerateRequest r{.prompt = prompt, .max_tokens = 1, .sampling = {.temperature = 0}};
  r.biases = {{30, 2.5f}, {31, -100.0f}};
  r.likeliest = 20;
  TokenScheduler scheduler(session);
  scheduler.add(r);
  std::vector<GenerateEvent> events;
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) events.push_back(e);
  }
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].token, order[0]);
  ASSERT_EQ(events[0].likeliest.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(events[0].likeliest[i].token, order[i]);
    EXPECT_NEAR(events[0].likeliest[i].log_probability, logits[static_cast<size_t>(order[i])] - std::log(sum),
                1e-5);
  }
  EXPECT_NEAR(events[0].log_probability, events[0].likeliest[0].log_probability, 1e-5);
}

/// Prompts beside others, in chunks of any size and on few rows: each token's chances are those that the
/// logits behind the tokens before it give, and answers are what they are without.
TEST(AnswerForms, PromptsAreScoredTokenByToken) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  std::vector<int64_t> prompt;
  for (int64_t t = 0; t < 37; ++t) prompt.push_back((t * 11 + 3) % 61);
  std::vector<std::vector<double>> logs;  // [prompt, vocabulary]
  {
    DecodeSession session(prepared, {.threads = 1});
    const SequenceId id = session.open();
    for (const int64_t& token : prompt) {
      const DecodePiece piece{.sequence = id, .tokens = {&token, 1}};
      const auto row = session.step({&piece, 1});
      double sum = 0;
      for (float x : row) sum += std::exp(double{x});
      std::vector<double>& to = logs.emplace_back();
      for (float x : row) to.push_back(double{x} - std::log(sum));
    }
  }
  for (const DecodeOptions& o : {DecodeOptions{.threads = 2}, DecodeOptions{.threads = 1, .max_sequences = 1},
                                 DecodeOptions{.threads = 1, .max_sequences = 5, .max_tokens = 16},
                                 DecodeOptions{.threads = 2, .cache_bytes = 5 * 2 * 2 * 2 * 16 * 8 * 4}}) {
    DecodeSession session(prepared, o);
    TokenScheduler scheduler(session);
    GenerateRequest r{.prompt = prompt, .max_tokens = 12, .sampling = {.temperature = 0}};
    scheduler.add(r);
    const std::vector<int64_t> answer = run_forms(scheduler)[0].tokens;  // the prompt is known from now on
    r.scores_prompt = true;
    r.likeliest = 2;
    const int64_t first = scheduler.add(r);
    scheduler.add({.prompt = {5, 6, 7, 8}, .max_tokens = 30, .sampling = {.temperature = 0}});
    const int64_t second = scheduler.add(r);
    std::map<int64_t, std::vector<int64_t>> tokens;
    std::map<int64_t, std::vector<ScoredToken>> scored;
    while (!scheduler.is_idle()) {
      for (const GenerateEvent& e : scheduler.step()) {
        if (e.token >= 0) tokens[e.request].push_back(e.token);
        if (e.prompt.empty()) continue;
        EXPECT_TRUE(scored[e.request].empty());
        scored[e.request] = e.prompt;
      }
    }
    for (const int64_t number : {first, second}) {
      EXPECT_EQ(tokens[number], answer);
      ASSERT_EQ(scored[number].size(), prompt.size() - 1);
      for (size_t i = 0; i + 1 < prompt.size(); ++i) {
        const ScoredToken& t = scored[number][i];
        EXPECT_EQ(t.token, prompt[i + 1]);
        EXPECT_NEAR(t.log_probability, logs[i][static_cast<size_t>(t.token)], 1e-5);
        const auto best = std::max_element(logs[i].begin(), logs[i].end());
        ASSERT_EQ(t.likeliest.size(), 2u);
        EXPECT_EQ(t.likeliest[0].token, best - logs[i].begin());
        EXPECT_NEAR(t.likeliest[0].log_probability, *best, 1e-5);
      }
    }
    EXPECT_EQ(session.free_pages(), session.pool().pages());
  }
}

TEST(AnswerForms, ListsHoldOnlyWhatMayCome) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  DecodeSession session(prepared, {.threads = 1});
  TokenScheduler scheduler(session);
  GenerateRequest r{.prompt = {1, 2}, .max_tokens = 4, .stop = {kEnd}, .sampling = {.temperature = 0}};
  r.filter = AnswerGrammar::filter(grammar("[abc][d]"));
  r.likeliest = 20;
  scheduler.add(r);
  std::vector<size_t> counts;
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) {
      counts.push_back(e.likeliest.size());
      double sum = 0;
      for (const TokenChance& chance : e.likeliest) sum += std::exp(chance.log_probability);
      EXPECT_NEAR(sum, 1, 1e-5);
    }
  }
  EXPECT_EQ(counts, (std::vector<size_t>{3, 1, 1}));  // a letter, the other, the end
}

TEST(AnswerForms, NoEndComesBeforeTheLeastLength) {
  std::vector<DecodeOptions> options{DecodeOptions{.threads = 1}};
  if (tests::cuda_device() == "emulated")
    for (const bool ahead : {false, true})
      options.push_back({.device = "emulated", .run_ahead = ahead, .threads = 1});
  for (const DecodeOptions& o : options) {
    DecodeSession session(std::make_shared<DecodeModel>(tests::tiny_llama().graph, o), o);
    const auto run = [&](int64_t least, const char* regex) {
      TokenScheduler scheduler(session);
      GenerateRequest r{.prompt = {1, 2}, .max_tokens = 20, .stop = {kEnd}, .sampling = {.temperature = 0}};
      r.biases = {{static_cast<int32_t>(kEnd), 80.0f}};  // ends as soon as it may
      r.least_tokens = least;
      if (regex != nullptr) r.filter = AnswerGrammar::filter(grammar(regex));
      scheduler.add(r);
      return run_forms(scheduler)[0];
    };
    EXPECT_EQ(run(0, nullptr).tokens.size(), 0u);
    EXPECT_EQ(run(7, nullptr).tokens.size(), 7u) << o.device << (session.depth() > 1 ? ", ahead" : "");
    EXPECT_EQ(run(0, "[a-f]{2,9}").tokens.size(), 2u);
    EXPECT_EQ(run(5, "[a-f]{2,9}").tokens.size(), 5u);
    EXPECT_EQ(run(15, "[a-f]{2,9}").tokens.size(), 9u) << "whole by its form, it ends";
    EXPECT_EQ(run(15, "[a-f]{2,9}").finish, FinishReason::stop);
  }
}

/// What cannot go on ends alone, with what is wrong.
TEST(AnswerForms, WhatCannotGoOnEndsAlone) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  DecodeSession session(prepared, {.threads = 1});
  TokenScheduler scheduler(session);
  GenerateRequest plain{.prompt = {4, 5}, .max_tokens = 9, .sampling = {.temperature = 0}};
  scheduler.add(plain);
  const FormAnswer want = run_forms(scheduler)[0];
  GenerateRequest stuck = plain;
  stuck.filter = AnswerGrammar::filter(grammar("ab#c"));  // no token has the third letter
  const int64_t lost = scheduler.add(stuck), stays = scheduler.add(plain);
  const FormAnswers got = run_forms(scheduler);
  EXPECT_EQ(got.at(stays), want);
  EXPECT_EQ(letters_of(got.at(lost).tokens), "ab");
  EXPECT_EQ(got.at(lost).finish, FinishReason::failed);
  ASSERT_NE(got.at(lost).error, nullptr);
  EXPECT_EQ(got.at(lost).error->code(), base::ErrorCode::invalid_argument);
  EXPECT_EQ(session.free_pages(), session.pool().pages());
  EXPECT_THROW(scheduler.add({.prompt = {1}, .biases = {{61, 1}}}), base::Error);
  EXPECT_THROW(scheduler.add({.prompt = {1}, .biases = {{6, 1}, {6, 2}}}), base::Error);
  EXPECT_THROW(scheduler.add({.prompt = {1}, .likeliest = 21}), base::Error);
}

}  // namespace
}  // namespace trireme::sched
