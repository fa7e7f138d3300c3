// A dictionary of byte strings that is walked a byte at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Longest-match dictionary of byte strings: a trie whose edges live in one hash table.
class PieceTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr int32_t kNoPiece = -1;

  explicit PieceTrie(const std::vector<std::string>& pieces);  // piece i has id i; an empty one is skipped
  /// The node one byte on, or kRoot if there is none.
  uint32_t step(uint32_t node, char byte) const;
  int32_t piece_at(uint32_t node) const { return pieces_[node]; }
  /// The node of a whole string, or nothing.
  std::optional<uint32_t> node_of(std::string_view text) const;

 private:
  struct Edge {
    uint32_t key;  // node * 256 + byte
    uint32_t to;   // kRoot: the place is free
  };
  Edge* place(uint32_t key);
  void insert(std::string_view text, int32_t id);
  void grow();

  std::vector<Edge> edges_;
  size_t used_ = 0;
  std::vector<int32_t> pieces_;  // by node
};

}  // namespace trireme::data
