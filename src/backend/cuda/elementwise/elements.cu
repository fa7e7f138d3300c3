// Launches the interpreter of element programs.
#include <memory>

#include "backend/cuda/elementwise/element_kernels.h"
#include "backend/cuda/elementwise/element_launch.h"
#include "backend/cuda/device/launch.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

ElementCode code_of(const ElementProgram& program) {
  const ElementLoops loops = element_loops(program);
  ElementCode code{};
  code.count = loops.count;
  code.rank = static_cast<uint8_t>(loops.extent.size());
  code.step_count = static_cast<uint8_t>(program.steps.size());
  code.source_count = static_cast<uint8_t>(program.inputs.size());
  code.result_count = static_cast<uint8_t>(program.outputs.size());
  std::copy(program.steps.begin(), program.steps.end(), code.steps);
  std::copy(program.constants.begin(), program.constants.end(), code.constants);
  std::copy(loops.extent.begin(), loops.extent.end(), code.extent);
  for (size_t k = 0; k < program.inputs.size(); ++k) {
    ElementCode::Source& source = code.sources[k];
    source.dtype = program.inputs[k].dtype;
    source.form = static_cast<uint8_t>(loops.sources[k].form);
    std::copy(loops.sources[k].steps.begin(), loops.sources[k].steps.end(), source.steps);
  }
  for (size_t k = 0; k < program.outputs.size(); ++k)
    code.results[k] = {nullptr, program.outputs[k].dtype, program.outputs[k].reg};
  return code;
}

template <class C>
void interpret(tensor::Stream& stream, const ElementCode& code) {
  using Kernel = InterpretElements<C>;
  constexpr int kThreads = Kernel::kMostThreads;
  const int64_t wanted = (code.count + kThreads * Kernel::kEach - 1) / (kThreads * Kernel::kEach);
  launch(stream, "elements", {blocks_for(cuda_stream(stream), wanted, 64), kThreads}, Kernel{code});
}

}  // namespace

ElementRun interpret_elements(const ElementProgram& program) {
  base::check(!refuse_elements(program), "an element program that no launch takes");
  const auto shared = std::make_shared<const ElementCode>(code_of(program));
  const ElementType type = program.type;
  return [shared, type](tensor::Stream& stream, const void* const* in, void* const* out) {
    if (shared->count == 0) return;
    ElementCode code = *shared;
    for (int k = 0; k < code.source_count; ++k) code.sources[k].data = in[k];
    for (int k = 0; k < code.result_count; ++k) code.results[k].data = out[k];
    switch (type) {
      case ElementType::f32: return interpret<float>(stream, code);
      case ElementType::f64: return interpret<double>(stream, code);
      case ElementType::i64: return interpret<int64_t>(stream, code);
      case ElementType::u64: return interpret<uint64_t>(stream, code);
    }
  };
}

}  // namespace trireme::cuda
