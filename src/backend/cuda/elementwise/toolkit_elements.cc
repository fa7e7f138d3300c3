// Element programs on a GPU: compiled at run time by NVRTC if it is installed and kept on disk, else
// interpreted.
#include <dlfcn.h>

#include <array>
#include <cstdlib>

#include <cuda_runtime.h>
#include <nvrtc.h>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/elementwise/element_launch.h"
#include "backend/cuda/elementwise/element_text.h"
#include "backend/cuda/device/toolkit_library.h"
#include "backend/cuda/kept/plan_file.h"
#include "backend/cuda/kept/plan_store.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

/// NVRTC, opened when it is first needed: programs also run without it.
class Compiler {
 public:
  /// Returns null, without throwing, if the library is not found.
  static std::shared_ptr<const Compiler> open() {
    const std::string name = base::concat("libnvrtc.so.", CUDART_VERSION / 1000);
    const std::string built = base::concat(TRIREME_TOOLKIT_LIBRARIES, "/", name);
    try {
      return std::make_shared<const Compiler>(ToolkitLibrary(name).handle());
    } catch (const base::Error&) {
      void* handle = ::dlopen(built.c_str(), RTLD_NOW | RTLD_LOCAL);
      return handle == nullptr ? nullptr : std::make_shared<const Compiler>(handle);
    }
  }
  explicit Compiler(void* handle) : handle_(handle) {
    bind(create, "nvrtcCreateProgram");
    bind(compile, "nvrtcCompileProgram");
    bind(destroy, "nvrtcDestroyProgram");
    bind(log_size, "nvrtcGetProgramLogSize");
    bind(log, "nvrtcGetProgramLog");
    bind(code_size, "nvrtcGetCUBINSize");
    bind(code, "nvrtcGetCUBIN");
    bind(version, "nvrtcVersion");
  }
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) code_size = nullptr;
  decltype(&nvrtcGetCUBIN) code = nullptr;
  decltype(&nvrtcVersion) version = nullptr;

 private:
  template <class F>
  void bind(F& to, const char* name) {
    to = reinterpret_cast<F>(::dlsym(handle_, name));
    if (to == nullptr) base::fail(base::ErrorCode::unavailable, "the CUDA run-time compiler lacks ", name);
  }
  void* handle_;
};

std::string compile_by(const Compiler& nvrtc, const ElementText& text, int arch) {
  std::vector<std::string> owned;
  std::vector<const char*> names, bodies;
  for (const TextHeader& h : element_headers()) {
    owned.emplace_back(h.text);
    names.push_back(h.name.data());
  }
  for (const std::string& body : owned) bodies.push_back(body.c_str());
  nvrtcProgram program = nullptr;
  if (nvrtc.create(&program, text.source.c_str(), "elements.cu", static_cast<int>(names.size()),
                   bodies.data(), names.data()) != NVRTC_SUCCESS) {
    base::fail(base::ErrorCode::unavailable, "the CUDA run-time compiler takes no program");
  }
  const std::string target = base::concat("--gpu-architecture=sm_", arch);
  const std::array<const char*, 4> options{target.c_str(), "--std=c++20",
                                           "--device-as-default-execution-space", "--diag-suppress=186"};
  const nvrtcResult status = nvrtc.compile(program, static_cast<int>(options.size()), options.data());
  size_t size = 0;
  std::string out;
  if (status != NVRTC_SUCCESS) {
    nvrtc.log_size(program, &size);
    out.resize(size);
    nvrtc.log(program, out.data());
    nvrtc.destroy(&program);
    base::fail(base::ErrorCode::internal, "a generated kernel does not compile: ", out, "\n", text.source);
  }
  nvrtc.code_size(program, &size);
  out.resize(size);
  nvrtc.code(program, out.data());
  nvrtc.destroy(&program);
  return out;
}

