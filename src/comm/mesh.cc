// Coordinates of ranks, and the split of a world into the lines along each axis.
#include "comm/mesh.h"

#include "base/error.h"

namespace trireme::comm {

MeshShape::MeshShape(std::vector<MeshAxis> axes) : axes_(std::move(axes)) {
  constexpr int kMaxRanks = 1 << 20;
  for (size_t i = 0; i < axes_.size(); ++i) {
    const MeshAxis& a = axes_[i];
    base::require(a.extent >= 1, "mesh axis '", a.name, "' has extent ", a.extent);
    base::require(a.extent <= kMaxRanks / size_, "a mesh of more than ", kMaxRanks, " ranks");
    size_ *= a.extent;
    for (size_t j = 0; j < i; ++j) base::require(axes_[j].name != a.name, "mesh axis twice: ", a.name);
  }
}

std::vector<int> MeshShape::coordinates(int rank) const {
  base::require(rank >= 0 && rank < size_, "no rank ", rank, " in a mesh of ", size_);
  std::vector<int> out(axes_.size());
  for (size_t i = axes_.size(); i-- > 0;) {
    out[i] = rank % axes_[i].extent;
    rank /= axes_[i].extent;
  }
  return out;
}

int MeshShape::rank(const std::vector<int>& coordinates) const {
  base::require(coordinates.size() == axes_.size(), "mesh of ", axes_.size(), " axes, ", coordinates.size(),
                " coordinates");
  int rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    base::require(coordinates[i] >= 0 && coordinates[i] < axes_[i].extent, "mesh axis '", axes_[i].name,
                  "' has no place ", coordinates[i]);
    rank = rank * axes_[i].extent + coordinates[i];
  }
  return rank;
}

size_t MeshShape::index_of(std::string_view name) const {
  std::string known;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) return i;
    known += (i == 0 ? "" : ", ") + axes_[i].name;
  }
  base::fail_invalid("no mesh axis '", name, "'; there are: ", known);
}

Mesh::Mesh(Communicator& world, MeshShape shape) : world_(world), shape_(std::move(shape)) {
  base::require(world.size() == shape_.size(), "mesh of ", shape_.size(), " ranks in a world of ",
                world.size());
  const std::vector<int> own = shape_.coordinates(world.rank());
  for (size_t i = 0; i < own.size(); ++i) {
    // The line's name is the rank at its beginning.
    std::vector<int> first = own;
    first[i] = 0;
    groups_.push_back(world.split(shape_.rank(first), own[i]));
  }
}

}  // namespace trireme::comm
