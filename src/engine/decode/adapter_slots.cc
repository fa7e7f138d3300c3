// Loads adapters for a language model into a fixed number of slots.
#include "engine/decode/adapter_slots.h"

#include <algorithm>
#include <utility>

#include "model/load/adapter.h"

namespace trireme::engine {

namespace {

PageId fingerprint_of(const model::hf::Adapter& weights) {
  base::KeyedHash hash(base::KeyedHash::Key{});
  for (const model::hf::AdapterPart& part : weights.parts) {
    hash.add(part.module);
    hash.add(&part.scale, sizeof part.scale);
    for (const tensor::Tensor* factor : {&part.a, &part.b}) {
      hash.add(static_cast<uint64_t>(factor->dtype()));
      for (const int64_t extent : factor->dims()) hash.add(static_cast<uint64_t>(extent));
      hash.add(factor->raw(), static_cast<size_t>(factor->bytes()));
    }
  }
  return hash.finish();
}

}  // namespace

LoadedAdapter::LoadedAdapter(std::shared_ptr<AdapterSlots> home, int32_t slot, int32_t number,
                             model::hf::Adapter weights)
    : home_(std::move(home)),
      slot_(slot),
      number_(number),
      weights_(std::move(weights)),
      fingerprint_(fingerprint_of(weights_)) {}

LoadedAdapter::~LoadedAdapter() { home_->release(slot_); }

AdapterSlots::AdapterSlots(const passes::AdapterRoom& room, base::Json base)
    : most_rank_(room.rank), base_(std::move(base)), is_taken_(static_cast<size_t>(room.slots)) {
  for (const passes::AdapterModule& m : room.modules) modules_[m.name] = {.in = m.in, .out = m.out};
}

std::shared_ptr<AdapterSlots> AdapterSlots::make(const passes::AdapterRoom& room, base::Json base) {
  return std::shared_ptr<AdapterSlots>(new AdapterSlots(room, std::move(base)));
}

std::shared_ptr<const LoadedAdapter> AdapterSlots::load(const std::string& directory) {
  if (slots() == 0) base::fail_unsupported("adapters where --max-adapters leaves no room for any");
  model::hf::Adapter weights = model::read_adapter(directory, modules_, base_);
  base::require(weights.rank() <= most_rank_, "the adapter has rank ", weights.rank(),
                ", --max-adapter-rank is ", most_rank_);
  // Clone the data: rewriting a mapped adapter file (for example by training) would crash the process.
  for (model::hf::AdapterPart& part : weights.parts) {
    part.a = part.a.clone();
    part.b = part.b.clone();
  }
  int32_t slot = -1, number = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto free = std::find(is_taken_.begin(), is_taken_.end(), false);
    if (free == is_taken_.end())
      base::fail(base::ErrorCode::exhausted, "all ", is_taken_.size(),
                 " slots hold adapters: unload one, or start with a larger --max-adapters");
    *free = true;
    slot = static_cast<int32_t>(free - is_taken_.begin());
    number = next_number_++;
  }
  return std::make_shared<const LoadedAdapter>(shared_from_this(), slot, number, std::move(weights));
}

void AdapterSlots::release(int32_t slot) {
  const std::lock_guard lock(mutex_);
  is_taken_[static_cast<size_t>(slot)] = false;
}

}  // namespace trireme::engine
