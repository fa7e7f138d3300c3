// Guessed tokens change no answer: whoever guesses, in any company, wherever pages run out and answers end.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "engine/decode/draft_model.h"
#include "engine/decode/prompt_lookup.h"
#include "sched/text/test_answers.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

constexpr int64_t kVocabulary = 61;

std::shared_ptr<const DecodeModel> prepare(int64_t layers, uint64_t seed, const DecodeOptions& options = {},
                                           int64_t vocabulary = kVocabulary) {
  model::zoo::LlamaConfig c = tests::tiny_llama_config();
  c.vocabulary = vocabulary;
  c.layers = layers;
  return std::make_shared<const DecodeModel>(tests::tiny_llama(c, seed).graph, options);
}

std::shared_ptr<const DecodeModel> two_layers() {
  static const auto model = prepare(2, 9);
  return model;
}

void take(const std::vector<GenerateEvent>& events, TextAnswers& answers) {
  for (const GenerateEvent& e : events) {
    TextAnswer& a = answers[e.request];
    EXPECT_EQ(a.finish, FinishReason::none) << "request " << e.request << " goes on behind its end";
    if (e.token >= 0) {
      a.tokens.push_back(e.token);
      a.logs.push_back(e.log_probability);
      for (const TokenChance& chance : e.likeliest) a.likeliest.push_back(chance.token);
    }
    a.finish = e.finish;
  }
}

TextAnswers run_checked(TokenScheduler& scheduler) {
  TextAnswers answers;
  while (!scheduler.is_idle()) take(scheduler.step(), answers);
  return answers;
}

constexpr int64_t kPenalized = 1000;  // from this number on all requests have penalties

/// Draws, penalties, biases, chances, least lengths, stops and prompts that repeat themselves, by number.
GenerateRequest guessed_request(int64_t i) {
  base::Rng rng(77, static_cast<uint64_t>(i));
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.below(n)); };
  GenerateRequest r;
  const int64_t period = 1 + below(9);
  for (int64_t t = 0, n = 1 + below(40); t < n; ++t)
    r.prompt.push_back(i % 3 == 0 ? below(kVocabulary) : (i + 7 * (t % period)) % kVocabulary);
  r.max_tokens = 1 + below(30);
  r.sampling.temperature = i % 3 == 1 ? 0.9 : 0;
  r.sampling.top_k = i % 2 == 0 ? 20 : 0;
  r.sampling.seed = i;
  if (i % 7 == 3) r.sampling.frequency_penalty = 0.5;  // no guesses unless DecodeOptions::counts_ahead
  if (i >= kPenalized) {
    r.sampling.repetition_penalty = 1 + 0.1 * static_cast<double>(below(8));
    r.sampling.presence_penalty = 0.2 * static_cast<double>(below(6)) - 0.3;
    r.sampling.frequency_penalty = 0.3 * static_cast<double>(below(5)) - 0.1;
  }
  if (i % 4 == 2) r.biases = {{static_cast<int32_t>(i % kVocabulary), 3.0f}, {17, -50.0f}};
  if (i % 3 != 2) r.stop = {below(kVocabulary), below(kVocabulary), 5};
  if (i % 5 == 4) r.least_tokens = below(12);
  r.likeliest = i % 4 == 1 ? 3 : 0;
  return r;
}

/// What a request gives alone and without guesses.
const TextAnswer& answer_alone(int64_t i) {
  static TextAnswers known;
  const auto [at, is_new] = known.try_emplace(i);
  if (is_new) {
    DecodeSession session(two_layers(), {.threads = 1});
    TokenScheduler scheduler(session);
    scheduler.add(guessed_request(i));
    at->second = run_checked(scheduler)[0];
  }
  return at->second;
}

