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
#include "base/keyed_hash.h"
#include "tensor/tensor.h"

namespace trireme::serve {

/// Least recently used answers of all models, up to a number of bytes. Any thread.
class ResponseCache {
 public:
  using Key = std::array<uint64_t, 2>;
  using Outputs = std::vector<tensor::Tensor>;

  /// `max_bytes` of tensors; 0 keeps nothing. The hash's key is drawn at random.
  explicit ResponseCache(size_t max_bytes);

  /// Of a model's inputs, in its order, and the strings that they are handles to. `load` is a number that no
  /// other load of any model has. Tenants share no answers: how long one takes would tell who asked before.
  Key key_of(uint64_t load, const std::vector<tensor::Tensor>& inputs,
             const std::vector<std::string>& strings = {}, const std::string& tenant = {}) const;
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
  const base::KeyedHash::Key hash_key_;
  base::Guarded<Table> table_;
};

}  // namespace trireme::serve
