// Generates continuations of prompts, several texts at a time.
#include "engine/decode/generator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <unordered_map>
#include <utility>

namespace trireme::engine {

struct Generator::Running {
  int64_t number = 0;
  GenerateRequest request;
  SequenceId sequence = -1;
  std::vector<int64_t> text;                       // prompt and answer so far
  size_t done = 0;                                 // tokens of the prompt that were launched
  int64_t drawn = 0;                               // draws that were launched
  int64_t generated = 0;                           // draws whose tokens have arrived
  int64_t last = 0;                                // the latest token
  std::vector<int64_t> drafts = {};                // drafted tokens after `last`
  std::vector<int64_t> guessed = {};               // the last token and the drafts after it in a running step
  bool is_drafted = false;                         // waits for its tokens before it drafts more
  int32_t row = -1;                                // the row in the latest step that draws its next token
  std::vector<uint64_t> own_words = {};            // the mask, if it differs from the filter's
  std::span<const uint64_t> words = {};            // tokens allowed in the next draw; empty: all
  std::vector<uint64_t> first_words = {};          // a copy of them, kept while masks of drafts are made
  std::vector<uint64_t> behind = {};               // tokens allowed after each draft, by the filter
  std::unordered_map<int64_t, int32_t> seen = {};  // counts as in see(), if drafts need them
  std::vector<int32_t> seen_behind = {};           // counts of drafts including themselves
  SamplingOptions draft_sampling = {};             // without penalties, as draft models count nothing
  std::shared_ptr<const base::Error> error;        // the reason why it cannot continue
  std::vector<ScoredToken> scores = {};            // of the prompt, until the first token arrives
  bool is_cancelled = false;
  bool is_over = false;

