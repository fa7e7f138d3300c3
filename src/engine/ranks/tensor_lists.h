// Bytes and shapes of the tensors that ranks exchange.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor.h"

namespace trireme::engine {

inline comm::Bytes bytes_of(tensor::Tensor& t) { return {t.mutable_raw(), static_cast<size_t>(t.bytes())}; }

inline std::vector<tensor::Dims> shapes_of(const std::vector<tensor::Tensor>& tensors) {
  std::vector<tensor::Dims> shapes;
  for (const tensor::Tensor& t : tensors) shapes.push_back(t.dims());
  return shapes;
}

}  // namespace trireme::engine
