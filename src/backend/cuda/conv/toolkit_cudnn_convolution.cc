// Convolutions by cuDNN graphs, with bias, residual and ReLU in the same pass. With channels last, the
// weights, stored as [filters, channels, taps], are first copied to [filters, taps, channels].
#include "backend/cuda/conv/convolution.h"
#include "backend/cuda/conv/transpose.h"
#include "backend/cuda/cudnn/toolkit_cudnn.cuh"

namespace trireme::cuda {
namespace {

using Ints = std::vector<int64_t>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Index of the first spatial axis to use: 1 (two axes) if the first of the three is trivial.
size_t first_axis(const ConvolutionShape& s) {
  return s.in[0] == 1 && s.kernel[0] == 1 && s.out[0] == 1 && s.pad[0] == 0 ? 1 : 0;
}

Ints axes_of(const ConvolutionShape& s, const std::array<int64_t, 3>& values) {
  return Ints(values.begin() + static_cast<std::ptrdiff_t>(first_axis(s)), values.end());
}

/// Dimensions [outer, channels, spatial ...] with the strides of either layout.
struct Layout {
  Ints dims, strides;
  Layout(int64_t outer, int64_t channels, const Ints& spatial, bool channels_last) {
    dims = {outer, channels};
    dims.insert(dims.end(), spatial.begin(), spatial.end());
    strides.resize(dims.size());
    int64_t stride = 1;
    if (channels_last) strides[1] = 1, stride = channels;
    for (size_t d = dims.size(); d-- > 2;) strides[d] = stride, stride *= dims[d];
    if (!channels_last) strides[1] = stride, stride *= channels;
    strides[0] = stride;
  }
};

/// Padding after the operand that gives the result its extents. It equals the padding before where possible,
/// since cuDNN has most kernels for that. nullopt: cuDNN cannot express this shape.
std::optional<Ints> post_padding(const ConvolutionShape& s) {
  Ints post;
  for (size_t i = first_axis(s); i < 3; ++i) {
    const int64_t reach = (s.kernel[i] - 1) * s.dilation[i] + 1;
    const int64_t missing = (s.out[i] - 1) * s.stride[i] + reach - s.in[i] - s.pad[i];
    if (s.pad[i] < 0 || missing <= -s.stride[i]) return std::nullopt;
    // Equal padding may exceed what is read by less than a stride: 7x7 over 224 with stride 2 and padding 3
    // reads only 2 of the last 3.
    const bool is_even = s.pad[i] >= missing && s.pad[i] < missing + s.stride[i];
    post.push_back(is_even ? s.pad[i] : std::max<int64_t>(missing, 0));
  }
  return post;
}

bool channels_last(const ConvolutionShape& s) { return s.y_channels_last; }
bool copies_weights(const ConvolutionShape& s) {
  return channels_last(s) && s.taps() > 1 && s.channels / s.groups > 1;
}
bool copies_data(const ConvolutionShape& s) { return s.x_channels_last != s.y_channels_last; }

int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

/// Bytes of the workspace that hold copies of operands; cuDNN's own workspace follows them.
struct Copies {
  int64_t weights = 0, data = 0;
  explicit Copies(const ConvolutionShape& s) {
    if (copies_weights(s)) weights = rounded(tensor::bytes_of(s.type, s.w_elements()));
    if (copies_data(s)) data = rounded(tensor::bytes_of(s.type, s.x_elements()));
  }
  int64_t bytes() const { return weights + data; }
};

/// Identifiers of operands and results in a graph.
enum : Uid { kX = 1, kW, kY, kBias, kResidual, kResult };

/// A graph while it is described.
struct Description {
  fe::graph::Graph& graph;
  const ConvolutionShape& shape;