  void open(DecodeSession& session, bool counts_drafts);
  std::span<const uint64_t> words_of(TokenFilter* filter, int64_t vocabulary);
  int64_t form_drafts(int64_t most, int64_t vocabulary, MaskCost& cost);
  bool find_mask(int64_t vocabulary, MaskCost& cost);
  void accept(int64_t token, MaskCost& cost);
  DecodePiece next_piece(int64_t tokens, int32_t row_before);
  void count_drafts();
  void give_pages(DecodeSession& session);
};

namespace {

bool is_any(std::span<const uint64_t> words) {
  return std::any_of(words.begin(), words.end(), [](uint64_t w) { return w != 0; });
}

bool allows(std::span<const uint64_t> words, int64_t token) {
  const auto word = static_cast<size_t>(token) / 64;
  return token >= 0 && word < words.size() && (words[word] >> token % 64 & 1) != 0;
}

}  // namespace

/// Begins its sequence behind what is known of the prompt.
void Generator::Running::open(DecodeSession& session, bool counts_drafts) {
  // Known pages have no scores, so a prompt that must be scored is run.
  sequence =
      request.scores_prompt ? session.open(request.origin()) : session.open(request.prompt, request.origin());
  done = static_cast<size_t>(session.length(sequence));
  if (!request.sampling.has_penalties()) return;
  const std::span<const int64_t> whole(request.prompt);
  const size_t prompt = whole.size() - static_cast<size_t>(request.answered);
  session.see(sequence, whole.first(prompt), whole.subspan(prompt));
  if (!counts_drafts || !session.options().counts_ahead) return;
  seen.clear();
  for (const int64_t token : whole.first(prompt)) seen[token] = 1;
  for (const int64_t token : whole.subspan(prompt)) seen[token] += 2;
}

/// The tokens allowed in the next draw: those of the filter (null without one), except stop tokens before the
/// shortest length is reached. The draws of a step are either all before that point or all after it. What
/// counts are draws that were launched: tokens of steps that run ahead have not arrived.
std::span<const uint64_t> Generator::Running::words_of(TokenFilter* filter, int64_t vocabulary) {
  const bool may_end = drawn >= request.least_tokens || request.stop.empty();
  const std::span<const uint64_t> mask = filter == nullptr ? std::span<const uint64_t>() : filter->mask();
  if (may_end) return mask;
  const auto count = static_cast<size_t>(vocabulary + 63) / 64;
  own_words.assign(count, filter == nullptr ? UINT64_MAX : 0);
  std::copy_n(mask.begin(), std::min(count, mask.size()), own_words.begin());
  for (int64_t id : request.stop) {
    if (id >= 0 && id < vocabulary) own_words[static_cast<size_t>(id) / 64] &= ~(uint64_t{1} << id % 64);
  }
  // An answer that is complete by its filter may end, however short it is.
  return is_any(own_words) ? own_words : mask;
}

/// The number of the first `most` drafts that the filter accepts; `behind` then holds the tokens allowed
/// after each. Drafts end before a stop token.
int64_t Generator::Running::form_drafts(int64_t most, int64_t vocabulary, MaskCost& cost) {
  behind.clear();
  if (request.filter == nullptr || most <= 0) return most;
  const auto began = std::chrono::steady_clock::now();
  const auto count = static_cast<size_t>(vocabulary + 63) / 64;
  const auto& stop = request.stop;
  first_words.assign(words.begin(), words.end());  // filters may reuse the memory of their mask
  words = first_words;
  int64_t taken = 0;
  try {
    const std::unique_ptr<TokenFilter> ahead = request.filter->fork();
    for (; taken < most; ++taken) {
      const int64_t draft = drafts[static_cast<size_t>(taken)];
      const bool is_end = std::find(stop.begin(), stop.end(), draft) != stop.end();
      if (is_end || !allows(ahead->mask(), draft)) break;
      ahead->accept(draft);
      const std::span<const uint64_t> next = words_of(ahead.get(), vocabulary);
      if (!is_any(next)) break;
      const size_t begin = behind.size();
      behind.resize(begin + count, 0);
      std::copy_n(next.begin(), std::min(count, next.size()), behind.begin() + static_cast<ptrdiff_t>(begin));
    }
  } catch (const base::Error&) {
    // The error is reported if the answer really takes this path.
  }
  cost.masks += taken;
  cost.ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  return taken;
}

/// False if a text cannot continue; clean() then ends it.
bool Generator::Running::find_mask(int64_t vocabulary, MaskCost& cost) {
  if (error != nullptr) return false;
  if (request.filter == nullptr && drawn >= request.least_tokens) {
    words = {};
    return true;
  }
  const auto began = std::chrono::steady_clock::now();
  try {
    words = words_of(request.filter.get(), vocabulary);
    if (request.filter != nullptr && !is_any(words))
      base::fail_invalid("no token of the vocabulary goes on with the answer after ", generated, " tokens");
  } catch (const base::Error& e) {
    error = std::make_shared<const base::Error>(e);
  }
  ++cost.masks;
  cost.ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  return error == nullptr;
}

/// Passes the token to the filter; clean() ends a text that cannot continue.
void Generator::Running::accept(int64_t token, MaskCost& cost) {
  const auto began = std::chrono::steady_clock::now();
  try {
    request.filter->accept(token);
  } catch (const base::Error& e) {
    error = std::make_shared<const base::Error>(e);
  }
  cost.ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
}

/// The counts of each draft of a step if it and the drafts before it are accepted.
void Generator::Running::count_drafts() {
  seen_behind.clear();
  for (auto draft = guessed.begin() + 1; draft != guessed.end(); ++draft) {
    const auto known = seen.find(*draft);
    const auto times = static_cast<int32_t>(std::count(guessed.begin() + 1, draft + 1, *draft));
    seen_behind.push_back((known == seen.end() ? 0 : known->second) + 2 * times);
  }
}

/// The next `tokens` tokens of a text. `row_before`: the row of the latest step that draws its next token.
DecodePiece Generator::Running::next_piece(int64_t tokens, int32_t row_before) {
  DecodePiece piece{.sequence = sequence, .position = drawn};
  const std::span<const int64_t> prompt(request.prompt);
  if (done < prompt.size()) {
    piece.tokens = prompt.subspan(done, static_cast<size_t>(tokens));
    if (request.scores_prompt)
      piece.scored = prompt.subspan(done + 1, std::min(piece.tokens.size(), prompt.size() - done - 1));
    done += static_cast<size_t>(tokens);
  } else if (drawn > generated) {
    base::check(row_before >= 0, "a draw under way is in the step launched last");
    piece.chosen = row_before;
  } else if (tokens > 1) {
    guessed.assign(1, last);
    guessed.insert(guessed.end(), drafts.begin(), drafts.begin() + (tokens - 1));
    piece.tokens = guessed;
    piece.draws_each = true;
    if (request.sampling.has_penalties()) {
      count_drafts();
      piece.seen_behind = seen_behind;
    }
  } else {
    piece.tokens = {&last, 1};
  }
  if (done < prompt.size()) return piece;
  piece.sampling = &request.sampling;
  piece.allowed = words;
  if (piece.draws_each) piece.allowed_behind = behind;
  piece.biases = request.biases;
  piece.lists = request.likeliest > 0;
  return piece;
}

/// Gives the prompt's full pages to whoever waits for them. Reads them in the order of the device's work,
/// behind the steps that were launched.
void Generator::Running::give_pages(DecodeSession& session) {
  PageTaker* taker = request.taker.get();
  if (taker == nullptr) return;
  const int64_t full = static_cast<int64_t>(done) / session.options().page_tokens;
  for (int64_t page = taker->next(); page < full && !is_cancelled; page = taker->next())
    is_cancelled = !taker->take(session.copy_of_page(sequence, page));
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::none: return "none";
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
    case FinishReason::expired: return "expired";
    case FinishReason::failed: return "failed";
  }
  return "none";
}

