// Decoders: embedding, blocks of attention and feed-forward layers as described by the config, norm, head.
#include "model/zoo/decoder.h"

#include <algorithm>
#include <cmath>

#include "model/net.h"
#include "model/zoo/experts.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

constexpr double kDeviation = 0.02;

/// The cosines and sines of one kind of rotary positions: [positions, rotated / 2].
struct Rotation {
  ValueId cosine, sine;
};

class Decoder {
 public:
  explicit Decoder(const DecoderConfig& config) : c_(config), n_(config.names) {
    // Two branches per layer add to the residual stream; this deviation keeps its initial variance near 1.
    branch_ = Init::normal(kDeviation / std::sqrt(2.0 * static_cast<double>(c_.layers.size())));
  }

  ValueId run(const Net& net, ValueId ids) {
    const Net body = net.in(n_.body);
    const ValueId words = body.in(n_.embedding).param("weight", {c_.vocabulary, c_.width}, weight_);
    if (!c_.rotary.empty()) make_rotations(body, ids);
    ValueId x = body.op("gather", {words, ids}, {{"axis", int64_t{0}}});  // [batch, seq, width]
    x = scaled(body, x, c_.embedding_scale);
    if (c_.rotary.empty()) x = body.op("add", {x, learned_positions(body, ids)});
    for (size_t i = 0; i < c_.layers.size(); ++i)
      x = block(body.in(n_.layers).in(static_cast<int64_t>(i)), c_.layers[i], x);
    x = norm(body.in(n_.last_norm), x, c_.width);
    const Net head = net.in(n_.head);
    const ValueId weight = c_.is_tied ? words : head.param("weight", {c_.vocabulary, c_.width}, weight_);
    std::vector<ValueId> in{x, weight};
    if (c_.has_head_bias) in.push_back(head.param("bias", {c_.vocabulary}, Init::zeros()));
    const ValueId logits = head.op("linear", std::move(in), {{"transposed", int64_t{1}}});
    return capped(head, scaled(head, logits, c_.logit_scale), c_.logit_cap);  // [batch, seq, vocabulary]
  }

 private:
  static ValueId scaled(const Net& at, ValueId x, double factor) {
    return factor == 1 ? x : at.op("mul", {x, at.builder().scalar(static_cast<float>(factor))});
  }

  static ValueId capped(const Net& at, ValueId x, double cap) {
    return cap == 0 ? x : scaled(at, at.op("tanh", {scaled(at, x, 1 / cap)}), cap);
  }

  ValueId rms_norm(const Net& at, ValueId x, int64_t width) const {
    ValueId weight = ir::kNoValue;
    if (c_.norm == NormKind::rms_offset) {
      weight = at.op("add", {at.param("weight", {width}, Init::zeros()), at.builder().scalar(1)});
    } else {
      weight = at.param("weight", {width}, Init::ones());
    }
    return at.op("rms_norm", {x, weight}, {{"epsilon", c_.epsilon}, {"axis", int64_t{-1}}});
  }

  ValueId norm(const Net& at, ValueId x, int64_t width) const {
    if (c_.norm == NormKind::layer) return at.layer_norm(x, width, c_.epsilon, c_.has_norm_bias);
    return rms_norm(at, x, width);
  }

  ValueId learned_positions(const Net& at, ValueId ids) const {
    const Net table = at.in(n_.positions);
    const int64_t rows = c_.positions + c_.position_offset;
    return leading_rows(table, table.param("weight", {rows, c_.width}, weight_), ids, c_.position_offset);
  }

  int64_t rotated() const { return c_.rotated == 0 ? c_.head_dim : c_.rotated; }

