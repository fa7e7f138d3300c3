// Tests tokenizers against those of Hugging Face: the same ids, the same text, and streams that never show
// half a character.
#include "data/tokenizer/piece_tokenizer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/json.h"
#include "base/utf8.h"
#include "tensor/gguf/gguf_file.h"
#include "tensor/gguf/gguf_writer.h"
#include "tests/test_data.h"

namespace trireme::data {
namespace {

base::Json vectors() {
  return base::parse_json(base::read_file(tests::source_dir() / "src/data/testdata/bpe_vectors.json"));
}

std::vector<int64_t> ids_of(const base::Json& list) {
  std::vector<int64_t> ids;
  for (const base::Json& id : list.as_array()) ids.push_back(id.as_int());
  return ids;
}

void expect_cases(const Tokenizer& tokenizer, const base::Json& set) {
  const std::string& name = set.at("name").as_string();
  for (const base::Json& c : set.at("cases").as_array()) {
    const std::vector<int64_t> want = ids_of(c.at("ids"));
    if (const base::Json* text = c.find("text")) {
      EXPECT_EQ(tokenizer.encode(text->as_string()), want) << name << ": " << text->dump();
    }
    EXPECT_EQ(tokenizer.decode(want), c.at("decoded").as_string()) << name << ": " << c.at("ids").dump();
    std::string streamed;
    const auto stream = tokenizer.stream();
    for (int64_t id : want) {
      const std::string part = stream->push(id);
      EXPECT_TRUE(base::is_utf8(part)) << name;
      streamed += part;
    }
    streamed += stream->finish();
    // A stream shows the valid characters of a run of bytes that is invalid as a whole.
    if (c.contains("text")) {
      EXPECT_EQ(streamed, c.at("decoded").as_string()) << name << " streamed: " << c.at("ids").dump();
    }
  }
}

TEST(PieceTokenizer, SmallTokenizersAgreeWithThePackage) {
  for (const base::Json& set : vectors().at("small").as_array()) {
    const auto tokenizer = tokenizer_from_json(set.at("tokenizer").dump());
    expect_cases(*tokenizer, set);
  }
}

TEST(PieceTokenizer, RealVocabulariesAgreeWithThePackage) {
  const auto root = tests::shared_data("tokenizers");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  for (const base::Json& set : vectors().at("shared").as_array())
    expect_cases(*open_tokenizer((*root / set.at("name").as_string()).string()), set);
}

/// Texts of llama.cpp's vectors, and the ids of each.
void expect_vectors(const std::string& tokenizer, const std::string& vectors) {
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  const auto opened = open_tokenizer(tokenizer);
  std::string texts = base::read_file(vectors + ".inp");
  std::istringstream lines(base::read_file(vectors + ".out"));
  std::string line;
  int count = 0;
  for (size_t begin = 0; std::getline(lines, line); ++count) {
    const size_t end = std::min(texts.find(kBetween, begin), texts.size());
    std::vector<int64_t> want;
    std::istringstream ids(line);
    for (int64_t id = 0; ids >> id;) want.push_back(id);
    const std::string text = texts.substr(begin, end - begin);
    EXPECT_EQ(opened->encode(text, false), want) << tokenizer << ": " << text;
    begin = end + kBetween.size();
  }
  EXPECT_GT(count, 40);
}

TEST(PieceTokenizer, EqualsLlamaCppVectors) {
  const auto root = tests::shared_data("tokenizers");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  for (const char* name : {"gpt-2", "phi-3", "bert-bge"}) {
    const std::string file = (*root / "ggml-vocab" / base::concat("ggml-vocab-", name, ".gguf")).string();
    expect_vectors(file, file);
  }
  expect_vectors((*root / "qwen2.5").string(), (*root / "qwen2.5/ggml-vocab-qwen2.gguf").string());
}

/// Special tokens of Phi-3 swallow the white space behind them, which GGUF files do not state.
TEST(PieceTokenizer, SpecialTokensOfPhi3SwallowSpace) {
  const std::string mark(kSpaceMark);
  const auto ids_in = [&](const char* model, std::string_view text) {
    tensor::GgufWriter w;
    w.set_text("general.name", model);
    w.set_text("tokenizer.ggml.model", "llama");
    w.set_texts("tokenizer.ggml.tokens",
                std::vector<std::string>{"<unk>", "<s>", "</s>", mark, "a", mark + "a", "<|end|>"});
    w.set_numbers("tokenizer.ggml.scores", std::vector<float>{-9, -9, -9, -3, -2, -1, -9});
    w.set_integers("tokenizer.ggml.token_type", std::vector<int32_t>{2, 3, 4, 1, 1, 1, 3});
    const auto bytes = std::make_shared<const std::string>(w.header());
    return tokenizer_from_gguf(tensor::GgufFile::parse(*bytes, bytes).metadata())->encode(text, false);
  };
  for (const char* model : {"Phi-3-mini", "phi3.5"}) {
    EXPECT_EQ(ids_in(model, "a<|end|> \n a"), (std::vector<int64_t>{5, 6, 5})) << model;
    EXPECT_EQ(ids_in(model, "a</s> \n a"), (std::vector<int64_t>{5, 2, 5})) << model;
    EXPECT_EQ(ids_in(model, "<s> a"), (std::vector<int64_t>{1, 3, 5})) << model;
  }
  EXPECT_EQ(ids_in("phi-4", "a<|end|> a"), (std::vector<int64_t>{5, 6, 3, 5}));
  const auto root = tests::shared_data("tokenizers");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  const auto file = open_tokenizer((*root / "ggml-vocab/ggml-vocab-phi-3.gguf").string());
  const auto directory = open_tokenizer((*root / "phi-3-mini").string());
  const char* talk = "<s><|user|>\nHello </s>\n there<|end|>\n<|assistant|>\n";
  EXPECT_EQ(file->encode(talk, false), directory->encode(talk, false));
}

/// tokenizer_config.json says where SentencePiece's dummy space stands.
TEST(PieceTokenizer, TheDummySpaceFollowsTheConfiguration) {
  const auto root = tests::shared_data("tokenizers/open_llama/tokenizer.model");
  if (!root) GTEST_SKIP() << tests::kNoSharedData;
  const std::string model = base::read_file(root->string());
  const auto ids_in = [&](const char* config, std::string_view text) {
    return tokenizer_from_sentence_piece(model, config)->encode(text, false);
  };
  const auto any = tokenizer_from_sentence_piece(model, "");
  const int64_t end = *any->find("</s>"), letter = *any->find("a"),
                word = *any->find(std::string(kSpaceMark) + "a");
  EXPECT_EQ(ids_in("{}", "a</s>a"), (std::vector<int64_t>{word, end, word}));
  EXPECT_EQ(ids_in(R"({"legacy":true})", "</s>a"), (std::vector<int64_t>{end, word}));
  EXPECT_EQ(ids_in(R"({"legacy":false})", "a</s>a"), (std::vector<int64_t>{word, end, letter}));
  EXPECT_EQ(ids_in(R"({"legacy":false})", "</s>a"), (std::vector<int64_t>{end, letter}));
  EXPECT_EQ(ids_in(R"({"add_prefix_space":false})", "a</s>a"), (std::vector<int64_t>{letter, end, letter}));
}

TEST(PieceTokenizer, RefusesWhatItDoesNotDo) {
  const base::Json good = vectors().at("small").at(size_t{0}).at("tokenizer");
  const auto fails = [](const base::Json& json) {
    try {
      tokenizer_from_json(json.dump());
    } catch (const base::Error& e) {
      return e.code() == base::ErrorCode::unsupported || e.code() == base::ErrorCode::invalid_argument;
    }
    return false;
  };
  EXPECT_FALSE(fails(good));
  base::Json bad = good;
  bad["model"].set("type", "Neural");
  EXPECT_TRUE(fails(bad));
  bad = good;
  bad.set("normalizer", base::Json::object({{"type", "Reverse"}}));
  EXPECT_TRUE(fails(bad));
  bad = good;
  bad.set("pre_tokenizer", base::Json::object({{"type", "Split"},
                                               {"pattern", base::Json::object({{"Regex", "[a-z"}})},
                                               {"behavior", "Isolated"}}));
  EXPECT_TRUE(fails(bad));
  bad = good;
  bad["model"].set("merges", base::Json::array({"nowhere nothing"}));
  EXPECT_TRUE(fails(bad));
}

/// As the package does, whose step and whose search for single words count joiners as word characters.
TEST(PieceTokenizer, JoinersAreWithinWords) {
  const auto tokenizer = tokenizer_from_json(
      R"({"added_tokens": [{"id": 5, "content": "<x>", "single_word": true}],
          "pre_tokenizer": {"type": "Whitespace"},
          "model": {"type": "WordLevel", "unk_token": "?",
                    "vocab": {"?": 0, "a\u200db": 1, "c\u200c": 2, "\u200d": 3, "!": 4}}})");
  const auto ids = [&](std::string_view text) { return tokenizer->encode(text, false); };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids("a\u200db c\u200c!"), (Ids{1, 2, 4}));
  EXPECT_EQ(ids("\u2764\u200d\u2764"), (Ids{0, 3, 0}));
  EXPECT_EQ(ids("\u200b<x>"), (Ids{0, 5}));
  EXPECT_EQ(ids("c\u200c<x>"), (Ids{2, 0, 0, 0}));
  EXPECT_EQ(ids("<x>\u200d"), (Ids{0, 0, 0, 3}));
}

