// Generates continuations of prompts: the texts under way.
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
  size_t done = 0;            // tokens that it began with that were launched
  int64_t drawn = 0;          // draws that were launched
  int64_t generated = 0;      // of them, those that are here
  int64_t last = 0;           // the token that came last
  int32_t row = -1;           // of the step launched last, where that draws its next token
  bool is_cancelled = false;
  bool is_over = false;
};

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::expired: return "expired";
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

void GenerateLimits::check(GenerateRequest& request) const {
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  base::require(prompt > 0, "a prompt has at least one token");
  base::require(request.max_tokens > 0, "an answer of ", request.max_tokens, " tokens");
  base::require(prompt < max_length, "the prompt leaves no room for an answer; tokens: ", prompt,
                ", the model takes ", max_length);
  for (int64_t id : request.prompt)
    base::require(id >= 0 && id < vocabulary, "token ", id, " is not in the vocabulary of ", vocabulary);
  request.max_tokens = std::min(request.max_tokens, max_length - prompt);
  // The last token is chosen and not run.
  const int64_t needed = (prompt + request.max_tokens - 1 + page_tokens - 1) / page_tokens;
  if (needed > pages) {
    base::fail(base::ErrorCode::exhausted, "prompt and answer need ", needed, " pages of ", page_tokens,
               " tokens, there are ", pages);
  }
  request.sampling.check();
}

GenerateLimits Generator::limits() const {
  return {.max_length = session_.max_length(),
          .vocabulary = session_.vocabulary(),
          .pages = session_.pool().pages(),
          .page_tokens = session_.options().page_tokens};
}

void Generator::start(int64_t number, GenerateRequest request) {
  auto made = std::make_unique<Running>(Running{.number = number, .request = std::move(request)});
  Running& r = *made;
  r.sequence = session_.open(r.request.prompt);
  r.done = static_cast<size_t>(session_.length(r.sequence));
  r.text = r.request.prompt;
  r.drawn = r.generated = r.request.answered;
  if (r.request.sampling.has_penalties()) {
    const std::span<const int64_t> text(r.text);
    const size_t prompt = text.size() - static_cast<size_t>(r.request.answered);
    session_.see(r.sequence, text.first(prompt), text.subspan(prompt));
  }
  running_.push_back(std::move(made));
}

GenerateRequest Generator::put_back(size_t i) {
  Running& r = *running_[i];
  forget_rows(r);
  // What it ran is remembered until the pages are needed; draws that are not here are drawn again.
  const auto ran = static_cast<size_t>(session_.length(r.sequence));
  session_.keep(r.sequence, std::span(r.text).first(std::min(ran, r.text.size())));
  session_.close(r.sequence);
  GenerateRequest request = std::move(r.request);
  request.prompt = std::move(r.text);
  request.answered = r.generated;
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
  return request;
}

void Generator::cancel(int64_t number) {
  for (const auto& r : running_) r->is_cancelled |= r->number == number;
}

int64_t Generator::number(size_t i) const { return running_[i]->number; }

int64_t Generator::prompt_size(size_t i) const {
  return static_cast<int64_t>(running_[i]->request.prompt.size());
}

int64_t Generator::pages_for(size_t i, int64_t tokens) const {
  return session_.pages_for(running_[i]->sequence, tokens);
}

int64_t Generator::prompt_left(size_t i) const {
  return static_cast<int64_t>(running_[i]->request.prompt.size() - running_[i]->done);
}

bool Generator::can_draw(size_t i) const { return running_[i]->drawn < running_[i]->request.max_tokens; }

void Generator::clean(std::vector<GenerateEvent>& events) {
  for (const auto& r : running_) {
    if (!r->is_cancelled) continue;
    events.push_back({.request = r->number, .finish = FinishReason::cancelled});
    r->is_over = true;
  }
  retire();
}

/// The next `tokens` tokens of a text; `row`: of the step launched last, where that draws its next token.
DecodePiece Generator::next_piece(Running& r, int64_t tokens, int32_t row) const {
  DecodePiece piece{.sequence = r.sequence, .position = r.drawn};
  const std::span<const int64_t> prompt(r.request.prompt);
  if (r.done < prompt.size()) {
    piece.tokens = prompt.subspan(r.done, static_cast<size_t>(tokens));
    r.done += static_cast<size_t>(tokens);
  } else if (r.drawn > r.generated) {
    base::check(row >= 0, "a draw under way is in the step launched last");
    piece.chosen = row;
  } else {
    piece.tokens = {&r.last, 1};
  }
  if (r.done == prompt.size()) piece.sampling = &r.request.sampling;
  return piece;
}

bool Generator::launch(std::span<const int64_t> tokens) {
  pieces_.clear();
  Launched step;
  for (size_t i = 0; i < running_.size(); ++i) {
    Running& r = *running_[i];
    const int32_t row = std::exchange(r.row, -1);
    if (tokens[i] == 0) continue;
    const DecodePiece piece = next_piece(r, tokens[i], row);
    if (piece.sampling != nullptr) {
      ++r.drawn;
      r.row = static_cast<int32_t>(pieces_.size());
    }
    step.rows.push_back(piece.sampling != nullptr ? &r : nullptr);
    step.tokens += piece.size();
    pieces_.push_back(piece);
  }
  if (pieces_.empty()) return false;
  session_.launch(pieces_);
  for (const auto& r : running_) {
    if (r->row >= 0 && r->drawn == r->request.answered + 1) session_.keep(r->sequence, r->request.prompt);
  }
  launched_.push_back(std::move(step));
  return true;
}

int64_t Generator::collect(std::vector<GenerateEvent>& events) {
  const Launched step = std::move(launched_.front());
  launched_.pop_front();
  const DecodeSession::Drawn drawn = session_.collect();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    if (step.rows[i] != nullptr)
      choose(*step.rows[i], drawn.tokens[i], double{drawn.log_probabilities[i]}, events);
  }
  retire();
  return step.tokens;
}

/// Gives back what finished requests hold.
void Generator::retire() {
  for (const auto& r : running_) {
    if (!r->is_over) continue;
    // The token that came last may not have run, nor may all of what it began with.
    const auto ran = static_cast<size_t>(session_.length(r->sequence));
    session_.keep(r->sequence, std::span(r->text).first(std::min(ran, r->text.size() - 1)));
    session_.close(r->sequence);
    forget_rows(*r);
  }
  std::erase_if(running_, [](const auto& r) { return r->is_over; });
}

/// Nobody waits for what the steps under way draw for this text.
void Generator::forget_rows(const Running& running) {
  for (Launched& step : launched_) {
    for (Running*& r : step.rows) r = r == &running ? nullptr : r;
  }
}

/// The next token of a request is here.
void Generator::choose(Running& r, int64_t token, double log_probability,
                       std::vector<GenerateEvent>& events) {
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
  events.push_back(event);
}

}  // namespace trireme::engine