/// Knows the answers, and errs now and then.
class Prophet final : public Drafter {
 public:
  Prophet(double right, std::function<int64_t(int64_t)> request_of)
      : right_(right), request_of_(std::move(request_of)) {}
  void draft(std::span<const DraftWish> wishes) override {
    for (const DraftWish& wish : wishes) {
      const std::vector<int64_t>& answer = answer_alone(request_of_(wish.text)).tokens;
      for (int64_t i = 0; i < wish.most; ++i) {
        const auto at = static_cast<size_t>(wish.position + i);
        const bool errs = at >= answer.size() || rng_.uniform() >= right_;
        wish.drafts->push_back(errs ? static_cast<int64_t>(rng_.below(kVocabulary)) : answer[at]);
      }
      if (rng_.below(9) == 0) wish.drafts->clear();
    }
  }
  void forget(int64_t text) override { forgotten.push_back(text); }
  bool runs_steps() const override { return right_ > 0.8; }
  int64_t memory_bytes() const override { return 0; }

  std::vector<int64_t> forgotten;

 private:
  double right_;
  std::function<int64_t(int64_t)> request_of_;
  base::Rng rng_{3, 0};
};

std::unique_ptr<DraftModel> small_model(const DecodeOptions& options, uint64_t seed = 9) {
  return std::make_unique<DraftModel>(std::make_unique<DecodeSession>(prepare(1, seed), options),
                                      kVocabulary);
}

const std::vector<DecodeOptions>& session_forms() {
  static const std::vector<DecodeOptions> list{
      {.threads = 3},
      {.threads = 1, .share_prefixes = false, .max_sequences = 5},
      {.threads = 2, .max_sequences = 16, .max_tokens = 13},
      {.threads = 2, .cache_bytes = 9 * kTinyPageBytes, .max_tokens = 33},
  };
  return list;
}

constexpr int64_t kGuessedRequests = 40;

