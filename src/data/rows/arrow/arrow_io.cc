// Arrow's files and streams on top of the store's, and zstd.
#if TRIREME_ARROW
#include "data/rows/arrow/arrow_io.h"

#include <arrow/api.h>
#include <arrow/io/interfaces.h>
#include <arrow/util/compression.h>
#include <arrow/util/future.h>

#include <algorithm>

#include "base/error.h"
#include "data/readers/arrow_values.h"
#include "data/rows/packed_bytes.h"

namespace trireme::data {
namespace {

class Input : public arrow::io::RandomAccessFile {
 public:
  Input(std::shared_ptr<const StoreFile> file, std::shared_ptr<StoreTrouble> trouble)
      : file_(std::move(file)), trouble_(std::move(trouble)) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return at_; }
  arrow::Status Seek(int64_t position) override {
    at_ = position;
    return arrow::Status::OK();
  }
  arrow::Result<int64_t> GetSize() override { return file_->size(); }
  arrow::Result<int64_t> Read(int64_t bytes, void* out) override {
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(at_, bytes, out));
    at_ += got;
    return got;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t bytes) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, ReadAt(at_, bytes));
    at_ += buffer->size();
    return buffer;
  }
  using arrow::io::RandomAccessFile::ReadAt;
  arrow::Result<int64_t> ReadAt(int64_t position, int64_t bytes, void* out) override {
    if (position < 0 || bytes < 0)
      return arrow::Status::Invalid("file is damaged: read of ", bytes, " at ", position);
    const int64_t count = std::min(bytes, std::max<int64_t>(file_->size() - position, 0));
    if (count == 0) return 0;
    try {
      file_->read(position, {static_cast<std::byte*>(out), static_cast<size_t>(count)});
    } catch (const base::Error& e) {
      trouble_->keep(e);
      return arrow::Status::IOError(e.message());
    }
    return count;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> ReadAt(int64_t position, int64_t bytes) override {
    const int64_t most = std::min(bytes, std::max<int64_t>(file_->size() - position, 0));
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(std::max<int64_t>(most, 0)));
    ARROW_ASSIGN_OR_RAISE(const int64_t got, ReadAt(position, most, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(got));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

 private:
  std::shared_ptr<const StoreFile> file_;
  std::shared_ptr<StoreTrouble> trouble_;
  int64_t at_ = 0;
  bool closed_ = false;
};

class Output : public arrow::io::OutputStream {
 public:
  Output(StoreWriter& to, std::shared_ptr<StoreTrouble> trouble) : to_(to), trouble_(std::move(trouble)) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return to_.written_bytes(); }
  using arrow::io::OutputStream::Write;
  arrow::Status Write(const void* data, int64_t bytes) override {
    try {
      to_.write({static_cast<const char*>(data), static_cast<size_t>(bytes)});
    } catch (const base::Error& e) {
      trouble_->keep(e);
      return arrow::Status::IOError(e.message());
    }
    return arrow::Status::OK();
  }

 private:
  StoreWriter& to_;
  std::shared_ptr<StoreTrouble> trouble_;
  bool closed_ = false;
};

class ZstdBytes : public ByteStream {
 public:
  ZstdBytes(std::unique_ptr<ByteStream> packed, size_t block_bytes)
      : ByteStream(0, block_bytes), packed_(std::move(packed)) {
    auto codec = arrow::util::Codec::Create(arrow::Compression::ZSTD);
    check_arrow(codec.status());
    auto decompressor = (*codec)->MakeDecompressor();
    check_arrow(decompressor.status());
    unpacker_ = *decompressor;
  }

 protected:
  size_t fill(char* out, size_t room) override {
    for (;;) {
      const std::string_view in = packed_->peek(1);
      if (!in_frame_ && in.empty()) return 0;
      base::require(!in.empty() || holds_more_, "zstd data is cut off at byte ", packed_->at());
      if (!in_frame_) check_arrow(unpacker_->Reset());
      in_frame_ = true;
      const auto done =
          unpacker_->Decompress(static_cast<int64_t>(in.size()), reinterpret_cast<const uint8_t*>(in.data()),
                                static_cast<int64_t>(room), reinterpret_cast<uint8_t*>(out));
      base::require(done.ok(), "zstd data is damaged at byte ", packed_->at(), ": ", done.status().message());
      packed_->skip(static_cast<uint64_t>(done->bytes_read));
      in_frame_ = !unpacker_->IsFinished();
      holds_more_ = done->bytes_written == static_cast<int64_t>(room);
      base::require(done->bytes_read > 0 || done->bytes_written > 0 || !in_frame_,
                    "zstd data is cut off at byte ", packed_->at());
      if (done->bytes_written > 0) return static_cast<size_t>(done->bytes_written);
    }
  }

 private:
  std::unique_ptr<ByteStream> packed_;
  std::shared_ptr<arrow::util::Decompressor> unpacker_;
  bool in_frame_ = false;
  bool holds_more_ = false;  // input taken before may still yield bytes
};

}  // namespace

void StoreTrouble::keep(const base::Error& error) {
  error_.with([&](auto& kept) {
    if (!kept) kept = error;
  });
}

void StoreTrouble::check(const arrow::Status& status) const {
  if (status.ok()) return;
  const std::optional<base::Error> kept = error_.copy();
  if (kept) throw *kept;
  check_arrow(status);
}

std::shared_ptr<arrow::io::RandomAccessFile> make_arrow_input(std::shared_ptr<const StoreFile> file,
                                                              std::shared_ptr<StoreTrouble> trouble) {
  return std::make_shared<Input>(std::move(file), std::move(trouble));
}

std::shared_ptr<arrow::io::OutputStream> make_arrow_output(StoreWriter& to,
                                                           std::shared_ptr<StoreTrouble> trouble) {
  return std::make_shared<Output>(to, std::move(trouble));
}

std::unique_ptr<ByteStream> open_zstd(std::unique_ptr<ByteStream> packed, size_t block_bytes) {
  return std::make_unique<ZstdBytes>(std::move(packed), block_bytes);
}

}  // namespace trireme::data
#endif
