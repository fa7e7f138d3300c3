// Multi-layer perceptron: linear layers with an activation between them.
#include "model/zoo/mlp.h"

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {

using ir::ValueId;

void MlpConfig::fields(base::OptionList& f) {
  f.add("channels", &channels, "channels of the input image").at_least(1).at_most(kMostChannels);
  f.add("size", &size, "height and width of the input image").at_least(1).at_most(kMostPixels);
  f.add("features", &features, "length of a feature vector that is the input instead of an image; 0: image")
      .at_least(0)
      .at_most(kMostInner);
  f.add("hidden", &hidden, "widths of the hidden layers").at_least(1).at_most(kMostChannels);
  f.add("classes", &classes, "length of the result").at_least(1).at_most(kMostClasses);
  f.add("activation", &activation, "relu, gelu, gelu_new, silu or tanh");
  f.add("dropout", &dropout, "probability to drop an element after each hidden layer")
      .at_least(0)
      .at_most(0.95);
}

Model mlp(const MlpConfig& c, ParamSource& params) {
  Model model;
  Net net(model.graph, params);
  const bool is_image = c.features == 0;
  const tensor::TensorType vector{tensor::DType::f32, {tensor::Dim::symbol("batch"), c.features}};
  ValueId x = is_image ? model.graph.add_input("image", image_type(c.channels, c.size))
                       : model.graph.add_input("features", vector);
  if (is_image) x = net.op("flatten", {x});  // [batch, channels * size * size]
  int64_t width = is_image ? c.channels * c.size * c.size : c.features;
  int64_t number = 1;
  for (const int64_t next : c.hidden) {
    const Net at = net.in(base::concat("fc", number++));
    x = at.linear(x, {.in = width, .out = next, .init = Init::he(width)});
    x = at.dropout(at.activation(x, c.activation), c.dropout);
    width = next;
  }
  const double bound = 1 / std::sqrt(static_cast<double>(width));
  x = net.in("head").linear(x, {.in = width, .out = c.classes, .init = Init::uniform(bound)});
  finish_model(model, "mlp", x, "logits");
  return model;
}

}  // namespace trireme::model::zoo
