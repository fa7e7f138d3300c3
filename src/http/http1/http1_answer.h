// Internal to the HTTP server: answers as the bytes of HTTP/1.1.
#pragma once

#include <string>

#include "http/exchange.h"
#include "http/socket.h"

namespace trireme::http {

/// Unsent bytes that hold back the pieces of a stream: the rest stays where its size is visible.
constexpr size_t kStreamWindow = size_t{256} << 10;

/// Writes an exchange's whole answer; parts too large to be worth a copy are queued as they are.
void write_answer(Exchange& exchange, const std::string& date_line, Output& out);

/// Writes what there is of a stream's head and pieces, unless too much waits already. True when the stream
/// has ended and all of it is in `out`.
bool write_stream(Exchange& exchange, const std::string& date_line, Output& out);

}  // namespace trireme::http