  Tensor add(Uid uid, const Layout& layout) {
    return graph.tensor(
        fe::graph::Tensor_attributes().set_dim(layout.dims).set_stride(layout.strides).set_uid(uid));
  }
};

template <class Attributes>
Attributes window_of(const ConvolutionShape& s, const Ints& post) {
  Attributes a;
  a.set_pre_padding(axes_of(s, s.pad)).set_post_padding(post);
  a.set_stride(axes_of(s, s.stride)).set_dilation(axes_of(s, s.dilation));
  return a;
}

Tensor pointwise(Description& d, const Tensor& left, const Tensor& right, fe::PointwiseMode_t mode) {
  const auto attributes =
      fe::graph::Pointwise_attributes().set_mode(mode).set_compute_data_type(fe::DataType_t::FLOAT);
  return right == nullptr ? d.graph.pointwise(left, attributes) : d.graph.pointwise(left, right, attributes);
}

/// Adds bias, residual and ReLU to the graph after `z`.
Tensor add_finish(Description& d, Tensor z, const Layout& result) {
  const ConvolutionShape& s = d.shape;
  if (s.bias) {
    const Ints one(result.dims.size() - 2, 1);
    z = pointwise(d, z, d.add(kBias, Layout(1, result.dims[1], one, channels_last(s))),
                  fe::PointwiseMode_t::ADD);
  }
  if (s.residual) z = pointwise(d, z, d.add(kResidual, result), fe::PointwiseMode_t::ADD);
  if (s.act.kind == Activation::relu) z = pointwise(d, z, nullptr, fe::PointwiseMode_t::RELU_FWD);
  return z;
}

void describe(fe::graph::Graph& graph, const ConvolutionShape& s, const Ints& post) {
  graph.set_io_data_type(cudnn_type(s.type))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  Description d{graph, s};
  const bool last = channels_last(s);
  const Layout x(s.batch, s.channels, axes_of(s, s.in), last), y(s.batch, s.filters, axes_of(s, s.out), last);
  const Layout w(s.filters, s.channels / s.groups, axes_of(s, s.kernel), last);
  const Layout* layout = &y;
  Tensor result;
  if (s.kind == ConvolutionKind::forward) {
    result =
        graph.conv_fprop(d.add(kX, x), d.add(kW, w), window_of<fe::graph::Conv_fprop_attributes>(s, post));
    result = add_finish(d, result, y);
  } else if (s.kind == ConvolutionKind::data) {
    result =
        graph.conv_dgrad(d.add(kY, y), d.add(kW, w), window_of<fe::graph::Conv_dgrad_attributes>(s, post));
    layout = &x;
  } else {
    result =
        graph.conv_wgrad(d.add(kY, y), d.add(kX, x), window_of<fe::graph::Conv_wgrad_attributes>(s, post));
    layout = &w;
  }
  result->set_output(true).set_dim(layout->dims).set_stride(layout->strides).set_uid(kResult);
  result->set_data_type(cudnn_type(s.type));
}

/// Identifiers and bytes of the buffers that a measurement needs.
std::vector<std::pair<Uid, int64_t>> operands_of(const ConvolutionShape& s) {
  const auto bytes = [&](int64_t elements) { return tensor::bytes_of(s.type, elements); };
  const int64_t x = bytes(s.x_elements()), y = bytes(s.y_elements()), w = bytes(s.w_elements());
  if (s.kind == ConvolutionKind::data) return {{kY, y}, {kW, w}, {kResult, x}};
  if (s.kind == ConvolutionKind::weights) return {{kY, y}, {kX, x}, {kResult, w}};
  std::vector<std::pair<Uid, int64_t>> all{{kX, x}, {kW, w}, {kResult, y}};
  if (s.bias) all.emplace_back(kBias, bytes(s.filters));
  if (s.residual) all.emplace_back(kResidual, y);
  return all;
}

std::string key_of(const ConvolutionShape& s, bool tf32) {
  std::string key =
      base::concat("convolution ", static_cast<int>(s.kind), " ", name_of(s.type), tf32, " ", s.batch, ",",
                   s.channels, ",", s.filters, ",", s.groups, " ", s.x_channels_last, s.y_channels_last,
                   s.bias, s.residual, static_cast<int>(s.act.kind));
  for (const auto* values : {&s.in, &s.kernel, &s.out, &s.stride, &s.dilation, &s.pad}) {
    for (int64_t v : *values) key += base::concat(",", v);
  }
  return key;
}

/// Returns null if cuDNN has no such convolution.
std::unique_ptr<const fe::graph::Graph> build(const GemmPlace& place, const Cudnn& cudnn,
                                              const ConvolutionShape& s, bool tf32) {
  const std::optional<Ints> post = post_padding(s);
  if (!post) return nullptr;
  const PlanWish wish{
      .key = key_of(s, tf32), .keeps_f32 = s.type == tensor::DType::f32 && !tf32, .operands = operands_of(s)};
  return ready_graph(place, cudnn, wish, [&](fe::graph::Graph& graph) { describe(graph, s, *post); });
}

class CudnnConvolution final : public ConvolutionPlan {
 public:
  CudnnConvolution(const ConvolutionShape& shape, std::shared_ptr<const Cudnn> cudnn,
                   std::shared_ptr<const SharedGraph> shared, const fe::graph::Graph* graph)
      : shape_(shape), copies_(shape), cudnn_(std::move(cudnn)), shared_(std::move(shared)), graph_(graph) {}

