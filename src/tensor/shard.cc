// How a value is split over the ranks of a mesh: its text form, and the boxes of each rank.
#include "tensor/shard.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::tensor {
namespace {

/// A half-open range of indices.
struct Range {
  int64_t begin, end;
};

/// The ranges of one dimension that a rank holds, where the last of the splitting axes cuts first.
std::vector<Range> ranges_of(int64_t extent, int dim, const Shard& shard, const MeshShape& mesh,
                             const std::vector<int>& coordinates) {
  int sections = 1;
  bool is_split = false;
  for (size_t a = 0; a < mesh.axes().size(); ++a) {
    const Placement p = shard.on(a);
    if (!p.is_split() || p.dim != dim) continue;
    base::require(!is_split || p.sections == sections, "dimension ", dim, " has ", sections,
                  " sections on one ", "mesh axis and ", p.sections, " on another");
    sections = p.sections;
    is_split = true;
  }
  base::require(extent % sections == 0, "dimension ", dim, " of ", extent, " has no ", sections, " sections");
  Range part{0, extent / sections};
  for (size_t a = mesh.axes().size(); a-- > 0;) {
    const Placement p = shard.on(a);
    if (!p.is_split() || p.dim != dim) continue;
    const int parts = mesh.axes()[a].extent;
    const int64_t whole = part.end - part.begin;
    base::require(sections == 1 || whole % parts == 0, "dimension ", dim, ": sections of ", whole,
                  " do not divide over ", parts, " ranks");
    part = {part.begin + part_begin(whole, parts, coordinates[a]),
            part.begin + part_begin(whole, parts, coordinates[a] + 1)};
  }
  std::vector<Range> out;
  for (int s = 0; s < sections; ++s) {
    const int64_t first = extent / sections * s;
    out.push_back({first + part.begin, first + part.end});
  }
  return out;
}

}  // namespace

std::string Placement::to_string() const {
  switch (kind) {
    case PlacementKind::replicated: return "R";
    case PlacementKind::partial: return is_max ? "P(max)" : "P";
    case PlacementKind::own: return "O";
    case PlacementKind::split: break;
  }
  return sections == 1 ? base::concat("S(", dim, ")") : base::concat("S(", dim, "/", sections, ")");
}

void Shard::set(size_t axis, Placement placement) {
  if (axis >= on_.size()) on_.resize(axis + 1);
  on_[axis] = placement;
}

bool Shard::is_replicated() const {
  return std::all_of(on_.begin(), on_.end(), [](const Placement& p) { return p.is_replicated(); });
}

bool Shard::operator==(const Shard& other) const {
  for (size_t a = 0; a < std::max(on_.size(), other.on_.size()); ++a) {
    if (on(a) != other.on(a)) return false;
  }
  return true;
}

std::string Shard::to_string(const MeshShape& mesh) const {
  std::string text;
  for (size_t a = 0; a < on_.size(); ++a) {
    if (on_[a].is_replicated()) continue;
    const std::string name = a < mesh.axes().size() ? mesh.axes()[a].name : std::to_string(a);
    text += "@" + name + ":" + on_[a].to_string();
  }
  return text;
}

int64_t part_begin(int64_t extent, int parts, int index) {
  const int64_t size = (extent + parts - 1) / parts;
  return std::min(extent, size * index);
}

std::vector<Box> local_boxes(const Dims& dims, const Shard& shard, const MeshShape& mesh,
                             const std::vector<int>& coordinates) {
  std::vector<Box> boxes{Box{Dims(), Dims()}};
  for (size_t d = 0; d < dims.size(); ++d) {
    const std::vector<Range> ranges = ranges_of(dims[d], static_cast<int>(d), shard, mesh, coordinates);
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const Range& r : ranges) {
        Box next = box;
        next.offset.push_back(r.begin);
        next.size.push_back(r.end - r.begin);
        longer.push_back(std::move(next));
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

Dims local_dims(const Dims& dims, const Shard& shard, const MeshShape& mesh,
                const std::vector<int>& coordinates) {
  Dims out;
  for (size_t d = 0; d < dims.size(); ++d) {
    int64_t extent = 0;
    for (const Range& r : ranges_of(dims[d], static_cast<int>(d), shard, mesh, coordinates)) {
      extent += r.end - r.begin;
    }
    out.push_back(extent);
  }
  return out;
}

}  // namespace trireme::tensor
