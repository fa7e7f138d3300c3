// Sampling against its formulas, and generation: the same answers in any company, pages that come back.
#include "sched/text/token_scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "comm/mesh.h"
#include "engine/session/session.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "ops/table.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

using tensor::Tensor;

/// Where tokens are the CPU's to the last: logits of a GPU round otherwise.
std::vector<std::string> exact_devices() {
  return tests::cuda_device() == "emulated" ? std::vector<std::string>{"cpu", "emulated"}
                                            : std::vector<std::string>{"cpu"};
}

using Answers = std::map<int64_t, std::vector<int64_t>>;

Answers run_tokens(TokenScheduler& generator) {
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

TEST(TokenScheduler, AnswersDoNotDependOnCompany) {
  const model::Model model = tests::tiny_llama();
  const auto prepared = std::make_shared<DecodeModel>(model.graph);
  Answers alone;
  {
    DecodeSession session(prepared, {.threads = 1});
    int64_t i = 0;
    for (GenerateRequest& r : requests()) {
      TokenScheduler generator(session);
      generator.add(r);
      alone[i++] = run_tokens(generator)[0];
    }
  }
  for (const DecodeOptions& o : {DecodeOptions{.threads = 3}, DecodeOptions{.threads = 2, .max_sequences = 3},
                                 DecodeOptions{.threads = 1, .max_tokens = 5},
                                 DecodeOptions{.threads = 2, .cache_bytes = 8 * 2 * 2 * 2 * 16 * 8 * 4}}) {
    DecodeSession session(prepared, o);
    TokenScheduler generator(session);
    for (GenerateRequest& r : requests()) generator.add(r);
    EXPECT_EQ(run_tokens(generator), alone);
    EXPECT_EQ(session.free_pages(), session.pool().pages());
  }
}

TEST(TokenScheduler, BackgroundTextsRunInWhatOthersLeave) {
  const auto prepared = std::make_shared<DecodeModel>(tests::tiny_llama().graph);
  const std::vector<GenerateRequest> list = requests();
  Answers alone;
  DecodeSession quiet(prepared, {.threads = 1});
  for (size_t i = 0; i < list.size(); ++i) {
    TokenScheduler generator(quiet);
    generator.add(list[i]);
    alone[static_cast<int64_t>(i)] = run_tokens(generator)[0];
  }
  // Three places or one, all of them with texts in the background when the others come; and few pages.
  for (const DecodeOptions& o :
       {DecodeOptions{.threads = 1, .max_sequences = 3}, DecodeOptions{.threads = 1, .max_sequences = 1},
        DecodeOptions{.threads = 1, .max_tokens = 1},
        DecodeOptions{.threads = 1, .cache_bytes = 8 * 2 * 2 * 2 * 16 * 8 * 4}}) {
    DecodeSession session(prepared, o);
    TokenScheduler generator(session);
    Answers answers;
    size_t steps = 0;
    std::map<int64_t, bool> is_over;
    const auto has_foreground = [&] {
      for (int64_t i = 6; i < 12; ++i) {
        if (steps >= 4 && !is_over[i]) return true;
      }
      return false;
    };
    for (int64_t i = 0; i < 6; ++i) generator.add(list[size_t(i)], {.priority = kBackground});
    for (; !generator.is_idle(); ++steps) {
      if (steps == 4) {
        for (int64_t i = 6; i < 12; ++i) generator.add(list[size_t(i)], {.priority = 1});
      }
      const bool is_busy = has_foreground();
      for (const GenerateEvent& e : generator.step()) {
        if (e.token >= 0) {
          answers[e.request].push_back(e.token);
          EXPECT_TRUE(!is_busy || e.request >= 6 || steps == 4) << "step " << steps << " text " << e.request;
        }
        if (e.finish != FinishReason::none) is_over[e.request] = true;
      }
    }
    EXPECT_EQ(answers, alone);
    EXPECT_EQ(session.free_pages(), session.pool().pages());
  }
}

/// A text in the background that runs alone and holds most pages makes room for a client's prompt.
TEST(TokenScheduler, TheLastBackgroundTextMakesRoom) {
  const DecodeOptions o{.threads = 1, .cache_bytes = 4 * 2 * 2 * 2 * 16 * 8 * 4};
  DecodeSession session(std::make_shared<DecodeModel>(tests::tiny_llama().graph), o);
  TokenScheduler generator(session);
  GenerateRequest r{.max_tokens = 12, .sampling = {.temperature = 0}};
  for (int64_t t = 0; t < 40; ++t) r.prompt.push_back(t * 7 % 61);
  generator.add(r);
  const std::vector<int64_t> alone = run_tokens(generator)[0];
  const int64_t late = generator.add(r, {.priority = kBackground});
  generator.step();
  ASSERT_EQ(generator.running(), 1u);
  GenerateRequest other = r;
  std::reverse(other.prompt.begin(), other.prompt.end());  // shares no page
  const int64_t first = generator.add(other);
  Answers answers = run_tokens(generator);
  EXPECT_EQ(generator.put_back(), 1);
  EXPECT_EQ(answers[first].size(), 12u);
  const std::vector<int64_t> rest(alone.begin() + 1, alone.end());  // the first came before
  EXPECT_EQ(answers[late], rest);
  EXPECT_EQ(session.free_pages(), session.pool().pages());
}

/// Tokens and the sums of their logarithms.
using Logged = std::map<int64_t, std::pair<std::vector<int64_t>, double>>;
Logged with_logarithms(TokenScheduler& generator) {
  Logged answers;
  while (!generator.is_idle()) {
    for (const GenerateEvent& e : generator.step()) {
      if (e.token < 0) continue;
      answers[e.request].first.push_back(e.token);
      answers[e.request].second += e.log_probability;
    }
  }
  return answers;
}

TEST(TokenScheduler, DevicesDrawTheTokensOfTheCpu) {
  const model::Model model = tests::tiny_llama();
  const auto run = [&](const DecodeOptions& o) {
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    TokenScheduler generator(session);
    for (GenerateRequest& r : requests()) {
      r.max_tokens = std::min<int64_t>(r.max_tokens, 9);
      r.sampling.frequency_penalty = r.sampling.seed % 4 == 3 ? 0.5 : 0;
      r.stop = {5, 17, 23, 29, 31, 37};  // several answers end early
      generator.add(r);
    }
    const auto answers = with_logarithms(generator);
    EXPECT_EQ(session.ranks().first().host_operators(), "");
    EXPECT_EQ(session.free_pages(), session.pool().pages());
    return answers;
  };
  const auto want = run({.threads = 2, .max_sequences = 5, .max_tokens = 24});
  size_t tokens = 0;
  for (const auto& [id, answer] : want) tokens += answer.first.size();
  EXPECT_GT(tokens, 40u);
  for (const bool ahead : {false, true}) {
    for (const bool graphs : {false, true}) {
      if (ahead && !graphs) continue;
      const auto got = run({.device = exact_devices().back(),
                            .graphs = graphs,
                            .run_ahead = ahead,
                            .threads = 1,
                            .max_sequences = 5,
                            .max_tokens = 24});
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [id, answer] : want) {
        EXPECT_EQ(got.at(id).first, answer.first) << "request " << id << (ahead ? ", ahead" : "");
        EXPECT_NEAR(got.at(id).second, answer.second, 1e-3);
      }
    }
  }
}

