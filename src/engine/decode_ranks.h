// The ranks of one decoding session: threads of this process, of which the caller's is the first.
#pragma once

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/local.h"
#include "engine/decode_rank.h"

namespace trireme::engine {

/// One owner thread. Sequences, pages and operands are the caller's; every rank does the same with them.
class DecodeRanks {
 public:
  /// Each rank has `pages` pages and its share of `options.threads`, and a device of its own as
  /// runtime::device_of_rank() gives them out.
  DecodeRanks(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options, int64_t pages);
  ~DecodeRanks();
  DecodeRanks(const DecodeRanks&) = delete;
  DecodeRanks& operator=(const DecodeRanks&) = delete;

  int size() const { return size_; }
  DecodeRank& first() { return *first_; }
  const DecodeRank& first() const { return *first_; }

  /// Calls work(rank) on all ranks at a time and returns when all have. What one of them throws is thrown
  /// here; where there are several the session is then over, and later calls throw unavailable.
  template <class F>
  void all(const F& work) {
    if (size_ == 1) return work(*first_);
    together(std::function<void(DecodeRank&)>(std::cref(work)));
  }

 private:
  void together(const std::function<void(DecodeRank&)>& work);
  void follow(int rank, const DecodeOptions& options, int64_t pages);

  std::shared_ptr<const DecodeModel> model_;
  int size_;
  std::unique_ptr<comm::LocalWorld> world_;  ///< null: there is one rank
  std::unique_ptr<comm::Mesh> mesh_;         ///< the first rank's
  std::unique_ptr<DecodeRank> first_;
  const std::function<void(DecodeRank&)>* work_ =
      nullptr;  ///< written before the barrier that others read it after
  bool is_lost_ = false;
  std::vector<std::thread> followers_;
};

}  // namespace trireme::engine
