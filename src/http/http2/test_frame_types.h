// Frame types and flags of RFC 9113, of which tests make frames.
#pragma once

#include <cstdint>

namespace trireme::http {

inline constexpr uint8_t kData = 0, kHeaders = 1, kPriority = 2, kReset = 3, kSettings = 4, kPing = 6,
                         kWindow = 8, kContinuation = 9;
inline constexpr uint8_t kEndStream = 1, kEndHeaders = 4;

}  // namespace trireme::http
