// Reads little-endian numbers and counted texts from bytes whose end is checked before each step.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/error.h"

namespace trireme::tensor {

/// A place in a file that only goes forward. All functions throw invalid_argument where the bytes end first.
class ByteCursor {
 public:
  explicit ByteCursor(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  size_t position() const { return size_ - rest_.size(); }
  size_t left() const { return rest_.size(); }

  std::string_view take(uint64_t bytes) {
    base::require(bytes <= rest_.size(), "the file ends at byte ", size_, ", ", bytes,
                  " bytes are due from byte ", position(), " on");
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(bytes));
    rest_.remove_prefix(taken.size());
    return taken;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  /// u64 length, bytes.
  std::string_view text() { return take(number<uint64_t>()); }

 private:
  std::string_view rest_;
  size_t size_;
};

}  // namespace trireme::tensor
