// cuDNN as it is found at run time, and what its graphs share.
#pragma once

#include <cudnn_frontend.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/cuda/dense/gemm.h"
#include "backend/cuda/device/toolkit_library.h"
#include "backend/cuda/kept/plan_store.h"
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
  Cudnn(int ordinal, std::shared_ptr<const PlanStore> plans);
  ~Cudnn();
  Cudnn(const Cudnn&) = delete;
  Cudnn& operator=(const Cudnn&) = delete;
  int ordinal() const { return ordinal_; }
  /// What plans depend on beside the graph: the GPU, versions of driver, library and front end.
  const std::string& device_key() const { return device_key_; }
  /// Plans of earlier processes.
  const PlanStore& plans() const { return *plans_; }
  /// Calls measure() while nobody else measures on this device: two at once would disturb each other.
  template <class Measure>
  auto alone(const Measure& measure) const {
    return measuring_.with([&](char&) { return measure(); });
  }

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
  std::shared_ptr<const PlanStore> plans_;
  std::string device_key_;
  mutable base::Guarded<std::vector<cudnnHandle_t>> free_;
  mutable base::Guarded<char> measuring_;
};

/// The library for a place with a device; null with none, or where the library is missing: then kernels of
/// ours run.
std::shared_ptr<const Cudnn> cudnn_of(const GemmPlace& place);

fe::DataType_t cudnn_type(tensor::DType type);

/// Numbers that a graph's description gives its operands and results, so that a plan from disk knows them.
using Uid = int64_t;

/// What a plan has to be.
struct PlanWish {
  std::string key;  ///< all that the graph's description depends on
  /// Not those that say of themselves that they are not deterministic or sum in 16 bits. Attention asks for a
  /// deterministic algorithm in its graph; what its engines say of themselves holds for all their algorithms.
  bool checks_notes = true;
  bool keeps_f32 = false;  ///< nor those that round operands to TF32
  int64_t workspace_bytes = kCudnnWorkspaceBytes;
  /// Bytes of each operand and result, for measuring; empty: the library's first proposal is taken.
  std::vector<std::pair<Uid, int64_t>> operands = {};
};

/// A graph with a plan as wished: what an earlier process kept; else of the library's first proposals the
/// fastest, which is then kept. Null where the library has none, which is kept as well. `describe` adds
/// operations, operands and their Uids to an empty graph. Any thread; several may build at a time.
std::unique_ptr<const fe::graph::Graph> ready_graph(const GemmPlace& place, const Cudnn& cudnn,
                                                    const PlanWish& wish,
                                                    const std::function<void(fe::graph::Graph&)>& describe);

/// What ready_graph() gives, once for all who share it: graphs are built side by side, while no cache is
/// locked.
class SharedGraph {
 public:
  using Graph = std::unique_ptr<const fe::graph::Graph>;
  /// Null if the library refuses the graph. Valid as long as this is.
  const fe::graph::Graph* get(const std::function<Graph()>& build) const {
    return graph_.with([&](std::optional<Graph>& graph) {
      if (!graph) graph = build();
      return graph->get();
    });
  }

 private:
  mutable base::Guarded<std::optional<Graph>> graph_;
};

/// `workspace` rounded up to what graphs want; kCudnnAlignment bytes more are asked for.
inline constexpr int64_t kCudnnAlignment = 256;
inline std::byte* cudnn_aligned(void* workspace) {
  const auto at = (reinterpret_cast<uintptr_t>(workspace) + kCudnnAlignment - 1) / kCudnnAlignment;
  return reinterpret_cast<std::byte*>(at * kCudnnAlignment);
}

/// One launch of a built graph.
using CudnnAddresses = std::unordered_map<Uid, void*>;
void run_graph(const fe::graph::Graph& graph, const Cudnn& cudnn, tensor::Stream& stream,
               CudnnAddresses addresses, void* workspace);

}  // namespace trireme::cuda
