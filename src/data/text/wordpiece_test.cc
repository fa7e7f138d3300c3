// Tests WordPiece against ids that Hugging Face's tokenizers gave (tools/oracles/wordpiece_vectors.py).
#include "data/text/wordpiece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "tests/test_data.h"

namespace trireme::data {
namespace {

using base::Json;

constexpr char kVocab[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\na\n##b\nab\n##c\n!\n\xE4\xB8\xAD\ne\n";

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<int64_t> ids_of(const Json& json) {
  std::vector<int64_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(id.as_int());
  return ids;
}

Json vectors() {
  return base::parse_json(base::read_file(tests::source_dir() / "src/data/testdata/wordpiece_vectors.json"));
}

WordPiece variant(const std::string& vocab, const Json& rules) {
  WordPieceOptions options;
  options.text = {rules.at("clean_text").as_bool(), rules.at("handle_chinese_chars").as_bool(),
                  rules.at("strip_accents").as_bool(), rules.at("lowercase").as_bool()};
  return WordPiece::from_vocab(vocab, options);
}

TEST(WordPiece, LongestPiecesWin) {
  const WordPiece w = WordPiece::from_vocab(kVocab);
  EXPECT_EQ(w.tokenize("UNaffable ab abc aab !"), (std::vector<int64_t>{5, 6, 7, 10, 10, 11, 1, 12}));
  EXPECT_EQ(w.tokenize("a\xE4\xB8\xAD"
                       "b\xC3\xA9"),
            (std::vector<int64_t>{8, 13, 1}));
  EXPECT_EQ(w.encode("").ids, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(w.tokenize("a[MASK]ab [mask]"), (std::vector<int64_t>{8, 4, 10, 1, 1, 1}));
  EXPECT_EQ(w.find("##able"), 7);
  EXPECT_FALSE(w.find("##abl").has_value());
  EXPECT_EQ(w.token(5), "un");
  EXPECT_THROW(w.token(15), base::Error);
  EXPECT_THROW(w.encode("a", 1), base::Error);
  EXPECT_THROW(WordPiece::from_vocab("a\nb\n"), base::Error);
}

TEST(WordPiece, EqualsHuggingFaceOnHardText) {
  const auto path = tests::shared_data("tokenizers/bert-base-uncased/vocab.txt");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const std::string vocab = base::read_file(*path);
  const Json json = vectors();
  for (const base::JsonMember& rules : json.at("variants").as_object()) {
    const WordPiece w = variant(vocab, rules.value);
    for (const Json& row : json.at("single").as_array()) {
      if (row.at("variant").as_string() != rules.key) continue;
      const std::string text = from_hex(row.at("hex").as_string());
      EXPECT_EQ(w.encode(text).ids, ids_of(row.at("ids")))
          << rules.key << ' ' << row.at("hex").as_string() << ' ' << text;
    }
  }
}

TEST(WordPiece, EqualsHuggingFaceOnPairsAndTruncation) {
  const auto path = tests::shared_data("tokenizers/bert-base-uncased/vocab.txt");
  if (!path) GTEST_SKIP() << tests::kNoSharedData;
  const WordPiece w = WordPiece::from_vocab(base::read_file(*path));
  for (const Json& row : vectors().at("pair").as_array()) {
    const size_t limit = row.at("max_length").as_uint();
    const Encoding got = w.encode_pair(row.at("first").as_string(), row.at("second").as_string(), limit);
    EXPECT_EQ(got.ids, ids_of(row.at("ids"))) << row.dump();
    EXPECT_EQ(got.type_ids, ids_of(row.at("type_ids"))) << row.dump();
    EXPECT_EQ(got.attention_mask, ids_of(row.at("attention_mask")));
    EXPECT_EQ(w.encode(row.at("first").as_string(), limit).ids, ids_of(row.at("single")));
  }
}

TEST(WordPiece, EqualsLlamaCppVectors) {
  const auto vocab = tests::shared_data("tokenizers/bert-base-uncased/vocab.txt");
  const auto inputs = tests::shared_data("tokenizers/ggml-vocab/ggml-vocab-bert-bge.gguf.inp");
  const auto outputs = tests::shared_data("tokenizers/ggml-vocab/ggml-vocab-bert-bge.gguf.out");
  if (!vocab || !inputs || !outputs) GTEST_SKIP() << tests::kNoSharedData;
  const WordPiece w = WordPiece::from_vocab(base::read_file(*vocab));
  const std::string text = base::read_file(*inputs);
  std::istringstream lines(base::read_file(*outputs));
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t cases = 0;
  for (size_t begin = 0; begin < text.size(); ++cases) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    std::string line;
    ASSERT_TRUE(std::getline(lines, line));
    std::istringstream numbers(line);
    std::vector<int64_t> expected;
    for (int64_t id; numbers >> id;) expected.push_back(id);
    EXPECT_EQ(w.tokenize(text.substr(begin, end - begin)), expected) << "case " << cases;
    begin = end + separator.size();
  }
  EXPECT_GE(cases, 40u);
}

Json tokenizer_json() {
  return base::parse_json(R"({
    "truncation": {"max_length": 6, "strategy": "LongestFirst", "stride": 0},
    "added_tokens": [
      {"id": 1, "content": "[PAD]", "special": true}, {"id": 0, "content": "[UNK]", "special": true},
      {"id": 2, "content": "[CLS]", "special": true}, {"id": 3, "content": "[SEP]", "special": true},
      {"id": 9, "content": "<x>", "lstrip": true, "rstrip": true, "single_word": true, "special": true}],
    "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                   "strip_accents": null, "lowercase": false},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
      "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
               {"SpecialToken": {"id": "[SEP]", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}},
               {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "@@",
              "max_input_chars_per_word": 4,
              "vocab": {"[UNK]": 0, "[PAD]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "@@a": 5,
              "B": 6}}})");
}

TEST(WordPiece, ReadsTokenizerJson) {
  const WordPiece w = WordPiece::from_tokenizer_json(tokenizer_json().dump());
  EXPECT_EQ(w.tokenize("aaaa B b aaaaa"), (std::vector<int64_t>{4, 5, 5, 5, 6, 0, 0}));
  EXPECT_EQ(w.encode("a a a a a a a").ids, (std::vector<int64_t>{2, 4, 4, 4, 4, 3}));
  EXPECT_EQ(w.tokenize("a <x> a a<x>"), (std::vector<int64_t>{4, 9, 4, 4, 0, 0, 0}));
  const auto has_added = [&](const char* text) {
    const std::vector<int64_t> ids = w.tokenize(text);
    return std::find(ids.begin(), ids.end(), 9) != ids.end();
  };
  EXPECT_TRUE(has_added("a\u200b<x>"));
  EXPECT_FALSE(has_added("a\u200d<x>")) << "joiners are within words";
  EXPECT_FALSE(has_added("<x>\u200c"));
  EXPECT_EQ(w.pad_id(), 1);
  EXPECT_EQ(w.vocab_size(), 10u);
  for (const char* section : {"normalizer", "post_processor"}) {
    Json changed = tokenizer_json();
    changed[section]["type"] = "Other";
    EXPECT_THROW(WordPiece::from_tokenizer_json(changed.dump()), base::Error) << section;
  }
  Json changed = tokenizer_json();
  changed["model"]["vocab"]["huge"] = 1LL << 40;
  EXPECT_THROW(WordPiece::from_tokenizer_json(changed.dump()), base::Error);
  changed = tokenizer_json();
  changed["model"]["type"] = "BPE";
  EXPECT_THROW(WordPiece::from_tokenizer_json(changed.dump()), base::Error);
}

}  // namespace
}  // namespace trireme::data
