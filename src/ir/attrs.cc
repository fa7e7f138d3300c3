// The attributes of a node: sorted storage, typed access with clear errors, text form.
#include "ir/attrs.h"

#include <algorithm>
#include <array>

#include "ir/text.h"

namespace trireme::ir {
namespace {

constexpr std::array<std::string_view, 8> kKindNames{"int",    "float",   "string", "ints",
                                                     "floats", "strings", "tensor", "graph"};

bool before(const std::pair<std::string, AttrValue>& item, std::string_view name) {
  return item.first < name;
}

template <class T, class F>
std::string list_text(const std::vector<T>& items, F&& text) {
  std::string out = "[";
  for (size_t i = 0; i < items.size(); ++i) out += (i ? ", " : "") + text(items[i]);
  return out + "]";
}

struct TextOf {
  std::string operator()(int64_t v) const { return std::to_string(v); }
  std::string operator()(double v) const { return real_text(v); }
  std::string operator()(const std::string& v) const { return quoted_text(v); }
  std::string operator()(const std::vector<int64_t>& v) const {
    return list_text(v, [](int64_t x) { return std::to_string(x); });
  }
  std::string operator()(const std::vector<double>& v) const { return list_text(v, real_text); }
  std::string operator()(const std::vector<std::string>& v) const { return list_text(v, quoted_text); }
  std::string operator()(const tensor::Tensor& t) const { return tensor_text(t); }
  std::string operator()(const GraphPtr&) const { return "{...}"; }
};

struct SameValue {
  const AttrValue& other;
  bool operator()(const tensor::Tensor& t) const { return t.same_as(std::get<tensor::Tensor>(other)); }
  template <class T>
  bool operator()(const T& v) const {
    return v == std::get<T>(other);
  }
};

}  // namespace

Attrs::Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items) {
  for (const auto& [name, value] : items) set(name, value);
}

Attrs& Attrs::set(std::string name, AttrValue value) {
  auto at = std::lower_bound(items_.begin(), items_.end(), name, before);
  if (at != items_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    items_.emplace(at, std::move(name), std::move(value));
  }
  return *this;
}

void Attrs::erase(std::string_view name) {
  std::erase_if(items_, [&](const auto& item) { return item.first == name; });
}

const AttrValue* Attrs::find(std::string_view name) const {
  auto at = std::lower_bound(items_.begin(), items_.end(), name, before);
  return at != items_.end() && at->first == name ? &at->second : nullptr;
}

template <class T>
const T* Attrs::typed(std::string_view name) const {
  const AttrValue* value = find(name);
  if (value == nullptr) return nullptr;
  if (const T* typed_value = std::get_if<T>(value)) return typed_value;
  base::fail_invalid("attribute '", name, "' has kind ", kKindNames[value->index()], ", wanted ",
                     kKindNames[AttrValue(T{}).index()]);
}

int64_t Attrs::get_int(std::string_view name, int64_t fallback) const {
  const int64_t* v = typed<int64_t>(name);
  return v ? *v : fallback;
}

double Attrs::get_float(std::string_view name, double fallback) const {
  const double* v = typed<double>(name);
  return v ? *v : fallback;
}

std::string Attrs::get_string(std::string_view name, std::string_view fallback) const {
  const std::string* v = typed<std::string>(name);
  return v ? *v : std::string(fallback);
}

std::vector<int64_t> Attrs::get_ints(std::string_view name, std::vector<int64_t> fallback) const {
  const auto* v = typed<std::vector<int64_t>>(name);
  return v ? *v : fallback;
}

std::vector<double> Attrs::get_floats(std::string_view name, std::vector<double> fallback) const {
  const auto* v = typed<std::vector<double>>(name);
  return v ? *v : fallback;
}

std::vector<std::string> Attrs::get_strings(std::string_view name, std::vector<std::string> fallback) const {
  const auto* v = typed<std::vector<std::string>>(name);
  return v ? *v : fallback;
}

tensor::Tensor Attrs::get_tensor(std::string_view name) const {
  const auto* v = typed<tensor::Tensor>(name);
  return v ? *v : tensor::Tensor();
}

GraphPtr Attrs::get_graph(std::string_view name) const {
  const auto* v = typed<GraphPtr>(name);
  base::require(v != nullptr, "missing graph attribute '", name, "'");
  return *v;
}

int64_t Attrs::need_int(std::string_view name) const {
  const int64_t* v = typed<int64_t>(name);
  base::require(v != nullptr, "missing attribute '", name, "'");
  return *v;
}

bool Attrs::same_as(const Attrs& other) const {
  return std::equal(items_.begin(), items_.end(), other.items_.begin(), other.items_.end(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && a.second.index() == b.second.index() &&
                             std::visit(SameValue{b.second}, a.second);
                    });
}

std::string Attrs::to_string() const {
  std::string out;
  for (const auto& [name, value] : items_) {
    out += (out.empty() ? "" : ", ") + name + "=" + std::visit(TextOf{}, value);
  }
  return out;
}

}  // namespace trireme::ir
