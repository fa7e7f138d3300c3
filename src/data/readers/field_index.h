// Fields by name, for files whose authors choose how many there are.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/dataset/dataset.h"

namespace trireme::data {

/// Of a file whose rows name or count them. A column takes some hundred bytes before it has a value, and two
/// bytes of a row make one, which packed are none: more are refused.
inline constexpr size_t kMostFields = size_t{1} << 17;

/// Where each field stands in a list, found in logarithmic time: a row may have as many members as it has
/// bytes.
class FieldIndex {
 public:
  /// Its place in `fields`, where it is added if no field has its name; true: it was. Throws invalid_argument
  /// for more than kMostFields.
  std::pair<size_t, bool> add(std::vector<Field>& fields, const Field& field) {
    const auto known = places_.find(field.name);
    if (known != places_.end()) return {known->second, false};
    base::require(fields.size() < kMostFields, "rows have more than ", kMostFields, " fields");
    places_.emplace(field.name, fields.size());
    fields.push_back(field);
    return {fields.size() - 1, true};
  }
  /// Forgets the places and takes those of `fields`, whose names differ.
  void assign(const std::vector<Field>& fields) {
    places_.clear();
    for (size_t i = 0; i < fields.size(); ++i) places_.emplace(fields[i].name, i);
  }
  /// Null if none has the name.
  const Field* find(const std::vector<Field>& fields, std::string_view name) const {
    const auto at = places_.find(name);
    return at == places_.end() ? nullptr : &fields[at->second];
  }

 private:
  std::map<std::string, size_t, std::less<>> places_;
};

}  // namespace trireme::data
