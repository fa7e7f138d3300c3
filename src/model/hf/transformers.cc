// GPT-2 and Llama language models, ViT and ResNet classifiers, from Hugging Face directories.
#include "model/hf/transformers.h"

#include "model/hf/checkpoint.h"
#include "model/hf/directory.h"
#include "model/zoo/gpt2.h"
#include "model/zoo/llama.h"
#include "model/zoo/resnet.h"
#include "model/zoo/vit.h"

namespace trireme::model::hf {
namespace {

/// Refuses an option of config.json that is set to anything but what our network does.
template <class T>
void need_default(const base::Json& json, std::string_view key, T only) {
  if (json.get_or(key, only) != only) base::fail_unsupported("config.json: ", key, " is not ", only);
}

int64_t positive_or(const base::Json& json, std::string_view key, int64_t otherwise) {
  const base::Json* member = json.find(key);
  return member == nullptr || member->is_null() ? otherwise : need_positive(json, key);
}

/// The rotary wavelengths, from the old or the new place. Throws unsupported for stretchings we do not have.
void read_rope(const base::Json& json, zoo::LlamaConfig& c) {
  c.theta = json.get_or("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const base::Json* rope = json.find(key);
    if (rope == nullptr || !rope->is_object()) continue;
    const std::string type = rope->get_or("rope_type", rope->get_or("type", "default").c_str());
    if (type != "default" && type != "linear" && type != "llama3") {
      base::fail_unsupported("config.json: rotary positions of type '", type, "'");
    }
    c.theta = rope->get_or("rope_theta", c.theta);
    if (type != "default") c.rope_factor = rope->at("factor").as_double();
    if (type != "llama3") continue;
    c.rope_low = rope->at("low_freq_factor").as_double();
    c.rope_high = rope->at("high_freq_factor").as_double();
    c.rope_original = need_positive(*rope, "original_max_position_embeddings");
  }
}

}  // namespace

Model load_gpt2(const std::string& directory) {
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
  CheckpointParams params(directory, "transformer.");
  Model model = zoo::gpt2(c, params);
  set_origin(model, directory, json);
  return model;
}

Model load_llama(const std::string& directory) {
  const base::Json json = read_config_json(directory);
  zoo::LlamaConfig c;
  c.vocabulary = need_positive(json, "vocab_size");
  c.positions = need_positive(json, "max_position_embeddings");
  c.width = need_positive(json, "hidden_size");
  c.layers = need_positive(json, "num_hidden_layers");
  c.heads = need_positive(json, "num_attention_heads");
  c.kv_heads = positive_or(json, "num_key_value_heads", c.heads);
  c.head_dim = positive_or(json, "head_dim", 0);
  c.inner = need_positive(json, "intermediate_size");
  c.epsilon = json.get_or("rms_norm_eps", 1e-6);
  read_rope(json, c);
  c.is_tied = json.get_or("tie_word_embeddings", false);
  c.has_attention_bias = json.get_or("attention_bias", false);
  need_default(json, "mlp_bias", false);
  const std::string activation = json.get_or("hidden_act", "silu");
  if (activation != "silu") base::fail_unsupported("config.json: hidden_act '", activation, "' of a Llama");
  CheckpointParams params(directory, "model.");
  Model model = zoo::llama(c, params);
  set_origin(model, directory, json);
  return model;
}

Model load_vit(const std::string& directory) {
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
  CheckpointParams params(directory, "vit.");
  Model model = zoo::vit(c, params);
  set_origin(model, directory, json);
  return model;
}

Model load_resnet(const std::string& directory) {
  const base::Json json = read_config_json(directory);
  zoo::ResnetConfig c;
  c.channels = positive_or(json, "num_channels", 3);
  c.size = positive_or(json, "image_size", 224);
  c.classes = class_count(json);
  // The depth is what has these blocks; all else must be as that network has it.
  for (const int64_t depth : {18, 34, 50, 101, 152}) {
    c.depth = depth;
    const base::Json want = zoo::resnet_json(c);
    const auto same = [&](const char* key) { return json.at(key) == want.at(key); };
    if (!same("depths") || !same("hidden_sizes") || !same("layer_type") || !same("embedding_size")) continue;
    for (const char* key : {"downsample_in_first_stage", "downsample_in_bottleneck"})
      need_default(json, key, false);
    CheckpointParams params(directory, "resnet.");
    Model model = zoo::resnet(c, params);
    set_origin(model, directory, json);
    return model;
  }
  base::fail_unsupported("config.json: a ResNet with blocks ", json.at("depths").dump(), " of widths ",
                         json.at("hidden_sizes").dump());
}

}  // namespace trireme::model::hf
