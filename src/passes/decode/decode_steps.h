// The graphs of a stage's steps, by what a step gives, and what their inputs are for steps of every size.
#pragma once

#include <map>
#include <vector>

#include "passes/decode/decode.h"

namespace trireme::passes {

/// A form, or a stage of one, and the graphs that draw, made when they are first asked for. One owner thread.
class DecodeSteps {
 public:
  /// `pages`: of the pool that the steps work on; `most_sequences`: of any step; `seen_places`: rows
  /// of what is seen.
  DecodeSteps(DecodeGraph form, int64_t pages, int64_t most_sequences, int64_t seen_places);

  struct Size {
    int64_t tokens = 0, sequences = 0;
  };
  const DecodeGraph& form() const { return form_; }
  int64_t most_sequences() const { return most_sequences_; }
  int64_t seen_places() const { return seen_places_; }
  const ir::Graph& graph(DecodeResult result);
  /// Extents of a step's operands, in the order of inputs_of(): the same for all stages.
  std::vector<tensor::Dims> operand_shapes(DecodeResult result, Size size) const;
  /// What each input of a graph of graph() is: a number of DecodeInput or DrawInput, or kDrawInputs + i for
  /// value i that arrives.
  std::vector<size_t> operands(const ir::Graph& graph) const;
  /// Extents of these inputs. Throws internal for a value that arrives whose extents do not follow from the
  /// step's size.
  std::vector<tensor::Dims> input_shapes(DecodeResult result, Size size, const ir::Graph& graph) const;

 private:
  bool has_adapters() const { return form_.adapters.slots > 0; }

  DecodeGraph form_;
  int64_t most_sequences_, seen_places_;
  std::map<DecodeResult, ir::Graph> draws_;
};

}  // namespace trireme::passes
