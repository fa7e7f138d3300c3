// Where there is no cuDNN, our own kernels do every convolution and attention.
#include "backend/cuda/attention/attention.h"
#include "backend/cuda/conv/convolution.h"

namespace trireme::cuda {

std::unique_ptr<ConvolutionPlan> make_convolution(const GemmPlace&, const ConvolutionShape&) {
  return nullptr;
}

std::shared_ptr<const AttentionPlan> make_attention(const GemmPlace&, const AttentionShape&, bool, bool) {
  return nullptr;
}

}  // namespace trireme::cuda
