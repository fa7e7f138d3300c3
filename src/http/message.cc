// HTTP values: buffer growth, header lookup, error bodies and the table from error codes to statuses.
#include "http/message.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text/json.h"
#include "base/text/shortened.h"

namespace trireme::http {
namespace {

// Beyond this, memory for a body grows with the bytes that arrive. While memory is tight, the bound is lower:
// many announcements alone would take the rest from clients that really send.
constexpr size_t kTrustedBytes = size_t{16} << 20, kTightTrustedBytes = size_t{64} << 10;

}  // namespace

void Bytes::reserve(size_t bytes) {
  if (bytes <= capacity_) return;
  // No value-initialisation: zeroing 600 KB of tensor bytes that recv() then overwrites costs more than
  // parsing them.
  constexpr uintptr_t kLine = 64;
  base::MemoryLease lease(base::MemoryUse::bodies, static_cast<int64_t>(bytes));
  auto grown = std::make_unique_for_overwrite<char[]>(bytes + kLine - 1);
  const uintptr_t wanted = reinterpret_cast<uintptr_t>(grown.get()) + aligned_index_;
  char* first = grown.get() + (kLine - wanted % kLine) % kLine;
  if (size_ > 0) std::memcpy(first, data_, size_);
  memory_ = std::move(grown);
  lease_ = std::move(lease);
  data_ = first;
  capacity_ = bytes;
}

void Bytes::make_room(size_t more, size_t whole) {
  if (size_ + more <= capacity_) return;
  const auto with_ahead = [&](size_t trusted) {
    return std::max(size_ + more, std::min(whole, std::max(trusted, size_ * 2)));
  };
  const bool is_tight = base::process_memory().is_tight();
  try {
    reserve(with_ahead(is_tight ? kTightTrustedBytes : kTrustedBytes));
  } catch (const base::Error& error) {
    // Several bodies may take what is left at a time: nobody is refused for what was announced alone.
    if (is_tight || error.code() != base::ErrorCode::exhausted) throw;
    reserve(with_ahead(kTightTrustedBytes));
  }
}

void Bytes::swap(Bytes& other) noexcept {
  lease_.swap(other.lease_);
  std::swap(memory_, other.memory_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(capacity_, other.capacity_);
  std::swap(aligned_index_, other.aligned_index_);
}

void Bytes::append(std::string_view bytes) {
  if (bytes.empty()) return;
  if (size_ + bytes.size() > capacity_) reserve(std::max(size_ + bytes.size(), capacity_ * 2));
  std::memcpy(data_ + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
}

void Bytes::erase_front(size_t bytes) {
  if (bytes < size_) std::memmove(data_, data_ + bytes, size_ - bytes);
  size_ -= bytes;
}

BodyPart BodyPart::share(size_t offset, size_t count) {
  if (!owner_) {
    struct Kept {
      std::string text;
      base::MemoryLease lease;
    };
    auto kept = std::make_shared<const Kept>(Kept{std::move(text_), std::move(lease_)});
    shared_ = kept->text;
    owner_ = std::move(kept);
  }
  return {shared_.substr(offset, count), owner_};
}

bool iequals(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view Request::header(std::string_view name) const {
  for (const Header& h : headers) {
    if (iequals(h.name, name)) return h.value;
  }
  return {};
}

bool Request::has_header(std::string_view name) const {
  return std::any_of(headers.begin(), headers.end(), [&](const Header& h) { return iequals(h.name, name); });
}

namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string percent_decode(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  // A decoded NUL would cut off a file name when the path reaches the file system, so it is refused like a
  // broken escape.
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    const int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    base::require(high >= 0 && low >= 0, "broken percent escape in URL: ", text);
    base::require(high + low > 0, "NUL byte in URL: ", text);
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

size_t Response::body_bytes() const {
  size_t total = 0;
  for (const BodyPart& part : body) total += part.bytes().size();
  return total;
}

Response text_response(int status, std::string body, std::string_view content_type) {
  Response response;
  response.status = status;
  response.headers.emplace_back("Content-Type", content_type);
  response.body.emplace_back(std::move(body));
  return response;
}

Response json_response(int status, std::string body) {
  return text_response(status, std::move(body), "application/json");
}

Response error_response(int status, std::string_view message) {
  return json_response(status, "{\"error\":" + json_quote(base::shortened(message)) + "}");
}

Response error_response(const base::Error& error) {
  Response response = error_response(status_of(error.code()), error.message());
  // 429 and 503 mean "later": clients that honour Retry-After back off instead of hammering a full queue.
  const bool retry =
      error.code() == base::ErrorCode::exhausted || error.code() == base::ErrorCode::unavailable;
  if (retry) response.headers.emplace_back("Retry-After", "1");
  return response;
}

int status_of(base::ErrorCode code) {
  switch (code) {
    case base::ErrorCode::invalid_argument: return 400;
    case base::ErrorCode::not_found: return 404;
    case base::ErrorCode::unsupported: return 501;
    case base::ErrorCode::exhausted: return 429;
    case base::ErrorCode::unavailable: return 503;
    case base::ErrorCode::internal: return 500;
  }
  return 500;
}

std::string_view reason_of(int status) {
  // RFC 9110 section 15. Clients ignore the phrase, but people who read traces do not.
  struct Row {
    int status;
    std::string_view reason;
  };
  static constexpr std::array<Row, 31> kReasons = {{
      {100, "Continue"},
      {101, "Switching Protocols"},
      {200, "OK"},
      {201, "Created"},
      {202, "Accepted"},
      {204, "No Content"},
      {206, "Partial Content"},
      {301, "Moved Permanently"},
      {302, "Found"},
      {304, "Not Modified"},
      {307, "Temporary Redirect"},
      {308, "Permanent Redirect"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {406, "Not Acceptable"},
      {408, "Request Timeout"},
      {409, "Conflict"},
      {411, "Length Required"},
      {413, "Content Too Large"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  }};
  for (const Row& row : kReasons) {
    if (row.status == status) return row.reason;
  }
  return "Unknown";
}

std::string json_quote(std::string_view text) {
  std::string out;
  base::append_json(out, text);
  return out;
}

}  // namespace trireme::http
