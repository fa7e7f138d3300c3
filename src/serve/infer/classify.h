// The classification extension: the best classes of an output in place of its scores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/infer/wire_tensor.h"

namespace trireme::serve {

/// The classification extension: the best `count` values of each row as "value:index[:label]" strings,
/// [count] or [rows, count]. `labels` may be empty. Throws invalid_argument for BYTES or for more than a
/// million elements.
WireTensor classify(const WireTensor& scores, int64_t count, bool is_batched,
                    const std::vector<std::string>& labels);

}  // namespace trireme::serve
