// The border of a model: where what a client sent is checked against the model's configuration, once.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "serve/config/model_config.h"
#include "serve/infer/infer_request.h"

namespace trireme::serve {

/// Inputs that passed the border: one for each that the configuration names, in its order, of its type and
/// shape, and all of as many rows. Nothing behind the border looks at these again.
struct CheckedInputs {
  std::vector<WireTensor> tensors;
  int64_t rows = 1;  ///< 1 where the model does not batch
};

/// One output that the client gets.
struct AnswerWish {
  size_t output = 0;  ///< its place in the configuration
  bool is_binary = false;
  int64_t classification = 0;
  RegionSpan span = {};
};

/// Throws invalid_argument, in the words that clients' tests look for, for what does not fit.
class Border {
 public:
  /// `config` outlives it.
  explicit Border(const ModelConfig& config) : config_(config) {}

  /// Takes the request's inputs; the configuration's before `first` and from `last` on belong to other forms
  /// of request.
  CheckedInputs take(InferRequest& request, size_t first = 0, size_t last = SIZE_MAX) const;
  /// Takes the request's only input, which the configuration has at place 0 and which stands alone.
  CheckedInputs take_alone(InferRequest& request) const;
  /// Takes what the request has of the inputs, by their places in the configuration; those that are optional
  /// may lack.
  std::vector<std::optional<WireTensor>> take_given(InferRequest& request) const;
  /// The outputs that the client wants: all where it names none.
  std::vector<AnswerWish> wishes(const InferRequest& request) const;

 private:
  void check(const WireTensor& got, const TensorConfig& want) const;
  int64_t rows_of(const WireTensor& tensor) const { return config_.is_batched() ? tensor.dims[0] : 1; }

  const ModelConfig& config_;
};

/// The extents that the model sees for those that a client sent, where its input is reshaped: open ones in
/// their order. The batch's stays in front.
tensor::Dims model_shape(const TensorConfig& input, bool is_batched, const tensor::Dims& sent);
/// The reverse, for an output.
tensor::Dims client_shape(const TensorConfig& output, bool is_batched, const tensor::Dims& made);

}  // namespace trireme::serve
