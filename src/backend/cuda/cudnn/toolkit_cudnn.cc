// Opens cuDNN, and builds and runs its graphs.
#include "backend/cuda/cudnn/toolkit_cudnn.cuh"

#include <cuda_runtime.h>

#include <cstdlib>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/cuda_device.h"

// The front end looks up cuDNN's functions through this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace trireme::cuda {
namespace {

void require(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  base::fail(base::ErrorCode::unavailable, "cuDNN: ", what, ": ", fe::detail::get_error_string(status));
}

/// Opens the libraries that cuDNN and its front end load by name, so that these names resolve wherever they
/// are.
void open_libraries() {
  const ToolkitLibrary runtime("libcudart.so.13");
  // Without this, the front end would prefer a CUDA 12 runtime if one is installed.
  ::setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", runtime.path().c_str(), /*overwrite=*/0);
  for (const char* name : {"libnvrtc.so.13", "libcublasLt.so.13", "libcublas.so.13"})
    const ToolkitLibrary needed(name);
  const ToolkitLibrary cudnn("libcudnn.so.9");
  fe::cudnn_dlhandle = cudnn.handle();
}

/// During its lifetime, this thread may allocate memory and load code even while it captures a CUDA graph.
/// The capture does not record these calls.
class Unrecorded {
 public:
  Unrecorded() { check_cuda(cudaThreadExchangeStreamCaptureMode(&mode_), "leaving a recording"); }
  ~Unrecorded() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  Unrecorded(const Unrecorded&) = delete;
  Unrecorded& operator=(const Unrecorded&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

cudnnHandle_t new_handle() {
  const Unrecorded here;
  cudnnHandle_t handle = nullptr;
  require(fe::detail::create_handle(&handle), "starting the library");
  return handle;
}

}  // namespace

Cudnn::Cudnn(int ordinal, std::shared_ptr<const PlanStore> plans)
    : ordinal_(ordinal), plans_(std::move(plans)) {
  open_libraries();
  check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
  const Lease first(*this, nullptr);  // a failure shows here, not at the first run
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal), "reading the properties of a GPU");
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "reading the driver's version");
  device_key_ =
      base::concat(properties.name, " of ", properties.multiProcessorCount, " driver ", driver, " cudnn ",
                   fe::detail::get_backend_version(), " front end ", CUDNN_FRONTEND_VERSION);
}

Cudnn::~Cudnn() {
  free_.with([](std::vector<cudnnHandle_t>& handles) {
    for (cudnnHandle_t handle : handles) fe::detail::destroy_handle(handle);
  });
}

Cudnn::Lease::Lease(const Cudnn& owner, tensor::Stream* stream) : owner_(owner) {
  handle_ = owner.free_.with([](std::vector<cudnnHandle_t>& handles) -> cudnnHandle_t {
    if (handles.empty()) return nullptr;
    const cudnnHandle_t handle = handles.back();
    handles.pop_back();
    return handle;
  });
  if (handle_ == nullptr) handle_ = new_handle();
  if (stream != nullptr) require(fe::detail::set_stream(handle_, queue_of(*stream)), "choosing a stream");
}

Cudnn::Lease::~Lease() {
  owner_.free_.with([&](std::vector<cudnnHandle_t>& handles) { handles.push_back(handle_); });
}

std::shared_ptr<const Cudnn> cudnn_of(const GemmPlace& place) {
  if (place.device == nullptr || place.shared == nullptr) return nullptr;
  const int ordinal = place.device->ordinal();
  const auto plans = plan_store_of(*place.shared);
  try {
    return place.shared->get<Cudnn>(base::concat("cudnn ", ordinal),
                                    [&] { return std::make_shared<const Cudnn>(ordinal, plans); });
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::unavailable) throw;
    return nullptr;
  }
}

fe::DataType_t cudnn_type(tensor::DType type) {
  switch (type) {
    case tensor::DType::f32: return fe::DataType_t::FLOAT;
    case tensor::DType::f16: return fe::DataType_t::HALF;
    case tensor::DType::bf16: return fe::DataType_t::BFLOAT16;
    default: base::fail(base::ErrorCode::internal, "cuDNN: no type for ", tensor::name_of(type));
  }
}

void run_graph(const fe::graph::Graph& graph, const Cudnn& cudnn, tensor::Stream& stream,
               CudnnAddresses addresses, void* workspace) {
  const Cudnn::Lease lease(cudnn, &stream);
  fe::error_t status = graph.execute(lease.handle(), addresses, workspace);
  if (status.is_bad())
    base::fail(base::ErrorCode::unavailable, "cuDNN: a launch failed: ", status.get_message());
}

}  // namespace trireme::cuda