/// In which order an emulated device's streams run what they hold back, while this lives.
class Order {
 public:
  explicit Order(const char* order) { ::setenv("TRIREME_EMULATED_ORDER", order, 1); }
  ~Order() { ::unsetenv("TRIREME_EMULATED_ORDER"); }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
};

TEST(TokenScheduler, CancelsWhatIsUnderWayInEveryOrderOfStreams) {
  const model::Model model = tests::tiny_llama();
  for (const char* how : {"direct", "late", "early", "shuffled:3"}) {
    const Order order(how);
    const std::string device = how == std::string("direct") ? "cpu" : exact_devices().back();
    const DecodeOptions o{.device = device, .threads = 1, .max_sequences = 2};
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    TokenScheduler generator(session);
    for (int64_t i = 0; i < 3; ++i)
      generator.add({.prompt = {1, 2, 3 + i}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}});
    Answers got;
    std::vector<int64_t> ended;
    for (int step = 0; !generator.is_idle(); ++step) {
      if (step == 2) generator.cancel(0);
      for (const GenerateEvent& e : generator.step()) {
        if (e.token >= 0) got[e.request].push_back(e.token);
        if (e.finish == FinishReason::cancelled) ended.push_back(e.request);
      }
    }
    EXPECT_EQ(ended, std::vector<int64_t>{0});
    EXPECT_EQ(got[0].size(), 2u);
    for (int64_t i : {1, 2}) {
      TokenScheduler alone(session);
      alone.add({.prompt = {1, 2, 3 + i}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}});
      EXPECT_EQ(run_tokens(alone)[0], got[i]) << device << ", " << how;
    }
    EXPECT_EQ(session.free_pages(), session.pool().pages());
  }
}

