// The fields that a gRPC call begins with.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::serve {

/// Names and values in one text, as most calls have a dozen short ones.
class GrpcMetadata {
 public:
  void add(std::string_view name, std::string_view value) {
    if (fields_.empty()) {
      fields_.reserve(12);
      text_.reserve(256);
    }
    fields_.push_back({static_cast<uint32_t>(text_.size()), static_cast<uint32_t>(name.size()),
                       static_cast<uint32_t>(value.size())});
    text_.append(name).append(value);
  }
  /// The first value of that name; empty: there is none.
  std::string_view find(std::string_view name) const {
    const std::string_view text = text_;
    for (const Field& f : fields_) {
      if (f.name_bytes == name.size() && text.substr(f.at, f.name_bytes) == name)
        return text.substr(f.at + f.name_bytes, f.value_bytes);
    }
    return {};
  }

 private:
  struct Field {
    uint32_t at, name_bytes, value_bytes;
  };
  std::string text_;
  std::vector<Field> fields_;
};

}  // namespace trireme::serve
