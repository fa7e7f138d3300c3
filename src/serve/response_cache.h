// Answers kept for requests that come again: outputs by a keyed hash over everything that made them.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "tensor/tensor.h"

namespace trireme::serve {

/// SipHash-2-4 with 128 bits of result: without the key nobody can make two requests meet. Source: Aumasson &
/// Bernstein 2012, with the 128-bit variant of its authors' code.
class KeyedHash {
 public:
  explicit KeyedHash(const std::array<uint64_t, 2>& key);
  void add(const void* data, size_t bytes);
  /// A number, or a text with its length, so that neighbours cannot flow into each other.
  void add(uint64_t number) { add(&number, sizeof number); }
  void add(const std::string& text);
  std::array<uint64_t, 2> finish();

 private:
  void compress(uint64_t word);
  void round();

  std::array<uint64_t, 4> v_;
  uint64_t pending_ = 0;  ///< bytes that do not fill a word yet
  uint64_t bytes_ = 0;
};

/// Least recently used answers of all models, up to a number of bytes. Any thread.
class ResponseCache {
 public:
  using Key = std::array<uint64_t, 2>;
  using Outputs = std::vector<tensor::Tensor>;

  /// `max_bytes` of tensors; 0 keeps nothing. The hash's key is drawn at random.
  explicit ResponseCache(size_t max_bytes);

  /// Of a model's inputs, in its order, and the strings that they are handles to. `load` is a number that no
  /// other load of any model has.
  Key key_of(uint64_t load, const std::vector<tensor::Tensor>& inputs,
             const std::vector<std::string>& strings = {}) const;
  std::optional<Outputs> find(const Key& key);
  /// Keeps copies; what is larger than the cache is let go. `load` is that of the key.
  void insert(const Key& key, const Outputs& outputs, uint64_t load);
  /// Lets the answers of a load go that nobody can ask for any more.
  void forget(uint64_t load);
  size_t bytes() const;

 private:
  struct Entry {
    Key key;
    Outputs outputs;
    size_t bytes = 0;
    uint64_t load = 0;
  };
  struct Table {
    std::list<Entry> entries;  ///< latest use first
    std::map<Key, std::list<Entry>::iterator> by_key;
    size_t bytes = 0;
  };
  const size_t max_bytes_;
  std::array<uint64_t, 2> hash_key_;
  base::Guarded<Table> table_;
};

}  // namespace trireme::serve
