// One request of the Responses API.
#include "serve/openai/responses_call.h"

#include <algorithm>
#include <utility>

#include "serve/openai/openai_error.h"

namespace trireme::serve {
namespace {

using base::Json;

std::string as_json(std::string_view text) {
  std::string out;
  base::append_json(out, text);
  return out;
}

std::string number(int64_t value) { return std::to_string(value); }

}  // namespace

ResponsesCall::ResponsesCall(ResponsesRequest request, http::Reply reply, const data::Tokenizer& tokenizer,
                             CompletionCall::Origin origin, Keep keep)
    : request_(std::move(request)),
      tokenizer_(tokenizer),
      origin_(std::move(origin)),
      keep_(std::move(keep)),
      reply_(std::move(reply)),
      sent_ns_(now_ns()) {}

void ResponsesCall::start(TextModel& model, std::vector<int64_t> prompt) {
  try {
    model.ask(1, [&](size_t) {
      TextAsk ask = request_.chat.ask;
      ask.generate.prompt = std::move(prompt);
      return AskedText{std::move(ask), shared_from_this()};
    });
  } catch (const base::Error& error) {
    on_error(error);
  }
}

bool ResponsesCall::is_gone() const {
  const std::lock_guard lock(mutex_);
  return is_done_ || (is_open_ ? stream_.client_gone() : reply_.client_gone());
}

bool ResponsesCall::keep_alive(int64_t now_ns, int64_t interval_ns) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return false;
  if (now_ns - sent_ns_ < interval_ns) return true;
  open();
  stream_.write(kKeepAlive);
  sent_ns_ = now_ns;
  return true;
}

void ResponsesCall::on_piece(const TextPiece& piece) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return;
  if (request_.lists_chances && piece.token >= 0)
    held_.push_back({.id = piece.token,
                     .log_probability = piece.log_probability,
                     .likeliest = {piece.likeliest.begin(), piece.likeliest.end()}});
  const bool may_call = request_.chat.finds_calls;
  const std::string text = may_call ? tool_text_.push(piece.text) : std::string(piece.text);
  // Text that may be a call is held back, and so are its tokens.
  if (!text.empty() || (!may_call && !held_.empty())) send_text(text, std::exchange(held_, {}));
}

void ResponsesCall::on_end(const TextEnd& end) {
  const std::lock_guard lock(mutex_);
  if (is_done_) return;
  if (request_.chat.ask.charge) request_.chat.ask.charge->settle();
  end_ = end;
  if (request_.chat.finds_calls) {
    ToolAnswer rest = tool_text_.finish();
    if (!rest.content.empty()) send_text(rest.content, std::exchange(held_, {}));
    calls_ = std::move(rest.calls);
    if (request_.chat.calls_once && calls_.size() > 1) calls_.resize(1);
  }
  const bool is_cut = end.reason == engine::FinishReason::length;
  const std::string_view status = is_cut ? "incomplete" : "completed";
  if (calls_.empty() && !has_message_) send_text("", {});  // an empty answer is still a message
  // Stored before the client learns of the end, after which it may ask for the response.
  if (keep_) keep_(id("resp", 0), response(status));
  if (request_.chat.streams) {
    if (has_message_) end_message(status);
    for (size_t i = 0; i < calls_.size(); ++i) send_call(i);
    send_response(is_cut ? "response.incomplete" : "response.completed", status);
    stream_.finish();
  } else {
    http::Response response = http::json_response(200, this->response(status));
    response.headers.emplace_back("X-Request-Id", origin_.id);
    response.headers.insert(response.headers.end(), origin_.headers.begin(), origin_.headers.end());
    reply_.send(std::move(response));
  }
  is_done_ = true;
}

void ResponsesCall::on_error(const base::Error& error) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_done_, true)) return;
  if (!is_open_) return reply_.send(openai_error(error));  // the status can still report it
  const bool is_theirs = error.code() == base::ErrorCode::invalid_argument;
  error_ =
      Json::object({{"code", is_theirs ? "invalid_prompt" : "server_error"}, {"message", error.message()}});
  send_response("response.failed", "failed");
  stream_.finish();
}

std::string ResponsesCall::id(std::string_view kind, size_t number) const {
  return std::string(kind) + "_" + origin_.id + (number > 0 ? "_" + std::to_string(number) : "");
}

std::string ResponsesCall::usage() const {
  return "{\"input_tokens\":" + number(end_.prompt_tokens) +
         ",\"input_tokens_details\":{\"cached_tokens\":" + number(end_.known_tokens) +
         ",\"cache_write_tokens\":0},\"output_tokens\":" + number(end_.answer_tokens) +
         ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":" +
         number(end_.prompt_tokens + end_.answer_tokens) + "}";
}

std::string ResponsesCall::part(std::string_view text, const std::vector<AnswerToken>& tokens) const {
  std::string out = "{\"type\":\"output_text\",\"text\":" + as_json(text) + ",\"annotations\":[],";
  append_list(out, "logprobs", tokens, [&](const AnswerToken& t) { append_chances(out, tokenizer_, t); });
  return out + "}";
}

