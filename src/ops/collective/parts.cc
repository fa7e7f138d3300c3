// Which ranks a collective joins, and how they divide one dimension between them.
#include "ops/collective/parts.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::ops {
namespace {

std::vector<std::string> names_of(const std::string& axes) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= axes.size();) {
    const size_t end = std::min(axes.find(',', begin), axes.size());
    names.push_back(axes.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace

ir::Attrs group_attrs(const tensor::MeshShape& mesh, const std::vector<int>& coordinates,
                      std::string_view axes) {
  std::vector<int64_t> parts, index;
  for (const size_t a : mesh.indices_of(axes)) {
    parts.push_back(mesh.axes()[a].extent);
    index.push_back(coordinates.at(a));
  }
  return {{"axes", std::string(axes)}, {"parts", std::move(parts)}, {"index", std::move(index)}};
}

RankGroup RankGroup::of(const ir::Attrs& attrs) {
  RankGroup group;
  group.axes = attrs.get_string("axes", "");
  base::require(!group.axes.empty(), "a collective names the mesh axes it runs over");
  const std::vector<std::string> names = names_of(group.axes);
  const std::vector<int64_t> parts = attrs.get_ints("parts");
  base::require(parts.size() == names.size(), "parts holds the extents of the axes ", group.axes, ", given ",
                parts.size(), " numbers");
  std::vector<tensor::MeshAxis> axes;
  for (size_t i = 0; i < names.size(); ++i) axes.push_back({names[i], static_cast<int>(parts[i])});
  group.shape = tensor::MeshShape(std::move(axes));
  const std::vector<int64_t> index = attrs.get_ints("index");
  base::require(index.empty() || index.size() == parts.size(),
                "index holds a coordinate on each of the axes ", group.axes, ", given ", index.size());
  for (size_t i = 0; i < index.size(); ++i) {
    base::require(index[i] >= 0 && index[i] < parts[i], "coordinate ", index[i], " on the axis ", names[i],
                  " of ", parts[i], " ranks");
    group.index.push_back(static_cast<int>(index[i]));
  }
  return group;
}

int RankGroup::rank() const {
  base::require(knows_rank(), "the attribute index (this rank's coordinates on ", axes, ") is needed");
  return shape.rank(index);
}

Cut::Cut(int64_t extent_, int64_t sections_, const RankGroup& group) : extent(extent_), sections(sections_) {
  base::require(sections > 0, "sections is at least 1, given ", sections);
  tensor::Shard shard;
  for (size_t a = 0; a < group.shape.axes().size(); ++a) {
    shard.set(a, tensor::Placement::split(0, static_cast<int>(sections)));
  }
  for (int r = 0; r < group.size(); ++r) {
    const tensor::Box first =
        tensor::local_boxes({extent}, shard, group.shape, group.shape.coordinates(r)).front();
    begin.push_back(first.offset[0]);
    size.push_back(first.size[0]);
  }
}

int64_t Cut::largest() const { return *std::max_element(size.begin(), size.end()); }

bool Cut::is_even() const {
  return std::all_of(size.begin(), size.end(), [&](int64_t s) { return s == size[0]; });
}

bool Cut::is_in_order() const {
  for (size_t r = 0; r < begin.size(); ++r) {
    if (begin[r] != static_cast<int64_t>(r) * size[0]) return false;
  }
  return is_even();
}

int64_t gathered_extent(const ir::Attrs& attrs, size_t operand, int64_t part, const RankGroup& group) {
  const std::vector<int64_t> extents = attrs.get_ints("extents");
  if (extents.empty()) return part * group.size();
  base::require(operand < extents.size(), "extents holds a number for each operand, given ", extents.size());
  return extents[operand];
}

}  // namespace trireme::ops
