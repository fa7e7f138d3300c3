// GPT-2 (Radford et al. 2019): a causal transformer with learned positions and norms before each branch.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

struct Gpt2Config {
  int64_t vocabulary = 50257, positions = 1024;
  int64_t width = 768, layers = 12, heads = 12;
  int64_t inner = 0;
  std::string activation = "gelu_new";
  double epsilon = 1e-5, dropout = 0;
  bool has_bias = true, is_tied = true;

  /// nanoGPT's character model with its settings for a CPU.
  static Gpt2Config nano();
  void fields(base::OptionList& f);
  int64_t inner_width() const { return inner == 0 ? 4 * width : inner; }
};

/// input_ids i64 [batch, seq] -> logits f32 [batch, seq, vocabulary]: at each position those of the next
/// token. Weights are named as in GPT2LMHeadModel of Transformers. Throws invalid_argument unless the heads
/// divide the width.
Model gpt2(const Gpt2Config& config, ParamSource& params);

/// config.json of the same network for Transformers.
base::Json gpt2_json(const Gpt2Config& config);

}  // namespace trireme::model::zoo
