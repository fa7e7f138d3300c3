// What takes long to find out on a GPU, kept on disk between processes: plans of libraries, generated
// kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/guarded.h"
#include "base/memory/shared_cache.h"

namespace trireme::cuda {

/// $TRIREME_CUDA_CACHE, else $XDG_CACHE_HOME/trireme, else ~/.cache/trireme. Empty: nothing is kept, as where
/// there is no home and with TRIREME_CUDA_CACHE=off.
std::string cache_directory();
/// Where its plans are; empty with it.
std::string plans_directory();
/// Of its plans, by $TRIREME_CUDA_CACHE_MIB; 256 MiB where that is no number above 0.
int64_t cache_bytes();

/// A directory of files as plan_file.h has them, which processes share: a file appears whole or not at all,
/// the first to keep a key decides for all, and the files least recently used go where all take more than may
/// be. What cannot be read or written only costs time; the first such thing is told once. Any thread.
class PlanStore {
 public:
  /// Looks into `directory` when it is first asked; empty: nothing is kept.
  explicit PlanStore(std::string directory, int64_t most_bytes);

  /// True if the bytes can be used here; called without a lock.
  using Takes = std::function<bool(std::string_view)>;
  /// Bytes to be kept; empty: none.
  using Make = std::function<std::string()>;
  /// Gives `takes` what is kept under `key`; where that is nothing, or is not taken, calls `make` and keeps
  /// what it gives. Where another process kept the key meanwhile, `takes` gets theirs afterwards: ranks that
  /// start together then run the same. Throws what the two throw.
  void get(const std::string& key, const Takes& takes, const Make& make) const;

  /// What was wrong first, once; empty: nothing was, or it was told.
  std::string take_notice() const;

 private:
  std::string path_of(const std::string& key) const;
  std::optional<std::string> find(const std::string& key) const;
  std::optional<std::string> publish(const std::string& key, const std::string& body,
                                     const std::optional<std::string>& refused) const;
  void make_room(int64_t bytes) const;
  void note(const std::string& path, std::string_view problem) const;

  struct Notice {
    std::string text;
    bool was_set = false;
  };
  std::string directory_;
  int64_t most_bytes_;
  mutable base::Guarded<Notice> notice_;
  mutable std::atomic<bool> gave_up_ = false;  ///< writing
};

/// That of the cache directory, which all who share `packs` share.
std::shared_ptr<const PlanStore> plan_store_of(base::SharedCache& packs);

}  // namespace trireme::cuda
