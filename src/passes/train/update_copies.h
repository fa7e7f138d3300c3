// 16-bit copies of parameters that their updates write in the same pass.
#pragma once

#include <optional>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// A rounded copy of a parameter, or of the part of it that a rank updates.
struct UpdateCopy {
  tensor::DType type = tensor::DType::bf16;  ///< or f16
  ir::ValueId state = ir::kNoValue;          ///< that holds it; without one it is a result alone
};

/// Makes updates write copies of new contents of f32 parameters: `updated[i]`, a result of an update, gets
/// `copies[i]` where there is one. Updates are replaced, and `updated` says what their results are then.
/// Returns the copies, kNoValue where there is none. `graph` needs a sort() then.
std::vector<ir::ValueId> add_update_copies(ir::Graph& graph, std::vector<ir::ValueId>& updated,
                                           const std::vector<std::optional<UpdateCopy>>& copies);

}  // namespace trireme::passes
