// A world of ranks as a grid with named axes, one communicator for each axis.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace trireme::comm {

struct MeshAxis {
  std::string name;  // "pp", "dp", "tp"
  int extent = 1;
};

/// Where ranks stand: row-major, the last axis' neighbours are ranks one apart. Pure arithmetic; no ranks
/// needed.
class MeshShape {
 public:
  /// Throws invalid_argument for an extent below 1 or a name twice.
  explicit MeshShape(std::vector<MeshAxis> axes);

  int size() const { return size_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// One coordinate an axis.
  std::vector<int> coordinates(int rank) const;
  int rank(const std::vector<int>& coordinates) const;
  /// Position of an axis in axes(). Throws invalid_argument that lists the axes there are.
  size_t index_of(std::string_view name) const;

 private:
  std::vector<MeshAxis> axes_;
  int size_ = 1;
};

/// One rank's place in the mesh. A rank's index in the group of an axis is its coordinate on it.
class Mesh {
 public:
  /// Collective over `world`, whose size is the product of the extents.
  Mesh(Communicator& world, MeshShape shape);

  const MeshShape& shape() const { return shape_; }
  Communicator& world() { return world_; }
  /// The ranks that differ from this one on that axis only.
  Communicator& axis(std::string_view name) { return *groups_[shape_.index_of(name)]; }

 private:
  Communicator& world_;
  MeshShape shape_;
  std::vector<std::unique_ptr<Communicator>> groups_;
};

}  // namespace trireme::comm
