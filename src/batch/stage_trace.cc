// Spans as complete events of the trace-event format.
#include "batch/stage_trace.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "base/text/json.h"

namespace trireme::batch {

void StageTrace::add(const char* lane, const char* name, int64_t chunk, int64_t begin_ns, int64_t end_ns) {
  if (!is_on_) return;
  if (spans_.size() >= kMostSpans) {
    ++left_out_;
    return;
  }
  spans_.push_back({lane, name, chunk, begin_ns, end_ns});
}

std::string StageTrace::json() const {
  constexpr double kNsPerUs = 1000;
  int64_t first = INT64_MAX;
  std::map<std::string_view, int64_t> lanes;
  for (const Span& s : spans_) {
    first = std::min(first, s.begin_ns);
    lanes.try_emplace(s.lane, static_cast<int64_t>(lanes.size()) + 1);
  }
  std::string out = R"({"displayTimeUnit":"ms","traceEvents":[)";
  bool is_first = true;
  const auto add = [&](const base::Json& event) {
    if (!is_first) out += ",\n";
    is_first = false;
    out += event.dump();
  };
  for (const auto& [lane, id] : lanes) {
    add(base::Json::object({{"ph", "M"},
                            {"name", "thread_name"},
                            {"pid", 1},
                            {"tid", id},
                            {"args", base::Json::object({{"name", lane}})}}));
  }
  for (const Span& s : spans_) {
    add(base::Json::object({{"ph", "X"},
                            {"name", s.name},
                            {"pid", 1},
                            {"tid", lanes.at(s.lane)},
                            {"ts", static_cast<double>(s.begin_ns - first) / kNsPerUs},
                            {"dur", static_cast<double>(s.end_ns - s.begin_ns) / kNsPerUs},
                            {"args", base::Json::object({{"chunk", s.chunk}})}}));
  }
  return out + "],\"spans_left_out\":" + std::to_string(left_out_) + "}\n";
}

}  // namespace trireme::batch
