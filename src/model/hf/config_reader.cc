// Reads config.json strictly: unknown members are refused.
#include "model/hf/config_reader.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace trireme::model::hf {
namespace {

/// Members that do not affect what the network computes: training, saving, generation, caching.
constexpr std::array<std::string_view, 61> kWithoutEffect{{"architectures",
                                                           "attention_dropout",
                                                           "attn_pdrop",
                                                           "auto_map",
                                                           "bad_words_ids",
                                                           "begin_suppress_tokens",
                                                           "bos_token_id",
                                                           "cache_implementation",
                                                           "chunk_size_feed_forward",
                                                           "classifier_dropout",
                                                           "decoder_start_token_id",
                                                           "dropout",
                                                           "dtype",
                                                           "early_stopping",
                                                           "embd_pdrop",
                                                           "embedding_dropout",
                                                           "eos_token_id",
                                                           "finetuning_task",
                                                           "hidden_dropout",
                                                           "id2label",
                                                           "init_std",
                                                           "initializer_factor",
                                                           "initializer_range",
                                                           "is_decoder",
                                                           "label2id",
                                                           "layerdrop",
                                                           "length_penalty",
                                                           "max_length",
                                                           "min_length",
                                                           "model_type",
                                                           "no_repeat_ngram_size",
                                                           "num_beams",
                                                           "num_return_sequences",
                                                           "output_attentions",
                                                           "output_hidden_states",
                                                           "output_router_logits",
                                                           "output_scores",
                                                           "pad_token_id",
                                                           "prefix",
                                                           "pretraining_tp",
                                                           "problem_type",
                                                           "repetition_penalty",
                                                           "resid_pdrop",
                                                           "residual_dropout",
                                                           "return_dict",
                                                           "return_dict_in_generate",
                                                           "router_aux_loss_coef",
                                                           "router_jitter_noise",
                                                           "sep_token_id",
                                                           "suppress_tokens",
                                                           "task_specific_params",
                                                           "temperature",
                                                           "tokenizer_class",
                                                           "top_k",
                                                           "top_p",
                                                           "torch_dtype",
                                                           "torchscript",
                                                           "transformers_version",
                                                           "typical_p",
                                                           "unsloth_version",
                                                           "use_cache"}};

bool is_empty(const base::Json& value) {
  if (value.is_null() || (value.is_bool() && !value.as_bool())) return true;
  return (value.is_array() || value.is_object()) && value.size() == 0;
}

int64_t check_positive(const std::string& key, int64_t value) {
  base::require(value > 0 && value < (int64_t{1} << 31), "config.json: ", key, " is ", value);
  return value;
}

}  // namespace

ConfigReader::ConfigReader(const base::Json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  base::require(object.is_object(), "config.json: ", where_.empty() ? "it" : where_, " is no object");
}

const base::Json* ConfigReader::find(std::string_view key) {
  read_.emplace(key);
  const base::Json* member = object_.find(key);
  return member == nullptr || member->is_null() ? nullptr : member;
}

bool ConfigReader::has(std::string_view key) { return find(key) != nullptr; }

int64_t ConfigReader::positive(std::string_view key) {
  const base::Json* member = find(key);
  base::require(member != nullptr, "config.json has no ", where_, key);
  return check_positive(where_ + std::string(key), member->as_int());
}

int64_t ConfigReader::positive(std::string_view key, int64_t otherwise) {
  return has(key) ? positive(key) : otherwise;
}

double ConfigReader::number(std::string_view key) {
  const base::Json* member = find(key);
  base::require(member != nullptr, "config.json has no ", where_, key);
  return member->as_double();
}

double ConfigReader::number(std::string_view key, double otherwise) {
  return has(key) ? number(key) : otherwise;
}

bool ConfigReader::flag(std::string_view key, bool otherwise) {
  const base::Json* member = find(key);
  return member == nullptr ? otherwise : member->as_bool();
}

std::string ConfigReader::text(std::string_view key, const char* otherwise) {
  const base::Json* member = find(key);
  return member == nullptr ? otherwise : member->as_string();
}

void ConfigReader::only(std::string_view key, const base::Json& value) {
  const base::Json* member = find(key);
  if (member != nullptr && !(*member == value))
    base::fail_unsupported("config.json: ", where_, key, " is ", member->dump().substr(0, 80),
                           ", known is only ", value.dump());
}

void ConfigReader::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) read_.emplace(key);
}

void ConfigReader::finish() const {
  for (const base::JsonMember& member : object_.as_object()) {
    const std::string& key = member.key;
    if (read_.contains(key) || is_empty(member.value) || key.starts_with("_")) continue;
    if (std::binary_search(kWithoutEffect.begin(), kWithoutEffect.end(), key)) continue;
    base::fail_unsupported("config.json: ", where_, key.substr(0, 80), " is not known for this model");
  }
}

}  // namespace trireme::model::hf
