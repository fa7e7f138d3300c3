// Cuts the outputs of one run into the answers of a decoupled model, one for each row.
#pragma once

#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::serve {

/// Answers to one request; more are refused, since each waits in memory until its client takes it.
inline constexpr int64_t kMostAnswers = 65'536;

/// The extent of dimension `axis` (0, or 1 behind a batch), which all outputs share. Throws invalid_argument
/// if they do not, and exhausted past kMostAnswers.
int64_t answer_count(const std::vector<tensor::Tensor>& outputs, size_t axis);

/// The part of `all` at place `index` of dimension `axis`, without that dimension. Shares the bytes where
/// they lie together.
tensor::Tensor answer_at(const tensor::Tensor& all, size_t axis, int64_t index);

}  // namespace trireme::serve
