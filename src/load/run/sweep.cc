// Parsing of sweeps; the stability rule.
#include "load/run/sweep.h"

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "load/load_options.h"

namespace trireme::load {
namespace {

constexpr size_t kMostPoints = 1000;

double number_of(std::string_view text, std::string_view whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool ok =
      error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value > 0;
  base::require(ok, "sweep has no positive number in '", text, "': ", whole);
  return value;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t cut; (cut = text.find(at)) != std::string_view::npos; text.remove_prefix(cut + 1))
    parts.push_back(text.substr(0, cut));
  parts.push_back(text);
  return parts;
}

std::vector<double> range_of(std::string_view text, std::string_view whole) {
  std::vector<std::string_view> parts = split(text, ':');
  base::require(parts.size() <= 3, "sweep is not start:end:step: ", whole);
  const double start = number_of(parts[0], whole), end = number_of(parts[1], whole);
  bool factor = false;
  double step = 1;
  if (parts.size() == 3) {
    factor = parts[2].ends_with('x');
    if (factor) parts[2].remove_suffix(1);
    step = number_of(parts[2], whole);
  }
  base::require(start <= end, "sweep ends before it starts: ", whole);
  base::require(!factor || step > 1, "sweep's factor is not above 1: ", whole);
  // Half a step of 1e-9 forgives the rounding of sums like 0.1 + 0.1 + 0.1.
  std::vector<double> points;
  for (size_t i = 0;; ++i) {
    const double k = static_cast<double>(i);
    const double at = factor ? start * std::pow(step, k) : start + step * k;
    if (at > end * (1 + 1e-9)) return points;
    base::require(i < kMostPoints, "sweep has too many points: ", whole);
    points.push_back(at);
  }
}

bool is_near(double value, double average, double share) {
  return std::abs(value - average) <= share * average;
}

}  // namespace

Sweep Sweep::parse(std::string_view text) {
  Sweep sweep;
  std::string_view values = text;
  if (const size_t equals = text.find('='); equals != std::string_view::npos) {
    const std::string_view name = text.substr(0, equals);
    base::require(name == "concurrency" || name == "rate", "sweep is of concurrency or rate: ", text);
    sweep.rates = name == "rate";
    values.remove_prefix(equals + 1);
  }
  if (values.find(':') != std::string_view::npos) {
    sweep.points = range_of(values, text);
  } else {
    for (const std::string_view part : split(values, ',')) sweep.points.push_back(number_of(part, text));
  }
  for (double& point : sweep.points) {
    if (sweep.rates) {
      base::require(point >= kLeastRate && point <= kMostRate, "rate of a sweep is not from ", kLeastRate,
                    " to ", kMostRate, ": ", text);
      continue;
    }
    base::require(point >= 1 && point <= 65536, "concurrency of a sweep is not from 1 to 65536: ", text);
    point = std::round(point);
  }
  return sweep;
}

void Stability::add(double throughput, double latency_ns) { windows_.push_back({throughput, latency_ns}); }

bool Stability::stable() const {
  if (windows_.size() < kWindows) return false;
  const auto last = windows_.end() - static_cast<std::ptrdiff_t>(kWindows);
  Window average{0, 0};
  for (auto w = last; w != windows_.end(); ++w) {
    average.throughput += w->throughput / kWindows;
    average.latency_ns += w->latency_ns / kWindows;
  }
  if (average.throughput <= 0) return false;
  for (auto w = last; w != windows_.end(); ++w) {
    if (!is_near(w->throughput, average.throughput, share_)) return false;
    if (!is_near(w->latency_ns, average.latency_ns, share_)) return false;
  }
  return true;
}

Settled run_until_stable(const LoadPlan& plan, double share) {
  Stability stability(share);
  std::vector<LoadResult> windows;
  LoadPlan window = plan;
  while (!stability.done()) {
    windows.push_back(run_load(window));
    stability.add(windows.back().throughput(), windows.back().latency.mean());
    // The server is warm; what is left is opening the connections again.
    window.warmup_ns = std::min(plan.warmup_ns, plan.duration_ns / 10);
    ++window.seed;
    window.first_request += windows.back().taken;
    if (windows.back().is_interrupted) break;
  }
  const size_t first = windows.size() - std::min(windows.size(), Stability::kWindows);
  Settled settled{.result = windows[first]};
  for (size_t i = first + 1; i < windows.size(); ++i) settled.result.append(windows[i]);
  settled.result.taken = window.first_request - plan.first_request;
  settled.trials = static_cast<int64_t>(stability.trials());
  settled.is_stable = stability.stable();
  return settled;
}

}  // namespace trireme::load
