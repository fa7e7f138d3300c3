// Raw binary requests: infers the shape from the size of the body.
#include "serve/kserve/kserve_raw.h"

#include <algorithm>

namespace trireme::serve {
namespace {

/// Sets the open dimension, if there is one, to the extent that the size implies.
void deduce(const TensorConfig& input, tensor::Dims& dims, int64_t elements) {
  const auto open = std::find(dims.begin(), dims.end(), -1);
  if (open == dims.end()) return;
  int64_t known = 1;
  for (int64_t d : dims) known *= d == -1 ? 1 : d;
  base::require(known > 0 && elements % known == 0, "The shape of the raw input '", input.name,
                "' can not be deduced: ", elements, " elements are no multiple of ", known);
  *open = elements / known;
}

}  // namespace

InferRequest raw_infer_request(const std::string& model, const std::vector<TensorConfig>& inputs,
                               bool is_batched, std::string_view body,
                               const std::shared_ptr<const void>& owner) {
  base::require(inputs.size() == 1, "Raw request must only have 1 input (found ", inputs.size(),
                ") to be deduced but got ", inputs.size(), " inputs in '", model, "' model configuration");
  const TensorConfig& input = inputs[0];
  base::require(std::count(input.dims.begin(), input.dims.end(), -1) <= 1, "The shape of the raw input '",
                input.name, "' can not be deduced because there are more than one variable-sized dimension");
  tensor::Dims dims = input.dims;
  InferRequest request;
  request.binary_output = true;
  if (!input.type) {
    deduce(input, dims, 1);
    if (is_batched) dims.insert(dims.begin(), 1);
    base::require(wire_elements(input.name, dims) == 1, "For BYTE datatype raw input '", input.name,
                  "', the model must have input shape [1]");
    request.inputs.push_back(
        {.name = input.name, .type = input.type, .dims = dims, .values = {}, .strings = {std::string(body)}});
    return request;
  }
  const auto width = static_cast<size_t>(tensor::bytes_of(*input.type, 1));
  base::require(body.size() % width == 0, "Raw request input '", input.name, "' of ", body.size(),
                " bytes is no whole number of elements of ", width, " bytes");
  deduce(input, dims, static_cast<int64_t>(body.size() / width));
  if (is_batched) dims.insert(dims.begin(), 1);
  request.inputs.push_back(tensor_from_bytes(input.name, input.type, std::move(dims), {body, owner, model}));
  return request;
}

}  // namespace trireme::serve
