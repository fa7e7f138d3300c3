// Differences of figures, their intervals, and the tables of them.
#include "load/report/compare.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "load/report/report.h"

namespace trireme::load {
namespace {

constexpr std::array<const char*, 5> kLatencies = {"p50", "p90", "p95", "p99", "p99.9"};
// Options that say where results go, not what is measured.
constexpr std::array<std::string_view, 5> kAside = {"json", "html", "title", "csv", "record"};

Bounds bounds_of(const base::Json& json) { return {json.at(0).as_double(), json.at(1).as_double()}; }

bool has_width(const Figure& f) { return f.bounds.low < f.bounds.high; }

std::string label_of(const base::Json& run) {
  if (run.contains("label")) return run.at("label").as_string();
  LoadResult shown;
  shown.concurrency = run.at("concurrency").as_int();
  shown.offered_rate = run.at("offered_rate").as_double();
  return load::label_of(shown);
}

// `scale` 0: percent of the value before.
Difference difference(std::string figure, const Figure& before, const Figure& after, bool more_is_better,
                      double scale) {
  Difference d;
  d.figure = std::move(figure);
  d.before = before;
  d.after = after;
  if (scale == 0) scale = before.value > 0 ? 100 / before.value : 0;
  const Bounds bounds = difference_bounds(before, after);
  d.change = (after.value - before.value) * scale;
  d.change_95 = {bounds.low * scale, bounds.high * scale};
  if (!has_width(before) && !has_width(after)) return d;
  if (d.change_95.low > 0) {
    d.verdict = more_is_better ? Verdict::better : Verdict::worse;
  } else if (d.change_95.high < 0) {
    d.verdict = more_is_better ? Verdict::worse : Verdict::better;
  } else {
    d.verdict = Verdict::same;
  }
  return d;
}

Figure failed_share(const base::Json& run) {
  const int64_t failed = run.at("failed").as_int(), all = failed + run.at("succeeded").as_int();
  return {all > 0 ? static_cast<double>(failed) / static_cast<double>(all) : 0, share_bounds(failed, all)};
}

void compare_runs(const base::Json& before, const base::Json& after, Comparison& out) {
  const size_t first = out.differences.size();
  const auto throughput = [](const base::Json& run) {
    return Figure{run.at("throughput").as_double(), bounds_of(run.at("throughput_95"))};
  };
  out.differences.push_back(difference("throughput", throughput(before), throughput(after), true, 0));
  for (const std::string name : kLatencies) {
    const auto latency = [&](const base::Json& run) {
      const base::Json& ns = run.at("latency_ns");
      return Figure{ns.at(name).as_double(), bounds_of(ns.at(name + "_95"))};
    };
    out.differences.push_back(difference(name, latency(before), latency(after), false, 0));
  }
  out.differences.push_back(difference("failed", failed_share(before), failed_share(after), false, 100));
  const std::string label = label_of(before);
  // What made a figure doubtful makes its comparison doubtful.
  for (const auto& [run, name] : {std::pair{&before, "before"}, std::pair{&after, "after"}}) {
    const base::Json* warnings = run->find("warnings");
    if (warnings == nullptr) continue;
    for (const base::Json& warning : warnings->as_array())
      out.notes.push_back(label + " " + name + ": " + warning.as_string());
  }
  for (size_t i = first; i < out.differences.size(); ++i) out.differences[i].label = label;
  if (!before.contains("scenario") || !after.contains("scenario")) return;
  const bool was = before.at("scenario").at("valid").as_bool(),
             is = after.at("scenario").at("valid").as_bool();
  if (was != is)
    out.notes.push_back(label + (is ? ": INVALID before, valid now" : ": valid before, INVALID now"));
  out.turned_invalid = out.turned_invalid || (was && !is);
}

void note_options(const base::Json& before, const base::Json& after, Comparison& out) {
  for (const auto& [key, value] : before.as_object()) {
    const base::Json* other = after.find(key);
    if (other == nullptr || *other == value || std::find(kAside.begin(), kAside.end(), key) != kAside.end())
      continue;
    out.notes.push_back("options differ: " + key + " " + value.dump() + " -> " + other->dump());
  }
  // Written by programs of different age: what one has not, it did not do.
  for (const auto& [test, other, name] :
       {std::tuple{&before, &after, "before"}, std::tuple{&after, &before, "after"}}) {
    for (const auto& [key, value] : test->as_object()) {
      if (other->find(key) == nullptr && std::find(kAside.begin(), kAside.end(), key) == kAside.end())
        out.notes.push_back(std::string("option only ") + name + ": " + key + " " + value.dump());
    }
  }
}

const base::Json* run_of(const base::Json& test, const std::string& label) {
  for (const base::Json& run : test.at("runs").as_array())
    if (label_of(run) == label) return &run;
  return nullptr;
}

std::string value_text(const Difference& d, double value) {
  if (d.figure == "throughput") return format_number(value, 1) + "/s";
  if (d.figure == "failed") return format_number(value * 100, 2) + " %";
  return format_ms(value) + " ms";
}

const char* to_string(Verdict verdict) {
  constexpr std::array<const char*, 4> kNames = {"same", "better", "WORSE", "-"};
  return kNames[static_cast<size_t>(verdict)];
}

std::string signed_number(double value) { return (value >= 0 ? "+" : "") + format_number(value, 1); }

std::string right_aligned(const std::string& text, size_t width) {
  return std::string(text.size() < width ? width - text.size() : 1, ' ') + text;
}

}  // namespace

Bounds difference_bounds(const Figure& before, const Figure& after) {
  const double d = after.value - before.value;
  return {d - std::hypot(after.value - after.bounds.low, before.bounds.high - before.value),
          d + std::hypot(after.bounds.high - after.value, before.value - before.bounds.low)};
}

Bounds share_bounds(int64_t count, int64_t of) {
  if (of <= 0) return {0, 1};
  constexpr double kZ = 1.959964;
  const auto n = static_cast<double>(of);
  const double p = static_cast<double>(count) / n;
  const double centre = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

Comparison compare(const base::Json& before, const base::Json& after) {
  for (const base::Json* test : {&before, &after}) {
    const bool known = test->is_object() && test->contains("runs") && test->contains("options");
    base::require(known, "file is no result of trireme load --json");
  }
  Comparison out;
  note_options(before.at("options"), after.at("options"), out);
  for (const base::Json& run : before.at("runs").as_array()) {
    if (const base::Json* other = run_of(after, label_of(run))) {
      compare_runs(run, *other, out);
    } else {
      out.notes.push_back("only before: " + label_of(run));
    }
  }
  for (const base::Json& run : after.at("runs").as_array())
    if (run_of(before, label_of(run)) == nullptr) out.notes.push_back("only after: " + label_of(run));
  base::require(!out.differences.empty(), "the two tests have no load in common");
  return out;
}

bool within(const Comparison& comparison, double tolerance) {
  if (comparison.turned_invalid) return false;
  return std::none_of(comparison.differences.begin(), comparison.differences.end(), [&](const Difference& d) {
    if (d.verdict != Verdict::worse) return false;
    // The end of the interval that is nearer to no change.
    return std::min(std::abs(d.change_95.low), std::abs(d.change_95.high)) > tolerance;
  });
}

std::string comparison_text(const Comparison& comparison) {
  std::string out;
  for (const std::string& note : comparison.notes) out += note + "\n";
  out += right_aligned("load", 14) + right_aligned("figure", 12) + right_aligned("before", 14) +
         right_aligned("after", 14) + right_aligned("change % (95 %)", 28) + right_aligned("", 2) +
         "verdict\n";
  for (const Difference& d : comparison.differences) {
    const std::string change = signed_number(d.change) + " (" + signed_number(d.change_95.low) + " .. " +
                               signed_number(d.change_95.high) + ")";
    out += right_aligned(d.label, 14) + right_aligned(d.figure, 12) +
           right_aligned(value_text(d, d.before.value), 14) +
           right_aligned(value_text(d, d.after.value), 14) + right_aligned(change, 28) +
           right_aligned("", 2) + to_string(d.verdict) + "\n";
  }
  return out;
}

base::Json comparison_json(const Comparison& comparison) {
  base::Json rows = base::Json::array(), notes = base::Json::array(), out;
  for (const Difference& d : comparison.differences) {
    const char* verdict = d.verdict == Verdict::worse     ? "worse"
                          : d.verdict == Verdict::unknown ? "unknown"
                                                          : to_string(d.verdict);
    rows.push_back(
        base::Json::object({{"label", d.label},
                            {"figure", d.figure},
                            {"before", d.before.value},
                            {"after", d.after.value},
                            {"change_percent", d.change},
                            {"change_percent_95", base::Json::array({d.change_95.low, d.change_95.high})},
                            {"verdict", verdict}}));
  }
  for (const std::string& note : comparison.notes) notes.push_back(note);
  out.set("differences", rows);
  out.set("notes", notes);
  return out;
}

}  // namespace trireme::load