TEST(Speculation, AnswersAreThoseWithoutGuesses) {
  const auto number = [](int64_t text) { return text; };
  int64_t accepted = 0, rejected = 0, put_back = 0;
  for (const DecodeOptions& o : session_forms()) {
    DecodeOptions short_of_pages = o;
    short_of_pages.cache_bytes = 12 * kTinyPageBytes / 2;  // one layer
    std::unique_ptr<Drafter> drafters[] = {std::make_unique<Prophet>(1.0, number),
                                           std::make_unique<Prophet>(0.7, number),
                                           std::make_unique<Prophet>(0.0, number),
                                           std::make_unique<PromptLookup>(1),
                                           small_model({.threads = 1}),
                                           small_model(short_of_pages)};
    for (const auto& drafter : drafters) {
      DecodeSession session(two_layers(), o);
      TokenScheduler scheduler(session, {.drafter = drafter.get(), .draft_tokens = 5});
      for (int64_t i = 0; i < kGuessedRequests; ++i) scheduler.add(guessed_request(i));
      const TextAnswers answers = run_checked(scheduler);
      for (int64_t i = 0; i < kGuessedRequests; ++i)
        EXPECT_EQ(answers.at(i), answer_alone(i))
            << "request " << i << " guessed by " << typeid(*drafter).name();
      EXPECT_EQ(session.free_pages(), session.pool().pages());
      const DraftCounts& counts = scheduler.draft_counts();
      EXPECT_GT(counts.tokens, 0);
      accepted += counts.accepted;
      rejected += counts.tokens - counts.accepted;
      put_back += scheduler.put_back();
      if (auto* model = dynamic_cast<DraftModel*>(drafter.get())) {
        EXPECT_EQ(model->session().free_pages(), model->session().pool().pages());
      }
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(rejected, 1000);
  EXPECT_GT(put_back, 0);
}

TEST(Speculation, ManyTokensComeInOneStep) {
  Prophet drafter(1.0, [](int64_t) { return 2; });
  const TextAnswer& want = answer_alone(2);
  ASSERT_GT(want.tokens.size(), 12u);
  DecodeSession session(two_layers(), {.threads = 1});
  TokenScheduler scheduler(session, {.drafter = &drafter, .draft_tokens = 4});
  scheduler.add(guessed_request(2));
  size_t steps = 0;
  TextAnswers answers;
  for (; !scheduler.is_idle(); ++steps) take(scheduler.step(), answers);
  EXPECT_EQ(answers[0], want);
  EXPECT_LT(steps, 3 + want.tokens.size() / 3);
  const DraftCounts& counts = scheduler.draft_counts();
  EXPECT_GT(counts.accepted, static_cast<int64_t>(want.tokens.size() / 2));
  EXPECT_LE(counts.drafts, static_cast<int64_t>(steps));
  EXPECT_EQ(drafter.forgotten.back(), 0);
}

/// Requests that come at any time, are cancelled at any time, and are guessed for by chance.
TEST(Speculation, ARandomCompanyChangesNothing) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    base::Rng rng(seed, 1);
    std::vector<int64_t> numbers;  // of requests, by the scheduler's
    Prophet prophet(rng.uniform(), [&](int64_t text) { return numbers.at(static_cast<size_t>(text)); });
    PromptLookup lookup(1 + static_cast<int64_t>(rng.below(3)));
    Drafter& drafter = seed % 3 == 0 ? static_cast<Drafter&>(lookup) : prophet;
    const DecodeOptions o{.threads = 1 + static_cast<int>(rng.below(2)),
                          .cache_bytes = (7 + static_cast<int64_t>(rng.below(20))) * kTinyPageBytes,
                          .share_prefixes = rng.below(2) == 0,
                          .max_sequences = 2 + static_cast<int64_t>(rng.below(20)),
                          .max_tokens = 5 + static_cast<int64_t>(rng.below(60))};
    DecodeSession session(two_layers(), o);
    TokenScheduler scheduler(session,
                             {.drafter = &drafter, .draft_tokens = 1 + static_cast<int64_t>(rng.below(9))});
    TextAnswers answers;
    std::map<int64_t, bool> cancelled;
    while (numbers.size() < 100 || !scheduler.is_idle()) {
      while (numbers.size() < 100 && rng.below(2) == 0) {
        numbers.push_back(static_cast<int64_t>(rng.below(60)));
        const uint32_t priority = rng.below(5) == 0 ? kBackground : static_cast<uint32_t>(rng.below(2));
        scheduler.add(guessed_request(numbers.back()),
                      {.priority = priority, .tenant = static_cast<uint32_t>(rng.below(3))});
        if (rng.below(8) == 0) {
          const auto gone = static_cast<int64_t>(rng.below(numbers.size()));
          if (answers[gone].finish == FinishReason::none) cancelled[gone] = true;
          scheduler.cancel(gone);
        }
      }
      take(scheduler.step(), answers);
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      const TextAnswer& got = answers.at(static_cast<int64_t>(i));
      const TextAnswer& want = answer_alone(numbers[i]);
      if (!cancelled[static_cast<int64_t>(i)]) {
        ASSERT_EQ(got, want) << "seed " << seed << ", request " << numbers[i];
        continue;
      }
      ASSERT_LE(got.tokens.size(), want.tokens.size());
      ASSERT_TRUE(std::equal(got.tokens.begin(), got.tokens.end(), want.tokens.begin()));
    }
    EXPECT_EQ(session.free_pages(), session.pool().pages());
  }
}

TEST(Speculation, RanksAndDevicesAnswerAlike) {
  const auto run = [](DecodeOptions o, bool speculates) {
    o.max_sequences = 12;
    DecodeSession session(prepare(2, 9, o), o);
    PromptLookup lookup(1);
    TokenScheduler scheduler(session, {.drafter = speculates ? &lookup : nullptr});
    for (const int64_t i : {0, 2, 6, 14, 26, 32}) scheduler.add(guessed_request(i));
    TextAnswers answers = run_checked(scheduler);
    EXPECT_EQ(scheduler.draft_counts().accepted > 0, speculates) << o.device << o.run_ahead;
    EXPECT_EQ(session.free_pages(), session.pool().pages());
    std::map<int64_t, std::vector<int64_t>> tokens;
    for (auto& [number, answer] : answers) tokens[number] = std::move(answer.tokens);
    return tokens;
  };
  DecodeOptions two{.threads = 2};
  two.strategy.tp = 2;
  EXPECT_EQ(run(two, true), run(two, false));
  if (tests::cuda_device() != "emulated") return;
  // A device that is a step ahead: texts with guesses wait for their tokens, the others do not.
  for (const bool ahead : {false, true}) {
    const DecodeOptions device{.device = "emulated", .run_ahead = ahead, .threads = 1};
    EXPECT_EQ(run(device, true), run(device, false)) << ahead;
  }
}

