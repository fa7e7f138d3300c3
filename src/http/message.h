// HTTP values that handlers see: a request that owns its bytes, and a response whose body is a list of owned
// buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory/memory_budget.h"

namespace trireme::http {

/// A growable byte buffer that does not clear what it allocates; moving it keeps the address of its bytes.
class Bytes {
 public:
  Bytes() = default;
  Bytes(Bytes&& other) noexcept { swap(other); }
  Bytes& operator=(Bytes&& other) noexcept {
    Bytes taken(std::move(other));
    swap(taken);
    return *this;
  }

  char* data() { return data_; }
  const char* data() const { return data_; }
  size_t size() const { return size_; }
  size_t capacity() const { return capacity_; }
  bool empty() const { return size_ == 0; }
  std::string_view view() const { return {data_, size_}; }

  /// From the next allocation on, the byte at `index` lies on a 64-byte boundary: what begins there needs no
  /// copy to be computed with.
  void align_at(size_t index) { aligned_index_ = index; }
  /// Makes room for `bytes` in all; keeps the contents. Throws exhausted where the process may not use so
  /// much.
  void reserve(size_t bytes);
  /// Makes room for `more` bytes of a body that is announced to have `whole` bytes in all, and for some
  /// ahead: 16 MiB on the announcement alone (64 KiB while memory is tight), more as bytes arrive. Throws as
  /// reserve().
  void make_room(size_t more, size_t whole);
  void append(std::string_view bytes);
  /// Sets the size to at most capacity(); bytes beyond the old size are whatever was written there.
  void set_size(size_t bytes) { size_ = bytes; }
  /// Removes the first `bytes`, moving the rest to the front.
  void erase_front(size_t bytes);
  void clear() { size_ = 0; }
  void swap(Bytes& other) noexcept;

 private:
  base::MemoryLease lease_;
  std::unique_ptr<char[]> memory_;
  char* data_ = nullptr;  // within memory_
  size_t size_ = 0;
  size_t capacity_ = 0;
  size_t aligned_index_ = 0;
};

struct Header {
  std::string_view name;
  std::string_view value;
};

/// Compares header names and tokens as HTTP does: ASCII letters without case.
bool iequals(std::string_view a, std::string_view b);

/// One received request. Views point into memory that the request owns; moving it keeps them valid.
struct Request {
  std::string_view method;  // as sent: "GET"
  std::string_view target;  // as sent, still percent-encoded: "/v2/models/m?x=1"
  std::string_view path;    // target up to '?'
  std::string_view query;   // after '?', or empty
  std::vector<Header> headers;
  Bytes body;               // after transfer and content decoding
  int64_t begun_ns = 0;     // steady clock, when its first bytes were there
  int64_t received_ns = 0;  // when the last byte was parsed
  bool is_local = false;    // the peer has a loopback address
  std::shared_ptr<const void> own =
      nullptr;  // of a request that the process asks itself: what its handler knows

  /// Value of the first header with this name (any case), or empty.
  std::string_view header(std::string_view name) const;
  bool has_header(std::string_view name) const;

  std::unique_ptr<char[]> head;  // the bytes behind method, target and headers
};

/// Undoes percent-encoding; '+' stays. Throws invalid_argument on a broken escape or an encoded NUL.
std::string percent_decode(std::string_view text);

/// One piece of a response body: bytes of its own, or a view kept alive by an owner (a tensor's buffer,
/// uncopied).
class BodyPart {
 public:
  /// Throws exhausted where the process may not use so much for answers.
  BodyPart(std::string text) : text_(std::move(text)) {
    constexpr size_t kSmallBytes = 4096;  // the account is not for every word
    if (text_.capacity() > kSmallBytes)
      lease_ = base::MemoryLease(base::MemoryUse::answers, static_cast<int64_t>(text_.capacity()));
  }
  BodyPart(std::string_view bytes, std::shared_ptr<const void> owner)
      : shared_(bytes), owner_(std::move(owner)) {}

  std::string_view bytes() const { return owner_ ? shared_ : std::string_view(text_); }
  /// A part that looks at `count` bytes of this one from `offset` on; both keep them.
  BodyPart share(size_t offset, size_t count);

 private:
  std::string text_;
  base::MemoryLease lease_;  // of the text
  std::string_view shared_;
  std::shared_ptr<const void> owner_;
};

/// A response. Content-Length, Connection, Date and Transfer-Encoding are the server's business, not the
/// handler's.
struct Response {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::vector<BodyPart> body;
  bool compressible = true;  // false keeps the server from honouring Accept-Encoding

  size_t body_bytes() const;
};

/// A response with one body and its type.
Response text_response(int status, std::string body,
                       std::string_view content_type = "text/plain; charset=utf-8");
Response json_response(int status, std::string body);

/// `{"error": message}`, the error form of every KServe route.
Response error_response(int status, std::string_view message);
/// The same for one of our errors; status by http_status, Retry-After on 429 and 503.
Response error_response(const base::Error& error);

/// The one table from error code to HTTP status: 400, 404, 501, 429, 503, 500.
int status_of(base::ErrorCode code);

/// Reason phrase of a status, "Unknown" if there is none.
std::string_view reason_of(int status);

/// `text` between quotes with the escapes JSON needs; bytes that are not UTF-8 pass through.
std::string json_quote(std::string_view text);

}  // namespace trireme::http
