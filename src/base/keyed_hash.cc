// SipHash-2-4 with 128 bits of output (Aumasson & Bernstein 2012).
#include "base/keyed_hash.h"

#include <bit>
#include <cstring>
#include <random>
#include <utility>

namespace trireme::base {

KeyedHash::KeyedHash(const Key& key)
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

void KeyedHash::add(std::string_view text) {
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

KeyedHash::Key KeyedHash::random_key() {
  std::random_device random;
  Key key{};
  for (uint64_t& half : key) half = static_cast<uint64_t>(random()) << 32 | random();
  return key;
}

}  // namespace trireme::base
