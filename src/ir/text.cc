// How the text form writes names, numbers and tensors.
#include "ir/text.h"

#include <algorithm>
#include <charconv>

#include "tensor/absent.h"

namespace trireme::ir {
namespace {

constexpr int64_t kFullConstant = 16;  // constants up to this many elements print in full

template <class T>
std::string shortest(T value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return std::string(text, end);
}

/// Types whose elements have a C++ type of their own and so can be listed.
bool is_listable(tensor::DType type) { return type <= tensor::DType::boolean; }

template <class T>
std::string element_text(T value) {
  if constexpr (std::is_same_v<T, double>) return shortest(value);
  if constexpr (tensor::dtype_of<T>() <= tensor::DType::bf16) {
    return shortest(static_cast<float>(value));
  } else {
    return std::to_string(value);
  }
}

std::string listed(const tensor::Tensor& t) {
  std::string text = "{";
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    for (const auto value : t.data<decltype(zero)>())
      text += (text.size() > 1 ? ", " : "") + element_text(value);
  });
  return text + "}";
}

/// True if every element is the float or integer `value`.
bool is_all(const tensor::Tensor& t, int value) {
  return tensor::visit_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto data = t.data<T>();
    return std::all_of(data.begin(), data.end(), [&](T v) { return static_cast<double>(v) == value; });
  });
}

}  // namespace

std::string quoted_text(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string real_text(double value) {
  const std::string s = shortest(value);
  return s.find_first_of(".en") == std::string::npos ? s + ".0" : s;
}

std::string tensor_text(const tensor::Tensor& t) {
  const std::string type = t.type().to_string();
  if (tensor::is_absent(t)) return type + "#absent";
  if (is_listable(t.dtype())) {
    if (t.elements() <= kFullConstant) return type + listed(t);
    if (is_all(t, 0)) return type + "#zeros";
    if (is_all(t, 1)) return type + "#ones";
  }
  return type + base::concat("#", std::hex, tensor::content_hash(t));
}

}  // namespace trireme::ir
