// Generates continuations of prompts.
#include "engine/generator.h"

#include <algorithm>

namespace trireme::engine {

struct Generator::Running {
  int64_t number = 0;
  GenerateRequest request;
  Sampler sampler;
  SequenceId sequence = -1;
  size_t done = 0;  // tokens of the prompt that ran
  int64_t generated = 0;
  int64_t last = 0;   // the token chosen last
  int64_t pages = 0;  // at the longest
  bool is_cancelled = false;
  bool is_over = false;
};

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
  }
  return "none";
}

Generator::Generator(DecodeSession& session) : session_(session) {}

Generator::~Generator() {
  for (const auto& r : running_) session_.close(r->sequence);
}

int64_t Generator::add(GenerateRequest request) {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  base::require(prompt > 0, "a prompt has at least one token");
  base::require(request.max_tokens > 0, "an answer of ", request.max_tokens, " tokens");
  base::require(prompt < session_.max_length(), "the prompt leaves no room for an answer; tokens: ", prompt,
                ", the model takes ", session_.max_length());
  for (int64_t id : request.prompt)
    base::require(id >= 0 && id < session_.vocabulary(), "token ", id, " is not in the vocabulary of ",
                  session_.vocabulary());
  request.max_tokens = std::min(request.max_tokens, session_.max_length() - prompt);
  // The last token is chosen and not run.
  const int64_t page = session_.options().page_tokens;
  const int64_t pages = (prompt + request.max_tokens - 1 + page - 1) / page;
  if (pages > session_.pool().pages()) {
    base::fail(base::ErrorCode::exhausted, "prompt and answer need ", pages, " pages of ", page,
               " tokens, there are ", session_.pool().pages());
  }
  Sampler sampler(request.sampling, session_.vocabulary());
  sampler.see_prompt(request.prompt);
  waiting_.push_back(std::make_unique<Running>(
      Running{.number = next_, .request = std::move(request), .sampler = std::move(sampler)}));
  waiting_.back()->pages = pages;
  return next_++;
}

void Generator::cancel(int64_t request) {
  for (const auto& r : waiting_) r->is_cancelled |= r->number == request;
  for (const auto& r : running_) r->is_cancelled |= r->number == request;
}

/// Requests that have waited longest get places and pages for all they may need.
void Generator::admit() {
  while (!waiting_.empty()) {
    Running& first = *waiting_.front();
    if (first.is_cancelled) {
      events_.push_back({.request = first.number, .finish = FinishReason::cancelled});
      waiting_.pop_front();
      continue;
    }
    const bool has_place = static_cast<int64_t>(running_.size()) <
                           std::min(session_.options().max_sequences, session_.options().max_tokens);
    if (!has_place || first.pages > session_.pool().free_pages() - reserved_pages_) return;
    first.sequence = session_.open();
    reserved_pages_ += first.pages;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

void Generator::plan() {
  pieces_.clear();
  of_piece_.clear();
  int64_t left = session_.options().max_tokens;
  for (const auto& r : running_) left -= r->done == r->request.prompt.size() ? 1 : 0;
  for (const auto& r : running_) {
    const std::span<const int64_t> prompt(r->request.prompt);
    const bool decodes = r->done == prompt.size();
    const auto n = decodes ? size_t{1} : std::min(prompt.size() - r->done, static_cast<size_t>(left));
    if (n == 0) continue;
    pieces_.push_back(
        {r->sequence, decodes ? std::span<const int64_t>(&r->last, 1) : prompt.subspan(r->done, n)});
    of_piece_.push_back(r.get());
    if (!decodes) left -= static_cast<int64_t>(n);
  }
}

/// Gives back what finished requests hold, and counts what the others may still take.
void Generator::retire() {
  for (const auto& r : running_) {
    if (r->is_over) session_.close(r->sequence);
  }
  std::erase_if(running_, [](const auto& r) { return r->is_over; });
  const int64_t page = session_.options().page_tokens;
  reserved_pages_ = 0;
  for (const auto& r : running_)
    reserved_pages_ += r->pages - (session_.length(r->sequence) + page - 1) / page;
}

/// Chooses the next token of a request from its logits.
void Generator::choose(Running& r, std::span<const float> logits) {
  r.last = r.sampler.next(logits);
  ++r.generated;
  GenerateEvent event{r.number, r.last, r.sampler.last_log_probability()};
  const auto& stop = r.request.stop;
  if (std::find(stop.begin(), stop.end(), r.last) != stop.end()) {
    event.token = -1;
    event.finish = FinishReason::stop;
  } else if (r.generated == r.request.max_tokens) {
    event.finish = FinishReason::length;
  }
  r.is_over = event.finish != FinishReason::none;
  events_.push_back(event);
}

const std::vector<GenerateEvent>& Generator::step() {
  events_.clear();
  for (const auto& r : running_) {
    if (!r->is_cancelled) continue;
    events_.push_back({.request = r->number, .finish = FinishReason::cancelled});
    r->is_over = true;
  }
  retire();
  admit();
  plan();
  step_tokens_ = 0;
  if (pieces_.empty()) return events_;
  const std::span<const float> logits = session_.step(pieces_);
  const auto width = static_cast<size_t>(session_.vocabulary());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    Running& r = *of_piece_[i];
    step_tokens_ += static_cast<int64_t>(pieces_[i].tokens.size());
    if (r.done < r.request.prompt.size()) {
      r.done += pieces_[i].tokens.size();
      if (r.done < r.request.prompt.size()) continue;
    }
    choose(r, logits.subspan(i * width, width));
  }
  retire();
  return events_;
}

}  // namespace trireme::engine
