// HTTP/1.1 parsing: adapters that receive Beast's parser callbacks without its header containers.
#include "http/parser.h"

// Beast 1.74 asserts that five bytes of a last chunk's header are present when it resumes. A client that
// sends "0\r\n" and then one byte at a time violates this harmlessly: the code after the assertion asks for
// more bytes.
#define BOOST_DISABLE_ASSERTS

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <charconv>
#include <cstring>
#include <optional>

namespace trireme::http {
namespace {

namespace bhttp = boost::beast::http;
using boost::beast::error_code;
using BeastView = boost::beast::string_view;

std::string_view std_view(BeastView v) { return {v.data(), v.size()}; }

// Chunks of one byte cost far more than they carry; the limit is that of the Triton Inference Server.
constexpr size_t kMaxChunks = 65536;
constexpr std::string_view kTooLarge = " exceeds the maximum allowed input size of ";

}  // namespace

// Reads one head at a time; field views are recorded while Beast walks the caller's buffer.
class RequestReader final : public bhttp::basic_parser<true> {
 public:
  std::string_view method, target;
  std::vector<Header> headers;
  Bytes* body = nullptr;
  int version = 11;
  size_t body_limit_bytes = 0;
  size_t chunks = 0;  ///< of the body, empty ones aside

 private:
  void on_request_impl(bhttp::verb, BeastView m, BeastView t, int v, error_code& ec) override {
    ec = {};
    method = std_view(m);
    target = std_view(t);
    version = v;
  }
  void on_response_impl(int, BeastView, int, error_code& ec) override { ec = bhttp::error::bad_version; }
  void on_field_impl(bhttp::field, BeastView name, BeastView value, error_code& ec) override {
    ec = {};
    if (body == nullptr)
      headers.push_back({std_view(name), std_view(value)});  // later fields are trailers, which are dropped
  }
  void on_header_impl(error_code& ec) override { ec = {}; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code& ec) override { ec = {}; }
  std::size_t on_body_impl(BeastView, error_code& ec) override {
    ec = bhttp::error::unexpected_body;  // bodies of known length bypass this parser
    return 0;
  }
  void on_chunk_header_impl(std::uint64_t size, BeastView, error_code& ec) override {
    ec = {};
    if (size > body_limit_bytes - body->size()) ec = bhttp::error::body_limit;
    if (size > 0 && ++chunks > kMaxChunks) ec = bhttp::error::bad_chunk;
  }
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView bytes, error_code& ec) override {
    ec = {};
    body->append(std_view(bytes));
    return bytes.size();
  }
  void on_finish_impl(error_code& ec) override { ec = {}; }
};

namespace {

ParseError describe(const error_code& ec) {
  if (ec == bhttp::error::body_limit) return {413, "request body is too large"};
  if (ec == bhttp::error::header_limit) return {431, "request header exceeds the limit"};
  if (ec == bhttp::error::bad_version) return {505, "HTTP version is not 1.0 or 1.1"};
  return {400, "malformed HTTP request: " + ec.message()};
}

}  // namespace

struct RequestParser::Impl {
  Limits limits;
  State state = State::head;
  std::optional<RequestReader> reader;
  Request request;
  ParseError error;
  size_t scanned = 0;    // bytes of the unfinished head already searched for its end
  size_t body_left = 0;  // of a body with Content-Length
  bool chunked = false;
  bool keep_alive = true;
  bool expects_continue = false;

  size_t fail(int status, std::string message) {
    error = {status, std::move(message)};
    state = State::failed;
    return 0;
  }
  size_t feed_head(std::string_view input);
  size_t feed_chunks(std::string_view input);
  size_t feed_counted(std::string_view input);
  void make_room(size_t bytes);
  bool adopt_head(std::string_view head);
  bool check_framing();
};

RequestParser::RequestParser(const Limits& limits) : impl_(std::make_unique<Impl>()) {
  impl_->limits = limits;
}
RequestParser::~RequestParser() = default;

RequestParser::State RequestParser::state() const { return impl_->state; }
bool RequestParser::expects_continue() const { return impl_->expects_continue; }
bool RequestParser::keep_alive() const { return impl_->keep_alive; }
bool RequestParser::is_http10() const { return impl_->reader && impl_->reader->version == 10; }
const ParseError& RequestParser::error() const { return impl_->error; }
size_t RequestParser::body_received() const { return impl_->request.body.size(); }

