// From a batch of samples to the inputs of a loss graph: which field feeds which input, types, shapes,
// counts.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "data/loader/loader.h"
#include "ir/graph.h"

namespace trireme::train {

/// "input=field" for inputs whose name is not the field's.
using FeedRules = std::vector<std::pair<std::string, std::string>>;

/// Feeds every input of a graph from the fields of batches. A field of another integer or float width is
/// converted; one of another shape with as many elements a sample is reshaped (images into a vector).
class Feeder {
 public:
  /// An input takes the field of a rule, else that of its name, else the only unused field of its kind:
  /// targets (is_target) for the inputs named in `target_inputs`, the other fields for the others. Throws
  /// invalid_argument listing inputs and fields if one is left open or a rule fits nothing.
  Feeder(const ir::Graph& graph, const std::vector<data::Field>& fields, const FeedRules& rules,
         const std::vector<std::string>& target_inputs);

  /// In the order of the graph's inputs; shapes [rows, ...].
  std::vector<tensor::Tensor> feeds(const data::Batch& batch) const;
  /// The same for the first `samples` of the batch.
  std::vector<tensor::Tensor> feeds(const data::Batch& batch, int64_t samples) const;
  std::vector<tensor::Dims> shapes(int64_t rows) const;
  /// Fields that are needed, for LoaderOptions::fields.
  std::vector<std::string> fields() const;

  /// Targets that count for the loss: where it takes integers, those other than `ignore_index`; where it
  /// takes floats, all of the rows that are valid, whatever type their field has; without targets those rows.
  int64_t count_targets(const data::Batch& batch, int64_t ignore_index) const;
  /// Whether the loss can tell by their targets which rows only fill up a batch: it takes integers.
  bool has_integer_targets() const;
  /// Samples that the graph takes at once, where an input states its first extent; 0: any number.
  int64_t fixed_samples() const { return fixed_samples_; }
  /// Targets of one sample, whether they count or not: tokens of a text, 1 for a class.
  int64_t targets_per_sample() const;
  /// "image <- image [28,28]": a line an input, for the run's record.
  std::string text() const;

 private:
  struct Link {
    std::string input, field;
    tensor::DType dtype = tensor::DType::f32;
    tensor::Dims sample;  // extents of one row of the input
    bool is_target = false;
    int64_t rows = 1;  // of the input, for each sample
    bool is_integer_target() const { return is_target && !tensor::is_float(dtype); }
  };
  std::vector<Link> links_;
  int64_t fixed_samples_ = 0;
};

}  // namespace trireme::train
