// Device memory for the adapters of a language model.
#include "engine/decode/adapter_states.h"

#include <utility>

#include "model/hf/checkpoint.h"
#include "passes/decode/adapters.h"

namespace trireme::engine {
namespace {

constexpr auto kFloat = static_cast<int64_t>(sizeof(float));

/// scale * b', [rank, out], for b [out, rank].
std::vector<float> scaled_columns(const tensor::Tensor& b, double scale) {
  const tensor::Tensor wide = model::hf::to_f32(b);
  const auto from = wide.data<float>();
  const auto out = static_cast<size_t>(b.dims()[0]), rank = static_cast<size_t>(b.dims()[1]);
  std::vector<float> to(out * rank);
  for (size_t n = 0; n < out; ++n) {
    for (size_t r = 0; r < rank; ++r)
      to[r * out + n] = static_cast<float>(scale * double{from[n * rank + r]});
  }
  return to;
}

/// Assigns the offsets of the states by name. The rank states come first, so that they are contiguous;
/// returns their bytes, and the bytes of all states.
std::pair<int64_t, int64_t> place_states(const passes::AdapterRoom& room,
                                         std::map<std::string, int64_t>& offsets) {
  int64_t end = 0;
  const auto place = [&](const std::string& state, int64_t bytes) {
    constexpr int64_t kAlign = 64;
    offsets[state] = end;
    end += (bytes + kAlign - 1) / kAlign * kAlign;
  };
  for (const passes::AdapterModule& m : room.modules)
    place(passes::adapter_ranks(m.name), room.slots * static_cast<int64_t>(sizeof(int32_t)));
  const int64_t rank_bytes = end;
  for (const passes::AdapterModule& m : room.modules) {
    place(passes::adapter_down(m.name), room.slots * room.rank * m.in * kFloat);
    place(passes::adapter_up(m.name), room.slots * room.rank * m.out * kFloat);
  }
  return {rank_bytes, end};
}

}  // namespace

int64_t adapter_room_bytes(const passes::AdapterRoom& room) {
  std::map<std::string, int64_t> offsets;
  return place_states(room, offsets).second;
}

AdapterStates::AdapterStates(tensor::Device& device, const passes::AdapterRoom& room, tensor::Stream& stream)
    : room_(room), numbers_(static_cast<size_t>(room.slots), -1) {
  const auto [rank_bytes, bytes] = place_states(room_, offsets_);
  memory_ = device.allocate(bytes);
  const std::vector<std::byte> none(static_cast<size_t>(rank_bytes));
  stream.upload(memory_.get(), none.data(), rank_bytes);
  stream.synchronize();
}

void* AdapterStates::find(const std::string& state) const {
  const auto at = offsets_.find(state);
  return at == offsets_.end() ? nullptr : static_cast<std::byte*>(memory_.get()) + at->second;
}

void AdapterStates::use(const LoadedAdapter& adapter, tensor::Stream& stream) {
  const auto slot = static_cast<size_t>(adapter.slot());
  base::check(slot < numbers_.size(), "there is no slot ", slot, " for an adapter");
  if (numbers_[slot] == adapter.number()) return;
  numbers_[slot] = -1;  // invalid until the adapter is loaded completely
  write(adapter, stream);
  numbers_[slot] = adapter.number();
}

void AdapterStates::write(const LoadedAdapter& adapter, tensor::Stream& stream) {
  const int32_t slot = adapter.slot();
  std::map<std::string_view, const model::hf::AdapterPart*> parts;
  for (const model::hf::AdapterPart& p : adapter.weights().parts) parts[p.module] = &p;
  stream.synchronize();
  for (const passes::AdapterModule& m : room_.modules) {
    const auto at = parts.find(m.name);
    const auto rank = static_cast<int32_t>(at == parts.end() ? 0 : at->second->rank());
    stream.upload(static_cast<int32_t*>(find(passes::adapter_ranks(m.name))) + slot, &rank, sizeof rank);
    if (rank > 0) {
      const model::hf::AdapterPart& part = *at->second;
      const tensor::Tensor down = model::hf::to_f32(part.a);
      const std::vector<float> up = scaled_columns(part.b, part.scale);
      stream.upload(factor(passes::adapter_down(m.name)) + slot * room_.rank * m.in, down.raw(),
                    rank * m.in * kFloat);
      stream.upload(factor(passes::adapter_up(m.name)) + slot * room_.rank * m.out, up.data(),
                    rank * m.out * kFloat);
    }
    stream.synchronize();  // the host buffers of the uploads are freed next
  }
}

}  // namespace trireme::engine
