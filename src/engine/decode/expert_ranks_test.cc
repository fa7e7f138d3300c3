// Mixtures whose experts are shared out over ranks: the logits of one rank within rounding, in every form of
// weights, with bits that depend on nothing but the sequence and the number of ranks.
#include <gtest/gtest.h>

#include "engine/decode/test_decoding.h"
#include "model/hf/forms/test_configs.h"
#include "tensor/blocks/block_format.h"

namespace trireme::engine {
namespace {

constexpr int64_t kExpertVocabulary = 64;

/// Small models of every form with four experts, or as many as are asked for.
std::vector<model::Model> mixtures(int64_t experts = 4) {
  std::vector<model::Model> list;
  const model::hf::FormSizes sizes{
      .vocabulary = kExpertVocabulary, .width = 64, .inner = 64, .layers = 2, .positions = 96};
  for (base::Json c : model::hf::form_configs(sizes)) {
    const std::string type = c.at("model_type").as_string();
    if (!c.contains("num_local_experts") && !c.contains("num_experts")) continue;
    c.set(c.contains("num_experts") ? "num_experts" : "num_local_experts", experts);
    model::RandomParams params(7);
    list.push_back(model::zoo::decoder(model::hf::read_form(*model::hf::find_form(c), c).decoder, params));
    list.back().name = type;
  }
  return list;
}

DecodeOptions over(int ranks, int ep, DecodeOptions o = {.threads = 2}) {
  o.strategy.tp = ranks;
  o.strategy.ep = ep;
  return o;
}

std::vector<std::vector<float>> logits_of(const model::Model& model, const DecodeOptions& o,
                                          const std::vector<size_t>& sizes) {
  DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
  const std::vector<int64_t> tokens = random_tokens(40, kExpertVocabulary, 3);
  return feed(session, session.open(), tokens, sizes);
}

double largest(const std::vector<float>& logits) {
  double most = 0;
  for (float v : logits) most = std::max(most, std::abs(double{v}));
  return most;
}

TEST(ExpertRanks, AnswerAsOneRank) {
  const std::vector<model::Model> models = mixtures();
  ASSERT_EQ(models.size(), 4u);  // mixtral, qwen2_moe, qwen3_moe, gpt_oss
  for (const model::Model& model : models) {
    for (const char* weights : {"f32", "int8", "int4", "q4_0", "q8_0"}) {
      DecodeOptions o{.threads = 2};
      base::OptionList(o.strategy.weights).parse_json(base::Json::object({{"weights", weights}}));
      o.strategy.weights.weight_group = 32;
      o.strategy.weights.least_elements = 1;
      const auto want = logits_of(model, o, {30, 1});
      for (const int ranks : {2, 4}) {
        // A quarter of attention's summands is no whole group, so that it would stay in floats.
        if (ranks == 4 && std::string(weights) != "f32") continue;
        SCOPED_TRACE(base::concat(model.name, ", ", weights, ", ", ranks, " ranks"));
        const auto got = logits_of(model, over(ranks, ranks, o), {30, 1});
        ASSERT_EQ(got.size(), want.size());
        // Attention is split by tp in any case: its stored parts round rows that differ in a last bit, and a
        // part that holds no whole group stays in floats. What tp alone differs by is the measure of that.
        double near = 1e-4;
        if (std::string(weights) != "f32") {
          const auto split = logits_of(model, over(ranks, 1, o), {30, 1});
          for (size_t i = 0; i < want.size(); ++i)
            near = std::max(near, 2 * difference(split[i], want[i]) / largest(want[i]));
        }
        EXPECT_LT(near, 0.5);  // a router that chooses otherwise moves a token so far
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_LT(difference(got[i], want[i]), near * largest(want[i])) << "token " << i;
      }
    }
  }
}

TEST(ExpertRanks, BitsDependOnNothingButTheSequence) {
  for (const model::Model& model : mixtures()) {
    const auto want = logits_of(model, over(2, 2), {30, 1}).back();
    for (const int threads : {1, 4}) {
      DecodeOptions o = over(2, 2);
      o.threads = threads;
      EXPECT_EQ(difference(logits_of(model, o, {1}).back(), want), 0) << model.name;
      EXPECT_EQ(difference(logits_of(model, o, {7, 33}).back(), want), 0) << model.name;
    }
  }
}

TEST(ExpertRanks, RefuseWhatDoesNotDivide) {
  const auto refusal = [](const model::Model& model, int tp, int ep) {
    try {
      const DecodeOptions o = over(tp, ep);
      DecodeSession session(std::make_shared<DecodeModel>(model.graph, o), o);
    } catch (const base::Error& e) {
      return std::string(base::to_string(e.code())) + ": " + e.message();
    }
    return std::string("nothing");
  };
  for (const model::Model& model : mixtures(5)) {
    const std::string why = refusal(model, 2, 2);
    EXPECT_EQ(why.find("invalid_argument: expert parallel: "), 0u) << why;
    EXPECT_NE(why.find("5 experts, which 2 ranks do not divide"), std::string::npos) << why;
    EXPECT_EQ(refusal(model, 2, 1), "nothing") << model.name;
  }
  EXPECT_NE(refusal(mixtures()[0], 4, 2).find("ep = 2 with tp = 4"), std::string::npos);
  model::RandomParams params(7);
  const base::Json plain = model::hf::form_sizes("llama", {.vocabulary = kExpertVocabulary});
  const model::Model dense =
      model::zoo::decoder(model::hf::read_form(*model::hf::find_form(plain), plain).decoder, params);
  EXPECT_NE(refusal(dense, 2, 2).find("the model has no experts"), std::string::npos);
}

}  // namespace
}  // namespace trireme::engine
