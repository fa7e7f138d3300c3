// resize, upsample and their gradient on NVIDIA GPUs: the lines of resize_plan.h become lists of terms in
// device memory; axes with few terms share a pass.
#include <algorithm>
#include <cstring>

#include "backend/cuda/index/copy.h"
#include "backend/cuda/image/resize.h"
#include "ops/cuda_kernels.h"
#include "ops/device_pack.h"
#include "ops/image/grids_cuda.h"
#include "ops/image/resize_plan.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

/// The terms whose sum is a line of one axis, forwards or backwards.
struct AxisTerms {
  size_t axis = 0;
  int64_t in = 0, out = 0;
  int64_t most = 1;  // most terms of a line
  std::vector<int32_t> first, from;
  std::vector<float> weight;
  std::vector<uint8_t> outside;
};

AxisTerms forward_terms(const ResizeAxis& a) {
  AxisTerms t{.axis = a.axis, .in = a.in, .out = a.out, .most = a.taps};
  for (int64_t i = 0; i <= a.out; ++i) t.first.push_back(static_cast<int32_t>(i * a.taps));
  t.from = a.index;
  t.weight = a.weight;
  t.outside = a.outside;
  return t;
}

/// Each line i of dx sums the lines of dy that read it, in their order; extrapolated lines do not depend on
/// x.
AxisTerms backward_terms(const ResizeAxis& a) {
  AxisTerms t{.axis = a.axis, .in = a.out, .out = a.in};
  std::vector<std::vector<std::pair<int32_t, float>>> lines(static_cast<size_t>(a.in));
  for (int64_t o = 0; o < a.out; ++o) {
    if (!a.outside.empty() && a.outside[static_cast<size_t>(o)] != 0) continue;
    for (int64_t k = 0; k < a.taps; ++k) {
      const size_t at = static_cast<size_t>(o * a.taps + k);
      lines[static_cast<size_t>(a.index[at])].emplace_back(static_cast<int32_t>(o), a.weight[at]);
    }
  }
  t.first.push_back(0);
  for (const auto& line : lines) {
    for (const auto& [from, weight] : line) {
      t.from.push_back(from);
      t.weight.push_back(weight);
    }
    t.first.push_back(static_cast<int32_t>(t.from.size()));
    t.most = std::max<int64_t>(t.most, static_cast<int64_t>(line.size()));
  }
  return t;
}

/// All passes; the lists of their axes are concatenated in `tables`.
struct DeviceResize {
  struct Lists {
    size_t first = 0, from = 0, weight = 0, outside = 0;  // offsets
    bool is_set = false, has_outside = false;
  };
  struct Pass {
    cuda::ResizeShape shape;
    Lists lists[cuda::kResizeAxes];
  };
  std::vector<Pass> passes;
  std::vector<std::byte> tables;
  int64_t largest = 0;  // elements of the largest intermediate

  template <class T>
  size_t append(const std::vector<T>& values) {
    tables.resize((tables.size() + 15) / 16 * 16);
    const size_t at = tables.size();
    append_bytes(tables, values);
    return at;
  }
  void add_pass(std::vector<const AxisTerms*> group, Dims& dims);
};

/// Adds a pass over `group`, sorted by axis; the axes take the last places of the shape.
void DeviceResize::add_pass(std::vector<const AxisTerms*> group, Dims& dims) {
  Pass pass;
  std::sort(group.begin(), group.end(), [](auto* a, auto* b) { return a->axis < b->axis; });
  pass.shape.outer = product(dims, 0, group[0]->axis);
  const size_t unused = cuda::kResizeAxes - group.size();
  for (size_t g = 0; g < group.size(); ++g) {
    const AxisTerms& t = *group[g];
    const size_t next = g + 1 < group.size() ? group[g + 1]->axis : dims.size();
    pass.shape.in[unused + g] = t.in;
    pass.shape.out[unused + g] = t.out;
    pass.shape.between[unused + g] = product(dims, t.axis + 1, next);
    pass.lists[unused + g] = {.first = append(t.first),
                              .from = append(t.from),
                              .weight = append(t.weight),
                              .outside = append(t.outside),
                              .is_set = true,
                              .has_outside = !t.outside.empty()};
  }
  for (const AxisTerms* t : group) dims[t->axis] = t->out;
  largest = std::max(largest, tensor::element_count(dims));
  passes.push_back(pass);
}

