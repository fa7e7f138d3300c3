// Texts continued by the stages of a pipeline: whatever the decoder, the layout, the precision and how
// weights are stored, the tokens and chances are those of one rank to the bit.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "base/rng.h"
#include "comm/local.h"
#include "comm/mesh.h"
#include "engine/decode/prompt_lookup.h"
#include "engine/ranks/rank_service.h"
#include "model/hf/forms/test_configs.h"
#include "model/zoo/gpt2.h"
#include "sched/text/test_answers.h"
#include "tests/test_device.h"
#include "tests/tiny_llama.h"

namespace trireme::sched {
namespace {

using namespace engine;

using base::Json;

constexpr int64_t kStagedVocabulary = 64;

TextAnswers run_with_prompts(TokenScheduler& scheduler) {
  TextAnswers answers;
  while (!scheduler.is_idle()) {
    for (const GenerateEvent& e : scheduler.step()) {
      TextAnswer& a = answers[e.request];
      a.finish = e.finish;
      for (const ScoredToken& scored : e.prompt) a.logs.push_back(scored.log_probability);
      if (e.token < 0) continue;
      a.tokens.push_back(e.token);
      a.logs.push_back(e.log_probability);
      for (const TokenChance& chance : e.likeliest) a.likeliest.push_back(chance.token);
    }
  }
  return answers;
}

/// A token may be followed by every other one of those that leave its rest by 3, or the next rest.
class Rests final : public TokenFilter {
 public:
  std::span<const uint64_t> mask() override {
    mask_ = 0;
    for (int64_t id = 0; id < kStagedVocabulary; ++id) {
      if (id % 3 == last_ % 3 || id % 3 == (last_ + 1) % 3) mask_ |= uint64_t{1} << id;
    }
    return {&mask_, 1};
  }
  void accept(int64_t token) override { last_ = token; }
  std::unique_ptr<TokenFilter> fork() const override { return std::make_unique<Rests>(*this); }

 private:
  uint64_t mask_ = 0;
  int64_t last_ = 0;
};

/// Draws, penalties, forms, biases, chances, scored prompts; some begin alike, some repeat themselves.
GenerateRequest staged_request(uint64_t seed, int64_t i) {
  base::Rng rng(seed, static_cast<uint64_t>(i));
  const auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.below(n)); };
  GenerateRequest r;
  const int64_t period = 1 + below(6), alike = i % 2 == 0 ? 12 : 0;
  for (int64_t t = 0, n = 1 + below(30) + alike; t < n; ++t)
    r.prompt.push_back(t < alike ? t : (i + 5 * (t % period)) % kStagedVocabulary);
  r.max_tokens = 1 + below(9);
  r.sampling.temperature = i % 3 == 1 ? 0.9 : 0;
  r.sampling.seed = i;
  if (i % 5 == 2) r.sampling.repetition_penalty = 1.3;
  if (i % 5 == 3) r.filter = std::make_shared<Rests>();
  if (i % 4 == 1) r.biases = {{static_cast<int32_t>(below(kStagedVocabulary)), 2.0f}};
  if (i % 3 == 0) r.likeliest = 3;
  r.scores_prompt = i % 6 == 4;
  return r;
}

/// A decoder of every form that config.json may name, of layers and widths that depend on the seed.
std::vector<model::Model> decoders(uint64_t seed) {
  base::Rng rng(seed);
  const auto layers = static_cast<int64_t>(2 + rng.below(3));
  std::vector<model::Model> list;
  const model::hf::FormSizes sizes{
      .vocabulary = kStagedVocabulary, .width = 64, .inner = 96, .layers = layers, .positions = 96};
  for (Json c : model::hf::form_configs(sizes)) {
    const std::string type = c.at("model_type").as_string();
    if (type != "gpt_neox") c.set("tie_word_embeddings", rng.below(2) == 0);
    model::RandomParams params(seed);
    list.push_back(model::zoo::decoder(model::hf::read_form(*model::hf::find_form(c), c).decoder, params));
    list.back().name = type;
  }
  model::zoo::Gpt2Config g = model::zoo::Gpt2Config::nano();
  g.vocabulary = kStagedVocabulary;
  g.width = 64;
  g.layers = layers;
  g.has_bias = true;
  model::RandomParams params(seed);
  list.push_back(model::zoo::gpt2(g, params));
  list.back().name = "gpt2";
  return list;
}

struct Layout {
  int pp = 1, tp = 1;
};

