// Tests sentences as token rows, stacked rows in an encoder's batch, and rank correlation.
#include "train/config/texts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "train/evaluate.h"

namespace trireme::train {
namespace {

using data::FieldKind;
using data::Sample;

class Sentences : public data::Dataset {
 public:
  Sentences() { info_.fields = {{"a", FieldKind::text}, {"b", FieldKind::text}, {"score", FieldKind::text}}; }
  int64_t size() const override { return 2; }
  const data::DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    Sample s;
    s.set("a", std::string("the cat"));
    s.set("b", std::string("the"));
    s.set("score", std::string(index == 0 ? "2.5" : "many"));
    return s;
  }

 private:
  data::DatasetInfo info_;
};

std::string tokenizer() {
  const std::string directory = ::testing::TempDir();
  std::ofstream(directory + "/vocab.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\ncat\n";
  return directory;
}

TEST(Texts, PairsBecomeStackedRows) {
  const TextOptions options{.columns = {"a", "b"}, .target = "score", .target_scale = 0.2, .max_tokens = 5};
  const auto rows = tokenized(std::make_shared<Sentences>(), options, tokenizer(), false);
  const Sample s = rows->read(0);
  EXPECT_EQ(s.tensor("input_ids").to_ints(), (std::vector<int64_t>{2, 5, 6, 3, 0, 2, 5, 3, 0, 0}));
  EXPECT_EQ(s.tensor("attention_mask").to_ints(), (std::vector<int64_t>{1, 1, 1, 1, 0, 1, 1, 1, 0, 0}));
  EXPECT_EQ(s.tensor("input_ids").dims(), (tensor::Dims{2, 5}));
  EXPECT_FLOAT_EQ(s.tensor("labels").data<float>()[0], 0.5f);
  EXPECT_THROW(rows->read(1), base::Error);  // "many" is not a number
}

TEST(Texts, NamesWhatIsMissing) {
  const auto texts = std::make_shared<Sentences>();
  EXPECT_THROW(tokenized(texts, {.columns = {"c"}, .target = "score"}, tokenizer(), false), base::Error);
  EXPECT_THROW(tokenized(texts, {.columns = {"a"}, .target = "score"}, "", false), base::Error);
  EXPECT_THROW(tokenized(texts, {.columns = {"a"}}, tokenizer(), false), base::Error);
}

TEST(RankCorrelation, SharesTies) {
  EXPECT_DOUBLE_EQ(rank_correlation({1, 2, 3}, {10, 20, 30}), 1);
  EXPECT_DOUBLE_EQ(rank_correlation({1, 2, 3}, {3, 2, 1}), -1);
  EXPECT_DOUBLE_EQ(rank_correlation({1, 1, 1}, {3, 2, 1}), 0);
  // Ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3: covariance 4.5, variances 4.5 and 5.
  EXPECT_NEAR(rank_correlation({1, 2, 2, 4}, {5, 6, 7, 8}), 4.5 / std::sqrt(4.5 * 5), 1e-12);
}

}  // namespace
}  // namespace trireme::train
