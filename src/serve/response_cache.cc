// Answers kept for requests that come again.
#include "serve/response_cache.h"

#include <bit>
#include <cstring>
#include <random>
#include <utility>

namespace trireme::serve {

KeyedHash::KeyedHash(const std::array<uint64_t, 2>& key)
    : v_{key[0] ^ 0x736f6d6570736575ull, key[1] ^ 0x646f72616e646f6dull ^ 0xee,
         key[0] ^ 0x6c7967656e657261ull, key[1] ^ 0x7465646279746573ull} {}

void KeyedHash::round() {
  v_[0] += v_[1];
  v_[1] = std::rotl(v_[1], 13) ^ v_[0];
  v_[0] = std::rotl(v_[0], 32);
  v_[2] += v_[3];
  v_[3] = std::rotl(v_[3], 16) ^ v_[2];
  v_[0] += v_[3];
  v_[3] = std::rotl(v_[3], 21) ^ v_[0];
  v_[2] += v_[1];
  v_[1] = std::rotl(v_[1], 17) ^ v_[2];
  v_[2] = std::rotl(v_[2], 32);
}

void KeyedHash::compress(uint64_t word) {
  v_[3] ^= word;
  round();
  round();
  v_[0] ^= word;
}

void KeyedHash::add(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  const unsigned char* end = at + bytes;
  while (at < end && bytes_ % 8 != 0) {
    pending_ |= static_cast<uint64_t>(*at++) << (8 * (bytes_ % 8));
    if (++bytes_ % 8 == 0) compress(std::exchange(pending_, 0));
  }
  for (; end - at >= 8; at += 8, bytes_ += 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, sizeof word);
    compress(word);
  }
  for (; at < end; ++bytes_) pending_ |= static_cast<uint64_t>(*at++) << (8 * (bytes_ % 8));
}

void KeyedHash::add(const std::string& text) {
  add(static_cast<uint64_t>(text.size()));
  add(text.data(), text.size());
}

std::array<uint64_t, 2> KeyedHash::finish() {
  compress(pending_ | bytes_ << 56);
  v_[2] ^= 0xee;
  for (int i = 0; i < 4; ++i) round();
  const uint64_t low = v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  v_[1] ^= 0xdd;
  for (int i = 0; i < 4; ++i) round();
  return {low, v_[0] ^ v_[1] ^ v_[2] ^ v_[3]};
}

ResponseCache::ResponseCache(size_t max_bytes) : max_bytes_(max_bytes) {
  std::random_device random;
  for (uint64_t& half : hash_key_) half = static_cast<uint64_t>(random()) << 32 | random();
}

ResponseCache::Key ResponseCache::key_of(uint64_t load, const std::vector<tensor::Tensor>& inputs,
                                         const std::vector<std::string>& strings) const {
  KeyedHash hash(hash_key_);
  hash.add(load);  // stands for model, version and configuration: a reload begins anew
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
  // Copies: a row's view would keep its whole batch in memory, uncounted.
  for (const tensor::Tensor& t : outputs) entry.outputs.push_back(t.clone());
  std::list<Entry> gone;  // freed outside of the lock
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
  std::list<Entry> gone;  // freed outside of the lock
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