TextAnswers answers_of(const model::Model& model, DecodeOptions o, Layout layout, uint64_t seed) {
  o.strategy.pp = layout.pp;
  o.strategy.tp = layout.tp;
  DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
  EXPECT_EQ(session.ranks().size(), layout.pp * layout.tp);
  PromptLookup lookup(2);
  const bool guesses = seed % 2 == 1;
  TokenScheduler scheduler(session, {.drafter = guesses ? &lookup : nullptr, .draft_tokens = 3});
  for (int64_t i = 0; i < 7; ++i) scheduler.add(staged_request(seed, i));
  TextAnswers answers = run_with_prompts(scheduler);
  EXPECT_EQ(session.free_pages(), session.pool().pages());
  return answers;
}

/// Chunks, pages, precision, type of the cache and stored weights.
DecodeOptions random_options(base::Rng& rng) {
  DecodeOptions o{.threads = 2};
  constexpr passes::Precision kPrecisions[] = {passes::Precision::f32, passes::Precision::f32,
                                               passes::Precision::bf16, passes::Precision::f16};
  constexpr tensor::DType kTypes[] = {tensor::DType::f32, tensor::DType::bf16, tensor::DType::f16};
  constexpr passes::WeightBits kBits[] = {passes::WeightBits::f32,  passes::WeightBits::f32,
                                          passes::WeightBits::int8, passes::WeightBits::int4,
                                          passes::WeightBits::q4_0, passes::WeightBits::q8_0};
  o.strategy.precision.compute = kPrecisions[rng.below(std::size(kPrecisions))];
  o.cache_type = kTypes[rng.below(std::size(kTypes))];
  o.strategy.weights = {
      .weights = kBits[rng.below(std::size(kBits))], .weight_group = 32, .least_elements = 1};
  if (o.strategy.weights.weights != passes::WeightBits::f32)
    o.strategy.precision.compute = passes::Precision::f32;
  o.page_tokens = static_cast<int64_t>(rng.below(2) == 0 ? 4 : 16);
  o.max_tokens = static_cast<int64_t>(5 + rng.below(60));
  o.max_sequences = static_cast<int64_t>(4 + rng.below(4)) * 4;
  return o;
}

std::string layout_text(const DecodeOptions& o, Layout layout) {
  return base::concat("pp ", layout.pp, ", tp ", layout.tp, ", precision ",
                      static_cast<int>(o.strategy.precision.compute), ", weights ",
                      static_cast<int>(o.strategy.weights.weights), ", cache ",
                      static_cast<int>(o.cache_type), ", chunk ", o.max_tokens);
}

TEST(Stages, AnswerAsOneRankInEveryLayout) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    base::Rng rng(seed, 5);
    for (const model::Model& model : decoders(seed)) {
      const DecodeOptions o = random_options(rng);
      const auto tp = static_cast<int>(1 + rng.below(2));
      const Layout layout{.pp = static_cast<int>(2 + rng.below(3)), .tp = tp};
      SCOPED_TRACE(base::concat(model.name, " of seed ", seed, ": ", layout_text(o, layout)));
      EXPECT_EQ(answers_of(model, o, layout, seed), answers_of(model, o, {.tp = tp}, seed));
    }
  }
}

TEST(Stages, AnswerAlikeOnDevices) {
  if (tests::cuda_device() != "emulated") GTEST_SKIP() << "a GPU may sum in another order";
  const model::Model model = tests::tiny_llama();
  const DecodeOptions o{.device = "emulated", .threads = 2};
  const auto run = [&](Layout layout) {
    DecodeOptions own = o;
    own.strategy.pp = layout.pp;
    own.strategy.tp = layout.tp;
    DecodeSession session(std::make_shared<DecodeModel>(model.graph, own), own);
    const SequenceId id = session.open();
    const std::vector<int64_t> prompt{1, 2, 3, 4, 5};
    const auto row = session.step({{{.sequence = id, .tokens = prompt}}});
    std::vector<float> logits(row.begin(), row.end());
    TokenScheduler scheduler(session);
    GenerateRequest r{.prompt = {7, 8, 9}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}};
    scheduler.add(r);
    r.sampling.repetition_penalty = 1.3;
    scheduler.add(r);
    std::vector<std::vector<int64_t>> tokens;
    for (const auto& [number, answer] : run_with_prompts(scheduler)) tokens.push_back(answer.tokens);
    return std::pair(tokens, logits);
  };
  const auto want = run({});
  EXPECT_EQ(want.first.at(0).size(), 6u);
  for (const Layout layout : {Layout{.pp = 2}, Layout{.pp = 3}, Layout{.pp = 2, .tp = 2}}) {
    const auto got = run(layout);
    EXPECT_EQ(got.first, want.first) << "pp " << layout.pp << ", tp " << layout.tp;
    // A device adds a residual and takes its norm in one launch, which sums otherwise, unless a cut parts
    // them.
    ASSERT_EQ(got.second.size(), want.second.size());
    for (size_t i = 0; i < got.second.size(); ++i) EXPECT_NEAR(got.second[i], want.second[i], 1e-5);
  }
}