Generator::Generator(DecodeSession& session, Drafter* drafter) : session_(session), drafter_(drafter) {}

Generator::~Generator() {
  for (size_t i = 0; i < launched_.size(); ++i) {
    try {
      session_.collect();
    } catch (const base::Error&) {
      // Nobody waits for these draws.
    }
  }
  for (const auto& r : running_) {
    if (r->sequence >= 0) session_.close(r->sequence);
    if (drafter_ != nullptr) drafter_->forget(r->number);
  }
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
  // The last token is drawn but not run.
  const int64_t needed = (prompt + request.max_tokens - 1 + page_tokens - 1) / page_tokens;
  if (needed > pages) {
    base::fail(base::ErrorCode::exhausted, "prompt and answer need ", needed, " pages of ", page_tokens,
               " tokens, there are ", pages);
  }
  request.sampling.check();
  base::require(request.likeliest >= 0 && request.likeliest <= passes::kMostListed, request.likeliest,
                " of the likeliest tokens; at most ", passes::kMostListed);
  base::require(request.biases.size() <= static_cast<size_t>(passes::kMostBiases), request.biases.size(),
                " biases; at most ", passes::kMostBiases);
  std::set<int64_t> biased;
  for (const TokenBias& b : request.biases) {
    base::require(b.token >= 0 && b.token < vocabulary, "the token ", b.token,
                  " of a bias is not in the vocabulary of ", vocabulary);
    base::require(biased.insert(b.token).second, "two biases of token ", b.token);
    base::require(std::isfinite(b.bias), "the bias of token ", b.token, " is no number");
  }
}

GenerateLimits Generator::limits() const {
  return {.max_length = session_.max_length(),
          .vocabulary = session_.vocabulary(),
          .pages = session_.pool().pages(),
          .page_tokens = session_.options().page_tokens};
}

bool Generator::fetch(int64_t number, const GenerateRequest& request) {
  return request.scores_prompt || session_.beginnings().fetch(number, request.prompt, request.origin());
}

