// One text completion request of the OpenAI API.
#include "serve/openai/completion_call.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "base/text/json.h"
#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

constexpr std::string_view kCalls = "tool_calls";

std::string_view finish_of(engine::FinishReason reason) {
  return reason == engine::FinishReason::length ? "length" : "stop";
}

void append_member(std::string& out, std::string_view name, int64_t value) {
  out += '"';
  out += name;
  out += "\":";
  base::append_json(out, value);
}

size_t characters_in(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

/// Receives one of the answers from the model.
class CompletionCall::Reader final : public TextReader {
 public:
  Reader(std::shared_ptr<CompletionCall> call, size_t answer) : call_(std::move(call)), answer_(answer) {}
  void on_piece(const TextPiece& piece) override { call_->take(answer_, piece); }
  void on_end(const TextEnd& end) override { call_->end(answer_, end); }
  void on_error(const base::Error& error) override { call_->fail(error); }
  bool is_gone() const override { return call_->is_gone(); }

 private:
  const std::shared_ptr<CompletionCall> call_;
  const size_t answer_;
};

CompletionCall::CompletionCall(CompletionRequest request, http::Reply reply, const data::Tokenizer& tokenizer,
                               Origin origin)
    : request_(std::move(request)),
      tokenizer_(tokenizer),
      origin_(std::move(origin)),
      chunk_head_("data: " + head(true) + "\"choices\":["),
      reply_(std::move(reply)),
      sent_ns_(now_ns()) {}

void CompletionCall::start(TextModel& model, const std::vector<std::vector<int64_t>>& prompts) {
  const auto each = static_cast<size_t>(request_.best_of);
  answers_.resize(prompts.size() * each);
  left_ = answers_.size();
  for (size_t i = 0; i < answers_.size(); ++i)  // for usage before the end
    answers_[i].end.prompt_tokens = static_cast<int64_t>(prompts[prompt_of(i)].size());
  for (const std::vector<int64_t>& prompt : prompts) {
    if (!request_.echoes) continue;
    echoes_.push_back(tokenizer_.decode(prompt));
    begins_.push_back(prompt.empty() ? 0 : prompt[0]);
  }
  try {
    model.ask(answers_.size(), [&](size_t i) {
      TextAsk ask = request_.ask;
      ask.generate.prompt = prompts[prompt_of(i)];
      // In unsigned arithmetic, which may wrap around.
      ask.generate.sampling.seed =
          static_cast<int64_t>(static_cast<uint64_t>(ask.generate.sampling.seed) + i % each);
      return AskedText{std::move(ask), std::make_shared<Reader>(shared_from_this(), i)};
    });
  } catch (const base::Error& error) {
    fail(error);
  }
}

bool CompletionCall::is_gone() const {
  const std::lock_guard lock(mutex_);  // the connection's thread may be sending a refusal
  return is_done_ || (is_open_ ? stream_.client_gone() : reply_.client_gone());
}

/// The tokens of a piece that have log probabilities. With echo, the first piece also gives those of the
/// prompt, whose first token has none.
std::vector<AnswerToken> CompletionCall::tokens_of(size_t answer, const TextPiece& piece) {
  Answer& a = answers_[answer];
  std::vector<AnswerToken> tokens;
  if (!request_.wants_log_probabilities) return tokens;
  // Measured by what each token shows of its text, whatever of that is held back for a stop text.
  const auto add = [&](data::TextStream& text, AnswerToken token) {
    token.text_offset = a.characters;
    a.characters += characters_in(text.push(token.id));
    tokens.push_back(std::move(token));
  };
  if (request_.echoes && !std::exchange(a.is_echoed, true)) {
    const size_t prompt = prompt_of(answer);
    const std::unique_ptr<data::TextStream> text = tokenizer_.stream();
    add(*text, {.id = begins_[prompt], .log_probability = std::numeric_limits<double>::quiet_NaN()});
    for (const engine::ScoredToken& t : piece.prompt)
      add(*text, {.id = t.token, .log_probability = t.log_probability, .likeliest = t.likeliest});
    a.characters = characters_in(echoes_[prompt]);
  }
  if (piece.token < 0 || request_.drops_answer) return tokens;
  if (a.measured == nullptr) a.measured = tokenizer_.stream();
  add(*a.measured, {.id = piece.token,
                    .log_probability = piece.log_probability,
                    .likeliest = {piece.likeliest.begin(), piece.likeliest.end()}});
  return tokens;
}

void CompletionCall::take(size_t answer, const TextPiece& piece) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return;
  Answer& a = answers_[answer];
  const bool is_token = piece.token >= 0 && !request_.drops_answer;
  const std::string_view added = request_.drops_answer ? "" : piece.text;
  std::vector<AnswerToken> tokens = tokens_of(answer, piece);
  if (is_token) a.log_probability += piece.log_probability;
  if (!request_.streams) {
    a.text += added;
    std::move(tokens.begin(), tokens.end(), std::back_inserter(a.tokens));
    return;
  }
  a.end.answer_tokens += is_token ? 1 : 0;  // so far
  std::string told;                         // differs from `added` if some of it is held back
  if (request_.finds_calls) told = a.tools.push(added);
  const std::string_view text = request_.finds_calls ? told : added;
  if (text.empty() && tokens.empty()) return;
  send_chunk(answer, {.text = text, .tokens = tokens});
}

