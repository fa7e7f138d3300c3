// An NVIDIA GPU as a device: implements the interfaces of `tensor` with the CUDA runtime.
#include "backend/cuda/device/cuda_device.h"

#include <dlfcn.h>

#include <algorithm>

#include <cuda_runtime.h>

#include "backend/cuda/device/cuda_check.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

constexpr int kOldestMajor = 8;  // sm_80: bf16, asynchronous copies, stream-ordered allocation

std::string gibibytes(int64_t bytes) {
  return base::concat(static_cast<double>(bytes >> 20) / 1024.0, " GiB");
}

std::string version_text(int version) { return base::concat(version / 1000, ".", version % 1000 / 10); }

GpuInfo info_of(int ordinal) {
  cudaDeviceProp p{};
  check_cuda(cudaGetDeviceProperties(&p, ordinal), "reading the properties of a GPU");
  std::string uuid = "GPU-";
  for (const char c : p.uuid.bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    uuid += kDigits[byte >> 4], uuid += kDigits[byte & 15];
  }
  return {ordinal,
          p.name,
          p.major,
          p.minor,
          p.multiProcessorCount,
          static_cast<int64_t>(p.totalGlobalMem),
          static_cast<int64_t>(p.l2CacheSize),
          uuid};
}

/// Asks the driver itself, since the runtime treats one that is too old as absent. 0: there is no driver.
int driver_version() {
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return 0;
  int version = 0;
  using Ask = int (*)(int*);
  const auto ask = reinterpret_cast<Ask>(::dlsym(library, "cuDriverGetVersion"));
  if (ask == nullptr || ask(&version) != 0) version = 0;
  ::dlclose(library);
  return version;
}

[[noreturn]] void fail_for_driver() {
  const int driver = driver_version();
  if (driver == 0) base::fail(base::ErrorCode::unavailable, "CUDA: there is no NVIDIA driver");
  constexpr int kMajor = CUDART_VERSION / 1000;  // drivers of the same major version are compatible
  base::fail(base::ErrorCode::unavailable, "CUDA: the driver speaks CUDA ", version_text(driver),
             ", this program needs ", kMajor, ".0 or newer",
             kMajor == 13 ? ": install NVIDIA driver 580 or newer" : "");
}

}  // namespace

void check_cuda(int status, const char* what) {
  const auto code = static_cast<cudaError_t>(status);
  if (code == cudaSuccess) return;
  // Clears the error, which the runtime would otherwise report at the check of a later, unrelated launch.
  cudaGetLastError();
  const bool memory = code == cudaErrorMemoryAllocation;
  base::fail(memory ? base::ErrorCode::exhausted : base::ErrorCode::unavailable, "CUDA: ", what, ": ",
             cudaGetErrorString(code), " (", cudaGetErrorName(code), ")");
}

void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

std::vector<GpuInfo> list_gpus() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) cudaGetLastError();
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    base::fail(base::ErrorCode::unavailable, "CUDA: the driver shows no GPU");
  }
  if (status == cudaErrorInsufficientDriver) fail_for_driver();
  check_cuda(status, "counting GPUs");
  std::vector<GpuInfo> out;
  for (int i = 0; i < count; ++i) out.push_back(info_of(i));
  return out;
}

namespace {

class ToolkitEvent final : public tensor::Event {
 public:
  explicit ToolkitEvent(unsigned flags) {
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "making an event");
  }
  ~ToolkitEvent() override { cudaEventDestroy(event_); }
  ToolkitEvent(const ToolkitEvent&) = delete;
  ToolkitEvent& operator=(const ToolkitEvent&) = delete;
  int64_t ns_since(const tensor::Event& earlier) const override {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, static_cast<const ToolkitEvent&>(earlier).event_, event_),
               "reading the time between events");
    return static_cast<int64_t>(static_cast<double>(ms) * 1e6);
  }
  cudaEvent_t handle() const { return event_; }
  void record(cudaStream_t queue) { check_cuda(cudaEventRecord(event_, queue), "recording an event"); }

 private:
  cudaEvent_t event_ = nullptr;
};

class ToolkitRecording final : public tensor::Recording {
 public:
  explicit ToolkitRecording(cudaGraph_t graph) {
    const cudaError_t status = cudaGraphInstantiate(&ready_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "making a graph of launches");
  }
  ~ToolkitRecording() override { cudaGraphExecDestroy(ready_); }
  ToolkitRecording(const ToolkitRecording&) = delete;
  ToolkitRecording& operator=(const ToolkitRecording&) = delete;
  void replay(tensor::Stream& stream) override {
    check_cuda(cudaGraphLaunch(ready_, queue_of(stream)), "launching a graph");
  }

 private:
  cudaGraphExec_t ready_ = nullptr;
};

