// Keeps pages of keys and values that sessions gave up, in memory and on disk.
#include "engine/pages/page_store.h"

#include <utility>

#include "base/error.h"

namespace trireme::engine {
namespace {

constexpr size_t kMostFiles = size_t{1} << 20;  // each takes about 100 bytes of memory
constexpr std::chrono::seconds kPause{5};

}  // namespace

bool PageLoad::wait(std::chrono::nanoseconds most) {
  std::unique_lock lock(mutex_);
  return done_.wait_for(lock, most, [this] { return is_done(); });
}

void PageLoad::finish() {
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
  }
  done_.notify_all();
}

PageStore::PageStore(const Options& options) : options_(options), key_(base::KeyedHash::random_key()) {
  if (options_.directory.empty()) return;
  files_ = std::make_unique<PageFiles>(options_.directory);
  key_ = files_->key();
  for (const PageFiles::Found& found : files_->scan(kMostFiles))
    file(found.id, entries_[found.id], found.bytes);
  for (const PageId& id : shrink_disk()) files_->remove(id);
  thread_ = std::thread([this] { main(); });
}

PageStore::~PageStore() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& load : loads_) load->finish();
}

bool PageStore::has(const PageId& id) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(id);
}

bool PageStore::takes(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const bool has_room = files_ == nullptr ? bytes <= options_.host_bytes
                                          : saving_bytes_ + bytes <= options_.saving_bytes &&
                                                std::chrono::steady_clock::now() >= paused_until_;
  if (!has_room) ++counts_.dropped;
  return has_room;
}

void PageStore::save(const PageId& id, std::shared_ptr<const PageBytes> page) {
  {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = entries_.try_emplace(id);
    if (!is_new) return;
    ++counts_.saved_pages;
    counts_.saved_bytes += page->size;
    at->second.here = std::move(page);
    if (files_ == nullptr) {
      keep(id, at->second);
      shrink_host();
      return;
    }
    at->second.is_saving = true;
    saving_bytes_ += at->second.here->size;
    saves_.push_back(id);
  }
  changed_.notify_all();
}

std::shared_ptr<PageLoad> PageStore::load(std::span<const PageId> ids, int64_t page_bytes) {
  std::shared_ptr<PageLoad> load;
  {
    const std::lock_guard lock(mutex_);
    size_t count = 0;
    while (count < ids.size() && entries_.contains(ids[count]) &&
           loading_bytes_->load() + static_cast<int64_t>(count + 1) * page_bytes <= options_.loading_bytes)
      ++count;
    if (count == 0) return nullptr;
    load = std::make_shared<PageLoad>(
        std::vector<PageId>(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count)), page_bytes,
        loading_bytes_);
    if (thread_.joinable()) loads_.push_back(load);
  }
  if (thread_.joinable()) {
    changed_.notify_all();
  } else {
    fill(load);
  }
  return load;
}

PageStoreCounts PageStore::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void PageStore::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return saves_.empty() && loads_.empty() && !is_busy_; });
}

void PageStore::main() {
  std::unique_lock lock(mutex_);
  for (;;) {
    is_busy_ = false;
    changed_.notify_all();
    changed_.wait(lock, [this] { return ends_ || !loads_.empty() || !saves_.empty(); });
    is_busy_ = true;
    if (!loads_.empty() && !ends_) {
      const std::shared_ptr<PageLoad> load = std::move(loads_.front());
      loads_.pop_front();
      lock.unlock();
      fill(load);
      lock.lock();
    } else if (!saves_.empty()) {
      const PageId id = saves_.front();
      saves_.pop_front();
      lock.unlock();
      write(id);
      lock.lock();
    } else {
      return;  // the store is closing
    }
  }
}

void PageStore::fill(const std::shared_ptr<PageLoad>& load) {
  for (const PageId& id : load->ids()) {
    if (files_ != nullptr && load.use_count() == 1) break;  // no session waits for it
    std::shared_ptr<const PageBytes> page = fetch(id, load->page_bytes_);
    if (page == nullptr) break;
    load->pages_.push_back(std::move(page));
  }
  load->finish();
}