void Generator::start(int64_t number, GenerateRequest request) {
  auto made = std::make_unique<Running>(Running{.number = number, .request = std::move(request)});
  Running& r = *made;
  session_.beginnings().offer(r.request.scores_prompt ? nullptr : r.request.handed);
  r.request.handed.reset();
  r.open(session_, drafter_ != nullptr);
  r.text = r.request.prompt;
  r.drawn = r.generated = r.request.answered;
  r.draft_sampling = r.request.sampling;
  r.draft_sampling.repetition_penalty = 1;
  r.draft_sampling.presence_penalty = r.draft_sampling.frequency_penalty = 0;
  running_.push_back(std::move(made));
}

void Generator::reopen(size_t i) {
  Running& r = *running_[i];
  session_.close(std::exchange(r.sequence, -1));
  r.open(session_, drafter_ != nullptr);
}

GenerateRequest Generator::put_back(size_t i) {
  Running& r = *running_[i];
  for (Launched& step : launched_) step.forget(r);
  // Pages that were run are kept until they are needed; draws that have not arrived are repeated.
  const auto ran = static_cast<size_t>(session_.length(r.sequence));
  session_.keep(r.sequence, std::span(r.text).first(std::min(ran, r.text.size())));
  session_.close(r.sequence);
  if (drafter_ != nullptr) drafter_->forget(r.number);
  GenerateRequest request = std::move(r.request);
  request.prompt = std::move(r.text);
  request.answered = r.generated;
  request.scores_prompt = request.scores_prompt && r.generated == 0;  // else the scores were reported
  running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
  return request;
}

void Generator::cancel(int64_t number) {
  for (const auto& r : running_) r->is_cancelled |= r->number == number;
}

int64_t Generator::number(size_t i) const { return running_[i]->number; }

int64_t Generator::pages_for(size_t i, int64_t tokens) const {
  return session_.pages_for(running_[i]->sequence, tokens);
}

int64_t Generator::prompt_left(size_t i) const {
  return static_cast<int64_t>(running_[i]->request.prompt.size() - running_[i]->done);
}

const GenerateRequest& Generator::request(size_t i) const { return running_[i]->request; }

bool Generator::can_draw(size_t i) const {
  const Running& r = *running_[i];
  const bool is_known = (r.request.filter == nullptr && !r.is_drafted) || r.drawn == r.generated;
  return r.drawn < r.request.max_tokens && is_known && r.error == nullptr;
}

int64_t Generator::most_drafts(size_t i) const {
  const Running& r = *running_[i];
  const GenerateRequest& request = r.request;
  if (drafter_ == nullptr || prompt_left(i) > 0 || r.error != nullptr) return 0;
  if (request.sampling.has_penalties() && !session_.options().counts_ahead) return 0;
  // The draws of a step use one mask, so all or none come before the answer may end.
  const bool may_end = r.drawn >= request.least_tokens || request.stop.empty();
  const int64_t most = may_end ? request.max_tokens : std::min(request.least_tokens, request.max_tokens);
  return std::max<int64_t>(most - r.drawn - 1, 0);
}

void Generator::draft(std::span<const int64_t> most) {
  wishes_.clear();
  for (size_t i = 0; i < running_.size(); ++i) {
    Running& r = *running_[i];
    r.drafts.clear();
    r.is_drafted = most[i] > 0;
    const int64_t wanted = std::min(most[i], most_drafts(i));
    if (wanted <= 0 || r.drawn != r.generated) continue;
    wishes_.push_back({.text = r.number,
                       .tokens = r.text,
                       .sampling = &r.draft_sampling,
                       .biases = r.request.biases,
                       .position = r.drawn,
                       .most = wanted,
                       .drafts = &r.drafts});
  }
  if (wishes_.empty()) return;
  drafter_->draft(wishes_);
  for (const auto& r : running_) {
    const auto& stop = r->request.stop;
    const auto end = std::find_first_of(r->drafts.begin(), r->drafts.end(), stop.begin(), stop.end());
    if (end != r->drafts.end()) r->drafts.erase(end + 1, r->drafts.end());
  }
}

