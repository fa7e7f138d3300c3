// Finds the members of a JSON object.
#include "base/text/json_object.h"

#include "base/error.h"
#include "base/keyed_hash.h"

namespace trireme::base {

uint32_t JsonKeyIndex::hash_of(std::string_view key) {
  static const KeyedHash::Key process_key = KeyedHash::random_key();
  KeyedHash hash(process_key);
  hash.add(key.data(), key.size());
  return static_cast<uint32_t>(hash.finish()[0]);
}

void JsonKeyIndex::reserve(size_t places) {
  size_t slots = slots_.empty() ? 64 : slots_.size();
  while (places > slots / 3 * 2) slots *= 2;
  if (slots == slots_.size()) return;
  require(places < kFree, "JSON object has too many members: ", places);
  const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots));
  for (const Slot& slot : old) {
    if (slot.place != kFree) add(slot.hash, slot.place);
  }
}

void JsonKeyIndex::add(uint32_t hash, size_t place) noexcept {
  const size_t mask = slots_.size() - 1;
  size_t at = hash & mask;
  while (slots_[at].place != kFree) at = (at + 1) & mask;
  slots_[at] = {hash, static_cast<uint32_t>(place)};
}

}  // namespace trireme::base
