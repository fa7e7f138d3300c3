// Generates continuations of prompts.
#include "engine/decode/generator.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace trireme::engine {

struct Generator::Running {
  int64_t number = 0;
  GenerateRequest request;
  SequenceId sequence = -1;
  std::vector<int64_t> text;  // prompt and answer so far
  size_t done = 0;            // tokens of the prompt that were launched
  int64_t drawn = 0;          // draws that were launched
  int64_t generated = 0;      // of them, those that are here
  int64_t last = 0;           // the token that came last
  int32_t row = -1;           // of the step launched last, where that draws its next token
  int64_t pages = 0;          // at the longest
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
  for (size_t i = 0; i < launched_.size(); ++i) {
    try {
      session_.collect();
    } catch (const base::Error&) {
      // nobody waits for these draws
    }
  }
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
  request.sampling.check();
  waiting_.push_back(std::make_unique<Running>(Running{.number = next_, .request = std::move(request)}));
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
    if (!has_place) return;
    const std::span<const int64_t> prompt(first.request.prompt);
    const int64_t known = session_.known(prompt), page = session_.options().page_tokens;
    if (first.pages - known / page > session_.free_pages(prompt) - reserved_pages_) return;
    first.sequence = session_.open(prompt);
    first.done = static_cast<size_t>(known);
    first.text = first.request.prompt;
    shared_tokens_ += known;
    if (first.request.sampling.has_penalties()) session_.see(first.sequence, first.request.prompt);
    reserved_pages_ += first.pages - known / page;
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
}

/// The pieces of the next step, of requests whose last draw is not launched yet.
void Generator::plan(Launched& step) {
  pieces_.clear();
  int64_t left = session_.options().max_tokens;
  for (const auto& r : running_) left -= r->done == r->request.prompt.size() ? 1 : 0;
  for (const auto& r : running_) {
    const int32_t row = std::exchange(r->row, -1);
    if (r->drawn == r->request.max_tokens) continue;
    const std::span<const int64_t> prompt(r->request.prompt);
    DecodePiece piece{.sequence = r->sequence, .position = r->drawn};
    if (r->done < prompt.size()) {
      const auto n = std::min(prompt.size() - r->done, static_cast<size_t>(left));
      if (n == 0) continue;
      piece.tokens = prompt.subspan(r->done, n);
      r->done += n;
      left -= static_cast<int64_t>(n);
    } else if (r->drawn > r->generated) {
      base::check(row >= 0, "a draw under way is in the step launched last");
      piece.chosen = row;
    } else {
      piece.tokens = {&r->last, 1};
    }
    const bool draws = r->done == prompt.size();
    if (draws) {
      piece.sampling = &r->request.sampling;
      ++r->drawn;
      r->row = static_cast<int32_t>(pieces_.size());
    }
    step.rows.push_back(draws ? r.get() : nullptr);
    step.tokens += piece.size();
    pieces_.push_back(piece);
  }
}

/// Gives back what finished requests hold, and counts what the others may still take.
void Generator::retire() {
  for (const auto& r : running_) {
    if (!r->is_over) continue;
    // The token that came last may not have run.
    if (r->generated > 0) session_.keep(r->sequence, std::span(r->text).first(r->text.size() - 1));
    session_.close(r->sequence);
  }
  for (Launched& step : launched_) {
    for (Running*& r : step.rows) r = r != nullptr && r->is_over ? nullptr : r;
  }
  std::erase_if(running_, [](const auto& r) { return r->is_over; });
  const int64_t page = session_.options().page_tokens;
  reserved_pages_ = 0;
  for (const auto& r : running_)
    reserved_pages_ += r->pages - (session_.length(r->sequence) + page - 1) / page;
}

/// The next token of a request is here.
void Generator::choose(Running& r, int64_t token, double log_probability) {
  base::check(std::isfinite(log_probability), "token ", token, " of request ", r.number,
              " has no probability: the model's logits are minus infinity or no numbers");
  r.last = token;
  r.text.push_back(token);
  ++r.generated;
  GenerateEvent event{r.number, token, log_probability};
  const auto& stop = r.request.stop;
  if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
    event.token = -1;
    event.finish = FinishReason::stop;
  } else if (r.generated == r.request.max_tokens) {
    event.finish = FinishReason::length;
  }
  r.is_over = event.finish != FinishReason::none;
  events_.push_back(event);
}

/// Launches the next step, if there is one.
bool Generator::launch() {
  admit();
  Launched step;
  plan(step);
  if (pieces_.empty()) return false;
  session_.launch(pieces_);
  for (const auto& r : running_) {
    if (r->row >= 0 && r->drawn == 1) session_.keep(r->sequence, r->request.prompt);
  }
  launched_.push_back(std::move(step));
  return true;
}

void Generator::collect() {
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  const DecodeSession::Drawn drawn = session_.collect();
  step_tokens_ = step.tokens;
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (step.rows[i] != nullptr) choose(*step.rows[i], drawn.tokens[i], double{drawn.log_probabilities[i]});
  }
}

const std::vector<GenerateEvent>& Generator::step() {
  events_.clear();
  for (const auto& r : running_) {
    if (!r->is_cancelled) continue;
    events_.push_back({.request = r->number, .finish = FinishReason::cancelled});
    r->is_over = true;
  }
  retire();
  step_tokens_ = 0;
  while (static_cast<int>(launched_.size()) < session_.depth() && launch()) {
  }
  if (launched_.empty()) return events_;
  collect();
  retire();
  return events_;
}

}  // namespace trireme::engine
