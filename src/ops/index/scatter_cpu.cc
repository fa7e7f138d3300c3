// CPU kernels of scatter_elements and scatter_nd: one thread joins updates in the order of the operand, so
// that repeated indices give a defined result.
#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/index/index_access.h"
#include "ops/index/index_ops.h"
#include "ops/index/lane_index_cpu.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

/// Joins `n` updates into y.
using JoinFn = void (*)(void* y, const void* updates, int64_t n);

template <class T, ScatterMode kMode>
void join(void* out, const void* updates, int64_t n) {
  T* y = static_cast<T*>(out);
  const T* u = static_cast<const T*>(updates);
  using C = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, uint64_t, Arithmetic<T>>;
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kMode == ScatterMode::add)
      y[i] = static_cast<T>(static_cast<C>(y[i]) + static_cast<C>(u[i]));
    if constexpr (kMode == ScatterMode::mul)
      y[i] = static_cast<T>(static_cast<C>(y[i]) * static_cast<C>(u[i]));
    if constexpr (kMode == ScatterMode::max) y[i] = u[i] > y[i] ? u[i] : y[i];
    if constexpr (kMode == ScatterMode::min) y[i] = u[i] < y[i] ? u[i] : y[i];
  }
}

template <ScatterMode kMode>
JoinFn join_of(tensor::DType dtype) {
  if (!has_arithmetic(dtype)) return nullptr;
  return tensor::visit_dtype(dtype, [](auto zero) -> JoinFn { return &join<decltype(zero), kMode>; });
}

/// Returns null for plain writes.
JoinFn join_for(const ir::NodeView& n) {
  switch (scatter_mode(n.attrs)) {
    case ScatterMode::none: return nullptr;
    case ScatterMode::add: return join_of<ScatterMode::add>(n.in[0].dtype);
    case ScatterMode::mul: return join_of<ScatterMode::mul>(n.in[0].dtype);
    case ScatterMode::max: return join_of<ScatterMode::max>(n.in[0].dtype);
    case ScatterMode::min: return join_of<ScatterMode::min>(n.in[0].dtype);
  }
  return nullptr;
}

/// Copies x to the result, unless both share memory.
void start_from_x(const ir::RunArgs& args, int64_t bytes) {
  if (args.out[0] != args.in[0] && bytes > 0)
    std::memcpy(args.out[0], args.in[0], static_cast<size_t>(bytes));
}

void write(JoinFn join, std::byte* y, const std::byte* update, int64_t count, int64_t size) {
  if (join == nullptr) {
    std::memcpy(y, update, static_cast<size_t>(count * size));
  } else {
    join(y, update, count);
  }
}

ir::BoundKernel bind_elements(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0).empty() ? tensor::Dims{1} : n.in_dims(0);
  const tensor::Dims indices = n.in_dims(1).empty() ? tensor::Dims{1} : n.in_dims(1);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.size());
  const std::vector<int64_t> x_steps = dense_steps(x);
  const int64_t count = tensor::element_count(indices), size = element_bytes_of(n.in[0].dtype);
  const int64_t bytes = tensor::bytes_of(n.out[0]);
  const JoinFn join = join_for(n);
  const IndexReader at(n.in[1].dtype);
  return {[=](const ir::RunArgs& args) {
    start_from_x(args, bytes);
    const std::byte* updates = static_cast<const std::byte*>(args.in[2]);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t k = at.checked(args.in[1], i, x[axis], args.status);
      if (k < 0) continue;
      int64_t to = k * x_steps[axis], rest = i;
      for (size_t d = indices.size(); d-- > 0;) {
        if (d != axis) to += rest % indices[d] * x_steps[d];
        rest /= indices[d];
      }
      write(join, static_cast<std::byte*>(args.out[0]) + to * size, updates + i * size, 1, size);
    }
  }};
}

ir::BoundKernel bind_nd(const ir::NodeView& n) {
  const tensor::Dims at = n.in_dims(1);
  const int64_t depth = at.back();
  const TupleReader reader(n.in_dims(0), 0, static_cast<size_t>(depth));
  int64_t tuples = 1;
  for (size_t d = 0; d + 1 < at.size(); ++d) tuples *= at[d];
  const int64_t size = element_bytes_of(n.in[0].dtype), bytes = tensor::bytes_of(n.out[0]);
  const JoinFn join = join_for(n);
  return {[=](const ir::RunArgs& args) {
    start_from_x(args, bytes);
    const std::byte* updates = static_cast<const std::byte*>(args.in[2]);
    for (int64_t i = 0; i < tuples; ++i) {
      const int64_t to = reader.offset(static_cast<const int64_t*>(args.in[1]) + i * depth, args.status);
      if (to < 0) continue;
      write(join, static_cast<std::byte*>(args.out[0]) + to * size, updates + i * reader.slice() * size,
            reader.slice(), size);
    }
  }};
}

std::vector<ir::Kernel> scatter_reference(ir::BoundKernel (*bind)(const ir::NodeView&)) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (tensor::bits_of(n.in[0].dtype) < 8)
      return base::concat("no indexing into packed ", name_of(n.in[0].dtype));
    if (scatter_mode(n.attrs) != ScatterMode::none && !has_arithmetic(n.in[0].dtype)) {
      return base::concat("no arithmetic on ", name_of(n.in[0].dtype));
    }
    return std::nullopt;
  };
  k.prepare = [bind](const ir::KernelInit& init) { return bind(init.node); };
  k.may_overwrite = 1;
  return {k};
}

}  // namespace

std::vector<ir::Kernel> scatter_elements_cpu_kernels() {
  return {scatter_lanes_kernel(), scatter_reference(bind_elements)[0]};
}
std::vector<ir::Kernel> scatter_nd_cpu_kernels() {
  return {scatter_slices_kernel(), scatter_reference(bind_nd)[0]};
}

}  // namespace trireme::ops
