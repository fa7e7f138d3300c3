// conv_transpose through channels-last copies of x and y, between which its phases are products on packed
// weights.
#include "ops/conv/conv_kernels_cpu.h"

#include <array>
#include <memory>

#include "backend/cpu/conv/conv_grad_x.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/conv/transpose_window.h"
#include "ops/kernel_forms.h"
#include "ops/pack_memory.h"

namespace trireme::ops {
namespace {

/// The convolution whose gradient towards its input this is: from the result's channels to those of x.
cpu::ConvShape shape_of(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), w = n.in_dims(1);
  const Window window = transpose_window(n.attrs, {w[2], w[3]}, {x[2], x[3]});
  const WindowAxis &h = window[1], &v = window[2];
  const int64_t group = n.attrs.get_int("group", 1);
  const auto small = [](int64_t value) { return static_cast<int>(value); };
  return {.n = x[0],
          .h = h.out,
          .w = v.out,
          .c = w[1] * group,
          .oc = x[1],
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
          .groups = group};
}

ir::Refusal refuse(const ir::NodeView& n) {
  if (const auto why = refuse_dtype(n, 0, {tensor::DType::f32})) return why;
  if (const auto why = refuse_dtype(n, 1, {tensor::DType::f32})) return why;
  if (n.in_dims(0).size() != 4) return "only two spatial axes";
  if (const auto why = refuse_empty(n)) return why;
  if (n.present(2) && n.in[2].dtype != tensor::DType::f32) return "bias is not f32";
  const cpu::ConvShape s = shape_of(n);
  if (n.present(2) && n.in[2].shape.elements() != s.c) return "bias does not fit the result";
  if (s.pad_top < 0 || s.pad_left < 0 || s.pad_bottom < 0 || s.pad_right < 0) return "padding is negative";
  const tensor::Dims x = n.in_dims(0), y = n.out_dims(0);
  if (s.out_h() != x[2] || s.out_w() != x[3] || y[1] != s.c || y[2] != s.h || y[3] != s.w)
    return "result extends past what x reaches";
  if (!cpu::conv_grad_x_phases_fits(s)) return "dilated, padding exceeds the kernel, or above 256 taps";
  return std::nullopt;
}

struct Packed {
  PackMemory memory;
};

/// Bytes of the parts of the workspace: x and y channels-last, then what the products take.
struct Parts {
  int64_t x, y, products;
};

void change_layout(const float* from, float* to, const std::array<int64_t, 4>& shape,
                   const std::array<int, 4>& order, base::ThreadPool& pool) {
  cpu::permute({from, to, shape, order, 4}, pool);
}

ir::BoundKernel prepare(const ir::KernelInit& init) {
  const ir::NodeView& n = init.node;
  const cpu::ConvShape s = shape_of(n);
  const int64_t xh = n.in_dims(0)[2], xw = n.in_dims(0)[3];
  const Parts parts{align_up(s.n * s.oc * xh * xw * 4), align_up(s.n * s.c * s.h * s.w * 4),
                    static_cast<int64_t>(cpu::conv_grad_x_phases_bytes(s, init.threads))};
  std::shared_ptr<const Packed> packed;
  if (const tensor::Tensor* w = n.value(1)) {
    const std::string format = base::concat("transposed_f32 g", s.groups, " s", s.stride_h, "x", s.stride_w,
                                            " p", s.pad_top, "x", s.pad_left, " y", s.h, "x", s.w);
    const auto slab = pack_slab(init.packs);
    packed = pack_once<Packed>(init.packs, *w, format, [&] {
      const PackMemory memory(slab, cpu::packed_phases_bytes(s));
      cpu::pack_phases(s, w->data<float>().data(), memory.data.get());
      return std::make_shared<Packed>(Packed{memory});
    });
  }
  const size_t operands = n.in.size();
  ir::BoundKernel bound{.workspace_bytes = parts.x + parts.y + parts.products};
  if (n.value(1) != nullptr) bound.unread_inputs = 1u << 1;
  if (n.value(1) != nullptr && packed == nullptr) return bound;
  bound.run = [=](const ir::RunArgs& args) {
    base::ThreadPool& pool = cpu::pool_of(args.stream);
    char* memory = static_cast<char*>(args.workspace);
    float* x = reinterpret_cast<float*>(memory);            // [n, h, w, c]
    float* y = reinterpret_cast<float*>(memory + parts.x);  // [n, oh, ow, oc]
    change_layout(in_ptr<float>(args, 0), x, {s.n, s.oc, xh, xw}, {0, 2, 3, 1}, pool);
    cpu::ConvGradXArgs a{.shape = s, .dy = x, .dx = y};
    a.packed = packed ? packed->memory.data.get() : nullptr;
    if (!packed) a.weights = in_ptr<float>(args, 1);
    a.bias = opt_ptr<float>(args, 2, operands);
    cpu::conv_grad_x_phases(a, memory + parts.x + parts.y, pool);
    change_layout(y, out_ptr<float>(args, 0), {s.n, s.h, s.w, s.c}, {0, 3, 1, 2}, pool);
  };
  return bound;
}

}  // namespace

ir::Kernel conv_transpose_phases() { return {.name = "phases", .refuse = refuse, .prepare = prepare}; }

}  // namespace trireme::ops
