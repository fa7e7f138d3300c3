// Tests files: written bytes read back, no partial file stays, and untrusted names cannot leave their root.
#include "base/files/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "base/files/inside_path.h"
#include "base/machine/memory.h"

namespace trireme::base {
namespace {

namespace fs = std::filesystem;

class File : public ::testing::Test {
 protected:
  File() : dir_(fs::temp_directory_path() / ("trireme_file_" + std::to_string(::getpid()))) {
    fs::create_directories(dir_ / "root/sub");
  }
  ~File() override { fs::remove_all(dir_); }
  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  static ErrorCode code_of(const std::function<void()>& act) {
    try {
      act();
    } catch (const Error& e) {
      return e.code();
    }
    ADD_FAILURE() << "no error";
    return ErrorCode::internal;
  }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()));
  }

  fs::path dir_;
};

TEST_F(File, WritesReadsAndMaps) {
  for (const std::string& bytes : {std::string(), std::string("x"), std::string(100000, 'y')}) {
    write_file_atomic(path("a"), bytes);
    EXPECT_EQ(read_file(path("a")), bytes);
    EXPECT_EQ(MappedFile(path("a")).text(), bytes);
  }
  EXPECT_EQ(files(), 2u);  // "a" and "root": no temporary file is left
  EXPECT_EQ(code_of([&] { read_file(path("a"), 99999); }), ErrorCode::exhausted);
  EXPECT_FALSE(read_file("/proc/self/status").empty());
}

TEST_F(File, MappingSurvivesReplacement) {
  write_file_atomic(path("a"), "old");
  const auto map = MappedFile::open(path("a"));
  write_file_atomic(path("a"), "newer");
  EXPECT_EQ(map->text(), "old");
  EXPECT_EQ(read_file(path("a")), "newer");
}

TEST_F(File, UncommittedLeavesNothing) {
  write_file_atomic(path("a"), "old");
  {
    AtomicFile file(path("a"));
    file.write("half");
    EXPECT_EQ(file.written_bytes(), 4);
  }
  EXPECT_EQ(read_file(path("a")), "old");
  EXPECT_EQ(files(), 2u);
}

