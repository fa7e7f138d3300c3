// Vision transformer: patch embedding, blocks of attention and a feed-forward layer, and a head on the class
// token.
#include "model/zoo/vit.h"

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

class Vit {
 public:
  explicit Vit(const VitConfig& config) : c_(config), weight_(Init::normal(config.deviation)) {}

  ValueId run(const Net& net, ValueId image) const {
    const Net body = net.in("vit");
    ValueId x = embed(body.in("embeddings"), image);  // [batch, 1 + patches, width]
    for (int64_t i = 0; i < c_.layers; ++i) x = block(body.in("encoder.layer").in(i), x);
    // Only the class token is read: after the last block, the layers work on one row per image.
    Builder b = body.builder();
    x = b.reshape(b.op("slice", {x, b.ints({0}), b.ints({1}), b.ints({1})}), {0, c_.width});
    return linear(net.in("classifier"), norm(body.in("layernorm"), x), c_.width, c_.classes);
  }

 private:
  ValueId norm(const Net& at, ValueId x) const { return at.layer_norm(x, c_.width, c_.epsilon); }

  ValueId linear(const Net& at, ValueId x, int64_t in, int64_t out) const {
    return at.linear(x, {.in = in, .out = out, .init = weight_});
  }

  /// One product per patch with the same matrix, a class token in front, and added positions.
  ValueId embed(const Net& at, ValueId image) const {
    Builder b = at.builder();
    const ConvSpec spec{
        .in = c_.channels, .out = c_.width, .kernel = c_.patch, .stride = c_.patch, .is_padded = false};
    ValueId x =
        at.in("patch_embeddings.projection").conv(image, spec, weight_, true);  // [batch, width, h, w]
    x = b.reshape(b.transpose(x, {0, 2, 3, 1}), {0, c_.patches(), c_.width});   // [batch, patches, width]
    const ValueId token = at.param("cls_token", {1, 1, c_.width}, weight_);
    const ValueId batch = b.op("shape", {image}, {{"start", int64_t{0}}, {"end", int64_t{1}}});  // [1]
    const ValueId shape = b.op("concat", {batch, b.ints({1, c_.width})}, {{"axis", int64_t{0}}});
    x = b.op("concat", {b.op("expand", {token, shape}), x}, {{"axis", int64_t{1}}});
    const ValueId places = at.param("position_embeddings", {1, 1 + c_.patches(), c_.width}, weight_);
    return at.dropout(b.op("add", {x, places}), c_.dropout);
  }

  ValueId block(const Net& at, ValueId x) const {
    ValueId y = attention(at.in("attention.attention"), norm(at.in("layernorm_before"), x));
    y = linear(at.in("attention.output.dense"), y, c_.width, c_.width);
    x = at.op("add", {x, at.dropout(y, c_.dropout)});
    y = linear(at.in("intermediate.dense"), norm(at.in("layernorm_after"), x), c_.width, c_.inner_width());
    y = linear(at.in("output.dense"), at.activation(y, c_.activation), c_.inner_width(), c_.width);
    return at.op("add", {x, at.dropout(y, c_.dropout)});
  }

  /// x [batch, tokens, width] -> the same. Query, key and value are one product with stacked weights.
  ValueId attention(const Net& at, ValueId x) const {
    const ValueId all = linear(at.in("qkv"), x, c_.width, 3 * c_.width);
    const auto qkv =
        at.builder().ops("split", {all}, {{"axis", int64_t{-1}}, {"num_outputs", int64_t{3}}}, 3);
    const AttentionSpec spec{.heads = c_.heads, .kv_heads = c_.heads, .head_dim = c_.width / c_.heads};
    return at.attention(qkv[0], qkv[1], qkv[2], ir::kNoValue, spec);
  }

  const VitConfig& c_;
  Init weight_;
};

}  // namespace

VitConfig VitConfig::tiny() {
  VitConfig c;
  c.channels = 1;
  c.size = 28;
  c.patch = 4;
  c.width = 64;
  c.layers = 4;
  c.heads = 4;
  c.classes = 10;
  c.deviation = 0.1;  // about 1 / sqrt(width): 0.02 suits widths near 1000 and would pass on too little
  return c;
}

void VitConfig::fields(base::OptionList& f) {
  f.add("channels", &channels, "channels of the input image").at_least(1).at_most(kMostChannels);
  f.add("size", &size, "height and width of the input image").at_least(1).at_most(kMostPixels);
  f.add("patch", &patch, "height and width of a patch; divides the size").at_least(1).at_most(kMostPixels);
  f.add("width", &width, "channels of the residual stream").at_least(1).at_most(kMostChannels);
  f.add("layers", &layers, "blocks").at_least(1).at_most(kMostLayers);
  f.add("heads", &heads, "attention heads; divides the width").at_least(1).at_most(kMostChannels);
  f.add("inner", &inner, "width of the feed-forward layer; 0: 4 times the width")
      .at_least(0)
      .at_most(kMostInner);
  f.add("classes", &classes, "classes to tell apart").at_least(1).at_most(kMostClasses);
  f.add("activation", &activation, "gelu, gelu_new (tanh form) or relu");
  f.add("epsilon", &epsilon, "added to the variance by layer normalisation").at_least(0);
  f.add("deviation", &deviation, "standard deviation of the weights at the start").at_least(0);
  f.add("dropout", &dropout, "probability to drop an element of the embedding or of a branch's result")
      .at_least(0)
      .at_most(0.95);
}

Model vit(const VitConfig& c, ParamSource& params) {
  base::require(c.width % c.heads == 0, "width ", c.width, " is no multiple of ", c.heads, " heads");
  base::require(c.size % c.patch == 0, "size ", c.size, " is no multiple of the patch ", c.patch);
  Model model;
  const ValueId image = model.graph.add_input("image", image_type(c.channels, c.size));
  const ValueId logits = Vit(c).run(Net(model.graph, params), image);
  model.config = vit_json(c);
  finish_model(model, "vit", logits, "logits");
  return model;
}

base::Json vit_json(const VitConfig& c) {
  base::Json names = base::Json::object();  // Transformers derives the number of classes from these names
  for (int64_t i = 0; i < c.classes; ++i) names.set(std::to_string(i), base::concat("LABEL_", i));
  return base::Json::object({{"architectures", base::Json::array({"ViTForImageClassification"})},
                             {"model_type", "vit"},
                             {"num_channels", c.channels},
                             {"image_size", c.size},
                             {"patch_size", c.patch},
                             {"hidden_size", c.width},
                             {"num_hidden_layers", c.layers},
                             {"num_attention_heads", c.heads},
                             {"intermediate_size", c.inner_width()},
                             {"hidden_act", c.activation},
                             {"layer_norm_eps", c.epsilon},
                             {"hidden_dropout_prob", c.dropout},
                             {"attention_probs_dropout_prob", 0.0},
                             {"qkv_bias", true},
                             {"id2label", std::move(names)},
                             {"torch_dtype", "float32"}});
}

}  // namespace trireme::model::zoo
