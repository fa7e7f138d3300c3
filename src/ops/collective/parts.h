// Which ranks a collective joins, and how they divide one dimension between them.
#pragma once

#include <string>
#include <vector>

#include "ir/schema.h"
#include "tensor/shard.h"

namespace trireme::ops {

/// The attributes `axes`, `parts` and `index` of a collective: the axes of the mesh whose ranks take part,
/// their extents, and this rank's coordinates on them. Passes set `dim`, `sections`, … on top.
ir::Attrs group_attrs(const tensor::MeshShape& mesh, const std::vector<int>& coordinates,
                      std::string_view axes);

/// The ranks of a group, as the attributes of a node tell them.
struct RankGroup {
  std::string axes;         ///< "tp", or "dp,tp" in mesh order
  tensor::MeshShape shape;  ///< of these axes alone; a rank of it is a rank of the communicator
  std::vector<int> index;   ///< this rank's coordinates, empty where the attribute is absent

  /// Throws invalid_argument unless axes and parts fit each other.
  static RankGroup of(const ir::Attrs& attrs);
  int size() const { return shape.size(); }
  bool knows_rank() const { return !index.empty(); }
  /// This rank in the group. Throws invalid_argument where `index` is absent.
  int rank() const;
};

/// A dimension of `extent` elements in `sections` equal sections, each cut in one part a rank. Parts may
/// differ in length (the last ones are shorter or empty) where there is one section.
struct Cut {
  int64_t extent = 0;
  int64_t sections = 1;
  std::vector<int64_t> begin, size;  ///< of each rank's part in the first section

  Cut(int64_t extent, int64_t sections, const RankGroup& group);
  int64_t largest() const;
  bool is_even() const;
  /// Rank r's part stands at r times its size: blocks of ranks in their order are the whole.
  bool is_in_order() const;
};

/// The extent of the whole dimension of operand i of a gather: the attribute `extents`, or equal parts.
int64_t gathered_extent(const ir::Attrs& attrs, size_t operand, int64_t part, const RankGroup& group);

}  // namespace trireme::ops
