// conv_pool_nhwc and its gradients on CPU, by Winograd tiles whose 4 x 4 outputs are whole windows.
#include "backend/cpu/conv/conv_grad_w.h"
#include "backend/cpu/conv/conv_grad_x.h"
#include "backend/cpu/conv/conv_pack.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/conv/winograd_grad_w.h"
#include "backend/cpu/conv/winograd_nhwc.h"
#include "ops/conv/conv_pool.h"
#include "ops/conv/conv_shape_cpu.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

constexpr cpu::WinogradTile kTile = cpu::WinogradTile::four;

cpu::ConvShape pooled_shape(const ir::NodeView& n, const PooledConv& c) {
  return conv_shape(n.attrs, {c.x[0], c.x[1], c.x[2], c.x[3]}, c.w);
}

/// `p` are the extents of the pooled result; `tiles` the extents that the tiles cover.
ir::Refusal refuse_shape(const cpu::ConvShape& s, const tensor::Dims& p, std::pair<int64_t, int64_t> tiles) {
  if (s.out_h() / 2 != p[1] || s.out_w() / 2 != p[2]) return "padding is negative or rounds up";
  if (const auto why = refuse_not_three_by_three(s)) return why;
  if (!cpu::winograd_fits(s)) return "padding is above 2";
  if (std::min(tiles.first, tiles.second) < 4)
    return base::concat("image of ", tiles.first, " x ", tiles.second);
  return std::nullopt;
}

/// Refuses weights that contradict the attributes, because kernels index weights by the window's extents.
ir::Refusal refuse_weights(const PooledConv& c) {
  const int64_t kh = c.window[1].kernel, kw = c.window[2].kernel;
  if (kh != c.w[2] || kw != c.w[3]) return base::concat("kernel_shape ", kh, " x ", kw, " of other weights");
  if (c.w[1] != c.x[3]) return base::concat(c.x[3], " channels, weights of ", c.w[1]);
  return std::nullopt;
}

/// Refuses if fewer than `results` results are asked for, or if a present operand of `floats` is not f32.
ir::Refusal refuse_pooled_types(const ir::NodeView& n, std::initializer_list<size_t> floats, size_t results) {
  if (n.out.size() < results) return base::concat(n.out.size(), " results of ", results);
  for (const size_t i : floats) {
    if (i >= n.in.size() || !n.present(i)) continue;
    if (const auto why = refuse_dtype(n, i, {tensor::DType::f32})) return why;
  }
  return refuse_empty(n);
}

ir::Refusal refuse_pooled(const ir::NodeView& n) {
  if (const auto why = refuse_pooled_types(n, {0, 1, 2}, 1)) return why;
  if (n.out[0].shape.rank() != 4) return "nobody asks for the maxima";
  const PooledConv conv = pooled_conv(n);
  if (const auto why = refuse_weights(conv)) return why;
  if (n.present(2) && n.in[2].shape.elements() != conv.w[0])
    return base::concat("bias ", n.in[2].shape.to_string(), " of ", conv.w[0], " channels");
  const ActivationKind kind = activation_of(n.attrs).kind;
  if (kind != ActivationKind::none && kind != ActivationKind::relu) return "activation is not a rectifier";
  const cpu::ConvShape s = pooled_shape(n, conv);
  return refuse_shape(s, n.out_dims(0), {s.out_h(), s.out_w()});
}

ir::Refusal refuse_grad(const ir::NodeView& n) {
  if (const auto why = refuse_pooled_types(n, {0, 1, 3}, 3)) return why;
  if (const auto why = refuse_dtype(n, 2, {tensor::DType::u8})) return why;
  const PooledConv conv = pooled_conv_of_grad(n);
  if (const auto why = refuse_weights(conv)) return why;
  const tensor::Dims windows{conv.x[0], conv.out_h() / 2, conv.out_w() / 2, conv.w[0]};
  for (const size_t i : {1, 2}) {
    if (!n.in[i].shape.is_static() || n.in_dims(i) != windows)
      return base::concat("operand ", i, " is ", n.in[i].shape.to_string(), ", not of the windows");
  }
  const cpu::ConvShape s = pooled_shape(n, conv);
  if (const auto why = refuse_shape(s, n.in_dims(1), {s.out_h(), s.out_w()})) return why;
  if (const auto why = refuse_shape(s, n.in_dims(1), {s.h, s.w})) return why;
  if (!cpu::conv_grad_x_winograd_fits(s)) return "padding is above 2";
  return std::nullopt;
}

ir::BoundKernel prepare_pooled(const ir::KernelInit& init) {
  const cpu::ConvShape shape = pooled_shape(init.node, pooled_conv(init.node));
  const int64_t packed =
      align_up(static_cast<int64_t>(cpu::winograd_view_bytes(cpu::forward_view(shape, nullptr), kTile)));
  const size_t operands = init.node.in.size();
  const bool tells_places = init.node.out.size() > 1;
  ir::BoundKernel bound;
  bound.workspace_bytes =
      packed + static_cast<int64_t>(cpu::winograd_workspace_bytes(shape, kTile, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(init.node.attrs))](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    cpu::WinogradArgs a{
        .shape = shape, .x = in_ptr<float>(args, 0), .y = out_ptr<float>(args, 0), .epilogue = epilogue};
    a.takes_maxima = true;
    a.which = tells_places ? out_ptr<uint8_t>(args, 1) : nullptr;
    a.epilogue.bias = opt_ptr<float>(args, 2, operands);
    a.weights =
        cpu::transform_view(cpu::forward_view(shape, in_ptr<float>(args, 1)), kTile, args.workspace, pool);
    cpu::winograd_nhwc(a, static_cast<char*>(args.workspace) + packed, pool);
  };
  return bound;
}

/// dw comes first: afterwards x is read only at places where dx is written, so dx may take x's memory.
ir::BoundKernel prepare_grad(const ir::KernelInit& init) {
  const cpu::ConvShape shape = pooled_shape(init.node, pooled_conv_of_grad(init.node));
  const bool rectified = init.node.attrs.get_int("rectified", 0) != 0;
  ir::BoundKernel bound;
  bound.workspace_bytes = static_cast<int64_t>(std::max(
      cpu::winograd_grad_w_bytes(shape, init.threads), cpu::conv_grad_x_winograd_bytes(shape, init.threads)));
  bound.run = [=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    const float *x = in_ptr<float>(args, 0), *dp = in_ptr<float>(args, 1);
    const uint8_t* which = in_ptr<uint8_t>(args, 2);
    cpu::ConvGradWArgs to_w{.shape = shape, .x = x, .dy = dp};
    to_w.dw = out_ptr<float>(args, 1);
    to_w.which = which;
    to_w.db = out_ptr<float>(args, 2);
    if (to_w.dw != nullptr) cpu::winograd_grad_w(to_w, args.workspace, pool);
    cpu::ConvGradXArgs to_x{shape, dp, in_ptr<float>(args, 3), out_ptr<float>(args, 0)};
    to_x.which = which;
    to_x.gate = rectified ? x : nullptr;
    if (to_x.dx != nullptr) cpu::conv_grad_x_winograd(to_x, args.workspace, pool);
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> conv_pool_nhwc_cpu_kernels() {
  return {{.name = "winograd", .refuse = refuse_pooled, .prepare = prepare_pooled}};
}
std::vector<ir::Kernel> conv_pool_nhwc_grad_cpu_kernels() {
  return {{.name = "winograd", .refuse = refuse_grad, .prepare = prepare_grad, .may_overwrite = 1}};
}

}  // namespace trireme::ops
