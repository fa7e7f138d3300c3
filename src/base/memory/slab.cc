// Memory mappings aligned to huge pages, and a bump allocator on top of them.
#include "base/memory/slab.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"

namespace trireme::base {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
// This reserves address space only; pages are allocated on first touch.
constexpr size_t kMapping = size_t{64} << 20;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

std::shared_ptr<void> map_memory(size_t bytes) {
  const bool large = bytes >= kHugePage;
  const size_t whole = bytes + (large ? kHugePage : 0);
  void* mapped = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) fail(ErrorCode::exhausted, "no host memory for ", bytes, " bytes");
  char* begin = static_cast<char*>(mapped);
  char* aligned = begin;
  if (large) {
    aligned += round_up(reinterpret_cast<uintptr_t>(begin), kHugePage) - reinterpret_cast<uintptr_t>(begin);
    // A partly filled last huge page stays as small pages: a huge page would occupy its full 2 MiB.
    (void)madvise(aligned, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  }
  return {aligned, [mapped, whole](void*) { munmap(mapped, whole); }};
}

std::shared_ptr<char> Slab::allocate(size_t bytes) const {
  const size_t size = round_up(std::max<size_t>(bytes, 1), 64);
  return rest_.with([&](Rest& rest) -> std::shared_ptr<char> {
    if (rest.left < size) {
      const size_t mapping = std::max(size, kMapping);
      rest.mapping = std::make_shared<Mapping>(map_memory(mapping), MemoryLease(MemoryUse::scratch, 0));
      rest.at = static_cast<char*>(rest.mapping->memory.get());
      rest.left = mapping;
    }
    rest.mapping->lease.resize(rest.mapping->lease.bytes() + static_cast<int64_t>(size));
    char* piece = rest.at;
    rest.at += size;
    rest.left -= size;
    return {rest.mapping, piece};
  });
}

}  // namespace trireme::base
