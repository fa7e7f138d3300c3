// The tokens of a model by id and by text, in one block of memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

/// Ids are below: a file cannot ask for any amount of memory.
inline constexpr int64_t kMostTokens = int64_t{1} << 21;

/// A fast hash of a few bytes; not for keys that an enemy may choose to collide.
uint64_t hash_bytes(std::string_view bytes);

/// Immutable; any thread.
class Vocabulary {
 public:
  static constexpr int32_t kNone = -1;

  Vocabulary() : Vocabulary(std::vector<std::string>{}) {}
  /// tokens[i] is the text of id i, "" where there is none. Of equal texts the lowest id is found. Throws
  /// invalid_argument above kMostTokens.
  explicit Vocabulary(const std::vector<std::string>& tokens);

  int32_t find(std::string_view text) const;
  std::string_view operator[](size_t id) const {
    return std::string_view(bytes_).substr(begins_[id], begins_[id + 1] - begins_[id]);
  }
  size_t size() const { return begins_.size() - 1; }

 private:
  struct Slot {
    uint32_t hash = 0;
    int32_t id = kNone;
  };
  std::string bytes_;
  std::vector<size_t> begins_;
  std::vector<Slot> slots_;  // a power of two, at most half full
};

/// Puts a token at its id. Throws invalid_argument for ids out of range.
void place_token(std::vector<std::string>& tokens, int64_t id, std::string_view text);

}  // namespace trireme::data
