// Guessed tokens beside the steps of a scheduler.
#include "sched/text/drafting.h"

#include <algorithm>

namespace trireme::sched {

/// Texts that draw in this step and may have guesses; and those that must wait for their tokens to have some.
void Drafting::find_candidates(const std::vector<int64_t>& tokens) {
  candidates_.clear();
  places_.clear();
  most_.assign(tokens.size(), 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t number = generator_.number(i);
    const int64_t most = std::min(generator_.most_drafts(i), options_.most);
    if (most <= 0 || (options_.runs_ahead && !policy_.is_tried(number))) continue;
    most_[i] = most;
    if (tokens[i] == 0) continue;
    candidates_.push_back({.text = number, .most = most});
    places_.push_back(i);
  }
}

void Drafting::draft(const StepMeter& meter) {
  const int64_t began_ns = meter.now_ns();
  generator_.draft(most_);
  int64_t longest = 0;
  for (const size_t i : places_) longest = std::max(longest, generator_.drafts(i));
  if (options_.drafter->runs_steps() && longest > 0)
    policy_.observe_drafting(longest, meter.now_ns() - began_ns);
}

void Drafting::share(std::vector<int64_t>& tokens, int64_t left, const StepMeter& meter) {
  if (options_.drafter == nullptr) return;
  find_candidates(tokens);
  int64_t rows = generator_.options().max_sequences;
  DraftPolicy::Step step;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] == 0) continue;
    const int64_t prompt = generator_.prompt_left(i);
    step.tokens += tokens[i];
    step.draws += prompt <= tokens[i] ? 1 : 0;
    rows -= prompt > 0 && generator_.request(i).scores_prompt ? tokens[i] : 1;
  }
  step.room = std::min(left, rows);
  if (!options_.drafter->runs_steps()) {
    draft(meter);
    for (size_t c = 0; c < candidates_.size(); ++c) candidates_[c].most = generator_.drafts(places_[c]);
    policy_.choose(candidates_, step, meter.prices());
  } else {
    policy_.choose(candidates_, step, meter.prices());
    for (size_t c = 0; c < candidates_.size(); ++c) most_[places_[c]] = candidates_[c].chosen;
    draft(meter);
  }
  take(tokens);
}

/// As far as there are pages: nobody is put back for a guess.
void Drafting::take(std::vector<int64_t>& tokens) {
  int64_t pages = generator_.free_pages();
  for (size_t i = 0; i < tokens.size(); ++i) pages -= generator_.pages_for(i, tokens[i]);
  for (size_t c = 0; c < candidates_.size(); ++c) {
    const size_t i = places_[c];
    const int64_t held = generator_.pages_for(i, tokens[i]);
    int64_t guesses = std::min(candidates_[c].chosen, generator_.drafts(i));
    while (guesses > 0 && generator_.pages_for(i, tokens[i] + guesses) - held > pages) --guesses;
    tokens[i] += guesses;
    pages -= generator_.pages_for(i, tokens[i]) - held;
  }
}

const std::vector<engine::CheckedDrafts>& Drafting::account() {
  for (const engine::CheckedDrafts& checked : generator_.checked()) {
    counts_ +=
        {.drafts = checked.drafted > 0 ? 1 : 0, .tokens = checked.drafted, .accepted = checked.accepted};
    policy_.observe(checked);
  }
  return generator_.checked();
}

}  // namespace trireme::sched