size_t RequestParser::feed(std::string_view input) {
  switch (impl_->state) {
    case State::head: return impl_->feed_head(input);
    case State::body: return impl_->chunked ? impl_->feed_chunks(input) : impl_->feed_counted(input);
    default: return 0;
  }
}

// The whole head is parsed at once, so that all views lie in one buffer.
// Until its end has arrived, nothing is consumed, except blank lines before the request line, which RFC 9112
// section 2.2 tells servers to skip.
size_t RequestParser::Impl::feed_head(std::string_view input) {
  size_t skipped = 0;
  while (scanned == 0 && input.substr(skipped, 2) == "\r\n") skipped += 2;
  input.remove_prefix(skipped);
  if (skipped > 0) return skipped;
  // A TLS hello or other noise would never contain a head's end. (A CR may start a blank line.)
  if (scanned == 0 && !input.empty() && (input[0] <= ' ' || input[0] > '~') && input[0] != '\r')
    return fail(400, "malformed HTTP request: method");
  const size_t end = input.find("\r\n\r\n", scanned);
  const size_t head_bytes = end == std::string_view::npos ? input.size() : end + 4;
  if (head_bytes > limits.max_header_bytes) {
    return fail(431, base::concat("request header exceeds the limit of ", limits.max_header_bytes, " bytes"));
  }
  if (end == std::string_view::npos) {
    scanned = input.size() < 3 ? 0 : input.size() - 3;
    return 0;
  }
  reader.emplace();
  reader->header_limit(static_cast<std::uint32_t>(limits.max_header_bytes));
  reader->body_limit(boost::none);  // the limit is checked here, with a better message
  reader->body_limit_bytes = limits.max_body_bytes;
  reader->headers.reserve(16);
  error_code ec;
  const size_t used = reader->put(boost::asio::const_buffer(input.data(), head_bytes), ec);
  if (ec) {
    error = describe(ec);
    state = State::failed;
    return 0;
  }
  if (used != head_bytes || !reader->is_header_done()) return fail(400, "malformed HTTP request: header");
  if (!adopt_head(input.substr(0, head_bytes))) return 0;
  return head_bytes;
}

struct Target {
  std::string_view origin_form;
  std::optional<std::string_view> authority = {};  // of a target with scheme and host
};

// RFC 9112 section 3.2.2: servers must also accept "http://host/path", the form that clients send to proxies.
Target split_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!iequals(target.substr(0, scheme.size()), scheme)) continue;
    const size_t end = std::min(target.find_first_of("/?", scheme.size()), target.size());
    const std::string_view rest = target.substr(end);
    return {rest.empty() ? "/" : rest, target.substr(scheme.size(), end - scheme.size())};
  }
  return {target};
}

// Whether all characters may be in a host with a port (RFC 3986 section 3.2).
bool is_authority(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    constexpr std::string_view kOthers = "-._~%!$&'()*+,;=:[]";
    return is_letter || (c >= '0' && c <= '9') || kOthers.find(c) != std::string_view::npos;
  });
}

// Copies the head's bytes into the request and moves every view onto the copy.
bool RequestParser::Impl::adopt_head(std::string_view head) {
  if (reader->headers.size() > limits.max_headers) {
    return fail(431, base::concat("request has too many headers: ", reader->headers.size())) != 0;
  }
  request.head = std::make_unique_for_overwrite<char[]>(head.size());
  std::memcpy(request.head.get(), head.data(), head.size());
  bool inside = true;  // false if Beast unfolded a value into its own buffer: folding is obsolete, refused
  const auto rebase = [&](std::string_view v) -> std::string_view {
    if (v.empty()) return {};
    const bool within = v.data() >= head.data() && v.data() + v.size() <= head.data() + head.size();
    inside = inside && within;
    return within ? std::string_view(request.head.get() + (v.data() - head.data()), v.size())
                  : std::string_view();
  };
  request.method = rebase(reader->method);
  request.target = rebase(reader->target);
  request.headers = std::move(reader->headers);
  for (Header& h : request.headers) h = {rebase(h.name), rebase(h.value)};
  if (!inside) return fail(400, "malformed HTTP request: folded header line") != 0;
  const auto [target, authority] = split_target(request.target);
  if (authority) {  // it stands above the Host field
    if (authority->empty()) return fail(400, "malformed HTTP request: a target without a host") != 0;
    for (Header& h : request.headers) {
      if (iequals(h.name, "host")) h.value = *authority;
    }
  }
  const size_t mark = target.find('?');
  request.path = target.substr(0, mark);
  request.query = mark == std::string_view::npos ? std::string_view() : target.substr(mark + 1);
  return check_framing();
}

