// Messages of bounded length, whatever of the input they repeat.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::base {

/// What a message may be long where it leaves the program: on the wire and in a line of the log.
inline constexpr size_t kMostMessageBytes = 1024;

/// The text, or its beginning and end with the number of bytes left out between them: at most `most_bytes` of
/// it. UTF-8 is cut between characters.
std::string shortened(std::string_view text, size_t most_bytes = kMostMessageBytes);

}  // namespace trireme::base