/// As the package: marks of the first token are nothing, its own spaces stay.
TEST(PieceTokenizer, TheFirstTokenKeepsItsOwnSpaces) {
  const auto tokenizer = tokenizer_from_json(
      R"({"added_tokens": [{"id": 2, "content": "tok a"}],
          "decoder": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"},
          "model": {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "_a": 1}}})");
  EXPECT_EQ(tokenizer->decode({2, 1}), "tok a a");
  EXPECT_EQ(tokenizer->decode({1, 2}), "atok a");
}

TEST(PieceTokenizer, DecodersInOtherOrdersAreRefused) {
  const auto code_of = [](const std::string& list) {
    try {
      tokenizer_from_json(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":)"
                          R"({"type":"Sequence","decoders":[)" +
                          list + "]}}");
    } catch (const base::Error& e) {
      return base::to_string(e.code());
    }
    return std::string_view("none");
  };
  const std::string replace = R"({"type":"Replace","pattern":{"String":"_"},"content":" "})";
  const std::string strip = R"({"type":"Strip","content":" ","start":1,"stop":0})";
  const auto plain = [](const char* type) { return R"({"type":")" + std::string(type) + "\"}"; };
  const std::string bytes = plain("ByteFallback"), fuse = plain("Fuse"), level = plain("ByteLevel");
  EXPECT_EQ(code_of(replace + "," + bytes + "," + fuse + "," + strip), "none");
  EXPECT_EQ(code_of(replace + "," + replace + "," + bytes), "none");
  EXPECT_EQ(code_of(level + "," + fuse), "none");
  for (const std::string& list :
       {fuse + "," + plain("WordPiece"), replace + "," + level,
        plain("BPEDecoder") + "," + plain("Metaspace"), level + "," + level, plain("WordPiece") + "," + level,
        bytes + "," + strip, bytes + "," + replace})
    EXPECT_EQ(code_of(list), "unsupported") << list;
}

