// Llama: embedding, blocks of rotary grouped-query attention and a gated feed-forward layer, norm, head.
#include "model/zoo/llama.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/net.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;
using tensor::Tensor;

constexpr int64_t kMaxPositions = int64_t{1} << 24;  // a table of angles is kept for each

class Llama {
 public:
  explicit Llama(const LlamaConfig& config) : c_(config) {
    // Each of the 2 layers branches adds to the residual stream; this keeps its variance at 1 at the start.
    branch_ = Init::normal(kDeviation / std::sqrt(2.0 * static_cast<double>(c_.layers)));
  }

  ValueId run(const Net& net, ValueId ids) {
    const Net body = net.in("model");
    const ValueId words = body.in("embed_tokens").param("weight", {c_.vocabulary, c_.width}, weight_);
    make_rotation(body, ids);
    ValueId x = body.op("gather", {words, ids}, {{"axis", int64_t{0}}});  // [batch, seq, width]
    for (int64_t i = 0; i < c_.layers; ++i) x = block(body.in("layers").in(i), x);
    x = norm(body.in("norm"), x);
    const Net head = net.in("lm_head");
    const ValueId weight = c_.is_tied ? words : head.param("weight", {c_.vocabulary, c_.width}, weight_);
    return head.op("linear", {x, weight}, {{"transposed", int64_t{1}}});  // [batch, seq, vocabulary]
  }

 private:
  static constexpr double kDeviation = 0.02;

  ValueId norm(const Net& at, ValueId x) const {
    return at.op("rms_norm", {x, at.param("weight", {c_.width}, Init::ones())},
                 {{"epsilon", c_.epsilon}, {"axis", int64_t{-1}}});
  }

  /// Radians per position of channel pair i.
  double frequency(int64_t i) const {
    const double f = std::pow(c_.theta, -2.0 * static_cast<double>(i) / static_cast<double>(c_.head_width()));
    if (c_.rope_factor == 1 || c_.rope_original == 0) return f / c_.rope_factor;
    const double turns =
        static_cast<double>(c_.rope_original) * f / (2 * std::numbers::pi);  // in the first length
    const double kept = std::clamp((turns - c_.rope_low) / (c_.rope_high - c_.rope_low), 0.0, 1.0);
    return (1 - kept) * f / c_.rope_factor + kept * f;
  }

  /// Cosines and sines of every position, and the position of every token.
  void make_rotation(const Net& at, ValueId ids) {
    Builder b = at.in("rotary_emb").builder();
    const int64_t half = c_.head_width() / 2;
    Tensor cosine = Tensor::empty(tensor::DType::f32, {c_.positions, half}), sine = cosine.clone();
    for (int64_t i = 0; i < half; ++i) {
      const double f = frequency(i);
      for (int64_t p = 0; p < c_.positions; ++p) {
        const auto at_element = static_cast<size_t>(p * half + i);
        cosine.mutable_data<float>()[at_element] = static_cast<float>(std::cos(static_cast<double>(p) * f));
        sine.mutable_data<float>()[at_element] = static_cast<float>(std::sin(static_cast<double>(p) * f));
      }
    }
    cosine_ = b.graph().add_constant(std::move(cosine), "rotary.cos");
    sine_ = b.graph().add_constant(std::move(sine), "rotary.sin");
    const ValueId zero = b.graph().add_constant(Tensor::scalar<int64_t>(0));
    const ValueId one = b.graph().add_constant(Tensor::scalar<int64_t>(1));
    const ValueId length = b.op("shape", {ids}, {{"start", int64_t{1}}, {"end", int64_t{2}}});  // [1]
    const ValueId line = b.op("range", {zero, b.op("squeeze", {length}), one});                 // [seq]
    positions_ = b.op("expand", {line, b.op("shape", {ids})});  // [batch, seq]
  }

  /// x [batch, seq, heads * head_dim] -> the same, pairs of channels turned by their position.
  ValueId rotate(const Net& at, ValueId x, int64_t heads) const {
    return at.op("rotary_embedding", {x, cosine_, sine_, positions_}, {{"num_heads", heads}});
  }

