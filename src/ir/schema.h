// What the system knows about an operator: one record per op, read by the graph, the passes, the compiler,
// the planner.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/precision_rule.h"

namespace trireme::ir {

class Graph;
struct Node;
enum class ValueId : uint32_t;

/// A node with the types of its operands and what is known of their values, as infer, cost and kernels see
/// it.
struct NodeView {
  const Attrs& attrs;
  std::vector<tensor::TensorType> in;   ///< an absent optional operand has rank 0 and present(i) == false
  std::vector<tensor::TensorType> out;  ///< empty while inferring
  std::vector<const tensor::Tensor*>
      known;  ///< known[i]: the value of operand i if it is constant, else null
  std::vector<bool> is_present;
  size_t out_count = 1;        ///< results asked for
  std::string_view name = {};  ///< for messages

  bool present(size_t i) const { return i < is_present.size() && is_present[i]; }
  /// The constant value of operand i, or null.
  const tensor::Tensor* value(size_t i) const { return i < known.size() ? known[i] : nullptr; }
  /// Extents of operand/result i. Throw internal unless static.
  tensor::Dims in_dims(size_t i) const { return in[i].shape.to_dims(); }
  tensor::Dims out_dims(size_t i) const { return out[i].shape.to_dims(); }
};

/// Work of one execution: floating point (or integer multiply-add) operations and bytes moved at least.
struct Cost {
  double flop = 0;
  double bytes = 0;
};

/// What an attribute is called, whether it must be there; the text documents it.
struct AttrSpec {
  std::string name;
  std::string kind;  ///< int, float, string, ints, floats, strings, tensor, graph
  std::string doc;
};

/// Types of the results from the types (and known values) of the operands. A dimension that depends on data
/// that is not known is Dim::unknown(); when every operand's value is known, every dimension must come out
/// static. Throws invalid_argument for operands the op does not take.
using InferFn = std::function<std::vector<tensor::TensorType>(const NodeView&)>;
/// Adds simpler nodes to the graph that compute the same results; returns them in order.
using ExpandFn = std::function<std::vector<ValueId>(Graph&, const Node&)>;
/// Adds the nodes that compute the gradients of the operands from those of the results; one entry per
/// operand.
using GradFn =
    std::function<std::vector<std::optional<ValueId>>(Graph&, const Node&, std::span<const ValueId>)>;
using CostFn = std::function<Cost(const NodeView&)>;

/// How a node can be split over an axis of ranks, for static shapes. Read by the partition pass and by the
/// check of sharded graphs.
struct CutRule {
  /// A letter for each dimension of each operand and result, "bsk,kn->bsn"; a letter is one index wherever it
  /// stands. '.': never cut. Absent operands and unread results have an empty part. A letter of results alone
  /// is free to be cut: each rank computes its part (the rows of an embedding's gradient).
  std::string notation = {};
  /// Letters that are summed over: a cut leaves partial sums in results that lack the letter. Of `maxes`:
  /// partial maxima.
  std::string sums = {}, maxes = {};
  /// Letters along which each part's statistics are its own (a batch norm's batch): results that lack the
  /// letter are Placement::own, partial sums if it is one of `sums` too; operands that lack it may be own.
  std::string own = {};
  /// Bit masks of operands: all results are jointly linear in the operands of a mask while the others are
  /// fixed, so partial sums may pass: {0b11} for add, {0b01, 0b10} for mul.
  std::vector<uint32_t> linear = {};
  /// Bit mask of operands that are added to the results as they are: partial sums where a cut leaves the
  /// results partial (the gradient that an embedding's rows are added to).
  uint32_t added = 0;
  /// A letter that is cut in whole units only (heads): the number of ranks divides `units`.
  struct Units {
    char letter;
    int64_t units;
  };
  std::vector<Units> units = {};
  /// A dimension that holds its letter's index in several equal sections one after another (packed q, k, v).
  struct Sections {
    bool is_result;
    size_t position, dim;
    int sections;
  };
  std::vector<Sections> sections = {};
  /// Letters whose parts may differ in length (a vocabulary that the ranks do not divide).
  std::string uneven = {};
  /// Dimensions of operands whose extent on a rank, as the other axes leave it, must be 1 for this rule.
  struct Single {
    size_t operand, dim;
  };
  std::vector<Single> single = {};
  /// Other rules of the same node, of which an axis may follow one: query heads that share one key head.
  std::vector<CutRule> others = {};
};
using CutFn = std::function<CutRule(const NodeView&)>;

/// One rank's part of a node, for ops whose attributes or constant operands speak of extents.
struct LocalNode {
  const NodeView& global;                         ///< the whole node
  Attrs& attrs;                                   ///< of the part, to be adapted
  std::vector<tensor::Dims> in, out;              ///< shapes of this rank's parts
  std::vector<tensor::Dims> in_begin, out_begin;  ///< first global index of them (of the first section)
};
/// Adapts the attributes of a rank's part of a node.
using LocaliseFn = std::function<void(LocalNode&)>;

/// Result `result` is the new content of operand `operand`, a state value: same type, same bytes.
struct StateUpdate {
  size_t result = 0, operand = 0;
};
/// What a node with this many operands updates in place.
using UpdatesFn = std::function<std::vector<StateUpdate>(size_t operands)>;

struct OpSchema {
  std::string name;  ///< snake_case, unique
  std::string doc;   ///< one sentence with the formula
  /// Its class of mixed precision. If empty, it follows its operands where `moves` says that no bit is lost,
  /// else it stays f32.
  std::optional<PrecisionRule> precision = {};
  HalfRows half_rows = {};
  /// Bit mask of the operands whose elements, their negatives and zero are all that the results hold, so that
  /// they are exact in every type that holds those. 0: results are computed.
  uint32_t moves = 0;
  bool is_rearrangement = false;  ///< of what moves, places follow from shapes and attributes alone
  bool is_product = false;        ///< its work is products; follows from `sums` where that is set
  bool keeps_results = false;     ///< results are few, operands many: computing them again saves no memory
  /// Index notation "...mk,kn->...mn": upper part checks shapes, counts FLOPs and says what may be split.
  /// Empty where shapes do not follow from it. Operands beyond the notation are as the last one; one of which
  /// the type alone is read is "_".
  std::string dims = {};
  std::string sums = {};        ///< indices that are summed over: splitting one leaves partial results
  std::string whole = {};       ///< indices that never split
  CutFn cut = {};               ///< what ranks may split; if empty, from `dims`, `sums` and `whole`
  std::string why_no_cut = {};  ///< why a node is computed whole on every rank; set where there is no rule
  LocaliseFn localise = {};     ///< if empty, a part of a node has the attributes of the whole
  /// Operands that are shapes (reshape, expand): i64 constants that become those of the rank's result.
  std::optional<size_t> shape_operand = {};
  size_t min_in = 1, max_in = 1;  ///< max_in = kVariadic: any number
  size_t min_out = 1, max_out = 1;
  std::vector<AttrSpec> attrs = {};
  InferFn infer = {};  ///< if empty, inferred from `dims`
  ExpandFn expand = {};
  CostFn cost = {};  ///< if empty: from `dims`, else bytes of the operands and one flop per result element
  GradFn grad = {};
  std::string why_no_grad = {};  ///< must be set where grad is empty
  std::string onnx =
      {};                ///< ONNX operator of the same operands, attributes and meaning (newest opset), or ""
  bool is_view = false;  ///< result 0 has the bytes of operand 0: costs nothing
  bool is_random = false;          ///< never folded, never merged with an equal node
  bool is_control = false;         ///< runs subgraphs; the engine executes it
  bool is_collective = false;      ///< communicates: keeps its order among such nodes, never merged
  bool changes_placement = false;  ///< its results are its operands, spread over the ranks in another way
  /// Set by ops that write state: optimizers, running statistics. Such nodes are never merged, folded or
  /// dropped, and run after every other reader of the old content.
  UpdatesFn updates = {};

