// The ranks that together hold one model.
#include "engine/ranks/rank_group.h"

#include <algorithm>
#include <array>

#include "base/machine/cpu_info.h"
#include "engine/ranks/rank_service.h"

namespace trireme::engine {

ThreadShare share_of(int threads, const std::vector<int>& cpus, int rank, int ranks) {
  const int all = threads > 0 ? threads : base::read_cpu_info().threads();
  ThreadShare own{.threads = std::max(1, all / ranks)};
  for (int t = 0; t < own.threads && !cpus.empty(); ++t)
    own.cpus.push_back(cpus[static_cast<size_t>(rank * own.threads + t) % cpus.size()]);
  return own;
}

namespace {

/// A rank's error as it travels, of one size on all ranks.
struct Verdict {
  bool is_well = true;
  base::ErrorCode code = base::ErrorCode::internal;
  std::array<char, 1000> text{};
};

}  // namespace

void require_all_well(comm::Communicator& ranks, const std::optional<base::Error>& own) {
  Verdict mine;
  if (own) {
    mine.is_well = false;
    mine.code = own->code();
    std::copy_n(own->message().data(), std::min(own->message().size(), mine.text.size() - 1),
                mine.text.data());
  }
  std::vector<Verdict> all(static_cast<size_t>(ranks.size()));
  ranks.all_gather(comm::as_bytes(std::span<Verdict>(&mine, 1)), comm::as_bytes(std::span<Verdict>(all)),
                   "whether all are well");
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].is_well) continue;
    throw AgreedError(base::Error(all[r].code, all[r].text.data()).with(base::concat("rank ", r)));
  }
}

void require_same_model(comm::Communicator& ranks, const ir::Graph& graph) {
  uint64_t mine = 14695981039346656037u;
  for (const char c : ir::print(graph)) mine = (mine ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::vector<uint64_t> all(static_cast<size_t>(ranks.size()));
  ranks.all_gather(comm::as_bytes(std::span<uint64_t>(&mine, 1)), comm::as_bytes(std::span<uint64_t>(all)),
                   "what was loaded");
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw AgreedError(base::Error(base::ErrorCode::invalid_argument,
                                  base::concat("ranks 0 and ", r, " loaded different graphs or weights")));
  }
}

OpenRanks::OpenRanks(const RankHome& home, const Follow& follow) : local_(home.here()) {
  base::require(home.mesh == nullptr || home.mesh->world().rank() == 0, "the first rank leads, this is rank ",
                home.mesh == nullptr ? 0 : home.mesh->world().rank());
  for (int r = 1; r < home.here(); ++r) {
    followers_.emplace_back([this, r, &home, &follow] {
      try {
        comm::Mesh mesh(local_.communicator(r), home.shape);
        follow(r, mesh);
      } catch (const std::exception& e) {
        local_.fail(r, e.what());  // reported by the leader's next call
      }
    });
  }
  try {
    mesh_ = home.mesh;
    if (mesh_ != nullptr) return;
    if (home.service != nullptr) {
      opened_ = home.service->open(home.model_key);
      require_same_model(*opened_, *home.graph);
    }
    own_ = std::make_unique<comm::Mesh>(opened_ != nullptr ? *opened_ : local_.communicator(0), home.shape);
    mesh_ = own_.get();
  } catch (const std::exception& e) {
    local_.fail(0, e.what());  // so that the followers need not wait
    join();
    throw;
  }
}

void OpenRanks::join() {
  for (std::thread& t : followers_) t.join();
  followers_.clear();
}

void require_whole_job(const RankHome& home, bool was_open) {
  const bool is_lost =
      (home.mesh != nullptr && was_open) || (home.service != nullptr && home.service->is_lost());
  if (is_lost)
    base::fail(base::ErrorCode::unavailable, "a rank of the job is gone: the job has to start again");
}

void say_lost(const RankHome& home) {
  if (home.service != nullptr) home.service->say_lost();
}

}  // namespace trireme::engine