  /// Creates the cosines and sines of every position, and the position of every token.
  void make_rotations(const Net& at, ValueId ids) {
    Builder b = at.in("rotary_emb").builder();
    for (size_t i = 0; i < c_.rotary.size(); ++i) {
      RotaryTables t = rotary_tables(c_.rotary[i], c_.positions, rotated());
      const std::string name = i == 0 ? "rotary" : base::concat("rotary.", i);
      rotations_.push_back({b.graph().add_constant(std::move(t.cosine), name + ".cos"),
                            b.graph().add_constant(std::move(t.sine), name + ".sin")});
    }
    const ValueId zero = b.graph().add_constant(tensor::Tensor::scalar<int64_t>(0));
    const ValueId one = b.graph().add_constant(tensor::Tensor::scalar<int64_t>(1));
    const ValueId length = b.op("shape", {ids}, {{"start", int64_t{1}}, {"end", int64_t{2}}});  // [1]
    const ValueId line = b.op("range", {zero, b.op("squeeze", {length}), one});                 // [seq]
    positions_ = b.op("expand", {line, b.op("shape", {ids})});  // [batch, seq]
  }

  /// x [batch, seq, heads * head_dim] -> the same; pairs of channels are rotated according to their position.
  ValueId rotate(const Net& at, ValueId x, int64_t heads, const DecoderLayer& layer) const {
    if (rotations_.empty()) return x;
    const Rotation& r = rotations_[layer.rotary];
    ir::Attrs attrs{{"num_heads", heads}};
    if (rotated() != c_.head_dim) attrs.set("rotary_embedding_dim", rotated());
    if (c_.is_interleaved) attrs.set("interleaved", int64_t{1});
    return at.op("rotary_embedding", {x, r.cosine, r.sine, positions_}, std::move(attrs));
  }

  ValueId block(const Net& at, const DecoderLayer& layer, ValueId x) const {
    const auto normed = [&](const std::string& name, ValueId v) { return norm(at.in(name), v, c_.width); };
    const bool is_after = c_.block == BlockKind::after,
               ends_normed = is_after || c_.block == BlockKind::around;
    const ValueId before = is_after ? x : normed(n_.norm_before_attention, x);
    ValueId y = attention(at.in(n_.attention), layer, before);
    if (c_.block == BlockKind::parallel || c_.block == BlockKind::shared) {
      const ValueId own = c_.block == BlockKind::shared ? before : normed(n_.norm_before_mlp, x);
      const ValueId z = feed_forward(at.in(n_.mlp), layer, own);
      return at.op("add", {scaled(at, at.op("add", {z, y}), c_.residual_scale), x});
    }
    if (ends_normed) y = normed(n_.norm_after_attention, y);
    x = at.op("add", {x, scaled(at, y, c_.residual_scale)});
    y = feed_forward(at.in(n_.mlp), layer, is_after ? x : normed(n_.norm_before_mlp, x));
    if (ends_normed) y = normed(n_.norm_after_mlp, y);
    return at.op("add", {x, scaled(at, y, c_.residual_scale)});
  }

  /// x [batch, seq, width] -> the same.
  ValueId feed_forward(const Net& at, const DecoderLayer& layer, ValueId x) const {
    if (layer.has_experts) {
      return mixture(at, x,
                     {.experts = c_.experts,
                      .width = c_.width,
                      .activation = c_.activation,
                      .names = n_,
                      .weight = weight_,
                      .branch = branch_});
    }
    const LinearSpec wide{.in = c_.width, .out = c_.inner, .init = weight_, .has_bias = c_.has_mlp_bias};
    const LinearSpec narrow{.in = c_.inner, .out = c_.width, .init = branch_, .has_bias = c_.has_mlp_bias};
    ValueId y = ir::kNoValue;
    if (c_.mlp == MlpKind::gated) {
      const ValueId gate = at.activation(at.in(n_.gate).linear(x, wide), c_.activation);
      y = at.op("mul", {gate, at.in(n_.up).linear(x, wide)});
    } else {
      y = at.activation(at.in(n_.up).linear(x, wide), c_.activation);
    }
    return at.in(n_.down).linear(y, narrow);
  }

