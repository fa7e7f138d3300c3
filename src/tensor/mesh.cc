// Coordinates of ranks in a mesh.
#include "tensor/mesh.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::tensor {

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

bool MeshShape::has(std::string_view name) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const MeshAxis& a) { return a.name == name; });
}

int MeshShape::extent(std::string_view name) const { return has(name) ? axes_[index_of(name)].extent : 1; }

std::vector<size_t> MeshShape::indices_of(std::string_view names) const {
  std::vector<size_t> out;
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    out.push_back(index_of(names.substr(0, comma)));
    names.remove_prefix(std::min(comma + 1, names.size()));
    base::require(out.size() < 2 || out[out.size() - 2] < out.back(), "mesh axes are named in mesh order");
  }
  return out;
}

size_t MeshShape::index_of(std::string_view name) const {
  std::string known;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].name == name) return i;
    known += (i == 0 ? "" : ", ") + axes_[i].name;
  }
  base::fail_invalid("no mesh axis '", name, "'; there are: ", known);
}

}  // namespace trireme::tensor
