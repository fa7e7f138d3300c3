// Content codings of HTTP bodies: gzip and deflate, in both directions, with a bound on what a small body may
// become.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "serve/http_exchange.h"
#include "serve/http_message.h"

namespace trireme::serve {

/// Inflates gzip, zlib or raw deflate data, chosen by its first bytes. Throws invalid_argument on damaged
/// data, exhausted if the result would exceed `max_bytes`.
HttpBytes http_inflate(std::string_view coded, size_t max_bytes);

/// Deflates as gzip or zlib ("deflate" in HTTP), at the fastest level.
std::string http_deflate(std::string_view plain, HttpCoding coding);

/// Best coding an Accept-Encoding value allows; weights of zero are honoured.
HttpCoding http_accepted_coding(std::string_view accept_encoding);

/// Replaces the body by its coded form and sets Content-Encoding, if that is accepted, allowed and pays.
void http_compress(HttpResponse& response, HttpCoding accepted, size_t min_bytes);

}  // namespace trireme::serve
