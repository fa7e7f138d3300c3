// Ops whose elements follow from their indices, on NVIDIA GPUs.
#include "backend/cuda/elementwise/element_program.h"
#include "backend/cuda/index/fill.h"
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/shape/copy_ops.h"
#include "ops/shape/fill_ops.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

ir::Refusal refuse_result(const ir::NodeView& n) {
  if (!cuda::element_type_of(n.out[0].dtype)) return "elements without arithmetic";
  return std::nullopt;
}

/// Elements of 1, 2, 4 or 8 bytes are moved without conversion.
ir::Refusal refuse_units(const ir::NodeView& n, size_t i) {
  const int bits = tensor::bits_of(n.in[i].dtype);
  if (bits < 8 || bits > 64) return "packed or complex elements";
  return std::nullopt;
}

ir::Kernel range_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const int64_t n = init.node.out_dims(0)[0];
    return ir::BoundKernel{[n, dtype = init.node.out[0].dtype](const ir::RunArgs& args) {
      cuda::range({args.stream, dtype}, args.in[0], args.in[2], args.out[0], n);
    }};
  };
  return {.name = "flat", .refuse = refuse_result, .prepare = prepare};
}

ir::Kernel eye_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const Dims y = init.node.out_dims(0);
    const int64_t k = init.node.attrs.get_int("k", 0);
    return ir::BoundKernel{[=, dtype = init.node.out[0].dtype](const ir::RunArgs& args) {
      cuda::eye({args.stream, dtype}, args.out[0], y[0], y[1], k);
    }};
  };
  return {.name = "flat", .refuse = refuse_result, .prepare = prepare};
}

ir::Kernel trilu_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const Dims x = init.node.in_dims(0);
    base::require(x.size() >= 2, "trilu takes matrices");
    const cuda::TriluArgs fixed{.count = product(x, 0, x.size() - 2),
                                .rows = x[x.size() - 2],
                                .columns = x.back(),
                                .unit_bytes = tensor::bits_of(init.node.in[0].dtype) / 8,
                                .is_upper = init.node.attrs.get_int("upper", 1) != 0};
    return ir::BoundKernel{[fixed, has_k = init.node.present(1)](const ir::RunArgs& args) {
      cuda::TriluArgs a = fixed;
      a.x = args.in[0];
      a.y = args.out[0];
      a.k = has_k ? in_ptr<int64_t>(args, 1) : nullptr;
      cuda::trilu(args.stream, a);
    }};
  };
  return {
      .name = "flat", .refuse = [](const ir::NodeView& n) { return refuse_units(n, 0); }, .prepare = prepare};
}

ir::Kernel one_hot_kernel() {
  auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!cuda::element_type_of(n.in[0].dtype)) return "indices without arithmetic";
    return refuse_units(n, 2);
  };
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const Dims y = n.out_dims(0);
    const AxisLoops loops = axis_loops(y, ir::normal_axis(n.attrs.get_int("axis", -1), y.size()));
    const cuda::OneHotArgs fixed{.index_type = n.in[0].dtype,
                                 .outer = loops.outer,
                                 .depth = loops.n,
                                 .inner = loops.inner,
                                 .unit_bytes = tensor::bits_of(n.in[2].dtype) / 8};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      cuda::OneHotArgs a = fixed;
      a.index = args.in[0];
      a.values = args.in[2];
      a.y = args.out[0];
      cuda::one_hot(args.stream, a);
    }};
  };
  return {.name = "flat", .refuse = refuse, .prepare = prepare};
}

ir::Kernel reverse_kernel() {
  auto prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const Dims x = n.in_dims(0);
    base::require(x.size() >= 2, "reverse_sequence takes [time, batch, ...]");
    const bool time_first = ir::normal_axis(n.attrs.get_int("time_axis", 0), x.size()) == 0;
    const cuda::ReverseArgs fixed{.time = time_first ? x[0] : x[1],
                                  .batch = time_first ? x[1] : x[0],
                                  .row_units = product(x, 2, x.size()),
                                  .unit_bytes = tensor::bits_of(n.in[0].dtype) / 8,
                                  .batch_first = !time_first};
    return ir::BoundKernel{[fixed](const ir::RunArgs& args) {
      cuda::ReverseArgs a = fixed;
      a.x = args.in[0];
      a.lengths = in_ptr<int64_t>(args, 1);
      a.y = args.out[0];
      cuda::reverse_runs(args.stream, a);
    }};
  };
  return {
      .name = "flat", .refuse = [](const ir::NodeView& n) { return refuse_units(n, 0); }, .prepare = prepare};
}

