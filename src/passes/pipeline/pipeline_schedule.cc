// Pipeline schedules as data, and their simulation.
#include "passes/pipeline/pipeline_schedule.h"

#include <algorithm>
#include <optional>

#include "base/error.h"

namespace trireme::passes {
namespace {

using Actions = std::vector<PipelineAction>;
using enum PipelineWork;

Actions gpipe(const PipelineShape& s) {
  Actions out;
  for (int m = 0; m < s.micro_batches; ++m) out.push_back({forward, m, 0});
  for (int m = 0; m < s.micro_batches; ++m) out.push_back({backward, m, 0});
  return out;
}

Actions one_f_one_b(const PipelineShape& s, int stage) {
  const int warm_up = std::min(s.stages - stage - 1, s.micro_batches);
  Actions out;
  for (int m = 0; m < warm_up; ++m) out.push_back({forward, m, 0});
  for (int m = 0; m < s.micro_batches; ++m) {
    if (m + warm_up < s.micro_batches) out.push_back({forward, m + warm_up, 0});
    out.push_back({backward, m, 0});
  }
  return out;
}

/// ZB-H1 (Qi et al. 2024): the order of 1F1B, where stage r computes W of micro-batch m - r after the input
/// gradient of m.
Actions zero_bubble(const PipelineShape& s, int stage) {
  Actions out;
  int done = 0;  // weight gradients done
  for (const PipelineAction& a : one_f_one_b(s, stage)) {
    if (a.work == forward) {
      out.push_back(a);
      continue;
    }
    out.push_back({input_gradient, a.micro_batch, 0});
    if (a.micro_batch >= stage) out.push_back({weight_gradient, done++, 0});
  }
  while (done < s.micro_batches) out.push_back({weight_gradient, done++, 0});
  return out;
}

/// Interleaved 1F1B: micro-batches in groups and, within a group, one chunk after the other. Groups are as
/// equal as possible with the longer ones first, and no shorter than requested if there are enough
/// micro-batches: a short last group would make stages wait for each other (5 stages, 7 micro-batches, 2
/// chunks).
Actions interleaved(const PipelineShape& s, int stage) {
  const int groups = std::max(1, s.micro_batches / (s.group > 0 ? s.group : s.stages));
  const int least = s.micro_batches / groups, longer = s.micro_batches % groups;
  Actions forwards;
  for (int g = 0, first = 0; g < groups; ++g) {
    const int end = first + least + (g < longer ? 1 : 0);
    for (int chunk = 0; chunk < s.chunks; ++chunk) {
      for (int m = first; m < end; ++m) forwards.push_back({forward, m, chunk});
    }
    first = end;
  }
  const size_t all = forwards.size();
  const int longest = least + (longer > 0 ? 1 : 0);
  size_t next = std::min(static_cast<size_t>(2 * (s.stages - stage - 1) + (s.chunks - 1) * longest), all);
  Actions out(forwards.begin(), forwards.begin() + static_cast<ptrdiff_t>(next));
  for (size_t b = 0; b < all; ++b) {
    if (next < all) out.push_back(forwards[next++]);
    out.push_back({backward, forwards[b].micro_batch, s.chunks - 1 - forwards[b].chunk});
  }
  return out;
}

std::string_view letter(PipelineWork work) {
  switch (work) {
    case forward: return "F";
    case backward: return "B";
    case input_gradient: return "Bx";
    case weight_gradient: return "W";
  }
  return "?";
}

std::string to_string(const PipelineAction& a, int chunks) {
  std::string text = base::concat(letter(a.work), a.micro_batch);
  if (chunks > 1) text += base::concat(".", a.chunk);
  return text;
}

/// The known end times of works, by model part and micro-batch.
class Ends {
 public:
  explicit Ends(const PipelineShape& shape)
      : shape_(shape),
        forward_(static_cast<size_t>(shape.parts() * shape.micro_batches)),
        gradient_(forward_.size()) {}

  /// The time when all operands of `a` on `stage` are available; nullopt if it is not known yet.
  std::optional<double> ready(const PipelineAction& a, int stage, double send) const {
    const int part = a.chunk * shape_.stages + stage;
    const double latency = shape_.stages > 1 ? send : 0;
    if (a.work == forward) return part == 0 ? std::optional(0.0) : plus(at(forward_, part - 1, a), latency);
    if (a.work == weight_gradient) return at(gradient_, part, a);
    const std::optional<double> own = at(forward_, part, a);
    if (part == shape_.parts() - 1 || !own) return own;
    const std::optional<double> behind = plus(at(gradient_, part + 1, a), latency);
    return behind ? std::optional(std::max(*own, *behind)) : std::nullopt;
  }
  void set(const PipelineAction& a, int stage, double end) {
    if (a.work == weight_gradient) return;
    auto& ends = a.work == forward ? forward_ : gradient_;
    ends[index(a.chunk * shape_.stages + stage, a)] = end;
  }

 private:
  static std::optional<double> plus(std::optional<double> time, double more) {
    return time ? std::optional(*time + more) : std::nullopt;
  }
  size_t index(int part, const PipelineAction& a) const {
    return static_cast<size_t>(part * shape_.micro_batches + a.micro_batch);
  }
  std::optional<double> at(const std::vector<std::optional<double>>& ends, int part,
                           const PipelineAction& a) const {
    return ends[index(part, a)];
  }

