// Cuts parts out of logical tensors, and assembles tensors from the parts of all ranks.
#include "engine/train/state_parts.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "tensor/half.h"

namespace trireme::engine {
namespace {

using tensor::Box;
using tensor::Dims;
using tensor::Tensor;

/// A box within a tensor of extents `dims` at `data`.
struct Region {
  std::byte* data;
  Dims dims, offset;

  int64_t index_of(const Dims& at) const {
    int64_t index = 0;
    for (size_t d = 0; d < dims.size(); ++d) index = index * dims[d] + offset[d] + at[d];
    return index;
  }
};

/// Copies a box of `size` elements of `width` bytes, one run of the last dimension at a time.
void copy_region(const Region& from, const Region& to, const Dims& size, int64_t width) {
  if (tensor::element_count(size) == 0) return;
  const int64_t run = size.empty() ? 1 : size.back();
  Dims at(size.size(), 0);
  for (bool is_done = false; !is_done;) {
    std::memcpy(to.data + to.index_of(at) * width, from.data + from.index_of(at) * width,
                static_cast<size_t>(run * width));
    is_done = true;
    for (size_t d = size.empty() ? 0 : size.size() - 1; d-- > 0 && is_done;) {
      is_done = ++at[d] == size[d];
      if (is_done) at[d] = 0;
    }
  }
}

/// A box of the whole tensor, and its start within the rank's local tensor.
struct PlacedBox {
  Box box;
  Dims local;
};

/// Boxes are concatenated along the split dimensions in the order of their offsets.
std::vector<PlacedBox> placed_boxes(const std::vector<Box>& boxes) {
  std::vector<PlacedBox> placed;
  for (const Box& b : boxes) {
    PlacedBox p{b, Dims(b.offset.size(), 0)};
    for (size_t d = 0; d < p.local.size(); ++d) {
      std::set<int64_t> seen;
      for (const Box& other : boxes) {
        if (other.offset[d] < b.offset[d] && seen.insert(other.offset[d]).second) p.local[d] += other.size[d];
      }
    }
    placed.push_back(std::move(p));
  }
  return placed;
}

struct Rank {
  const tensor::MeshShape& mesh;
  const std::vector<int>& coordinates;
};

/// Calls copy(region of the whole, region of the part, size) for every box of a rank.
template <class Copy>
void each_box(const StatePlace& place, Rank rank, Copy copy) {
  const Dims local = tensor::local_dims(place.dims, place.shard, rank.mesh, rank.coordinates);
  for (const PlacedBox& p :
       placed_boxes(tensor::local_boxes(place.dims, place.shard, rank.mesh, rank.coordinates)))
    copy(Region{nullptr, place.dims, p.box.offset}, Region{nullptr, local, p.local}, p.box.size);
}

int64_t width_of(const Tensor& t) {
  const int bits = tensor::bits_of(t.dtype());
  base::require(bits >= 8, "a state of ", name_of(t.dtype()), ": its elements share bytes");
  return bits / 8;
}

std::byte* writable_bytes(const Tensor& t) { return const_cast<std::byte*>(t.raw()); }

/// The positions in the mesh of the axes that split the tensor.
std::vector<size_t> split_axes(const StatePlace& place, const tensor::MeshShape& mesh) {
  std::vector<size_t> axes;
  for (size_t a = 0; a < mesh.axes().size(); ++a) {
    if (place.shard.on(a).is_split() && mesh.axes()[a].extent > 1) axes.push_back(a);
  }
  return axes;
}

}  // namespace

bool is_split(const StatePlace& place, const tensor::MeshShape& mesh) {
  return !split_axes(place, mesh).empty();
}

Tensor part_of(const Tensor& whole, const StatePlace& place, const tensor::MeshShape& mesh,
               const std::vector<int>& coordinates) {
  base::check(whole.dims() == place.dims, "a part of ", tensor::to_string(place.dims), " out of ",
              whole.type().to_string());
  Tensor part = Tensor::empty(whole.dtype(), tensor::local_dims(place.dims, place.shard, mesh, coordinates));
  each_box(place, {mesh, coordinates}, [&](Region from, Region to, const Dims& size) {
    from.data = writable_bytes(whole);
    to.data = writable_bytes(part);
    copy_region(from, to, size, width_of(whole));
  });
  return part;
}

Tensor whole_of(const Tensor& part, const StatePlace& place, const comm::Mesh& mesh) {
  const tensor::MeshShape& shape = mesh.shape();
  const std::vector<size_t> axes = split_axes(place, shape);
  if (axes.empty()) return part;
  std::string names;
  for (size_t a : axes) names += (names.empty() ? "" : ",") + shape.axes()[a].name;
  comm::Communicator& group = mesh.axis(names);
  // The members of the group in order; those next to each other on the last axis have adjacent numbers.
  std::vector<std::vector<int>> members;
  int64_t longest = 0;
  for (int r = 0; r < group.size(); ++r) {
    std::vector<int> at = mesh.coordinates();
    int rest = r;
    for (size_t k = axes.size(); k-- > 0;) {
      at[axes[k]] = rest % shape.axes()[axes[k]].extent;
      rest /= shape.axes()[axes[k]].extent;
    }
    const Dims dims = tensor::local_dims(place.dims, place.shard, shape, at);
    longest = std::max(longest, tensor::element_count(dims) * width_of(part));
    members.push_back(std::move(at));
  }
  std::vector<std::byte> mine(static_cast<size_t>(longest)), all(mine.size() * members.size());
  if (part.bytes() > 0) std::memcpy(mine.data(), part.raw(), static_cast<size_t>(part.bytes()));
  group.all_gather(mine, all, "state");
  Tensor whole = Tensor::empty(part.dtype(), place.dims);
  for (size_t r = 0; r < members.size(); ++r) {
    each_box(place, {shape, members[r]}, [&](Region to, Region from, const Dims& size) {
      from.data = all.data() + r * mine.size();
      to.data = writable_bytes(whole);
      copy_region(from, to, size, width_of(part));
    });
  }
  return whole;
}

Tensor converted(const Tensor& content, tensor::DType type) {
  const bool is_widened = type == tensor::DType::f32;
  base::check(is_widened || content.dtype() == tensor::DType::f32, "conversion of ",
              content.type().to_string());
  Tensor out = Tensor::empty(type, content.dims());
  const auto convert = [](auto from, auto to) {
    using T = typename decltype(to)::value_type;
    for (size_t i = 0; i < to.size(); ++i) to[i] = static_cast<T>(from[i]);
  };
  tensor::visit_dtype(is_widened ? content.dtype() : type, [&](auto zero) {
    using T = decltype(zero);
    if (is_widened) return convert(content.data<T>(), out.mutable_data<float>());
    convert(content.data<float>(), out.mutable_data<T>());
  });
  return out;
}

}  // namespace trireme::engine
