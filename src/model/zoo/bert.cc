// BERT: embeddings, blocks of attention and a feed-forward layer with a norm after each, and a head.
#include "model/zoo/bert.h"

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

class Bert {
 public:
  explicit Bert(const BertConfig& config) : c_(config) {}

  /// ids, types i64 [batch, seq] (types may be kNoValue), mask i64 [batch, seq] -> [batch, seq, width].
  ValueId encode(const Net& net, ValueId ids, ValueId types, ValueId mask) {
    ValueId x = embed(net.in("embeddings"), ids, types);
    for (int64_t i = 0; i < c_.layers; ++i) x = block(net.in("encoder.layer").in(i), x, mask);
    return x;
  }

  /// x [batch, seq, width] -> logits [batch, seq, vocabulary], with the weights of the embedding if tied.
  ValueId masked_lm(const Net& net, ValueId x) const {
    const Net at = net.in("cls.predictions"), change = at.in("transform");
    x = linear(change.in("dense"), x, c_.width, c_.width);
    x = norm(change.in("LayerNorm"), change.activation(x, c_.activation));
    const Net own = at.in("decoder");  // its bias, too, is its own where nothing is tied
    const ValueId weight = c_.is_tied ? words_ : own.param("weight", {c_.vocabulary, c_.width}, weight_);
    const ValueId bias = (c_.is_tied ? at : own).param("bias", {c_.vocabulary}, Init::zeros());
    return at.op("linear", {x, weight, bias}, {{"transposed", int64_t{1}}});
  }

  /// x [batch, seq, width] -> logits [batch, classes] from the first token.
  ValueId classify(const Net& net, const Net& body, ValueId x) const {
    Builder b = net.builder();
    const ValueId first = b.reshape(b.op("slice", {x, b.ints({0}), b.ints({1}), b.ints({1})}), {0, c_.width});
    const Net pooler = body.in("pooler");
    const ValueId pooled = pooler.op("tanh", {linear(pooler.in("dense"), first, c_.width, c_.width)});
    return linear(net.in("classifier"), net.dropout(pooled, c_.dropout), c_.width, c_.classes);
  }

 private:
  ValueId norm(const Net& at, ValueId x) const { return at.layer_norm(x, c_.width, c_.epsilon); }

  ValueId linear(const Net& at, ValueId x, int64_t in, int64_t out) const {
    return at.linear(x, {.in = in, .out = out, .init = weight_});
  }

  /// The normalised sum of word, position and type vectors -> [batch, seq, width].
  ValueId embed(const Net& at, ValueId ids, ValueId types) {
    Builder b = at.builder();
    words_ = at.in("word_embeddings").param("weight", {c_.vocabulary, c_.width}, weight_);
    const ValueId positions = at.in("position_embeddings").param("weight", {c_.positions, c_.width}, weight_);
    const ValueId table = at.in("token_type_embeddings").param("weight", {c_.token_types, c_.width}, weight_);
    const ValueId type = types == ir::kNoValue
                             ? b.op("slice", {table, b.ints({0}), b.ints({1}), b.ints({0})})  // [1, width]
                             : b.op("gather", {table, types}, {{"axis", int64_t{0}}});
    const ValueId place = b.op("add", {leading_rows(at, positions, ids), type});
    ir::Attrs attrs{{"axis", int64_t{0}}};
    if (c_.padding >= 0) attrs.set("padding_idx", c_.padding);
    const ValueId x = b.op("gather", {words_, ids}, attrs);  // [batch, seq, width]
    return at.dropout(norm(at.in("LayerNorm"), b.op("add", {x, place})), c_.dropout);
  }

  /// layer_norm(x + y), which ends both halves of a block.
  ValueId add_norm(const Net& at, ValueId x, ValueId y) const {
    const ValueId scale = at.param("weight", {c_.width}, Init::ones());
    const ValueId shift = at.param("bias", {c_.width}, Init::zeros());
    return at.op("add_layer_norm", {at.dropout(y, c_.dropout), x, scale, shift}, {{"epsilon", c_.epsilon}});
  }

  ValueId block(const Net& at, ValueId x, ValueId mask) const {
    const ValueId context = attention(at.in("attention.self"), x, mask);
    const Net out = at.in("attention.output");
    x = add_norm(out.in("LayerNorm"), x, linear(out.in("dense"), context, c_.width, c_.width));
    ValueId y = linear(at.in("intermediate.dense"), x, c_.width, c_.inner_width());
    y = linear(at.in("output.dense"), at.activation(y, c_.activation), c_.inner_width(), c_.width);
    return add_norm(at.in("output.LayerNorm"), x, y);
  }