/// The message so far; while in progress, it has no content yet.
std::string ResponsesCall::message(std::string_view status) const {
  return "{\"type\":\"message\",\"id\":" + as_json(id("msg", 0)) + ",\"status\":" + as_json(status) +
         ",\"role\":\"assistant\",\"content\":[" + (status == "in_progress" ? "" : part(text_, tokens_)) +
         "]}";
}

std::string ResponsesCall::call_item(size_t i, bool is_done) const {
  return "{\"type\":\"function_call\",\"id\":" + as_json(id("fc", i + 1)) +
         ",\"call_id\":" + as_json(id("call", i + 1)) + ",\"name\":" + as_json(calls_[i].name) +
         ",\"arguments\":" + as_json(is_done ? calls_[i].arguments : "") +
         ",\"status\":" + (is_done ? "\"completed\"}" : "\"in_progress\"}");
}

std::string ResponsesCall::response(std::string_view status) const {
  const bool has_begun = status == "in_progress", has_failed = status == "failed";
  std::string out = "{\"id\":" + as_json(id("resp", 0)) +
                    ",\"object\":\"response\",\"created_at\":" + number(origin_.created) +
                    ",\"status\":" + as_json(status) + ",\"model\":" + as_json(request_.chat.model) +
                    ",\"output\":[";
  if (!has_begun && has_message_) out += message(has_failed ? "incomplete" : status);
  for (size_t i = 0; i < calls_.size(); ++i) out += (i > 0 || has_message_ ? "," : "") + call_item(i, true);
  out += "],\"error\":" + error_.dump() + ",\"incomplete_details\":";
  out += status == "incomplete" ? "{\"reason\":\"max_output_tokens\"}" : "null";
  out += ",\"usage\":" + (has_begun || has_failed ? "null" : usage());
  // The settings of the request, as members of the same object.
  const std::string settings = request_.settings.dump();
  return out + "," + settings.substr(1);
}

/// Begins the stream; until then, a failure can have a status.
void ResponsesCall::open() {
  if (std::exchange(is_open_, true)) return;
  stream_ = reply_.stream(event_stream_head(origin_.id, origin_.headers));
  send_response("response.created", "in_progress");
  send_response("response.in_progress", "in_progress");
}

void ResponsesCall::send(std::string_view type, const std::string& members) {
  std::string event = "event: ";
  event += type;
  event += "\ndata: {\"type\":\"";
  event += type;
  event += "\",\"sequence_number\":" + number(events_++) + "," + members + "}\n\n";
  stream_.write(std::move(event));
  sent_ns_ = now_ns();
}

void ResponsesCall::send_response(std::string_view type, std::string_view status) {
  open();
  send(type, "\"response\":" + response(status));
}

/// Members that identify the item of an event.
std::string ResponsesCall::place(size_t output) const {
  const bool is_message = has_message_ && output == 0;
  const size_t call = output - (has_message_ ? 1 : 0);
  return "\"item_id\":" + as_json(is_message ? id("msg", 0) : id("fc", call + 1)) +
         ",\"output_index\":" + number(static_cast<int64_t>(output));
}

void ResponsesCall::begin_message() {
  if (std::exchange(has_message_, true) || !request_.chat.streams) return;
  open();
  send("response.output_item.added", "\"output_index\":0,\"item\":" + message("in_progress"));
  send("response.content_part.added", place(0) + ",\"content_index\":0,\"part\":" + part("", {}));
}

/// Adds text to the message, and sends it.
void ResponsesCall::send_text(std::string_view text, const std::vector<AnswerToken>& tokens) {
  begin_message();
  text_ += text;
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  if (!request_.chat.streams || (text.empty() && tokens.empty())) return;
  std::string members = place(0) + ",\"content_index\":0,\"delta\":" + as_json(text) + ",";
  append_list(members, "logprobs", tokens,
              [&](const AnswerToken& t) { append_chances(members, tokenizer_, t); });
  send("response.output_text.delta", members);
}

void ResponsesCall::end_message(std::string_view status) {
  std::string members = place(0) + ",\"content_index\":0,\"text\":" + as_json(text_) + ",";
  append_list(members, "logprobs", tokens_,
              [&](const AnswerToken& t) { append_chances(members, tokenizer_, t); });
  send("response.output_text.done", members);
  send("response.content_part.done", place(0) + ",\"content_index\":0,\"part\":" + part(text_, tokens_));
  send("response.output_item.done", "\"output_index\":0,\"item\":" + message(status));
}

void ResponsesCall::send_call(size_t i) {
  open();
  const size_t output = i + (has_message_ ? 1 : 0);
  const std::string index = "\"output_index\":" + number(static_cast<int64_t>(output));
  send("response.output_item.added", index + ",\"item\":" + call_item(i, false));
  send("response.function_call_arguments.delta",
       place(output) + ",\"delta\":" + as_json(calls_[i].arguments));
  send("response.function_call_arguments.done", place(output) + ",\"name\":" + as_json(calls_[i].name) +
                                                    ",\"arguments\":" + as_json(calls_[i].arguments));
  send("response.output_item.done", index + ",\"item\":" + call_item(i, true));
}

}  // namespace trireme::serve
