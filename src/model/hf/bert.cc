// BERT-family encoders from Hugging Face directories.
#include "model/hf/bert.h"

#include <algorithm>

#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"
#include "model/hf/pooling.h"
#include "model/zoo/bert.h"

namespace trireme::model::hf {
namespace {

using ir::ValueId;
using zoo::BertHead;

zoo::BertConfig read_bert_config(const base::Json& json) {
  zoo::BertConfig c;
  c.width = need_positive(json, "hidden_size");
  c.layers = need_positive(json, "num_hidden_layers");
  c.heads = need_positive(json, "num_attention_heads");
  c.inner = need_positive(json, "intermediate_size");
  c.positions = need_positive(json, "max_position_embeddings");
  c.vocabulary = need_positive(json, "vocab_size");
  c.token_types = need_positive(json, "type_vocab_size");
  c.epsilon = json.get_or("layer_norm_eps", 1e-12);
  c.activation = json.get_or("hidden_act", "gelu");
  const base::Json* padding = json.find("pad_token_id");
  if (padding != nullptr) c.padding = padding->is_null() ? -1 : padding->as_int();
  c.dropout = json.get_or("hidden_dropout_prob", 0.1);
  c.is_tied = json.get_or("tie_word_embeddings", true);
  const std::string positions = json.get_or("position_embedding_type", "absolute");
  if (positions != "absolute") base::fail_unsupported("BERT with ", positions, " positions");
  if (json.get_or("is_decoder", false)) base::fail_unsupported("BERT as a decoder");
  return c;
}

/// The head with which the checkpoint was saved. A sentence-transformers directory is an encoder, whatever
/// its config.json says.
BertHead saved_head(const base::Json& json, const std::string& directory) {
  if (is_sentence_encoder(directory)) return BertHead::none;
  const std::string architecture = first_architecture(json);
  if (architecture == "BertForMaskedLM") return BertHead::masked_lm;
  return architecture == "BertForSequenceClassification" ? BertHead::classification : BertHead::none;
}

ValueId find_value(const ir::Graph& g, const std::vector<ValueId>& among, std::string_view name) {
  const auto at =
      std::find_if(among.begin(), among.end(), [&](ValueId id) { return g.value(id).name == name; });
  base::check(at != among.end(), "the encoder has no value '", name, "'");
  return *at;
}

}  // namespace

Model load_bert(const std::string& directory, const BertOptions& options) {
  const base::Json json = read_config_json(directory);
  const std::string type = json.get_or("model_type", "");
  if (type != "bert") base::fail_unsupported("Hugging Face model type '", type, "'; supported here: bert");
  zoo::BertConfig config = read_bert_config(json);
  config.has_token_types = options.has_token_types && config.token_types > 1;
  config.head = options.is_encoder ? BertHead::none : saved_head(json, directory);
  config.classes = class_count(json);
  CheckpointParams params(directory, "bert.", {}, {.is_without_content = options.is_without_content});
  Model model = zoo::bert(config, params);
  set_origin(model, directory, json);
  if (config.head == BertHead::none && options.has_embedding) {
    Builder b = Builder(model.graph).within("pooling");
    const ValueId hidden = model.graph.outputs()[0];
    const ValueId mask = find_value(model.graph, model.graph.inputs(), "attention_mask");
    model.graph.add_output(pool(b, hidden, mask, read_pooling(directory)), "sentence_embedding");
    model.graph.sort();
  }
  return model;
}

}  // namespace trireme::model::hf