/// Each stage keeps the keys, values and weights of its own layers, and every rank as many pages as the
/// fullest stage can hold.
TEST(Stages, HoldTheirOwnLayersAlone) {
  model::zoo::LlamaConfig c = tests::tiny_llama_config();
  c.layers = 5;
  c.is_tied = false;
  const model::Model model = tests::tiny_llama(c);
  DecodeOptions o{.threads = 1, .max_sequences = 8};
  o.strategy.pp = 3;
  o.strategy.cuts = {"layers.1", "layers.3"};  // the first stage holds the fewest
  const auto prepared = std::make_shared<DecodeModel>(model.graph, o);
  size_t layers = 0, most = 0;
  std::map<std::string, int> stage_of;
  for (int s = 0; s < 3; ++s) {
    const passes::DecodeGraph& form = prepared->stage(s).form;
    EXPECT_EQ(prepared->kv_layout(s).layers.size(), form.layers.size());
    EXPECT_EQ(form.arrives.empty(), s == 0);
    EXPECT_EQ(form.leaves.empty(), s == 2);
    layers += form.layers.size();
    most = std::max(most, form.layers.size());
    for (const ir::Value& v : form.graph.values()) {
      const bool is_matrix = v.kind == ir::ValueKind::param && v.data.elements() > 64;
      if (!is_matrix) continue;
      EXPECT_TRUE(stage_of.emplace(v.name, s).second)
          << v.name << " is in stages " << stage_of[v.name] << " and " << s;
    }
  }
  EXPECT_EQ(layers, 5u);
  EXPECT_EQ(most, 2u);
  EXPECT_EQ(prepared->weight_bytes(), DecodeModel(model.graph).weight_bytes());
  for (const ir::Value& v : model.graph.values()) {
    const bool is_matrix = v.kind == ir::ValueKind::param && v.name.ends_with("proj.weight");
    EXPECT_TRUE(!is_matrix || stage_of.contains(v.name)) << v.name;
  }
  const int64_t layer_bytes =
      prepared->kv_layout(0).page_bytes() / static_cast<int64_t>(prepared->kv_layout(0).layers.size());
  o.cache_bytes = 7 * static_cast<int64_t>(most) * layer_bytes;
  DecodeSession session(prepared, o);
  EXPECT_EQ(session.pool().pages(), 7);
}

TEST(Stages, PassOnOneStreamAlone) {
  for (const model::Model& model : decoders(1)) {
    for (int pp = 2; pp <= 4; ++pp) {
      DecodeOptions o{.threads = 1};
      o.strategy.pp = pp;
      const DecodeModel prepared(model.graph, o);
      for (int s = 1; s < pp; ++s) {
        const passes::DecodeGraph& form = prepared.stage(s).form;
        ASSERT_EQ(form.arrives.size(), 1u) << model.name << " pp " << pp;
        EXPECT_EQ(form.arrives.size(), prepared.stage(s - 1).form.leaves.size());
        const tensor::TensorType& type = form.graph.type(form.graph.inputs().back());
        EXPECT_EQ(form.graph.value(form.graph.inputs().back()).name, form.arrives[0]);
        EXPECT_EQ(type.shape[2], tensor::Dim(64)) << type.to_string();
      }
    }
  }
}

TEST(Stages, BeginAtTheLayersThatAreNamed) {
  const model::Model model = tests::tiny_llama();
  DecodeOptions o{.threads = 1};
  o.strategy.pp = 2;
  o.strategy.cuts = {"layers.1"};
  const DecodeModel named(model.graph, o);
  ASSERT_EQ(named.stage(1).form.layers.size(), 1u);
  EXPECT_EQ(named.stage(1).form.layers[0].number, 1u);
  const auto refusal = [&](int pp, const std::vector<std::string>& cuts) {
    o.strategy.pp = pp;
    o.strategy.cuts = cuts;
    try {
      DecodeModel refused(model.graph, o);
    } catch (const base::Error& e) {
      return std::string(base::to_string(e.code())) + ": " + e.message();
    }
    return std::string("nothing");
  };
  EXPECT_NE(refusal(2, {"layers.7"}).find("layers.7"), std::string::npos);
  EXPECT_EQ(refusal(40, {}).find("invalid_argument"), 0u) << refusal(40, {});
}

