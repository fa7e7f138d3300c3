// A grid of ranks with named axes: pure arithmetic, no ranks needed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::tensor {

struct MeshAxis {
  std::string name;  // "pp", "dp", "tp"
  int extent = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// Where ranks stand: row-major, the last axis' neighbours are ranks one apart. Without axes: one rank.
class MeshShape {
 public:
  MeshShape() = default;
  /// Throws invalid_argument for an extent below 1 or a name twice.
  explicit MeshShape(std::vector<MeshAxis> axes);

  int size() const { return size_; }
  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// One coordinate an axis.
  std::vector<int> coordinates(int rank) const;
  int rank(const std::vector<int>& coordinates) const;
  bool has(std::string_view name) const;
  /// Ranks along an axis; 1 for an axis there is not.
  int extent(std::string_view name) const;
  /// Position of an axis in axes(). Throws invalid_argument that lists the axes there are.
  size_t index_of(std::string_view name) const;
  /// Positions of "dp,tp", which are in mesh order. Throws invalid_argument for an unknown name or another
  /// order.
  std::vector<size_t> indices_of(std::string_view names) const;
  bool operator==(const MeshShape&) const = default;

 private:
  std::vector<MeshAxis> axes_;
  int size_ = 1;
};

}  // namespace trireme::tensor
