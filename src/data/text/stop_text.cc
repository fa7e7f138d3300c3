// Ends a text stream at the first occurrence of a stop string.
#include "data/text/stop_text.h"

#include <algorithm>
#include <utility>

namespace trireme::data {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& s) { return s.empty(); });
}

std::string StopText::push(std::string_view text, bool may_end) {
  if (found_) return {};
  held_ += text;
  if (!may_end) passed_ = held_.size();
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t from = passed_ < stop.size() ? 0 : passed_ - stop.size() + 1;
    first = std::min(first, held_.find(stop, from));
  }
  if (first != std::string::npos) {
    found_ = true;
    held_.resize(first);
    return std::exchange(held_, {});
  }
  // Holds back the longest end of the text that may be the beginning of a stop string.
  size_t kept = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > kept; --n) {
      if (held_.ends_with(std::string_view(stop).substr(0, n))) kept = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - kept);
  held_.erase(0, shown.size());
  passed_ -= std::min(passed_, shown.size());
  return shown;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

}  // namespace trireme::data