TEST(TokenScheduler, TextsThatBeginAlikeShareTheirPages) {
  const model::Model model = tests::tiny_llama();
  std::vector<GenerateRequest> list;
  for (int64_t i = 0; i < 7; ++i) {
    GenerateRequest r{
        .max_tokens = 12, .stop = {}, .sampling = {.temperature = i % 2 == 0 ? 0 : 0.9, .seed = i}};
    for (int64_t t = 0; t < 40 + i; ++t) r.prompt.push_back(t < 36 - (i % 2) * 4 ? t % 61 : (t * i) % 61);
    list.push_back(std::move(r));
  }
  list.push_back(list[0]);
  list.back().prompt.resize(33);  // two full pages and the token whose logits are wanted
  list.push_back(list[0]);
  list.back().prompt.resize(32);  // one page may be shared
  const auto run = [&](const std::string& device, bool shares, int64_t pages, int64_t& shared) {
    DecodeOptions o{.device = device, .threads = 1, .cache_bytes = pages * 2 * 2 * 2 * 16 * 8 * 4};
    o.share_prefixes = shares;
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    TokenScheduler generator(session);
    Logged answers;
    for (size_t turn = 0; turn < 2; ++turn) {
      for (GenerateRequest r : list) {
        const int64_t id = generator.add(r);
        if (turn == 1 || id == 0)
          answers.merge(with_logarithms(generator));  // one after another, then together
      }
      answers.merge(with_logarithms(generator));
      // A second turn of a talk: prompt and answer begin the next prompt.
      list[0].prompt.resize(40);
      list[0].prompt.insert(list[0].prompt.end(), answers[0].first.begin(), answers[0].first.end());
    }
    list[0].prompt.resize(40);
    EXPECT_EQ(session.free_pages(), session.pool().pages());
    shared = generator.shared_tokens();
    return answers;
  };
  int64_t none = 0, many = 0, few = 0, there = 0;
  const Logged want = run("cpu", false, 1000, none);  // to the bit, of logarithms too
  EXPECT_EQ(none, 0);
  EXPECT_EQ(run("cpu", true, 1000, many), want);
  EXPECT_GE(many, 16 * 32);
  EXPECT_EQ(run("cpu", true, 5, few), want);  // pages are given up for others
  EXPECT_LT(few, many);
  for (const auto& [id, answer] : run(exact_devices().back(), true, 1000, there))
    EXPECT_EQ(answer.first, want.at(id).first) << "request " << id;
  EXPECT_GE(there, 16 * 32);
}

