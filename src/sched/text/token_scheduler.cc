// Who runs and who waits among the texts of a language model.
#include "sched/text/token_scheduler.h"

#include <algorithm>
#include <tuple>

namespace trireme::sched {

using engine::FinishReason;
using engine::GenerateEvent;

namespace {

constexpr double kAnswerCharge = 2;  // of a token of an answer, beside one of a prompt

}  // namespace

int64_t TokenScheduler::add(engine::GenerateRequest request, const Standing& standing) {
  limits().check(request);
  queue_.push({.number = next_, .request = std::move(request), .standing = standing});
  return next_++;
}

void TokenScheduler::cancel(int64_t request) {
  if (queue_.remove(request)) {
    ended_.push_back({.request = request, .finish = FinishReason::cancelled});
  } else {
    generator_.cancel(request);
  }
}

/// Whether there are pages for its prompt beside what the others need next.
bool TokenScheduler::fits(const TokenQueue::Entry& first) {
  if (generator_.size() == 0) return true;  // its limits say that it fits alone
  // What prompts under way have yet to take, and a page for every text that goes on.
  auto claimed = static_cast<int64_t>(generator_.size());
  for (size_t i = 0; i < generator_.size(); ++i)
    claimed += generator_.pages_for(i, generator_.prompt_left(i));
  const uint64_t changes = generator_.session().pool().changes();
  const bool is_known =
      refused_.number == first.number && refused_.changes == changes && refused_.claimed == claimed;
  if (is_known || generator_.free_pages() <= claimed) return false;
  engine::DecodeSession::Beginning found{.tokens = 0, .free_pages = generator_.free_pages()};
  if (!first.request.scores_prompt) found = generator_.look(first.request);
  const int64_t page = generator_.options().page_tokens;
  const auto prompt = static_cast<int64_t>(first.request.prompt.size());
  const int64_t needed = (prompt + page - 1) / page - found.tokens / page;
  if (needed + claimed <= found.free_pages) return true;
  refused_ = {.number = first.number, .claimed = claimed, .changes = changes};
  return false;
}

/// Texts under way that do not run in what others leave.
size_t TokenScheduler::foreground() const {
  size_t count = 0;
  for (size_t i = 0; i < generator_.size(); ++i)
    count += standings_.at(generator_.number(i)).priority != kBackground ? 1 : 0;
  return count;
}

/// Requests whose turn it is get places and pages.
void TokenScheduler::begin_waiting() {
  refused_.is_loading = false;
  const engine::DecodeOptions& options = generator_.options();
  const int64_t most = std::min(options.max_sequences, options.max_tokens);
  while (const TokenQueue::Entry* first = queue_.first()) {
    const bool is_background = first->standing.priority == kBackground;
    if (is_background && foreground() > 0) return;
    if (static_cast<int64_t>(generator_.size()) >= most || !fits(*first)) {
      if (is_background || foreground() == generator_.size()) return;
      put_back_last();
      continue;
    }
    refused_.is_loading = !generator_.fetch(first->number, first->request);
    if (refused_.is_loading) return;
    TokenQueue::Entry entry = queue_.pop();
    Standing& standing = standings_[entry.number] = entry.standing;
    if (standing.asked_ns == 0) standing.asked_ns = meter_.now_ns();
    reading_.start(std::move(entry));
  }
}

/// How many tokens the next step runs at most.
int64_t TokenScheduler::budget() const {
  const int64_t most = generator_.options().max_tokens;
  if (meter_.prices() == nullptr || !budget_.has_goals()) return most;
  std::vector<PromptLeft> prompts;
  int64_t draws = 0;
  for (size_t i = 0; i < generator_.size(); ++i) {
    const int64_t left = generator_.prompt_left(i);
    if (left == 0) {
      ++draws;
    } else if (!reading_.waits(i)) {
      prompts.push_back({left, standings_.at(generator_.number(i)).asked_ns});
    }
  }
  return budget_.tokens(draws, prompts, meter_.now_ns(), *meter_.prices());
}

/// How many tokens each text runs in the next step; returns how many more may.
int64_t TokenScheduler::share_out() {
  int64_t left = budget();
  for (size_t i = 0; i < generator_.size(); ++i) left -= generator_.prompt_left(i) == 0 ? 1 : 0;
  int64_t rows = generator_.options().max_sequences - static_cast<int64_t>(generator_.size());
  tokens_.assign(generator_.size(), 0);
  const size_t foreground = this->foreground();
  const bool pauses = foreground > 0 && foreground < generator_.size();  // those in the background
  for (size_t i = 0; i < generator_.size(); ++i) {
    if (pauses && standings_.at(generator_.number(i)).priority == kBackground) continue;
    if (reading_.waits(i)) continue;
    const int64_t prompt = generator_.prompt_left(i);
    if (prompt == 0) {
      tokens_[i] = generator_.can_draw(i) ? 1 : 0;
    } else {
      const bool takes_rows = generator_.request(i).scores_prompt;
      tokens_[i] = std::max<int64_t>(0, std::min({prompt, left, takes_rows ? rows + 1 : prompt}));
      left -= tokens_[i];
      if (takes_rows && tokens_[i] > 0) rows -= tokens_[i] - 1;
    }
  }
  return left;
}

/// Pages that the next step needs and that are not there.
int64_t TokenScheduler::missing_pages() const {
  int64_t pages = -generator_.free_pages();
  for (size_t i = 0; i < tokens_.size(); ++i) pages += generator_.pages_for(i, tokens_[i]);
  return pages;
}

/// The text of the lowest priority that came last waits again.
void TokenScheduler::put_back_last() {
  const auto rank = [&](size_t i) {
    const int64_t number = generator_.number(i);
    return std::make_tuple(standings_.at(number).priority, number);
  };
  size_t last = 0;
  for (size_t i = 1; i < generator_.size(); ++i) last = rank(i) > rank(last) ? i : last;
  const int64_t number = generator_.number(last);
  const Standing standing = standings_.at(number);
  standings_.erase(number);
  queue_.push({.number = number,
               .request = generator_.put_back(last),
               .standing = standing,
               .has_begun = reading_.forget(number)});
  ++counts_.put_back;
}

/// Launches the next step, if there is one.
bool TokenScheduler::launch() {
  reading_.go_on();
  begin_waiting();
  int64_t left = share_out();
  while (missing_pages() > 0) {
    base::check(generator_.size() > 1, "one text alone finds its pages");
    put_back_last();
    left = share_out();
  }
  drafting_.share(tokens_, left, meter_);
  const int64_t began_ns = meter_.now_ns();
  if (!generator_.launch(tokens_)) return false;
  meter_.launched(began_ns);
  return true;
}

/// What tenants were given, and who is over.
void TokenScheduler::account() {
  for (const GenerateEvent& event : events_) {
    if (event.finish != FinishReason::none) {
      drafting_.forget(event.request);
      reading_.forget(event.request);
    }
    const auto at = standings_.find(event.request);
    if (at == standings_.end()) continue;
    if (event.token >= 0) queue_.charge(at->second, kAnswerCharge);
    if (event.finish != FinishReason::none) standings_.erase(at);
  }
}

const std::vector<GenerateEvent>& TokenScheduler::step(int64_t now_ns) {
  events_.clear();
  events_.swap(ended_);
  reading_.clear_begun();
  for (int64_t late = queue_.remove_expired(now_ns); late >= 0; late = queue_.remove_expired(now_ns))
    events_.push_back({.request = late, .finish = FinishReason::expired});
  generator_.clean(events_);
  counts_.step_tokens = 0;
  while (generator_.can_launch() && launch()) {
  }
  if (generator_.is_launched()) {
    counts_.step_tokens = generator_.collect(events_);
    meter_.collected(counts_.step_tokens);
    for (const engine::CheckedDrafts& checked : drafting_.account())
      queue_.charge(standings_.at(checked.request), static_cast<double>(checked.drafted - checked.accepted));
  } else if (refused_.is_loading) {
    generator_.session().beginnings().wait();  // nobody else has anything to do
  }
  account();
  return events_;
}

}  // namespace trireme::sched
