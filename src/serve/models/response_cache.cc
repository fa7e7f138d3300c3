// Stores answers for requests that are repeated.
#include "serve/models/response_cache.h"

#include <utility>

namespace trireme::serve {

ResponseCache::ResponseCache(size_t max_bytes)
    : max_bytes_(max_bytes), hash_key_(base::KeyedHash::random_key()) {}

ResponseCache::Key ResponseCache::key_of(uint64_t load, const std::vector<tensor::Tensor>& inputs,
                                         const std::vector<std::string>& strings,
                                         const std::string& tenant) const {
  base::KeyedHash hash(hash_key_);
  hash.add(load);  // identifies model, version and configuration, so a reload starts afresh
  hash.add(tenant);
  for (const tensor::Tensor& t : inputs) {
    hash.add(static_cast<uint64_t>(t.dtype()));
    hash.add(static_cast<uint64_t>(t.rank()));
    for (int64_t d : t.dims()) hash.add(static_cast<uint64_t>(d));
    hash.add(t.raw(), static_cast<size_t>(t.bytes()));
  }
  for (const std::string& s : strings) hash.add(s);
  return hash.finish();
}

std::optional<ResponseCache::Outputs> ResponseCache::find(const Key& key) {
  return table_.with([&](Table& table) -> std::optional<Outputs> {
    const auto at = table.by_key.find(key);
    if (at == table.by_key.end()) return std::nullopt;
    table.entries.splice(table.entries.begin(), table.entries, at->second);
    return at->second->outputs;  // shares the memory
  });
}

void ResponseCache::insert(const Key& key, const Outputs& outputs, uint64_t load) {
  Entry entry{.key = key, .outputs = {}, .bytes = 128, .load = load};
  for (const tensor::Tensor& t : outputs) entry.bytes += static_cast<size_t>(t.bytes());
  if (entry.bytes > max_bytes_) return;
  // Cloned, because a view of a row would keep its whole batch in memory, uncounted.
  for (const tensor::Tensor& t : outputs) entry.outputs.push_back(t.clone());
  std::list<Entry> gone;  // freed outside the lock
  table_.with([&](Table& table) {
    if (table.by_key.count(key) > 0) return;
    table.bytes += entry.bytes;
    table.entries.push_front(std::move(entry));
    table.by_key[key] = table.entries.begin();
    while (table.bytes > max_bytes_) {
      const auto last = std::prev(table.entries.end());
      table.bytes -= last->bytes;
      table.by_key.erase(last->key);
      gone.splice(gone.begin(), table.entries, last);
    }
  });
}

void ResponseCache::forget(uint64_t load) {
  std::list<Entry> gone;  // freed outside the lock
  table_.with([&](Table& table) {
    for (auto at = table.entries.begin(); at != table.entries.end();) {
      const auto entry = at++;
      if (entry->load != load) continue;
      table.bytes -= entry->bytes;
      table.by_key.erase(entry->key);
      gone.splice(gone.begin(), table.entries, entry);
    }
  });
}

size_t ResponseCache::bytes() const {
  return table_.with([](const Table& table) { return table.bytes; });
}

}  // namespace trireme::serve
