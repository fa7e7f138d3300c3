// Fields by name, for files whose authors choose how many there are.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "data/dataset/dataset.h"

namespace trireme::data {

/// Where each field stands in a list, found in logarithmic time: a row may have as many members as it has
/// bytes.
class FieldIndex {
 public:
  /// Its place in `fields`, where it is added if no field has its name; true: it was.
  std::pair<size_t, bool> add(std::vector<Field>& fields, const Field& field) {
    const auto [at, is_new] = places_.try_emplace(field.name, fields.size());
    if (is_new) fields.push_back(field);
    return {at->second, is_new};
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
