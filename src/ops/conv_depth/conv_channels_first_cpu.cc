// conv and conv_grad_w on CPU by way of the channels-last operators: operands are copied to that layout, and
// a kernel of conv_nhwc or conv_nhwc_grad_w runs on the copies.
#include <algorithm>
#include <array>

#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/conv/conv_kernels_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

constexpr size_t kMostOperandsCopied = 3;  // x, weights or dy, bias

/// [n, c, spatial...] with channels last.
tensor::TensorType last(const tensor::TensorType& planes) {
  const Dims dims = planes.shape.to_dims();
  std::vector<tensor::Dim> turned(dims.begin(), dims.end());
  std::rotate(turned.begin() + 1, turned.begin() + 2, turned.end());
  return {planes.dtype, tensor::Shape(std::move(turned))};
}

/// A tensor as [n, channels, points] or [n, points, channels].
struct Image {
  int64_t n, channels, points;
  int64_t bytes() const { return align_up(n * channels * points * 4); }
};

Image image_of(const Dims& planes) { return {planes[0], planes[1], product(planes, 2, planes.size())}; }

void to_last(const Image& i, const float* from, float* to, base::ThreadPool& pool) {
  const std::array<int64_t, 3> shape{i.n, i.channels, i.points};
  const std::array<int, 3> order{0, 2, 1};
  cpu::permute({from, to, shape, order, 4}, pool);
}

void to_planes(const Image& i, const float* from, float* to, base::ThreadPool& pool) {
  const std::array<int64_t, 3> shape{i.n, i.points, i.channels};
  const std::array<int, 3> order{0, 2, 1};
  cpu::permute({from, to, shape, order, 4}, pool);
}

/// conv with its image and its result channels last.
ir::NodeView forward_view_of(const ir::NodeView& n) {
  ir::NodeView view = n;
  view.in[0] = last(n.in[0]);
  view.out[0] = last(n.out[0]);
  if (!view.known.empty()) view.known[0] = nullptr;
  return view;
}

/// conv_grad_w with both operands channels last.
ir::NodeView weights_view_of(const ir::NodeView& n) {
  ir::NodeView view = n;
  view.known.assign(n.in.size(), nullptr);
  for (size_t i : {size_t{0}, size_t{1}}) view.in[i] = last(n.in[i]);
  return view;
}

bool takes(const ir::Kernel& kernel, const ir::NodeView& view) {
  return !kernel.is_reference && !kernel.is_via_f32 && !kernel.refuse(view);
}

/// The first of `kernels` that takes the node in f32 as it is.
const ir::Kernel* kernel_for(const std::vector<ir::Kernel>& kernels, const ir::NodeView& view) {
  for (const ir::Kernel& kernel : kernels) {
    if (takes(kernel, view)) return &kernel;
  }
  return nullptr;
}

/// The same convolution with one filter.
ir::NodeView one_filter_view_of(const ir::NodeView& view) {
  const auto with_one = [](const tensor::TensorType& t, size_t axis) {
    const Dims dims = t.shape.to_dims();
    std::vector<tensor::Dim> changed(dims.begin(), dims.end());
    changed[axis] = 1;
    return tensor::TensorType{t.dtype, tensor::Shape(std::move(changed))};
  };
  ir::NodeView one = view;
  one.known.assign(view.in.size(), nullptr);
  one.in[1] = with_one(view.in[1], 0);
  if (one.present(2)) one.in[2] = with_one(view.in[2], 0);
  one.out[0] = with_one(view.out[0], view.out[0].shape.rank() - 1);
  return one;
}

/// The first kernel that takes the view, and without groups does so with any number of filters: `conv`
/// promises that a filter's results do not depend on the others, so that no choice may, such as Winograd's
/// from 16 filters on.
const ir::Kernel* forward_kernel_for(const ir::NodeView& view) {
  static const std::vector<ir::Kernel> kernels = conv_nhwc_cpu_kernels();
  const bool is_whole = view.attrs.get_int("group", 1) == 1;
  const ir::NodeView one = is_whole ? one_filter_view_of(view) : view;
  for (const ir::Kernel& kernel : kernels) {
    if (takes(kernel, view) && takes(kernel, one)) return &kernel;
  }
  return nullptr;
}

