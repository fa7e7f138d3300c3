// Readers that stopped where another may go on, kept for a while.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/guarded.h"

namespace trireme::data {

/// Spans of some files can be read only from the beginning of a larger part. Who has read one to its end
/// parks the reader; who reads the next goes on with it. Any thread.
template <class Reader>
class Parked {
 public:
  explicit Parked(size_t most) : most_(most) {}

  /// The one of this kind that stands nearest before `begin`, and not before `first`.
  std::optional<Reader> take(std::string_view kind, int64_t first, int64_t begin) {
    return places_.with([&](std::vector<Place>& places) -> std::optional<Reader> {
      auto best = places.end();
      for (auto it = places.begin(); it != places.end(); ++it) {
        const bool fits = it->kind == kind && it->at >= first && it->at <= begin;
        if (fits && (best == places.end() || it->at > best->at)) best = it;
      }
      if (best == places.end()) return std::nullopt;
      std::optional<Reader> taken(std::move(best->reader));
      places.erase(best);
      return taken;
    });
  }
  void put(std::string kind, int64_t at, Reader reader) {
    places_.with([&](std::vector<Place>& places) {
      if (places.size() == most_) places.erase(places.begin());
      places.push_back({std::move(kind), at, std::move(reader)});
    });
  }

 private:
  struct Place {
    std::string kind;
    int64_t at;
    Reader reader;
  };
  size_t most_;
  base::Guarded<std::vector<Place>> places_;
};

}  // namespace trireme::data
