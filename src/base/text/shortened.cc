// Shortens messages to a bounded length.
#include "base/text/shortened.h"

#include "base/error.h"

namespace trireme::base {
namespace {

bool is_within_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::string shortened(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  // Keep both ends: the program's own words come first, and the last ones often give the place or the limit.
  size_t head = most_bytes / 4 * 3, tail = text.size() - most_bytes / 4;
  for (int i = 0; i < 3 && head > 0 && is_within_character(text[head]); ++i) --head;
  for (int i = 0; i < 3 && tail < text.size() && is_within_character(text[tail]); ++i) ++tail;
  return concat(text.substr(0, head), " [", tail - head, " bytes left out] ", text.substr(tail));
}

}  // namespace trireme::base