class ToolkitStream final : public CudaStream {
 public:
  ToolkitStream(int ordinal, StreamRole role) : ordinal_(ordinal) {
    check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
    int least = 0, most = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &most), "asking for priorities of streams");
    const int priority = role == StreamRole::communication ? most : least;
    check_cuda(cudaStreamCreateWithPriority(&queue_, cudaStreamNonBlocking, priority), "opening a stream");
    check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, ordinal),
               "counting multiprocessors");
  }
  ~ToolkitStream() override { cudaStreamDestroy(queue_); }
  ToolkitStream(const ToolkitStream&) = delete;
  ToolkitStream& operator=(const ToolkitStream&) = delete;

  /// Throws unavailable with the device's message if an earlier launch failed.
  void synchronize() override {
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
    check_cuda(cudaStreamSynchronize(queue_), "waiting for a stream");
  }
  void upload(void* to, const void* from, int64_t bytes) override {
    move(to, from, bytes, cudaMemcpyHostToDevice, "copying to the device");
  }
  void download(void* to, const void* from, int64_t bytes) override {
    move(to, from, bytes, cudaMemcpyDeviceToHost, "copying to the host");
  }
  void copy(void* to, const void* from, int64_t bytes) override {
    move(to, from, bytes, cudaMemcpyDeviceToDevice, "copying on the device");
  }
  void begin_recording() override {
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
    check_cuda(cudaStreamBeginCapture(queue_, cudaStreamCaptureModeThreadLocal), "recording launches");
  }
  std::unique_ptr<tensor::Recording> end_recording() override {
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamEndCapture(queue_, &graph), "recording launches");
    return std::make_unique<ToolkitRecording>(graph);
  }
  std::unique_ptr<tensor::Event> record_event() override {
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");  // an event belongs to the device that is current
    auto event = std::make_unique<ToolkitEvent>(cudaEventDefault);
    event->record(queue_);
    return event;
  }
  std::unique_ptr<tensor::Event> make_event() override {
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");
    return std::make_unique<ToolkitEvent>(cudaEventDisableTiming);
  }
  void set(tensor::Event& event) override { static_cast<ToolkitEvent&>(event).record(queue_); }
  bool is_done() override {
    const cudaError_t status = cudaStreamQuery(queue_);
    if (status == cudaErrorNotReady) {
      cudaGetLastError();  // clears the error, which the next launch would report
      return false;
    }
    check_cuda(status, "looking at a stream");
    return true;
  }
  void wait(const tensor::Event& event) override {
    check_cuda(cudaStreamWaitEvent(queue_, static_cast<const ToolkitEvent&>(event).handle(), 0),
               "waiting for an event");
  }

 private:
  void move(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what) {
    if (bytes == 0) return;
    check_cuda(cudaSetDevice(ordinal_), "choosing a GPU");  // this may be another thread than the opener
    check_cuda(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, queue_), what);
  }
  int ordinal_;
};

class Gpu final : public CudaDevice {
 public:
  explicit Gpu(int ordinal);
  std::string describe() const override;
  std::shared_ptr<void> allocate(int64_t bytes) override;
  std::unique_ptr<CudaStream> open_stream(base::ThreadPool&, StreamRole role) override {
    return std::make_unique<ToolkitStream>(info_.ordinal, role);
  }
  std::string identity() const override { return info_.uuid; }
  std::shared_ptr<void> allocate_host(int64_t bytes) override {
    void* memory = nullptr;
    check_cuda(cudaSetDevice(info_.ordinal), "choosing a GPU");
    check_cuda(cudaMallocHost(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))),
               "allocating pinned host memory");
    return {memory, [](void* p) { cudaFreeHost(p); }};
  }
  int ordinal() const override { return info_.ordinal; }
  int64_t memory_bytes() const override { return info_.memory_bytes; }

 private:
  GpuInfo info_;
};

Gpu::Gpu(int ordinal) {
  const std::vector<GpuInfo> gpus = list_gpus();
  base::require(ordinal >= 0 && ordinal < static_cast<int>(gpus.size()), "there is no GPU ", ordinal,
                "; GPUs: ", gpus.size());
  info_ = gpus[static_cast<size_t>(ordinal)];
  if (info_.major < kOldestMajor) {
    base::fail_unsupported("GPU ", ordinal, " (", info_.name, ") is sm_", info_.major, info_.minor,
                           "; kernels are built for sm_80 and newer");
  }
  check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
  // Freed memory stays in the pool, because programs often release an arena and allocate another.
  cudaMemPool_t pool = nullptr;
  check_cuda(cudaDeviceGetDefaultMemPool(&pool, ordinal), "opening the memory pool");
  uint64_t keep = UINT64_MAX;
  check_cuda(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
             "setting the memory pool");
}

std::string Gpu::describe() const {
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "asking for the driver's version");
  return base::concat(info_.name, ", sm_", info_.major, info_.minor, ", ", info_.multiprocessors,
                      " multiprocessors, ", gibibytes(info_.memory_bytes), ", L2 ",
                      static_cast<double>(info_.l2_bytes) / 1048576.0, " MiB, driver CUDA ",
                      version_text(driver));
}

std::shared_ptr<void> Gpu::allocate(int64_t bytes) {
  check_cuda(cudaSetDevice(info_.ordinal), "choosing a GPU");
  void* memory = nullptr;
  const cudaError_t status =
      cudaMallocAsync(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1)), nullptr);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
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

}  // namespace

bool has_toolkit() { return true; }

std::unique_ptr<tensor::Device> open_gpu(int ordinal) { return std::make_unique<Gpu>(ordinal); }

std::unique_ptr<tensor::Device> open_emulated(int, EmulatedPlan) {
  base::fail_unsupported(
      "the kernels of this program are compiled for GPUs; the emulated device is in builds "
      "without the CUDA toolkit");
}

}  // namespace trireme::cuda
