// Texts and pairs in groups of equal length: the content of each row, and where pairs are cut.
#include "data/text/text_encoder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/files/file.h"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

class TextEncoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = fs::temp_directory_path() / (std::string("trireme_text_encoder_") + name);
    fs::create_directories(dir_);
    write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\nd\n");
  }
  void TearDown() override { fs::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) {
    base::write_file_atomic((dir_ / name).string(), text);
  }
  int64_t limit(TextKind kind) { return TextEncoder(dir_.string(), 512, kind).max_tokens(); }
  fs::path dir_;
};

std::vector<int64_t> values(const tensor::Tensor& t) {
  const auto data = t.data<int64_t>();
  return {data.begin(), data.end()};
}

using Ints = std::vector<int64_t>;

TEST_F(TextEncoderTest, JoinsPairsAndSaysWhichTextATokenIsOf) {
  const TextEncoder encoder(dir_.string(), 512, TextKind::pair);
  const auto groups = encoder.encode_pairs({"a b", "a b", "c"}, {"c", "c d a b", "d"}, {6, 16});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].rows, (Ints{0, 2}));
  EXPECT_EQ(values(groups[0].ids), (Ints{2, 5, 6, 3, 7, 3, 2, 7, 3, 8, 3, 0}));
  EXPECT_EQ(values(groups[0].types), (Ints{0, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0}));
  EXPECT_EQ(values(groups[0].mask), (Ints{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0}));
  EXPECT_EQ(groups[1].rows, (Ints{1}));
  EXPECT_EQ(values(groups[1].ids), (Ints{2, 5, 6, 3, 7, 8, 5, 6, 3}));
}

TEST_F(TextEncoderTest, CutsTheLongerTextOfAPairFirst) {
  const TextEncoder encoder(dir_.string(), 8, TextKind::pair);
  const auto of = [&](const char* first, const char* second) {
    return values(encoder.encode_pairs({first}, {second}, {8}).at(0).ids);
  };
  EXPECT_EQ(of("a a a a a a a", "b"), (Ints{2, 5, 5, 5, 5, 3, 6, 3}));
  EXPECT_EQ(of("a", "b b b b b b b"), (Ints{2, 5, 3, 6, 6, 6, 6, 3}));
  EXPECT_EQ(of("a a a a a a a", "b b b b b b"), (Ints{2, 5, 5, 5, 3, 6, 6, 3}));
}

TEST_F(TextEncoderTest, PairsAreNotCutToWhatATokenizerWasSavedWith) {
  write("tokenizer.json", R"({"truncation": {"max_length": 16}, "normalizer": {"type": "BertNormalizer"},
    "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "vocab": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5}}})");
  EXPECT_EQ(limit(TextKind::text), 16);
  EXPECT_EQ(limit(TextKind::pair), 512);
  write("tokenizer_config.json", R"({"model_max_length": 1000000000000000019884624838656})");
  EXPECT_EQ(limit(TextKind::pair), 512);
  write("tokenizer_config.json", R"({"model_max_length": 64})");
  EXPECT_EQ(limit(TextKind::pair), 64);
  write("sentence_bert_config.json", R"({"max_seq_length": 32})");
  EXPECT_EQ(limit(TextKind::pair), 32);
}

}  // namespace
}  // namespace trireme::data
