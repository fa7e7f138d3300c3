// ResNet from plain ops: stem, four stages of basic or bottleneck blocks, head.
#include "model/zoo/resnet.h"

#include <array>

#include "base/rng.h"
#include "model/builder.h"

namespace trireme::model::zoo {
namespace {

using ir::ValueId;
using tensor::Tensor;

struct Layout {
  int depth;
  std::array<int, 4> blocks;
  bool has_bottleneck;
};
constexpr std::array<Layout, 5> kLayouts{{{18, {2, 2, 2, 2}, false},
                                          {34, {3, 4, 6, 3}, false},
                                          {50, {3, 4, 6, 3}, true},
                                          {101, {3, 4, 23, 3}, true},
                                          {152, {3, 8, 36, 3}, true}}};

/// What one convolution needs to know; padding keeps the size at stride 1.
struct ConvSpec {
  std::string name;
  int64_t in, out, kernel, stride;
  float gain = 1;  // scale of the batch norm after it
};

class ResnetBuilder {
 public:
  ResnetBuilder(ir::Graph& graph, uint64_t seed) : builder_(graph), seed_(seed) {}

  ValueId run(ValueId image, const Layout& layout, int64_t classes) {
    ValueId x = relu(conv_norm(image, {"stem", 3, 64, 7, 2}));
    x = builder_.within("stem").op("max_pool", {x},
                                   {{"kernel_shape", std::vector<int64_t>{3, 3}},
                                    {"strides", std::vector<int64_t>{2, 2}},
                                    {"pads", std::vector<int64_t>{1, 1, 1, 1}}});
    int64_t channels = 64;
    for (size_t stage = 0; stage < 4; ++stage) {
      const int64_t width = int64_t{64} << stage;
      for (int i = 0; i < layout.blocks[stage]; ++i) {
        const std::string name = base::concat("stage", stage + 1, ".block", i);
        const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
        const int64_t out = layout.has_bottleneck ? 4 * width : width;
        x = block(x, name, {channels, width, out, stride}, layout.has_bottleneck);
        channels = out;
      }
    }
    Builder head = builder_.within("head");
    x = head.op("flatten", {head.op("global_average_pool", {x})});
    const ValueId weight =
        head.param("head.weight", random({classes, channels}, 1.0 / static_cast<double>(channels)));
    const ValueId bias = head.param("head.bias", Tensor::zeros(tensor::DType::f32, {classes}));
    return head.op("gemm", {x, weight, bias}, {{"transB", int64_t{1}}});
  }

 private:
  struct BlockSpec {
    int64_t in, width, out, stride;
  };

  ValueId block(ValueId x, const std::string& name, const BlockSpec& s, bool has_bottleneck) {
    ValueId y = x;
    if (has_bottleneck) {
      y = relu(conv_norm(y, {name + ".conv1", s.in, s.width, 1, 1}));
      y = relu(conv_norm(y, {name + ".conv2", s.width, s.width, 3, s.stride}));
      y = conv_norm(y, {name + ".conv3", s.width, s.out, 1, 1, kBranchGain});
    } else {
      y = relu(conv_norm(y, {name + ".conv1", s.in, s.width, 3, s.stride}));
      y = conv_norm(y, {name + ".conv2", s.width, s.out, 3, 1, kBranchGain});
    }
    const bool is_same = s.in == s.out && s.stride == 1;
    const ValueId skip = is_same ? x : conv_norm(x, {name + ".project", s.in, s.out, 1, s.stride});
    return relu(builder_.within(name).op("add", {y, skip}));
  }

  ValueId relu(ValueId x) { return builder_.op("relu", {x}); }

  ValueId conv_norm(ValueId x, const ConvSpec& s) {
    Builder b = builder_.within(s.name);
    const int64_t pad = s.kernel / 2;
    // He initialisation: variance 2 / fan-in keeps the variance through a rectifier.
    const double variance = 2.0 / static_cast<double>(s.in * s.kernel * s.kernel);
    const ValueId weight = b.param(s.name + ".weight", random({s.out, s.in, s.kernel, s.kernel}, variance));
    x = b.op("conv", {x, weight},
             {{"kernel_shape", std::vector<int64_t>{s.kernel, s.kernel}},
              {"strides", std::vector<int64_t>{s.stride, s.stride}},
              {"pads", std::vector<int64_t>{pad, pad, pad, pad}}});
    const auto channels = [&](const char* what, double mean, double variance_of) {
      Tensor t = random({s.out}, variance_of);
      for (float& v : t.mutable_data<float>()) v += static_cast<float>(mean);
      return b.param(s.name + ".norm." + what, std::move(t));
    };
    const ValueId scale = channels("scale", s.gain, 1e-3), shift = channels("bias", 0, 1e-3);
    const ValueId mean = channels("mean", 0, 1e-3), var = channels("var", 1, 1e-3);
    return b.op("batch_norm", {x, scale, shift, mean, var}, {{"epsilon", 1e-5}});
  }

  /// Normal numbers of the given variance; each tensor has a stream of its own.
  Tensor random(tensor::Dims dims, double variance) {
    Tensor t = Tensor::empty(tensor::DType::f32, std::move(dims));
    base::Rng rng(seed_, stream_++);
    const double deviation = std::sqrt(variance);
    for (float& v : t.mutable_data<float>()) v = static_cast<float>(deviation * rng.normal());
    return t;
  }

  static constexpr float kBranchGain = 0.25f;
  Builder builder_;
  uint64_t seed_;
  uint64_t stream_ = 0;
};

}  // namespace

Model resnet(int depth, uint64_t seed, int64_t size, int64_t classes) {
  for (const Layout& layout : kLayouts) {
    if (layout.depth != depth) continue;
    Model model;
    model.name = base::concat("resnet", depth);
    model.format = "builder";
    model.graph.name = model.name;
    const tensor::Shape shape{tensor::Dim::symbol("batch"), 3, size, size};
    const ValueId image = model.graph.add_input("image", {tensor::DType::f32, shape});
    model.graph.add_output(ResnetBuilder(model.graph, seed).run(image, layout, classes), "logits");
    model.graph.sort();
    return model;
  }
  base::fail_unsupported("ResNet has depths 18, 34, 50, 101 and 152, not ", depth);
}

}  // namespace trireme::model::zoo