TEST_F(File, FailuresHaveCodes) {
  EXPECT_EQ(code_of([&] { MappedFile map(path("absent")); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { read_file(path("absent")); }), ErrorCode::not_found);
  EXPECT_EQ(code_of([&] { MappedFile map(path("root")); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { read_file(path("root")); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { write_file_atomic(path("absent/x"), "y"); }), ErrorCode::not_found);
}

TEST_F(File, NoRoomIsExhaustedAndKeepsTheOldFile) {
  write_file_atomic(path("a"), "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const ErrorCode code = code_of([&] { write_file_atomic(path("a"), std::string(10000, 'x')); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(code, ErrorCode::exhausted);
  EXPECT_EQ(read_file(path("a")), "old");
  EXPECT_EQ(files(), 2u);
}

TEST_F(File, JoinedNamesStayInside) {
  const std::string root = path("root");
  fs::create_directory_symlink("/etc", dir_ / "root/out");
  fs::create_directory_symlink("sub", dir_ / "root/in");
  fs::create_symlink("loop", dir_ / "root/loop");
  write_file_atomic(path("root/sub/x"), "1");
  EXPECT_EQ(safe_join(root, "sub/x"), root + "/sub/x");
  EXPECT_EQ(safe_join(root, "sub/not_yet"), root + "/sub/not_yet");
  EXPECT_EQ(read_file(safe_join(root, "in/x")), "1");
  EXPECT_EQ(safe_join(root, "a..b"), root + "/a..b");
  for (const std::string& bad : {std::string(), std::string("/etc/passwd"), std::string(".."),
                                 std::string("sub/../../a"), std::string("sub/.."), std::string("a\0b", 3),
                                 std::string("out/passwd"), std::string("out"), std::string("loop")}) {
    EXPECT_EQ(code_of([&] { safe_join(root, bad); }), ErrorCode::invalid_argument) << bad;
  }
  // A sibling directory whose name starts with the root's name is outside the root.
  fs::create_directory(dir_ / "root2");
  fs::create_directory_symlink(dir_ / "root2", dir_ / "root/twin");
  EXPECT_EQ(code_of([&] { safe_join(root, "twin/x"); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { safe_join(path("absent"), "x"); }), ErrorCode::not_found);
}

// In Hugging Face's cache, links of a snapshot may lead into the blobs of the model, and nowhere else.
TEST_F(File, LinksOfACachedSnapshotLeadToItsBlobs) {
  const std::string model = path("root/models--a");
  fs::create_directories(model + "/blobs");
  fs::create_directories(model + "/refs");
  fs::create_directories(model + "/snapshots/1234/onnx");
  write_file_atomic(model + "/blobs/beef", "weights");
  write_file_atomic(model + "/refs/main", "1234");
  write_file_atomic(path("root/secret"), "1");
  const std::string snapshot = model + "/snapshots/1234";
  fs::create_symlink("../../blobs/beef", snapshot + "/part.safetensors");
  fs::create_symlink("../../../blobs/beef", snapshot + "/onnx/data");
  fs::create_symlink("../../refs/main", snapshot + "/refs");
  fs::create_symlink("../../../secret", snapshot + "/out");
  EXPECT_EQ(read_file(safe_join(snapshot, "part.safetensors")), "weights");
  EXPECT_EQ(read_file(safe_join(snapshot, "onnx/data")), "weights");
  EXPECT_EQ(read_file(safe_join(snapshot + "/onnx", "data")), "weights");
  for (const char* bad : {"refs", "out", "../../blobs/beef"})
    EXPECT_EQ(code_of([&] { safe_join(snapshot, bad); }), ErrorCode::invalid_argument) << bad;
  // Links outside a snapshot must not lead to the blobs.
  fs::create_symlink("../blobs/beef", model + "/refs/link");
  EXPECT_EQ(code_of([&] { safe_join(model + "/refs", "link"); }), ErrorCode::invalid_argument);
}

TEST_F(File, PathsInsideAreTold) {
  fs::create_directories(dir_ / "root/sub");
  fs::create_directories(dir_ / "root2");
  fs::create_directory_symlink(dir_ / "root2", dir_ / "root/out");
  EXPECT_EQ(path_inside(path("root"), path("root/sub/../sub")), fs::canonical(dir_ / "root/sub").string());
  EXPECT_EQ(path_inside(path("root"), path("root")), fs::canonical(dir_ / "root").string());
  for (const char* bad : {"root2", "root/out", "root/..", "root/absent", "root/sub/../../root2"})
    EXPECT_EQ(path_inside(path("root"), path(bad)), std::nullopt) << bad;
  EXPECT_EQ(path_inside(path("absent"), path("root")), std::nullopt);
}

TEST_F(File, APipeIsNoFileToMap) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of([&] { MappedFile{path("pipe")}; }), ErrorCode::invalid_argument);  // without blocking
}

TEST_F(File, GivesBackTheMemoryOfTouchedPagesAndReadsThemAgain) {
  constexpr size_t kBytes = size_t{32} << 20;
  write_file_atomic(path("large"), std::string(kBytes, 'x'));
  const MappedFile file(path("large"));
  const auto touch = [&] {
    return std::count(file.text().begin(), file.text().end(), 'x') == static_cast<ptrdiff_t>(kBytes);
  };
  const int64_t before = resident_bytes();
  EXPECT_TRUE(touch());
  EXPECT_GT(resident_bytes(), before + static_cast<int64_t>(kBytes / 2));
  file.release_pages();
  EXPECT_LT(resident_bytes(), before + static_cast<int64_t>(kBytes / 4));
  EXPECT_TRUE(touch());
  // The part need not begin at a page boundary; pages outside it stay resident.
  file.release_pages(file.bytes().subspan(100, kBytes / 2));
  EXPECT_LT(resident_bytes(), before + static_cast<int64_t>(kBytes * 5 / 8));
  EXPECT_GT(resident_bytes(), before + static_cast<int64_t>(kBytes / 4));
  EXPECT_TRUE(touch());
  const std::vector<std::byte> other(size_t{1} << 16, std::byte{7});
  file.release_pages(other);
  file.release_pages({});
  EXPECT_EQ(other[5000], std::byte{7});
}

}  // namespace
}  // namespace trireme::base
