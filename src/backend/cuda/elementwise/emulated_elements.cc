// Element programs in builds without the toolkit: the interpreter runs all of them.
#include "backend/cuda/elementwise/element_launch.h"
#include "backend/cuda/elementwise/element_text.h"
#include "base/error.h"

namespace trireme::cuda {

ElementRun bind_elements(const ElementProgram& program, tensor::Device*, base::SharedCache&) {
  return interpret_elements(program);
}

std::string compile_elements(const ElementText&, int) {
  base::fail(base::ErrorCode::unavailable,
             "this program was built without the CUDA toolkit (./dev build cuda)");
}

}  // namespace trireme::cuda
