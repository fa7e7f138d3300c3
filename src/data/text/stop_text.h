// Ends a stream of text at the first of some strings, without showing any of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

class StopText {
 public:
  /// Empty strings are left out.
  explicit StopText(std::vector<std::string> stops);
  /// What can be shown now: text in which no stop begins. After found() nothing more comes.
  std::string push(std::string_view text);
  /// What was held back, once no more text comes.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace trireme::data
