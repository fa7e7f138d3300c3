// Device memory for the adapters of a language model.
#include "engine/decode/adapter_states.h"

#include <algorithm>
#include <utility>

#include "model/hf/checkpoint.h"
#include "passes/decode/adapters.h"

namespace trireme::engine {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

/// scale b' [rank, out], of b [out, rank].
void write_scaled_columns(const tensor::Tensor& b, double scale, float* to) {
  const tensor::Tensor wide = model::hf::to_f32(b);
  const auto from = wide.data<float>();
  const auto out = static_cast<size_t>(b.dims()[0]), rank = static_cast<size_t>(b.dims()[1]);
  for (size_t n = 0; n < out; ++n) {
    for (size_t r = 0; r < rank; ++r)
      to[r * out + n] = static_cast<float>(scale * double{from[n * rank + r]});
  }
}

lower::RankPlace place_of(const DecodeModel& model, int rank) {
  const tensor::MeshShape mesh = model.strategy().mesh();
  return {mesh, mesh.coordinates(rank)};
}

const passes::AdapterRoom& room_of(const DecodeModel& model, const lower::RankPlace& place) {
  return model.adapters(place.on("pp"));
}

/// What a rank holds of a factor [slots, rank, width]: boxes side by side along its width.
std::vector<tensor::Box> boxes_of(const DecodeModel& model, const lower::RankPlace& place,
                                  const std::string& state, const tensor::Dims& whole) {
  const auto at = model.placed().find(state);
  const tensor::Shard shard = at == model.placed().end() ? tensor::Shard{} : at->second;
  return tensor::local_boxes(whole, shard, place.mesh, place.coordinates);
}

/// Where the states stand, by name; ranks first, so that they lie in one run. Returns the bytes of these, and
/// of all.
std::pair<int64_t, int64_t> place_states(const DecodeModel& model, const lower::RankPlace& place,
                                         std::map<std::string, int64_t>& offsets) {
  const passes::AdapterRoom& room = room_of(model, place);
  int64_t end = 0;
  const auto add = [&](const std::string& state, int64_t bytes) {
    constexpr int64_t kAlign = 64;
    offsets[state] = end;
    end += (bytes + kAlign - 1) / kAlign * kAlign;
  };
  const auto add_factor = [&](const std::string& state, int64_t width) {
    int64_t elements = 0;
    for (const tensor::Box& box : boxes_of(model, place, state, {room.slots, room.rank, width}))
      elements += box.elements();
    add(state, elements * kFloat);
  };
  for (const passes::AdapterModule& m : room.modules)
    add(passes::adapter_ranks(m.name), room.slots * static_cast<int64_t>(sizeof(int32_t)));
  const int64_t rank_bytes = end;
  for (const passes::AdapterModule& m : room.modules) {
    add_factor(passes::adapter_down(m.name), m.in);
    add_factor(passes::adapter_up(m.name), m.out);
  }
  return {rank_bytes, end};
}

}  // namespace

AdapterFactors AdapterFactors::of(const model::hf::AdapterPart* part) {
  if (part == nullptr) return {};
  const tensor::Tensor down = model::hf::to_f32(part->a);
  const auto rows = down.data<float>();
  AdapterFactors made{.rank = part->rank(), .values = {rows.begin(), rows.end()}};
  made.values.resize(rows.size() + static_cast<size_t>(part->b.elements()));
  write_scaled_columns(part->b, part->scale, made.values.data() + rows.size());
  return made;
}

int64_t adapter_room_bytes(const DecodeModel& model, int rank) {
  std::map<std::string, int64_t> offsets;
  return place_states(model, place_of(model, rank), offsets).second;
}

AdapterStates::AdapterStates(tensor::Device& device, const DecodeModel& model, int rank,
                             tensor::Stream& stream)
    : model_(model), place_(place_of(model, rank)) {
  const auto [rank_bytes, bytes] = place_states(model_, place_, offsets_);
  memory_ = device.allocate(bytes);
  const std::vector<std::byte> none(static_cast<size_t>(rank_bytes));
  stream.upload(memory_.get(), none.data(), rank_bytes);
  stream.synchronize();
}

void* AdapterStates::find(const std::string& state) const {
  const auto at = offsets_.find(state);
  return at == offsets_.end() ? nullptr : static_cast<std::byte*>(memory_.get()) + at->second;
}

void AdapterStates::write(const passes::AdapterModule& module, int64_t slot, const AdapterFactors& factors,
                          tensor::Stream& stream) {
  auto* ranks = static_cast<int32_t*>(find(passes::adapter_ranks(module.name)));
  if (ranks == nullptr) return;
  const passes::AdapterRoom& room = room_of(model_, place_);
  base::check(slot >= 0 && slot < room.slots && factors.rank <= room.rank, "an adapter of rank ",
              factors.rank, " in slot ", slot, " of room for ", room.slots, " of rank ", room.rank);
  stream.synchronize();
  const auto rank = static_cast<int32_t>(factors.rank);
  stream.upload(ranks + slot, &rank, sizeof rank);
  const std::span<const float> values(factors.values);
  const auto down = static_cast<size_t>(factors.rank * module.in);
  base::check(values.size() == down + static_cast<size_t>(factors.rank * module.out), "factors of '",
              module.name, "' of other extents than its product");
  write_columns(passes::adapter_down(module.name), slot, factors.rank, values.first(down), stream);
  write_columns(passes::adapter_up(module.name), slot, factors.rank, values.subspan(down), stream);
  stream.synchronize();  // what was uploaded from goes
}

/// `columns` [rank, width]: this rank's part goes to the first rows of the slot.
void AdapterStates::write_columns(const std::string& state, int64_t slot, int64_t rank,
                                  std::span<const float> columns, tensor::Stream& stream) {
  if (rank == 0) return;
  const int64_t width = static_cast<int64_t>(columns.size()) / rank;
  const std::vector<tensor::Box> boxes = boxes_of(model_, place_, state, {1, rank, width});
  std::vector<float> part;
  for (int64_t row = 0; row < rank; ++row) {
    for (const tensor::Box& box : boxes) {
      const auto begin = columns.begin() + row * width + box.offset[2];
      part.insert(part.end(), begin, begin + box.size[2]);
    }
  }
  const auto size = static_cast<int64_t>(part.size());
  const int64_t most_rank = room_of(model_, place_).rank;
  auto* to = static_cast<float*>(find(state)) + slot * (size / rank) * most_rank;
  stream.upload(to, part.data(), size * kFloat);
  stream.synchronize();
}

}  // namespace trireme::engine
