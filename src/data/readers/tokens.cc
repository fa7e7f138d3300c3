// Token data for language models: windows over mapped files of ids, and over texts whose tokens are single
// characters.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/readers/readers.h"

namespace trireme::data {
namespace {

using base::require;
using tensor::DType;
using tensor::Tensor;

// llm.c's files start with 256 i32 words: magic, version, number of tokens.
constexpr size_t kLlmHeaderBytes = 1024;
constexpr uint32_t kLlmMagicU16 = 20240520;  // GPT-2 ids
constexpr uint32_t kLlmMagicU32 = 20240801;  // Llama 3 ids

uint32_t little_u32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data() + at, 4);
  return value;
}

/// The ids of one file, in whatever memory they are.
struct TokenSpan {
  std::string_view bytes;
  TokenType type = TokenType::u16;

  size_t width() const { return type == TokenType::u16 ? 2 : 4; }
  int64_t size() const { return static_cast<int64_t>(bytes.size() / width()); }
  /// Copies ids [begin, begin + out.size()) and returns the largest.
  int64_t copy(int64_t begin, std::span<int64_t> out) const {
    return type == TokenType::u16 ? copy_as<uint16_t>(begin, out) : copy_as<uint32_t>(begin, out);
  }

 private:
  template <class T>
  int64_t copy_as(int64_t begin, std::span<int64_t> out) const {
    const char* from = bytes.data() + static_cast<size_t>(begin) * sizeof(T);
    int64_t largest = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      T id = 0;
      std::memcpy(&id, from + i * sizeof(T), sizeof(T));  // a mapped header may leave ids misaligned
      out[i] = id;
      largest = std::max(largest, out[i]);
    }
    return largest;
  }
};

class TokenDataset : public Dataset {
 public:
  TokenDataset(SourceFile source, TokenSpan tokens, TokenWindows windows, DatasetInfo info)
      : source_(std::move(source)), tokens_(tokens), context_(windows.context), info_(std::move(info)) {
    require(context_ > 0, "token data needs the option context: tokens of one sample");
    stride_ = windows.stride > 0 ? windows.stride : context_;
    cut_split(windows);
    const int64_t length = end_ - begin_;
    size_ = length > context_ ? (length - context_ - 1) / stride_ + 1 : 0;
    require(size_ > 0, "too few tokens for one sample of ", context_, " and the one after it: '",
            source_.path, "' has ", length);
    info_.fields = {{"input", FieldKind::tensor, DType::i64, {context_}, false},
                    {"target", FieldKind::tensor, DType::i64, {context_}, true}};
    info_.shards = {{source_.path, size_, source_.file_bytes}};
  }

  int64_t size() const override { return size_; }
  const DatasetInfo& info() const override { return info_; }
  Sample read(int64_t index) const override {
    const int64_t first = begin_ + index * stride_;
    Tensor both = Tensor::empty(DType::i64, {context_ + 1});
    const int64_t largest = tokens_.copy(first, both.mutable_data<int64_t>());
    require(info_.vocabulary_size == 0 || largest < info_.vocabulary_size,
            "token id is outside of the vocabulary: ", largest, ", vocabulary ", info_.vocabulary_size,
            ", tokens ", first, " to ", first + context_);
    Sample sample;
    sample.values.push_back({"input", both.rows(0, context_), {}});
    sample.values.push_back({"target", both.rows(1, context_ + 1), {}});
    return sample;
  }

 private:
  void cut_split(const TokenWindows& windows) {
    const int64_t all = tokens_.size();
    end_ = all;
    if (windows.hold_out <= 0) {
      require(windows.split == "train", "token data has the split train alone unless a part is held out: '",
              windows.split, "'");
      return;
    }
    require(windows.hold_out < 1, "fraction to hold out is not between 0 and 1: ", windows.hold_out);
    const auto cut = static_cast<int64_t>(static_cast<double>(all) * (1 - windows.hold_out));
    const bool held = windows.split == "validation";
    require(held || windows.split == "train",
            "a data set with a held-out part has the splits train and validation: '", windows.split, "'");
    (held ? begin_ : end_) = cut;
  }

  SourceFile source_;
  TokenSpan tokens_;
  int64_t context_, stride_ = 0;
  int64_t begin_ = 0, end_ = 0;  // of the split, in tokens
  int64_t size_ = 0;
  DatasetInfo info_;
};

/// Removes llm.c's header, if there is one, and takes the type of the ids from it.
TokenSpan token_span(const SourceFile& source, TokenType type) {
  TokenSpan span{source.bytes, type};
  const uint32_t magic = source.bytes.size() >= kLlmHeaderBytes ? little_u32(source.bytes, 0) : 0;
  if (magic == kLlmMagicU16 || magic == kLlmMagicU32) {
    span.type = magic == kLlmMagicU16 ? TokenType::u16 : TokenType::u32;
    span.bytes = source.bytes.substr(kLlmHeaderBytes);
    require(little_u32(source.bytes, 8) == static_cast<uint64_t>(span.size()),
            "token file's header promises ", little_u32(source.bytes, 8), " tokens: '", source.path, "' has ",
            span.size());
  }
  require(span.bytes.size() % span.width() == 0, "token file is not a whole number of ids of ", span.width(),
          " bytes: '", source.path, "', bytes: ", span.bytes.size());
  return span;
}

/// Encodes the text's code points as ids, and returns the vocabulary they index in `vocabulary`.
std::vector<uint32_t> encode_characters(std::string_view text, std::vector<std::string>& vocabulary) {
  std::vector<uint32_t> ids;
  ids.reserve(text.size());
  std::map<uint32_t, uint32_t> rank;  // code point -> id
  for (size_t pos = 0; pos < text.size();) {
    ids.push_back(base::next_code_point(text, pos));
    rank.emplace(ids.back(), 0);
  }
  for (auto& [code, id] : rank) {
    id = static_cast<uint32_t>(vocabulary.size());
    base::append_utf8(vocabulary.emplace_back(), code);
  }
  for (uint32_t& id : ids) id = rank.find(id)->second;
  return ids;
}

}  // namespace

DatasetPtr open_tokens(const std::string& path, TokenType type, int64_t vocabulary_size,
                       const TokenWindows& windows, int64_t limit_bytes) {
  SourceFile source = open_source(path, limit_bytes);
  const TokenSpan span = token_span(source, type);
  DatasetInfo info{.format = "tokens"};
  info.vocabulary_size = vocabulary_size;
  return std::make_shared<TokenDataset>(std::move(source), span, windows, std::move(info));
}

DatasetPtr open_characters(const std::string& path, const TokenWindows& windows, int64_t limit_bytes) {
  SourceFile source = open_source(path, limit_bytes);
  require(base::is_utf8(source.bytes), "text is not UTF-8: '", path, "'");
  DatasetInfo info{.format = "characters"};
  auto ids = std::make_shared<const std::vector<uint32_t>>(encode_characters(source.bytes, info.vocabulary));
  info.vocabulary_size = static_cast<int64_t>(info.vocabulary.size());
  const TokenSpan span{{reinterpret_cast<const char*>(ids->data()), ids->size() * 4}, TokenType::u32};
  source.owner = std::move(ids);  // the text itself is no longer needed
  source.bytes = {};
  return std::make_shared<TokenDataset>(std::move(source), span, windows, std::move(info));
}

}  // namespace trireme::data
