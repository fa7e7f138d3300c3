// Content codings over zlib: bounded inflation of requests, fast deflation of responses.
#include "serve/http_coding.h"

#include <zlib.h>

#include <algorithm>

#include "base/error.h"

namespace trireme::serve {
namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib's way to say: 32 KiB window, gzip wrapper
constexpr int kZlibWindow = 15;
constexpr int kRawWindow = -15;

// HTTP's "deflate" is the zlib format, but some clients send bare deflate data.
int window_of(std::string_view coded) {
  const auto byte = [&](size_t i) { return i < coded.size() ? static_cast<unsigned char>(coded[i]) : 0u; };
  if (byte(0) == 0x1f && byte(1) == 0x8b) return kGzipWindow;
  const bool zlib = (byte(0) & 15u) == Z_DEFLATED && (byte(0) * 256 + byte(1)) % 31 == 0;
  return zlib ? kZlibWindow : kRawWindow;
}

struct Inflater {
  z_stream z{};
  explicit Inflater(int window) { base::check(inflateInit2(&z, window) == Z_OK, "zlib cannot start"); }
  ~Inflater() { inflateEnd(&z); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// "q=0", "q=0.0" ... mean: never.
bool refused(std::string_view parameters) {
  const size_t q = parameters.find("q=");
  return q != std::string_view::npos &&
         parameters.find_first_not_of("0. \t", q + 2) == std::string_view::npos;
}

}  // namespace

HttpBytes http_inflate(std::string_view coded, size_t max_bytes) {
  Inflater inflater(window_of(coded));
  z_stream& z = inflater.z;
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(coded.data()));
  z.avail_in = static_cast<uInt>(std::min<size_t>(coded.size(), UINT32_MAX));
  HttpBytes out;
  out.reserve(std::min(max_bytes + 1, std::max<size_t>(coded.size() * 4, 4096)));
  for (;;) {
    // One byte more than allowed is room enough to see that the limit is passed.
    if (out.size() == out.capacity()) out.reserve(std::min(max_bytes + 1, out.capacity() * 2));
    const size_t room = out.capacity() - out.size();
    z.next_out = reinterpret_cast<Bytef*>(out.data() + out.size());
    z.avail_out = static_cast<uInt>(std::min<size_t>(room, UINT32_MAX));
    const uInt before = z.avail_out;
    const int rc = inflate(&z, Z_NO_FLUSH);
    out.set_size(out.size() + (before - z.avail_out));
    if (out.size() > max_bytes) {
      base::fail(base::ErrorCode::exhausted, "decompressed request body exceeds the limit of ", max_bytes,
                 " bytes");
    }
    if (rc == Z_STREAM_END) break;
    base::require(rc == Z_OK && (z.avail_in > 0 || z.avail_out == 0), "compressed request body is damaged");
  }
  base::require(z.avail_in == 0, "compressed request body is followed by other bytes: ", z.avail_in);
  return out;
}

std::string http_deflate(std::string_view plain, HttpCoding coding) {
  z_stream z{};
  const int window = coding == HttpCoding::gzip ? kGzipWindow : kZlibWindow;
  const int started = deflateInit2(&z, Z_BEST_SPEED, Z_DEFLATED, window, 8, Z_DEFAULT_STRATEGY);
  base::check(started == Z_OK, "zlib cannot start");
  std::string out(deflateBound(&z, plain.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  z.avail_in = static_cast<uInt>(plain.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  const int rc = deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  base::check(rc == Z_STREAM_END, "zlib cannot compress");
  return out;
}

HttpCoding http_accepted_coding(std::string_view accept_encoding) {
  HttpCoding best = HttpCoding::identity;
  while (!accept_encoding.empty()) {
    const size_t comma = accept_encoding.find(',');
    const std::string_view item = accept_encoding.substr(0, comma);
    accept_encoding =
        comma == std::string_view::npos ? std::string_view() : accept_encoding.substr(comma + 1);
    const size_t semicolon = item.find(';');
    const std::string_view name = trim(item.substr(0, semicolon));
    if (semicolon != std::string_view::npos && refused(item.substr(semicolon + 1))) continue;
    if (http_iequals(name, "gzip") || name == "*") return HttpCoding::gzip;
    if (http_iequals(name, "deflate")) best = HttpCoding::deflate;
  }
  return best;
}

void http_compress(HttpResponse& response, HttpCoding accepted, size_t min_bytes) {
  constexpr size_t kMaxBytes = size_t{1} << 30;  // zlib counts in 32 bits
  if (accepted == HttpCoding::identity || !response.compressible || min_bytes == 0) return;
  const size_t bytes = response.body_bytes();
  if (bytes < min_bytes || bytes > kMaxBytes) return;
  for (const auto& [name, value] : response.headers) {
    if (http_iequals(name, "Content-Encoding")) return;
  }
  std::string plain;
  if (response.body.size() > 1) {
    plain.reserve(bytes);
    for (const HttpBodyPart& part : response.body) plain += part.bytes();
  }
  std::string coded =
      http_deflate(response.body.size() > 1 ? plain : response.body.front().bytes(), accepted);
  if (coded.size() >= bytes) return;
  response.body.clear();
  response.body.emplace_back(std::move(coded));
  response.headers.emplace_back("Content-Encoding", accepted == HttpCoding::gzip ? "gzip" : "deflate");
  response.headers.emplace_back("Vary", "Accept-Encoding");
}

}  // namespace trireme::serve
