// Texts to token tensors for encoder models.
#include "data/text/text_encoder.h"

#include <algorithm>
#include <map>

#include "base/files/file.h"
#include "base/text/json.h"

namespace trireme::data {
namespace {

int64_t token_limit(const std::string& directory, const WordPiece& tokenizer, int64_t max_positions) {
  int64_t limit = max_positions;
  const auto own = static_cast<int64_t>(tokenizer.options().max_length);
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
  TokenGroup group{std::move(rows), tensor::Tensor::zeros(tensor::DType::i64, dims),
                   tensor::Tensor::zeros(tensor::DType::i64, dims)};
  int64_t* ids = group.ids.mutable_data<int64_t>().data();
  int64_t* mask = group.mask.mutable_data<int64_t>().data();
  for (size_t i = 0; i < group.rows.size(); ++i) {
    const Encoding& e = encodings[static_cast<size_t>(group.rows[i])];
    std::copy(e.ids.begin(), e.ids.end(), ids + i * length);
    std::copy(e.attention_mask.begin(), e.attention_mask.end(), mask + i * length);
  }
  return group;
}

}  // namespace

std::vector<int64_t> buckets_up_to(std::vector<int64_t> buckets, int64_t most) {
  std::sort(buckets.begin(), buckets.end());
  std::erase_if(buckets, [most](int64_t b) { return b >= most; });
  buckets.push_back(most);
  return buckets;
}

TextEncoder::TextEncoder(const std::string& directory, int64_t max_positions)
    : tokenizer_(WordPiece::from_directory(directory)),
      max_tokens_(token_limit(directory, tokenizer_, max_positions)) {}

std::vector<TokenGroup> TextEncoder::encode(const std::vector<std::string>& texts,
                                            const std::vector<int64_t>& buckets) const {
  std::vector<Encoding> encodings;
  std::map<int64_t, std::vector<int64_t>> by_bucket;
  for (const std::string& text : texts) {
    encodings.push_back(tokenizer_.encode(text, static_cast<size_t>(max_tokens_)));
    const auto length = static_cast<int64_t>(encodings.back().ids.size());
    const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), length);
    by_bucket[bucket == buckets.end() ? length : *bucket].push_back(static_cast<int64_t>(encodings.size()) -
                                                                    1);
  }
  std::vector<TokenGroup> groups;
  for (auto& [bucket, rows] : by_bucket) groups.push_back(make_group(std::move(rows), encodings));
  return groups;
}

}  // namespace trireme::data