  bool updates_state() const { return static_cast<bool>(updates); }
};

/// Whether element i of every result follows from elements i of the operands that broadcast to it, and from
/// operands that are numbers or lend a type: every result of the notation is "...", and so is operand 0.
bool is_elementwise(const OpSchema& op);
PrecisionRule precision_of(const OpSchema& op);
/// Whether results hold elements of the operand; operands beyond the mask are as its last one.
bool moves_operand(const OpSchema& op, size_t operand);
inline bool has_products(const OpSchema& op) { return op.is_product || !op.sums.empty(); }

/// Results by the rule of the op: `infer` if given, else its index notation. Checks the operand count first.
std::vector<tensor::TensorType> infer_types(const OpSchema& op, const NodeView& node);
Cost cost_of(const OpSchema& op, const NodeView& node);

/// Applies index notation to operand types; repeated letters must agree, "..." broadcasts (NumPy rules).
std::vector<tensor::TensorType> infer_from_notation(const std::string& notation, const NodeView& node);

/// NumPy broadcast of shapes. Throws invalid_argument naming both when they do not match.
tensor::Shape broadcast(const tensor::Shape& a, const tensor::Shape& b);

/// Axis in [-rank, rank) -> [0, rank). Throws invalid_argument otherwise.
size_t normal_axis(int64_t axis, size_t rank);

}  // namespace trireme::ir
