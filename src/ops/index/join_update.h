// How one update of a scatter joins the element that it meets, by type and mode.
#pragma once

#include <type_traits>

#include "ops/elementwise/row_kernels.h"
#include "ops/index/index_ops.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {

/// One update into one element. Sums and products of integers wrap around.
template <class T, ScatterMode kMode>
void join_update(T& y, T u) {
  using C = std::conditional_t<std::is_integral_v<T> && !std::is_same_v<T, bool>, uint64_t, Arithmetic<T>>;
  if constexpr (kMode == ScatterMode::none) y = u;
  if constexpr (kMode == ScatterMode::add) y = static_cast<T>(static_cast<C>(y) + static_cast<C>(u));
  if constexpr (kMode == ScatterMode::mul) y = static_cast<T>(static_cast<C>(y) * static_cast<C>(u));
  if constexpr (kMode == ScatterMode::max) y = u > y ? u : y;
  if constexpr (kMode == ScatterMode::min) y = u < y ? u : y;
}

/// Loops::of<T, mode>() for the element type of x and the mode of a scatter node; plain writes depend on the
/// size of elements alone, which is 1, 2, 4 or 8 bytes.
template <class Loops>
auto join_loop(const ir::NodeView& n) {
  const tensor::DType type = n.in[0].dtype;
  const auto typed = [&]<ScatterMode kMode>() {
    return tensor::visit_dtype(type, [](auto zero) { return Loops::template of<decltype(zero), kMode>(); });
  };
  switch (scatter_mode(n.attrs)) {
    case ScatterMode::add: return typed.template operator()<ScatterMode::add>();
    case ScatterMode::mul: return typed.template operator()<ScatterMode::mul>();
    case ScatterMode::max: return typed.template operator()<ScatterMode::max>();
    case ScatterMode::min: return typed.template operator()<ScatterMode::min>();
    case ScatterMode::none: break;
  }
  switch (element_bytes_of(type)) {
    case 1: return Loops::template of<uint8_t, ScatterMode::none>();
    case 2: return Loops::template of<uint16_t, ScatterMode::none>();
    case 4: return Loops::template of<uint32_t, ScatterMode::none>();
    default: return Loops::template of<uint64_t, ScatterMode::none>();
  }
}

/// Refuses elements and modes that join_loop has no loops for, and empty operands.
ir::Refusal refuse_join(const ir::NodeView& n);

}  // namespace trireme::ops
