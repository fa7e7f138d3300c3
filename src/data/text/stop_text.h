// Ends a stream of text at the first of some strings, without showing any of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class StopText {
 public:
  /// Empty strings are left out.
  explicit StopText(std::vector<std::string> stops);
  /// What can be shown now: text in which no stop begins. After found() nothing more comes. `may_end` false:
  /// no stop ends within `text`, though one that begins there may end later.
  std::string push(std::string_view text, bool may_end = true);
  /// What was held back, once no more text comes.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  size_t passed_ = 0;  ///< so many of the first bytes of `held_` hold no end of a stop
  bool found_ = false;
};

}  // namespace trireme::data
