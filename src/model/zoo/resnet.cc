// Residual networks from plain ops: stem, stages of basic or bottleneck blocks, and a head.
#include "model/zoo/resnet.h"

#include <array>

#include "model/net.h"
#include "model/zoo/limits.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;

struct Layout {
  int64_t depth;
  std::array<int64_t, 4> blocks;
  bool has_bottleneck;
};
constexpr std::array<Layout, 5> kLayouts{{{18, {2, 2, 2, 2}, false},
                                          {34, {3, 4, 6, 3}, false},
                                          {50, {3, 4, 6, 3}, true},
                                          {101, {3, 4, 23, 3}, true},
                                          {152, {3, 8, 36, 3}, true}}};

/// The layout for a depth, or null.
const Layout* find_layout(int64_t depth) {
  const auto* at =
      std::find_if(kLayouts.begin(), kLayouts.end(), [&](const Layout& l) { return l.depth == depth; });
  return at == kLayouts.end() ? nullptr : at;
}

/// One stage: `blocks` blocks with `width` channels (4 times as many between bottleneck blocks).
struct Stage {
  int64_t blocks, width, stride;
};

class ResidualNet {
 public:
  ResidualNet(const ResidualOptions& options, bool has_bottleneck)
      : o_(options), has_bottleneck_(has_bottleneck) {}

  /// x [batch, channels, h, w] -> [batch, width, h / 4, w / 4].
  ValueId large_stem(const Net& net, ValueId x, int64_t width) const {
    const Net at = net.in("resnet.embedder");
    x = at.op("relu",
              {conv_norm(at.in("embedder"), x, {.in = o_.channels, .out = width, .kernel = 7, .stride = 2})});
    return at.in("pooler").max_pool(x, 3, 2, 1);
  }

  /// x [batch, channels, h, w] -> [batch, width, h, w].
  ValueId small_stem(const Net& net, ValueId x, int64_t width) const {
    const Net at = net.in("resnet.embedder");
    return at.op("relu", {conv_norm(at.in("embedder"), x, {.in = o_.channels, .out = width, .kernel = 3})});
  }

  /// x [batch, channels, h, w] -> logits [batch, classes].
  ValueId body(const Net& net, ValueId x, int64_t channels, const std::vector<Stage>& stages) const {
    for (size_t s = 0; s < stages.size(); ++s) {
      const Stage& stage = stages[s];
      for (int64_t i = 0; i < stage.blocks; ++i) {
        const Net at = net.in(base::concat("resnet.encoder.stages.", s, ".layers.", i));
        const int64_t out = has_bottleneck_ ? 4 * stage.width : stage.width;
        x = block(at, x, {channels, stage.width, out, i == 0 ? stage.stride : 1});
        channels = out;
      }
    }
    x = net.op("flatten", {net.op("global_average_pool", {x})});  // [batch, channels]
    const double bound = 1 / std::sqrt(static_cast<double>(channels));
    return net.in("classifier.1")
        .linear(x, {.in = channels, .out = o_.classes, .init = Init::uniform(bound)});
  }

 private:
  struct BlockSpec {
    int64_t in, width, out, stride;
  };

  /// relu(branch(x) + x); where the shape changes, a projection replaces x.
  ValueId block(const Net& at, ValueId x, const BlockSpec& s) const {
    const double last = o_.zero_init_residual ? 0 : o_.residual_gain;  // gain of the branch's last norm
    const auto conv = [&](ValueId in, int64_t number, const ConvSpec& spec, double gain) {
      return conv_norm(at.in("layer").in(number), in, spec, gain);
    };
    ValueId y = x;
    if (has_bottleneck_) {
      y = at.op("relu", {conv(y, 0, {.in = s.in, .out = s.width, .kernel = 1}, 1)});
      y = at.op("relu", {conv(y, 1, {.in = s.width, .out = s.width, .kernel = 3, .stride = s.stride}, 1)});
      y = conv(y, 2, {.in = s.width, .out = s.out, .kernel = 1}, last);
    } else {
      y = at.op("relu", {conv(y, 0, {.in = s.in, .out = s.width, .kernel = 3, .stride = s.stride}, 1)});
      y = conv(y, 1, {.in = s.width, .out = s.out, .kernel = 3}, last);
    }
    if (s.in != s.out || s.stride != 1) {
      x = conv_norm(at.in("shortcut"), x, {.in = s.in, .out = s.out, .kernel = 1, .stride = s.stride});
    }
    return at.op("relu", {at.op("add", {y, x})});
  }

  /// Convolution without bias, then batch normalisation with scale `gain`.
  ValueId conv_norm(const Net& at, ValueId x, const ConvSpec& spec, double gain = 1) const {
    // As in torchvision: the fan of the backward pass.
    x = at.in("convolution").conv(x, spec, Init::he(spec.out * spec.kernel * spec.kernel), false);
    const Net norm = at.in("normalization");
    const auto channels = [&](const char* what, double mean) {
      const Init init = o_.noise > 0 ? Init::normal(o_.noise, mean) : Init{Init::Kind::constant, mean, 0};
      return norm.param(what, {spec.out}, init);
    };
    const ValueId scale = channels("weight", gain), shift = channels("bias", 0);
    const ValueId mean = channels("running_mean", 0), variance = channels("running_var", 1);
    return norm.op("batch_norm", {x, scale, shift, mean, variance},
                   {{"epsilon", o_.epsilon}, {"momentum", o_.momentum}});
  }

