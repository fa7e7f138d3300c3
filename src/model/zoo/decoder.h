// Decoders: language models of one family, each a description of norms, positions, attention and feed-forward
// layers that one builder makes a graph of.
#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "model/params.h"
#include "model/zoo/rotary.h"

namespace trireme::model::zoo {

enum class NormKind {
  rms,         ///< x / rms(x) * w
  rms_offset,  ///< x / rms(x) * (1 + w), as Gemma stores its weights
  layer,       ///< layer normalisation with a bias
};

/// Where a block normalises: N norm, A attention, F feed-forward layer.
enum class BlockKind {
  before,    ///< x += A(N(x)), x += F(N(x))
  around,    ///< x += N(A(N(x))), x += N(F(N(x)))
  after,     ///< x += N(A(x)), x += N(F(x))
  parallel,  ///< x += A(N(x)) + F(N'(x))
  shared,    ///< x += A(N(x)) + F(N(x)), by one norm
};

enum class MlpKind {
  gated,  ///< down(act(gate(x)) * up(x))
  plain,  ///< down(act(up(x)))
};

/// Names of the places in the graph, by which weights are asked for. An empty one is the place around it.
struct DecoderNames {
  std::string body = "model", embedding = "embed_tokens", positions = "embed_positions", layers = "layers";
  std::string attention = "self_attn", q = "q_proj", k = "k_proj", v = "v_proj", out = "o_proj";
  std::string q_norm = "q_norm", k_norm = "k_norm", sinks = "sinks";
  std::string mlp = "mlp", gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string router = "gate", experts = "experts";
  std::string shared_expert = "shared_expert", shared_router = "shared_expert_gate";
  std::string shared_gate = "gate_proj", shared_up = "up_proj", shared_down = "down_proj";
  std::string expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
  std::string norm_before_attention = "input_layernorm", norm_after_attention = "post_attention_layernorm";
  std::string norm_before_mlp = "post_attention_layernorm", norm_after_mlp = "post_feedforward_layernorm";
  std::string last_norm = "norm", head = "lm_head";
};

/// What may differ from layer to layer.
struct DecoderLayer {
  int64_t window = 0;        ///< keys that a query sees, its own among them; 0: all before it
  size_t rotary = 0;         ///< which of the decoder's rotary positions
  bool has_experts = false;  ///< the feed-forward layer is a choice among experts
};

/// A mixture of experts: each token goes through the `chosen` ones of the largest probability.
struct ExpertSpec {
  int64_t count = 0, chosen = 0;
  int64_t inner = 0;          ///< width of an expert
  bool is_normalized = true;  ///< weights of the chosen ones sum to 1
  bool has_bias = false;      ///< of the router and of every expert
  double clamp = 0;           ///< above 0: min(g, c) sigmoid(slope min(g, c)) (1 + u in [-c, c]) is the gate
  double slope = 1.702;
  int64_t shared_inner = 0;  ///< above 0: one more expert of this width for every token, by a gate of its own
};

struct DecoderConfig {
  std::string name = "decoder";
  int64_t vocabulary = 0, positions = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, inner = 0;
  std::vector<DecoderLayer> layers;
  NormKind norm = NormKind::rms;
  BlockKind block = BlockKind::before;
  MlpKind mlp = MlpKind::gated;
  ExpertSpec experts;
  std::string activation = "silu";
  double epsilon = 1e-5;
  /// Rotary positions; empty: learned ones are added to the embedding.
  std::vector<RotarySpec> rotary{RotarySpec{}};
  int64_t position_offset = 0;  ///< of learned positions: rows of their table before that of the first token
  int64_t rotated = 0;          ///< channels of a head that rotate; 0: all
  bool is_interleaved = false;  ///< pairs are neighbouring channels, else halves
  bool has_qkv_bias = false, has_out_bias = false, has_mlp_bias = false;
  bool has_head_norms = false;          ///< queries and keys are normalised by head, RMS, before they rotate
  bool has_whole_norms = false;         ///< they are normalised over all their heads at once
  bool has_sinks = false;               ///< each head has a score of a key that is not there
  bool has_norm_bias = true;            ///< of layer norms
  bool has_head_bias = false;           ///< of the scores of words
  double query_scale = 0;               ///< of the scores; 0: 1 / sqrt(head_dim)
  double score_cap = 0, logit_cap = 0;  ///< s becomes cap tanh(s / cap); 0: off
  double embedding_scale = 1, logit_scale = 1;
  double residual_scale = 1;  ///< of what a branch adds
  bool is_tied = true;        ///< the head shares the embedding's weights
  DecoderNames names;
};

/// input_ids i64 [batch, seq] -> logits f32 [batch, seq, vocabulary]: at each position those of the next
/// token. The same graph trains, decodes with pages (passes/decode) and is split over ranks. Weights are
/// named by DecoderNames; linear ones [out, in]. Throws invalid_argument if heads, key heads and channels do
/// not fit.
Model decoder(const DecoderConfig& config, ParamSource& params);

/// Throws invalid_argument if the tables of positions would be far larger than the embedding, whose extents
/// the weights of a file must have: what a small file asks for stays small.
void check_tables(const DecoderConfig& config);

}  // namespace trireme::model::zoo