/// Bytes stand for what was not found, with the marks of its place; whole words are looked up without.
TEST(PieceTokenizer, BytesAndWordsBesidePrefixAndSuffix) {
  const auto with = [](const char* rules) {
    return tokenizer_from_json(
        R"({"model": {"type": "BPE",
                      "vocab": {"a": 0, "<0x62>": 1, "<0x23>": 2, "<0x2F>": 3, "#b": 4, "ab": 5,
            "b/": 6}, "merges": [], )" +
        std::string(rules) + "}}");
  };
  const auto ids = [](const auto& tokenizer, std::string_view text) {
    return tokenizer->encode(text, false);
  };
  using Ids = std::vector<int64_t>;
  const auto bytes = with(R"("byte_fallback": true, "continuing_subword_prefix": "##")");
  EXPECT_EQ(ids(bytes, "ab"), (Ids{0, 2, 2, 1}));
  const auto whole = with(R"("ignore_merges": true, "end_of_word_suffix": "/")");
  EXPECT_EQ(ids(whole, "ab"), (Ids{5}));
  EXPECT_EQ(ids(whole, "aab"), (Ids{0, 0, 6}));
}

/// The last text is kept for the id; the first is still found in texts.
TEST(PieceTokenizer, TwoTextsMayHaveOneId) {
  const auto tokenizer = tokenizer_from_json(R"({"added_tokens": [
      {"id": 2, "content": "<a>", "special": true}, {"id": 2, "content": "<b>", "special": true}],
      "model": {"type": "BPE", "vocab": {"x": 0, "y": 1}, "merges": []}})");
  EXPECT_EQ(tokenizer->encode("x<a>y<b>", false), (std::vector<int64_t>{0, 2, 1, 2}));
  EXPECT_EQ(tokenizer->find("<a>"), 2);
  EXPECT_EQ(tokenizer->vocabulary_size(), 3);
}

