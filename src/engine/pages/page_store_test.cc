// The page store: limits, eviction of least recently used pages, and reuse by a new process.
#include "engine/pages/page_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/files/scratch.h"
#include "base/rng.h"

namespace trireme::engine {
namespace {

constexpr int64_t kBytes = 200, kFile = kBytes + static_cast<int64_t>(kPageHeadBytes);

PageId id_of(uint64_t i) { return {i * 0x9e3779b97f4a7c15, i}; }

std::shared_ptr<const PageBytes> page_of(uint64_t i, int64_t bytes = kBytes) {
  const auto page = std::make_shared<PageBytes>(bytes);
  for (std::byte& b : page->bytes()) b = static_cast<std::byte>(i);
  return page;
}

/// Whether the store returns page i as it was saved.
bool gives(PageStore& store, uint64_t i) {
  const PageId id = id_of(i);
  const auto load = store.load({&id, 1}, kBytes);
  if (load == nullptr) return false;
  EXPECT_TRUE(load->wait(std::chrono::seconds(20)));
  if (load->pages().empty()) return false;
  for (const std::byte b : load->pages()[0]->bytes()) EXPECT_EQ(b, static_cast<std::byte>(i));
  return true;
}

TEST(PageStore, KeepsThoseOfTheHostThatWereUsedLast) {
  PageStore store({.host_bytes = 3 * kBytes});
  EXPECT_FALSE(store.saves_at_once());
  EXPECT_FALSE(store.takes(3 * kBytes + 1));
  EXPECT_EQ(store.counts().dropped, 1);
  for (uint64_t i = 0; i < 3; ++i) store.save(id_of(i), page_of(i));
  EXPECT_TRUE(gives(store, 0));
  store.save(id_of(3), page_of(3));
  EXPECT_TRUE(gives(store, 0));
  EXPECT_FALSE(gives(store, 1));
  EXPECT_FALSE(store.has(id_of(1)));
  EXPECT_EQ(store.counts().host_bytes, 3 * kBytes);
  EXPECT_EQ(store.counts().deleted, 1);
  EXPECT_EQ(store.counts().loaded_pages, 2);
}

/// Compares with a model of a directory with a size limit.
TEST(PageStore, BoundsTheDiskAndComesBack) {
  const auto scratch = base::make_scratch("trireme-store");
  const PageStore::Options options{.directory = *scratch + "/pages", .disk_bytes = 10 * kFile};
  base::Rng random(5);
  std::vector<uint64_t> kept;  // least recently used first
  auto store = std::make_unique<PageStore>(options);
  for (int round = 0; round < 400; ++round) {
    const uint64_t i = random.below(30);
    const auto at = std::find(kept.begin(), kept.end(), i);
    ASSERT_EQ(store->has(id_of(i)), at != kept.end()) << "round " << round << " page " << i;
    if (at != kept.end()) {
      ASSERT_TRUE(gives(*store, i));
      kept.erase(at);
    } else {
      store->save(id_of(i), page_of(i));
      store->settle();
    }
    kept.push_back(i);
    if (kept.size() > 10) kept.erase(kept.begin());
    ASSERT_EQ(store->counts().disk_bytes, static_cast<int64_t>(kept.size()) * kFile);
    ASSERT_EQ(store->counts().host_bytes, 0);
    if (round % 50 == 49) {
      store.reset();
      store = std::make_unique<PageStore>(options);  // the order is given by the files' times
    }
  }
  int64_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(options.directory))
    files += entry.path().extension() == ".page" ? 1 : 0;
  EXPECT_EQ(files, 10);
}

TEST(PageStore, RefusesWhatIsDamagedOnce) {
  const auto scratch = base::make_scratch("trireme-store");
  const PageStore::Options options{.directory = *scratch};
  PageStore store(options);
  for (uint64_t i = 0; i < 3; ++i) store.save(id_of(i), page_of(i));
  store.settle();
  const std::string name = to_text(id_of(1));
  std::ofstream(*scratch + "/" + name.substr(0, 2) + "/" + name + ".page", std::ios::binary) << "damaged";
  std::vector<PageId> ids{id_of(0), id_of(1), id_of(2)};
  const auto load = store.load(ids, kBytes);
  ASSERT_TRUE(load->wait(std::chrono::seconds(20)));
  EXPECT_EQ(load->pages().size(), 1U);  // pages after it are useless
  EXPECT_EQ(store.counts().refused, 1);
  EXPECT_FALSE(store.has(id_of(1)));
  EXPECT_TRUE(gives(store, 2));
  store.save(id_of(1), page_of(1));
  store.settle();
  EXPECT_TRUE(gives(store, 1));
  EXPECT_EQ(store.counts().refused, 1);
}

TEST(PageStore, BoundsWhatIsOnItsWay) {
  const auto scratch = base::make_scratch("trireme-store");
  PageStore store({.directory = *scratch, .saving_bytes = 2 * kBytes, .loading_bytes = 3 * kBytes});
  EXPECT_TRUE(store.takes(2 * kBytes));
  EXPECT_FALSE(store.takes(2 * kBytes + 1));
  std::vector<PageId> ids;
  for (uint64_t i = 0; i < 5; ++i) {
    ids.push_back(id_of(i));
    store.save(ids.back(), page_of(i));
    store.settle();
  }
  auto first = store.load(std::span(ids).first(2), kBytes);
  auto second = store.load(ids, kBytes);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->ids().size(), 1U);  // as many as fit
  EXPECT_EQ(store.load(ids, kBytes), nullptr);
  first.reset();
  store.settle();
  EXPECT_EQ(store.load(ids, kBytes)->ids().size(), 2U);
}

TEST(PageStore, GoesOnWhereTheDiskIsGone) {
  const auto scratch = base::make_scratch("trireme-store");
  const std::string directory = *scratch + "/pages";
  PageStore store({.directory = directory});
  std::filesystem::remove_all(directory);
  store.save(id_of(1), page_of(1));
  store.settle();
  EXPECT_FALSE(store.has(id_of(1)));
  EXPECT_EQ(store.counts().dropped, 1);
  EXPECT_FALSE(store.takes(kBytes));  // refuses for a while
}

}  // namespace
}  // namespace trireme::engine
