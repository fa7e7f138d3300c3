// Element programs as CUDA C++: one kernel of 16-byte accesses a program, for the toolkit's run-time
// compiler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/elementwise/element_program.h"

namespace trireme::cuda {

/// A header that generated kernels include; the functors are those of tensor/.
struct TextHeader {
  std::string_view name, text;
};
/// tensor/*_math.h, and the standard ones as far as these use them.
const std::vector<TextHeader>& element_headers();

inline constexpr int kElementThreads = 256;

/// What a generated kernel takes.
struct ElementArguments {
  const void* in[kElementInputs];
  void* out[kElementOutputs];
  long long count;
};

struct ElementText {
  std::string source;  ///< `extern "C" __global__ void elements(const Arguments)`
  int each = 4;        ///< elements of a thread: those of one 16-byte access of its narrowest operand
};
/// Programs of one structure have one text: of dense operands and single elements it does not depend on the
/// extents, which are constants where operands are broadcast.
ElementText element_text(const ElementProgram& program);

/// Machine code of a text for sm_`arch`, by the run-time compiler. Throws unavailable where there is none,
/// internal with the compiler's words.
std::string compile_elements(const ElementText& text, int arch);

}  // namespace trireme::cuda
