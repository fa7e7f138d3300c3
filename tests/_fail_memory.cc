// A malloc that is loaded before the program's own (LD_PRELOAD). While the file named by FAIL_MEMORY asks for
// it, one in so many allocations fails, chosen at random from a fixed seed.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

/// Shared with the test: one in `every` allocations of at least `least` bytes fails (0: none).
struct Wish {
  std::atomic<uint32_t> every, least, failed;
};

Wish* wish() {
  static Wish* const shared = [] {
    const char* path = getenv("FAIL_MEMORY");
    const int fd = path == nullptr ? -1 : open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return static_cast<Wish*>(nullptr);
    void* at = mmap(nullptr, sizeof(Wish), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return at == MAP_FAILED ? nullptr : static_cast<Wish*>(at);
  }();
  return shared;
}

bool fails(size_t bytes) {
  static std::atomic<uint64_t> calls{1};
  Wish* w = wish();
  if (w == nullptr) return false;
  const uint32_t every = w->every.load(std::memory_order_relaxed);
  if (every == 0 || bytes < w->least.load(std::memory_order_relaxed)) return false;
  uint64_t x = calls.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15ull;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  if ((x ^ (x >> 31)) % every != 0) return false;
  w->failed.fetch_add(1, std::memory_order_relaxed);
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) { return fails(bytes) ? nullptr : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) {
  return fails(count * bytes) ? nullptr : __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) { return fails(bytes) ? nullptr : __libc_realloc(old, bytes); }
void* aligned_alloc(size_t unit, size_t bytes) {
  return fails(bytes) ? nullptr : __libc_memalign(unit, bytes);
}
int posix_memalign(void** to, size_t unit, size_t bytes) {
  if (fails(bytes)) return ENOMEM;
  *to = __libc_memalign(unit, bytes);
  return *to == nullptr ? ENOMEM : 0;
}
}
