// OPT (Zhang et al. 2022): a table of learned positions with two rows before that of the first token, layer
// norms before the branches, ReLU.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form opt_form(ConfigReader& in) {
  Form form{.decoder = read_sizes(in, {})};
  zoo::DecoderConfig& c = form.decoder;
  c.inner = in.positive("ffn_dim");
  c.norm = zoo::NormKind::layer;
  c.mlp = zoo::MlpKind::plain;
  c.activation = in.text("activation_function", "relu");
  c.epsilon = 1e-5;
  c.rotary.clear();
  c.position_offset = 2;
  c.is_tied = in.flag("tie_word_embeddings", true);
  c.has_qkv_bias = c.has_out_bias = c.has_mlp_bias = in.flag("enable_bias", true);
  in.only("do_layer_norm_before", true);
  in.only("layer_norm_elementwise_affine", true);
  in.only("word_embed_proj_dim", c.width);
  zoo::DecoderNames& n = c.names;
  n.body = "model.decoder";
  n.out = "out_proj";
  n.mlp = "";
  n.up = "fc1";
  n.down = "fc2";
  n.norm_before_attention = "self_attn_layer_norm";
  n.norm_before_mlp = "final_layer_norm";
  n.last_norm = "final_layer_norm";
  return form;
}

}  // namespace trireme::model::hf