/// Every draw behind a guess counts the tokens that stand before it, and no others.
TEST(Speculation, PenaltiesCountTheGuessesBeforeThem) {
  constexpr int64_t kCount = 24;
  const auto penalized = [](int64_t number) { return kPenalized + number; };
  for (const bool counts_ahead : {false, true}) {
    for (const double right : {0.5, 0.9}) {
      for (const DecodeOptions& o :
           {DecodeOptions{.threads = 1, .counts_ahead = counts_ahead}, DecodeOptions{.threads = 2,
                                                                       .cache_bytes = 8 * kTinyPageBytes,
                                                                       .counts_ahead = counts_ahead,
                                                                       .max_sequences = 9}}) {
        Prophet prophet(right, penalized);
        DecodeSession session(two_layers(), o);
        TokenScheduler scheduler(session, {.drafter = &prophet, .draft_tokens = 5});
        for (int64_t i = 0; i < kCount; ++i) scheduler.add(guessed_request(penalized(i)));
        const TextAnswers answers = run_checked(scheduler);
        for (int64_t i = 0; i < kCount; ++i)
          EXPECT_EQ(answers.at(i), answer_alone(penalized(i))) << right << " " << i;
        if (counts_ahead) {
          EXPECT_GT(scheduler.draft_counts().accepted, 40);
          EXPECT_GT(scheduler.draft_counts().tokens, scheduler.draft_counts().accepted + 5);
        } else {
          EXPECT_EQ(scheduler.draft_counts().tokens, 0);
        }
      }
    }
  }
}

TEST(Speculation, PenaltiesCountAlikeOnRanksAndDevices) {
  const auto run = [](DecodeOptions o, bool speculates) {
    o.max_sequences = 12;
    o.counts_ahead = true;
    DecodeSession session(prepare(2, 9, o), o);
    Prophet prophet(0.8, [](int64_t number) { return kPenalized + number; });
    TokenScheduler scheduler(session, {.drafter = speculates ? &prophet : nullptr});
    for (int64_t i = 0; i < 6; ++i) scheduler.add(guessed_request(kPenalized + i));
    TextAnswers answers = run_checked(scheduler);
    EXPECT_EQ(scheduler.draft_counts().accepted > 0, speculates) << o.device << o.run_ahead;
    std::map<int64_t, std::vector<int64_t>> tokens;
    for (auto& [number, answer] : answers) tokens[number] = std::move(answer.tokens);
    return tokens;
  };
  for (const auto& [tp, pp] : {std::pair{2, 1}, std::pair{1, 2}, std::pair{2, 2}}) {
    DecodeOptions ranks{.threads = 2};
    ranks.strategy.tp = tp;
    ranks.strategy.pp = pp;
    EXPECT_EQ(run(ranks, true), run(ranks, false)) << tp << " " << pp;
  }
  if (tests::cuda_device() != "emulated") return;
  for (const bool ahead : {false, true}) {
    const DecodeOptions device{.device = "emulated", .run_ahead = ahead, .threads = 1};
    EXPECT_EQ(run(device, true), run(device, false)) << ahead;
  }
}

/// Tenants pay for wrong guesses: who had many waits longer.
TEST(Speculation, WrongGuessesAreCharged) {
  class ForTheFirst final : public Drafter {
   public:
    void draft(std::span<const DraftWish> wishes) override {
      for (const DraftWish& wish : wishes) {
        const std::vector<int64_t>& right = answer_alone(2).tokens;
        for (int64_t i = 0; wish.text == 0 && i < wish.most; ++i)
          wish.drafts->push_back((right.at(static_cast<size_t>(wish.position)) + 1) % kVocabulary);
      }
    }
    void forget(int64_t) override {}
    bool runs_steps() const override { return false; }
    int64_t memory_bytes() const override { return 0; }
  };
  for (const bool guesses : {false, true}) {
    ForTheFirst drafter;
    DecodeSession session(two_layers(), {.threads = 1, .share_prefixes = false});
    TokenScheduler scheduler(session, {.drafter = guesses ? &drafter : nullptr});
    for (const uint32_t tenant : {1u, 2u}) scheduler.add(guessed_request(2), {.tenant = tenant});
    run_checked(scheduler);
    EXPECT_EQ(scheduler.draft_counts().tokens > 20, guesses);
    EXPECT_EQ(scheduler.draft_counts().accepted, 0);
    for (const uint32_t tenant : {2u, 1u, 2u}) scheduler.add({.prompt = {1}}, {.tenant = tenant});
    scheduler.step();
    std::vector<int64_t> begun;
    for (const TokenScheduler::Begun& b : scheduler.begun()) begun.push_back(b.request);
    EXPECT_EQ(begun, guesses ? (std::vector<int64_t>{2, 4, 3}) : (std::vector<int64_t>{2, 3, 4}));
  }
}

