// Launches top_k.
#include "backend/cuda/index/select.h"

#include "backend/cuda/device/launch.h"
#include "backend/cuda/index/select_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

template <class T>
void run(On on, const TopKArgs& a) {
  launch(on.stream, "top_k",
         {blocks_for(cuda_stream(on.stream), a.outer * a.inner, 16), TopK<T>::kThreads, kReduceScratchBytes},
         TopK<T>{static_cast<const T*>(a.x), static_cast<T*>(a.y), a.places, a.outer, a.n, a.inner, a.k,
                 a.is_largest});
}

}  // namespace

void top_k(On on, const TopKArgs& a) {
  if (a.outer * a.inner * a.k == 0) return;
  switch (on.dtype) {
    case tensor::DType::f32: return run<float>(on, a);
    case tensor::DType::f16: return run<Half>(on, a);
    case tensor::DType::bf16: return run<BFloat16>(on, a);
    case tensor::DType::i32: return run<int32_t>(on, a);
    default: base::fail(base::ErrorCode::internal, "no order of ", name_of(on.dtype), " on the device");
  }
}

}  // namespace trireme::cuda
