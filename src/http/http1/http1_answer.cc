// Writes HTTP/1.1 answers: status line, headers without injection, bodies of known length or in chunks.
#include "http/http1/http1_answer.h"

#include <algorithm>
#include <charconv>

namespace trireme::http {
namespace {

constexpr size_t kGatherBytes = size_t{32} << 10;  // bodies up to this size are copied behind their head
constexpr size_t kCopiedBytes = 4096;              // and so are parts up to this size of larger bodies

void append_number(std::string& out, size_t value, int base = 10) {
  char digits[24];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, base).ptr;
  out.append(digits, end);
}

// A line break in a header value would let data from a handler inject headers.
bool is_header_safe(std::string_view text) {
  return text.find_first_of(std::string_view("\r\n\0", 3)) == text.npos;
}

bool is_framing_header(std::string_view name) {
  return iequals(name, "Content-Length") || iequals(name, "Transfer-Encoding") ||
         iequals(name, "Connection") || iequals(name, "Date");
}

void write_head(Exchange& exchange, size_t body_bytes, const std::string& date_line, std::string& out) {
  const Response& response = exchange.response;
  out += "HTTP/1.1 ";
  append_number(out, static_cast<size_t>(std::clamp(response.status, 100, 999)));
  out += ' ';
  out += reason_of(response.status);
  out += "\r\n";
  out += date_line;
  for (const auto& [name, value] : response.headers) {
    if (is_framing_header(name) || !is_header_safe(name) || !is_header_safe(value)) continue;
    out += name;
    out += ": ";
    out += value;
    out += "\r\n";
  }
  if (exchange.streaming) {
    if (exchange.http10)
      exchange.keep_alive = false;  // HTTP/1.0 has no chunks: closing the connection ends the body
    if (!exchange.http10) out += "Transfer-Encoding: chunked\r\n";
  } else if (response.status != 204 && response.status != 304) {
    out += "Content-Length: ";
    append_number(out, body_bytes);
    out += "\r\n";
  }
  if (!exchange.keep_alive) {
    out += "Connection: close\r\n";
  } else if (exchange.http10) {
    out += "Connection: keep-alive\r\n";
  }
  out += "\r\n";
  exchange.head_written = true;
}

void write_piece(const Exchange& exchange, std::string_view bytes, Output& to) {
  if (bytes.empty() || exchange.head_request) return;
  std::string& out = to.text();
  if (!exchange.http10) {
    append_number(out, bytes.size(), 16);
    out += "\r\n";
  }
  out += bytes;
  if (!exchange.http10) out += "\r\n";
}

}  // namespace

void write_answer(Exchange& exchange, const std::string& date_line, Output& out) {
  const size_t bytes = exchange.response.body_bytes();
  write_head(exchange, bytes, date_line, out.text());
  if (exchange.head_request) return;
  for (BodyPart& part : exchange.response.body) {
    if (bytes <= kGatherBytes || part.bytes().size() <= kCopiedBytes) {
      out.text() += part.bytes();
    } else {
      out.append(std::move(part));
    }
  }
}

bool write_stream(Exchange& exchange, const std::string& date_line, Output& out) {
  if (!exchange.head_written) {
    write_head(exchange, 0, date_line, out.text());
    for (const BodyPart& part : exchange.response.body) write_piece(exchange, part.bytes(), out);
  }
  if (out.bytes() > kStreamWindow) return false;  // the client reads slowly
  write_piece(exchange, exchange.pieces, out);
  exchange.backlog_bytes.fetch_sub(exchange.pieces.size(), std::memory_order_relaxed);
  exchange.pieces.clear();
  exchange.pieces_lease.resize(0);
  if (exchange.aborted) {
    exchange.keep_alive = false;  // no last chunk is sent, so the client sees that the body is incomplete
    return true;
  }
  if (!exchange.finished) return false;
  if (!exchange.http10 && !exchange.head_request) out.text() += "0\r\n\r\n";
  return true;
}

}  // namespace trireme::http
