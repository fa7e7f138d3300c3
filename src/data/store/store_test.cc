// Tests local stores and the files that patterns select.
#include "data/store/store.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/file.h"
#include "data/readers/test_files.h"
#include "data/store/object_store.h"

namespace trireme::data {
namespace {

using base::ErrorCode;
using Paths = std::vector<std::string>;

ErrorCode code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::internal;
}

TEST(LocalStore, FilesAppearWholeOrNotAtAll) {
  const TestDirectory dir;
  const std::string path = dir.path() + "/new/folder/x";
  const auto store = store_of(path);
  {
    const auto file = store->create(path);
    file->write("half");
  }
  EXPECT_FALSE(store->exists(path));
  EXPECT_TRUE(store->list(dir.path() + "/new/folder").empty());
  const auto file = store->create(path);
  file->write("whole ");
  file->write("content");
  EXPECT_EQ(file->written_bytes(), 13);
  EXPECT_FALSE(store->exists(path));
  file->commit();
  const auto read = store->open("file://" + path);
  ASSERT_EQ(read->size(), 13);
  std::string bytes(7, '\0');
  read->read(6, std::as_writable_bytes(std::span(bytes)));
  EXPECT_EQ(bytes, "content");
  EXPECT_EQ(code_of([&] { read->read(7, std::as_writable_bytes(std::span(bytes))); }),
            ErrorCode::invalid_argument);
  std::filesystem::resize_file(path, 8);
  EXPECT_EQ(code_of([&] { read->read(6, std::as_writable_bytes(std::span(bytes))); }),
            ErrorCode::invalid_argument);
  store->remove(path);
  store->remove(path);
  EXPECT_EQ(code_of([&] { store->open(path); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { store->open(dir.path()); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { store->list(path); }), ErrorCode::not_found);
}

TEST(LocalStore, ListsInTheOrderOfBytes) {
  const TestDirectory dir;
  for (const char* name : {"b", "a", "B", "c/x"}) dir.write(name, name);
  Paths names;
  for (const StoreEntry& entry : store_of(dir.path())->list(dir.path())) {
    names.push_back(entry.path.substr(dir.path().size() + 1) +
                    (entry.is_directory ? "/" : std::to_string(entry.size)));
  }
  EXPECT_EQ(names, (Paths{"B1", "a1", "b1", "c/"}));
}

TEST(ExpandPaths, FilesDirectoriesAndPatterns) {
  const TestDirectory dir;
  for (const char* name :
       {"a/1.csv", "a/2.csv", "a/.hidden.csv", "a/_SUCCESS", "b/year=2024/x.csv", "b/year=2025/x.csv",
        "b/year=2025/deep/y.csv", "b/_tmp/z.csv", "c[1].csv", "top.jsonl"})
    dir.write(name, "x");
  const auto expand = [&](Paths patterns) {
    for (std::string& pattern : patterns) pattern = dir.path() + "/" + pattern;
    Paths files = expand_paths(patterns);
    for (std::string& file : files) file = file.substr(dir.path().size() + 1);
    return files;
  };
  EXPECT_EQ(expand({"a"}), (Paths{"a/1.csv", "a/2.csv"}));
  EXPECT_EQ(expand({"a/"}), (Paths{"a/1.csv", "a/2.csv"}));
  EXPECT_EQ(expand({"a/.hidden.csv", "a/_SUCCESS"}), (Paths{"a/.hidden.csv", "a/_SUCCESS"}));
  EXPECT_EQ(expand({"a/*.csv"}), (Paths{"a/1.csv", "a/2.csv"}));
  EXPECT_EQ(expand({"a/.*.csv"}), (Paths{"a/.hidden.csv"}));
  EXPECT_EQ(expand({"a/[2-9].csv", "a"}), (Paths{"a/2.csv", "a/1.csv"}));
  EXPECT_EQ(expand({"b"}), (Paths{"b/year=2024/x.csv", "b/year=2025/deep/y.csv", "b/year=2025/x.csv"}));
  EXPECT_EQ(expand({"b/year=*/x.csv"}), (Paths{"b/year=2024/x.csv", "b/year=2025/x.csv"}));
  EXPECT_EQ(expand({"**/x.csv"}), (Paths{"b/year=2024/x.csv", "b/year=2025/x.csv"}));
  EXPECT_EQ(expand({"**/*.csv"}).size(), 6u);
  EXPECT_EQ(expand({"b/**"}), expand({"b"}));
  EXPECT_EQ(expand({"b/_tmp"}), (Paths{"b/_tmp/z.csv"}));
  EXPECT_EQ(expand({"c[1].csv"}), (Paths{"c[1].csv"}));
  EXPECT_EQ(expand({"*"}), (Paths{"c[1].csv", "top.jsonl"}));
  EXPECT_EQ(code_of([&] { expand({"none.csv"}); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { expand({"a/*.parquet"}); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { expand({"none/*"}); }), ErrorCode::not_found);
}

TEST(ObjectUrls, OptionsBeginBehindTheKey) {
  const ObjectUrl url = parse_object_url("s3://bucket/a/part-?.csv?region=eu&anonymous=true");
  EXPECT_EQ(url.key, "bucket/a/part-?.csv");
  EXPECT_EQ(url.query, "region=eu&anonymous=true");
  EXPECT_EQ(url.with_key("bucket/b"), "s3://bucket/b?region=eu&anonymous=true");
  EXPECT_EQ(parse_object_url("gs://b/what?.csv").query, "");
  EXPECT_EQ(code_of([] { parse_object_url("s3://"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([] { store_of("ftp://host/file"); }), ErrorCode::unsupported);
}

}  // namespace
}  // namespace trireme::data
