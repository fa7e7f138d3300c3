// How the text form writes names, numbers and tensors; shared by printing and parsing.
#pragma once

#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace trireme::ir {

/// `"text"` with backslash escapes for quotes, backslashes and line breaks.
std::string quoted_text(std::string_view text);

/// The shortest text that reads back as the same double; always with a point, an exponent or a letter.
std::string real_text(double value);

/// Type and content of a constant: `f32[2]{1, 2}` up to 16 elements, `#zeros` and `#ones` for large uniform
/// ones, else `#` and a hash of the bytes.
std::string tensor_text(const tensor::Tensor& t);

}  // namespace trireme::ir
