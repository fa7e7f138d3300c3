// Small pieces that most kernel files share: typed operand access, float dispatch, half precision through
// f32.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "ir/kernel.h"

namespace trireme::ops {

template <class T>
const T* in_ptr(const ir::RunArgs& args, size_t i) {
  return static_cast<const T*>(args.in[i]);
}
/// Operand i, or null where the node has fewer than i + 1 (`count`) operands or leaves it out.
template <class T>
const T* opt_ptr(const ir::RunArgs& args, size_t i, size_t count) {
  return i < count ? static_cast<const T*>(args.in[i]) : nullptr;
}
template <class T>
T* out_ptr(const ir::RunArgs& args, size_t i) {
  return static_cast<T*>(args.out[i]);
}

/// Calls f(float{}) or f(double{}). Throws internal for other types: kernels refuse those before.
template <class F>
decltype(auto) visit_float(tensor::DType type, F&& f) {
  base::check(type == tensor::DType::f32 || type == tensor::DType::f64, "kernel prepared for ",
              name_of(type));
  return type == tensor::DType::f64 ? f(double{}) : f(float{});
}

/// Refuses unless operand i has one of the types; "operand 0 is i8" is the reason a user reads.
ir::Refusal refuse_dtype(const ir::NodeView& node, size_t i, std::initializer_list<tensor::DType> accepted);

/// Refuses unless operand 0 is f32 or f64.
ir::Refusal refuse_non_float(const ir::NodeView& node);

/// Refuses nodes with an operand or result of no elements: toolkits expect some, reference kernels do not.
ir::Refusal refuse_empty(const ir::NodeView& node);

using PrepareFn = std::function<ir::BoundKernel(const ir::KernelInit&)>;

/// The reference kernel for f32 and f64 operand 0, followed by one that runs f16 and bf16 through it.
std::vector<ir::Kernel> float_reference(PrepareFn prepare);

/// A kernel for f16 and bf16 operands: converts them to f32 in the workspace, runs `inner` there, rounds the
/// results.
ir::Kernel via_f32(ir::Kernel inner);

/// `fast` (f32 only) before the reference kernels; half precision tries `fast` through f32 first.
std::vector<ir::Kernel> faster(std::vector<ir::Kernel> fast, std::vector<ir::Kernel> reference);

/// Bytes rounded up so that the next part of a workspace starts on its own cache line.
constexpr int64_t align_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Product of extents [begin, end).
int64_t product(const tensor::Dims& dims, size_t begin, size_t end);

/// The three loops of an op that works along one axis: [outer, n, inner].
struct AxisLoops {
  int64_t outer = 1, n = 1, inner = 1;
};
AxisLoops axis_loops(const tensor::Dims& dims, size_t axis);

/// Row-major strides of `dims` aligned to the right of `rank` axes; 0 where an axis is missing or has
/// extent 1.
std::vector<int64_t> broadcast_strides(const tensor::Dims& dims, size_t rank);

/// Tasks of about 16k elementary operations: the grain of parallel loops whose items cost `flop` each.
int64_t grain_for(double flop);

}  // namespace trireme::ops