  /// x [batch, seq, width] -> the same. Query, key and value are one product with stacked weights.
  ValueId attention(const Net& at, ValueId x, ValueId mask) const {
    const ValueId all = linear(at.in("qkv"), x, c_.width, 3 * c_.width);
    const auto qkv =
        at.builder().ops("split", {all}, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}}, 3);
    const AttentionSpec spec{.heads = c_.heads, .kv_heads = c_.heads, .head_dim = c_.width / c_.heads};
    return at.attention(qkv[0], qkv[1], qkv[2], mask, spec);
  }

  const BertConfig& c_;
  Init weight_ = Init::normal(0.02);
  ValueId words_ = ir::kNoValue;  // [vocabulary, width]
};

}  // namespace

void BertConfig::fields(base::OptionList& f) {
  f.add("vocabulary", &vocabulary, "number of tokens").at_least(1).at_most(kMostTokens);
  f.add("positions", &positions, "longest sequence").at_least(1).at_most(kMostSequence);
  f.add("token_types", &token_types, "kinds of segments").at_least(1).at_most(kMostClasses);
  f.add("width", &width, "channels of the residual stream").at_least(1).at_most(kMostChannels);
  f.add("layers", &layers, "blocks").at_least(1).at_most(kMostLayers);
  f.add("heads", &heads, "attention heads; divides the width").at_least(1).at_most(kMostChannels);
  f.add("inner", &inner, "width of the feed-forward layer; 0: 4 times the width")
      .at_least(0)
      .at_most(kMostInner);
  f.add("activation", &activation, "gelu, gelu_new (tanh form) or relu");
  f.add("epsilon", &epsilon, "added to the variance by layer normalisation").at_least(0);
  f.add("dropout", &dropout, "probability to drop an element of the embedding or of a branch's result")
      .at_least(0)
      .at_most(0.95);
  f.add_choice("head", &head, {"none", "masked_lm", "classification"}, "what follows the encoder");
  f.add("is_tied", &is_tied, "the head for masked tokens shares the embedding's weights");
  f.add("classes", &classes, "classes of the classification head").at_least(1).at_most(kMostClasses);
  f.add("padding", &padding, "id of the padding token, whose embedding is not trained; -1: none")
      .at_least(-1)
      .at_most(kMostTokens);
  f.add("has_token_types", &has_token_types, "adds the input token_type_ids; else every token is of type 0");
}

Model bert(const BertConfig& c, ParamSource& params) {
  base::require(c.width % c.heads == 0, "width ", c.width, " is no multiple of ", c.heads, " heads");
  Model model;
  ir::Graph& g = model.graph;
  const ValueId ids = g.add_input("input_ids", token_type()),
                mask = g.add_input("attention_mask", token_type());
  const ValueId types = c.has_token_types ? g.add_input("token_type_ids", token_type()) : ir::kNoValue;
  const Net net(g, params);
  const Net body = c.head == BertHead::none ? net : net.in("bert");
  Bert bert(c);
  ValueId y = bert.encode(body, ids, types, mask);
  if (c.head == BertHead::masked_lm) y = bert.masked_lm(net, y);
  if (c.head == BertHead::classification) y = bert.classify(net, body, y);
  model.config = bert_json(c);
  finish_model(model, "bert", y, c.head == BertHead::none ? "last_hidden_state" : "logits");
  return model;
}

base::Json bert_json(const BertConfig& c) {
  const char* kArchitectures[] = {"BertModel", "BertForMaskedLM", "BertForSequenceClassification"};
  base::Json json =
      base::Json::object({{"architectures", base::Json::array({kArchitectures[static_cast<size_t>(c.head)]})},
                          {"model_type", "bert"},
                          {"vocab_size", c.vocabulary},
                          {"max_position_embeddings", c.positions},
                          {"type_vocab_size", c.token_types},
                          {"hidden_size", c.width},
                          {"num_hidden_layers", c.layers},
                          {"num_attention_heads", c.heads},
                          {"intermediate_size", c.inner_width()},
                          {"hidden_act", c.activation},
                          {"layer_norm_eps", c.epsilon},
                          {"pad_token_id", c.padding < 0 ? base::Json() : base::Json(c.padding)},
                          {"hidden_dropout_prob", c.dropout},
                          {"attention_probs_dropout_prob", 0.0},
                          {"tie_word_embeddings", c.is_tied},
                          {"torch_dtype", "float32"}});
  if (c.head == BertHead::classification) {
    base::Json names = base::Json::object(),
               ids = base::Json::object();  // Transformers derives the number of classes from these names
    for (int64_t i = 0; i < c.classes; ++i) {
      names.set(std::to_string(i), base::concat("LABEL_", i));
      ids.set(base::concat("LABEL_", i), i);
    }
    json.set("id2label", std::move(names));
    json.set("label2id", std::move(ids));
  }
  return json;
}

}  // namespace trireme::model::zoo