TEST(Stages, ALostRankEndsTheSession) {
  for (const Layout layout : {Layout{.pp = 2}, Layout{.pp = 3}, Layout{.pp = 2, .tp = 2}}) {
    for (int lost = 1; lost < layout.pp * layout.tp; ++lost) {
      DecodeOptions o{.threads = 2};
      o.strategy.pp = layout.pp;
      o.strategy.tp = layout.tp;
      DecodeSession session(std::make_shared<DecodeModel>(tests::tiny_llama().graph, o), o);
      {
        TokenScheduler scheduler(session);
        scheduler.add({.prompt = {1, 2, 3}, .max_tokens = 8, .stop = {}, .sampling = {.temperature = 0}});
        EXPECT_EQ(scheduler.step().size(), 1u);
        session.ranks().lose(lost);
        for (int again = 0; again < 2; ++again) {
          try {
            scheduler.step();
            ADD_FAILURE() << "a step without rank " << lost << " of pp " << layout.pp << ", tp " << layout.tp;
          } catch (const base::Error& e) {
            EXPECT_EQ(e.code(), base::ErrorCode::unavailable) << e.message();
          }
        }
      }  // what it held goes back to pages that nobody can use any more
      EXPECT_EQ(session.free_pages(), session.pool().pages());
    }
  }
}

TEST(Stages, OfAJobFollowTheFirst) {
  const model::Model model = tests::tiny_llama();
  const auto run = [&](const std::shared_ptr<const DecodeModel>& prepared, const DecodeOptions& o) {
    DecodeSession session(prepared, o);
    const SequenceId first = session.open();
    const std::vector<int64_t> prompt{1, 2, 3, 4, 5};
    session.step({{{.sequence = first, .tokens = prompt}}});
    const SequenceId forked = session.fork(first);  // copies a page on every rank
    const std::vector<int64_t> next{6};
    const auto row = session.step({{{.sequence = forked, .tokens = next}}});
    std::vector<float> logits(row.begin(), row.end());
    const SamplingOptions likeliest{.temperature = 0};
    for (int64_t i = 0; i < 3; ++i) {  // what the last stage drew is what the first one looks up next
      DecodePiece piece{.sequence = forked, .sampling = &likeliest, .position = i};
      if (i == 0) piece.tokens = next;
      if (i > 0) piece.chosen = 0;
      session.launch({&piece, 1});
      const DecodeSession::Drawn drawn = session.collect();
      logits.insert(logits.end(), {static_cast<float>(drawn.tokens[0]), drawn.log_probabilities[0]});
    }
    TokenScheduler scheduler(session);
    GenerateRequest r{.prompt = {7, 8}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}};
    r.sampling.repetition_penalty = 1.3;  // what was seen is kept where it is drawn
    scheduler.add(r);
    scheduler.add({.prompt = {9}, .max_tokens = 4, .stop = {}, .sampling = {.temperature = 0}});
    return std::pair(run_with_prompts(scheduler), logits);
  };
  DecodeOptions options{.threads = 1, .page_tokens = 4};
  for (const int tp : {1, 2}) {
    options.strategy = {.tp = tp};
    const auto want = run(std::make_shared<DecodeModel>(model.graph, options), options);
    options.strategy.pp = 2;
    comm::LocalWorld world(2 * tp);
    world.run([&](comm::Communicator& all) {
      const auto prepared = std::make_shared<const DecodeModel>(model.graph, options);
      comm::Mesh mesh(all, prepared->strategy().mesh());
      DecodeOptions own = options;
      own.mesh = &mesh;
      if (all.rank() != 0) return follow_decoding(prepared, own);
      EXPECT_EQ(run(prepared, own), want);
    });
  }
}