  const ResidualOptions& o_;
  bool has_bottleneck_;
};

}  // namespace

void ResidualOptions::fields(base::OptionList& f) {
  f.add("classes", &classes, "classes to tell apart").at_least(1).at_most(kMostClasses);
  f.add("channels", &channels, "channels of the input image").at_least(1).at_most(kMostChannels);
  f.add("size", &size, "height and width of the input image").at_least(8).at_most(kMostPixels);
  f.add("epsilon", &epsilon, "added to the variance by batch normalisation").at_least(0);
  f.add("momentum", &momentum, "weight of the old running statistics in each step").at_least(0).at_most(1);
  f.add("zero_init_residual", &zero_init_residual, "the last norm of each branch starts at scale 0");
  f.add("residual_gain", &residual_gain, "scale at which the last norm of each branch starts");
  f.add("noise", &noise, "deviation of random numbers around which norms and statistics start").at_least(0);
}

void ResnetConfig::fields(base::OptionList& f) {
  f.add("depth", &depth, "18, 34, 50, 101 or 152").at_most(kMostLayers);
  f.add("small_images", &small_images, "a 3x3 stem without pool, for images of about 32 x 32");
  ResidualOptions::fields(f);
}

void SmallResnetConfig::fields(base::OptionList& f) {
  f.add("depth", &depth, "6 n + 2: 8, 14, 20, 32, ...").at_most(kMostLayers);
  f.add("width", &width, "channels of the first stage").at_least(1).at_most(kMostChannels);
  ResidualOptions::fields(f);
}

Model resnet(const ResnetConfig& config, ParamSource& params) {
  const Layout* layout = find_layout(config.depth);
  if (layout == nullptr) {
    base::fail_unsupported("ResNet has depths 18, 34, 50, 101 and 152, not ", config.depth);
  }
  Model model;
  const Net net(model.graph, params);
  const ResidualNet builder(config, layout->has_bottleneck);
  const ValueId image = model.graph.add_input("image", image_type(config.channels, config.size));
  std::vector<Stage> stages;
  for (int64_t s = 0; s < 4; ++s) {
    stages.push_back({layout->blocks[static_cast<size_t>(s)], int64_t{64} << s, s > 0 ? 2 : 1});
  }
  const ValueId stem =
      config.small_images ? builder.small_stem(net, image, 64) : builder.large_stem(net, image, 64);
  const ValueId logits = builder.body(net, stem, 64, stages);
  model.config = resnet_json(config);
  finish_model(model, base::concat("resnet", config.depth), logits, "logits");
  return model;
}

base::Json resnet_json(const ResnetConfig& config) {
  const Layout* layout = find_layout(config.depth);
  if (layout == nullptr || config.epsilon != 1e-5 || config.small_images) return {};
  base::Json depths = base::Json::array(), widths = base::Json::array(), names = base::Json::object();
  for (size_t s = 0; s < 4; ++s) {
    depths.push_back(layout->blocks[s]);
    widths.push_back((layout->has_bottleneck ? int64_t{256} : int64_t{64}) << s);
  }
  for (int64_t i = 0; i < config.classes; ++i) names.set(std::to_string(i), base::concat("LABEL_", i));
  return base::Json::object({{"architectures", base::Json::array({"ResNetForImageClassification"})},
                             {"model_type", "resnet"},
                             {"num_channels", config.channels},
                             {"image_size", config.size},
                             {"embedding_size", 64},
                             {"hidden_sizes", std::move(widths)},
                             {"depths", std::move(depths)},
                             {"layer_type", layout->has_bottleneck ? "bottleneck" : "basic"},
                             {"hidden_act", "relu"},
                             {"downsample_in_first_stage", false},
                             {"downsample_in_bottleneck", false},
                             {"id2label", std::move(names)},
                             {"torch_dtype", "float32"}});
}

Model small_resnet(const SmallResnetConfig& config, ParamSource& params) {
  if (config.depth < 8 || (config.depth - 2) % 6 != 0) {
    base::fail_unsupported("a small residual network has 6 n + 2 layers (8, 14, 20, ...), not ",
                           config.depth);
  }
  Model model;
  const Net net(model.graph, params);
  const ResidualNet builder(config, false);
  const ValueId image = model.graph.add_input("image", image_type(config.channels, config.size));
  const int64_t n = (config.depth - 2) / 6, w = config.width;
  const ValueId x = builder.small_stem(net, image, w);
  const ValueId logits = builder.body(net, x, w, {{n, w, 1}, {n, 2 * w, 2}, {n, 4 * w, 2}});
  finish_model(model, base::concat("small_resnet", config.depth), logits, "logits");
  return model;
}

ResnetConfig random_resnet_config(int64_t depth) {
  ResnetConfig config;
  config.depth = depth;
  config.residual_gain = 0.25;  // with 1 the variance doubles at every block
  config.noise = 0.03;
  return config;
}

Model random_resnet(int64_t depth, uint64_t seed, int64_t size, int64_t classes) {
  ResnetConfig config = random_resnet_config(depth);
  config.size = size;
  config.classes = classes;
  RandomParams params(seed);
  return resnet(config, params);
}

}  // namespace trireme::model::zoo
