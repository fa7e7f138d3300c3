// Perception from two sensors: a convolutional stem, a layer for points, fusion by attention, and two heads.
#include "model/zoo/perception.h"

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

class Perception {
 public:
  explicit Perception(const PerceptionConfig& config) : c_(config) {}

  /// Returns class_logits and boxes.
  std::pair<ValueId, ValueId> run(const Net& net, ValueId image, ValueId points, ValueId mask) const {
    ValueId x = camera(net.in("camera"), image);                // [batch, cells, width]
    const ValueId p = point_encoder(net.in("points"), points);  // [batch, points, width]
    for (int64_t i = 0; i < c_.layers; ++i) x = block(net.in("fusion").in(i), x, p, mask);
    x = norm(net.in("norm"), x);
    return {linear(net.in("class_head"), x, c_.width, c_.classes),
            linear(net.in("box_head"), x, c_.width, c_.box_values)};
  }

 private:
  ValueId norm(const Net& at, ValueId x) const { return at.layer_norm(x, c_.width, c_.epsilon); }

  ValueId linear(const Net& at, ValueId x, int64_t in, int64_t out) const {
    // Variance 1 / in keeps the result at the scale of the normalised operand.
    return at.linear(x, {.in = in, .out = out, .init = Init::normal(1 / std::sqrt(static_cast<double>(in)))});
  }

  /// Three convolutions of stride 2 with batch norms, then one vector per cell, plus that of its position.
  ValueId camera(const Net& at, ValueId image) const {
    const int64_t widths[] = {c_.channels, c_.stem_width, 2 * c_.stem_width, c_.width};
    ValueId x = image;
    for (size_t i = 0; i < 3; ++i) {
      const Net stage = at.in(static_cast<int64_t>(i));
      const ConvSpec spec{.in = widths[i], .out = widths[i + 1], .kernel = 3, .stride = 2};
      x = stage.in("conv").conv(x, spec, Init::he(spec.in * 9), false);
      x = stage.op("relu", {batch_norm(stage.in("norm"), x, spec.out)});
    }
    Builder b = at.builder();
    x = b.reshape(b.transpose(x, {0, 2, 3, 1}), {0, c_.cells(), c_.width});  // [batch, cells, width]
    return b.op("add", {x, at.param("positions", {1, c_.cells(), c_.width}, Init::normal(0.02))});
  }

  ValueId batch_norm(const Net& at, ValueId x, int64_t channels) const {
    const ValueId scale = at.param("weight", {channels}, Init::ones());
    const ValueId shift = at.param("bias", {channels}, Init::zeros());
    const ValueId mean = at.param("running_mean", {channels}, Init::zeros());
    const ValueId variance = at.param("running_var", {channels}, Init::ones());
    return at.op("batch_norm", {x, scale, shift, mean, variance},
                 {{"epsilon", c_.epsilon}, {"momentum", 0.9}});
  }

  /// points [batch, points, point_features] -> [batch, points, width]; points do not interact.
  ValueId point_encoder(const Net& at, ValueId points) const {
    const LinearSpec first{.in = c_.point_features, .out = c_.width, .init = Init::he(c_.point_features)};
    const ValueId x = at.op("relu", {at.in("fc1").linear(points, first)});
    return norm(at.in("norm"), linear(at.in("fc2"), x, c_.width, c_.width));
  }

  /// Cells attend to points, then to each other, then a feed-forward layer; each branch begins with a norm.
  ValueId block(const Net& at, ValueId x, ValueId points, ValueId mask) const {
    ValueId y = norm(at.in("cross_norm"), x);
    x = at.op("add", {x, at.dropout(attention(at.in("cross"), y, points, mask), c_.dropout)});
    y = norm(at.in("self_norm"), x);
    x = at.op("add", {x, at.dropout(attention(at.in("self"), y, y, ir::kNoValue), c_.dropout)});
    y = linear(at.in("fc1"), norm(at.in("mlp_norm"), x), c_.width, 4 * c_.width);
    y = linear(at.in("fc2"), at.activation(y, "gelu"), 4 * c_.width, c_.width);
    return at.op("add", {x, at.dropout(y, c_.dropout)});
  }

  /// Queries from x [batch, cells, width], keys and values from `from` [batch, n, width] -> like x.
  ValueId attention(const Net& at, ValueId x, ValueId from, ValueId mask) const {
    const ValueId q = linear(at.in("query"), x, c_.width, c_.width);
    const ValueId k = linear(at.in("key"), from, c_.width, c_.width);
    const ValueId v = linear(at.in("value"), from, c_.width, c_.width);
    const AttentionSpec spec{.heads = c_.heads, .kv_heads = c_.heads, .head_dim = c_.width / c_.heads};
    return linear(at.in("out"), at.attention(q, k, v, mask, spec), c_.width, c_.width);
  }

  const PerceptionConfig& c_;
};

}  // namespace

void PerceptionConfig::fields(base::OptionList& f) {
  f.add("channels", &channels, "channels of the image").at_least(1).at_most(kMostChannels);
  f.add("size", &size, "height and width of the image, a multiple of 8").at_least(8).at_most(kMostPixels);
  f.add("point_features", &point_features, "numbers of a point: place, intensity, speed")
      .at_least(1)
      .at_most(kMostChannels);
  f.add("stem_width", &stem_width, "channels after the first convolution").at_least(1).at_most(kMostChannels);
  f.add("width", &width, "channels of a cell and of a point").at_least(1).at_most(kMostChannels);
  f.add("layers", &layers, "fusion blocks").at_least(1).at_most(kMostLayers);
  f.add("heads", &heads, "attention heads; divides the width").at_least(1).at_most(kMostChannels);
  f.add("classes", &classes, "classes of a cell; class 0 is no object").at_least(1).at_most(kMostClasses);
  f.add("box_values", &box_values, "numbers of a box").at_least(1).at_most(kMostChannels);
  f.add("epsilon", &epsilon, "added to the variance by norms").at_least(0);
  f.add("dropout", &dropout, "probability to drop an element of a branch's result").at_least(0).at_most(0.95);
}

Model perception(const PerceptionConfig& c, ParamSource& params) {
  base::require(c.width % c.heads == 0, "width ", c.width, " is no multiple of ", c.heads, " heads");
  base::require(c.size % 8 == 0, "size ", c.size, " is no multiple of 8");
  Model model;
  ir::Graph& g = model.graph;
  using tensor::Dim;
  const tensor::Shape set{Dim::symbol("batch"), Dim::symbol("points")};
  const ValueId image = g.add_input("image", image_type(c.channels, c.size));
  const ValueId points = g.add_input("points", {tensor::DType::f32, {set[0], set[1], c.point_features}});
  const ValueId mask = g.add_input("points_mask", {tensor::DType::i64, set});
  const auto [logits, boxes] = Perception(c).run(Net(g, params), image, points, mask);
  g.add_output(logits, "class_logits");
  finish_model(model, "perception", boxes, "boxes");
  return model;
}

}  // namespace trireme::model::zoo
