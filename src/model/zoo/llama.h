// Llama (Touvron et al. 2023): RMS norms, rotary positions, grouped-query attention, gated feed-forward
// layers.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

struct LlamaConfig {
  int64_t vocabulary = 32000, positions = 256;
  int64_t width = 288, layers = 6, heads = 6, kv_heads = 0;
  int64_t head_dim = 0;
  int64_t inner = 768;
  double theta = 10000, epsilon = 1e-5;
  // Longer sequences than were trained on first: wavelengths stretched by rope_factor, all of them, or with
  // rope_original (the first length) as in Llama 3.1: only those above rope_original / rope_low, those
  // between that and rope_original / rope_high in part.
  double rope_factor = 1, rope_low = 1, rope_high = 4;
  int64_t rope_original = 0;
  bool is_tied = true, has_attention_bias = false;

  void fields(base::OptionList& f);
  int64_t key_heads() const { return kv_heads == 0 ? heads : kv_heads; }
  int64_t head_width() const { return head_dim == 0 ? width / heads : head_dim; }
};

/// input_ids i64 [batch, seq] -> logits f32 [batch, seq, vocabulary]: at each position those of the next
/// token. Weights are named as in LlamaForCausalLM of Transformers; channel i of a head turns with channel
/// i + head_dim / 2. Throws invalid_argument if heads, key heads and width do not fit together.
Model llama(const LlamaConfig& config, ParamSource& params);

/// config.json of the same network for Transformers.
base::Json llama_json(const LlamaConfig& config);

}  // namespace trireme::model::zoo
