// GPT-NeoX and Pythia (Black et al. 2022): layer norms, parallel branches, rotary positions on a part of each
// head, one matrix for queries, keys and values, head after head.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form gpt_neox_form(ConfigReader& in) {
  Form form{.decoder = read_decoder(in)};
  zoo::DecoderConfig& c = form.decoder;
  c.norm = zoo::NormKind::layer;
  c.block = in.flag("use_parallel_residual", true) ? zoo::BlockKind::parallel : zoo::BlockKind::before;
  c.mlp = zoo::MlpKind::plain;
  c.epsilon = in.number("layer_norm_eps", 1e-5);
  c.activation = in.text("hidden_act", "gelu");
  c.has_qkv_bias = c.has_out_bias = in.flag("attention_bias", true);
  c.has_mlp_bias = true;
  if (!in.has("rope_parameters")) {
    c.rotary[0].theta = in.number("rotary_emb_base", 10000);
    c.rotated = static_cast<int64_t>(static_cast<double>(c.head_dim) * in.number("rotary_pct", 0.25));
  }
  in.ignore({"rotary_emb_base", "rotary_pct"});
  c.names.body = "gpt_neox";
  c.names.embedding = "embed_in";
  c.names.attention = "attention";
  c.names.q = "query";
  c.names.k = "key";
  c.names.v = "value";
  c.names.out = "dense";
  c.names.up = "dense_h_to_4h";
  c.names.down = "dense_4h_to_h";
  c.names.last_norm = "final_layer_norm";
  c.names.head = "embed_out";
  const int64_t width = c.heads * c.head_dim;
  form.weights.joined = {{"attention.query_key_value",
                          {"attention.query", "attention.key", "attention.value"},
                          {width, width, width},
                          c.heads}};
  form.prefix = "gpt_neox.";
  return form;
}

}  // namespace trireme::model::hf