TEST(DraftModel, FollowsTheTextsItGuessesFor) {
  // The very model that checks: every guess is right, greedy or drawn, as long as the draft has its pages.
  const DecodeOptions options{.threads = 1};
  DraftModel same(std::make_unique<DecodeSession>(two_layers(), options), kVocabulary);
  DecodeSession session(two_layers(), options);
  TokenScheduler scheduler(session, {.drafter = &same, .draft_tokens = 4});
  for (const int64_t i : {1, 2, 6}) scheduler.add(guessed_request(i));
  const TextAnswers answers = run_checked(scheduler);
  EXPECT_EQ(answers.at(0), answer_alone(1));
  EXPECT_EQ(answers.at(1), answer_alone(2));
  EXPECT_EQ(answers.at(2), answer_alone(6));
  EXPECT_GT(scheduler.draft_counts().tokens, 10);
  EXPECT_EQ(scheduler.draft_counts().accepted, scheduler.draft_counts().tokens);
  EXPECT_EQ(same.session().free_pages(), same.session().pool().pages());
}

TEST(DraftModel, MayKnowOtherTokensThanTheModel) {
  const DecodeOptions options{.threads = 1};
  for (const int64_t vocabulary : {kVocabulary - 9, kVocabulary + 9}) {
    DraftModel draft(std::make_unique<DecodeSession>(prepare(1, 9, {}, vocabulary), options), kVocabulary);
    DecodeSession session(two_layers(), options);
    TokenScheduler scheduler(session, {.drafter = &draft, .draft_tokens = 3});
    for (int64_t i = 0; i < kGuessedRequests; ++i) scheduler.add(guessed_request(i));
    const TextAnswers answers = run_checked(scheduler);
    for (int64_t i = 0; i < kGuessedRequests; ++i) EXPECT_EQ(answers.at(i), answer_alone(i)) << vocabulary;
    EXPECT_GT(scheduler.draft_counts().tokens, 0);
  }
  EXPECT_THROW(DraftModel(std::make_unique<DecodeSession>(prepare(1, 9, {}, 5000), options), kVocabulary),
               base::Error);
}

/// Guesses the same tokens whatever the text.
class Fixed final : public Drafter {
 public:
  explicit Fixed(std::vector<int64_t> tokens) : tokens_(std::move(tokens)) {}
  void draft(std::span<const DraftWish> wishes) override {
    for (const DraftWish& wish : wishes) {
      for (size_t i = 0; i < tokens_.size() && static_cast<int64_t>(i) < wish.most; ++i)
        wish.drafts->push_back(tokens_[i]);
    }
  }
  void forget(int64_t) override {}
  bool runs_steps() const override { return false; }
  int64_t memory_bytes() const override { return 0; }

 private:
  std::vector<int64_t> tokens_;
};

/// Probabilities of the next token behind each of several texts.
std::vector<std::vector<double>> chances(const std::vector<std::vector<int64_t>>& texts) {
  DecodeSession session(two_layers(), {.threads = 1, .share_prefixes = false});
  std::vector<std::vector<double>> all;
  for (const std::vector<int64_t>& text : texts) {
    const SequenceId id = session.open();
    const DecodePiece piece{.sequence = id, .tokens = text};
    const std::span<const float> logits = session.step({&piece, 1});
    double sum = 0;
    std::vector<double>& p = all.emplace_back();
    for (const float v : logits) sum += p.emplace_back(std::exp(double{v}));
    for (double& v : p) v /= sum;
    session.close(id);
  }
  return all;
}

