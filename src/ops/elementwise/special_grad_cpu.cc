// CPU kernels of gelu_grad and clip_grad.
#include <limits>

#include "backend/cpu/device/cpu_stream.h"
#include "tensor/derivative_math.h"
#include "ops/elementwise/special.h"

namespace trireme::ops {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool is_tanh(const ir::NodeView& n) { return n.attrs.get_string("approximate", "none") == "tanh"; }

ir::Kernel special_grad_reference(std::function<ir::BoundKernel(const ir::NodeView&)> bind) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!tensor::is_float(n.in[0].dtype) || !has_arithmetic(n.in[0].dtype)) return no_type(n.in[0].dtype);
    return std::nullopt;
  };
  k.prepare = [bind = std::move(bind)](const ir::KernelInit& init) { return bind(init.node); };
  k.may_overwrite = 3;
  return k;
}

/// dx = dy where low <= x <= high, else 0; bounds may be absent (null) and are read in every run.
template <class T>
void clip_grad_row(const RowArgs& r) {
  using C = Arithmetic<T>;
  const T* d = static_cast<const T*>(r.in[0]) + r.offset[0];
  const T* x = static_cast<const T*>(r.in[1]) + r.offset[1];
  T* y = static_cast<T*>(r.out) + r.out_offset;
  const auto bound = [&](size_t i, double absent) {
    return r.operands > i && r.in[i] != nullptr ? static_cast<C>(*static_cast<const T*>(r.in[i]))
                                                : static_cast<C>(absent);
  };
  const C low = bound(2, -kInfinity), high = bound(3, kInfinity);
  for (int64_t i = 0; i < r.n; ++i) {
    const C v = static_cast<C>(x[i]);
    y[i] = v >= low && v <= high ? d[i] : static_cast<T>(0);
  }
}

struct ClipGradRow {
  template <class T>
  static constexpr RowFn row = &clip_grad_row<T>;
};

}  // namespace

std::vector<ir::Kernel> gelu_grad_cpu_kernels() {
  const auto vector_of = [](const char* function, bool wants_tanh) {
    ir::Kernel k = vector_gradient_kernel(function, [](const ir::NodeView&) { return Params{}; });
    k.name = function;
    k.refuse = [wants_tanh, plain = k.refuse](const ir::NodeView& n) -> ir::Refusal {
      if (is_tanh(n) != wants_tanh) return "the other formula is asked for";
      return plain(n);
    };
    return k;
  };
  return {vector_of("gelu_grad", false), vector_of("gelu_tanh_grad", true),
          special_grad_reference([](const ir::NodeView& n) {
            const RowFn row = is_tanh(n) ? row_for<BinaryRow<math::GeluTanhGrad>, Class::real>(n.in[0].dtype)
                                         : row_for<BinaryRow<math::GeluErfGrad>, Class::real>(n.in[0].dtype);
            return broadcast_run(row, n, {});
          })};
}

std::vector<ir::Kernel> clip_grad_cpu_kernels() {
  ir::Kernel fast = vector_gradient_kernel("clip_grad", [](const ir::NodeView& n) {
    return Params{n.present(2) ? n.value(2)->to_doubles().at(0) : -kInfinity,
                  n.present(3) ? n.value(3)->to_doubles().at(0) : kInfinity};
  });
  fast.refuse = [plain = fast.refuse](const ir::NodeView& n) -> ir::Refusal {
    for (size_t i = 2; i < 4; ++i) {
      if (n.present(i) && n.value(i) == nullptr) return "a bound is not known before the run";
    }
    return plain(n);
  };
  return {
      fast, special_grad_reference([](const ir::NodeView& n) -> ir::BoundKernel {
        const RowFn row = row_for<ClipGradRow, Class::real>(n.in[0].dtype);
        const tensor::Dims dims = n.in_dims(0);
        const StridedLoop loop(dims, {dense_steps(dims), dense_steps(dims)});
        const size_t operands = n.in.size();
        return {[loop, row, operands](const ir::RunArgs& args) {
          const Params none{};
          loop.run(cpu::pool_of(args.stream), [&](const int64_t* offset, int64_t out_offset, int64_t count) {
            row({args.in, offset, loop.inner_steps(), args.out[0], out_offset, count, none.data(), operands});
          });
        }};
      })};
}

}  // namespace trireme::ops
