// The ranks of one decoding session.
#include "engine/decode_ranks.h"

#include <algorithm>

#include "base/machine/cpu_info.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

/// The options of one of several ranks: its device and its share of the threads.
DecodeOptions share_of(const DecodeOptions& all, int rank, int ranks) {
  DecodeOptions own = all;
  const int threads = all.threads > 0 ? all.threads : base::read_cpu_info().threads();
  own.threads = std::max(1, threads / ranks);
  own.cpus.clear();
  for (int t = 0; t < own.threads && !all.cpus.empty(); ++t)
    own.cpus.push_back(all.cpus[static_cast<size_t>(rank * own.threads + t) % all.cpus.size()]);
  own.device = runtime::device_of_rank(all.device, {rank, ranks});
  return own;
}

}  // namespace

DecodeRanks::DecodeRanks(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options,
                         int64_t pages)
    : model_(std::move(model)), size_(model_->strategy().world()) {
  if (size_ == 1) {
    first_ = std::make_unique<DecodeRank>(model_, options, pages);
    return;
  }
  world_ = std::make_unique<comm::LocalWorld>(size_);
  for (int r = 1; r < size_; ++r)
    followers_.emplace_back([this, r, own = share_of(options, r, size_), pages] { follow(r, own, pages); });
  try {
    mesh_ = std::make_unique<comm::Mesh>(world_->communicator(0), model_->strategy().mesh());
    first_ = std::make_unique<DecodeRank>(model_, share_of(options, 0, size_), pages, mesh_.get());
  } catch (const std::exception& e) {
    world_->fail(0, e.what());  // the followers need not wait
    for (std::thread& t : followers_) t.join();
    throw;
  }
}

DecodeRanks::~DecodeRanks() {
  if (size_ == 1) return;
  work_ = nullptr;
  try {
    if (!is_lost_) world_->communicator(0).barrier();
  } catch (const base::Error&) {
    // a rank is gone, and the others with it
  }
  for (std::thread& t : followers_) t.join();
}

void DecodeRanks::follow(int rank, const DecodeOptions& options, int64_t pages) {
  try {
    comm::Communicator& world = world_->communicator(rank);
    comm::Mesh mesh(world, model_->strategy().mesh());
    DecodeRank own(model_, options, pages, &mesh);
    for (;;) {
      world.barrier();
      if (work_ == nullptr) return;
      (*work_)(own);
      world.barrier();
    }
  } catch (const std::exception& e) {
    world_->fail(rank, e.what());  // the first rank meets this
  }
}

/// Whatever goes wrong between ranks leaves some of them waiting for others: they all end with it.
void DecodeRanks::together(const std::function<void(DecodeRank&)>& work) {
  if (is_lost_)
    base::fail(base::ErrorCode::unavailable, "a rank of this session is gone: it has to be opened again");
  comm::Communicator& world = world_->communicator(0);
  try {
    work_ = &work;
    world.barrier();
    work(*first_);
    world.barrier();
  } catch (const std::exception& e) {
    is_lost_ = true;
    world_->fail(0, e.what());
    throw;
  }
}

}  // namespace trireme::engine
