// StableLM 2 (Bellagente et al. 2024): layer norms, gated layers, rotation of a part of each head. Starcoder
// 2 (Lozhkov et al. 2024): layer norms, plain feed-forward layers, biases, a window.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form stablelm_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.norm = zoo::NormKind::layer;
  c.epsilon = in.number("layer_norm_eps", 1e-5);
  if (in.flag("use_parallel_residual", false)) c.block = zoo::BlockKind::shared;
  c.has_qkv_bias = in.flag("use_qkv_bias", false);
  read_rotary(in, c, 0.25);
  in.only("qk_layernorm", false);
  in.ignore({"norm_eps", "rope_pct"});
  return form;
}

Form starcoder2_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.norm = zoo::NormKind::layer;
  c.mlp = zoo::MlpKind::plain;
  c.epsilon = in.number("norm_epsilon", 1e-5);
  c.activation = in.text("hidden_act", "gelu_pytorch_tanh");
  c.is_tied = in.flag("tie_word_embeddings", true);
  c.has_qkv_bias = c.has_out_bias = c.has_mlp_bias = in.flag("use_bias", true);
  if (in.has("sliding_window")) read_windows(in, c, [](size_t) { return true; });
  in.only("mlp_type", "default");
  in.only("norm_type", "layer_norm");
  in.only("attention_softmax_in_fp32", true);
  in.only("scale_attention_softmax_in_fp32", true);
  in.only("scale_attn_weights", true);
  c.names.up = "c_fc";
  c.names.down = "c_proj";
  return form;
}

}  // namespace trireme::model::hf
