// NumPy files: one tensor as .npy, several as .npz.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"

namespace trireme::model {

/// Reads a .npy file (format 1 to 3). Row-major data of the native byte order stays in the mapped file; other
/// orders are converted. Throws unsupported for element types we do not have, invalid_argument for a broken
/// file.
tensor::Tensor read_npy(const std::string& path);

/// Reads .npy bytes that `owner` keeps alive.
tensor::Tensor parse_npy(std::string_view bytes, std::shared_ptr<const void> owner);

/// Writes `t` as .npy format 1; bf16 and the small types, which NumPy lacks, are refused (unsupported).
void write_npy(const std::string& path, const tensor::Tensor& t);

/// Reads the arrays of a .npz file (zip; stored or deflated), names without ".npy", in file order.
std::vector<std::pair<std::string, tensor::Tensor>> read_npz(const std::string& path);

/// Reads .npz bytes that `owner` keeps alive.
std::vector<std::pair<std::string, tensor::Tensor>> parse_npz(std::string_view bytes,
                                                              const std::shared_ptr<const void>& owner);

}  // namespace trireme::model
