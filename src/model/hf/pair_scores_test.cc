// Tests which directories are cross-encoders, and which function is applied to the logit.
#include "model/hf/pair_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/files/file.h"
#include "model/interpret.h"
#include "model/params.h"
#include "model/zoo/bert.h"

namespace trireme::model::hf {
namespace {

namespace fs = std::filesystem;
using tensor::Tensor;

class PairScores : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = fs::temp_directory_path() / (std::string("trireme_pair_scores_") + name);
    fs::create_directories(dir_);
    write("vocab.txt", "[PAD]\n");
    config("");
  }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) {
    base::write_file_atomic((dir_ / name).string(), text);
  }
  /// Writes a config.json with these additional members.
  void config(const std::string& more, const std::string& architecture = "BertForSequenceClassification") {
    write("config.json",
          R"({"architectures": [")" + architecture + R"("], "id2label": {"0": "LABEL_0"})" + more + "}");
  }
  /// A network of one label that claims to come from the directory.
  Model network(int64_t classes = 1) const {
    zoo::BertConfig c{.vocabulary = 20, .positions = 16, .width = 8, .layers = 1, .heads = 2};
    c.head = zoo::BertHead::classification;
    c.classes = classes;
    c.has_token_types = true;
    RandomParams params(3);
    Model model = zoo::bert(c, params);
    model.format = "huggingface";
    model.directory = dir_.string();
    return model;
  }
  /// The logit and the score of one text.
  std::vector<float> outputs() const {
    Model model = network();
    EXPECT_TRUE(add_pair_score(model));
    const Tensor ids = Tensor::from<int64_t>({1, 3}, {2, 5, 3}),
                 ones = Tensor::from<int64_t>({1, 3}, {1, 1, 1});
    const auto out = interpret(model.graph, {ids, ones, Tensor::zeros(tensor::DType::i64, {1, 3})});
    return {out.at(0).data<float>()[0], out.at(1).data<float>()[0]};
  }
  fs::path dir_;
};

TEST_F(PairScores, AreClassifiersOfOneLabelWithATokenizer) {
  EXPECT_TRUE(scores_pairs(dir_.string()));
  config("", "BertForMaskedLM");
  EXPECT_FALSE(scores_pairs(dir_.string()));
  write("config.json", R"({"architectures": ["BertForSequenceClassification"], "num_labels": 2})");
  EXPECT_FALSE(scores_pairs(dir_.string()));
  config("", "DistilBertForSequenceClassification");
  EXPECT_TRUE(scores_pairs(dir_.string()));
  write("modules.json", "[]");
  EXPECT_FALSE(scores_pairs(dir_.string()));
  write("config_sentence_transformers.json", R"({"model_type": "CrossEncoder"})");
  EXPECT_TRUE(scores_pairs(dir_.string()));
  fs::remove(dir_ / "vocab.txt");
  EXPECT_FALSE(scores_pairs(dir_.string()));
  EXPECT_FALSE(scores_pairs((dir_ / "absent").string()));
}

TEST_F(PairScores, TheScoreIsTheSigmoidUnlessTheDirectoryNamesAnother) {
  std::vector<float> out = outputs();
  EXPECT_NE(out[0], 0);
  EXPECT_NEAR(out[1], 1 / (1 + std::exp(-double{out[0]})), 1e-6);
  config(R"(, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity")");
  out = outputs();
  EXPECT_EQ(out[0], out[1]);
  config(R"(, "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
             "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"})");
  out = outputs();
  EXPECT_NE(out[0], out[1]);
  config("");
  write("config_sentence_transformers.json", R"({"activation_fn": "torch.nn.modules.linear.Identity"})");
  out = outputs();
  EXPECT_EQ(out[0], out[1]);
}

TEST_F(PairScores, OtherActivationsAreRefusedByName) {
  config(R"(, "sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"})");
  Model model = network();
  try {
    add_pair_score(model);
    FAIL() << "taken";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unsupported);
    EXPECT_NE(e.message().find("activation.Tanh"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("sentence_transformers.activation_fn"), std::string::npos) << e.message();
  }
}

TEST_F(PairScores, OtherGraphsStayAsTheyAre) {
  Model several = network(2);
  EXPECT_FALSE(add_pair_score(several));
  EXPECT_EQ(several.graph.outputs().size(), 1u);
  Model scored = network();
  EXPECT_TRUE(add_pair_score(scored));
  EXPECT_FALSE(add_pair_score(scored));
  EXPECT_EQ(scored.graph.output_names(), (std::vector<std::string>{"logits", "score"}));
}

}  // namespace
}  // namespace trireme::model::hf
