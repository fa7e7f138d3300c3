// Element programs in builds without the toolkit: the interpreter runs them all.
#include "backend/cuda/element_launch.h"

namespace trireme::cuda {

ElementRun bind_elements(const ElementProgram& program, tensor::Device*) {
  return interpret_elements(program);
}

}  // namespace trireme::cuda
