// Pages of keys and values that sessions gave up: in memory of the host, on a disk, and on their way.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/pages/page_files.h"

namespace trireme::engine {

/// The content of a page.
struct PageBytes {
  explicit PageBytes(int64_t bytes) : size(bytes), data(new std::byte[static_cast<size_t>(bytes)]) {}
  std::span<std::byte> bytes() const { return {data.get(), static_cast<size_t>(size)}; }
  int64_t size;
  std::unique_ptr<std::byte[]> data;
};

/// Pages that a store is asked for. Whoever lets go of it wants them no more.
class PageLoad {
 public:
  PageLoad(std::vector<PageId> ids, int64_t page_bytes, std::shared_ptr<std::atomic<int64_t>> room)
      : ids_(std::move(ids)), page_bytes_(page_bytes), room_(std::move(room)) {
    *room_ += bytes();
  }
  ~PageLoad() { *room_ -= bytes(); }
  PageLoad(const PageLoad&) = delete;
  PageLoad& operator=(const PageLoad&) = delete;

  const std::vector<PageId>& ids() const { return ids_; }
  bool is_done() const { return is_done_.load(); }
  /// Waits for at most so long; whether it is done.
  bool wait(std::chrono::nanoseconds most);
  /// Once it is done: the pages from the first on, up to the first that could not be had.
  const std::vector<std::shared_ptr<const PageBytes>>& pages() const { return pages_; }

 private:
  friend class PageStore;
  int64_t bytes() const { return page_bytes_ * static_cast<int64_t>(ids_.size()); }
  void finish();

  const std::vector<PageId> ids_;
  const int64_t page_bytes_;
  const std::shared_ptr<std::atomic<int64_t>> room_;
  std::vector<std::shared_ptr<const PageBytes>> pages_;
  std::atomic<bool> is_done_{false};
  std::mutex mutex_;
  std::condition_variable done_;
};

/// Since the start, but for what is kept now.
struct PageStoreCounts {
  int64_t saved_pages = 0, saved_bytes = 0;    ///< that sessions gave and the store has taken
  int64_t loaded_pages = 0, loaded_bytes = 0;  ///< that sessions were given
  int64_t refused = 0;                         ///< pages whose files were not what was written
  int64_t dropped = 0;                         ///< not taken, or lost on their way to the disk
  int64_t deleted = 0;                         ///< to make room for others
  int64_t host_bytes = 0, disk_bytes = 0;      ///< kept now
};

/// Any thread. Disks are read and written by a thread of its own, reads first; nobody who calls waits for it.
class PageStore {
 public:
  struct Options {
    std::string directory = {};                  ///< empty: no pages on a disk
    int64_t disk_bytes = int64_t{10} << 30;      ///< of all files
    int64_t host_bytes = 0;                      ///< of pages that stay in memory
    int64_t saving_bytes = int64_t{64} << 20;    ///< on their way to the disk at most
    int64_t loading_bytes = int64_t{256} << 20;  ///< on their way to sessions, or waiting for them, at most
  };
  /// Knows the pages that earlier processes left in the directory. Throws what PageFiles does.
  explicit PageStore(const Options& options);
  /// Writes what is on its way first.
  ~PageStore();
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  /// Under which pages are named.
  const base::KeyedHash::Key& key() const { return key_; }
  /// Whether pages are given when they are remembered, so that a process that is killed loses none; else when
  /// a session gives them up.
  bool saves_at_once() const { return files_ != nullptr; }
  bool has(const PageId& id) const;
  /// Whether a page of so many bytes would be taken now; where not, it counts as dropped.
  bool takes(int64_t bytes);
  void save(const PageId& id, std::shared_ptr<const PageBytes> page);
  /// As many of the first of `ids` as are known, and as there is room for; null: none.
  std::shared_ptr<PageLoad> load(std::span<const PageId> ids, int64_t page_bytes);
  PageStoreCounts counts() const;
  /// Returns once nothing is on its way; for tests.
  void settle();

 private:
  struct Entry {
    std::shared_ptr<const PageBytes> here;  ///< null: on the disk alone
    bool is_saving = false;                 ///< it waits for the disk
    uint64_t kept = 0;                      ///< its key in `host_`; 0: it is not there
    uint64_t filed = 0;                     ///< its key in `disk_`; 0: it is not there
    int64_t file_bytes = 0;
  };
  struct Hash {
    size_t operator()(const PageId& id) const { return id[0]; }
  };
  using Entries = std::unordered_map<PageId, Entry, Hash>;
  void main();
  void fill(const std::shared_ptr<PageLoad>& load);
  std::shared_ptr<const PageBytes> fetch(const PageId& id, int64_t bytes);
  void write(const PageId& id);
  void keep(const PageId& id, Entry& entry);
  void file(const PageId& id, Entry& entry, int64_t bytes);
  void unfile(Entry& entry);
  void shrink_host();
  std::vector<PageId> shrink_disk();
  void erase_if_gone(Entries::iterator at);

  const Options options_;
  std::unique_ptr<PageFiles> files_;  ///< null: no disk. Of the thread, once it runs
  base::KeyedHash::Key key_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  Entries entries_;
  std::map<uint64_t, PageId> host_, disk_;  ///< by when they were used last
  uint64_t clock_ = 0;
  std::deque<PageId> saves_;
  std::deque<std::shared_ptr<PageLoad>> loads_;
  int64_t saving_bytes_ = 0;
  std::chrono::steady_clock::time_point paused_until_{};  ///< after a failure nothing is written for a while
  PageStoreCounts counts_;
  bool ends_ = false, is_busy_ = false;
  const std::shared_ptr<std::atomic<int64_t>> loading_bytes_ = std::make_shared<std::atomic<int64_t>>(0);
  std::thread thread_;  ///< only with a disk
};

}  // namespace trireme::engine