TEST(TokenScheduler, RanksAnswerAsOne) {
  model::zoo::LlamaConfig c = tests::tiny_llama_config();
  c.heads = 8;
  model::RandomParams params(9);
  model::zoo::Gpt2Config g = model::zoo::Gpt2Config::nano();
  g.has_bias = true;
  g.width = 64;
  const model::Model models[] = {model::zoo::llama(c, params), model::zoo::gpt2(g, params)};
  for (const model::Model& model : models) {
    const auto run = [&](DecodeOptions o, int tp) {
      o.strategy.tp = tp;
      o.max_sequences = 4;
      o.max_tokens = 16;
      DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
      TokenScheduler generator(session);
      for (GenerateRequest& r : requests()) {
        r.max_tokens = std::min<int64_t>(r.max_tokens, 7);
        r.sampling.temperature = 0;
        generator.add(r);
      }
      const Answers answers = run_tokens(generator);
      EXPECT_EQ(session.ranks().first().host_operators(), "");
      EXPECT_EQ(session.free_pages(), session.pool().pages());
      const int64_t all = DecodeModel(model.graph).form().layers[0].kv_heads;
      EXPECT_EQ(session.pool().layout().layers[0].kv_heads, all / std::min<int64_t>(all, tp));
      bool meets = false;
      for (const compile::Step& step : session.prepare({1, 1}, passes::DecodeResult::tokens).steps)
        meets = meets || !step.axes.empty();
      EXPECT_EQ(meets, tp > 1);
      return answers;
    };
    const Answers want = run({.threads = 2}, 1);
    EXPECT_EQ(run({.threads = 4}, 2), want) << model.name;
    EXPECT_EQ(run({.threads = 4}, 4), want) << model.name;  // of the Llama two ranks share each key head
    EXPECT_EQ(run({.device = exact_devices().back(), .threads = 2}, 2), want) << model.name;
    const auto low = [&](int tp) {
      return run({.threads = 2,
                  .cache_type = tensor::DType::bf16,
                  .strategy = {.precision = {.compute = passes::Precision::bf16}}},
                 tp)
          .size();
    };
    EXPECT_EQ(low(2), want.size());
    for (const auto bits : {passes::WeightBits::int8, passes::WeightBits::int4, passes::WeightBits::q4_0}) {
      DecodeOptions stored{.threads = 2};
      stored.strategy.weights = {.weights = bits, .weight_group = 32, .least_elements = 1};
      EXPECT_EQ(run(stored, 2).size(), want.size());
      // Where each rank's part of a matrix holds whole groups, ranks store what one rank stores.
      if (&model == &models[1]) {
        EXPECT_EQ(run(stored, 2), run(stored, 1)) << model.name;
      }
    }
  }
}

/// Programs come and go; what is only looked at on the first rank must not change which ones the others keep.
TEST(TokenScheduler, RanksLetTheSameProgramsGo) {
  const model::Model model = tests::tiny_llama();
  DecodeOptions o{.threads = 2, .max_programs = 2};
  o.strategy.tp = 2;
  DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
  const SequenceId text = session.open();
  const std::vector<int64_t> tokens{1, 2, 3};
  const auto step = [&](size_t count) {
    const DecodePiece piece{.sequence = text, .tokens = std::span(tokens).first(count)};
    return session.step({&piece, 1}).size();
  };
  step(1);
  step(2);
  session.prepare({1, 1});  // is there: no rank uses it
  step(3);                  // takes the place of the first on every rank
  EXPECT_GT(step(1), 0u);
  EXPECT_GT(step(3), 0u);
}

TEST(TokenScheduler, ALostRankEndsTheSession) {
  const model::Model model = tests::tiny_llama();
  DecodeOptions o{.threads = 2};
  o.strategy.tp = 2;
  DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
  {
    TokenScheduler generator(session);
    generator.add({.prompt = {1, 2, 3}, .max_tokens = 8, .stop = {}, .sampling = {.temperature = 0}});
    EXPECT_EQ(generator.step().size(), 1u);
    session.ranks().lose(1);
    for (int again = 0; again < 2; ++again) {
      try {
        generator.step();
        ADD_FAILURE() << "a step without one of its ranks";
      } catch (const base::Error& e) {
        EXPECT_EQ(e.code(), base::ErrorCode::unavailable);
      }
    }
  }  // what it held goes back to pages that nobody can use any more
  EXPECT_EQ(session.free_pages(), session.pool().pages());
}

TEST(TokenScheduler, RanksOfAJobFollowTheFirst) {
  const model::Model model = tests::tiny_llama();
  const auto run = [&](const std::shared_ptr<const DecodeModel>& prepared, const DecodeOptions& o) {
    DecodeSession session(prepared, o);
    const SequenceId first = session.open();
    const std::vector<int64_t> prompt{1, 2, 3, 4, 5};
    session.step({{{.sequence = first, .tokens = prompt}}});
    session.fork(first);  // copies a page on every rank
    TokenScheduler generator(session);
    GenerateRequest request{.prompt = {7, 8}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}};
    request.sampling.repetition_penalty = 1.3;  // what was seen is kept on every rank
    generator.add(request);
    generator.add({.prompt = {9}, .max_tokens = 4, .stop = {}, .sampling = {.temperature = 0}});
    return run_tokens(generator);
  };
  DecodeOptions options{.threads = 1, .page_tokens = 4};
  const Answers want = run(std::make_shared<DecodeModel>(model.graph, options), options);
  options.strategy.tp = 2;
  comm::LocalWorld world(2);
  world.run([&](comm::Communicator& all) {
    const auto prepared = std::make_shared<const DecodeModel>(model.graph, options);
    comm::Mesh mesh(all, prepared->strategy().mesh());
    DecodeOptions own = options;
    own.mesh = &mesh;
    if (all.rank() != 0) return follow_decoding(prepared, own);
    EXPECT_EQ(run(prepared, own), want);
  });
}

