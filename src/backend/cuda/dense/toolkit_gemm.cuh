// cuBLASLt as it is found at run time, and the file of algorithms that were measured.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/device/toolkit_library.h"
#include "base/guarded.h"

namespace trireme::cuda {

/// The library's functions and a handle for one device.
class CublasLt {
 public:
  /// Throws unavailable if the library is not found or does not start.
  explicit CublasLt(int ordinal);
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  cublasLtHandle_t handle() const { return handle_; }
  /// What measured choices depend on: the GPU's name, versions of driver and library.
  const std::string& device_key() const { return device_key_; }
  /// Throws unavailable (exhausted for memory) with `what` unless `status` is success.
  void require(cublasStatus_t status, const char* what) const;

  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_config = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) init_desc = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) set_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;

 private:
  ToolkitLibrary library_{"libcublasLt.so.13"};
  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtGetVersion) version_ = nullptr;
  decltype(&cublasLtGetStatusName) status_name_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  std::string device_key_;
};

/// The algorithm of one product.
struct GemmChoice {
  cublasLtMatmulAlgo_t algo{};
};

/// Algorithms to measure, and how to launch one on memory made for it: on each of some products, all of which
/// an algorithm has to run.
struct GemmTrial {
  using Launch = std::function<void(cudaStream_t, const cublasLtMatmulAlgo_t&)>;
  std::vector<cublasLtMatmulAlgo_t> algos;
  std::vector<Launch> launches;
};

/// Choices by product, in memory and in a file of JSON lines that processes share: the first to write a
/// product's line decides it for all, so that ranks on one machine run the same algorithms.
class GemmChoices {
 public:
  GemmChoices(std::string file, std::string device_key);

  /// The choice for `key`, measured now if there is none: of what launches, the algorithm whose times on the
  /// trial's products are the least, each as a part of the best time there. Throws what `make_trial` throws.
  GemmChoice get(const std::string& key, const std::function<GemmTrial()>& make_trial) const;

 private:
  using Lines = std::map<std::string, GemmChoice>;
  void read(Lines& lines) const;
  /// Adds a line unless another process did before; returns what stands.
  GemmChoice publish(const std::string& key, const GemmChoice& mine) const;

  std::string file_, device_key_;
  mutable base::Guarded<Lines> lines_;
};

}  // namespace trireme::cuda
