// How a value is spread over the ranks of a mesh: on each axis whole, split, a partial result, or the rank's
// own (training contract C1).
#pragma once

#include <string>
#include <vector>

#include "tensor/mesh.h"
#include "tensor/shape.h"

namespace trireme::tensor {

/// replicated: every rank holds the whole value, all the same bits. split: each rank holds a part of one
/// dimension. partial: the value is the sum (or maximum) over the ranks of what they hold. own: each rank
/// holds a value of its own micro-batches (statistics of a batch norm), of which there is no common one.
enum class PlacementKind : uint8_t { replicated, split, partial, own };

/// Placement on one axis.
struct Placement {
  PlacementKind kind = PlacementKind::replicated;
  int dim = 0;          ///< of split
  int sections = 1;     ///< of split: the dimension is so many equal sections, each split (packed q, k, v)
  bool is_max = false;  ///< of partial: awaits a maximum

  static Placement split(int dim, int sections = 1) { return {PlacementKind::split, dim, sections}; }
  static Placement partial_sum() { return {PlacementKind::partial}; }
  static Placement partial_max() { return {.kind = PlacementKind::partial, .is_max = true}; }
  static Placement own() { return {PlacementKind::own}; }
  bool is_replicated() const { return kind == PlacementKind::replicated; }
  bool is_split() const { return kind == PlacementKind::split; }
  bool is_partial() const { return kind == PlacementKind::partial; }
  bool operator==(const Placement&) const = default;
  /// "R", "S(1)", "S(1/3)" (three sections), "P", "P(max)", "O".
  std::string to_string() const;
};

/// Placements by mesh axis, in mesh order; axes beyond the list are replicated. Of several axes that split
/// one dimension the last one cuts first: ranks that differ on it hold the largest parts. `sections` is then
/// the same on all of them.
class Shard {
 public:
  Shard() = default;
  explicit Shard(std::vector<Placement> on) : on_(std::move(on)) {}

  Placement on(size_t axis) const { return axis < on_.size() ? on_[axis] : Placement{}; }
  void set(size_t axis, Placement placement);
  bool is_replicated() const;
  bool operator==(const Shard& other) const;
  /// "@dp:S(0)@tp:P"; axes where it is replicated are left out.
  std::string to_string(const MeshShape& mesh) const;

 private:
  std::vector<Placement> on_;
};

/// A part of a tensor: first index and extent of every dimension.
struct Box {
  Dims offset, size;
  int64_t elements() const { return element_count(size); }
  bool operator==(const Box&) const = default;
};

/// Where part `index` of `parts` of an extent begins: parts are of ceil(extent / parts), the last ones may be
/// shorter or empty.
int64_t part_begin(int64_t extent, int parts, int index);

/// What the rank at `coordinates` holds of a tensor of the global shape `dims`: boxes that, put side by side
/// along the split dimensions, are its local tensor (several where a dimension has sections). Dimensions with
/// sections divide evenly or invalid_argument is thrown.
std::vector<Box> local_boxes(const Dims& dims, const Shard& shard, const MeshShape& mesh,
                             const std::vector<int>& coordinates);
/// Shape of the local tensor.
Dims local_dims(const Dims& dims, const Shard& shard, const MeshShape& mesh,
                const std::vector<int>& coordinates);

}  // namespace trireme::tensor
