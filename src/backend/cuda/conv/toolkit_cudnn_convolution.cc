// Convolutions by cuDNN's graphs, with bias, residual and rectifier in the same pass. With channels last the
// weights, which ours are [filters, channels, taps], go through a copy [filters, taps, channels].
#include "backend/cuda/conv/convolution.h"
#include "backend/cuda/conv/transpose.h"
#include "backend/cuda/cudnn/toolkit_cudnn.cuh"

namespace trireme::cuda {
namespace {

using Ints = std::vector<int64_t>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Two spatial axes unless the first is used.
size_t first_axis(const ConvolutionShape& s) {
  return s.in[0] == 1 && s.kernel[0] == 1 && s.out[0] == 1 && s.pad[0] == 0 ? 1 : 0;
}

Ints axes_of(const ConvolutionShape& s, const std::array<int64_t, 3>& values) {
  return Ints(values.begin() + static_cast<std::ptrdiff_t>(first_axis(s)), values.end());
}

/// [outer, channels, spatial ...] in either layout.
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

/// What must follow the operand so that the result has its extents: as much as precedes it where that does,
/// for which the library has most kernels. nullopt: cuDNN would count otherwise.
std::optional<Ints> post_padding(const ConvolutionShape& s) {
  Ints post;
  for (size_t i = first_axis(s); i < 3; ++i) {
    const int64_t reach = (s.kernel[i] - 1) * s.dilation[i] + 1;
    const int64_t missing = (s.out[i] - 1) * s.stride[i] + reach - s.in[i] - s.pad[i];
    if (s.pad[i] < 0 || missing <= -s.stride[i]) return std::nullopt;
    // A stride's remainder may be padded or not: 7x7 over 224 with stride 2 and padding 3 reads 2 of the
    // last 3.
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

/// Parts of the workspace in front of cuDNN's.
struct Copies {
  int64_t weights = 0, data = 0;
  explicit Copies(const ConvolutionShape& s) {
    if (copies_weights(s)) weights = rounded(tensor::bytes_of(s.type, s.w_elements()));
    if (copies_data(s)) data = rounded(tensor::bytes_of(s.type, s.x_elements()));
  }
  int64_t bytes() const { return weights + data; }
};

/// The graph and its tensors.
struct Built {
  fe::graph::Graph graph;
  Tensor x, w, y, bias, residual, result;
};

Tensor add_tensor(Built& b, const Layout& layout) {
  return b.graph.tensor(fe::graph::Tensor_attributes().set_dim(layout.dims).set_stride(layout.strides));
}

template <class Attributes>
Attributes window_of(const ConvolutionShape& s, const Ints& post) {
  Attributes a;
  a.set_pre_padding(axes_of(s, s.pad)).set_post_padding(post);
  a.set_stride(axes_of(s, s.stride)).set_dilation(axes_of(s, s.dilation));
  return a;
}

Tensor pointwise(Built& b, const Tensor& left, const Tensor& right, fe::PointwiseMode_t mode) {
  const auto attributes =
      fe::graph::Pointwise_attributes().set_mode(mode).set_compute_data_type(fe::DataType_t::FLOAT);
  return right == nullptr ? b.graph.pointwise(left, attributes) : b.graph.pointwise(left, right, attributes);
}

/// bias, residual and rectifier behind `z`.
Tensor add_finish(Built& b, const ConvolutionShape& s, Tensor z, const Layout& result) {
  if (s.bias) {
    const Ints one(result.dims.size() - 2, 1);
    b.bias = add_tensor(b, Layout(1, result.dims[1], one, channels_last(s)));
    z = pointwise(b, z, b.bias, fe::PointwiseMode_t::ADD);
  }
  if (s.residual) {
    b.residual = add_tensor(b, result);
    z = pointwise(b, z, b.residual, fe::PointwiseMode_t::ADD);
  }
  if (s.act.kind == Activation::relu) z = pointwise(b, z, nullptr, fe::PointwiseMode_t::RELU_FWD);
  return z;
}

/// Null if cuDNN has no such convolution.
std::unique_ptr<Built> build(const ConvolutionShape& s, const Cudnn& cudnn, bool tf32) {
  const std::optional<Ints> post = post_padding(s);
  if (!post) return nullptr;
  auto built = std::make_unique<Built>();
  Built& b = *built;
  b.graph.set_io_data_type(cudnn_type(s.type))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const bool last = channels_last(s);
  const Layout x(s.batch, s.channels, axes_of(s, s.in), last), y(s.batch, s.filters, axes_of(s, s.out), last);
  const Layout w(s.filters, s.channels / s.groups, axes_of(s, s.kernel), last);
  const Layout* result = &y;
  if (s.kind == ConvolutionKind::forward) {
    b.x = add_tensor(b, x);
    b.w = add_tensor(b, w);
    b.result = b.graph.conv_fprop(b.x, b.w, window_of<fe::graph::Conv_fprop_attributes>(s, *post));
    b.result = add_finish(b, s, b.result, y);
  } else if (s.kind == ConvolutionKind::data) {
    b.y = add_tensor(b, y);
    b.w = add_tensor(b, w);
    b.result = b.graph.conv_dgrad(b.y, b.w, window_of<fe::graph::Conv_dgrad_attributes>(s, *post));
    result = &x;
  } else {
    b.y = add_tensor(b, y);
    b.x = add_tensor(b, x);
    b.result = b.graph.conv_wgrad(b.y, b.x, window_of<fe::graph::Conv_wgrad_attributes>(s, *post));
    result = &w;
  }
  b.result->set_output(true).set_dim(result->dims).set_stride(result->strides);
  b.result->set_data_type(cudnn_type(s.type));
  const bool keeps_f32 = s.type == tensor::DType::f32 && !tf32;
  return build_graph(b.graph, cudnn, {.keeps_f32 = keeps_f32}) ? std::move(built) : nullptr;
}

/// A built graph that convolutions of one shape share.
struct SharedGraph {
  std::unique_ptr<Built> built;  // null: cuDNN refused
};

class CudnnConvolution final : public ConvolutionPlan {
 public:
  CudnnConvolution(const ConvolutionShape& shape, std::shared_ptr<const Cudnn> cudnn,
                   std::shared_ptr<const SharedGraph> graph)
      : shape_(shape), copies_(shape), cudnn_(std::move(cudnn)), graph_(std::move(graph)) {}

  int64_t workspace_bytes() const override {
    return copies_.bytes() + kCudnnWorkspaceBytes + kCudnnAlignment;
  }

  void run(tensor::Stream& stream, const ConvolutionPointers& p, void* workspace) const override {
    std::byte* memory = cudnn_aligned(workspace);
    const Built& b = *graph_->built;
    CudnnAddresses at;
    if (b.x != nullptr) at[b.x] = data_operand(stream, p, memory);
    if (b.w != nullptr) at[b.w] = weight_operand(stream, p, memory);
    if (b.y != nullptr) at[b.y] = const_cast<void*>(p.y);
    if (b.bias != nullptr) at[b.bias] = const_cast<void*>(p.bias);
    if (b.residual != nullptr) at[b.residual] = const_cast<void*>(p.residual);
    const bool turns_weights = shape_.kind == ConvolutionKind::weights && copies_.weights > 0;
    at[b.result] = turns_weights ? memory : p.result;
    run_graph(b.graph, *cudnn_, stream, std::move(at), memory + copies_.bytes());
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
  std::shared_ptr<const SharedGraph> graph_;
};

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

/// True if cuDNN may be asked for all of it.
bool is_expressible(const ConvolutionShape& s) {
  const bool relu_or_none = s.act.kind == Activation::none || s.act.kind == Activation::relu;
  const bool is_finished = s.bias || s.residual || s.act.kind != Activation::none;
  if (is_finished && s.kind != ConvolutionKind::forward) return false;
  if (s.act_before_residual && s.residual && s.act.kind != Activation::none) return false;
  // Only an operand that is read goes through a copy.
  return relu_or_none && (s.kind != ConvolutionKind::data || !copies_data(s));
}

/// Stands where there is no device: the program is only looked at.
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
  const auto graph = place.shared->get<SharedGraph>(
      base::concat(key_of(shape, tf32), " on ", place.device->ordinal()),
      [&] { return std::make_shared<const SharedGraph>(SharedGraph{build(shape, *cudnn, tf32)}); });
  if (graph->built == nullptr) return nullptr;
  return std::make_unique<CudnnConvolution>(shape, cudnn, graph);
}

}  // namespace trireme::cuda