  /// x [batch, seq, width] -> the same.
  ValueId attention(const Net& at, const DecoderLayer& layer, ValueId x) const {
    const int64_t d = c_.head_dim;
    const auto project = [&](const std::string& name, int64_t heads) {
      const LinearSpec spec{.in = c_.width, .out = heads * d, .init = weight_, .has_bias = c_.has_qkv_bias};
      return at.in(name).linear(x, spec);
    };
    const auto place = [&](const std::string& name, ValueId y, int64_t heads) {
      if (c_.has_head_norms) y = by_head(at.in(name), y, heads);
      if (c_.has_whole_norms) y = rms_norm(at.in(name), y, heads * d);
      return rotate(at, y, heads, layer);
    };
    const ValueId q = place(n_.q_norm, project(n_.q, c_.heads), c_.heads);
    const ValueId k = place(n_.k_norm, project(n_.k, c_.kv_heads), c_.kv_heads);
    const ValueId v = project(n_.v, c_.kv_heads);
    const ValueId sinks = c_.has_sinks ? at.param(n_.sinks, {c_.heads}, Init::zeros()) : ir::kNoValue;
    const AttentionSpec spec{.heads = c_.heads,
                             .kv_heads = c_.kv_heads,
                             .head_dim = d,
                             .is_causal = true,
                             .window = layer.window,
                             .scale = c_.query_scale,
                             .softcap = c_.score_cap,
                             .sinks = sinks};
    const ValueId y = at.attention(q, k, v, ir::kNoValue, spec);
    return at.in(n_.out).linear(
        y, {.in = c_.heads * d, .out = c_.width, .init = branch_, .has_bias = c_.has_out_bias});
  }

  /// x [batch, seq, heads * head_dim] -> the same, each head normalised.
  ValueId by_head(const Net& at, ValueId x, int64_t heads) const {
    Builder b = at.builder();
    const ValueId y = rms_norm(at, b.reshape(x, {0, 0, heads, c_.head_dim}), c_.head_dim);
    return b.reshape(y, {0, 0, heads * c_.head_dim});
  }

  const DecoderConfig& c_;
  const DecoderNames& n_;
  Init weight_ = Init::normal(kDeviation), branch_;
  std::vector<Rotation> rotations_;
  ValueId positions_ = ir::kNoValue;  // i64 [batch, seq]
};

void check(const DecoderConfig& c) {
  base::require(c.heads > 0 && c.kv_heads > 0 && c.heads % c.kv_heads == 0, c.heads, " query heads over ",
                c.kv_heads, " key heads");
  const int64_t rotated = c.rotated == 0 ? c.head_dim : c.rotated;
  base::require(rotated % 2 == 0 && rotated <= c.head_dim, "rotary positions of ", rotated, " of ",
                c.head_dim, " channels of a head; an even number is needed");
  base::require(c.positions <= kMaxPositions, "tables of ", c.positions, " positions; at most ",
                kMaxPositions);
  base::require(c.positions * rotated <= kMaxAngles, "tables of ", c.positions, " positions of ", rotated,
                " channels; at most ", kMaxAngles, " angles");
  for (const RotarySpec& r : c.rotary)
    base::require(r.high > r.low, "rope_high ", r.high, " is not above rope_low ", r.low);
  for (const DecoderLayer& layer : c.layers) {
    base::require(layer.rotary < std::max<size_t>(1, c.rotary.size()), "a layer has rotary positions ",
                  layer.rotary, " of ", c.rotary.size());
  }
}

}  // namespace

void check_tables(const DecoderConfig& c) {
  constexpr int64_t kFree = int64_t{1} << 24;  // 64 MiB of cosines and sines
  const int64_t rotated = c.rotated == 0 ? c.head_dim : c.rotated;
  const double allowed = 4 * static_cast<double>(c.vocabulary) * static_cast<double>(c.width);
  const double angles = static_cast<double>(c.positions) * static_cast<double>(rotated);
  base::require(c.rotary.empty() || angles <= std::max(static_cast<double>(kFree), allowed), "tables of ",
                c.positions, " positions of ", rotated, " channels beside an embedding of ", c.vocabulary,
                " rows of ", c.width);
}

Model decoder(const DecoderConfig& c, ParamSource& params) {
  check(c);
  Model model;
  const ValueId ids = model.graph.add_input("input_ids", token_type());
  const ValueId logits = Decoder(c).run(Net(model.graph, params), ids);
  finish_model(model, c.name, logits, "logits");
  return model;
}

}  // namespace trireme::model::zoo
