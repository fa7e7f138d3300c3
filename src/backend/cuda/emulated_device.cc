// The stand-in for a GPU in builds without the toolkit: its memory is host memory that is out of reach
// between launches.
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "backend/cuda/emulated_stream.h"
#include "base/error.h"
#include "base/guarded.h"
#include "base/memory.h"

namespace trireme::cuda {

class EmulatedMemory {
 public:
  std::shared_ptr<void> allocate(const std::shared_ptr<EmulatedMemory>& self, int64_t bytes);
  /// Counted: streams of several threads may be at work.
  void reach();
  void leave();

 private:
  struct State {
    std::map<void*, size_t> blocks;
    int at_work = 0;
  };
  /// Neighbours in one call.
  static void protect(const State& state, int rights) {
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
  base::Guarded<State> state_;
};

namespace {

constexpr size_t kPage = 4096;
constexpr int kOpen = PROT_READ | PROT_WRITE;

using Launches = std::vector<std::function<void(HostGrid&)>>;

class EmulatedRecording final : public tensor::Recording {
 public:
  explicit EmulatedRecording(Launches launches) : launches_(std::move(launches)) {}
  void replay(tensor::Stream& stream) override {
    for (const auto& launch : launches_) static_cast<EmulatedStream&>(stream).launch(launch);
  }

 private:
  Launches launches_;
};

class EmulatedDevice final : public tensor::Device {
 public:
  explicit EmulatedDevice(std::shared_ptr<EmulatedMemory> memory) : memory_(std::move(memory)) {}
  tensor::DeviceKind kind() const override { return tensor::DeviceKind::cuda; }
  std::string describe() const override { return "CUDA kernels run thread by thread on the CPU, for tests"; }
  std::shared_ptr<void> allocate(int64_t bytes) override { return memory_->allocate(memory_, bytes); }
  std::unique_ptr<tensor::Stream> open_stream(base::ThreadPool& pool) override {
    return std::make_unique<EmulatedStream>(memory_, pool);
  }
  std::shared_ptr<void> allocate_host(int64_t bytes) override {
    constexpr size_t kAlign = 64;
    const size_t size = (static_cast<size_t>(std::max<int64_t>(bytes, 1)) + kAlign - 1) / kAlign * kAlign;
    void* memory = std::aligned_alloc(kAlign, size);
    if (memory == nullptr) base::fail(base::ErrorCode::exhausted, "no host memory for ", bytes, " bytes");
    return {memory, std::free};
  }
  int ordinal() const override { return -1; }

 private:
  std::shared_ptr<EmulatedMemory> memory_;
};

}  // namespace

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

EmulatedStream::EmulatedStream(std::shared_ptr<EmulatedMemory> memory, base::ThreadPool& pool)
    : memory_(std::move(memory)), grid_(&pool) {
  // Small, so that loops over the blocks of a grid are run.
  multiprocessors_ = 2;
}

EmulatedStream::~EmulatedStream() {
  if (is_open_) memory_->leave();
}

void EmulatedStream::reach() {
  if (!std::exchange(is_open_, true)) memory_->reach();
}

void EmulatedStream::synchronize() {
  base::check(!is_recording_, "a recording stream is waited for");
  if (std::exchange(is_open_, false)) memory_->leave();
}

void EmulatedStream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) launch([to, from, bytes](HostGrid&) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
}

void EmulatedStream::begin_recording() {
  base::check(!is_recording_, "a recording begins in a recording");
  is_recording_ = true;
}

std::unique_ptr<tensor::Recording> EmulatedStream::end_recording() {
  base::check(is_recording_, "no recording to end");
  is_recording_ = false;
  return std::make_unique<EmulatedRecording>(std::exchange(recorded_, {}));
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

std::unique_ptr<tensor::Device> open_emulated() {
  // Whoever opens it gets the same device, as with a GPU: what one session uploads, another uses.
  static base::Guarded<std::weak_ptr<EmulatedMemory>> shared;
  return std::make_unique<EmulatedDevice>(shared.with([](std::weak_ptr<EmulatedMemory>& known) {
    std::shared_ptr<EmulatedMemory> memory = known.lock();
    if (memory == nullptr) known = memory = std::make_shared<EmulatedMemory>();
    return memory;
  }));
}

}  // namespace trireme::cuda
