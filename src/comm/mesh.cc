// Splits the world into a group along each axis, and into groups over several axes on demand.
#include "comm/mesh.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::comm {

Mesh::Mesh(Communicator& world, MeshShape shape) : world_(world), shape_(std::move(shape)) {
  base::require(world.size() == shape_.size(), "mesh of ", shape_.size(), " ranks in a world of ",
                world.size());
  for (const MeshAxis& a : shape_.axes()) open(a.name);
}

Mesh::Mesh(Mesh& host, Make make)
    : world_(host.world_), shape_(host.shape_), host_(&host), make_(std::move(make)) {}

std::vector<int> Mesh::coordinates() const { return shape_.coordinates(world_.rank()); }

Communicator& Mesh::open(std::string_view axes) {
  if (const auto found = groups_.find(axes); found != groups_.end()) return *found->second;
  if (host_ != nullptr) return *groups_.emplace(std::string(axes), make_(host_->open(axes))).first->second;
  const std::vector<size_t> members = shape_.indices_of(axes);
  // A group is named after its first rank; its members are ordered as in the world.
  std::vector<int> first = coordinates();
  for (const size_t i : members) first[i] = 0;
  auto group = world_.split(shape_.rank(first), world_.rank());
  return *groups_.emplace(std::string(axes), std::move(group)).first->second;
}

Communicator& Mesh::axis(std::string_view axes) const {
  const auto found = groups_.find(axes);
  base::check(found != groups_.end(), "the group of the mesh axes '", axes, "' was not opened");
  return *found->second;
}

}  // namespace trireme::comm
