// How many guessed tokens of each text a step checks.
#include "sched/text/draft_policy.h"

#include <algorithm>

namespace trireme::sched {
namespace {

/// What is known of a text before its first guess: as much as so many guesses, of the kind that others had.
constexpr double kPrior = 4;
/// How much of what was seen still counts after the next step of a text, and of all.
constexpr double kKeptOfText = 0.9, kKeptOfAll = 0.99;
constexpr int64_t kFirstPause = 16, kLongestPause = 512;

double share(double right, double tried, double prior) { return (right + kPrior * prior) / (tried + kPrior); }

}  // namespace

double DraftPolicy::chance(int64_t text) const {
  const double usual = share(all_.right, all_.tried, 0.5);
  const auto at = records_.find(text);
  return at == records_.end() ? usual : share(at->second.right, at->second.tried, usual);
}

bool DraftPolicy::is_tried(int64_t text) {
  Record& record = records_[text];
  return record.idle == 0 || ++record.idle >= std::max(record.pause, kFirstPause);
}

void DraftPolicy::observe(const engine::CheckedDrafts& checked) {
  Record& text = records_[checked.request];
  const int64_t guessed = std::max(checked.drafted, checked.guessed);
  const auto add = [&](Record& to, double kept) {
    to.right = kept * to.right + static_cast<double>(checked.accepted);
    to.tried = kept * to.tried + static_cast<double>(std::min(checked.accepted + 1, guessed));
  };
  add(text, kKeptOfText);
  add(all_, kKeptOfAll);
  text.pause =
      checked.accepted > 0 ? kFirstPause : std::min(2 * std::max(text.pause, kFirstPause / 2), kLongestPause);
}

void DraftPolicy::observe_drafting(int64_t tokens, int64_t ns) {
  const double value = static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(tokens, 1));
  // Texts that are read for the first time take longer, once.
  const double seen = draft_ns_ == 0 ? value : std::min(value, 2 * draft_ns_);
  draft_ns_ += (seen - draft_ns_) / (draft_ns_ == 0 ? 1 : 8);
}

/// So many of the likeliest guesses give the most tokens for their time.
size_t DraftPolicy::best_count(const Step& step, size_t candidates, const StepPrices* prices) {
  const size_t most = std::min(guesses_.size(), static_cast<size_t>(std::max<int64_t>(step.room, 0)));
  if (prices == nullptr) return most;
  const double plain_ns = prices->at_least_ns(step.tokens);
  if (plain_ns == 0) return 0;  // what it costs without any is seen first
  counts_.assign(candidates, 0);
  auto tokens = static_cast<double>(step.draws);
  double best = tokens / plain_ns;
  size_t best_count = 0;
  int64_t drafted = 0;
  for (size_t i = 0; i < most; ++i) {
    tokens += guesses_[i].chance;
    drafted = std::max(drafted, ++counts_[guesses_[i].candidate]);
    const double ns = std::max(plain_ns, prices->at_least_ns(step.tokens + static_cast<int64_t>(i) + 1)) +
                      static_cast<double>(drafted) * draft_ns_;
    if (tokens / ns <= best) continue;
    best = tokens / ns;
    best_count = i + 1;
  }
  return best_count;
}

void DraftPolicy::choose(std::span<Candidate> candidates, const Step& step, const StepPrices* prices) {
  guesses_.clear();
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i].chosen = 0;
    const double right = chance(candidates[i].text);
    double all_right = 1;
    for (int64_t j = 0; j < std::min(candidates[i].most, most_); ++j)
      guesses_.push_back({all_right *= right, i});
  }
  std::stable_sort(guesses_.begin(), guesses_.end(),
                   [](const Guess& a, const Guess& b) { return a.chance > b.chance; });
  const size_t count = best_count(step, candidates.size(), prices);
  for (size_t i = 0; i < count; ++i) ++candidates[guesses_[i].candidate].chosen;
  int64_t room = step.room - static_cast<int64_t>(count);
  for (Candidate& c : candidates) {
    Record& record = records_[c.text];
    if (c.chosen > 0) record.idle = 0;
    if (c.chosen > 0 || c.most == 0 || prices == nullptr) continue;
    if (++record.idle < std::max(record.pause, kFirstPause) || room == 0) continue;
    record.idle = 0;
    c.chosen = 1;
    --room;
  }
}

}  // namespace trireme::sched
