// Numbers and texts as bytes one after another, little-endian, for the files of a job's state.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace trireme::batch {

static_assert(std::endian::native == std::endian::little, "files of a job's state are little-endian");

template <class T>
void put(std::string& out, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

inline void put_text(std::string& out, std::string_view text) {
  put(out, static_cast<uint32_t>(text.size()));
  out += text;
}

/// Takes fields from the front. What runs short sets failed() and gives zeros, so that one look at the end
/// tells whether all was there.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : left_(bytes) {}

  template <class T>
  T take() {
    T value{};
    if (left_.size() < sizeof value) return failed_ = true, left_ = {}, value;
    std::memcpy(&value, left_.data(), sizeof value);
    left_.remove_prefix(sizeof value);
    return value;
  }
  std::string_view take_text() {
    const auto size = take<uint32_t>();
    if (left_.size() < size) return failed_ = true, left_ = {}, std::string_view();
    const std::string_view text = left_.substr(0, size);
    left_.remove_prefix(size);
    return text;
  }
  bool failed() const { return failed_; }
  size_t left() const { return left_.size(); }

 private:
  std::string_view left_;
  bool failed_ = false;
};

}  // namespace trireme::batch