TEST(Stages, OfAServiceFollowEverySession) {
  // As a server's in a job: sessions one after another and beside one another, each with a group of its own.
  const model::Model model = tests::tiny_llama();
  DecodeOptions options{.threads = 1, .page_tokens = 4};
  options.strategy = {.tp = 2, .pp = 2};
  const auto add = [](TokenScheduler& scheduler) {
    for (int64_t i = 0; i < 3; ++i)
      scheduler.add({.prompt = {7, 8 + i}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}});
  };
  const auto run = [&](const std::shared_ptr<const DecodeModel>& prepared, const DecodeOptions& o) {
    DecodeSession session(prepared, o);
    TokenScheduler scheduler(session);
    add(scheduler);
    return run_with_prompts(scheduler);
  };
  const TextAnswers want = run(std::make_shared<DecodeModel>(model.graph, options), options);
  comm::LocalWorld world(4);
  world.run([&](comm::Communicator& all) {
    const auto prepared = std::make_shared<const DecodeModel>(model.graph, options);
    if (all.rank() != 0) {
      return follow_service(all, [&](const std::string& key) {
        EXPECT_EQ(key, "talk");
        return std::make_shared<const FollowSession>(
            [prepared, &options](comm::Communicator& group) { follow_decoding(prepared, options, group); });
      });
    }
    RankService service(all);
    DecodeOptions own = options;
    own.service = &service;
    own.model_key = "talk";
    EXPECT_EQ(run(prepared, own), want);
    DecodeSession first(prepared, own), second(prepared, own);
    TokenScheduler one(first), other(second);
    add(one);
    one.step();
    add(other);
    EXPECT_EQ(run_with_prompts(other), want);
    run_with_prompts(one);
    EXPECT_FALSE(service.is_lost());
  });
}

/// The code and words of what `act` throws.
template <class Act>
std::pair<base::ErrorCode, std::string> error_of(const Act& act) {
  try {
    act();
  } catch (const base::Error& e) {
    return {e.code(), e.message()};
  }
  return {base::ErrorCode::internal, "nothing is thrown"};
}

TEST(Stages, OfAServiceGoOnWhereOneRankCannotOpenAModel) {
  const model::Model model = tests::tiny_llama();
  DecodeOptions options{.threads = 1, .page_tokens = 4};
  options.strategy = {.tp = 2};
  const auto add = [](TokenScheduler& scheduler) {
    scheduler.add({.prompt = {7, 8}, .max_tokens = 6, .stop = {}, .sampling = {.temperature = 0}});
  };
  comm::LocalWorld world(2);
  world.run([&](comm::Communicator& all) {
    const auto prepared = std::make_shared<const DecodeModel>(model.graph, options);
    const auto other =
        std::make_shared<const DecodeModel>(tests::tiny_llama(tests::tiny_llama_config(), 8).graph, options);
    if (all.rank() != 0) {
      return follow_service(all, [&](const std::string& key) {
        if (key == "absent") base::fail(base::ErrorCode::not_found, "no such file");
        if (key == "strange") throw std::runtime_error("of a library");
        DecodeOptions own = options;
        if (key == "no room") own.cache_bytes = 1;
        return std::make_shared<const FollowSession>(
            [loaded = key == "different" ? other : prepared, own](comm::Communicator& group) {
              follow_decoding(loaded, own, group);
            });
      });
    }
    RankService service(all);
    DecodeOptions own = options;
    own.service = &service;
    own.model_key = "talk";
    DecodeSession session(prepared, own);
    TokenScheduler scheduler(session);
    const auto open = [&](const char* key, int64_t cache_bytes = 0) {
      own.model_key = key;
      own.cache_bytes = cache_bytes;
      return error_of([&] { DecodeSession refused(prepared, own); });
    };
    using Code = base::ErrorCode;
    EXPECT_EQ(open("absent"), std::pair(Code::not_found, std::string("rank 1: no such file")));
    EXPECT_EQ(open("strange"), std::pair(Code::internal, std::string("rank 1: of a library")));
    EXPECT_EQ(open("different"), std::pair(Code::invalid_argument,
                                           std::string("ranks 0 and 1 loaded different graphs or weights")));
    EXPECT_EQ(open("no room").first, Code::exhausted);
    EXPECT_EQ(open("talk", 1).first, Code::exhausted);  // on the first rank alone
    EXPECT_FALSE(service.is_lost());
    add(scheduler);
    const TextAnswers answers = run_with_prompts(scheduler);  // nobody else minds
    EXPECT_EQ(answers.at(0).tokens.size(), 6);
    own.model_key = "talk";
    own.cache_bytes = 0;
    DecodeSession again(prepared, own);
    TokenScheduler next(again);
    add(next);
    EXPECT_EQ(run_with_prompts(next), answers);
  });
}

}  // namespace
}  // namespace trireme::sched
