// Opens data files; unpacks gzip member by member, within a limit that a hostile file cannot exceed.
#include "data/dataset/source_file.h"

#include <zlib.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"

namespace trireme::data {

namespace fs = std::filesystem;
using base::require;

namespace {

constexpr int kGzipWindow = 15 + 16;  // zlib's encoding of a 32 KiB window with a gzip wrapper

struct Inflater {
  z_stream z{};
  Inflater() { base::check(inflateInit2(&z, kGzipWindow) == Z_OK, "zlib cannot start"); }
  ~Inflater() { inflateEnd(&z); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

bool looks_like_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

/// Unpacks members one after another. Each costs in proportion to its own bytes, however many there are.
class Unpacker {
 public:
  Unpacker(size_t packed_bytes, size_t limit)
      : limit_(limit), first_bytes_(std::min(limit + 1, packed_bytes * 4 + 4096)) {}

  /// Returns how much of `packed` the member took.
  size_t member(std::string_view packed) {
    z_stream& z = inflater_.z;
    base::check(inflateReset(&z) == Z_OK, "zlib cannot start again");
    for (size_t taken = 0;;) {
      // One byte of room beyond the limit suffices to detect that the limit is exceeded.
      if (filled_ == out_.size()) out_.resize(std::min(limit_ + 1, std::max(out_.size() * 2, first_bytes_)));
      const auto in = static_cast<uInt>(std::min<size_t>(packed.size() - taken, UINT32_MAX));
      const auto room = static_cast<uInt>(std::min<size_t>(out_.size() - filled_, UINT32_MAX));
      z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));
      z.avail_in = in;
      z.next_out = reinterpret_cast<Bytef*>(out_.data() + filled_);
      z.avail_out = room;
      const int rc = inflate(&z, Z_NO_FLUSH);
      taken += in - z.avail_in;
      filled_ += room - z.avail_out;
      if (filled_ > limit_)
        base::fail(base::ErrorCode::exhausted, "unpacked data exceeds the limit of ", limit_, " bytes");
      if (rc == Z_STREAM_END) return taken;
      require(rc != Z_BUF_ERROR || z.avail_out == 0, "gzip data is cut off");
      require(rc == Z_OK || rc == Z_BUF_ERROR, "gzip data is damaged", z.msg == nullptr ? "" : ": ",
              z.msg == nullptr ? "" : z.msg);
    }
  }
  std::string take() {
    out_.resize(filled_);
    out_.shrink_to_fit();
    return std::move(out_);
  }

 private:
  const size_t limit_, first_bytes_;
  Inflater inflater_;
  std::string out_;
  size_t filled_ = 0;
};

}  // namespace

std::string gunzip(std::string_view packed, int64_t limit_bytes) {
  require(looks_like_gzip(packed), "not gzip data");
  Unpacker unpacker(packed.size(), static_cast<size_t>(limit_bytes));
  while (looks_like_gzip(packed)) packed.remove_prefix(unpacker.member(packed));
  // Tapes and some writers pad with zeros; other bytes must not be dropped silently.
  require(packed.find_first_not_of('\0') == std::string_view::npos,
          "gzip data is followed by other bytes: ", packed.size());
  return unpacker.take();
}

SourceFile open_source(const std::string& path, int64_t limit_bytes) {
  auto mapped = base::MappedFile::open(path);
  SourceFile source{path, mapped->text(), mapped, static_cast<int64_t>(mapped->size()), false};
  if (!looks_like_gzip(source.bytes)) return source;
  try {
    auto text = std::make_shared<const std::string>(gunzip(source.bytes, limit_bytes));
    source.bytes = *text;
    source.owner = std::move(text);
    source.was_gzip = true;
  } catch (const base::Error& e) {
    throw e.with("'" + path + "'");
  }
  return source;
}

std::string base_name(const std::string& path) { return fs::path(path).filename().string(); }

std::string_view without_gz(std::string_view path) {
  return path.ends_with(".gz") ? path.substr(0, path.size() - 3) : path;
}

std::vector<std::string> list_directory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) base::fail(base::ErrorCode::not_found, "cannot list '", path, "': ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_directory(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

}  // namespace trireme::data