TEST(TokenScheduler, StoredWeightsAnswerAlikeOnDevices) {
  const model::Model model = tests::tiny_llama();
  for (const auto bits : {passes::WeightBits::int8, passes::WeightBits::int4, passes::WeightBits::q4_0}) {
    Answers want;
    for (const std::string& device : exact_devices()) {
      DecodeOptions o{.device = device, .threads = 1};
      o.strategy.weights = {.weights = bits,
                            .weight_group = 32,
                            .weight_rows = ops::BlockRows::f32,  // devices do not round rows
                            .least_elements = 1};
      const auto prepared = std::make_shared<DecodeModel>(model.graph, o);
      EXPECT_GT(prepared->weights().stored(), 10u);
      DecodeSession session(prepared, o);
      TokenScheduler generator(session);
      for (int64_t i = 0; i < 3; ++i)
        generator.add({.prompt = {7, 8 + i}, .max_tokens = 5, .stop = {}, .sampling = {.temperature = 0}});
      const Answers got = run_tokens(generator);
      if (want.empty()) want = got;
      EXPECT_EQ(got, want);
    }
  }
}

TEST(TokenScheduler, EndsAtStopsLengthsAndCancels) {
  const model::Model model = tests::tiny_llama();
  DecodeSession session(std::make_shared<DecodeModel>(model.graph), {.threads = 1});
  TokenScheduler generator(session);
  GenerateRequest r{.prompt = {1, 2, 3}, .max_tokens = 1000};
  r.sampling.temperature = 0;
  generator.add(r);
  const std::vector<int64_t> whole = run_tokens(generator)[0];
  EXPECT_EQ(whole.size(), 93u);  // positions - prompt
  r.stop = {whole[5]};
  const auto first = static_cast<size_t>(std::find(whole.begin(), whole.end(), whole[5]) - whole.begin());
  generator.add(r);
  EXPECT_EQ(run_tokens(generator)[1],
            std::vector<int64_t>(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(first)));
  r.stop.clear();
  const int64_t id = generator.add(r);
  generator.step();
  generator.cancel(id);
  const auto& events = generator.step();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].finish, FinishReason::cancelled);
  EXPECT_TRUE(generator.is_idle());
  EXPECT_EQ(session.free_pages(), session.pool().pages());
  EXPECT_THROW(generator.add({.prompt = {}}), base::Error);
  EXPECT_THROW(generator.add({.prompt = {61}}), base::Error);
  EXPECT_THROW(generator.add({.prompt = std::vector<int64_t>(96, 1)}), base::Error);
}

/// Draws of one sequence by the operator, one after another.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, int64_t vocabulary) : options_(options) {
    options.check();
    seen_.resize(static_cast<size_t>(vocabulary));
  }
  void see_prompt(std::span<const int64_t> tokens) {
    for (int64_t id : tokens) seen_.at(static_cast<size_t>(id)) = 1;
  }
  int64_t next(std::span<const float> logits) {
    const auto n = static_cast<int64_t>(logits.size());
    std::vector<float> settings(7);
    options_.write(settings.data(), true);
    const std::vector<int64_t> counter{options_.seed, count_++};
    const auto drawn = ops::evaluate(
        ops::table().need("sample_tokens"), {},
        {Tensor::from<float>({1, n}, logits), Tensor::from<float>({1, 7}, std::span(std::as_const(settings))),
         Tensor::from<int64_t>({1, 2}, std::span(counter)),
         Tensor::from<int32_t>({1, n}, std::span(std::as_const(seen_))),
         Tensor::zeros(tensor::DType::i32, {1})},
        2, pool_);
    log_probability_ = double{drawn[1].data<float>()[0]};
    const int64_t id = drawn[0].data<int64_t>()[0];
    seen_[static_cast<size_t>(id)] += 2;
    return id;
  }
  double last_log_probability() const { return log_probability_; }

 private:
  SamplingOptions options_;
  std::vector<int32_t> seen_;
  int64_t count_ = 0;
  double log_probability_ = 0;
  base::ThreadPool pool_{1};
};

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
}  // namespace trireme::sched
