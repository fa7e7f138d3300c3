// Which of the vector toolkit's f32 functions computes an elementwise op; for the CPU kernels of this family.
#pragma once

#include <optional>
#include <string_view>

#include "backend/cpu/elementwise/binary_ops.h"
#include "backend/cpu/elementwise/gradient_ops.h"
#include "backend/cpu/elementwise/unary_ops.h"
#include "ops/elementwise/row_kernels.h"

namespace trireme::ops {

/// The toolkit's function of the op `name` (attributes as Params in table order), if it has one with the op's
/// meaning.
std::optional<cpu::UnaryFunction> unary_tile_of(std::string_view name, const Params& params);
/// The derivative a `_grad` op computes.
std::optional<cpu::GradientFunction> gradient_tile_of(std::string_view name, const Params& params);

}  // namespace trireme::ops
