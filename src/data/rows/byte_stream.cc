// Buffered reading, gzip, and the hash that identifies a file's content.
#include "data/rows/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/keyed_hash.h"
#include "data/rows/packed_bytes.h"

namespace trireme::data {

using base::require;

std::string_view ByteStream::peek(size_t least) {
  while (tail_ - head_ < least && !ended_) {
    if (head_ > 0) std::memmove(buffer_.data(), buffer_.data() + head_, tail_ - head_);
    tail_ -= head_;
    head_ = 0;
    if (buffer_.size() < tail_ + block_bytes_)
      buffer_.resize(std::max(buffer_.size() * 2, tail_ + block_bytes_));
    const size_t got = fill(buffer_.data() + tail_, buffer_.size() - tail_);
    tail_ += got;
    ended_ = got == 0;
  }
  return {buffer_.data() + head_, tail_ - head_};
}

void ByteStream::skip(uint64_t bytes) {
  const auto held = static_cast<size_t>(std::min<uint64_t>(bytes, tail_ - head_));
  head_ += held;
  at_ += held;
  bytes -= held;
  if (bytes == 0 || ended_) return;
  const uint64_t passed = pass(bytes);
  at_ += passed;
  bytes -= passed;
  while (bytes > 0) {
    const auto got = static_cast<size_t>(std::min<uint64_t>(bytes, peek(1).size()));
    if (got == 0) return;
    head_ += got;
    at_ += got;
    bytes -= got;
  }
}

namespace {

class PlainBytes : public ByteStream {
 public:
  PlainBytes(std::shared_ptr<const StoreFile> file, uint64_t begin)
      : ByteStream(begin, static_cast<size_t>(file->block_bytes())), file_(std::move(file)), next_(begin) {}

 protected:
  size_t fill(char* out, size_t room) override {
    const auto size = static_cast<uint64_t>(file_->size());
    if (next_ >= size) return 0;
    const auto count = static_cast<size_t>(std::min<uint64_t>(room, size - next_));
    file_->read(static_cast<int64_t>(next_), std::as_writable_bytes(std::span(out, count)));
    next_ += count;
    return count;
  }
  uint64_t pass(uint64_t bytes) override {
    const auto size = static_cast<uint64_t>(file_->size());
    const uint64_t passed = next_ < size ? std::min(bytes, size - next_) : 0;
    next_ += passed;
    return passed;
  }

 private:
  std::shared_ptr<const StoreFile> file_;
  uint64_t next_;
};

class GzipBytes : public ByteStream {
 public:
  GzipBytes(std::unique_ptr<ByteStream> packed, size_t block_bytes)
      : ByteStream(0, block_bytes), packed_(std::move(packed)) {
    constexpr int kGzipWindow = 15 + 16;  // zlib's encoding of a 32 KiB window with a gzip wrapper
    base::check(inflateInit2(&z_, kGzipWindow) == Z_OK, "zlib cannot start");
  }
  ~GzipBytes() override { inflateEnd(&z_); }

 protected:
  size_t fill(char* out, size_t room) override {
    const auto most = static_cast<uInt>(std::min<size_t>(room, size_t{1} << 30));
    for (;;) {
      if (!in_member_ && !begin_member()) return 0;
      const std::string_view in = packed_->peek(1);
      require(!in.empty(), "gzip data is cut off at byte ", packed_->at());
      z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(in.data()));
      z_.avail_in = static_cast<uInt>(std::min<size_t>(in.size(), size_t{1} << 30));
      const uInt offered = z_.avail_in;
      z_.next_out = reinterpret_cast<Bytef*>(out);
      z_.avail_out = most;
      const int rc = inflate(&z_, Z_NO_FLUSH);
      require(rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR, "gzip data is damaged at byte ",
              packed_->at(), z_.msg == nullptr ? "" : ": ", z_.msg == nullptr ? "" : z_.msg);
      packed_->skip(offered - z_.avail_in);
      in_member_ = rc != Z_STREAM_END;
      if (z_.avail_out < most) return most - z_.avail_out;
    }
  }

 private:
  /// False at the end, which zeros may pad; other bytes after a member must not be dropped silently.
  bool begin_member() {
    std::string_view next = packed_->peek(2);
    if (next.starts_with("\x1f\x8b")) {
      base::check(inflateReset(&z_) == Z_OK, "zlib cannot start again");
      return in_member_ = true;
    }
    for (; !next.empty(); next = packed_->peek(1)) {
      require(next.find_first_not_of('\0') == std::string_view::npos,
              "gzip data is followed by other bytes at byte ", packed_->at());
      packed_->skip(next.size());
    }
    return false;
  }

  std::unique_ptr<ByteStream> packed_;
  z_stream z_{};
  bool in_member_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> open_gzip(std::unique_ptr<ByteStream> packed, size_t block_bytes) {
  return std::make_unique<GzipBytes>(std::move(packed), block_bytes);
}

std::string read_range(const StoreFile& file, int64_t offset, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  file.read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

Packing packing_of(const StoreFile& file) {
  const std::string head = read_range(file, 0, std::min<int64_t>(4, file.size()));
  if (head.starts_with("\x1f\x8b")) return Packing::gzip;
  if (head == "\x28\xb5\x2f\xfd") return Packing::zstd;
  return Packing::none;
}

std::unique_ptr<ByteStream> open_bytes(std::shared_ptr<const StoreFile> file, Packing packing,
                                       uint64_t begin) {
  const auto block = static_cast<size_t>(file->block_bytes());
  auto plain = std::make_unique<PlainBytes>(std::move(file), packing == Packing::none ? begin : 0);
  if (packing == Packing::none) return plain;
  auto unpacked =
      packing == Packing::gzip ? open_gzip(std::move(plain), block) : open_zstd(std::move(plain), block);
  unpacked->skip(begin);
  return unpacked;
}

uint64_t content_id_of(const StoreFile& file, int64_t tail_bytes) {
  constexpr int64_t kWhole = int64_t{1} << 20, kEnd = int64_t{64} << 10, kSample = int64_t{8} << 10;
  constexpr int64_t kSamples = 16;
  base::KeyedHash hash({0, 0});  // with a fixed key, as the hash is stored beside the file's name
  const int64_t size = file.size();
  hash.add(static_cast<uint64_t>(size));
  const auto add = [&](int64_t offset, int64_t bytes) {
    for (const int64_t end = offset + bytes; offset < end; offset += kWhole)
      hash.add(std::string_view(read_range(file, offset, std::min(kWhole, end - offset))));
  };
  if (size <= kWhole) {
    add(0, size);
  } else {
    add(0, kEnd);
    for (int64_t i = 1; i <= kSamples; ++i) add(size / (kSamples + 1) * i, kSample);
    const int64_t tail = std::clamp(tail_bytes, kEnd, size);
    add(size - tail, tail);
  }
  return hash.finish()[0];
}

}  // namespace trireme::data
