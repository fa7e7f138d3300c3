// GPT-2: embeddings, blocks of causal attention and a feed-forward layer, a head that shares the embedding.
#include "model/zoo/gpt2.h"

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

class Gpt2 {
 public:
  explicit Gpt2(const Gpt2Config& config) : c_(config) {
    // Two branches per layer add to the residual stream; this deviation keeps its initial variance near 1.
    branch_ = Init::normal(kDeviation / std::sqrt(2.0 * static_cast<double>(c_.layers)));
  }

  ValueId run(const Net& net, ValueId ids) const {
    const Net body = net.in("transformer");
    const ValueId words = body.in("wte").param("weight", {c_.vocabulary, c_.width}, weight_);
    const ValueId places = body.in("wpe").param("weight", {c_.positions, c_.width}, weight_);
    ValueId x = body.op("gather", {words, ids}, {{"axis", int64_t{0}}});  // [batch, seq, width]
    x = body.op("add", {x, leading_rows(body.in("wpe"), places, ids)});
    x = body.dropout(x, c_.dropout);
    for (int64_t i = 0; i < c_.layers; ++i) x = block(body.in("h").in(i), x);
    x = norm(body.in("ln_f"), x);
    const Net head = net.in("lm_head");
    const ValueId weight = c_.is_tied ? words : head.param("weight", {c_.vocabulary, c_.width}, weight_);
    return head.op("linear", {x, weight}, {{"transposed", int64_t{1}}});  // [batch, seq, vocabulary]
  }

 private:
  static constexpr double kDeviation = 0.02;

  ValueId norm(const Net& at, ValueId x) const { return at.layer_norm(x, c_.width, c_.epsilon, c_.has_bias); }

  /// x [..., in] -> [..., out]. GPT-2 stores its matrices as [in, out].
  ValueId project(const Net& at, ValueId x, int64_t in, int64_t out, const Init& init) const {
    std::vector<ValueId> operands{x, at.param("weight", {in, out}, init)};
    if (c_.has_bias) operands.push_back(at.param("bias", {out}, Init::zeros()));
    return at.op("linear", std::move(operands));
  }

  ValueId block(const Net& at, ValueId x) const {
    ValueId y = attention(at.in("attn"), norm(at.in("ln_1"), x));
    x = at.op("add", {x, at.dropout(y, c_.dropout)});
    const Net mlp = at.in("mlp");
    y = project(mlp.in("c_fc"), norm(at.in("ln_2"), x), c_.width, c_.inner_width(), weight_);
    y = project(mlp.in("c_proj"), mlp.activation(y, c_.activation), c_.inner_width(), c_.width, branch_);
    return at.op("add", {x, at.dropout(y, c_.dropout)});
  }

  /// x [batch, seq, width] -> the same; query, key and value are one product.
  ValueId attention(const Net& at, ValueId x) const {
    const ValueId all = project(at.in("c_attn"), x, c_.width, 3 * c_.width, weight_);
    const auto parts =
        at.builder().ops("split", {all}, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}}, 3);
    const AttentionSpec spec{
        .heads = c_.heads, .kv_heads = c_.heads, .head_dim = c_.width / c_.heads, .is_causal = true};
    const ValueId y = at.attention(parts[0], parts[1], parts[2], ir::kNoValue, spec);
    return project(at.in("c_proj"), y, c_.width, c_.width, branch_);
  }

  const Gpt2Config& c_;
  Init weight_ = Init::normal(kDeviation), branch_;
};

}  // namespace

Gpt2Config Gpt2Config::nano() {
  Gpt2Config c;
  c.vocabulary = 65;
  c.positions = 64;
  c.width = 128;
  c.layers = 4;
  c.heads = 4;
  c.activation = "gelu";
  c.has_bias = false;
  return c;
}

void Gpt2Config::fields(base::OptionList& f) {
  f.add("vocabulary", &vocabulary, "number of tokens").at_least(1).at_most(kMostTokens);
  f.add("positions", &positions, "longest sequence").at_least(1).at_most(kMostSequence);
  f.add("width", &width, "channels of the residual stream").at_least(1).at_most(kMostChannels);
  f.add("layers", &layers, "blocks").at_least(1).at_most(kMostLayers);
  f.add("heads", &heads, "attention heads; divides the width").at_least(1).at_most(kMostChannels);
  f.add("inner", &inner, "width of the feed-forward layer; 0: 4 times the width")
      .at_least(0)
      .at_most(kMostInner);
  f.add("activation", &activation, "gelu_new (tanh form), gelu or relu");
  f.add("epsilon", &epsilon, "added to the variance by layer normalisation").at_least(0);
  f.add("dropout", &dropout, "probability to drop an element of the embedding or of a branch's result")
      .at_least(0)
      .at_most(0.95);
  f.add("has_bias", &has_bias, "linear layers and norms have a bias");
  f.add("is_tied", &is_tied, "the head shares the embedding's weights");
}

Model gpt2(const Gpt2Config& config, ParamSource& params) {
  base::require(config.width % config.heads == 0, "width ", config.width, " is no multiple of ", config.heads,
                " heads");
  Model model;
  const ValueId ids = model.graph.add_input("input_ids", token_type());
  const ValueId logits = Gpt2(config).run(Net(model.graph, params), ids);
  model.config = gpt2_json(config);
  finish_model(model, "gpt2", logits, "logits");
  return model;
}

base::Json gpt2_json(const Gpt2Config& c) {
  return base::Json::object({{"architectures", base::Json::array({"GPT2LMHeadModel"})},
                             {"model_type", "gpt2"},
                             {"vocab_size", c.vocabulary},
                             {"n_positions", c.positions},
                             {"n_embd", c.width},
                             {"n_layer", c.layers},
                             {"n_head", c.heads},
                             {"n_inner", c.inner_width()},
                             {"activation_function", c.activation},
                             {"layer_norm_epsilon", c.epsilon},
                             {"embd_pdrop", c.dropout},
                             {"resid_pdrop", c.dropout},
                             {"attn_pdrop", 0.0},
                             {"bos_token_id", nullptr},
                             {"eos_token_id", nullptr},
                             {"tie_word_embeddings", c.is_tied},
                             {"torch_dtype", "float32"}});
}

}  // namespace trireme::model::zoo
