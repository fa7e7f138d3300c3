// Page files: complete or refused after any damage, and used by only one process at a time.
#include "engine/pages/page_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch.h"
#include "base/rng.h"

namespace trireme::engine {
namespace {

using Reading = PageFiles::Reading;

std::vector<std::byte> content_of(uint64_t seed, size_t bytes = 300) {
  base::Rng random(seed);
  std::vector<std::byte> content(bytes);
  for (std::byte& b : content) b = static_cast<std::byte>(random.below(256));
  return content;
}

struct PageFilesTest : testing::Test {
  std::string file_of(const PageId& page) const {
    const std::string name = to_text(page);
    return directory + "/" + name.substr(0, 2) + "/" + name + ".page";
  }
  static void put(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
  }
  std::shared_ptr<const std::string> scratch = base::make_scratch("trireme-pages");
  std::string directory = *scratch + "/pages";
  const PageId id{0x0123456789abcdef, 42};
};

TEST_F(PageFilesTest, ComeBackAsTheyWere) {
  PageFiles files(directory);
  const auto content = content_of(1);
  std::vector<std::byte> to(content.size());
  EXPECT_EQ(files.read(id, to), Reading::missing);
  files.write(id, content);
  EXPECT_EQ(files.read(id, to), Reading::good);
  EXPECT_EQ(to, content);
  EXPECT_EQ(files.read({id[0], 43}, to), Reading::missing);
  files.remove(id);
  EXPECT_EQ(files.read(id, to), Reading::missing);
}

TEST_F(PageFilesTest, RefuseEveryDamage) {
  PageFiles files(directory);
  const auto content = content_of(2);
  std::vector<std::byte> to(content.size());
  files.write(id, content);
  const std::string whole = base::read_file(file_of(id));
  ASSERT_EQ(whole.size(), kPageHeadBytes + content.size());
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string broken = whole;
    broken[at] = static_cast<char>(broken[at] ^ 1 << at % 8);
    put(file_of(id), broken);
    ASSERT_EQ(files.read(id, to), Reading::broken) << "byte " << at;
    const auto bytes = std::as_bytes(std::span(broken));
    ASSERT_TRUE(page_content(bytes, id).empty()) << "byte " << at;
  }
  for (size_t length = 0; length < whole.size(); ++length) {
    put(file_of(id), whole.substr(0, length));
    ASSERT_EQ(files.read(id, to), Reading::broken) << "length " << length;
  }
  put(file_of(id), whole + "x");
  EXPECT_EQ(files.read(id, to), Reading::broken);
  // The file of another page under this page's name, and a page of another size.
  const PageId other{7, 8};
  files.write(other, content);
  std::filesystem::copy_file(file_of(other), file_of(id), std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(files.read(id, to), Reading::broken);
  put(file_of(id), whole);
  std::vector<std::byte> longer(content.size() + 1);
  EXPECT_EQ(files.read(id, longer), Reading::broken);
  EXPECT_EQ(files.read(id, to), Reading::good);
  // Links and directories are not followed.
  std::filesystem::remove(file_of(id));
  std::filesystem::create_symlink(file_of(other), file_of(id));
  EXPECT_EQ(files.read(id, to), Reading::broken);
  std::filesystem::remove(file_of(id));
  std::filesystem::create_directory(file_of(id));
  EXPECT_EQ(files.read(id, to), Reading::broken);
}

TEST_F(PageFilesTest, OneProcessHasTheDirectory) {
  auto first = std::make_unique<PageFiles>(directory);
  try {
    const PageFiles second(directory);
    FAIL() << "two have it";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::unavailable);
  }
  const auto key = first->key();
  first.reset();
  EXPECT_EQ(PageFiles(directory).key(), key);
  // An incomplete key is replaced, so existing pages are not found any more.
  put(directory + "/key", "short");
  EXPECT_NE(PageFiles(directory).key(), key);
  const auto mode = std::filesystem::status(directory).permissions();
  EXPECT_EQ(mode & std::filesystem::perms::all, std::filesystem::perms::owner_all);
}

TEST_F(PageFilesTest, LeaveTheDirectoryOfOthersAsItIs) {
  using std::filesystem::perms;
  const perms shared = perms::owner_all | perms::group_read | perms::group_exec | perms::others_read;
  std::filesystem::create_directory(directory);
  std::filesystem::permissions(directory, shared);
  { const PageFiles files(directory); }
  EXPECT_EQ(std::filesystem::status(directory).permissions() & perms::all, shared);
  std::filesystem::permissions(directory, shared | perms::others_write);
  try {
    const PageFiles files(directory);
    FAIL() << "anybody decides what answers say";
  } catch (const base::Error& e) {
    EXPECT_EQ(e.code(), base::ErrorCode::invalid_argument);
  }
  EXPECT_EQ(std::filesystem::status(directory).permissions() & perms::all, shared | perms::others_write);
}

TEST_F(PageFilesTest, KnowWhatAnEarlierProcessLeft) {
  const auto content = content_of(3);
  {
    const PageFiles files(directory);
    for (uint64_t i = 0; i < 5; ++i) files.write({i << 56, i}, content);
  }
  const std::string unfinished = directory + "/03/" + to_text({uint64_t{3} << 56, 9}) + ".page.new";
  const std::string strange = directory + "/03/notes.page", elsewhere = directory + "/readme";
  const std::string misplaced = directory + "/03/" + to_text({uint64_t{4} << 56, 9}) + ".page";
  for (const std::string& path : {unfinished, strange, elsewhere, misplaced}) put(path, "?");
  PageFiles files(directory);
  const auto found = files.scan(4);
  ASSERT_EQ(found.size(), 4U);
  for (const PageFiles::Found& f : found) {
    EXPECT_EQ(f.bytes, static_cast<int64_t>(kPageHeadBytes + content.size()));
    EXPECT_EQ(f.id[0], f.id[1] << 56);
  }
  EXPECT_FALSE(base::file_exists(unfinished));
  EXPECT_TRUE(base::file_exists(strange));
  EXPECT_TRUE(base::file_exists(elsewhere));
  EXPECT_TRUE(base::file_exists(misplaced));
  EXPECT_EQ(files.scan(10).size(), 4U);  // one exceeded the limit
}

TEST(PageNames, FollowFromAllThatStandsBefore) {
  const base::KeyedHash::Key key{1, 2};
  const PageNames names(key, {3, 4});
  std::vector<int64_t> tokens(10);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(i);
  const PageId root = names.root({}, "");
  const auto ids = names.of(root, tokens, 3);
  ASSERT_EQ(ids.size(), 3U);
  EXPECT_EQ(names.of(root, std::span(tokens).first(6), 3), (std::vector<PageId>{ids[0], ids[1]}));
  for (size_t at = 0; at < 9; ++at) {
    std::vector<int64_t> others = tokens;
    others[at] += 1;
    const auto changed = names.of(root, others, 3);
    for (size_t page = 0; page < 3; ++page) EXPECT_EQ(changed[page] == ids[page], page < at / 3) << at;
  }
  std::vector<PageId> roots{root,
                            names.root({}, "a"),
                            names.root({}, "b"),
                            names.root({0, 1}, ""),
                            names.root({0, 1}, "a"),
                            PageNames(key, {3, 5}).root({}, ""),
                            PageNames({1, 3}, {3, 4}).root({}, "")};
  std::sort(roots.begin(), roots.end());
  EXPECT_EQ(std::unique(roots.begin(), roots.end()), roots.end());
}

}  // namespace
}  // namespace trireme::engine
