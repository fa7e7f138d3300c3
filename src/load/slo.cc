// Service level goals: parsing and judging.
#include "load/slo.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/text/options.h"
#include "load/result.h"

namespace trireme::load {
namespace {

double positive_number(std::string_view text, std::string_view whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool ok =
      error == std::errc() && end == text.data() + text.size() && std::isfinite(value) && value >= 0;
  base::require(ok, "goal has no number: ", whole);
  return value;
}

}  // namespace

Slo Slo::parse(std::string_view text) {
  Slo slo;
  slo.text = text;
  const size_t equals = text.find('=');
  base::require(equals != std::string_view::npos, "goal is not name=bound, like p99=50ms: ", text);
  std::string_view name = text.substr(0, equals);
  std::string_view bound = text.substr(equals + 1);
  if (name == "errors") {
    slo.kind = Kind::errors;
    const bool percent = !bound.empty() && bound.back() == '%';
    if (percent) bound.remove_suffix(1);
    slo.bound = positive_number(bound, text) / (percent ? 100 : 1);
    return slo;
  }
  if (name == "throughput") {
    slo.kind = Kind::throughput;
    slo.bound = positive_number(bound, text);
    return slo;
  }
  slo.bound = static_cast<double>(base::parse_duration(bound).ns);
  if (name == "mean" || name == "max") {
    slo.kind = name == "mean" ? Kind::mean : Kind::max;
    return slo;
  }
  for (const auto& [prefix, kind] : {std::pair{"first_", Kind::first}, std::pair{"part_", Kind::part}}) {
    if (!name.starts_with(prefix)) continue;
    slo.kind = kind;
    name.remove_prefix(std::string_view(prefix).size());
  }
  base::require(name.size() > 1 && name.front() == 'p',
                "goal is none of pNN, first_pNN, part_pNN, mean, max, errors, throughput: ", text);
  slo.quantile = positive_number(name.substr(1), text) / 100;
  base::require(slo.quantile > 0 && slo.quantile < 1, "goal's percentile is not between 0 and 100: ", text);
  return slo;
}

std::vector<SloOutcome> judge(std::span<const Slo> slos, const LoadResult& result) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const bool failed = result.error_count() > 0 || result.succeeded == 0;
  std::vector<SloOutcome> out;
  for (const Slo& slo : slos) {
    SloOutcome& o = out.emplace_back();
    o.slo = slo;
    switch (slo.kind) {
      case Slo::Kind::quantile: {
        const int64_t ns = result.quantile_with_errors(slo.quantile);
        o.measured = ns == std::numeric_limits<int64_t>::max() ? kNever : static_cast<double>(ns);
        break;
      }
      case Slo::Kind::first:
      case Slo::Kind::part: {
        const base::Histogram& times =
            slo.kind == Slo::Kind::first ? result.first_part : result.between_parts;
        const bool is_known = times.count() > 0 && !failed;
        o.measured = is_known ? static_cast<double>(times.quantile(slo.quantile)) : kNever;
        break;
      }
      case Slo::Kind::mean: o.measured = failed ? kNever : result.latency.mean(); break;
      case Slo::Kind::max: o.measured = failed ? kNever : static_cast<double>(result.latency.max()); break;
      case Slo::Kind::errors: o.measured = result.succeeded == 0 ? 1 : result.error_share(); break;
      case Slo::Kind::throughput: o.measured = result.throughput(); break;
    }
    o.met = slo.kind == Slo::Kind::throughput ? o.measured >= slo.bound : o.measured <= slo.bound;
  }
  return out;
}

bool all_met(const std::vector<SloOutcome>& outcomes) {
  return std::all_of(outcomes.begin(), outcomes.end(), [](const SloOutcome& o) { return o.met; });
}

std::string to_string(const SloOutcome& outcome) {
  std::string measured;
  switch (outcome.slo.kind) {
    case Slo::Kind::errors: measured = format_number(outcome.measured * 100, 3) + " %"; break;
    case Slo::Kind::throughput: measured = format_number(outcome.measured, 1) + " /s"; break;
    default:
      measured = std::isinf(outcome.measured) ? "a failed request" : format_ms(outcome.measured) + " ms";
      break;
  }
  return outcome.slo.text + ": " + measured + (outcome.met ? ", met" : ", MISSED");
}

}  // namespace trireme::load
