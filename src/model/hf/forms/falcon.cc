// Falcon (Almazrouei et al. 2023): layer norms, parallel branches, one matrix for queries, keys and values,
// in which the rows of each key head are adjacent.
#include "model/hf/forms/forms.h"

namespace trireme::model::hf {

Form falcon_form(ConfigReader& in) {
  SizeKeys keys;
  keys.kv_heads = "num_kv_heads";
  Form form{.decoder = read_sizes(in, keys)};
  zoo::DecoderConfig& c = form.decoder;
  const bool is_new = in.flag("new_decoder_architecture", false);
  if (!is_new) c.kv_heads = in.flag("multi_query", true) ? 1 : c.heads;
  c.inner = in.positive("ffn_hidden_size", 4 * c.width);
  c.norm = zoo::NormKind::layer;
  c.mlp = zoo::MlpKind::plain;
  c.activation = in.text("activation", "gelu");
  c.epsilon = in.number("layer_norm_epsilon", 1e-5);
  c.is_tied = in.flag("tie_word_embeddings", true);
  c.has_qkv_bias = c.has_out_bias = c.has_mlp_bias = in.flag("bias", false);
  const bool is_parallel = in.flag("parallel_attn", true) || is_new;
  const int64_t norms = in.positive("num_ln_in_parallel_attn", is_new ? 2 : 1);
  c.block = !is_parallel ? zoo::BlockKind::before
            : norms == 2 ? zoo::BlockKind::parallel
                         : zoo::BlockKind::shared;
  read_rotary(in, c);
  in.only("alibi", false);
  in.ignore({"multi_query"});
  zoo::DecoderNames& n = c.names;
  n.body = "transformer";
  n.embedding = "word_embeddings";
  n.layers = "h";
  n.attention = "self_attention";
  n.q = "query";
  n.k = "key";
  n.v = "value";
  n.out = "dense";
  n.up = "dense_h_to_4h";
  n.down = "dense_4h_to_h";
  n.last_norm = "ln_f";
  if (c.block == zoo::BlockKind::parallel) {
    n.norm_before_attention = "ln_attn";
    n.norm_before_mlp = "ln_mlp";
  }
  const int64_t kv = c.kv_heads * c.head_dim;
  form.weights.joined = {{"self_attention.query_key_value",
                          {"self_attention.query", "self_attention.key", "self_attention.value"},
                          {c.heads * c.head_dim, kv, kv},
                          c.kv_heads}};
  form.prefix = "transformer.";
  return form;
}

}  // namespace trireme::model::hf
