// The table of operators as documentation, and the blanks in it that need a reason.
#pragma once

#include <string>
#include <vector>

namespace trireme::ops {

/// docs/ops.md: one row per operator with its ONNX name, kernels per device, expansion and gradient.
std::string completeness_markdown();

/// One line per defect: an operator without documentation, or that nothing can run.
std::vector<std::string> completeness_gaps();

}  // namespace trireme::ops
