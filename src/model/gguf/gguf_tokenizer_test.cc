// Tests what GGUF files say about the tokenizer of a Hugging Face directory: the name of its words, tokens
// for all rows of the embedding, special tokens and chat templates.
#include "model/gguf/gguf_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch.h"
#include "tensor/gguf/gguf_words.h"

namespace trireme::model::gguf {
namespace {

using base::Json;
using tensor::GgufFile;

const Json kBytes = Json::object({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
const Json kWordsAndBytes = Json::object({{"type", "ByteLevel"}, {"add_prefix_space", false}});

Json sequence_of(std::initializer_list<Json> steps) {
  return Json::object({{"type", "Sequence"}, {"pretokenizers", Json::array(steps)}});
}

Json split_of(std::string_view regex, const char* behavior = "Isolated", bool invert = false) {
  return Json::object({{"type", "Split"},
                       {"pattern", Json::object({{"Regex", regex}})},
                       {"behavior", behavior},
                       {"invert", invert}});
}

/// A tokenizer.json of three tokens and three special ones.
Json tokenizer_json(const Json& pre_tokenizer, bool ignores_merges = false) {
  Json added = Json::array();
  for (const char* text : {"<s>", "<eos>", "<turn>"})
    added.push_back(
        Json::object({{"id", static_cast<int64_t>(3 + added.size())}, {"content", text}, {"special", true}}));
  const Json vocabulary = Json::object({{"a", 0}, {"b", 1}, {"ab", 2}});
  return Json::object({{"pre_tokenizer", pre_tokenizer},
                       {"added_tokens", added},
                       {"model", Json::object({{"type", "BPE"},
                                               {"ignore_merges", ignores_merges},
                                               {"vocab", vocabulary},
                                               {"merges", Json::array({"a b"})}})}});
}

class GgufTokenizerTest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = *scratch_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    base::write_file_atomic(path.string(), text);
  }
  void remove(const std::string& name) const { std::filesystem::remove(*scratch_ + "/" + name); }

  /// The metadata of a file of this directory.
  GgufFile written(const Json& config = Json::object(), int64_t rows = 6) const {
    tensor::GgufWriter writer;
    write_tokenizer(*scratch_, config, rows, writer);
    const auto bytes = std::make_shared<const std::string>(writer.header());
    return GgufFile::parse(*bytes, bytes);
  }

  /// The name of the words of a pre-tokenizer, or the error's code.
  std::string words(const Json& pre_tokenizer, bool ignores_merges = false) const {
    put("tokenizer.json", tokenizer_json(pre_tokenizer, ignores_merges).dump());
    try {
      return std::string(written().metadata().text("tokenizer.ggml.pre"));
    } catch (const base::Error& e) {
      return std::string(base::to_string(e.code()));
    }
  }

  std::shared_ptr<const std::string> scratch_ = base::make_scratch("trireme-gguf");
};

TEST_F(GgufTokenizerTest, WordsHaveTheirPublishedName) {
  const Json digits = Json::object({{"type", "Digits"}, {"individual_digits", true}});
  const Json runs = Json::object({{"type", "Digits"}, {"individual_digits", false}});
  const Json marks = Json::object({{"type", "Punctuation"}, {"behavior", "Contiguous"}});
  EXPECT_EQ(words(kWordsAndBytes), "gpt-2");
  EXPECT_EQ(words(sequence_of({split_of(tensor::kLlama3Words), kBytes}), true), "llama-bpe");
  EXPECT_EQ(words(sequence_of({split_of(tensor::kLlama3Words), kBytes}), false), "dbrx");
  EXPECT_EQ(words(sequence_of({split_of(tensor::kQwen2Words), kBytes})), "qwen2");
  EXPECT_EQ(words(sequence_of({split_of(tensor::kQwen2Words, "Removed", true), kBytes})), "qwen2");
  EXPECT_EQ(words(sequence_of({digits, kWordsAndBytes})), "smollm");
  EXPECT_EQ(words(sequence_of({split_of(tensor::kO200kWords), kBytes})), "gpt-4o");
  EXPECT_EQ(words(sequence_of({split_of(tensor::gguf_words("tekken").patterns[0]), kBytes}), true), "tekken");
  EXPECT_EQ(words(sequence_of({marks, kWordsAndBytes, runs, split_of("[0-9][0-9][0-9]")})), "falcon");
  // Each has a part of a known expression, or another behaviour.
  EXPECT_EQ(words(sequence_of({split_of(R"(\p{N}{1,3}|\p{L}+)"), kBytes})), "unsupported");
  EXPECT_EQ(words(sequence_of({split_of(tensor::kQwen2Words, "MergedWithNext"), kBytes})), "unsupported");
  EXPECT_EQ(words(sequence_of({digits, split_of(tensor::kQwen2Words), kBytes})), "unsupported");
  EXPECT_EQ(words(kBytes), "unsupported");
  EXPECT_EQ(words(Json::object({{"type", "ByteLevel"}, {"add_prefix_space", true}})), "unsupported");
}

TEST_F(GgufTokenizerTest, EachRowOfTheEmbeddingHasAToken) {
  put("tokenizer.json", tokenizer_json(kWordsAndBytes).dump());
  const GgufFile file = written(Json::object(), 9);
  const std::vector<std::string_view> tokens = file.metadata().texts("tokenizer.ggml.tokens");
  EXPECT_EQ(tokens, (std::vector<std::string_view>{"a", "b", "ab", "<s>", "<eos>", "<turn>", "[PAD6]",
                                                   "[PAD7]", "[PAD8]"}));
  EXPECT_EQ(file.metadata().integers("tokenizer.ggml.token_type"),
            (std::vector<int64_t>{1, 1, 1, 3, 3, 3, 5, 5, 5}));
  EXPECT_EQ(written(Json::object(), 2).metadata().texts("tokenizer.ggml.tokens").size(), 6u);
}

TEST_F(GgufTokenizerTest, SpecialTokensAreThoseOfConversations) {
  Json tokenizer = tokenizer_json(kWordsAndBytes);
  put("tokenizer.json", tokenizer.dump());
  const Json config =
      Json::object({{"bos_token_id", 3}, {"eos_token_id", Json::array({4, 5})}, {"pad_token_id", nullptr}});
  EXPECT_EQ(written(config).metadata().integer("tokenizer.ggml.eos_token_id"), 4);
  EXPECT_FALSE(written(config).metadata().flag("tokenizer.ggml.add_bos_token", true));
  EXPECT_FALSE(written(config).metadata().has("tokenizer.ggml.padding_token_id"));

  const Json pad = Json::object({{"content", "<eos>"}});
  put("tokenizer_config.json", Json::object({{"eos_token", "<turn>"}, {"pad_token", pad}}).dump());
  EXPECT_EQ(written(config).metadata().integer("tokenizer.ggml.eos_token_id"), 5);
  EXPECT_EQ(written(config).metadata().integer("tokenizer.ggml.padding_token_id"), 4);
  EXPECT_EQ(written(config).metadata().integer("tokenizer.ggml.bos_token_id"), 3);

  // The template around every text says whether it begins with a token, unless the options do.
  tokenizer.set("post_processor", base::parse_json(R"({"type":"Sequence","processors":[{"type":"ByteLevel"},
      {"type":"TemplateProcessing",
       "single":[{"SpecialToken":{"id":"<s>"}},{"Sequence":{"id":"A"}}],
       "special_tokens":{"<s>":{"id":"<s>","ids":[3]}}}]})"));
  put("tokenizer.json", tokenizer.dump());
  EXPECT_TRUE(written(config).metadata().flag("tokenizer.ggml.add_bos_token", false));
  EXPECT_FALSE(written(config).metadata().flag("tokenizer.ggml.add_eos_token", true));
  EXPECT_EQ(written().metadata().integer("tokenizer.ggml.bos_token_id"), 3);
  put("tokenizer_config.json", R"({"add_bos_token":false,"add_eos_token":true})");
  EXPECT_FALSE(written(config).metadata().flag("tokenizer.ggml.add_bos_token", true));
  EXPECT_TRUE(written(config).metadata().flag("tokenizer.ggml.add_eos_token", false));
}

TEST_F(GgufTokenizerTest, ChatTemplatesComeFromAllTheirPlaces) {
  constexpr const char* kKey = "tokenizer.chat_template";
  const auto text = [&](const char* key) { return std::string(written().metadata().text(key, "none")); };
  EXPECT_EQ(text(kKey), "none");
  put("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"plain"},
      {"name":"tool_use","template":"with tools"}]})");
  EXPECT_EQ(text(kKey), "plain");
  EXPECT_EQ(text("tokenizer.chat_template.tool_use"), "with tools");
  EXPECT_EQ(written().metadata().texts("tokenizer.chat_templates"),
            (std::vector<std::string_view>{"tool_use"}));
  put("chat_template.json", R"({"chat_template":"of json"})");
  EXPECT_EQ(text(kKey), "of json");
  put("chat_template.jinja", "of jinja");
  EXPECT_EQ(text(kKey), "of jinja");
  EXPECT_EQ(text("tokenizer.chat_template.tool_use"), "none");
  put("additional_chat_templates/tool_use.jinja", "more tools");
  EXPECT_EQ(text("tokenizer.chat_template.tool_use"), "more tools");
}

TEST_F(GgufTokenizerTest, NoTokenizerIsLeftOutSilently) {
  EXPECT_FALSE(written().metadata().has("tokenizer.ggml.model"));
  for (const char* name : {"tokenizer.model", "vocab.json", "words.tiktoken"}) {
    put(name, "");
    EXPECT_THROW(written(), base::Error) << name;
    remove(name);
  }
  put("tokenizer.model", "");
  put("tokenizer.json", tokenizer_json(kWordsAndBytes).dump());
  EXPECT_EQ(written().metadata().text("tokenizer.ggml.model"), "gpt2");
}

}  // namespace
}  // namespace trireme::model::gguf