/// A loaded kernel.
class Loaded {
 public:
  explicit Loaded(const std::string& code) {
    check_cuda(cudaLibraryLoadData(&library_, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
               "loading a generated kernel");
    check_cuda(cudaLibraryGetKernel(&kernel_, library_, "elements"), "finding a generated kernel");
  }
  ~Loaded() { cudaLibraryUnload(library_); }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  const void* kernel() const { return reinterpret_cast<const void*>(kernel_); }

 private:
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
};

/// A kernel shared by programs and made once.
struct MadeOnce {
  mutable base::Guarded<std::shared_ptr<const Loaded>> kernel;
};

int arch_of(int ordinal) {
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "asking a GPU");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "asking a GPU");
  return 10 * major + minor;
}

/// The key of a kernel: its text, the compiler's version and the target architecture.
std::string key_of(const Compiler& nvrtc, const ElementText& text, int arch) {
  int major = 0, minor = 0;
  nvrtc.version(&major, &minor);
  std::string all = text.source;
  for (const TextHeader& h : element_headers()) all += h.text;
  return base::concat("elements sm_", arch, " nvrtc ", major, ".", minor, " ", digest_of(all));
}

/// Loads what an earlier process compiled, or compiles the kernel now and stores it.
std::shared_ptr<const Loaded> load_elements(const Compiler& nvrtc, const ElementText& text, int ordinal,
                                            const PlanStore& plans) {
  check_cuda(cudaSetDevice(ordinal), "choosing a GPU");
  const int arch = arch_of(ordinal);
  std::shared_ptr<const Loaded> loaded;
  const auto takes = [&](std::string_view code) {
    try {
      loaded = std::make_shared<const Loaded>(std::string(code));
      return true;
    } catch (const base::Error&) {
      return false;
    }
  };
  plans.get(key_of(nvrtc, text, arch), takes, [&] {
    std::string code = compile_by(nvrtc, text, arch);
    loaded = std::make_shared<const Loaded>(code);
    return code;
  });
  return loaded;
}

}  // namespace

std::string compile_elements(const ElementText& text, int arch) {
  const auto nvrtc = Compiler::open();
  if (nvrtc == nullptr)
    base::fail(base::ErrorCode::unavailable, "libnvrtc is not found: elementwise kernels are interpreted");
  return compile_by(*nvrtc, text, arch);
}

ElementRun bind_elements(const ElementProgram& program, tensor::Device* device, base::SharedCache& packs) {
  if (device == nullptr) return interpret_elements(program);
  const auto nvrtc = packs.get<Compiler>("elements/compiler", [] { return Compiler::open(); });
  if (nvrtc == nullptr) return interpret_elements(program);
  const ElementText text = element_text(program);
  const int ordinal = device->ordinal(), each = text.each;
  const auto plans = plan_store_of(packs);
  const auto made = packs.get<MadeOnce>(base::concat("elements/", ordinal, "/", text.source),
                                        [] { return std::make_shared<const MadeOnce>(); });
  // Compiled outside the lock of the cache, so that several kernels compile at the same time.
  const auto loaded = made->kernel.with([&](std::shared_ptr<const Loaded>& kernel) {
    if (kernel == nullptr) kernel = load_elements(*nvrtc, text, ordinal, *plans);
    return kernel;
  });
  const int64_t count = tensor::element_count(program.extent);
  const size_t inputs = program.inputs.size(), outputs = program.outputs.size();
  // The function keeps the compiler open, because opening it takes time.
  return [=](tensor::Stream& stream, const void* const* in, void* const* out) {
    static_cast<void>(nvrtc), static_cast<void>(plans), static_cast<void>(made);
    if (count == 0) return;
    ElementArguments arguments{};
    for (size_t k = 0; k < inputs; ++k) arguments.in[k] = in[k];
    for (size_t k = 0; k < outputs; ++k) arguments.out[k] = out[k];
    arguments.count = count;
    const int64_t a_block = int64_t{kElementThreads} * each;
    const int64_t most = int64_t{cuda_stream(stream).multiprocessors()} * 32;
    const auto blocks = static_cast<unsigned>(std::min(most, (count + a_block - 1) / a_block));
    void* list[] = {&arguments};
    check_cuda(
        cudaLaunchKernel(loaded->kernel(), dim3(blocks), dim3(kElementThreads), list, 0, queue_of(stream)),
        "launching a generated kernel");
  };
}

}  // namespace trireme::cuda
