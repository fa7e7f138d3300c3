// Runs element programs: one launch each, by a kernel compiled for the program where the toolkit's run-time
// compiler is there, else by an interpreter.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backend/cuda/elementwise/element_program.h"
#include "base/memory/shared_cache.h"
#include "tensor/device.h"

namespace trireme::cuda {

/// How the results' elements are walked: merged extents, outermost first, and each operand's steps along
/// them.
struct ElementLoops {
  enum class Form : uint8_t { dense, scalar, broadcast };
  struct Source {
    Form form = Form::dense;
    std::vector<int64_t> steps;  ///< of broadcast operands, [extents]; 0 where repeated
  };
  int64_t count = 0;
  std::vector<int64_t> extent;  ///< of what the broadcast operands need; empty without them
  std::vector<Source> sources;
};
ElementLoops element_loops(const ElementProgram& program);

/// Why the launcher cannot take a program: too many operands, steps or dimensions; nullopt if it can.
std::optional<std::string> refuse_elements(const ElementProgram& program);

/// Launches a program again and again: `in` and `out` are the addresses of one launch. Results may overwrite
/// dense operands of their element size.
using ElementRun = std::function<void(tensor::Stream& stream, const void* const* in, void* const* out)>;
/// Compiles where `device` is a GPU and a run-time compiler is found; null device: nothing is compiled.
ElementRun bind_elements(const ElementProgram& program, tensor::Device* device, base::SharedCache& packs);
/// The interpreter of the same programs.
ElementRun interpret_elements(const ElementProgram& program);

}  // namespace trireme::cuda
