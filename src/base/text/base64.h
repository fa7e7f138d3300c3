// Base64 (RFC 4648, the standard alphabet).
#pragma once

#include <string>
#include <string_view>

namespace trireme::base {

/// Throws invalid_argument for other characters. Padding may be missing; nothing may come behind it.
std::string decode_base64(std::string_view text);
/// The reverse, with padding.
std::string encode_base64(std::string_view bytes);

}  // namespace trireme::base
