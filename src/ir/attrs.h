// The attributes of a node: a small ordered list of named constants.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/variant.h"
#include "tensor/tensor.h"

namespace trireme::ir {

class Graph;

/// A subgraph attribute (branches and bodies of control flow) is immutable and shared.
using GraphPtr = std::shared_ptr<const Graph>;
using AttrValue = base::Variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                                std::vector<std::string>, tensor::Tensor, GraphPtr>;

/// Named constants, kept sorted by name so that equal attributes print and hash equally.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items);

  Attrs& set(std::string name, AttrValue value);
  void erase(std::string_view name);
  const AttrValue* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// The value of `name`, or `fallback` if absent. Throw invalid_argument if it has another kind.
  int64_t get_int(std::string_view name, int64_t fallback) const;
  double get_float(std::string_view name, double fallback) const;
  std::string get_string(std::string_view name, std::string_view fallback) const;
  std::vector<int64_t> get_ints(std::string_view name, std::vector<int64_t> fallback = {}) const;
  std::vector<double> get_floats(std::string_view name, std::vector<double> fallback = {}) const;
  std::vector<std::string> get_strings(std::string_view name, std::vector<std::string> fallback = {}) const;
  /// The tensor `name`; an undefined tensor if absent.
  tensor::Tensor get_tensor(std::string_view name) const;
  /// The subgraph `name`. Throws invalid_argument if absent.
  GraphPtr get_graph(std::string_view name) const;
  /// The integer `name`. Throws invalid_argument if absent.
  int64_t need_int(std::string_view name) const;

  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }
  bool same_as(const Attrs& other) const;
  /// `axis=1, eps=1e-05, mode="linear"`; tensors as their type with a content hash, graphs as `{…}`.
  std::string to_string() const;

 private:
  template <class T>
  const T* typed(std::string_view name) const;
  std::vector<std::pair<std::string, AttrValue>> items_;
};

}  // namespace trireme::ir