/// The second and the third token of sampled answers, whose first guess is often right, come as often as the
/// model says: chi-square over thousands of seeds.
TEST(Speculation, SamplesAsTheModelSays) {
  const std::vector<int64_t> prompt{3, 1, 4};
  const std::vector<double> first = chances({prompt})[0];
  std::vector<std::vector<int64_t>> texts;
  for (int64_t a = 0; a < kVocabulary; ++a) texts.push_back({3, 1, 4, a});
  const auto second = chances(texts);
  std::vector<double> by_second(kVocabulary), by_third(kVocabulary);
  std::vector<std::vector<int64_t>> longer;
  for (int64_t a = 0; a < kVocabulary; ++a) {
    for (int64_t b = 0; b < kVocabulary; ++b) longer.push_back({3, 1, 4, a, b});
  }
  const auto third = chances(longer);
  for (size_t a = 0; a < size_t{kVocabulary}; ++a) {
    for (size_t b = 0; b < size_t{kVocabulary}; ++b) {
      by_second[b] += first[a] * second[a][b];
      for (size_t c = 0; c < size_t{kVocabulary}; ++c)
        by_third[c] += first[a] * second[a][b] * third[a * kVocabulary + b][c];
    }
  }
  const auto likeliest = std::max_element(by_second.begin(), by_second.end()) - by_second.begin();
  Fixed drafter({likeliest, 7});
  DecodeSession session(two_layers(), {.threads = 1});
  TokenScheduler scheduler(session, {.drafter = &drafter, .draft_tokens = 2});
  constexpr int64_t kSeeds = 6000;
  std::vector<double> seen_second(kVocabulary), seen_third(kVocabulary);
  for (int64_t seed = 0; seed < kSeeds;) {
    for (int i = 0; i < 20; ++i, ++seed)  // each with two guesses: a step has 64 rows
      scheduler.add({.prompt = prompt, .max_tokens = 4, .stop = {}, .sampling = {.seed = seed}});
    for (const auto& [number, answer] : run_checked(scheduler)) {
      ++seen_second.at(static_cast<size_t>(answer.tokens.at(1)));
      ++seen_third.at(static_cast<size_t>(answer.tokens.at(2)));
    }
  }
  EXPECT_GE(scheduler.draft_counts().drafts, kSeeds);
  EXPECT_GT(scheduler.draft_counts().accepted, kSeeds / 60);
  const auto chi_square = [&](const std::vector<double>& seen, const std::vector<double>& chance) {
    double sum = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      const double expected = static_cast<double>(kSeeds) * chance[i];
      EXPECT_GT(expected, 5);
      sum += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    return sum;
  };
  constexpr double kMost = 99.6;  // of 60 degrees of freedom, at a chance of one in a thousand
  EXPECT_LT(chi_square(seen_second, by_second), kMost);
  EXPECT_LT(chi_square(seen_third, by_third), kMost);
}

/// Goes on when a step is done, by what the step ran.
class PricedClock final : public base::Clock {
 public:
  explicit PricedClock(std::function<double(int64_t)> ms) : ms_(std::move(ms)) {}
  int64_t now_ns() const override {
    const int64_t tokens = scheduler == nullptr ? 0 : scheduler->step_tokens();
    if (tokens > 0 && !is_counted_) now_ += static_cast<int64_t>(ms_(tokens) * 1e6);
    is_counted_ = tokens > 0;
    return now_;
  }
  int64_t wall_ns() const override { return now_; }
  void sleep_until(int64_t) override {}

  const TokenScheduler* scheduler = nullptr;

 private:
  std::function<double(int64_t)> ms_;
  mutable int64_t now_ = 0;
  mutable bool is_counted_ = false;
};