  ValueId block(const Net& at, ValueId x) const {
    x = at.op("add", {x, attention(at.in("self_attn"), norm(at.in("input_layernorm"), x))});
    const Net mlp = at.in("mlp");
    const ValueId y = norm(at.in("post_attention_layernorm"), x);
    const LinearSpec wide{.in = c_.width, .out = c_.inner, .init = weight_, .has_bias = false};
    const ValueId gate = mlp.activation(mlp.in("gate_proj").linear(y, wide), "silu");
    const ValueId gated = mlp.op("mul", {gate, mlp.in("up_proj").linear(y, wide)});
    const LinearSpec narrow{.in = c_.inner, .out = c_.width, .init = branch_, .has_bias = false};
    return at.op("add", {x, mlp.in("down_proj").linear(gated, narrow)});
  }

  /// x [batch, seq, width] -> the same.
  ValueId attention(const Net& at, ValueId x) const {
    const int64_t d = c_.head_width();
    const auto project = [&](const char* name, ValueId in, int64_t from, int64_t to, const Init& init) {
      return at.in(name).linear(in, {.in = from, .out = to, .init = init, .has_bias = c_.has_attention_bias});
    };
    const ValueId q = rotate(at, project("q_proj", x, c_.width, c_.heads * d, weight_), c_.heads);
    const ValueId k = rotate(at, project("k_proj", x, c_.width, c_.key_heads() * d, weight_), c_.key_heads());
    const ValueId v = project("v_proj", x, c_.width, c_.key_heads() * d, weight_);
    const AttentionSpec spec{.heads = c_.heads, .kv_heads = c_.key_heads(), .head_dim = d, .is_causal = true};
    const ValueId y = at.attention(q, k, v, ir::kNoValue, spec);
    return project("o_proj", y, c_.heads * d, c_.width, branch_);
  }

  const LlamaConfig& c_;
  Init weight_ = Init::normal(kDeviation), branch_;
  ValueId cosine_ = ir::kNoValue, sine_ = ir::kNoValue;  // [positions, head_dim / 2]
  ValueId positions_ = ir::kNoValue;                     // i64 [batch, seq]
};

}  // namespace

void LlamaConfig::fields(base::OptionList& f) {
  f.add("vocabulary", &vocabulary, "number of tokens").at_least(1);
  f.add("positions", &positions, "longest sequence").at_least(1).at_most(kMaxPositions);
  f.add("width", &width, "channels of the residual stream").at_least(1);
  f.add("layers", &layers, "blocks").at_least(1);
  f.add("heads", &heads, "query heads").at_least(1);
  f.add("kv_heads", &kv_heads, "key and value heads, shared by groups of query heads; 0: as many")
      .at_least(0);
  f.add("head_dim", &head_dim, "channels of a head, even; 0: width / heads").at_least(0);
  f.add("inner", &inner, "width of the feed-forward layer").at_least(1);
  f.add("theta", &theta, "base of the rotary wavelengths").at_least(1);
  f.add("rope_factor", &rope_factor, "stretches the rotary wavelengths").at_least(1);
  f.add("rope_original", &rope_original,
        "sequence length before stretching: short wavelengths stay, as in Llama 3.1; 0: all are stretched")
      .at_least(0);
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
  base::require(c.heads % c.key_heads() == 0, c.heads, " query heads over ", c.key_heads(), " key heads");
  base::require(c.head_width() % 2 == 0, "rotary positions need an even number of channels in a head, not ",
                c.head_width());
  base::require(c.positions <= kMaxPositions, "tables of ", c.positions, " positions; at most ",
                kMaxPositions);
  base::require(c.rope_high > c.rope_low, "rope_high ", c.rope_high, " is not above rope_low ", c.rope_low);
  Model model;
  const ValueId ids = model.graph.add_input("input_ids", token_type());
  const ValueId logits = Llama(c).run(Net(model.graph, params), ids);
  model.config = llama_json(c);
  finish_model(model, "llama", logits, "logits");
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
