// Requests and answers of HTTP/1.1 and gRPC as the load generator sees them.
#include "load/requests/exchange.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <vector>

#include "base/error.h"
#include "base/text/json.h"
#include "http/http2/http2_client.h"
#include "http/parser.h"

namespace trireme::load {
namespace {

using base::Json;

/// What stands behind a member's name and colon; npos if the text has no such member.
size_t value_of(std::string_view json, std::string_view quoted_name) {
  const size_t at = json.find(quoted_name);
  return at == std::string_view::npos ? at : json.find_first_not_of(" :", at + quoted_name.size());
}

bool has_text(const Json& value) { return value.is_string() && !value.as_string().empty(); }

/// Whether a choice of the OpenAI API says only how its answer ended.
bool only_ends(const Json& choice) {
  const Json* reason = choice.find("finish_reason");
  if (reason == nullptr || reason->is_null()) return false;
  const Json* text = choice.find("text");
  if (text != nullptr && has_text(*text)) return false;
  const Json* delta = choice.find("delta");
  if (delta == nullptr || !delta->is_object()) return true;
  const base::JsonObject& members = delta->as_object();
  return std::none_of(members.begin(), members.end(), [](const auto& member) {
    return member.key != "role" && (has_text(member.value) || member.value.is_array());
  });
}

/// Whether an event of the OpenAI API brings nothing of an answer: its end, or what was used. Few events are
/// looked at closely.
bool brings_nothing(std::string_view event) {
  const size_t reason = value_of(event, "\"finish_reason\""), choices = value_of(event, "\"choices\"");
  const bool may_end = reason < event.size() && event[reason] != 'n';
  const bool may_be_use = choices < event.size() && event[choices] == '[' &&
                          event.find_first_not_of(' ', choices + 1) == event.find(']', choices);
  if (!may_end && !may_be_use) return false;
  try {
    const Json json = base::parse_json(event);
    const Json* list = json.find("choices");
    if (list == nullptr || !list->is_array()) return false;
    const base::JsonArray& all = list->as_array();
    return std::all_of(all.begin(), all.end(), only_ends);
  } catch (const base::Error&) {
    return false;  // of another API
  }
}

/// HTTP/1.1. A stream is a body of server-sent events; `data: [DONE]` says the end and is no part, nor is an
/// event of the OpenAI API that brings nothing of an answer.
class HttpExchange : public Exchange {
 public:
  HttpExchange(bool streams, bool keeps_body) : streams_(streams) {
    parser_.discard_body(!streams && !keeps_body);
  }
  void open() override {}
  void begin(const std::string& request) override {
    request_ = request;
    parser_.reset(request.compare(0, 5, "HEAD ") == 0);
    rest_.clear();
    is_over_sent_ = false;
    scanned_ = 0;
    parts_ = 0;
    has_event_ = has_error_event_ = false;
  }
  std::string_view unsent() override { return request_; }
  void sent(size_t bytes) override { request_.remove_prefix(bytes); }
  void receive(std::string_view bytes) override {
    // What the parser cannot use yet, such as half a line of the head, it wants once more with what follows.
    if (!rest_.empty()) bytes = rest_.append(bytes);
    const std::string_view left = bytes.substr(parser_.feed(bytes));
    if (streams_) scan();
    if (!parser_.done()) {
      rest_ = std::string(left);
      return;
    }
    if (!left.empty()) base::fail(base::ErrorCode::unavailable, "more came than the answer");
    rest_.clear();
    is_over_sent_ = request_.empty();
  }
  void receive_end() override {
    if (!parser_.head_done()) base::fail(base::ErrorCode::unavailable, "no answer came");
    parser_.feed_eof();
    if (streams_) scan();
  }
  bool is_done() const override { return parser_.done(); }
  bool has_begun() const override { return parser_.head_done(); }
  int64_t parts() const override { return parts_; }
  Answer answer() const override {
    const http::Received& r = message();
    Answer a{.can_go_on = r.keep_alive && is_over_sent_,
             .body_bytes = static_cast<int64_t>(parser_.body_bytes())};
    if (r.status < 200 || r.status > 299) a.error = "status " + std::to_string(r.status);
    if (a.error.empty() && has_error_event_) a.error = "error in the stream";
    if (a.error.empty() && streams_ && !has_event_) a.error = "no event in the stream";
    return a;
  }
  std::string body() const override { return message().body; }

 private:
  const http::Received& message() const { return const_cast<http::ResponseParser&>(parser_).message(); }

  /// Counts the events that have wholly come and bring something: lines that begin with "data:".
  void scan() {
    const std::string& body = parser_.message().body;
    for (size_t end; (end = body.find('\n', scanned_)) != std::string::npos; scanned_ = end + 1) {
      std::string_view line = std::string_view(body).substr(scanned_, end - scanned_);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(std::min(line.size(), line.find_first_not_of(" ", 5)));
      if (line.starts_with("[DONE]")) continue;
      has_event_ = true;
      if (line.starts_with("{\"error\"")) has_error_event_ = true;
      if (!brings_nothing(line)) ++parts_;
    }
  }