// Determines the body's length, and refuses framing that two implementations could interpret differently.
bool RequestParser::Impl::check_framing() {
  keep_alive = reader->keep_alive();
  chunked = reader->chunked();
  size_t hosts = 0, encodings = 0, offsets = 0;
  for (const Header& h : request.headers) {
    if (iequals(h.name, "host")) {
      ++hosts;
      if (!is_authority(h.value)) return fail(400, "malformed HTTP request: Host is no host") != 0;
    }
    if (iequals(h.name, limits.binary_offset_header)) ++offsets;
    if (iequals(h.name, "transfer-encoding")) {
      ++encodings;
      if (!iequals(h.value, "chunked")) {
        return fail(501, base::concat("transfer coding is not supported: ", h.value)) != 0;
      }
    }
    if (iequals(h.name, "expect")) {
      if (!iequals(h.value, "100-continue")) {
        return fail(417, base::concat("expectation is not supported: ", h.value)) != 0;
      }
      expects_continue = reader->version == 11;
    }
  }
  if (encodings > 1 || (encodings == 1 && reader->version == 10)) {
    return fail(400, "malformed HTTP request: transfer-encoding") != 0;
  }
  if (hosts > 1 || (hosts == 0 && reader->version == 11)) {
    return fail(400, "malformed HTTP request: exactly one Host header is needed") != 0;
  }
  if (offsets > 1) {
    return fail(400, base::concat("malformed HTTP request: more than one ", limits.binary_offset_header)) !=
           0;
  }
  if (request.method == "CONNECT") return fail(501, "method is not supported: CONNECT") != 0;
  const boost::optional<std::uint64_t> length = reader->content_length();
  if (length && *length > limits.max_body_bytes) {
    const std::string size =
        base::concat(offsets > 0 ? "request size of " : "request JSON size of ", *length);
    return fail(413, base::concat(size, " bytes", kTooLarge, limits.max_body_bytes, " bytes")) != 0;
  }
  body_left = length ? static_cast<size_t>(*length) : 0;
  const std::string_view offset = request.header(limits.binary_offset_header);
  size_t binary_offset = 0;
  std::from_chars(offset.data(), offset.data() + offset.size(), binary_offset);  // refused later if malformed
  request.body.align_at(binary_offset);
  reader->body = &request.body;
  state = chunked || body_left > 0 ? State::body : State::done;
  return true;
}

size_t RequestParser::Impl::feed_chunks(std::string_view input) {
  if (input.empty()) return 0;
  reader->eager(true);
  error_code ec;
  const size_t used = reader->put(boost::asio::const_buffer(input.data(), input.size()), ec);
  if (ec && ec != bhttp::error::need_more) {
    error = describe(ec);
    if (ec == bhttp::error::body_limit) {
      error.message = base::concat("request JSON size", kTooLarge, limits.max_body_bytes, " bytes");
    }
    if (reader->chunks > kMaxChunks) {
      error.message = base::concat("Chunked request body exceeds maximum of ", kMaxChunks,
                                   " non-empty chunks. Send fewer or larger HTTP chunks.");
    }
    state = State::failed;
    return used;
  }
  if (reader->is_done()) state = State::done;
  // The rest is one unfinished chunk line or trailer; its length must be limited.
  if (state == State::body && input.size() - used > limits.max_header_bytes) {
    fail(400, "malformed HTTP request: chunk header is too long");
  }
  return used;
}

// Makes room for at least `bytes` more of a body of which `body_left` bytes are missing.
void RequestParser::Impl::make_room(size_t bytes) {
  request.body.make_room(bytes, request.body.size() + body_left);
}

size_t RequestParser::Impl::feed_counted(std::string_view input) {
  const size_t used = std::min(input.size(), body_left);
  make_room(used);
  request.body.append(input.substr(0, used));
  body_left -= used;
  if (body_left == 0) state = State::done;
  return used;
}

size_t RequestParser::body_missing() const {
  return impl_->state == State::body && !impl_->chunked ? impl_->body_left : 0;
}

char* RequestParser::body_tail(size_t& missing) {
  missing = 0;
  if (impl_->state != State::body || impl_->chunked) return nullptr;
  Bytes& body = impl_->request.body;
  impl_->make_room(1);
  missing = std::min(impl_->body_left, body.capacity() - body.size());
  return body.data() + body.size();
}

