// How long launches of a library take, for choices among its algorithms.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <functional>

#include "backend/cuda/device/cuda_check.h"

namespace trireme::cuda {

/// A queue and the two events of a measurement, on the device that is current.
class LaunchTimer {
 public:
  /// What was filled on the default stream is there afterwards.
  LaunchTimer() {
    check_cuda(cudaStreamSynchronize(nullptr), "measuring a launch");
    check_cuda(cudaStreamCreateWithFlags(&queue_, cudaStreamNonBlocking), "opening a stream");
    check_cuda(cudaEventCreate(&begin_), "making an event");
    check_cuda(cudaEventCreate(&end_), "making an event");
  }
  ~LaunchTimer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaStreamDestroy(queue_);
  }
  LaunchTimer(const LaunchTimer&) = delete;
  LaunchTimer& operator=(const LaunchTimer&) = delete;
  cudaStream_t queue() const { return queue_; }

  /// The median of a few runs in milliseconds, after one that is not counted. Throws what `launch` throws.
  float median_ms(const std::function<void(cudaStream_t)>& launch) {
    constexpr int kRuns = 5;
    float ms[kRuns];
    launch(queue_);
    for (float& one : ms) {
      check_cuda(cudaEventRecord(begin_, queue_), "measuring a launch");
      launch(queue_);
      check_cuda(cudaEventRecord(end_, queue_), "measuring a launch");
      check_cuda(cudaEventSynchronize(end_), "measuring a launch");
      check_cuda(cudaEventElapsedTime(&one, begin_, end_), "measuring a launch");
    }
    std::nth_element(ms, ms + kRuns / 2, ms + kRuns);
    return ms[kRuns / 2];
  }

 private:
  cudaStream_t queue_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace trireme::cuda