/// Crops x around its centre or pads it there with zeros.
ir::Kernel crop_kernel() {
  auto refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (n.in_dims(0).size() > cuda::kCopyRank) return "more than 8 dimensions";
    return refuse_units(n, 0);
  };
  auto prepare = [](const ir::KernelInit& init) {
    const Dims x = init.node.in_dims(0), y = init.node.out_dims(0);
    cuda::PadArgs pad{
        .x_dims = x, .y_dims = y, .before = {}, .unit_bytes = tensor::bits_of(init.node.in[0].dtype) / 8};
    for (size_t d = 0; d < x.size(); ++d)
      pad.before.push_back(x[d] > y[d] ? -((x[d] - y[d]) / 2) : (y[d] - x[d]) / 2);
    return ir::BoundKernel{[pad](const ir::RunArgs& args) {
      cuda::PadArgs a = pad;
      a.x = args.in[0];
      a.y = args.out[0];
      cuda::pad(args.stream, a);
    }};
  };
  return {.name = "elements", .refuse = refuse, .prepare = prepare};
}

/// One sum for each padded axis, from the last axis to the first; intermediates are f32.
std::vector<cuda::PadGradAxis> pad_grad_axes(const ir::NodeView& n) {
  Dims at = n.in_dims(0);
  const Dims x = n.out_dims(0);
  const Pads pads = pads_of(n);
  const std::string mode = n.attrs.get_string("mode", "reflect");
  std::vector<cuda::PadGradAxis> axes;
  for (size_t d = x.size(); d-- > 0;) {
    if (at[d] == x[d] && pads.before[d] == 0) continue;
    axes.push_back({.outer = product(at, 0, d),
                    .padded = at[d],
                    .n = x[d],
                    .inner = product(at, d + 1, at.size()),
                    .before = pads.before[d],
                    .mode = mode == "edge"   ? cuda::PadMode::edge
                            : mode == "wrap" ? cuda::PadMode::wrap
                                             : cuda::PadMode::reflect});
    at[d] = x[d];
  }
  if (axes.empty()) {  // without padding
    const int64_t all = tensor::element_count(x);
    axes.push_back({.outer = all, .padded = 1, .n = 1, .mode = cuda::PadMode::edge});
  }
  axes.front().widens = axes.back().rounds = true;
  return axes;
}

ir::Kernel pad_grad_kernel() {
  auto refuse = [needs = needs_values({1, 3})](const ir::NodeView& n) -> ir::Refusal {
    if (ir::Refusal no = needs(n)) return no;
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16});
  };
  auto prepare = [](const ir::KernelInit& init) {
    const std::vector<cuda::PadGradAxis> axes = pad_grad_axes(init.node);
    int64_t half = 0;  // bytes of one of the two tensors between axes
    for (size_t i = 0; i + 1 < axes.size(); ++i) {
      const cuda::PadGradAxis& a = axes[i];
      half = std::max(half, align_up(a.outer * a.n * a.inner * static_cast<int64_t>(sizeof(float))));
    }
    auto run = [axes, half, dtype = init.node.in[0].dtype](const ir::RunArgs& args) {
      const void* from = args.in[0];
      for (size_t i = 0; i < axes.size(); ++i) {
        cuda::PadGradAxis a = axes[i];
        a.dy = from;
        a.dx = i + 1 == axes.size()
                   ? args.out[0]
                   : static_cast<std::byte*>(args.workspace) + static_cast<int64_t>(i % 2) * half;
        cuda::pad_grad({args.stream, dtype}, a);
        from = a.dx;
      }
    };
    return ir::BoundKernel{run, 2 * half};
  };
  return {.name = "axis_by_axis", .refuse = refuse, .prepare = prepare};
}

}  // namespace

std::vector<CudaKernels> fills_cuda_kernels() {
  return {{"range", {range_kernel()}},
          {"eye_like", {eye_kernel()}},
          {"trilu", {trilu_kernel()}},
          {"one_hot", {one_hot_kernel()}},
          {"reverse_sequence", {reverse_kernel()}},
          {"center_crop_pad", {crop_kernel()}},
          {"pad_grad", {pad_grad_kernel()}}};
}

}  // namespace trireme::ops
