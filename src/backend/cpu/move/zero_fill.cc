// Zero fills of large memory, compiled once per SIMD level.
#include "backend/cpu/move/zero_fill.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/simd/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/move/zero_fill.cc"
#include "hwy/foreach_target.h"
// Must follow foreach_target.h, which sets the SIMD level.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace trireme::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whole aligned lines are written by streaming stores, the ends by memset.
void zero_past_caches(unsigned char* y, int64_t bytes) {
  const hn::ScalableTag<uint8_t> tag;
  const int64_t step = static_cast<int64_t>(hn::Lanes(tag)), line = 64;
  const int64_t head =
      std::min(bytes, (line - static_cast<int64_t>(reinterpret_cast<uintptr_t>(y) % 64)) % line);
  const int64_t end = head + (bytes - head) / line * line;
  std::memset(y, 0, static_cast<size_t>(head));
  const auto zero = hn::Zero(tag);
  for (int64_t i = head; i < end; i += step) hn::Stream(zero, tag, y + i);
  hwy::FlushStream();
  std::memset(y + end, 0, static_cast<size_t>(bytes - end));
}

}  // namespace trireme::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trireme::cpu {

HWY_EXPORT(zero_past_caches);

void zero_fill(void* y, int64_t bytes, base::ThreadPool& pool) {
  constexpr int64_t kPiece = 256 * 1024, kLarge = 8 * 1024 * 1024;
  unsigned char* memory = static_cast<unsigned char*>(y);
  const auto past_caches = HWY_DYNAMIC_DISPATCH(zero_past_caches);
  pool.for_range((bytes + kPiece - 1) / kPiece, 1, [&](int64_t begin, int64_t end) {
    unsigned char* from = memory + begin * kPiece;
    const int64_t count = std::min(bytes, end * kPiece) - begin * kPiece;
    if (bytes < kLarge)
      std::memset(from, 0, static_cast<size_t>(count));
    else
      past_caches(from, count);
  });
}

}  // namespace trireme::cpu
#endif
