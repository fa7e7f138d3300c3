// Which values of a graph hold an index (the rows of a batch, the tokens of a sequence) entry by entry: a
// proof from the cut rules of the operators, for every number of entries at once.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::passes {

/// Where a value holds the index: dimension `dim` has outer * n * inner elements, n being the number of
/// entries. A reshape of [n, tokens, d] to [n * tokens, d] leaves inner = tokens.
struct IndexPlace {
  size_t dim = 0;
  int64_t outer = 1, inner = 1;
  bool operator==(const IndexPlace&) const = default;
  /// The index is the dimension, and nothing else is in it.
  bool is_plain() const { return outer == 1 && inner == 1; }
};

/// How a value depends on the index.
struct IndexUse {
  enum class Kind {
    apart,   ///< not at all: weights, constants
    along,   ///< entry i depends on entry i of the inputs alone (or on none, with as many entries)
    counts,  ///< whole numbers that follow from the number of entries: shapes
    /// As `along`, but entry i depends on i as well: rows that were counted. Stays inside the graph where it
    /// only looks up what belongs to the same entry; `why` names the node that counts.
    numbered,
    mixed,  ///< anything else; `why` names the first node that mixes, and how
  };
  Kind kind = Kind::apart;
  IndexPlace place = {};
  std::string why = {};

  /// The value has the index at `place`.
  bool has_place() const { return kind == Kind::along || kind == Kind::numbered; }
  bool is_along(size_t dim) const { return kind == Kind::along && place == IndexPlace{dim}; }
};

/// What is known of a graph before it is looked at.
struct IndexedInputs {
  /// By input: its extents; the one of the index does not count.
  std::vector<tensor::Dims> shapes;
  /// By input: the dimension of the index, if it has it.
  std::vector<std::optional<size_t>> dims;
  /// Results that are what the caller says, whatever their node does: attention over pages that keep the
  /// tokens of each sequence apart.
  std::map<ir::ValueId, IndexUse> given = {};
};

/// How each value of the graph (by value index) depends on the index. Holds for every n >= 1 that the graph
/// takes. Reads types, attributes and small constants, no weights: milliseconds. Throws what shape inference
/// throws where the graph does not take the shapes.
std::vector<IndexUse> follow_index(const ir::Graph& graph, const IndexedInputs& inputs);

/// Empty if row i of every result follows from row i of the inputs alone, rows being the outermost dimension
/// of every input and result; else the node that mixes them and how, in words. `shapes`: of the inputs, the
/// number of rows does not count.
std::string why_rows_mix(const ir::Graph& graph, std::vector<tensor::Dims> shapes);

}  // namespace trireme::passes