/// Axes share a pass while a result has few terms. This re-reads operands from the cache but saves a pass.
std::shared_ptr<const DeviceResize> make_device_resize(const std::vector<AxisTerms>& terms, Dims dims) {
  constexpr int64_t kMostTerms = 16;
  auto run = std::make_shared<DeviceResize>();
  std::vector<const AxisTerms*> group;
  int64_t together = 1;
  for (const AxisTerms& t : terms) {
    if (!group.empty() && (group.size() == cuda::kResizeAxes || together * t.most > kMostTerms)) {
      run->add_pass(group, dims);
      group.clear();
      together = 1;
    }
    group.push_back(&t);
    together *= t.most;
  }
  if (!group.empty()) run->add_pass(group, dims);
  return run;
}

cuda::ResizePass pass_of(const DeviceResize::Pass& p, const void* tables) {
  cuda::ResizePass pass{.shape = p.shape};
  const auto* at = static_cast<const std::byte*>(tables);
  for (int d = 0; d < cuda::kResizeAxes; ++d) {
    const DeviceResize::Lists& l = p.lists[d];
    if (!l.is_set) continue;
    pass.axes[d] = {.first = reinterpret_cast<const int32_t*>(at + l.first),
                    .from = reinterpret_cast<const int32_t*>(at + l.from),
                    .weight = reinterpret_cast<const float*>(at + l.weight),
                    .outside = l.has_outside ? reinterpret_cast<const uint8_t*>(at + l.outside) : nullptr};
  }
  return pass;
}

/// Runs all passes; intermediates are f32 (f64 for f64).
ir::BoundKernel bind_sums(const ir::KernelInit& init, std::shared_ptr<const DeviceResize> run,
                          double outside) {
  const DType dtype = init.node.in[0].dtype;
  const int64_t size = dtype == DType::f64 ? 8 : 4, half = align_up(run->largest * size);
  std::shared_ptr<const void> tables;
  if (init.device != nullptr) tables = on_device(*init.device, run->tables);
  auto body = [=](const ir::RunArgs& args) {
    const size_t count = run->passes.size();
    const void* from = args.in[0];
    for (size_t i = 0; i < count; ++i) {
      cuda::ResizePass pass = pass_of(run->passes[i], tables.get());
      pass.outside = outside;
      pass.from_wide = i > 0;
      pass.to_wide = i + 1 < count;
      void* to = pass.to_wide ? static_cast<std::byte*>(args.workspace) + static_cast<int64_t>(i % 2) * half
                              : args.out[0];
      cuda::resize({args.stream, dtype}, pass, from, to);
      from = to;
    }
  };
  return {body, run->passes.size() > 1 ? 2 * half : 0};
}

ir::BoundKernel bind_copy(const ir::NodeView& node) {
  const cuda::StridedCopy whole = cuda::widened({{tensor::bytes_of(node.out[0])}, {1}, {1}, 0, 0, 1});
  return {
      [whole](const ir::RunArgs& args) { cuda::copy_strided(args.stream, whole, args.in[0], args.out[0]); }};
}

/// The bits that `value` has as an element of `dtype`.
uint64_t bits_of_value(DType dtype, double value) {
  return tensor::visit_dtype(dtype, [&](auto zero) {
    using T = decltype(zero);
    const T v = static_cast<T>(static_cast<float>(value));
    uint64_t bits = 0;
    std::memcpy(&bits, &v, std::min(sizeof(T), sizeof(bits)));
    return bits;
  });
}

