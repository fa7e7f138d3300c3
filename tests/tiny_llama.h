// The smallest Llama with all of its parts, of random weights: what tests of decoding and text serving run.
#pragma once

#include "model/zoo/llama.h"

namespace trireme::tests {

inline model::zoo::LlamaConfig tiny_llama_config() {
  model::zoo::LlamaConfig c;
  c.vocabulary = 61;
  c.positions = 96;
  c.width = 32;
  c.layers = 2;
  c.heads = 4;
  c.kv_heads = 2;
  c.inner = 48;
  return c;
}

inline model::Model tiny_llama(const model::zoo::LlamaConfig& config = tiny_llama_config(),
                               uint64_t seed = 9) {
  model::RandomParams params(seed);
  return model::zoo::llama(config, params);
}

}  // namespace trireme::tests