TEST(PieceTokenizer, LongTextsTakeLittleTime) {
  const base::Json all = vectors();
  const auto tokenizer = tokenizer_from_json(all.at("small").at(size_t{3}).at("tokenizer").dump());
  std::string text;
  while (text.size() < 300000) text += "the king and his men went to the castle ";
  const auto ids = tokenizer->encode(text);  // one word of 300000 characters
  EXPECT_LT(ids.size(), text.size() / 2);
}

/// Each rule doubles a text: 40 of them would make a terabyte of one letter.
TEST(PieceTokenizer, RulesThatGrowATextEnd) {
  const auto list_of = [](const char* one) {
    std::string list;
    for (int i = 0; i < 40; ++i) list += (i > 0 ? "," : "") + std::string(one);
    return list;
  };
  const auto with = [](const std::string& part) {
    return tokenizer_from_json(R"({"model":{"type":"BPE","vocab":{"a":0," ":1},"merges":[]},)" + part + "}");
  };
  const char* texts = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  const char* matches = R"({"type":"Replace","pattern":{"Regex":"a"},"content":"aa"})";
  const char* marks = R"({"type":"Metaspace","replacement":"  ","prepend_scheme":"never","split":false})";
  const auto code_of = [](const Tokenizer& tokenizer, auto act) {
    try {
      act(tokenizer);
    } catch (const base::Error& e) {
      return e.code();
    }
    return base::ErrorCode::internal;
  };
  const auto encodes = [](const Tokenizer& t) { t.encode("a a"); };
  for (const char* rule : {texts, matches}) {
    const auto tokenizer = with(R"("normalizer":{"type":"Sequence","normalizers":[)" + list_of(rule) + "]}");
    EXPECT_EQ(code_of(*tokenizer, encodes), base::ErrorCode::exhausted) << rule;
  }
  const auto marked = with(R"("pre_tokenizer":{"type":"Sequence","pretokenizers":[)" + list_of(marks) + "]}");
  EXPECT_EQ(code_of(*marked, encodes), base::ErrorCode::exhausted);
  const auto decoding = with(R"("decoder":{"type":"Sequence","decoders":[)" + list_of(texts) + "]}");
  EXPECT_EQ(code_of(*decoding, [](const Tokenizer& t) { t.decode({0}); }), base::ErrorCode::exhausted);
}

TEST(CharacterTokenizer, CountsCharactersInOrder) {
  const auto t = character_tokenizer("na\xC3\xAFve banana");
  EXPECT_EQ(t->vocabulary_size(), 7);
  EXPECT_EQ(t->encode("ban\xC3\xAF "), (std::vector<int64_t>{2, 1, 4, 6, 0}));
  EXPECT_EQ(t->decode({2, 1, 4, 6, 0}), "ban\xC3\xAF ");
  EXPECT_EQ(t->find("\xC3\xAF"), 6);
  EXPECT_FALSE(t->find("z").has_value());
  EXPECT_THROW(t->encode("z"), base::Error);
}

}  // namespace
}  // namespace trireme::data
