// GPT-J (Wang & Komatsuzaki 2021) and Phi 1 to 2 (Gunasekar et al. 2023): parallel branches with one layer
// norm for both; rotary positions on a part of each head; a head with a bias.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {
namespace {

void make_parallel(zoo::DecoderConfig& c) {
  c.norm = zoo::NormKind::layer;
  c.block = zoo::BlockKind::shared;
  c.mlp = zoo::MlpKind::plain;
  c.has_mlp_bias = c.has_head_bias = true;
}

}  // namespace

Form gptj_form(ConfigReader& in) {
  Form form{.decoder = read_sizes(in, {"n_positions", "n_embd", "n_layer", "n_head", "n_head"})};
  zoo::DecoderConfig& c = form.decoder;
  make_parallel(c);
  c.inner = in.positive("n_inner", 4 * c.width);
  c.epsilon = in.number("layer_norm_epsilon", 1e-5);
  c.activation = in.text("activation_function", "gelu_new");
  c.is_tied = in.flag("tie_word_embeddings", false);
  c.rotated = in.positive("rotary_dim", c.head_dim);
  c.is_interleaved = true;
  in.only("rotary", true);
  in.only("scale_attn_weights", true);
  in.ignore({"n_ctx", "gradient_checkpointing"});
  zoo::DecoderNames& n = c.names;
  n.body = "transformer";
  n.embedding = "wte";
  n.layers = "h";
  n.attention = "attn";
  n.out = "out_proj";
  n.up = "fc_in";
  n.down = "fc_out";
  n.norm_before_attention = "ln_1";
  n.last_norm = "ln_f";
  form.prefix = "transformer.";
  // Members inherited from GPT-2 that define the summary of a sequence and its training.
  in.ignore({"summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
             "summary_use_proj"});
  return form;
}

Form phi_form(ConfigReader& in) {
  Form form{.decoder = read_sizes(in, {})};
  zoo::DecoderConfig& c = form.decoder;
  make_parallel(c);
  c.inner = in.positive("intermediate_size");
  c.epsilon = in.number("layer_norm_eps", 1e-5);
  c.activation = in.text("hidden_act", "gelu_new");
  c.is_tied = in.flag("tie_word_embeddings", false);
  c.has_qkv_bias = c.has_out_bias = true;
  read_rotary(in, c, 0.5);
  in.only("qk_layernorm", false);
  zoo::DecoderNames& n = c.names;
  n.out = "dense";
  n.up = "fc1";
  n.down = "fc2";
  n.last_norm = "final_layernorm";
  return form;
}

}  // namespace trireme::model::hf