  const bool streams_;
  std::string_view request_;  // what has not been sent of it
  std::string rest_;          // received and not used yet
  http::ResponseParser parser_;
  bool is_over_sent_ = false, has_event_ = false, has_error_event_ = false;
  size_t scanned_ = 0;
  int64_t parts_ = 0;
};

std::string status_name(int status) {
  constexpr std::array<std::string_view, 17> kNames = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto at = static_cast<size_t>(status);
  return at < kNames.size() ? "grpc " + std::string(kNames[at]) : "grpc " + std::to_string(status);
}

/// gRPC: one call at a time on a connection.
class GrpcExchange : public Exchange, private http::Http2Caller {
 public:
  GrpcExchange(bool streams, bool keeps_body, bool is_tls)
      : streams_(streams), keeps_body_(keeps_body), is_tls_(is_tls) {}

  void open() override {
    client_ = std::make_unique<http::Http2Client>(static_cast<http::Http2Caller&>(*this));
  }

  void begin(const std::string& request) override {
    is_done_ = has_begun_ = has_error_message_ = false;
    status_ = kNoStatus;
    http_status_ = 0;
    parts_ = body_bytes_ = 0;
    missing_ = 0;
    head_bytes_ = 0;
    error_.clear();
    message_.clear();
    kept_.clear();
    const size_t blank = request.find("\n\n");
    base::check(blank != std::string::npos, "gRPC request has no fields");
    fields_.assign({{":method", "POST"}, {":scheme", is_tls_ ? "https" : "http"}});
    for (size_t at = 0; at < blank + 1;) {
      const size_t end = request.find('\n', at), colon = request.find(": ", at);
      const std::string_view line = std::string_view(request).substr(at, end - at);
      fields_.emplace_back(line.substr(0, colon - at), line.substr(colon - at + 2));
      at = end + 1;
    }
    if (!client_->begin(fields_, std::string_view(request).substr(blank + 2))) finish("closed");
  }
  std::string_view unsent() override { return client_->unsent(); }
  void sent(size_t bytes) override { client_->sent(bytes); }
  void receive(std::string_view bytes) override {
    if (!client_->receive(bytes)) base::fail(base::ErrorCode::unavailable, "HTTP/2 was broken");
  }
  void receive_end() override { base::fail(base::ErrorCode::unavailable, "the call was cut"); }
  bool is_done() const override { return is_done_; }
  bool has_begun() const override { return has_begun_; }
  int64_t parts() const override { return parts_; }
  Answer answer() const override {
    return {.error = error_, .can_go_on = client_->is_usable(), .body_bytes = body_bytes_};
  }
  std::string body() const override { return error_.empty() ? kept_ : message_; }

 private:
  static constexpr int kNoStatus = -1;

  void on_field(std::string_view name, std::string_view value) override {
    has_begun_ = true;
    int number = kNoStatus;
    std::from_chars(value.data(), value.data() + value.size(), number);
    if (name == "grpc-status") status_ = number;
    if (name == "grpc-message") message_ = value;
    if (name == ":status") http_status_ = number;
  }

  /// Messages are counted when their first byte has come: that is when a reader can begin with them.
  void on_data(std::string_view bytes) override {
    body_bytes_ += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      if (missing_ == 0) {
        head_[head_bytes_++] = static_cast<unsigned char>(bytes.front());
        bytes.remove_prefix(1);
        if (head_bytes_ < head_.size()) continue;
        head_bytes_ = 0;
        missing_ = size_t{head_[1]} << 24 | size_t{head_[2]} << 16 | size_t{head_[3]} << 8 | head_[4];
        ++parts_;
        is_message_start_ = true;
        continue;
      }
      const size_t here = std::min(missing_, bytes.size());
      // ModelStreamInferResponse: field 1 is the error.
      if (streams_ && is_message_start_ && bytes.front() == 0x0a) has_error_message_ = true;
      is_message_start_ = false;
      if (keeps_body_) kept_.append(bytes.substr(0, here));
      bytes.remove_prefix(here);
      missing_ -= here;
    }
  }

  void on_end(uint32_t reset) override {
    if (status_ > 0) return finish(status_name(status_));
    if (http_status_ != 200 && http_status_ != 0) return finish("status " + std::to_string(http_status_));
    if (reset != 0) return finish("reset " + std::to_string(reset));
    if (status_ == kNoStatus) return finish("no grpc-status");
    if (has_error_message_) return finish("error in the stream");
    if (parts_ == 0) return finish("no message");
    finish("");
  }

  void finish(std::string error) {
    error_ = std::move(error);
    is_done_ = true;
  }

  const bool streams_, keeps_body_, is_tls_;
  std::unique_ptr<http::Http2Client> client_;
  std::vector<http::Http2Client::Field> fields_;
  std::array<unsigned char, 5> head_{};  // of a message: compressed, length
  size_t head_bytes_ = 0, missing_ = 0;
  bool is_done_ = false, has_begun_ = false, is_message_start_ = false, has_error_message_ = false;
  int status_ = kNoStatus, http_status_ = 0;
  int64_t parts_ = 0, body_bytes_ = 0;
  std::string error_, message_, kept_;
};

}  // namespace

std::unique_ptr<Exchange> make_exchange(const Target& target, bool keeps_body) {
  if (target.protocol == Protocol::grpc)
    return std::make_unique<GrpcExchange>(target.streams, keeps_body, target.tls != nullptr);
  return std::make_unique<HttpExchange>(target.streams, keeps_body);
}

}  // namespace trireme::load
