// Launches the reduction over ranks for its element types.
#include "backend/cuda/device/tree_reduce.h"

#include "backend/cuda/device/launch.h"
#include "backend/cuda/device/tree_kernels.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, class Combine, bool kAligned>
void run(On on, const TreeArgs& a) {
  const auto& stream = static_cast<const CudaStream&>(on.stream);
  launch(on.stream, "tree_reduce", {blocks_for(stream, (a.n + kThreads - 1) / kThreads), kThreads},
         TreeReduce<T, Combine, kAligned>{static_cast<const std::byte*>(a.pieces),
                                          static_cast<const std::byte*>(a.own),
                                          static_cast<std::byte*>(a.out), a.stride, a.n, a.rank, a.ranks});
}

template <class T, bool kAligned>
void run_combined(On on, const TreeArgs& a) {
  a.maximum ? run<T, TreeMax, kAligned>(on, a) : run<T, TreeSum, kAligned>(on, a);
}

template <class T>
void run_typed(On on, const TreeArgs& a) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const bool is_aligned = (address(a.pieces) | address(a.own) | address(a.out)) % sizeof(T) == 0;
  is_aligned ? run_combined<T, true>(on, a) : run_combined<T, false>(on, a);
}

}  // namespace

void tree_reduce(On on, const TreeArgs& args) {
  using tensor::DType;
  if (args.n == 0) return;
  switch (on.dtype) {
    case DType::f32: return run_typed<float>(on, args);
    case DType::f64: return run_typed<double>(on, args);
    case DType::i64: return run_typed<int64_t>(on, args);
    case DType::f16: return run_typed<Half>(on, args);
    case DType::bf16: return run_typed<BFloat16>(on, args);
    default: base::fail(base::ErrorCode::internal, "no reduction of ", name_of(on.dtype), " on the device");
  }
}

}  // namespace trireme::cuda