TEST(Speculation, TurnsItselfOffWhereItDoesNotPay) {
  const auto run = [](double right, const std::function<double(int64_t)>& ms, int64_t texts) {
    PricedClock clock(ms);
    Prophet drafter(right, [](int64_t text) { return 2 + 12 * (text % 3); });
    DecodeSession session(two_layers(), {.threads = 1});
    TokenScheduler scheduler(session, {.clock = &clock, .drafter = &drafter, .draft_tokens = 4});
    clock.scheduler = &scheduler;
    int64_t generated = 0;
    for (int turn = 0; turn < 12; ++turn) {
      for (int64_t i = 0; i < texts; ++i) scheduler.add(guessed_request(2 + 12 * ((i + turn * texts) % 3)));
      const TextAnswers answers = run_checked(scheduler);
      int64_t number = turn * texts;
      for (const auto& [text, answer] : answers) {
        EXPECT_EQ(answer, answer_alone(2 + 12 * (number++ % 3)));
        generated += static_cast<int64_t>(answer.tokens.size());
      }
    }
    return static_cast<double>(scheduler.draft_counts().tokens) / static_cast<double>(generated);
  };
  const auto flat = [](int64_t) { return 10.0; };
  const auto by_token = [](int64_t tokens) { return 1.0 * static_cast<double>(tokens); };
  EXPECT_GT(run(0.9, flat, 1), 0.5);
  EXPECT_LT(run(0.9, by_token, 1), 0.15);
  EXPECT_LT(run(
                0.0, [](int64_t tokens) { return 10 + 0.5 * static_cast<double>(tokens); }, 1),
            0.25);
  // Room for some: a step of up to 8 tokens costs what one does.
  const auto steep = [](int64_t tokens) { return tokens <= 8 ? 10.0 : 10.0 * static_cast<double>(tokens); };
  EXPECT_GT(run(0.9, steep, 2), 0.4);
  EXPECT_LT(run(0.9, steep, 8), 0.15);
}

TEST(TokenScheduler, KeepsToTheGoalBetweenTokens) {
  const auto ms = [](int64_t tokens) { return 1 + 0.1 * static_cast<double>(rounded_size(tokens)); };
  struct Timed {
    TextAnswers answers;
    int64_t longest = 0;
  };
  const auto run = [&](const TextGoals& goals) {
    PricedClock clock(ms);
    DecodeSession session(two_layers(), {.threads = 1, .share_prefixes = false, .max_tokens = 90});
    TokenScheduler scheduler(session, {.clock = &clock, .goals = goals});
    clock.scheduler = &scheduler;
    Timed seen;
    // One answers, long prompts come beside it.
    for (int turn = 0; turn < 6; ++turn) {
      GenerateRequest talker{
          .prompt = {1, 2, 3}, .max_tokens = 60, .stop = {}, .sampling = {.temperature = 0}};
      scheduler.add(talker);
      take(scheduler.step(clock.now_ns()), seen.answers);
      for (int64_t i = 0; i < 3; ++i) {
        GenerateRequest reader{.max_tokens = 2, .stop = {}, .sampling = {.temperature = 0}};
        for (int64_t t = 0; t < 90; ++t) reader.prompt.push_back((t * (i + turn)) % kVocabulary);
        scheduler.add(reader);
      }
      while (!scheduler.is_idle()) {
        const size_t tokens = seen.answers[turn * 4].tokens.size();
        take(scheduler.step(clock.now_ns()), seen.answers);
        const bool is_answering = seen.answers[turn * 4].tokens.size() > tokens && tokens > 0;
        // By then the sizes that count were seen.
        if (is_answering && turn > 1) seen.longest = std::max(seen.longest, scheduler.step_tokens());
      }
    }
    return seen;
  };
  const Timed fast = run({}), smooth = run({.tpot_goal = {5 * base::kNsPerMs}}),
              lazy = run({.ttft_goal = {1000 * base::kNsPerMs}});
  EXPECT_EQ(fast.answers, smooth.answers);
  EXPECT_EQ(fast.answers, lazy.answers);
  EXPECT_GT(fast.longest, 64);
  EXPECT_LE(smooth.longest, 32);  // 4.2 ms; 48 tokens take 5.8
  EXPECT_GT(smooth.longest, 24);
  EXPECT_LE(lazy.longest, 16);  // 34 steps of eight tokens of prompts take 75 ms
}

}  // namespace
}  // namespace trireme::sched