ir::BoundKernel bind_moves(const ir::KernelInit& init, std::shared_ptr<const DeviceResize> run,
                           double outside) {
  const DType dtype = init.node.in[0].dtype;
  const int64_t size = tensor::bits_of(dtype) / 8, half = align_up(run->largest * size);
  const uint64_t bits = bits_of_value(dtype, outside);
  std::shared_ptr<const void> tables;
  if (init.device != nullptr) tables = on_device(*init.device, run->tables);
  auto body = [=](const ir::RunArgs& args) {
    const void* from = args.in[0];
    for (size_t i = 0; i < run->passes.size(); ++i) {
      void* to = i + 1 < run->passes.size()
                     ? static_cast<std::byte*>(args.workspace) + static_cast<int64_t>(i % 2) * half
                     : args.out[0];
      cuda::resize_moves(args.stream, pass_of(run->passes[i], tables.get()), {size, bits}, from, to);
      from = to;
    }
  };
  return {body, run->passes.size() > 1 ? 2 * half : 0};
}

bool is_nearest(const ir::NodeView& n) { return n.attrs.get_string("mode", "nearest") == "nearest"; }

/// Operand `first + i` is operand i of the forward op.
ir::Refusal refuse_unknown(const ir::NodeView& n) {
  for (size_t i = 1; i < n.in.size(); ++i) {
    if (n.present(i) && n.value(i) == nullptr && tensor::element_count(n.in_dims(i)) > 0)
      return "its extents are not known before the run";
  }
  return std::nullopt;
}

ir::Kernel resize_kernel(bool is_upsample) {
  ir::Kernel k{.name = "lines"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (ir::Refusal no = refuse_unknown(n)) return no;
    const DType type = n.in[0].dtype;
    const int bits = tensor::bits_of(type);
    if (is_nearest(n) && bits >= 8 && bits <= 64 && (bits > 8 || !tensor::is_float(type)))
      return std::nullopt;
    return refuse_dtype(n, 0,
                        {DType::f32, DType::f16, DType::bf16, DType::f64, DType::u8, DType::i8, DType::i32});
  };
  k.prepare = [is_upsample](const ir::KernelInit& init) {
    const ResizePlan plan = plan_resize(init.node, is_upsample);
    if (plan.axes.empty()) return bind_copy(init.node);
    std::vector<AxisTerms> terms;
    for (const ResizeAxis& axis : plan.axes) terms.push_back(forward_terms(axis));
    const auto run = make_device_resize(terms, init.node.in_dims(0));
    const double outside = plan.extrapolation;
    return plan.nearest ? bind_moves(init, run, outside) : bind_sums(init, run, outside);
  };
  return k;
}

ir::Kernel resize_grad_kernel() {
  ir::Kernel k{.name = "lines"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (ir::Refusal no = refuse_unknown(n)) return no;
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::f64});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& node = init.node;
    ir::NodeView forward = node;  // the node as resize saw it: x in the place of dy
    forward.in[0].shape = tensor::Shape::of(node.attrs.get_ints("shape"));
    forward.known[0] = nullptr;
    forward.out = {node.in[0]};
    const ResizePlan plan = plan_resize(forward, node.attrs.get_int("upsample", 0) != 0);
    if (plan.axes.empty()) return bind_copy(node);
    std::vector<AxisTerms> terms;
    for (const ResizeAxis& axis : plan.axes) terms.push_back(backward_terms(axis));
    std::reverse(terms.begin(), terms.end());
    return bind_sums(init, make_device_resize(terms, node.in_dims(0)), 0);
  };
  return k;
}

}  // namespace

std::vector<CudaKernels> images_cuda_kernels() {
  std::vector<CudaKernels> all{{"resize", {resize_kernel(false)}},
                               {"upsample", {resize_kernel(true)}},
                               {"resize_grad", {resize_grad_kernel()}}};
  for (CudaKernels& grid : grids_cuda_kernels()) all.push_back(std::move(grid));
  return all;
}

}  // namespace trireme::ops
