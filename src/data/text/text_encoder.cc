// Converts texts to token tensors for encoder models.
#include "data/text/text_encoder.h"

#include <algorithm>
#include <map>

#include "base/files/file.h"
#include "base/text/json.h"

namespace trireme::data {
namespace {

/// The tokenizer's own limit; 0 if it has none. A tokenizer.json states the length to which texts were cut
/// when it was saved; for pairs, the limit of tokenizer_config.json applies instead.
int64_t own_limit(const std::string& directory, const WordPiece& tokenizer, TextKind kind) {
  const std::string file = directory + "/tokenizer_config.json";
  if (kind == TextKind::text || !base::file_exists(directory + "/tokenizer.json"))
    return static_cast<int64_t>(tokenizer.options().max_length);
  if (!base::file_exists(file)) return 0;
  const base::Json config = base::parse_json(base::read_file(file));
  const base::Json* length = config.find("model_max_length");
  constexpr double kNoLimit = 1e9;  // files write 1e30 for "no limit"
  const bool is_limit = length != nullptr && length->is_number() && length->as_double() < kNoLimit;
  return is_limit ? static_cast<int64_t>(std::max(0.0, length->as_double())) : 0;
}

int64_t token_limit(const std::string& directory, int64_t own, int64_t max_positions) {
  int64_t limit = max_positions;
  if (own > 0) limit = std::min(limit, own);
  const std::string file = directory + "/sentence_bert_config.json";
  if (base::file_exists(file)) {
    const base::Json config = base::parse_json(base::read_file(file));
    limit = std::min(limit, config.get_or<int64_t>("max_seq_length", limit));
  }
  base::require(limit >= 3, "the model takes ", limit, " tokens, too few for a text");
  return limit;
}

/// Rows of the encodings, padded with zeros to the longest of them.
TokenGroup make_group(std::vector<int64_t> rows, const std::vector<Encoding>& encodings) {
  size_t length = 1;
  for (int64_t r : rows) length = std::max(length, encodings[static_cast<size_t>(r)].ids.size());
  const tensor::Dims dims{static_cast<int64_t>(rows.size()), static_cast<int64_t>(length)};
  const auto zeros = [&] { return tensor::Tensor::zeros(tensor::DType::i64, dims); };
  TokenGroup group{std::move(rows), zeros(), zeros(), zeros()};
  int64_t* ids = group.ids.mutable_data<int64_t>().data();
  int64_t* mask = group.mask.mutable_data<int64_t>().data();
  int64_t* types = group.types.mutable_data<int64_t>().data();
  for (size_t i = 0; i < group.rows.size(); ++i) {
    const Encoding& e = encodings[static_cast<size_t>(group.rows[i])];
    std::copy(e.ids.begin(), e.ids.end(), ids + i * length);
    std::copy(e.attention_mask.begin(), e.attention_mask.end(), mask + i * length);
    std::copy(e.type_ids.begin(), e.type_ids.end(), types + i * length);
  }
  return group;
}

std::vector<TokenGroup> grouped(const std::vector<Encoding>& encodings, const std::vector<int64_t>& buckets) {
  std::map<int64_t, std::vector<int64_t>> by_bucket;
  for (size_t i = 0; i < encodings.size(); ++i) {
    const auto length = static_cast<int64_t>(encodings[i].ids.size());
    const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), length);
    by_bucket[bucket == buckets.end() ? length : *bucket].push_back(static_cast<int64_t>(i));
  }
  std::vector<TokenGroup> groups;
  for (auto& [bucket, rows] : by_bucket) groups.push_back(make_group(std::move(rows), encodings));
  return groups;
}

}  // namespace

std::vector<int64_t> buckets_up_to(std::vector<int64_t> buckets, int64_t most) {
  std::sort(buckets.begin(), buckets.end());
  std::erase_if(buckets, [most](int64_t b) { return b >= most; });
  buckets.push_back(most);
  return buckets;
}

TextEncoder::TextEncoder(const std::string& directory, int64_t max_positions, TextKind kind)
    : tokenizer_(WordPiece::from_directory(directory)),
      max_tokens_(token_limit(directory, own_limit(directory, tokenizer_, kind), max_positions)) {}

std::vector<TokenGroup> TextEncoder::encode(const std::vector<std::string>& texts,
                                            const std::vector<int64_t>& buckets) const {
  std::vector<Encoding> encodings;
  for (const std::string& text : texts)
    encodings.push_back(tokenizer_.encode(text, static_cast<size_t>(max_tokens_)));
  return grouped(encodings, buckets);
}

std::vector<TokenGroup> TextEncoder::encode_pairs(const std::vector<std::string>& first,
                                                  const std::vector<std::string>& second,
                                                  const std::vector<int64_t>& buckets) const {
  base::check(first.size() == second.size(), "pairs have a first and a second text each");
  std::vector<Encoding> encodings;
  std::vector<int64_t> tokens;  // of the first text
  for (size_t i = 0; i < first.size(); ++i) {
    if (i == 0 || first[i] != first[i - 1]) tokens = tokenizer_.tokenize(first[i]);
    encodings.push_back(
        tokenizer_.join(tokens, tokenizer_.tokenize(second[i]), static_cast<size_t>(max_tokens_)));
  }
  return grouped(encodings, buckets);
}

}  // namespace trireme::data
