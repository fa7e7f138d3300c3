// Loads GPT-2, decoders of all forms, ViT and ResNet classifiers from Hugging Face directories.
#include "model/hf/transformers.h"

#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"
#include "model/hf/forms/forms.h"
#include "model/zoo/decoder.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/resnet.h"
#include "model/zoo/vit.h"

namespace trireme::model::hf {
namespace {

/// Refuses an option of config.json that is set to a value that the network here does not implement.
template <class T>
void need_default(const base::Json& json, std::string_view key, T only) {
  if (json.get_or(key, only) != only) base::fail_unsupported("config.json: ", key, " is not ", only);
}

int64_t positive_or(const base::Json& json, std::string_view key, int64_t otherwise) {
  const base::Json* member = json.find(key);
  return member == nullptr || member->is_null() ? otherwise : need_positive(json, key);
}

}  // namespace

Model load_gpt2(const std::string& directory, const LoadOptions& options) {
  const base::Json json = read_config_json(directory);
  zoo::Gpt2Config c;
  c.vocabulary = need_positive(json, "vocab_size");
  c.positions = need_positive(json, "n_positions");
  c.width = need_positive(json, "n_embd");
  c.layers = need_positive(json, "n_layer");
  c.heads = need_positive(json, "n_head");
  c.inner = positive_or(json, "n_inner", 0);
  c.activation = json.get_or("activation_function", "gelu_new");
  c.epsilon = json.get_or("layer_norm_epsilon", 1e-5);
  c.dropout = json.get_or("resid_pdrop", 0.1);
  c.is_tied = json.get_or("tie_word_embeddings", true);
  need_default(json, "scale_attn_weights", true);
  need_default(json, "scale_attn_by_inverse_layer_idx", false);
  need_default(json, "add_cross_attention", false);
  CheckpointParams params(directory, "transformer.", {}, {.is_without_content = options.is_without_content});
  Model model = zoo::gpt2(c, params);
  set_origin(model, directory, json);
  return model;
}

Model load_decoder(const std::string& directory, const LoadOptions& options) {
  const base::Json json = read_config_json(directory);
  const FormRow* row = find_form(json);
  base::check(row != nullptr, "no form of a decoder for '", directory, "'");
  const Form form = read_form(*row, json);
  zoo::check_tables(form.decoder);
  CheckpointParams params(directory, form.prefix, form.weights,
                          {.quantization = form.quantization,
                           .keeps_halves = true,
                           .is_without_content = options.is_without_content});
  Model model = zoo::decoder(form.decoder, params);
  set_origin(model, directory, json);
  model.files = params.files();
  return model;
}

Model load_vit(const std::string& directory, const LoadOptions& options) {
  const base::Json json = read_config_json(directory);
  zoo::VitConfig c;
  c.channels = positive_or(json, "num_channels", 3);
  c.size = need_positive(json, "image_size");
  c.patch = need_positive(json, "patch_size");
  c.width = need_positive(json, "hidden_size");
  c.layers = need_positive(json, "num_hidden_layers");
  c.heads = need_positive(json, "num_attention_heads");
  c.inner = need_positive(json, "intermediate_size");
  c.activation = json.get_or("hidden_act", "gelu");
  c.epsilon = json.get_or("layer_norm_eps", 1e-12);
  c.dropout = json.get_or("hidden_dropout_prob", 0.0);
  c.classes = class_count(json);
  need_default(json, "qkv_bias", true);
  CheckpointParams params(directory, "vit.", {}, {.is_without_content = options.is_without_content});
  Model model = zoo::vit(c, params);
  set_origin(model, directory, json);
  return model;
}

Model load_resnet(const std::string& directory, const LoadOptions& options) {
  const base::Json json = read_config_json(directory);
  zoo::ResnetConfig c;
  c.channels = positive_or(json, "num_channels", 3);
  c.size = positive_or(json, "image_size", 224);
  c.classes = class_count(json);
  // Finds the depth that has these blocks; everything else must match the network of that depth.
  for (const int64_t depth : {18, 34, 50, 101, 152}) {
    c.depth = depth;
    const base::Json want = zoo::resnet_json(c);
    const auto same = [&](const char* key) { return json.at(key) == want.at(key); };
    if (!same("depths") || !same("hidden_sizes") || !same("layer_type") || !same("embedding_size")) continue;
    for (const char* key : {"downsample_in_first_stage", "downsample_in_bottleneck"})
      need_default(json, key, false);
    CheckpointParams params(directory, "resnet.", {}, {.is_without_content = options.is_without_content});
    Model model = zoo::resnet(c, params);
    set_origin(model, directory, json);
    return model;
  }
  base::fail_unsupported("config.json: a ResNet with blocks ", json.at("depths").dump(), " of widths ",
                         json.at("hidden_sizes").dump());
}

}  // namespace trireme::model::hf
