// Status codes, the encoding of their messages, and the encoding of timeouts.
#include "serve/grpc/grpc_status.h"

#include <algorithm>
#include <limits>

namespace trireme::serve {

GrpcStatus grpc_status(const base::Error& error) {
  const auto code = [&] {
    switch (error.code()) {
      case base::ErrorCode::invalid_argument: return GrpcCode::invalid_argument;
      case base::ErrorCode::not_found: return GrpcCode::not_found;
      case base::ErrorCode::unsupported: return GrpcCode::unimplemented;
      case base::ErrorCode::exhausted: return GrpcCode::resource_exhausted;
      case base::ErrorCode::unavailable: return GrpcCode::unavailable;
      case base::ErrorCode::internal: break;
    }
    return GrpcCode::internal;
  }();
  return {code, error.message()};
}

std::string grpc_percent_encode(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr size_t kMostBytes = 4096;
  std::string out;
  out.reserve(std::min(text.size(), kMostBytes));
  size_t whole = 0;  // bytes of `out` up to the end of a character
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte & 0xc0) != 0x80) whole = out.size();
    if (out.size() >= kMostBytes) return out.substr(0, whole) + "...";
    if (byte >= 0x20 && byte <= 0x7e && c != '%') {
      out += c;
    } else {
      out += '%';
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
  }
  return out;
}

int64_t grpc_timeout_ns(std::string_view text) {
  constexpr size_t kMostDigits = 8;
  if (text.size() < 2 || text.size() > kMostDigits + 1) return -1;
  int64_t count = 0;
  for (const char c : text.substr(0, text.size() - 1)) {
    if (c < '0' || c > '9') return -1;
    count = count * 10 + (c - '0');
  }
  const int64_t unit_ns = [&]() -> int64_t {
    switch (text.back()) {
      case 'H': return 3'600'000'000'000;
      case 'M': return 60'000'000'000;
      case 'S': return 1'000'000'000;
      case 'm': return 1'000'000;
      case 'u': return 1'000;
      case 'n': return 1;
      default: return 0;
    }
  }();
  if (unit_ns == 0) return -1;
  const int64_t most = std::numeric_limits<int64_t>::max() / 4;
  return count > most / unit_ns ? most : count * unit_ns;
}

}  // namespace trireme::serve
