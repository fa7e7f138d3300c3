// Small convolutional network for digits: two convolutions, one pool, two linear layers.
#include "model/zoo/cnn.h"

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {

using ir::ValueId;

void CnnConfig::fields(base::OptionList& f) {
  f.add("channels", &channels, "channels of the input image").at_least(1).at_most(kMostChannels);
  f.add("size", &size, "height and width of the input image").at_least(6).at_most(kMostPixels);
  f.add("width1", &width1, "channels after the first convolution").at_least(1).at_most(kMostChannels);
  f.add("width2", &width2, "channels after the second convolution").at_least(1).at_most(kMostChannels);
  f.add("hidden", &hidden, "width of the hidden linear layer").at_least(1).at_most(kMostChannels);
  f.add("classes", &classes, "classes to tell apart").at_least(1).at_most(kMostClasses);
  f.add("dropout", &dropout, "probability to drop an element, after the pool and before the head")
      .at_least(0)
      .at_most(0.95);
}

Model cnn(const CnnConfig& c, ParamSource& params) {
  Model model;
  Net net(model.graph, params);
  ValueId x = model.graph.add_input("image", image_type(c.channels, c.size));
  const auto convolve = [&](ValueId in, const std::string& name, int64_t from, int64_t to) {
    const ConvSpec spec{.in = from, .out = to, .kernel = 3, .is_padded = false};
    return net.op("relu", {net.in(name).conv(in, spec, Init::he(from * 9), true)});
  };
  x = convolve(x, "conv1", c.channels, c.width1);  // [batch, width1, size - 2, size - 2]
  x = convolve(x, "conv2", c.width1, c.width2);    // [batch, width2, size - 4, size - 4]
  x = net.dropout(net.in("pool").max_pool(x, 2, 2, 0), c.dropout);
  const int64_t side = (c.size - 4) / 2, flat = c.width2 * side * side;
  x = net.op("flatten", {x});  // [batch, width2 * side * side]
  x = net.in("fc1").linear(x, {.in = flat, .out = c.hidden, .init = Init::he(flat)});
  x = net.dropout(net.op("relu", {x}), c.dropout);
  const double bound = 1 / std::sqrt(static_cast<double>(c.hidden));
  x = net.in("fc2").linear(x, {.in = c.hidden, .out = c.classes, .init = Init::uniform(bound)});
  finish_model(model, "cnn", x, "logits");
  return model;
}

}  // namespace trireme::model::zoo
