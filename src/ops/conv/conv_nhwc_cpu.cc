// conv_nhwc on CPU: depthwise rows, Winograd tiles, or an implicit product on packed weights; epilogue fused.
#include "backend/cpu/conv_nhwc.h"

#include "backend/cpu/cpu_stream.h"
#include "backend/cpu/depthwise_nhwc.h"
#include "backend/cpu/winograd_nhwc.h"
#include "ops/conv/window.h"
#include "ops/dense/epilogue_cpu.h"
#include "ops/kernel_forms.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

bool reads_nchw(const ir::NodeView& n) { return n.attrs.get_string("input_layout", "nhwc") == "nchw"; }

cpu::ConvShape shape_of(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), w = n.in_dims(1);
  const bool nchw = reads_nchw(n);
  const tensor::Dims spatial = nchw ? tensor::Dims{x[2], x[3]} : tensor::Dims{x[1], x[2]};
  const Window window = make_window(n.attrs, {w[2], w[3]}, spatial);
  const WindowAxis &h = window[1], &v = window[2];
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  return {.n = x[0],
          .h = h.in,
          .w = v.in,
          .c = nchw ? x[1] : x[3],
          .oc = w[0],
          .kh = small(h.kernel),
          .kw = small(v.kernel),
          .stride_h = small(h.stride),
          .stride_w = small(v.stride),
          .dilation_h = small(h.dilation),
          .dilation_w = small(v.dilation),
          .pad_top = small(h.pad_begin),
          .pad_left = small(v.pad_begin),
          .pad_bottom = small(h.pad_end),
          .pad_right = small(v.pad_end),
          .groups = n.attrs.get_int("group", 1)};
}

ir::Refusal refuse(const ir::NodeView& n) {
  if (n.in[0].dtype != tensor::DType::f32) return base::concat("operand is ", tensor::name_of(n.in[0].dtype));
  if (n.value(1) == nullptr) return "weights are not constant";
  const cpu::ConvShape s = shape_of(n);
  const tensor::Dims y = n.out_dims(0);
  if (s.out_h() != y[1] || s.out_w() != y[2]) return "padding is negative or rounds up";
  if (s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0) return "padding is negative";
  return std::nullopt;
}

ir::Refusal refuse_depthwise(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse(n)) return reason;
  const cpu::ConvShape s = shape_of(n);
  if (s.groups != s.c || s.oc != s.c)
    return base::concat(s.groups, " groups of ", s.c, " channels: not depthwise");
  if (reads_nchw(n)) return "reads nchw";
  return std::nullopt;
}

/// Looks at one image only: a choice that hung on the batch or the team would change bits with them.
/// The limits are measured: docs/decisions/0006-winograd.md.
ir::Refusal refuse_winograd(const ir::NodeView& n) {
  if (const ir::Refusal reason = refuse(n)) return reason;
  const cpu::ConvShape s = shape_of(n);
  if (s.kh != 3 || s.kw != 3) return base::concat("kernel is ", s.kh, " x ", s.kw, ", not 3 x 3");
  if (s.stride_h != 1 || s.stride_w != 1) return base::concat("stride is ", s.stride_h, " x ", s.stride_w);
  if (s.dilation_h != 1 || s.dilation_w != 1)
    return base::concat("dilation is ", s.dilation_h, " x ", s.dilation_w);
  if (s.groups != 1) return base::concat("has ", s.groups, " groups");
  if (reads_nchw(n)) return "reads nchw";
  if (!cpu::winograd_fits(s)) return "padding is above 2";
  if (s.c < 16 || s.oc < 16) return base::concat("fewer than 16 channels: ", s.c, " to ", s.oc);
  if (s.out_h() < 4 || s.out_w() < 4 || s.out_h() * s.out_w() < 64)
    return base::concat("output of ", s.out_h(), " x ", s.out_w(), " is too small to pay for larger weights");
  return std::nullopt;
}

struct Packed {
  tensor::Tensor memory;
  cpu::PackedConv conv;
};

struct WinogradWeights {
  tensor::Tensor memory;
  cpu::PackedWinograd packed;
};