int64_t Generator::drafts(size_t i) const { return static_cast<int64_t>(running_[i]->drafts.size()); }

void Generator::clean(std::vector<GenerateEvent>& events) {
  for (const auto& r : running_) {
    if (!r->is_cancelled && r->error == nullptr) continue;
    const FinishReason how = r->is_cancelled ? FinishReason::cancelled : FinishReason::failed;
    events.push_back({.request = r->number, .finish = how, .error = r->error});
    r->is_over = true;
  }
  retire();
}

bool Generator::launch(std::span<const int64_t> tokens) {
  pieces_.clear();
  Launched step;
  size_t more = 0;  // rows in addition to those of pieces
  for (size_t i = 0; i < running_.size(); ++i) {
    Running& r = *running_[i];
    const int32_t row = std::exchange(r.row, -1);
    if (tokens[i] == 0) continue;
    const bool draws = prompt_left(i) <= tokens[i];
    if (draws && !r.find_mask(session_.vocabulary(), mask_cost_)) continue;
    const bool has_drafts = r.done == r.request.prompt.size() && tokens[i] > 1;
    const int64_t taken =
        has_drafts ? 1 + r.form_drafts(tokens[i] - 1, session_.vocabulary(), mask_cost_) : tokens[i];
    const DecodePiece piece = r.next_piece(taken, row);
    Launched::Drawn drawn{.row = more};
    if (piece.sampling != nullptr) {
      drawn.text = &r;
      drawn.drafts = piece.draws_each ? piece.tokens.size() - 1 : 0;
      drawn.guessed = has_drafts ? static_cast<size_t>(tokens[i]) - 1 : 0;
      r.drawn += static_cast<int64_t>(drawn.drafts) + 1;
      r.row = static_cast<int32_t>(pieces_.size());
    }
    if (!piece.scored.empty())
      step.scored.push_back({.text = &r,
                             .first = r.done - piece.tokens.size() + 1,
                             .count = piece.scored.size(),
                             .row = more,
                             .last_row = pieces_.size(),
                             .has_last = piece.scored.size() == piece.tokens.size()});
    step.drawn.push_back(drawn);
    step.tokens += piece.size();
    more += static_cast<size_t>(piece.more_rows());
    pieces_.push_back(piece);
  }
  if (pieces_.empty()) return false;
  for (Launched::Scored& s : step.scored) s.row += pieces_.size();
  for (Launched::Drawn& d : step.drawn) d.row += pieces_.size();
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
  checked_.clear();
  const DecodeSession::Drawn drawn = session_.collect();
  take_scores(step, drawn);
  for (const auto& r : running_) r->give_pages(session_);
  for (size_t i = 0; i < step.drawn.size(); ++i) {
    if (step.drawn[i].text != nullptr) take(step.drawn[i], drawn, i, events);
  }
  retire();
  return step.tokens;
}

/// Takes the next tokens of a request: its drafts as far as they equal the drawn tokens, and one more.
void Generator::take(const Launched::Drawn& piece, const DecodeSession::Drawn& drawn, size_t last_row,
                     std::vector<GenerateEvent>& events) {
  Running& r = *piece.text;
  size_t accepted = 0, row = 0;
  for (bool goes_on = true; goes_on;) {
    row = accepted < piece.drafts ? piece.row + accepted : last_row;
    choose(r, drawn, row, events);
    const bool is_right = accepted < piece.drafts && r.last == r.guessed[accepted + 1];
    accepted += is_right ? 1 : 0;
    goes_on = is_right && !r.is_over;
  }
  if (piece.guessed == 0) return;
  if (accepted > 0 && !r.is_over && r.request.sampling.has_penalties()) session_.take_seen(r.sequence, row);
  checked_.push_back({.request = r.number,
                      .drafted = static_cast<int64_t>(piece.drafts),
                      .accepted = static_cast<int64_t>(accepted),
                      .guessed = static_cast<int64_t>(piece.guessed)});
  r.drawn = r.generated;
  session_.shrink(r.sequence, static_cast<int64_t>(r.text.size()) - 1);
}