void CompletionCall::end(size_t answer, const TextEnd& end) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return;
  Answer& a = answers_[answer];
  a.end = end;
  if (request_.drops_answer) a.end.answer_tokens = 0;
  a.is_over = true;
  if (request_.streams) end_chunks(answer, finish_of(end.reason));
  if (--left_ > 0) return;
  if (request_.ask.charge) request_.ask.charge->settle();
  if (!request_.streams) return send_whole();
  if (request_.wants_usage) send_event(chunk_head_ + "],\"usage\":" + usage() + "}\n\n");
  stream_.write("data: [DONE]\n\n");
  stream_.finish();
  is_done_ = true;  // nothing more will be sent
}

void CompletionCall::fail(const base::Error& error) {
  const std::lock_guard lock(mutex_);
  if (is_done_.exchange(true)) return;
  if (!is_open_) return reply_.send(openai_error(error));  // the status can still report it
  stream_.write("data: " + openai_error_body(error) + "\n\n");
  stream_.finish();
}

/// Begins the stream with the first chunk; until then, a failure can have a status.
bool CompletionCall::open() {
  if (is_open_) return false;
  stream_ = reply_.stream(event_stream_head(origin_.id, origin_.headers));
  return is_open_ = true;
}

void CompletionCall::send_event(std::string event) {
  open();
  stream_.write(std::move(event));
  sent_ns_ = now_ns();
}

bool CompletionCall::keep_alive(int64_t now_ns, int64_t interval_ns) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return false;
  if (now_ns - sent_ns_ < interval_ns) return true;
  open();
  stream_.write(kKeepAlive);
  sent_ns_ = now_ns;
  return true;
}

/// The beginning {"id":...,"model":..., of an answer.
std::string CompletionCall::head(bool is_chunk) const {
  std::string out = "{\"id\":\"";
  out += request_.is_chat ? "chatcmpl-" : "cmpl-";
  out += origin_.id;
  out += "\",\"object\":\"";
  out += !request_.is_chat ? "text_completion" : is_chunk ? "chat.completion.chunk" : "chat.completion";
  out += "\",";
  append_member(out, "created", origin_.created);
  out += ",\"model\":";
  base::append_json(out, request_.model);
  out += ',';
  return out;
}

