// Content codings of HTTP bodies: gzip and deflate, in both directions, with a bound on what a small body may
// become.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"
#include "http/message.h"

namespace trireme::http {

/// What a coded body may become, of at most `max_bytes`: 4 MiB, or 128 times its size if that is more. Blanks
/// inflate a thousandfold, and their receiver's work with them.
size_t most_inflated(size_t coded_bytes, size_t max_bytes);

/// Inflates gzip, zlib or raw deflate data, chosen by its first bytes. Throws invalid_argument on damaged
/// data, exhausted if the result would exceed most_inflated().
Bytes inflate_body(std::string_view coded, size_t max_bytes);
/// The same, but nothing where the result would exceed that; exhausted is thrown for want of memory
/// only.
std::optional<Bytes> inflate_within(std::string_view coded, size_t max_bytes);

/// Deflates as gzip or zlib ("deflate" in HTTP), at the fastest level.
std::string deflate_body(std::string_view plain, Coding coding);

/// The coding of most weight in an Accept-Encoding value; gzip among equals.
Coding accepted_coding(std::string_view accept_encoding);

/// Replaces the body by its coded form and sets Content-Encoding, if that is accepted, allowed and pays.
void compress_response(Response& response, Coding accepted, size_t min_bytes);

}  // namespace trireme::http
