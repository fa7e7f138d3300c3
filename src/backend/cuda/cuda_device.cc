// An NVIDIA GPU as a device: the runtime's calls behind tensor's interfaces.
#include "backend/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include "backend/cuda/cuda_check.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kOldestMajor = 8;  // sm_80: bf16, asynchronous copies, stream-ordered memory

std::string gibibytes(int64_t bytes) {
  return base::concat(static_cast<double>(bytes >> 20) / 1024.0, " GiB");
}

GpuInfo info_of(int ordinal) {
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, ordinal), "reading the properties of a GPU");
  return {ordinal,
          p.name,
          p.major,
          p.minor,
          p.multiProcessorCount,
          static_cast<int64_t>(p.totalGlobalMem),
          static_cast<int64_t>(p.l2CacheSize)};
}

}  // namespace

void check_cuda(int status, const char* what) {
  const auto code = static_cast<cudaError_t>(status);
  if (code == cudaSuccess) return;
  const bool memory = code == cudaErrorMemoryAllocation;
  base::fail(memory ? base::ErrorCode::exhausted : base::ErrorCode::unavailable, "CUDA: ", what, ": ",
             cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

std::vector<GpuInfo> list_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    base::fail(base::ErrorCode::unavailable, "CUDA: the driver shows no GPU");
  }
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    base::fail(base::ErrorCode::unavailable, "CUDA: ",
               driver == 0 ? base::concat("there is no NVIDIA driver")
                           : base::concat("the driver speaks CUDA ", driver / 1000, ".", driver % 1000 / 10,
                                          ", this program needs ", CUDART_VERSION / 1000, ".",
                                          CUDART_VERSION % 1000 / 10));
  }
  check_cuda(status, "counting GPUs");
  std::vector<GpuInfo> out;
  for (int i = 0; i < count; ++i) out.push_back(info_of(i));
  return out;
}

CudaStream::CudaStream(int ordinal, bool high_priority) : ordinal_(ordinal) {
  check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "reading stream priorities");
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, high_priority ? greatest : least),
             "opening a stream");
  check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal),
             "counting multiprocessors");
}

CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }

void CudaStream::synchronize() {
  check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
  check_cuda(cudaStreamSynchronize(stream_), "waiting for a stream");
}

CudaDevice::CudaDevice(int ordinal) {
  const std::vector<GpuInfo> gpus = list_gpus();
  base::require(ordinal >= 0 && ordinal < static_cast<int>(gpus.size()), "there is no GPU ", ordinal,
                "; GPUs: ", gpus.size());
  info_ = gpus[static_cast<size_t>(ordinal)];
  if (info_.major < kOldestMajor) {
    base::fail_unsupported("GPU ", ordinal, " (", info_.name, ") is sm_", info_.major, info_.minor,
                           "; kernels are built for sm_80 and newer");
  }
  check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
  // Freed memory stays in the pool: programs come and go with their arenas.
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, ordinal), "opening the memory pool");
  uint64_t keep = UINT64_MAX;
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
             "setting the memory pool");
}

std::string CudaDevice::describe() const {
  return base::concat(info_.name, ", sm_", info_.major, info_.minor, ", ", info_.multiprocessors,
                      " multiprocessors, ", gibibytes(info_.memory_bytes), ", L2 ",
                      static_cast<double>(info_.l2_bytes) / 1048576.0, " MiB");
}

std::shared_ptr<void> CudaDevice::allocate(int64_t bytes) {
  check_cuda(cudaSetDevice(info_.ordinal), "choosing a GPU");
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes), nullptr);
  if (status == cudaErrorMemoryAllocation) {
    size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    base::fail(base::ErrorCode::exhausted, "CUDA: no ", gibibytes(bytes), " on GPU ", info_.ordinal, ": ",
               gibibytes(static_cast<int64_t>(free)), " of ", gibibytes(static_cast<int64_t>(total)),
               " are free");
  }
  check_cuda(status, "allocating");
  check_cuda(cudaStreamSynchronize(nullptr), "allocating");
  return {memory, [](void* p) { cudaFreeAsync(p, nullptr); }};
}

std::unique_ptr<tensor::Stream> CudaDevice::open_stream(base::ThreadPool&) {
  return std::make_unique<CudaStream>(info_.ordinal);
}

std::shared_ptr<void> CudaDevice::allocate_pinned(int64_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMallocHost(&memory, static_cast<size_t>(bytes)), "allocating pinned host memory");
  return {memory, [](void* p) { cudaFreeHost(p); }};
}

void copy_to_device(void* device, const void* host, int64_t bytes, tensor::Stream& stream) {
  check_cuda(
      cudaMemcpyAsync(device, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, queue_of(stream)),
      "copying to the device");
}

void copy_to_host(void* host, const void* device, int64_t bytes, tensor::Stream& stream) {
  check_cuda(
      cudaMemcpyAsync(host, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, queue_of(stream)),
      "copying to the host");
}

}  // namespace trireme::cuda