  int64_t workspace_bytes() const override {
    return copies_.bytes() + kCudnnWorkspaceBytes + kCudnnAlignment;
  }

  void run(tensor::Stream& stream, const ConvolutionPointers& p, void* workspace) const override {
    std::byte* memory = cudnn_aligned(workspace);
    const bool forward = shape_.kind == ConvolutionKind::forward, data = shape_.kind == ConvolutionKind::data;
    CudnnAddresses at;
    if (!data) at[kX] = data_operand(stream, p, memory);
    if (forward || data) at[kW] = weight_operand(stream, p, memory);
    if (!forward) at[kY] = const_cast<void*>(p.y);
    if (shape_.bias) at[kBias] = const_cast<void*>(p.bias);
    if (shape_.residual) at[kResidual] = const_cast<void*>(p.residual);
    const bool turns_weights = shape_.kind == ConvolutionKind::weights && copies_.weights > 0;
    at[kResult] = turns_weights ? memory : p.result;
    run_graph(*graph_, *cudnn_, stream, std::move(at), memory + copies_.bytes());
    if (turns_weights) {
      transpose({stream, shape_.type}, memory, p.result,
                {shape_.filters, shape_.taps(), shape_.channels / shape_.groups});
    }
  }

 private:
  void* data_operand(tensor::Stream& stream, const ConvolutionPointers& p, std::byte* memory) const {
    if (copies_.data == 0) return const_cast<void*>(p.x);
    void* to = memory + copies_.weights;
    transpose({stream, shape_.type}, p.x, to, {shape_.batch, shape_.channels, shape_.in_points()});
    return to;
  }
  void* weight_operand(tensor::Stream& stream, const ConvolutionPointers& p, std::byte* memory) const {
    if (copies_.weights == 0) return const_cast<void*>(p.w);
    transpose({stream, shape_.type}, p.w, memory,
              {shape_.filters, shape_.channels / shape_.groups, shape_.taps()});
    return memory;
  }

  ConvolutionShape shape_;
  Copies copies_;
  std::shared_ptr<const Cudnn> cudnn_;
  std::shared_ptr<const SharedGraph> shared_;
  const fe::graph::Graph* graph_;  // owned by shared_
};

/// Whether a cuDNN graph can express the whole convolution with its finish.
bool is_expressible(const ConvolutionShape& s) {
  const bool relu_or_none = s.act.kind == Activation::none || s.act.kind == Activation::relu;
  const bool is_finished = s.bias || s.residual || s.act.kind != Activation::none;
  if (is_finished && s.kind != ConvolutionKind::forward) return false;
  if (s.act_before_residual && s.residual && s.act.kind != Activation::none) return false;
  // Copies are made of operands only, and for the gradient of the data x is the result.
  return relu_or_none && (s.kind != ConvolutionKind::data || !copies_data(s));
}

/// Used where there is no device: the program is only inspected.
class ImaginedConvolution final : public ConvolutionPlan {
 public:
  explicit ImaginedConvolution(const ConvolutionShape& shape) : copies_(shape) {}
  int64_t workspace_bytes() const override {
    return copies_.bytes() + kCudnnWorkspaceBytes + kCudnnAlignment;
  }
  void run(tensor::Stream&, const ConvolutionPointers&, void*) const override {
    base::fail(base::ErrorCode::internal, "a convolution that was planned without a device is run");
  }

 private:
  Copies copies_;
};

}  // namespace

std::unique_ptr<ConvolutionPlan> make_convolution(const GemmPlace& place, const ConvolutionShape& shape) {
  if (!is_expressible(shape)) return nullptr;
  if (place.device == nullptr) return std::make_unique<ImaginedConvolution>(shape);
  const std::shared_ptr<const Cudnn> cudnn = cudnn_of(place);
  if (cudnn == nullptr) return nullptr;
  const bool tf32 = gemm_options_from_environment().tf32;
  const auto shared =
      place.shared->get<SharedGraph>(base::concat(key_of(shape, tf32), " on ", place.device->ordinal()),
                                     [] { return std::make_shared<const SharedGraph>(); });
  const fe::graph::Graph* graph = shared->get([&] { return build(place, *cudnn, shape, tf32); });
  if (graph == nullptr) return nullptr;
  return std::make_unique<CudnnConvolution>(shape, cudnn, shared, graph);
}

}  // namespace trireme::cuda
