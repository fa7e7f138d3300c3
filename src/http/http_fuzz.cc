// Fuzzes HTTP parsing: any bytes are read or refused, and splitting them never changes the result.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "http/coding.h"
#include "http/parser.h"

namespace {

using namespace trireme::http;
using State = RequestParser::State;

// What one connection's bytes mean: each request as text, then the error's status if there is one.
struct Meaning {
  std::vector<std::string> requests;
  int error = 0;
  bool operator==(const Meaning&) const = default;
};

std::string text_of(const Request& r) {
  std::string out = std::string(r.method) + " " + std::string(r.path) + "?" + std::string(r.query) + "\n";
  for (const Header& h : r.headers) out.append(h.name).append("=").append(h.value).append("\n");
  return out.append(r.body.view());
}

// Feeds the parser as a connection does: bytes not consumed are offered again with the next ones. `cuts`
// gives the piece sizes; `direct` fills bodies of known length in place.
Meaning read_all(std::string_view bytes, std::string_view cuts, bool direct) {
  Limits limits;
  limits.max_header_bytes = 512;
  limits.max_headers = 8;
  limits.max_body_bytes = 2000;
  RequestParser parser(limits);
  Meaning meaning;
  std::string waiting;
  size_t cut = 0;
  while (!bytes.empty() && parser.state() != State::failed) {
    const size_t wanted =
        cuts.empty() ? bytes.size() : size_t{1} + static_cast<unsigned char>(cuts[cut++ % cuts.size()]);
    std::string_view piece = bytes.substr(0, wanted);
    bytes.remove_prefix(piece.size());
    size_t missing = 0;
    if (char* tail = direct && waiting.empty() ? parser.body_tail(missing) : nullptr; tail != nullptr) {
      const size_t n = std::min(missing, piece.size());
      piece.copy(tail, n);
      parser.body_filled(n);
      piece.remove_prefix(n);
    }
    waiting += piece;
    for (bool moved = true; moved && parser.state() != State::failed;) {
      const State before = parser.state();
      const size_t used = parser.feed(waiting);
      if (used > waiting.size()) std::abort();
      waiting.erase(0, used);
      moved = used > 0 || parser.state() != before;
      if (parser.state() == State::done) {
        meaning.requests.push_back(text_of(parser.take()));
        moved = true;
      }
    }
  }
  if (parser.state() == State::failed) meaning.error = parser.error().status;
  return meaning;
}

void read_response(std::string_view bytes, std::string_view cuts) {
  ResponseParser parser(2000);
  size_t cut = 0;
  std::string waiting;
  try {
    while (!bytes.empty() && !parser.done()) {
      const size_t wanted =
          cuts.empty() ? bytes.size() : size_t{1} + static_cast<unsigned char>(cuts[cut++ % cuts.size()]);
      waiting += bytes.substr(0, wanted);
      bytes.remove_prefix(std::min(wanted, bytes.size()));
      waiting.erase(0, parser.feed(waiting));
    }
    if (!parser.done()) parser.feed_eof();
  } catch (const trireme::base::Error& e) {
    if (e.code() != trireme::base::ErrorCode::unavailable) std::abort();
  }
}

void read_coded(std::string_view bytes) {
  try {
    if (inflate_body(bytes, 1000).size() > 1000) std::abort();
  } catch (const trireme::base::Error& e) {
    if (e.code() == trireme::base::ErrorCode::internal) std::abort();
  }
  try {
    percent_decode(bytes);
  } catch (const trireme::base::Error&) {
  }
  accepted_coding(bytes);
}

}  // namespace

// The first byte gives the number of cut sizes that follow it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t count = std::min<size_t>(data[0] % 8, size - 1);
  const std::string_view cuts = all.substr(1, count);
  const std::string_view bytes = all.substr(1 + count);
  const Meaning whole = read_all(bytes, {}, false);
  if (!(whole == read_all(bytes, cuts, false))) std::abort();
  if (!(whole == read_all(bytes, cuts, true))) std::abort();
  read_response(bytes, cuts);
  read_coded(bytes);
  return 0;
}