/// Returns the page's content, or null if it is unavailable. Called only by the thread that reads files.
std::shared_ptr<const PageBytes> PageStore::fetch(const PageId& id, int64_t bytes) {
  std::shared_ptr<const PageBytes> page;
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(id);
    if (at == entries_.end()) return nullptr;
    if (at->second.kept != 0) keep(id, at->second);
    page = at->second.here;
  }
  auto reading = PageFiles::Reading::good;
  if (page == nullptr) {
    const auto made = std::make_shared<PageBytes>(bytes);
    reading = files_->read(id, made->bytes());
    page = made;
    if (reading == PageFiles::Reading::broken) files_->remove(id);
  }
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(id);
  const bool is_good = reading == PageFiles::Reading::good && page->size == bytes;
  if (is_good) {
    ++counts_.loaded_pages;
    counts_.loaded_bytes += bytes;
    if (at != entries_.end() && at->second.filed != 0) file(id, at->second, at->second.file_bytes);
    return page;
  }
  if (reading == PageFiles::Reading::broken) ++counts_.refused;
  if (at != entries_.end() && reading != PageFiles::Reading::good) {
    unfile(at->second);
    erase_if_gone(at);
  }
  return nullptr;
}

/// Writes a queued page to its file. Called only by the store's thread.
void PageStore::write(const PageId& id) {
  std::shared_ptr<const PageBytes> page;
  bool is_paused = false;
  {
    const std::lock_guard lock(mutex_);
    page = entries_.at(id).here;
    is_paused = std::chrono::steady_clock::now() < paused_until_;
  }
  bool is_written = false;
  try {
    if (!is_paused) files_->write(id, page->bytes());
    is_written = !is_paused;
  } catch (const base::Error&) {
    // Counted below; a disk that is full or missing is not tried again for a while.
  }
  std::vector<PageId> surplus;
  {
    const std::lock_guard lock(mutex_);
    const auto at = entries_.find(id);
    Entry& entry = at->second;
    entry.is_saving = false;
    saving_bytes_ -= page->size;
    if (is_written) {
      file(id, entry, page->size + static_cast<int64_t>(kPageHeadBytes));
      surplus = shrink_disk();
    } else {
      ++counts_.dropped;
      if (!is_paused) paused_until_ = std::chrono::steady_clock::now() + kPause;
    }
    // A page larger than the disk limit has already been removed again.
    const auto still = entries_.find(id);
    if (still != entries_.end()) {
      keep(id, still->second);
      shrink_host();
    }
  }
  for (const PageId& gone : surplus) files_->remove(gone);
}

/// Marks the page as the most recently used one in memory.
void PageStore::keep(const PageId& id, Entry& entry) {
  if (entry.kept != 0) {
    host_.erase(entry.kept);
  } else {
    counts_.host_bytes += entry.here->size;
  }
  host_.emplace(entry.kept = ++clock_, id);
}

/// Marks the page as the most recently used one on disk.
void PageStore::file(const PageId& id, Entry& entry, int64_t bytes) {
  unfile(entry);
  entry.file_bytes = bytes;
  counts_.disk_bytes += bytes;
  disk_.emplace(entry.filed = ++clock_, id);
}

void PageStore::unfile(Entry& entry) {
  if (entry.filed == 0) return;
  disk_.erase(std::exchange(entry.filed, 0));
  counts_.disk_bytes -= std::exchange(entry.file_bytes, 0);
}

/// Removes the least recently used pages beyond the memory limit; they may remain on disk.
void PageStore::shrink_host() {
  while (counts_.host_bytes > options_.host_bytes) {
    const auto at = entries_.find(host_.begin()->second);
    host_.erase(host_.begin());
    at->second.kept = 0;
    counts_.host_bytes -= at->second.here->size;
    at->second.here.reset();
    if (files_ == nullptr) ++counts_.deleted;
    erase_if_gone(at);
  }
}

/// Does the same for the disk limit; returns the pages whose files must be removed.
std::vector<PageId> PageStore::shrink_disk() {
  std::vector<PageId> gone;
  while (!disk_.empty() && (counts_.disk_bytes > options_.disk_bytes || disk_.size() > kMostFiles)) {
    const auto at = entries_.find(disk_.begin()->second);
    gone.push_back(at->first);
    unfile(at->second);
    ++counts_.deleted;
    erase_if_gone(at);
  }
  return gone;
}

void PageStore::erase_if_gone(Entries::iterator at) {
  if (at->second.here == nullptr && at->second.filed == 0) entries_.erase(at);
}

}  // namespace trireme::engine
