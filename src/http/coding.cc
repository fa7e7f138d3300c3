// Content codings over zlib: bounded inflation of requests, fast deflation of responses.
#include "http/coding.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace trireme::http {
namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib's encoding of a 32 KiB window with a gzip wrapper
constexpr int kZlibWindow = 15;
constexpr int kRawWindow = -15;

// HTTP's "deflate" means the zlib format, but some clients send raw deflate data.
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

// The weight in an item's parameters ("q=0.5"); 1 if there is none, and 0 (never) if it is not a number.
double weight_of(std::string_view parameters) {
  while (!parameters.empty()) {
    const size_t semicolon = std::min(parameters.find(';'), parameters.size());
    const std::string_view item = trim(parameters.substr(0, semicolon));
    parameters.remove_prefix(std::min(semicolon + 1, parameters.size()));
    if (item.size() < 2 || !iequals(item.substr(0, 2), "q=")) continue;
    double weight = 0;
    const auto [end, error] = std::from_chars(item.data() + 2, item.data() + item.size(), weight);
    const bool is_weight = error == std::errc() && end == item.data() + item.size();
    return is_weight && weight > 0 ? std::min(weight, 1.0) : 0;
  }
  return 1;
}

}  // namespace

size_t most_inflated(size_t coded_bytes, size_t max_bytes) {
  constexpr size_t kAlways = size_t{4} << 20, kTimes = 128;
  return std::min(max_bytes, std::max(kAlways, coded_bytes * kTimes));
}

Bytes inflate_body(std::string_view coded, size_t max_bytes) {
  std::optional<Bytes> plain = inflate_within(coded, max_bytes);
  if (!plain) {
    base::fail(base::ErrorCode::exhausted,
               "decompressed request body exceeds the maximum allowed input size of ",
               most_inflated(coded.size(), max_bytes), " bytes");
  }
  return std::move(*plain);
}

std::optional<Bytes> inflate_within(std::string_view coded, size_t max_bytes) {
  max_bytes = most_inflated(coded.size(), max_bytes);
  const int window = window_of(coded);
  Inflater inflater(window);
  z_stream& z = inflater.z;
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(coded.data()));
  z.avail_in = static_cast<uInt>(std::min<size_t>(coded.size(), UINT32_MAX));
  Bytes out;
  out.reserve(std::min(max_bytes + 1, std::max<size_t>(coded.size() * 4, 4096)));
  for (;;) {
    // One byte of room beyond the limit suffices to detect that the limit is exceeded.
    if (out.size() == out.capacity()) out.reserve(std::min(max_bytes + 1, out.capacity() * 2));
    const size_t room = out.capacity() - out.size();
    z.next_out = reinterpret_cast<Bytef*>(out.data() + out.size());
    z.avail_out = static_cast<uInt>(std::min<size_t>(room, UINT32_MAX));
    const uInt before = z.avail_out;
    const int rc = inflate(&z, Z_NO_FLUSH);
    out.set_size(out.size() + (before - z.avail_out));
    if (out.size() > max_bytes) return std::nullopt;
    // RFC 1952 section 2.2: a gzip stream may consist of several members, which are read as one body.
    if (rc == Z_STREAM_END && z.avail_in > 0 && window == kGzipWindow && *z.next_in == 0x1f) {
      base::check(inflateReset(&z) == Z_OK, "zlib cannot start");
      continue;
    }
    if (rc == Z_STREAM_END) break;
    base::require(rc == Z_OK && (z.avail_in > 0 || z.avail_out == 0), "compressed request body is damaged");
  }
  base::require(z.avail_in == 0, "compressed request body is followed by other bytes: ", z.avail_in);
  return out;
}

std::string deflate_body(std::string_view plain, Coding coding) {
  z_stream z{};
  const int window = coding == Coding::gzip ? kGzipWindow : kZlibWindow;
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

// RFC 9110 section 12.5.3: chooses the named coding of the largest weight. "*" stands for all codings not
// named; a coding that is neither named nor covered by "*" is not used, except identity.
Coding accepted_coding(std::string_view accept_encoding) {
  constexpr double kUnnamed = -1;
  double gzip = kUnnamed, deflate = kUnnamed, identity = kUnnamed, others = kUnnamed;
  while (!accept_encoding.empty()) {
    const size_t comma = std::min(accept_encoding.find(','), accept_encoding.size());
    const std::string_view item = accept_encoding.substr(0, comma);
    accept_encoding.remove_prefix(std::min(comma + 1, accept_encoding.size()));
    const size_t semicolon = std::min(item.find(';'), item.size());
    const std::string_view name = trim(item.substr(0, semicolon));
    const double weight = weight_of(item.substr(std::min(semicolon + 1, item.size())));
    if (iequals(name, "gzip") || iequals(name, "x-gzip")) gzip = weight;
    if (iequals(name, "deflate")) deflate = weight;
    if (iequals(name, "identity")) identity = weight;
    if (name == "*") others = weight;
  }
  if (gzip == kUnnamed) gzip = others;
  if (deflate == kUnnamed) deflate = others;
  const double best = std::max(gzip, deflate);
  if (best <= 0 || best < identity) return Coding::identity;
  return gzip >= deflate ? Coding::gzip : Coding::deflate;
}

void compress_response(Response& response, Coding accepted, size_t min_bytes) {
  constexpr size_t kMaxBytes = size_t{1} << 30;  // zlib's byte counts have 32 bits
  if (accepted == Coding::identity || !response.compressible || min_bytes == 0) return;
  const size_t bytes = response.body_bytes();
  if (bytes < min_bytes || bytes > kMaxBytes) return;
  for (const auto& [name, value] : response.headers) {
    if (iequals(name, "Content-Encoding")) return;
  }
  // Memory for the copy and the coded form; if it is not available, the answer is sent without coding.
  base::MemoryLease lease(base::MemoryUse::answers, 0);
  if (!lease.try_resize(static_cast<int64_t>(bytes) * (response.body.size() > 1 ? 2 : 1))) return;
  std::string plain;
  if (response.body.size() > 1) {
    plain.reserve(bytes);
    for (const BodyPart& part : response.body) plain += part.bytes();
  }
  std::string coded =
      deflate_body(response.body.size() > 1 ? plain : response.body.front().bytes(), accepted);
  if (coded.size() >= bytes) return;
  lease = base::MemoryLease();
  response.body.clear();
  response.body.emplace_back(std::move(coded));
  response.headers.emplace_back("Content-Encoding", accepted == Coding::gzip ? "gzip" : "deflate");
  response.headers.emplace_back("Vary", "Accept-Encoding");
}

}  // namespace trireme::http
