// Files of clients: what counts towards their limit, and what a server that was killed leaves behind.
#include "serve/jobs/file_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "base/files/file.h"
#include "batch/state/test_directory.h"

namespace trireme::serve {
namespace {

namespace fs = std::filesystem;

class FileStoreTest : public testing::Test {
 protected:
  FileStoreTest() { fs::create_directories(beside_ + "/batch/errors"); }
  ~FileStoreTest() override { fs::remove_all(root_); }

  void put(const std::string& path, size_t bytes) const { batch::overwrite(path, std::string(bytes, 'x')); }

  const std::string root_ = batch::fresh("file_store");
  const std::string files_ = root_ + "/files", beside_ = root_ + "/batches";
};

TEST_F(FileStoreTest, WhatLiesBesideCounts) {
  FileStore store(files_, beside_, 10'000);
  put(beside_ + "/batch/errors/part-00000.jsonl", 6000);
  EXPECT_THROW(store.add("a", "batch", "", std::string(5000, 'a'), 1), base::Error);
  store.add("b", "batch", "", std::string(1000, 'b'), 1);
  EXPECT_TRUE(store.has_room());
  put(beside_ + "/batch/part-00000.jsonl", 3000);
  EXPECT_FALSE(store.has_room());
  // What lies there already may become a file.
  const StoredFile wanted{
      .id = new_id(kFileKind), .name = "out", .purpose = "batch_output", .created_s = 2, .tenant = "ann"};
  store.adopt(beside_ + "/batch/part-00000.jsonl", wanted);
  EXPECT_EQ(store.find(wanted.id, "ann").bytes, 3000);
  EXPECT_FALSE(fs::exists(beside_ + "/batch/part-00000.jsonl"));
  // And once more, by a server that does not know that it did so before.
  put(beside_ + "/batch/part-00000.jsonl", 2000);
  store.adopt(beside_ + "/batch/part-00000.jsonl", wanted);
  ASSERT_EQ(store.list("ann").size(), 1u);
  EXPECT_EQ(store.list("ann")[0].bytes, 2000);
}

TEST_F(FileStoreTest, HalfWrittenFilesGo) {
  std::string kept;
  {
    FileStore store(files_, beside_, 10'000);
    kept = store.add("a", "batch", "", "content", 1).id;
  }
  const std::string lost = new_id(kFileKind);
  put(files_ + "/" + lost, 5000);  // of which nobody is told
  put(files_ + "/" + lost + ".tmp.12.0", 5000);
  put(files_ + "/" + lost + ".json.tmp.12.1", 5000);
  FileStore store(files_, beside_, 10'000);
  EXPECT_TRUE(store.has_room());
  EXPECT_EQ(std::distance(fs::directory_iterator(files_), fs::directory_iterator()), 2);
  EXPECT_EQ(base::read_file(store.path_of(store.find(kept, "").id)), "content");
}

}  // namespace
}  // namespace trireme::serve
