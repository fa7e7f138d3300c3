// What a fuzz target may spend on one input: CPU time and memory are bounded by the input's size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TRIREME_MEASURES_MEMORY 1
#include <sanitizer/allocator_interface.h>
#endif
#endif

namespace trireme::fuzz {

/// An input of n bytes may take `fixed + per_byte * n` of each. The defaults are generous for one pass over
/// the input under AddressSanitizer, and far below what a pass for each of its parts would take.
struct WorkBounds {
  double fixed_s = 0.25, s_per_byte = 20e-6;  ///< CPU time of the calling thread
  size_t fixed_peak_bytes = size_t{8} << 20,
         peak_per_byte = 256;  ///< heap in use at once, beyond the start's
  size_t fixed_total_bytes = size_t{64} << 20, total_per_byte = 8192;  ///< all that was asked for on the way
};

namespace detail {

/// Of the calling thread; the hook runs inside malloc, so it takes no lock and asks for no memory.
struct Heap {
  uint64_t total_bytes = 0, looked_at_bytes = 0, peak_bytes = 0;
};
inline thread_local Heap heap;

#ifdef TRIREME_MEASURES_MEMORY
inline void on_malloc(const volatile void*, size_t bytes) {
  constexpr uint64_t kLookBytes = 16384;  // asking what is in use walks all threads: not at every allocation
  heap.total_bytes += bytes;
  if (heap.total_bytes - heap.looked_at_bytes < kLookBytes) return;
  heap.looked_at_bytes = heap.total_bytes;
  const uint64_t now_bytes = __sanitizer_get_current_allocated_bytes();
  if (now_bytes > heap.peak_bytes) heap.peak_bytes = now_bytes;
}
inline void on_free(const volatile void*) {}
inline void watch_heap() {
  static const int slot = __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
  if (slot == 0) std::abort();
}
inline uint64_t heap_bytes() { return __sanitizer_get_current_allocated_bytes(); }
#else
inline void watch_heap() {}
inline uint64_t heap_bytes() { return 0; }
#endif

}  // namespace detail

/// What the calling thread has spent since the construction. Memory is measured under AddressSanitizer only
/// (which fuzz builds have); elsewhere it reads 0.
class WorkMeter {
 public:
  WorkMeter() : start_s_(thread_s()) {
    detail::watch_heap();
    start_bytes_ = detail::heap_bytes();
    detail::heap = {.peak_bytes = start_bytes_};
  }
  double cpu_s() const { return thread_s() - start_s_; }
  uint64_t peak_bytes() const { return detail::heap.peak_bytes - start_bytes_; }
  uint64_t total_bytes() const { return detail::heap.total_bytes; }

 private:
  static double thread_s() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  double start_s_;
  uint64_t start_bytes_ = 0;
};

/// Put at the top of LLVMFuzzerTestOneInput: `const fuzz::BoundedWork bounded(size);`. When it goes, it
/// aborts with the figures if the input cost more than its size allows.
class BoundedWork {
 public:
  explicit BoundedWork(size_t input_bytes, const WorkBounds& bounds = {})
      : bytes_(input_bytes), bounds_(bounds) {}
  ~BoundedWork() {
    const double n = static_cast<double>(bytes_);
    check("CPU seconds", meter_.cpu_s(), bounds_.fixed_s + bounds_.s_per_byte * n);
    check("bytes at once", static_cast<double>(meter_.peak_bytes()),
          static_cast<double>(bounds_.fixed_peak_bytes) + static_cast<double>(bounds_.peak_per_byte) * n);
    check("bytes in all", static_cast<double>(meter_.total_bytes()),
          static_cast<double>(bounds_.fixed_total_bytes) + static_cast<double>(bounds_.total_per_byte) * n);
  }
  BoundedWork(const BoundedWork&) = delete;
  BoundedWork& operator=(const BoundedWork&) = delete;

 private:
  void check(const char* what, double spent, double allowed) const {
    if (spent <= allowed) return;
    std::fprintf(stderr, "an input of %zu bytes took %g %s, its bound is %g\n", bytes_, spent, what, allowed);
    std::abort();
  }
  const size_t bytes_;
  const WorkBounds bounds_;
  const WorkMeter meter_;
};

}  // namespace trireme::fuzz
