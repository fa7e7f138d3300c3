// The search among configurations of a language model's server.
#include "tune/text_search.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace trireme::tune {
namespace {

constexpr int kMostTrialRuns = 12;  // of a trial
constexpr int kMostPasses = 3;
constexpr double kLeastRate = 0.05;  // requests a second

double least_miss(const TextTrial& trial) {
  double least = std::numeric_limits<double>::infinity();
  for (const TextMeasurement& m : trial.runs) least = std::min(least, m.miss);
  return least;
}

}  // namespace

std::string TextCandidate::id() const {
  return base::concat(weights.empty() ? "as-stored" : weights, " ", cache_type, " s", sequences, " c", chunk);
}

std::vector<std::string> TextCandidate::flags() const {
  std::vector<std::string> list{"--cache-type",    cache_type,
                                "--max-sequences", std::to_string(sequences),
                                "--chunk",         std::to_string(chunk)};
  if (!weights.empty()) list.insert(list.end(), {"--weights", weights});
  return list;
}

bool TextSearch::holds(TextTrial& trial, double rate) {
  trial.runs.push_back(measure_(trial.candidate, rate));
  const TextMeasurement& m = trial.runs.back();
  if (m.holds) trial.rate = std::max(trial.rate, rate > 0 ? rate : m.throughput);
  return m.holds;
}

/// The highest rate that holds, to kGain, beginning above `at_least`; 0: from what one client gets through.
void TextSearch::find_rate(TextTrial& trial, double at_least) {
  double good = 0, bad = 0, rate = at_least * kGain;
  if (at_least == 0) {
    if (!holds(trial, 0)) return;  // not even alone
    good = trial.rate;
    rate = good * 2;
  }
  while (static_cast<int>(trial.runs.size()) < kMostTrialRuns && rate > kLeastRate) {
    (holds(trial, rate) ? good : bad) = rate;
    if (good == 0) return;  // no better than the best
    if (bad > 0 && bad / good <= kGain) return;
    rate = bad > 0 ? (good + bad) / 2 : good * (at_least > 0 ? 1.25 : 2);
  }
}

bool TextSearch::is_better(const TextTrial& trial) const {
  const TextTrial& best = trials_[best_];
  if (trial.rate > 0 || best.rate > 0) return trial.rate > best.rate;
  return least_miss(trial) < least_miss(best);
}

void TextSearch::attempt(const TextCandidate& candidate, const std::string& changed) {
  const auto is_same = [&](const TextTrial& t) { return t.candidate == candidate; };
  if (std::any_of(trials_.begin(), trials_.end(), is_same)) return;
  TextTrial trial{.candidate = candidate, .changed = changed};
  try {
    find_rate(trial, trials_.empty() ? 0 : trials_[best_].rate);
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::unavailable) throw;
    trial.failure = e.message();
    trial.rate = 0;
  }
  trial.was_better = trials_.empty() || (trial.failure.empty() && is_better(trial));
  trials_.push_back(std::move(trial));
  if (trials_.back().was_better) best_ = trials_.size() - 1;
}

void TextSearch::run() {
  attempt({.weights = space_.weights.at(0),
           .cache_type = space_.cache_types.at(0),
           .sequences = space_.sequences.at(0),
           .chunk = space_.chunks.at(0)},
          "");
  const auto vary = [&](const std::string& what, const auto& values, auto TextCandidate::*member) {
    for (const auto& value : values) {
      TextCandidate c = trials_[best_].candidate;
      c.*member = value;
      attempt(c, what);
    }
  };
  for (int pass = 0; pass < kMostPasses; ++pass) {
    const size_t before = best_;
    vary("weights", space_.weights, &TextCandidate::weights);
    vary("cache type", space_.cache_types, &TextCandidate::cache_type);
    vary("sequences", space_.sequences, &TextCandidate::sequences);
    vary("chunk", space_.chunks, &TextCandidate::chunk);
    if (best_ == before) return;
  }
}

}  // namespace trireme::tune