void RequestParser::body_filled(size_t bytes) {
  Bytes& body = impl_->request.body;
  body.set_size(body.size() + bytes);
  impl_->body_left -= bytes;
  if (impl_->body_left == 0) impl_->state = State::done;
}

void RequestParser::drop_body() {
  impl_->request.body = Bytes();
  impl_->state = State::failed;
}

Request RequestParser::take() {
  Request out = std::move(impl_->request);
  impl_->request = Request();
  impl_->state = State::head;
  impl_->scanned = 0;
  impl_->expects_continue = false;
  return out;
}

class ResponseReader final : public bhttp::basic_parser<false> {
 public:
  Received* message = nullptr;
  size_t body_bytes = 0;
  bool keep_body = true;

 private:
  void on_request_impl(bhttp::verb, BeastView, BeastView, int, error_code& ec) override {
    ec = bhttp::error::bad_method;
  }
  void on_response_impl(int status, BeastView, int, error_code& ec) override {
    ec = {};
    message->status = status;
  }
  void on_field_impl(bhttp::field, BeastView name, BeastView value, error_code& ec) override {
    ec = {};
    message->headers.emplace_back(std_view(name), std_view(value));
  }
  void on_header_impl(error_code& ec) override { ec = {}; }
  void on_body_init_impl(const boost::optional<std::uint64_t>& length, error_code& ec) override {
    ec = {};
    if (keep_body && length) message->body.reserve(std::min<size_t>(*length, size_t{16} << 20));
  }
  std::size_t keep(BeastView bytes) {
    body_bytes += bytes.size();
    if (keep_body) message->body.append(bytes.data(), bytes.size());
    return bytes.size();
  }
  std::size_t on_body_impl(BeastView bytes, error_code& ec) override {
    ec = {};
    return keep(bytes);
  }
  void on_chunk_header_impl(std::uint64_t, BeastView, error_code& ec) override { ec = {}; }
  std::size_t on_chunk_body_impl(std::uint64_t, BeastView bytes, error_code& ec) override {
    ec = {};
    return keep(bytes);
  }
  void on_finish_impl(error_code& ec) override { ec = {}; }
};

struct ResponseParser::Impl {
  size_t max_body_bytes;
  std::optional<ResponseReader> reader;
  Received message;
  bool head_request = false;
  bool keep_body = true;

  void start() {
    message.status = 0;
    message.headers.clear();
    message.body.clear();
    reader.emplace();
    reader->eager(true);
    reader->skip(head_request);
    reader->header_limit(1 << 20);
    reader->body_limit(max_body_bytes);
    reader->message = &message;
    reader->keep_body = keep_body;
  }
};

std::string_view Received::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (iequals(key, name)) return value;
  }
  return {};
}

ResponseParser::ResponseParser(size_t max_body_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->max_body_bytes = max_body_bytes;
  impl_->start();
}
ResponseParser::~ResponseParser() = default;

void ResponseParser::reset(bool head_request) {
  impl_->head_request = head_request;
  impl_->start();
}

size_t ResponseParser::feed(std::string_view input) {
  size_t used = 0;
  while (used < input.size() && !done()) {
    error_code ec;
    const size_t step =
        impl_->reader->put(boost::asio::const_buffer(input.data() + used, input.size() - used), ec);
    used += step;
    if (ec == bhttp::error::need_more) break;
    if (ec) base::fail(base::ErrorCode::unavailable, "malformed HTTP response: ", ec.message());
    const bool interim = impl_->message.status / 100 == 1 && impl_->message.status != 101;
    if (impl_->reader->is_done() && interim) impl_->start();
  }
  if (done()) impl_->message.keep_alive = impl_->reader->keep_alive();
  return used;
}

void ResponseParser::feed_eof() {
  error_code ec = bhttp::error::partial_message;
  if (impl_->reader->got_some()) impl_->reader->put_eof(ec);
  if (ec)
    base::fail(base::ErrorCode::unavailable, "server closed the connection before the response was complete");
  impl_->message.keep_alive = false;
}

bool ResponseParser::done() const { return impl_->reader->is_done(); }
bool ResponseParser::head_done() const { return impl_->reader->is_header_done(); }
void ResponseParser::discard_body(bool on) {
  impl_->keep_body = !on;
  impl_->reader->keep_body = !on;
}
size_t ResponseParser::body_bytes() const { return impl_->reader->body_bytes; }
Received& ResponseParser::message() { return impl_->message; }

}  // namespace trireme::http
