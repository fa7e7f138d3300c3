// Copies boxes out of states and into them.
#include "train/checkpoint/rank_states.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "tensor/element_bytes.h"
#include "train/files/box_copy.h"

namespace trireme::train {
namespace {

/// Copies a box of the local tensor to a tensor of its own.
tensor::Tensor part_of(const tensor::Tensor& local, const tensor::Box& box, const tensor::Dims& offset) {
  if (box.size == local.dims()) return local;
  tensor::Tensor part = tensor::Tensor::empty(local.dtype(), box.size);
  const BoxPlace from{local.dims(), offset}, to{box.size, tensor::Dims(box.size.size(), 0)};
  std::byte* target = part.mutable_raw();
  for_runs(box.size, from, to, tensor::element_bytes(local.dtype()), [&](int64_t at, int64_t put, int64_t n) {
    std::memcpy(target + put, local.raw() + at, static_cast<size_t>(n));
  });
  return part;
}

}  // namespace

RankStates::RankStates(engine::StateStore& states, const Ranks& ranks, const model::NamedTensors& frozen,
                       bool writes_frozen)
    : states_(states), ranks_(ranks), writes_frozen_(writes_frozen && ranks.is_leader()) {
  std::string names;
  for (const std::string& name : states.names()) names += name + "\n";
  const tensor::MeshShape shape = ranks.mesh() == nullptr ? tensor::MeshShape() : ranks.mesh()->shape();
  const std::vector<int> coordinates = shape.coordinates(ranks.rank());
  const auto stage_of = [&](int rank) {
    return shape.has("pp") ? shape.coordinates(rank)[shape.index_of("pp")] : 0;
  };
  const std::vector<std::string> all = ranks.gather(names);
  for (size_t r = 0; r < all.size(); ++r) {
    for (const std::string& name : lines_of(all[r])) {
      anywhere_.insert(name);
      if (stage_of(static_cast<int>(r)) < stage_of(ranks.rank())) earlier_.insert(name);
    }
  }
  for (const auto& [name, content] : frozen) {
    if (!anywhere_.contains(name)) frozen_.emplace(name, content);
  }
  for (const std::string& name : lines_of(names)) {
    const engine::StatePlace place = states.place(name);
    Held h{name, place.dims, tensor::local_boxes(place.dims, place.shard, shape, coordinates)};
    h.is_mine = is_first_holder(name, place.shard);
    const tensor::Dims local = tensor::local_dims(place.dims, place.shard, shape, coordinates);
    const tensor::TensorType held = states.type(name);
    base::check(local == held.shape.to_dims(), "state '", name, "' is ", held.to_string(),
                ", its place says ", tensor::to_string(local));
    held_.push_back(std::move(h));
  }
  std::sort(held_.begin(), held_.end(), [](const Held& a, const Held& b) { return a.name < b.name; });
}

bool RankStates::is_first_holder(const std::string& name, const tensor::Shard& shard) const {
  if (ranks_.mesh() == nullptr) return true;
  const tensor::MeshShape& shape = ranks_.mesh()->shape();
  const std::vector<int> at = ranks_.mesh()->coordinates();
  for (size_t a = 0; a < shape.axes().size(); ++a) {
    const tensor::Placement p = shard.on(a);
    base::check(p.is_split() || p.is_replicated(), "state '", name, "' is ", p.to_string(), " on axis '",
                shape.axes()[a].name, "': ranks hold no parts of one tensor");
    if (p.is_split()) continue;
    if (shape.axes()[a].name == "pp" ? earlier_.contains(name) : at[a] != 0) return false;
  }
  return true;
}

std::vector<CheckpointPiece> RankStates::pieces() const {
  std::vector<CheckpointPiece> pieces;
  for (const Held& h : held_) {
    if (!h.is_mine) continue;
    const tensor::Tensor& local = std::as_const(states_).at(h.name);
    const std::vector<tensor::Dims> offsets = local_offsets(h.boxes);
    for (size_t b = 0; b < h.boxes.size(); ++b) {
      if (h.boxes[b].elements() == 0 && h.boxes[b].size != h.dims) continue;
      pieces.push_back({h.name, h.dims, h.boxes[b], part_of(local, h.boxes[b], offsets[b])});
    }
  }
  if (!writes_frozen_) return pieces;
  const model::NamedTensors frozen(frozen_.begin(), frozen_.end());
  for (CheckpointPiece& piece : whole_pieces(frozen)) pieces.push_back(std::move(piece));
  return pieces;
}

int64_t RankStates::bytes() const {
  int64_t sum = 0;
  for (const Held& h : held_) sum += h.is_mine ? tensor::bytes_of(states_.type(h.name)) : 0;
  if (!writes_frozen_) return sum;
  for (const auto& [name, content] : frozen_) sum += content.bytes();
  return sum;
}

/// A checkpoint need not hold them: those that model.source gives are rebuilt with the model.
void RankStates::check_frozen(const CheckpointReader& checkpoint) const {
  for (const auto& [name, content] : frozen_) {
    const StoredTensor* stored = checkpoint.find(name);
    base::require(stored == nullptr || checkpoint.read(*stored).same_as(content), "frozen parameter '", name,
                  "' is not what the checkpoint holds: model.weights gives other weights than before");
  }
}

void RankStates::check(const CheckpointReader& checkpoint) const {
  for (const std::string& name : anywhere_) {
    base::require(checkpoint.find(name) != nullptr, "the checkpoint has no '", name,
                  "': another model or optimizer");
  }
  for (const StoredTensor& stored : checkpoint.tensors()) {
    base::require(anywhere_.contains(stored.name) || frozen_.contains(stored.name), "the checkpoint's '",
                  stored.name, "' is not of this model or optimizer");
  }
  check_frozen(checkpoint);
  for (const Held& h : held_) {
    const StoredTensor& stored = *checkpoint.find(h.name);
    const tensor::DType dtype = states_.type(h.name).dtype;
    base::require(stored.dims == h.dims && stored.dtype == dtype, "state '", h.name, "' is ",
                  tensor::name_of(dtype), tensor::to_string(h.dims), ", in the checkpoint ",
                  tensor::name_of(stored.dtype), tensor::to_string(stored.dims));
  }
}

void RankStates::load(const CheckpointReader& checkpoint) {
  for (const Held& h : held_) checkpoint.read(*checkpoint.find(h.name), h.boxes, states_.at(h.name));
}

}  // namespace trireme::train
