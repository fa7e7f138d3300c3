// Validates requests at the border of a model.
#include "serve/models/border.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"

namespace trireme::serve {
namespace {

std::string list_names(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& n : names) out += (out.size() > 1 ? "," : "") + std::string("'") + n + "'";
  return out + "]";
}

/// The extents in `dims` where `pattern` is open; `dims` has `first` more dimensions in front.
std::vector<int64_t> open_extents(const tensor::Dims& pattern, size_t first, const tensor::Dims& dims) {
  std::vector<int64_t> open;
  for (size_t d = 0; d < pattern.size() && first + d < dims.size(); ++d) {
    if (pattern[d] == -1) open.push_back(dims[first + d]);
  }
  return open;
}

/// Reshapes `from`, which has the form `old`, to the form `wanted`.
tensor::Dims reshaped(const tensor::Dims& old, const tensor::Dims& wanted, bool is_batched,
                      const tensor::Dims& from) {
  const std::vector<int64_t> open = open_extents(old, is_batched ? 1 : 0, from);
  tensor::Dims dims;
  if (is_batched) dims.push_back(from[0]);
  size_t next = 0;
  for (int64_t d : wanted) dims.push_back(d == -1 ? open.at(next++) : d);
  return dims;
}

}  // namespace

void Border::check(const WireTensor& got, const TensorConfig& want) const {
  base::require(got.type == want.type, "inference input '", got.name, "' data-type is '", wire_name(got.type),
                "', but model '", config_.name, "' expects '", wire_name(want.type), "'");
  const size_t first = config_.is_batched() ? 1 : 0;
  bool fits = got.dims.size() == want.dims.size() + first;
  for (size_t d = 0; fits && d < want.dims.size(); ++d)
    fits = want.dims[d] == -1 || want.dims[d] == got.dims[first + d];
  if (!fits) {  // the text is built only on errors: every request passes here
    tensor::Dims expected = want.dims;
    if (first == 1) expected.insert(expected.begin(), -1);
    base::fail_invalid("unexpected shape for input '", got.name, "' for model '", config_.name,
                       "'. Expected ", tensor::to_string(expected), ", got ", tensor::to_string(got.dims));
  }
  if (!config_.is_batched()) return;
  base::require(got.dims[0] >= 1, "inference request batch-size must be >= 1 for '", config_.name, "', got ",
                got.dims[0]);
  base::require(got.dims[0] <= *config_.max_batch_size,
                "inference request batch-size must be <= ", *config_.max_batch_size, " for '", config_.name,
                "', got ", got.dims[0]);
}

CheckedInputs Border::take(InferRequest& request, size_t first, size_t last) const {
  last = std::min(last, config_.inputs.size());
  std::vector<std::string> missing;
  std::vector<size_t> places;  // position in the request
  for (size_t i = first; i < last; ++i) {
    const TensorConfig& want = config_.inputs[i];
    const auto at = std::find_if(request.inputs.begin(), request.inputs.end(),
                                 [&](const WireTensor& t) { return t.name == want.name; });
    if (at == request.inputs.end()) {
      missing.push_back(want.name);
      continue;
    }
    check(*at, want);
    places.push_back(static_cast<size_t>(at - request.inputs.begin()));
  }
  const size_t wanted = last - first;
  if (!missing.empty() || request.inputs.size() != wanted) {
    std::vector<std::string> given;
    for (const WireTensor& t : request.inputs) given.push_back(t.name);
    base::fail_invalid("expected ", wanted, " inputs but got ", request.inputs.size(), " inputs for model '",
                       config_.name, "'. Got input(s) ", list_names(given),
                       ", but missing required input(s) ", list_names(missing),
                       ". Please provide all required input(s).");
  }
  CheckedInputs out;
  out.rows = places.empty() ? 1 : rows_of(request.inputs[places[0]]);
  for (size_t place : places) {
    WireTensor& t = request.inputs[place];
    base::require(rows_of(t) == out.rows, "inputs of model '", config_.name,
                  "' differ in their batch-size: ", out.rows, " and ", rows_of(t));
    out.tensors.push_back(std::move(t));
  }
  return out;
}

std::vector<std::optional<WireTensor>> Border::take_given(InferRequest& request) const {
  std::vector<std::optional<WireTensor>> taken(config_.inputs.size());
  for (WireTensor& tensor : request.inputs) {
    const auto at = std::find_if(config_.inputs.begin(), config_.inputs.end(),
                                 [&](const TensorConfig& t) { return t.name == tensor.name; });
    base::require(at != config_.inputs.end(), "unexpected inference input '", tensor.name, "' for model '",
                  config_.name, "'");
    check(tensor, *at);
    taken[static_cast<size_t>(at - config_.inputs.begin())] = std::move(tensor);
  }
  for (size_t i = 0; i < taken.size(); ++i)
    base::require(taken[i] || config_.inputs[i].is_optional, "model '", config_.name,
                  "' is missing required input '", config_.inputs[i].name, "'");
  return taken;
}

CheckedInputs Border::take_alone(InferRequest& request) const {
  const TensorConfig& want = config_.inputs[0];
  base::require(request.inputs.size() == 1 && request.inputs[0].name == want.name,
                "expected 1 inputs but got ", request.inputs.size(), " inputs for model '", config_.name,
                "': '", want.name, "' stands alone");
  check(request.inputs[0], want);
  CheckedInputs out;
  out.rows = rows_of(request.inputs[0]);
  out.tensors.push_back(std::move(request.inputs[0]));
  return out;
}

std::vector<AnswerWish> Border::wishes(const InferRequest& request) const {
  std::vector<AnswerWish> wishes;
  if (request.outputs.empty()) {
    for (size_t i = 0; i < config_.outputs.size(); ++i) wishes.push_back({i, request.binary_output});
    return wishes;
  }
  for (const OutputWish& w : request.outputs) {
    const auto at = std::find_if(config_.outputs.begin(), config_.outputs.end(),
                                 [&](const TensorConfig& t) { return t.name == w.name; });
    base::require(at != config_.outputs.end(), "unexpected inference output '", w.name, "' for model '",
                  config_.name, "'");
    wishes.push_back({static_cast<size_t>(at - config_.outputs.begin()),
                      w.is_binary.value_or(request.binary_output), w.classification, w.span});
  }
  return wishes;
}

tensor::Dims model_shape(const TensorConfig& input, bool is_batched, const tensor::Dims& sent) {
  return reshaped(input.dims, *input.reshape, is_batched, sent);
}

tensor::Dims client_shape(const TensorConfig& output, bool is_batched, const tensor::Dims& made) {
  return reshaped(*output.reshape, output.dims, is_batched, made);
}

}  // namespace trireme::serve
