// The emulated GPU of builds without the toolkit: its memory is host memory that is protected from access
// between launches.
#include <charconv>
#include <cstdlib>

#include "backend/cuda/device/emulated_memory.h"
#include "backend/cuda/device/emulated_stream.h"
#include "base/error.h"
#include "base/machine/memory.h"

namespace trireme::cuda {

namespace {

constexpr size_t kPage = 4096;
constexpr int kOpen = PROT_READ | PROT_WRITE;

class EmulatedDevice final : public CudaDevice {
 public:
  EmulatedDevice(int ordinal, std::shared_ptr<EmulatedMemory> memory, EmulatedPlan plan)
      : ordinal_(ordinal), memory_(std::move(memory)), schedule_(make_emulated_schedule(plan)) {}
  std::string describe() const override { return "CUDA kernels run thread by thread on the CPU, for tests"; }
  std::shared_ptr<void> allocate(int64_t bytes) override { return memory_->allocate(memory_, bytes); }
  std::unique_ptr<CudaStream> open_stream(base::ThreadPool& pool, StreamRole role) override {
    return std::make_unique<EmulatedStream>(EmulatedStream::Parts{memory_, schedule_, role}, pool);
  }
  std::shared_ptr<void> allocate_host(int64_t bytes) override {
    constexpr size_t kAlign = 64;
    const size_t size = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
    void* memory = std::aligned_alloc(kAlign, size);
    if (memory == nullptr) base::fail(base::ErrorCode::exhausted, "no host memory for ", bytes, " bytes");
    return {memory, std::free};
  }
  int ordinal() const override { return -1 - ordinal_; }
  std::string identity() const override { return base::concat("emulated ", ordinal_); }

 private:
  int ordinal_;
  std::shared_ptr<EmulatedMemory> memory_;
  std::shared_ptr<EmulatedSchedule> schedule_;
};

}  // namespace

/// Adjacent regions are changed in one call.
void EmulatedMemory::protect(const State& state, int rights) {
  std::byte* begin = nullptr;
  std::byte* end = nullptr;
  for (const auto& [at, size] : state.blocks) {
    auto* block = static_cast<std::byte*>(at);
    if (block != end) {
      if (begin != end) mprotect(begin, static_cast<size_t>(end - begin), rights);
      begin = block;
    }
    end = block + size;
  }
  if (begin != end) mprotect(begin, static_cast<size_t>(end - begin), rights);
}

std::shared_ptr<void> EmulatedMemory::allocate(const std::shared_ptr<EmulatedMemory>& self, int64_t bytes) {
  const size_t size = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kPage - 1) / kPage * kPage;
  if (bytes > base::memory_limit_bytes()) {
    base::fail(base::ErrorCode::exhausted, "no memory for ", bytes, " bytes on the emulated device");
  }
  void* memory = state_.with([&](State& state) {
    void* made =
        mmap(nullptr, size, state.at_work > 0 ? kOpen : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made != MAP_FAILED) state.blocks[made] = size;
    return made;
  });
  if (memory == MAP_FAILED) base::fail(base::ErrorCode::exhausted, "no memory for ", bytes, " bytes");
  return {memory, [self](void* p) {
            self->state_.with([&](State& state) {
              munmap(p, state.blocks.at(p));
              state.blocks.erase(p);
            });
          }};
}

void EmulatedMemory::reach() {
  state_.with([](State& state) {
    if (state.at_work++ == 0) protect(state, kOpen);
  });
}

void EmulatedMemory::leave() {
  state_.with([](State& state) {
    if (--state.at_work == 0) protect(state, PROT_NONE);
  });
}

bool has_toolkit() { return false; }

std::vector<GpuInfo> list_gpus() {
  base::fail(base::ErrorCode::unavailable,
             "this program was built without the CUDA toolkit (./dev build cuda)");
}

std::unique_ptr<tensor::Device> open_gpu(int) {
  list_gpus();
  return nullptr;
}

std::unique_ptr<tensor::Device> open_emulated(int ordinal, EmulatedPlan plan) {
  base::require(ordinal >= 0, "there is no emulated device ", ordinal);
  // All that open the device share its memory, as with a GPU: one session uses what another uploads.
  static base::Guarded<std::map<int, std::weak_ptr<EmulatedMemory>>> shared;
  std::shared_ptr<EmulatedMemory> memory = shared.with([&](auto& known) {
    std::shared_ptr<EmulatedMemory> held = known[ordinal].lock();
    if (held == nullptr) known[ordinal] = held = std::make_shared<EmulatedMemory>();
    return held;
  });
  return std::make_unique<EmulatedDevice>(ordinal, std::move(memory), plan);
}

}  // namespace trireme::cuda
