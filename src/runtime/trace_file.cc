// Writes the trace of a run in the format of Perfetto and chrome://tracing.
#include "runtime/trace_file.h"

#include <set>

#include "base/text/json.h"

namespace trireme::runtime {
namespace {

using base::Json;

/// The times of the steps if streams were not measured.
std::vector<Span> spans_of_steps(const compile::Program& program, const Trace& trace) {
  std::vector<Span> spans;
  int64_t now[2] = {0, 0};
  for (size_t s = 0; s < trace.step_ns.size(); ++s) {
    const bool is_aside = program.steps[s].is_aside;
    int64_t& begin = now[is_aside ? 1 : 0];
    begin = is_aside ? std::max(now[0], now[1]) : begin;
    spans.push_back({.lane = is_aside ? Lane::communication : Lane::compute,
                     .step = static_cast<int>(s),
                     .begin_ns = begin,
                     .end_ns = begin + trace.step_ns[s]});
    begin += trace.step_ns[s];
  }
  return spans;
}

Json named(const char* what, int rank, int64_t track, const std::string& name) {
  return Json::object(
      {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", track}, {"args", Json::object({{"name", name}})}});
}

Json slice(const compile::Program& program, const Span& span, int rank) {
  constexpr double kMicro = 1e-3;  // the format uses microseconds
  Json event = Json::object({{"ph", "X"},
                             {"pid", rank},
                             {"tid", static_cast<int64_t>(span.lane)},
                             {"ts", static_cast<double>(span.begin_ns) * kMicro},
                             {"dur", static_cast<double>(span.end_ns - span.begin_ns) * kMicro}});
  if (span.step < 0) {
    event.set("name", span.what);
    return event;
  }
  const compile::Step& step = program.steps[static_cast<size_t>(span.step)];
  const std::string op = step.op == nullptr ? "copy" : step.op->schema.name;
  event.set("name", step.from.empty() ? op : step.from);
  event.set("cat", op);
  event.set("args", Json::object({{"step", span.step},
                                  {"op", op},
                                  {"kernel", step.on_host ? "host:" + step.kernel : step.kernel},
                                  {"flop", step.cost.flop},
                                  {"ranks", step.axes}}));
  return event;
}

}  // namespace

std::string to_perfetto(const compile::Program& program, const Trace& trace, int rank) {
  const std::vector<Span> spans = trace.spans.empty() ? spans_of_steps(program, trace) : trace.spans;
  Json events = Json::array();
  events.push_back(named("process_name", rank, 0, base::concat("rank ", rank, ", ", program.name)));
  std::set<Lane> lanes;
  for (const Span& span : spans) lanes.insert(span.lane);
  for (const Lane lane : lanes)
    events.push_back(named("thread_name", rank, static_cast<int64_t>(lane), std::string(to_string(lane))));
  for (const Span& span : spans) events.push_back(slice(program, span, rank));
  return Json::object({{"traceEvents", std::move(events)}}).dump();
}

}  // namespace trireme::runtime