void Generator::Launched::forget(const Running& running) {
  for (Drawn& d : drawn) d.text = d.text == &running ? nullptr : d.text;
  for (Scored& s : scored) s.text = s.text == &running ? nullptr : s.text;
}

/// Frees the resources of finished requests.
void Generator::retire() {
  for (const auto& r : running_) {
    if (!r->is_over) continue;
    // The latest token may not have been run, nor all tokens of the prompt.
    const auto ran = static_cast<size_t>(session_.length(r->sequence));
    session_.keep(r->sequence, std::span(r->text).first(std::min(ran, r->text.size() - 1)));
    session_.close(r->sequence);
    if (drafter_ != nullptr) drafter_->forget(r->number);
    for (Launched& step : launched_) step.forget(*r);
  }
  std::erase_if(running_, [](const auto& r) { return r->is_over; });
}

namespace {

/// The likeliest of the tokens that are allowed in a row, likeliest first.
std::vector<TokenChance> likeliest(const DecodeSession::Drawn& drawn, size_t row, int64_t count) {
  std::vector<TokenChance> list;
  const auto wanted = std::min(drawn.listed, static_cast<size_t>(count));
  for (size_t i = row * drawn.listed; i < row * drawn.listed + wanted; ++i) {
    const double log{drawn.likeliest_logarithms[i]};
    if (std::isfinite(log)) list.push_back({drawn.likeliest[i], log});
  }
  return list;
}

}  // namespace

/// Steps are collected in the order of launches, so scores are in the order of their tokens.
void Generator::take_scores(const Launched& step, const DecodeSession::Drawn& drawn) {
  for (const Launched::Scored& s : step.scored) {
    if (s.text == nullptr) continue;
    for (size_t i = 0; i < s.count; ++i) {
      const size_t row = s.has_last && i + 1 == s.count ? s.last_row : s.row + i;
      s.text->scores.push_back({.token = s.text->request.prompt[s.first + i],
                                .log_probability = double{drawn.scored_logarithms[row]},
                                .likeliest = likeliest(drawn, row, s.text->request.likeliest)});
    }
  }
}

/// Takes the next token of a request.
void Generator::choose(Running& r, const DecodeSession::Drawn& drawn, size_t row,
                       std::vector<GenerateEvent>& events) {
  const int64_t token = drawn.tokens[row];
  const double log_probability{drawn.log_probabilities[row]};
  if (!std::isfinite(log_probability)) {  // through numbers of its adapter or its prompt: others go on
    const auto error = base::Error(base::ErrorCode::internal,
                                   base::concat("token ", r.generated, " of the answer has no probability: ",
                                                "the model's logits are minus infinity or no numbers"));
    r.is_over = true;
    events.push_back({.request = r.number,
                      .finish = FinishReason::failed,
                      .error = std::make_shared<const base::Error>(error)});
    return;
  }
  r.last = token;
  r.text.push_back(token);
  if (!r.seen.empty()) r.seen[token] += 2;
  ++r.generated;
  GenerateEvent event{r.number, token, log_probability};
  event.likeliest = likeliest(drawn, row, r.request.likeliest);
  event.prompt = std::exchange(r.scores, {});
  const auto& stop = r.request.stop;
  if (std::find(stop.begin(), stop.end(), token) != stop.end()) {
    event.token = -1;
    event.finish = FinishReason::stop;
  } else if (r.generated == r.request.max_tokens) {
    event.finish = FinishReason::length;
  }
  if (event.finish == FinishReason::none && r.request.filter != nullptr) r.accept(token, mask_cost_);
  r.is_over = event.finish != FinishReason::none;
  events.push_back(std::move(event));
}

}  // namespace trireme::engine
