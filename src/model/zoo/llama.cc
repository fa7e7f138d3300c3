// Llama: a decoder with RMS norms before the branches, rotary positions and gated feed-forward layers.
#include "model/zoo/llama.h"

#include "model/zoo/decoder.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {
namespace {

/// Describes Llama as a decoder.
DecoderConfig decoder_of(const LlamaConfig& c) {
  DecoderConfig d{.name = "llama",
                  .vocabulary = c.vocabulary,
                  .positions = c.positions,
                  .width = c.width,
                  .heads = c.heads,
                  .kv_heads = c.key_heads(),
                  .head_dim = c.head_width(),
                  .inner = c.inner};
  d.layers.resize(static_cast<size_t>(c.layers));
  d.epsilon = c.epsilon;
  d.is_tied = c.is_tied;
  d.has_qkv_bias = d.has_out_bias = c.has_attention_bias;
  RotarySpec& r = d.rotary[0];
  r.theta = c.theta;
  r.factor = c.rope_factor;
  r.low = c.rope_low;
  r.high = c.rope_high;
  r.original = c.rope_original;
  if (c.rope_factor != 1) r.kind = c.rope_original == 0 ? RotaryKind::linear : RotaryKind::llama3;
  return d;
}

}  // namespace

void LlamaConfig::fields(base::OptionList& f) {
  f.add("vocabulary", &vocabulary, "number of tokens").at_least(1).at_most(kMostTokens);
  f.add("positions", &positions, "longest sequence").at_least(1).at_most(kMaxPositions);
  f.add("width", &width, "channels of the residual stream").at_least(1).at_most(kMostChannels);
  f.add("layers", &layers, "blocks").at_least(1).at_most(kMostLayers);
  f.add("heads", &heads, "query heads").at_least(1).at_most(kMostChannels);
  f.add("kv_heads", &kv_heads, "key and value heads, shared by groups of query heads; 0: as many")
      .at_least(0)
      .at_most(kMostChannels);
  f.add("head_dim", &head_dim, "channels of a head, even; 0: width / heads")
      .at_least(0)
      .at_most(kMostChannels);
  f.add("inner", &inner, "width of the feed-forward layer").at_least(1).at_most(kMostInner);
  f.add("theta", &theta, "base of the rotary wavelengths").at_least(1);
  f.add("rope_factor", &rope_factor, "stretches the rotary wavelengths").at_least(1);
  f.add("rope_original", &rope_original,
        "sequence length before stretching: short wavelengths stay, as in Llama 3.1; 0: all are stretched")
      .at_least(0)
      .at_most(kMaxPositions);
  f.add("rope_low", &rope_low, "wavelengths of fewer turns in rope_original are stretched in full")
      .at_least(0);
  f.add("rope_high", &rope_high, "wavelengths of more turns in rope_original stay; above rope_low")
      .at_least(0);
  f.add("epsilon", &epsilon, "added to the mean square by RMS normalisation").at_least(0);
  f.add("is_tied", &is_tied, "the head shares the embedding's weights");
  f.add("has_attention_bias", &has_attention_bias, "the projections of attention have a bias");
}

Model llama(const LlamaConfig& c, ParamSource& params) {
  base::require(c.head_dim > 0 || c.width % c.heads == 0, "width ", c.width, " is no multiple of ", c.heads,
                " heads");
  Model model = decoder(decoder_of(c), params);
  model.config = llama_json(c);
  return model;
}

base::Json llama_json(const LlamaConfig& c) {
  const bool is_plain = c.rope_factor == 1, is_linear = c.rope_original == 0;
  base::Json rope = base::Json::object({{"rope_type", is_plain    ? "default"
                                                      : is_linear ? "linear"
                                                                  : "llama3"},
                                        {"rope_theta", c.theta}});
  if (!is_plain) rope.set("factor", c.rope_factor);
  if (!is_plain && !is_linear) {
    rope.set("low_freq_factor", c.rope_low);
    rope.set("high_freq_factor", c.rope_high);
    rope.set("original_max_position_embeddings", c.rope_original);
  }
  return base::Json::object({{"architectures", base::Json::array({"LlamaForCausalLM"})},
                             {"model_type", "llama"},
                             {"vocab_size", c.vocabulary},
                             {"max_position_embeddings", c.positions},
                             {"hidden_size", c.width},
                             {"num_hidden_layers", c.layers},
                             {"num_attention_heads", c.heads},
                             {"num_key_value_heads", c.key_heads()},
                             {"head_dim", c.head_width()},
                             {"intermediate_size", c.inner},
                             {"hidden_act", "silu"},
                             {"rms_norm_eps", c.epsilon},
                             {"rope_theta", c.theta},
                             {"rope_parameters", rope},
                             {"attention_bias", c.has_attention_bias},
                             {"mlp_bias", false},
                             {"bos_token_id", nullptr},
                             {"eos_token_id", nullptr},
                             {"tie_word_embeddings", c.is_tied},
                             {"torch_dtype", "float32"}});
}

}  // namespace trireme::model::zoo
