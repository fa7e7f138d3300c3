// The kernel of resize_grad on CPU: the passes of resize, transposed and in reverse order.
#include <algorithm>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/image/image_kernels.h"
#include "ops/image/resize_plan.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// One transposed pass: line i of dx [outer, in, inner] is the weighted sum of the lines of dy that read it,
/// in their order: terms [first[i], first[i + 1]).
struct TransposedPass {
  int64_t outer, in, out, inner;
  std::vector<int64_t> first;  // [in + 1]
  std::vector<int32_t> from;   // [terms]: dy line
  std::vector<float> weight;   // [terms]
};

struct GradRun {
  std::vector<TransposedPass> passes;  // in the order they run
  int64_t largest = 0;                 // elements of the largest intermediate
  int64_t elements = 0;                // elements of dx
};

TransposedPass transposed(const ResizeAxis& a, bool nearest, int64_t outer, int64_t inner) {
  TransposedPass p{outer, a.in, a.out, inner, std::vector<int64_t>(static_cast<size_t>(a.in) + 1, 0), {}, {}};
  const int64_t taps = nearest ? 1 : a.taps, stride = a.taps;
  const auto each_term = [&](auto&& f) {
    for (int64_t o = 0; o < a.out; ++o) {
      // Extrapolated results do not depend on x.
      if (!a.outside.empty() && a.outside[static_cast<size_t>(o)]) continue;
      for (int64_t k = 0; k < taps; ++k) {
        const size_t at = static_cast<size_t>(o * stride + k);
        f(a.index[at], static_cast<int32_t>(o), nearest ? 1.0f : a.weight[at]);
      }
    }
  };
  each_term([&](int32_t to, int32_t, float) { ++p.first[static_cast<size_t>(to) + 1]; });
  for (size_t i = 1; i < p.first.size(); ++i) p.first[i] += p.first[i - 1];
  p.from.resize(static_cast<size_t>(p.first.back()));
  p.weight.resize(p.from.size());
  std::vector<int64_t> next = p.first;
  each_term([&](int32_t to, int32_t o, float w) {
    const size_t at = static_cast<size_t>(next[static_cast<size_t>(to)]++);
    p.from[at] = o;
    p.weight[at] = w;
  });
  return p;
}

/// The plan for the node as resize saw it, with x in the place of dy.
std::shared_ptr<const GradRun> make_grad_run(const ir::NodeView& node) {
  ir::NodeView forward = node;
  forward.in[0].shape = tensor::Shape::of(node.attrs.get_ints("shape"));
  forward.known[0] = nullptr;
  forward.out = {node.in[0]};
  const ResizePlan plan = plan_resize(forward, node.attrs.get_int("upsample", 0) != 0);
  auto run = std::make_shared<GradRun>();
  Dims dims = forward.in_dims(0);
  run->elements = tensor::element_count(dims);
  for (const ResizeAxis& axis : plan.axes) {
    const int64_t outer = product(dims, 0, axis.axis), inner = product(dims, axis.axis + 1, dims.size());
    run->passes.push_back(transposed(axis, plan.nearest, outer, inner));
    dims[axis.axis] = axis.out;
    run->largest = std::max(run->largest, tensor::element_count(dims));
  }
  std::reverse(run->passes.begin(), run->passes.end());
  return run;
}

template <class T>
void run_transposed(const TransposedPass& p, const T* dy, T* dx, base::ThreadPool& pool) {
  const double terms = double(p.from.size()) / double(std::max<int64_t>(1, p.in));
  pool.for_range(p.outer * p.in, grain_for(double(p.inner) * (1 + terms)), [&](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const size_t at = static_cast<size_t>(line % p.in);
      const T* from = dy + line / p.in * p.out * p.inner;
      T* to = dx + line * p.inner;
      std::fill_n(to, p.inner, T(0));
      for (int64_t k = p.first[at]; k < p.first[at + 1]; ++k) {
        const T* term = from + p.from[static_cast<size_t>(k)] * p.inner;
        const T w = T(p.weight[static_cast<size_t>(k)]);
        for (int64_t i = 0; i < p.inner; ++i) to[i] += w * term[i];
      }
    }
  });
}

ir::BoundKernel prepare_resize_grad(const ir::KernelInit& init) {
  const auto run = make_grad_run(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t bytes = run->passes.size() > 1 ? 2 * run->largest * static_cast<int64_t>(sizeof(T)) : 0;
    const auto body = [run](const ir::RunArgs& args) {
      const size_t count = run->passes.size();
      const T* from = in_ptr<T>(args, 0);
      if (count == 0) std::copy_n(from, run->elements, out_ptr<T>(args, 0));
      for (size_t i = 0; i < count; ++i) {
        T* to = i + 1 == count ? out_ptr<T>(args, 0)
                               : static_cast<T*>(args.workspace) + static_cast<int64_t>(i % 2) * run->largest;
        run_transposed(run->passes[i], from, to, cpu::pool_of(args.stream));
        from = to;
      }
    };
    return ir::BoundKernel{body, bytes};
  });
}

}  // namespace

std::vector<ir::Kernel> resize_grad_cpu_kernels() {
  const ir::Kernel plain{.name = "separable", .refuse = refuse_non_float, .prepare = prepare_resize_grad};
  return {plain, via_f32(plain)};
}

}  // namespace trireme::ops