const std::vector<ir::Kernel>& weights_kernels() {
  static const std::vector<ir::Kernel> kernels = conv_nhwc_grad_w_cpu_kernels();
  return kernels;
}

/// Refuses what is not an image of one to three axes in f32.
ir::Refusal refuse_images(const ir::NodeView& n) {
  for (size_t i : {size_t{0}, size_t{1}}) {
    if (const auto why = refuse_dtype(n, i, {DType::f32})) return why;
  }
  const size_t rank = n.in[0].shape.rank();
  if (rank < 3 || rank > 5) return base::concat("has ", rank, " axes");
  return refuse_empty(n);
}

ir::Refusal refuse_forward(const ir::NodeView& n) {
  if (n.in.size() > kMostOperandsCopied) return "more operands than x, weights and bias";
  if (const auto why = refuse_images(n)) return why;
  if (forward_kernel_for(forward_view_of(n)) == nullptr)
    return "no channels-last kernel takes the convolution";
  return std::nullopt;
}

ir::Refusal refuse_weights(const ir::NodeView& n) {
  if (const auto why = refuse_images(n)) return why;
  if (kernel_for(weights_kernels(), weights_view_of(n)) == nullptr)
    return "no channels-last kernel takes the gradient";
  return std::nullopt;
}

ir::BoundKernel prepare_forward(const ir::KernelInit& init) {
  const ir::NodeView view = forward_view_of(init.node);
  const ir::Kernel* kernel = forward_kernel_for(view);
  const ir::BoundKernel inner = kernel->prepare({view, init.packs, init.threads, init.device, init.team});
  const Image x = image_of(init.node.in_dims(0)), y = image_of(init.node.out_dims(0));
  ir::BoundKernel bound{.workspace_bytes = x.bytes() + y.bytes() + inner.workspace_bytes,
                        .unread_inputs = inner.unread_inputs};
  if (!inner.run) return bound;
  bound.run = [=, operands = view.in.size()](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    char* memory = static_cast<char*>(args.workspace);
    float* image = reinterpret_cast<float*>(memory);
    float* result = reinterpret_cast<float*>(memory + x.bytes());
    to_last(x, in_ptr<float>(args, 0), image, pool);
    std::array<const void*, kMostOperandsCopied> in{};
    std::copy_n(args.in, operands, in.begin());
    in[0] = image;
    void* out[1] = {result};
    inner.run({in.data(), out, memory + x.bytes() + y.bytes(), args.stream, args.status});
    to_planes(y, result, out_ptr<float>(args, 0), pool);
  };
  return bound;
}

ir::BoundKernel prepare_weights(const ir::KernelInit& init) {
  const ir::NodeView view = weights_view_of(init.node);
  const ir::Kernel* kernel = kernel_for(weights_kernels(), view);
  const ir::BoundKernel inner = kernel->prepare({view, init.packs, init.threads, init.device, init.team});
  const Image x = image_of(init.node.in_dims(0)), dy = image_of(init.node.in_dims(1));
  ir::BoundKernel bound{.workspace_bytes = x.bytes() + dy.bytes() + inner.workspace_bytes};
  bound.run = [=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    char* memory = static_cast<char*>(args.workspace);
    float* image = reinterpret_cast<float*>(memory);
    float* gradient = reinterpret_cast<float*>(memory + x.bytes());
    to_last(x, in_ptr<float>(args, 0), image, pool);
    to_last(dy, in_ptr<float>(args, 1), gradient, pool);
    const void* in[2] = {image, gradient};
    inner.run({in, args.out, memory + x.bytes() + dy.bytes(), args.stream, args.status});
  };
  return bound;
}

}  // namespace

ir::Kernel conv_channels_last() {
  return {.name = "channels_last", .refuse = refuse_forward, .prepare = prepare_forward};
}

ir::Kernel conv_grad_w_channels_last() {
  return {.name = "channels_last", .refuse = refuse_weights, .prepare = prepare_weights};
}

}  // namespace trireme::ops
