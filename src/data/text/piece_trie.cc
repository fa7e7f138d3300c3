// A trie whose edges live in one hash table.
#include "data/text/piece_trie.h"

#include "base/error.h"

namespace trireme::data {
namespace {

uint32_t hash(uint32_t key) { return key * 0x9E3779B1u; }

}  // namespace

PieceTrie::PieceTrie(const std::vector<std::string>& pieces) : edges_(1 << 12), pieces_(1, kNoPiece) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!pieces[i].empty()) insert(pieces[i], static_cast<int32_t>(i));
  }
}

PieceTrie::Edge* PieceTrie::place(uint32_t key) {
  const size_t mask = edges_.size() - 1;
  size_t i = hash(key) >> 8 & mask;
  while (edges_[i].to != kRoot && edges_[i].key != key) i = (i + 1) & mask;
  return &edges_[i];
}

uint32_t PieceTrie::step(uint32_t node, char byte) const {
  const uint32_t key = node << 8 | static_cast<uint8_t>(byte);
  const size_t mask = edges_.size() - 1;
  for (size_t i = hash(key) >> 8 & mask;; i = (i + 1) & mask) {
    if (edges_[i].key == key || edges_[i].to == kRoot) return edges_[i].to;
  }
}

void PieceTrie::grow() {
  std::vector<Edge> old(edges_.size() * 2);
  old.swap(edges_);
  for (const Edge& edge : old) {
    if (edge.to != kRoot) *place(edge.key) = edge;
  }
}

void PieceTrie::insert(std::string_view text, int32_t id) {
  uint32_t node = kRoot;
  for (const char byte : text) {
    const uint32_t key = node << 8 | static_cast<uint8_t>(byte);
    Edge* edge = place(key);
    if (edge->to == kRoot) {
      // The key has 24 bits for the node, and the hash yields 24 bits of position.
      base::require(pieces_.size() < size_t{1} << 24, "vocabulary is too large");
      *edge = {key, static_cast<uint32_t>(pieces_.size())};
      pieces_.push_back(kNoPiece);
      node = edge->to;
      if (++used_ * 2 > edges_.size()) grow();
    } else {
      node = edge->to;
    }
  }
  pieces_[node] = id;
}

std::optional<uint32_t> PieceTrie::node_of(std::string_view text) const {
  uint32_t node = kRoot;
  for (const char byte : text) {
    node = step(node, byte);
    if (node == kRoot) return std::nullopt;
  }
  return node;
}

}  // namespace trireme::data
