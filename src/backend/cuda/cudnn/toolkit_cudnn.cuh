// cuDNN as it is found at run time, and what its graphs share.
#pragma once

#include <cudnn_frontend.h>

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/device/toolkit_library.h"
#include "base/error.h"
#include "base/guarded.h"

namespace trireme::cuda {

namespace fe = cudnn_frontend;

// Plans that need more are not chosen; all ask for as much, so that a program does not depend on the choice.
// The gradient of attention has a bound of its own.
inline constexpr int64_t kCudnnWorkspaceBytes = int64_t{64} << 20;

/// The library and handles of one device; a launch borrows one for its stream.
class Cudnn {
 public:
  /// Throws unavailable if the library, cuBLASLt or the runtime is not found.
  explicit Cudnn(int ordinal);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  int ordinal() const { return ordinal_; }

  /// A handle for `stream` until it is destroyed.
  class Lease {
   public:
    Lease(const Cudnn& owner, tensor::Stream* stream);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    cudnnHandle_t handle() const { return handle_; }

   private:
    const Cudnn& owner_;
    cudnnHandle_t handle_;
  };

 private:
  int ordinal_;
  mutable base::Guarded<std::vector<cudnnHandle_t>> free_;
};

/// The library for a place with a device; null with none, or where the library is missing: then kernels of
/// ours run.
std::shared_ptr<const Cudnn> cudnn_of(const GemmPlace& place);

fe::DataType_t cudnn_type(tensor::DType type);

/// Validates the graph and builds its first plan that is as wished and needs no more than `workspace_bytes`;
/// false if there is none.
struct PlanWish {
  /// Not those that say of themselves that they are not deterministic or sum in 16 bits. Attention asks for a
  /// deterministic algorithm in its graph; what its engines say of themselves holds for all their algorithms.
  bool checks_notes = true;
  bool keeps_f32 = false;  ///< nor those that round operands to TF32
  int64_t workspace_bytes = kCudnnWorkspaceBytes;
};
bool build_graph(fe::graph::Graph& graph, const Cudnn& cudnn, const PlanWish& wish);

/// `workspace` rounded up to what graphs want; kCudnnAlignment bytes more are asked for.
inline constexpr int64_t kCudnnAlignment = 256;
inline std::byte* cudnn_aligned(void* workspace) {
  const auto at = (reinterpret_cast<uintptr_t>(workspace) + kCudnnAlignment - 1) / kCudnnAlignment;
  return reinterpret_cast<std::byte*>(at * kCudnnAlignment);
}

/// One launch of a built graph; `addresses` by tensor.
using CudnnAddresses = std::unordered_map<std::shared_ptr<fe::graph::Tensor_attributes>, void*>;
void run_graph(const fe::graph::Graph& graph, const Cudnn& cudnn, tensor::Stream& stream,
               CudnnAddresses addresses, void* workspace);

}  // namespace trireme::cuda
