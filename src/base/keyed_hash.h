// A keyed hash: without the key nobody can make two inputs meet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace trireme::base {

/// SipHash-2-4 with 128 bits of result. Source: Aumasson & Bernstein 2012, with the 128-bit variant of its
/// authors' code.
class KeyedHash {
 public:
  using Key = std::array<uint64_t, 2>;
  explicit KeyedHash(const Key& key);
  void add(const void* data, size_t bytes);
  /// A number, or a text with its length, so that neighbours cannot flow into each other.
  void add(uint64_t number) { add(&number, sizeof number); }
  void add(std::string_view text);
  std::array<uint64_t, 2> finish();

  /// A key drawn at random.
  static Key random_key();

 private:
  void compress(uint64_t word);
  void round();

  std::array<uint64_t, 4> v_;
  uint64_t pending_ = 0;  ///< bytes that do not fill a word yet
  uint64_t bytes_ = 0;
};

}  // namespace trireme::base
