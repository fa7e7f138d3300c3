// Sampling against its formulas, and generation: the same answers in any company, pages that come back.
#include "engine/generator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "engine/session.h"
#include "model/zoo/llama.h"

namespace trireme::engine {
namespace {

model::Model tiny() {
  model::zoo::LlamaConfig c;
  c.vocabulary = 61;
  c.positions = 96;
  c.width = 32;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.inner = 48;
  model::RandomParams params(9);
  return model::zoo::llama(c, params);
}

using Answers = std::map<int64_t, std::vector<int64_t>>;

Answers run_all(Generator& generator) {
  Answers answers;
  while (!generator.is_idle()) {
    for (const GenerateEvent& e : generator.step()) {
      if (e.token >= 0) answers[e.request].push_back(e.token);
    }
  }
  return answers;
}

std::vector<GenerateRequest> requests() {
  std::vector<GenerateRequest> list;
  for (int64_t i = 0; i < 12; ++i) {
    GenerateRequest r;
    for (int64_t t = 0; t <= (i * 7) % 40; ++t) r.prompt.push_back((i * 13 + t * 5) % 61);
    r.max_tokens = 3 + (i * 5) % 20;
    r.sampling.temperature = i % 3 == 0 ? 0 : 0.9;
    r.sampling.top_k = i % 2 == 0 ? 20 : 0;
    r.sampling.top_p = i % 4 == 1 ? 0.8 : 1;
    r.sampling.repetition_penalty = i % 5 == 2 ? 1.3 : 1;
    r.sampling.seed = i;
    list.push_back(std::move(r));
  }
  return list;
}

TEST(Generator, AnswersDoNotDependOnCompany) {
  const model::Model model = tiny();
  const auto prepared = std::make_shared<DecodeModel>(model.graph);
  Answers alone;
  {
    DecodeSession session(prepared, {.threads = 1});
    int64_t i = 0;
    for (GenerateRequest& r : requests()) {
      Generator generator(session);
      generator.add(r);
      alone[i++] = run_all(generator)[0];
    }
  }
  for (const DecodeOptions& o : {DecodeOptions{.threads = 3}, DecodeOptions{.threads = 2, .max_sequences = 3},
                                 DecodeOptions{.threads = 1, .max_tokens = 5},
                                 DecodeOptions{.threads = 2, .cache_bytes = 8 * 2 * 2 * 2 * 16 * 8 * 4}}) {
    DecodeSession session(prepared, o);
    Generator generator(session);
    for (GenerateRequest& r : requests()) generator.add(r);
    EXPECT_EQ(run_all(generator), alone);
    EXPECT_EQ(session.pool().free_pages(), session.pool().pages());
  }
}

TEST(Generator, EndsAtStopsLengthsAndCancels) {
  const model::Model model = tiny();
  DecodeSession session(std::make_shared<DecodeModel>(model.graph), {.threads = 1});
  Generator generator(session);
  GenerateRequest r{.prompt = {1, 2, 3}, .max_tokens = 1000};
  r.sampling.temperature = 0;
  generator.add(r);
  const std::vector<int64_t> whole = run_all(generator)[0];
  EXPECT_EQ(whole.size(), 93u);  // positions - prompt
  r.stop = {whole[5]};
  const auto first = static_cast<size_t>(std::find(whole.begin(), whole.end(), whole[5]) - whole.begin());
  generator.add(r);
  EXPECT_EQ(run_all(generator)[1],
            std::vector<int64_t>(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(first)));
  r.stop.clear();
  const int64_t id = generator.add(r);
  generator.step();
  generator.cancel(id);
  const auto& events = generator.step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::cancelled);
  EXPECT_TRUE(generator.is_idle());
  EXPECT_EQ(session.pool().free_pages(), session.pool().pages());
  EXPECT_THROW(generator.add({.prompt = {}}), base::Error);
  EXPECT_THROW(generator.add({.prompt = {61}}), base::Error);
  EXPECT_THROW(generator.add({.prompt = std::vector<int64_t>(96, 1)}), base::Error);
}

/// How often each token is drawn in n draws.
std::vector<double> shares(const SamplingOptions& options, const std::vector<float>& logits, int n) {
  Sampler sampler(options, static_cast<int64_t>(logits.size()));
  std::vector<double> share(logits.size());
  for (int i = 0; i < n; ++i) share[static_cast<size_t>(sampler.next(logits))] += 1.0 / n;
  return share;
}

TEST(Sampler, DrawsByProbability) {
  const std::vector<float> logits{0.5f, 2.0f, -1.0f, 1.0f, -INFINITY};
  const auto expect = [&](const SamplingOptions& o, const std::vector<size_t>& kept) {
    double sum = 0;
    for (size_t i : kept) sum += std::exp(logits[i] / o.temperature);
    const auto share = shares(o, logits, 40000);
    for (size_t i = 0; i < logits.size(); ++i) {
      const bool is_kept = std::find(kept.begin(), kept.end(), i) != kept.end();
      EXPECT_NEAR(share[i], is_kept ? std::exp(logits[i] / o.temperature) / sum : 0, 0.01) << i;
    }
  };
  expect({.temperature = 1, .seed = 1}, {0, 1, 2, 3});
  expect({.temperature = 0.5, .seed = 2}, {0, 1, 2, 3});
  expect({.temperature = 2, .top_k = 2}, {1, 3});
  expect({.temperature = 1, .top_p = 0.8}, {1, 3});  // 0.60, 0.22, 0.13, 0.03
  expect({.temperature = 1, .top_p = 0.5}, {1});
  expect({.temperature = 1, .min_p = 0.3}, {1, 3});
  expect({.temperature = 1, .top_p = 0}, {1});
}

TEST(Sampler, PenalizesWhatWasSaid) {
  const std::vector<float> logits{1.0f, 1.1f, -0.5f};
  Sampler repetition({.repetition_penalty = 2, .temperature = 0}, 3);
  const std::vector<int64_t> prompt{1};
  repetition.see_prompt(prompt);
  EXPECT_EQ(repetition.next(logits), 0);  // 1.1 became 0.55
  EXPECT_EQ(repetition.next(logits), 1);  // 1.0 became 0.5
  Sampler presence({.presence_penalty = 0.3, .temperature = 0}, 3);
  presence.see_prompt(prompt);
  EXPECT_EQ(presence.next(logits), 1);
  EXPECT_EQ(presence.next(logits), 0);
  EXPECT_EQ(presence.next(logits), 1);
  Sampler frequency({.frequency_penalty = 0.3, .temperature = 0}, 3);
  std::vector<int64_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(frequency.next(logits));
  EXPECT_EQ(ids, (std::vector<int64_t>{1, 0, 1, 0}));
  EXPECT_NEAR(frequency.last_log_probability(),
              1.0 - std::log(std::exp(1.0) + std::exp(1.1) + std::exp(-0.5)), 1e-6);
}

TEST(Sampler, IsReproducible) {
  std::vector<float> logits(200);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  const auto draw = [&](int64_t seed) {
    Sampler s({.seed = seed}, 200);
    std::vector<int64_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(s.next(logits));
    return ids;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
  const std::vector<float> tie{0, 3, 3};
  EXPECT_EQ(Sampler({.temperature = 0}, 3).next(tie), 1);
  const std::vector<float> broken{NAN, 1, NAN};
  EXPECT_EQ(Sampler({.temperature = 0}, 3).next(broken), 1);
  EXPECT_EQ(Sampler({}, 3).next(broken), 1);
  EXPECT_THROW(Sampler({.temperature = -1}, 3), base::Error);
}

}  // namespace
}  // namespace trireme::engine