std::string CompletionCall::usage() const {
  int64_t prompt = 0, known = 0, answer = 0;
  for (size_t i = 0; i < answers_.size(); ++i) {
    answer += answers_[i].end.answer_tokens;
    if (i % static_cast<size_t>(request_.best_of) != 0) continue;  // each prompt counts once
    prompt += answers_[i].end.prompt_tokens;
    if (origin_.tells_known) known += answers_[i].end.known_tokens;
  }
  std::string out = "{";
  append_member(out, "prompt_tokens", prompt);
  out += ',';
  append_member(out, "completion_tokens", answer);
  out += ',';
  append_member(out, "total_tokens", prompt + answer);
  out += ",\"prompt_tokens_details\":{";
  append_member(out, "cached_tokens", known);
  return out + "}}";
}

std::vector<ToolCall> CompletionCall::kept(std::vector<ToolCall> calls) const {
  if (request_.calls_once && calls.size() > 1) calls.resize(1);
  return calls;
}

/// Tool calls are the finish reason, unless the request named the function to call.
std::string_view CompletionCall::finish_with(const std::vector<ToolCall>& calls,
                                             std::string_view finish) const {
  return calls.empty() || !request_.called.empty() ? finish : kCalls;
}

/// Sends the text that was held back, and the end of the stream.
void CompletionCall::end_chunks(size_t answer, std::string_view finish) {
  ToolAnswer rest;
  if (request_.finds_calls) rest = answers_[answer].tools.finish();
  if (!rest.content.empty()) send_chunk(answer, {.text = rest.content});
  const std::vector<ToolCall> calls = kept(std::move(rest.calls));
  if (!calls.empty()) send_chunk(answer, {.calls = &calls});
  send_chunk(answer, {.finish = finish_with(calls, finish)});
}

/// Their ids are of this request alone, and differ among its choices.
void CompletionCall::append_calls(std::string& out, size_t choice, const std::vector<ToolCall>& calls,
                                  bool is_delta) const {
  std::string prefix = "call_" + origin_.id + "_";
  if (request_.choices > 1) prefix += std::to_string(choice) + "_";
  out += "\"tool_calls\":[";
  for (size_t i = 0; i < calls.size(); ++i) {
    out += i > 0 ? ",{" : "{";
    if (is_delta) {
      append_member(out, "index", static_cast<int64_t>(i));
      out += ',';
    }
    out += "\"id\":\"" + prefix + std::to_string(i) + "\",\"type\":\"function\",\"function\":{\"name\":";
    base::append_json(out, calls[i].name);
    out += ",\"arguments\":";
    base::append_json(out, calls[i].arguments);
    out += "}}";
  }
  out += ']';
}

/// Appends what a chunk adds: a completion's text, or a chat's delta, the first of which names the role and
/// the last is empty.
void CompletionCall::append_chunk_text(std::string& out, size_t answer, std::string_view text, bool is_first,
                                       const Chunk& chunk) const {
  if (!request_.is_chat) {
    out += "\"text\":";
    return base::append_json(out, text);
  }
  out += "\"delta\":{";
  if (is_first) out += "\"role\":\"assistant\",";
  if (chunk.calls != nullptr) {
    append_calls(out, answer, *chunk.calls, true);
  } else if (is_first || chunk.finish.empty()) {
    out += "\"content\":";
    base::append_json(out, text);
  }
  out += '}';
}

void CompletionCall::append_log_probabilities(std::string& out, std::span<const AnswerToken> tokens) const {
  out += '{';
  if (request_.is_chat) {
    append_list(out, "content", tokens, [&](const AnswerToken& t) { append_chances(out, tokenizer_, t); });
    out += ",\"refusal\":null";
  } else {
    append_completion_chances(out, tokenizer_, tokens);
  }
  out += '}';
}

