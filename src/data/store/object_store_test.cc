// Uploads that are given up, for stores whose streams can be aborted and for those whose streams cannot.
#if TRIREME_ARROW
#include "data/store/object_store.h"

#include <arrow/io/interfaces.h>
#include <arrow/result.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace trireme::data {
namespace {

/// What became of an upload.
struct Upload {
  std::string bytes;
  bool is_complete = false, is_aborted = false;
};

/// Any end but Abort() completes the upload, as Arrow's streams of object stores do.
class UploadStream : public arrow::io::OutputStream {
 public:
  explicit UploadStream(Upload& upload) : upload_(upload) {}
  ~UploadStream() override { (void)end(); }

  arrow::Status Close() override { return end(); }
  bool closed() const override { return is_closed_; }
  arrow::Result<int64_t> Tell() const override { return static_cast<int64_t>(upload_.bytes.size()); }
  arrow::Status Write(const void* data, int64_t bytes) override {
    upload_.bytes.append(static_cast<const char*>(data), static_cast<size_t>(bytes));
    return arrow::Status::OK();
  }

 protected:
  arrow::Status end() {
    if (!is_closed_) upload_.is_complete = true;
    is_closed_ = true;
    return arrow::Status::OK();
  }
  Upload& upload_;
  bool is_closed_ = false;
};

class AbortableStream : public UploadStream {
 public:
  using UploadStream::UploadStream;
  arrow::Status Abort() override {
    upload_.is_aborted = is_closed_ = true;
    return arrow::Status::OK();
  }
};

TEST(ObjectWriter, WhatIsGivenUpNeverAppears) {
  // Static: the stream of gs:// is kept until the process ends.
  static Upload gs, s3;
  make_object_writer(std::make_shared<UploadStream>(gs), "gs://bucket/part")->write("half");
  EXPECT_EQ(gs.bytes, "half");
  EXPECT_FALSE(gs.is_complete);
  make_object_writer(std::make_shared<AbortableStream>(s3), "s3://bucket/part")->write("half");
  EXPECT_FALSE(s3.is_complete);
  EXPECT_TRUE(s3.is_aborted);
}

TEST(ObjectWriter, WhatIsCommittedAppears) {
  for (const char* url : {"gs://bucket/part", "s3://bucket/part"}) {
    Upload upload;
    const auto writer = make_object_writer(std::make_shared<AbortableStream>(upload), url);
    writer->write("whole ");
    writer->write("content");
    EXPECT_EQ(writer->written_bytes(), 13);
    EXPECT_FALSE(upload.is_complete);
    writer->commit();
    EXPECT_TRUE(upload.is_complete);
    EXPECT_EQ(upload.bytes, "whole content");
  }
}

}  // namespace
}  // namespace trireme::data
#endif