void bind_epilogue(cpu::Epilogue& e, const ir::RunArgs& args, size_t operands) {
  e.bias = opt_ptr<float>(args, 2, operands);
  e.residual = opt_ptr<float>(args, 3, operands);
}

ir::BoundKernel prepare_depthwise(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = shape_of(n);
  const tensor::Tensor& w = *n.value(1);
  const auto packed = init.packs.get<tensor::Tensor>(ir::pack_key(w, "depthwise_f32"), [&] {
    auto made = std::make_shared<tensor::Tensor>(tensor::Tensor::empty(tensor::DType::f32, w.dims()));
    cpu::pack_depthwise(shape, w.data<float>().data(), made->mutable_data<float>().data());
    return made;
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::DepthwiseArgs d{.shape = shape,
                         .x = in_ptr<float>(args, 0),
                         .weights = packed->data<float>().data(),
                         .y = out_ptr<float>(args, 0),
                         .epilogue = epilogue};
    bind_epilogue(d.epilogue, args, operands);
    cpu::depthwise_nhwc(d, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_winograd(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = shape_of(n);
  const tensor::Tensor& w = *n.value(1);
  const cpu::WinogradTile tile = cpu::winograd_tile(shape);
  const std::string format = base::concat("winograd_f32 ", static_cast<int>(tile));
  const auto weights = init.packs.get<WinogradWeights>(ir::pack_key(w, format), [&] {
    auto made = std::make_shared<WinogradWeights>();
    const int64_t bytes = static_cast<int64_t>(cpu::packed_winograd_bytes(shape, tile));
    made->memory = tensor::Tensor::empty(tensor::DType::u8, {bytes});
    made->packed = cpu::pack_winograd(shape, w.data<float>().data(), tile, made->memory.mutable_raw());
    return made;
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::winograd_workspace_bytes(shape, tile, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::WinogradArgs a{.shape = shape,
                        .x = in_ptr<float>(args, 0),
                        .weights = weights->packed,
                        .y = out_ptr<float>(args, 0),
                        .epilogue = epilogue};
    bind_epilogue(a.epilogue, args, operands);
    cpu::winograd_nhwc(a, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

ir::BoundKernel prepare_implicit(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape shape = shape_of(n);
  const tensor::Tensor& w = *n.value(1);
  const cpu::ImageLayout layout = reads_nchw(n) ? cpu::ImageLayout::nchw : cpu::ImageLayout::nhwc;
  const std::string format = base::concat("conv_f32 g", shape.groups, reads_nchw(n) ? " nchw" : "");
  const auto packed = init.packs.get<Packed>(ir::pack_key(w, format), [&] {
    auto made = std::make_shared<Packed>();
    made->memory =
        tensor::Tensor::empty(tensor::DType::u8, {static_cast<int64_t>(cpu::packed_conv_bytes(shape))});
    made->conv =
        cpu::pack_conv(shape, w.data<float>().data(), made->memory.mutable_raw(), cpu::best_isa(), layout);
    return made;
  });
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.unread_inputs = 1u << 1};
  bound.workspace_bytes = static_cast<int64_t>(cpu::conv2d_workspace_bytes(shape, layout, init.threads));
  bound.run = [=, epilogue = epilogue_of(activation_of(n.attrs))](const ir::RunArgs& args) {
    cpu::ConvArgs c{.shape = shape,
                    .x = in_ptr<float>(args, 0),
                    .x_layout = layout,
                    .weights = packed->conv,
                    .y = out_ptr<float>(args, 0),
                    .epilogue = epilogue};
    bind_epilogue(c.epilogue, args, operands);
    cpu::conv2d_nhwc(c, args.workspace, cpu::pool_of(args.stream));
  };
  return bound;
}

}  // namespace

std::vector<ir::Kernel> conv_nhwc_cpu_kernels() {
  return {{.name = "depthwise", .refuse = refuse_depthwise, .prepare = prepare_depthwise},
          {.name = "winograd", .refuse = refuse_winograd, .prepare = prepare_winograd},
          {.name = "implicit_gemm", .refuse = refuse, .prepare = prepare_implicit}};
}

}  // namespace trireme::ops