void CompletionCall::send_chunk(size_t answer, const Chunk& chunk) {
  Answer& a = answers_[answer];
  const bool is_first = !std::exchange(a.has_begun, true);
  constexpr size_t kBeside = 256;  // space for quotes, names and log probabilities in most chunks
  std::string json;
  json.reserve(chunk_head_.size() + chunk.text.size() + kBeside);
  json += chunk_head_;
  json += '{';
  append_member(json, "index", static_cast<int64_t>(answer));
  json += ',';
  if (is_first && request_.echoes) {
    append_chunk_text(json, answer, echoes_[prompt_of(answer)] + std::string(chunk.text), is_first, chunk);
  } else {
    append_chunk_text(json, answer, chunk.text, is_first, chunk);
  }
  json += ",\"logprobs\":";
  if (!chunk.tokens.empty()) {
    append_log_probabilities(json, chunk.tokens);
  } else {
    json += "null";
  }
  json += ",\"finish_reason\":";
  if (chunk.finish.empty()) {
    json += "null";
  } else {
    base::append_json(json, chunk.finish);
  }
  json += "}]";
  if (request_.wants_usage) {
    json += ",\"usage\":";
    json += request_.wants_usage_always ? usage() : "null";
  }
  json += "}\n\n";
  send_event(std::move(json));
}

/// The answers to return: for each prompt, all, or the likeliest by mean log probability.
std::vector<size_t> CompletionCall::chosen() const {
  const auto each = static_cast<size_t>(request_.best_of), wanted = static_cast<size_t>(request_.choices);
  const auto mean = [&](size_t i) {
    return answers_[i].log_probability /
           static_cast<double>(std::max<int64_t>(1, answers_[i].end.answer_tokens));
  };
  std::vector<size_t> given;
  for (size_t first = 0; first < answers_.size(); first += each) {
    std::vector<size_t> of_prompt(each);
    std::iota(of_prompt.begin(), of_prompt.end(), first);
    if (wanted < each)
      std::stable_sort(of_prompt.begin(), of_prompt.end(),
                       [&](size_t a, size_t b) { return mean(a) > mean(b); });
    given.insert(given.end(), of_prompt.begin(), of_prompt.begin() + static_cast<ptrdiff_t>(wanted));
  }
  return given;
}

/// Appends the whole message of a chat; returns its finish reason.
std::string_view CompletionCall::append_message(std::string& out, size_t choice, const std::string& text,
                                                std::string_view finish) const {
  ToolAnswer answer{.content = text};
  if (request_.finds_calls) answer = find_tool_calls(text);
  const std::vector<ToolCall> calls = kept(std::move(answer.calls));
  out += "\"message\":{\"role\":\"assistant\",\"content\":";
  if (!calls.empty() && answer.content.empty()) {
    out += "null";
  } else {
    base::append_json(out, answer.content);
  }
  out += ",\"refusal\":null";
  if (!calls.empty()) {
    out += ',';
    append_calls(out, choice, calls, false);
  }
  out += '}';
  return finish_with(calls, finish);
}

void CompletionCall::send_whole() {
  std::string json = head(false) + "\"choices\":[";
  size_t index = 0;
  for (size_t i : chosen()) {
    Answer& a = answers_[i];
    json += index > 0 ? ",{" : "{";
    append_member(json, "index", static_cast<int64_t>(index));
    json += ',';
    std::string_view finish = finish_of(a.end.reason);
    if (request_.is_chat) {
      finish = append_message(json, index, a.text, finish);
    } else {
      json += "\"text\":";
      base::append_json(json, request_.echoes ? echoes_[prompt_of(i)] + a.text : a.text);
    }
    json += ",\"logprobs\":";
    if (request_.wants_log_probabilities) {
      append_log_probabilities(json, a.tokens);
    } else {
      json += "null";
    }
    json += ",\"finish_reason\":";
    base::append_json(json, finish);
    json += '}';
    ++index;
  }
  http::Response response = http::json_response(200, json + "],\"usage\":" + usage() + "}");
  response.headers.emplace_back("X-Request-Id", origin_.id);
  response.headers.insert(response.headers.end(), origin_.headers.begin(), origin_.headers.end());
  is_done_ = true;  // nothing more will be sent
  reply_.send(std::move(response));
}

}  // namespace trireme::serve
