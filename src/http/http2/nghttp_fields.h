// Internal to HTTP/2: bytes and header fields as nghttp2 passes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "http/http2/http2_field.h"
#include "http/http2/http2_library.h"

namespace trireme::http {

inline std::string_view view_of(const uint8_t* bytes, size_t count) {
  return {reinterpret_cast<const char*>(bytes), count};
}

/// A field for nghttp2, which copies it and writes to none.
inline nghttp2_nv pair_of(Http2Field field) {
  const auto bytes = [](std::string_view s) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(s.data()));
  };
  return {bytes(field.first), bytes(field.second), field.first.size(), field.second.size(),
          NGHTTP2_NV_FLAG_NONE};
}

}  // namespace trireme::http
