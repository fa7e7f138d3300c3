// Accepts texts as inputs of a model of tokens.
#include "serve/batched/text_front.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "model/hf/directory.h"

namespace trireme::serve {
namespace {

using tensor::DType;
using tensor::Tensor;

base::Json settings_of(const model::Model& model) {
  return model.config.is_object() ? model.config : model::hf::read_config_json(model.directory);
}

}  // namespace

TextFront::TextFront(const model::Model& model, const std::vector<int64_t>& buckets, data::TextKind kind)
    : kind_(kind),
      settings_(settings_of(model)),
      encoder_(model.directory, settings_.get_or<int64_t>("max_position_embeddings", 512), kind),
      vocabulary_(settings_.at("vocab_size").as_int()),
      types_(settings_.get_or<int64_t>("type_vocab_size", 2)),
      buckets_(data::buckets_up_to(buckets, encoder_.max_tokens())) {
  for (ir::ValueId id : model.graph.inputs()) {
    const auto at = std::find(std::begin(kNames), std::end(kNames), model.graph.value(id).name);
    base::check(at != std::end(kNames), "a model of texts takes tokens, their mask and their types");
    feeds_.push_back(static_cast<Feed>(at - std::begin(kNames)));
  }
}

bool TextFront::has_types() const {
  return std::find(feeds_.begin(), feeds_.end(), Feed::types) != feeds_.end();
}

bool TextFront::is_for(const InferRequest& request) const {
  return std::any_of(request.inputs.begin(), request.inputs.end(), [&](const WireTensor& t) {
    return t.name == kInput || (kind_ == data::TextKind::pair && t.name == kPair);
  });
}

std::vector<TensorConfig> TextFront::take_inputs(ModelConfig& config) const {
  std::vector<TensorConfig> texts;
  for (const char* name : {kInput, kPair}) {
    if (texts.size() == text_inputs()) break;
    TensorConfig text{.name = name, .type = std::nullopt, .is_optional = true};
    for (const TensorConfig& t : config.inputs) {
      if (t.name != name) continue;
      base::require(!t.type && !t.reshape && (t.dims.empty() || t.dims == tensor::Dims{1}), "input '", name,
                    "' of an encoder is TYPE_STRING with dims [ ] or [ 1 ], the config has ",
                    config_type_name(t.type), " ", tensor::to_string(t.dims));
      text.dims = t.dims;
    }
    std::erase_if(config.inputs, [&](const TensorConfig& t) { return t.name == name; });
    texts.push_back(std::move(text));
  }
  const char* types = kNames[static_cast<size_t>(Feed::types)];
  const bool is_named = std::any_of(config.inputs.begin(), config.inputs.end(),
                                    [&](const TensorConfig& t) { return t.name == types; });
  if (!config.inputs.empty() && has_types() && !is_named)
    config.inputs.push_back({.name = types, .type = DType::i64, .dims = {-1}});
  return texts;
}

std::vector<TextFront::Group> TextFront::encode(const CheckedInputs& inputs,
                                                const ModelConfig& config) const {
  const auto& texts = inputs.tensors[0].strings;
  std::vector<data::TokenGroup> encoded =
      kind_ == data::TextKind::pair ? encoder_.encode_pairs(texts, inputs.tensors[1].strings, buckets_)
                                    : encoder_.encode(texts, buckets_);
  base::require(!encoded.empty(), "unexpected shape for input '", kInput, "' for model '", config.name,
                "'. Expected at least one text");
  std::vector<Group> groups;
  for (data::TokenGroup& g : encoded) {
    Group group{.rows = std::move(g.rows)};
    for (int64_t kept : g.mask.data<int64_t>()) group.tokens += kept;
    for (Feed feed : feeds_)
      group.inputs.push_back(feed == Feed::ids ? g.ids : feed == Feed::mask ? g.mask : g.types);
    groups.push_back(std::move(group));
  }
  return groups;
}

void TextFront::complete(InferRequest& request) const {
  const auto named = [&](Feed feed) {
    return std::find_if(request.inputs.begin(), request.inputs.end(),
                        [&](const WireTensor& t) { return t.name == kNames[static_cast<size_t>(feed)]; });
  };
  const auto ids = named(Feed::ids);
  const bool lacks_types = has_types() && named(Feed::types) == request.inputs.end();
  if (!lacks_types || ids == request.inputs.end() || !(ids->type == WireType(DType::i64))) return;
  const tensor::Dims dims = ids->dims;
  request.inputs.push_back({.name = kNames[static_cast<size_t>(Feed::types)],
                            .type = DType::i64,
                            .dims = dims,
                            .values = Tensor::zeros(DType::i64, dims)});
}

void TextFront::check_tokens(const std::vector<Tensor>& inputs, const ModelConfig& config) const {
  for (size_t i = 0; i < inputs.size(); ++i) {  // [rows, length]
    const std::string& name = config.inputs[text_inputs() + i].name;
    base::require(inputs[i].dims() == inputs[0].dims(), "unexpected shape for input '", name, "' for model '",
                  config.name, "'. Expected ", tensor::to_string(inputs[0].dims()), ", got ",
                  tensor::to_string(inputs[i].dims()));
    const int64_t length = inputs[i].dims()[1];
    base::require(length >= 1 && length <= buckets_.back(), "unexpected shape for input '", name,
                  "' for model '", config.name, "': ", length, " tokens, at most ", buckets_.back());
    if (feeds_[i] == Feed::mask) continue;
    const bool is_id = feeds_[i] == Feed::ids;
    for (int64_t id : inputs[i].data<int64_t>()) {
      base::require(id >= 0 && id < (is_id ? vocabulary_ : types_), is_id ? "token id " : "token type ", id,
                    is_id ? " is outside of the vocabulary of " : " is not one of the model's ",
                    is_id ? vocabulary_ : types_);
    }
  }
}

std::vector<size_t> TextFront::padded_inputs() const {
  std::vector<size_t> all(feeds_.size());
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

std::vector<Tensor> TextFront::example(int64_t length) const {
  std::vector<Tensor> inputs;
  for (Feed feed : feeds_) {
    inputs.push_back(Tensor::zeros(DType::i64, {1, length}));
    if (feed == Feed::mask) std::fill_n(inputs.back().mutable_data<int64_t>().begin(), length, int64_t{1});
  }
  return inputs;
}

}  // namespace trireme::serve