  const PipelineShape& shape_;
  std::vector<std::optional<double>> forward_, gradient_;
};

[[noreturn]] void fail_stuck(const PipelineOrder& order, const std::vector<size_t>& next) {
  std::string waiting;
  for (size_t r = 0; r < next.size(); ++r) {
    const Actions& actions = order.of_stage[r];
    if (next[r] == actions.size()) continue;
    waiting += base::concat(" stage ", r, " before ", to_string(actions[next[r]], order.shape.chunks));
  }
  base::fail_invalid("the stages of this pipeline schedule wait for each other:", waiting);
}

/// The most activations that are alive at once during the actions of one stage.
int peak_of(const Actions& actions, int chunk) {
  const bool is_split = std::any_of(actions.begin(), actions.end(),
                                    [](const PipelineAction& a) { return a.work == weight_gradient; });
  const PipelineWork last = is_split ? weight_gradient : backward;
  int alive = 0, peak = 0;
  for (const PipelineAction& a : actions) {
    if (chunk >= 0 && a.chunk != chunk) continue;
    if (a.work == forward) peak = std::max(peak, ++alive);
    if (a.work == last) --alive;
  }
  return peak;
}

}  // namespace

PipelineOrder make_pipeline_order(PipelineSchedule kind, const PipelineShape& shape) {
  base::require(shape.stages >= 1 && shape.micro_batches >= 1 && shape.chunks >= 1 && shape.group >= 0,
                "a pipeline has at least 1 stage, micro-batch and chunk");
  base::require(shape.chunks == 1 || kind == PipelineSchedule::interleaved,
                "only the interleaved schedule has several chunks on a stage, not ", shape.chunks);
  PipelineOrder order{.shape = shape, .of_stage = {}};
  for (int r = 0; r < shape.stages; ++r) {
    switch (kind) {
      case PipelineSchedule::gpipe: order.of_stage.push_back(gpipe(shape)); break;
      case PipelineSchedule::one_f_one_b: order.of_stage.push_back(one_f_one_b(shape, r)); break;
      case PipelineSchedule::interleaved: order.of_stage.push_back(interleaved(shape, r)); break;
      case PipelineSchedule::zero_bubble: order.of_stage.push_back(zero_bubble(shape, r)); break;
    }
  }
  return order;
}

PipelineOrder make_inference_order(const PipelineShape& shape) {
  PipelineOrder order{.shape = shape, .of_stage = {}};
  for (int r = 0; r < shape.stages; ++r) {
    Actions actions;
    for (const PipelineAction& a : interleaved(shape, r)) {
      if (a.work == forward) actions.push_back(a);
    }
    order.of_stage.push_back(std::move(actions));
  }
  return order;
}

std::string to_string(const Actions& actions, int chunks) {
  std::string text;
  for (const PipelineAction& a : actions) text += (text.empty() ? "" : " ") + to_string(a, chunks);
  return text;
}

double PipelineTimes::Part::of(PipelineWork work) const {
  switch (work) {
    case PipelineWork::forward: return forward;
    case PipelineWork::backward: return backward;
    case PipelineWork::input_gradient: return input_gradient;
    case PipelineWork::weight_gradient: return weight_gradient;
  }
  return 0;
}

PipelineSimulation simulate(const PipelineOrder& order, const PipelineTimes& times) {
  const PipelineShape& shape = order.shape;
  const auto stages = static_cast<size_t>(shape.stages);
  base::check(order.of_stage.size() == stages, "an order for ", order.of_stage.size(), " of ", stages,
              " stages");
  base::check(times.parts.empty() || times.parts.size() == static_cast<size_t>(shape.parts()), "times of ",
              times.parts.size(), " parts, the model has ", shape.parts());
  PipelineSimulation out;
  out.busy.resize(stages);
  out.end.resize(stages);
  Ends ends(shape);
  std::vector<size_t> next(stages, 0);
  std::vector<double> now(stages, 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t r = 0; r < stages; ++r) {
      for (; next[r] < order.of_stage[r].size(); ++next[r]) {
        const PipelineAction& a = order.of_stage[r][next[r]];
        const std::optional<double> ready = ends.ready(a, static_cast<int>(r), times.send);
        if (!ready) break;
        const auto part = static_cast<size_t>(a.chunk) * stages + r;
        const double time = (times.parts.empty() ? times.each : times.parts[part]).of(a.work);
        now[r] = std::max(now[r], *ready) + time;
        out.busy[r] += time;
        out.end[r].push_back(now[r]);
        ends.set(a, static_cast<int>(r), now[r]);
        moved = true;
      }
    }
  }
  double busy = 0;
  for (size_t r = 0; r < stages; ++r) {
    if (next[r] < order.of_stage[r].size()) fail_stuck(order, next);
    out.total = std::max(out.total, now[r]);
    out.peak.push_back(peak_of(order.of_stage[r], -1));
    busy += out.busy[r];
  }
  if (out.total > 0) out.bubble = 1 - busy / (out.total * static_cast<double>(stages));
  return out;
}

int peak_in_flight(const PipelineOrder& order, int stage, int chunk) {
  return peak_of(order.of_stage.at(static_cast<size_t>(stage)), chunk);
}

}  // namespace trireme::passes
