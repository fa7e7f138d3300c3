// Local ranks: their collectives, the threads of the world and its watchdog.
#include "comm/local.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <system_error>
#include <thread>

#include "comm/agreement.h"
#include "comm/local_group.h"
#include "comm/slices.h"
#include "comm/tree_reduce.h"

namespace trireme::comm {
namespace {

using base::concat;

void swap_blocks(std::byte* a, std::byte* b, size_t bytes) {
  std::array<std::byte, kReduceChunkBytes> scratch;
  for (size_t i = 0; i < bytes; i += scratch.size()) {
    const size_t n = std::min(scratch.size(), bytes - i);
    std::memcpy(scratch.data(), a + i, n);
    std::memcpy(a + i, b + i, n);
    std::memcpy(b + i, scratch.data(), n);
  }
}

Asked asked_by(const Published& p) { return asked(p.call, p.sequence); }

}  // namespace

LocalCommunicator::LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
    : group_(std::move(group)), rank_(rank), sources_(static_cast<size_t>(group_->size())) {}

void LocalCommunicator::enqueue(const Call& call) {
  Flight flight{.what = call.what, .to = call.to, .from = call.from};
  flight.bytes = static_cast<int64_t>(call.in.empty() ? call.out.size() : call.in.size());
  Published& own = group_->published[static_cast<size_t>(rank_)];
  const int64_t sequence = recorder().enqueue(flight, call.source, clock_.now_ns());
  // An exchange does not meet the group: others may still read the call that the last collective published.
  if (call.what == Collective::exchange) return;
  own.call = call;
  own.sequence = sequence;
}

void LocalCommunicator::enter() {
  if (!group_->meeting.enter()) group_->faults.throw_failure();
  recorder().start(clock_.now_ns());
}

void LocalCommunicator::leave() {
  group_->meeting.leave();
  recorder().end(clock_.now_ns());
}

/// Every rank sees the same calls here, so all reach the same verdict and report it in the same words.
void LocalCommunicator::require_same() const {
  const std::vector<int>& names = group_->world_ranks;
  const Asked first = asked_by(peer(0));
  for (int r = 1; r < size(); ++r) {
    const Asked other = asked_by(peer(r));
    if (!same(first, other)) disagree(disagreement(names[0], first, names[static_cast<size_t>(r)], other));
  }
  if (!first.uneven) return;
  std::vector<SizesOf> sizes;
  for (int r = 0; r < size(); ++r) {
    const Call& call = peer(r).call;
    sizes.push_back({names[static_cast<size_t>(r)], call.in_sizes, call.out_sizes, call.source});
  }
  if (const std::string text = disagreement(sizes); !text.empty()) disagree(text);
}

void LocalCommunicator::disagree(const std::string& text) const {
  group_->meeting.leave();  // all have read the calls, whose owners now unwind their stacks
  group_->faults.fail(base::ErrorCode::invalid_argument, text);
  base::fail_invalid(text);
}

void LocalCommunicator::execute(const Call& call) {
  enqueue(call);
  if (call.what == Collective::exchange) {
    exchange(call);
    recorder().end(clock_.now_ns());
    return;
  }
  enter();
  require_same();
  perform(call);
  leave();
}

void LocalCommunicator::perform(const Call& call) {
  const auto me = static_cast<size_t>(rank_);
  switch (call.what) {
    case Collective::all_reduce:
      // Only rank r reads and writes slice r of every buffer, so one pass both reduces and gathers.
      return reduce(call, slice_begin(call.in.size(), rank_, size()),
                    slice_begin(call.in.size(), rank_ + 1, size()));
    case Collective::reduce_scatter: return reduce(call, me * call.out.size(), (me + 1) * call.out.size());
    case Collective::all_gather:
    case Collective::all_to_all: return call.in_sizes.empty() ? gather(call) : gather_uneven(call);
    case Collective::broadcast:
      return copy_bytes(call.out.data(), peer(call.to).call.in.data(), call.out.size());
    case Collective::barrier:
    case Collective::split:
    case Collective::finish:
    case Collective::exchange: return;
  }
}

/// Reduces bytes [begin, end) of all inputs into every output, or this rank's, in chunks that fit the cache.
void LocalCommunicator::reduce(const Call& call, size_t begin, size_t end) {
  for (int r = 0; r < size(); ++r) sources_[static_cast<size_t>(r)] = peer(r).call.in.data();
  alignas(64) std::array<std::byte, kReduceChunkBytes> chunk;
  for (size_t at = begin; at < end; at += chunk.size()) {
    const size_t n = std::min(chunk.size(), end - at);
    tree_reduce(sources_, at, Bytes(chunk.data(), n), call.reduction);
    if (call.what == Collective::reduce_scatter) {
      copy_bytes(call.out.data() + (at - begin), chunk.data(), n);
      continue;
    }
    for (int r = 0; r < size(); ++r) copy_bytes(peer(r).call.out.data() + at, chunk.data(), n);
  }
}

/// Reads one block from each rank, starting with its own, so that not all ranks read the same one at once.
void LocalCommunicator::gather(const Call& call) {
  const size_t bytes = call.out.size() / static_cast<size_t>(size());
  const bool all = call.what == Collective::all_to_all;
  if (all && call.in.data() == call.out.data()) return swap_in_place(call);
  for (int i = 0; i < size(); ++i) {
    const int r = (rank_ + i) % size();
    const size_t offset = all ? static_cast<size_t>(rank_) * bytes : 0;
    copy_bytes(call.out.data() + static_cast<size_t>(r) * bytes, peer(r).call.in.data() + offset, bytes);
  }
}

void LocalCommunicator::gather_uneven(const Call& call) {
  for (int i = 0; i < size(); ++i) {
    const int r = (rank_ + i) % size();
    const Call& theirs = peer(r).call;
    copy_bytes(call.out.data() + block_begin(call.out_sizes, r),
               theirs.in.data() + block_begin(theirs.in_sizes, rank_),
               static_cast<size_t>(call.out_sizes[static_cast<size_t>(r)]));
  }
}

/// One rank of each pair swaps their two blocks: the lower one in half of the pairs, else the higher one.
void LocalCommunicator::swap_in_place(const Call& call) {
  const size_t bytes = call.out.size() / static_cast<size_t>(size());
  const auto me = static_cast<size_t>(rank_);
  for (int r = 0; r < size(); ++r) {
    const bool lower_swaps = (r + rank_) % 2 == 1;
    if (r == rank_ || (rank_ < r) != lower_swaps) continue;
    swap_blocks(call.out.data() + static_cast<size_t>(r) * bytes, peer(r).call.out.data() + me * bytes,
                bytes);
  }
}

std::unique_ptr<Communicator> LocalCommunicator::split(int color, int key) {
  Published& own = group_->published[static_cast<size_t>(rank_)];
  enqueue({.what = Collective::split});
  own.color = color;
  own.key = key;
  enter();
  require_same();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (peer(r).color == color) members.push_back(r);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) { return peer(a).key < peer(b).key; });
  if (members[0] == rank_) {
    std::vector<int> world_ranks;
    for (const int r : members) world_ranks.push_back(group_->world_ranks[static_cast<size_t>(r)]);
    own.group = std::make_shared<LocalGroup>(group_->faults, std::move(world_ranks));
    group_->faults.add(own.group);
  }
  group_->meeting.leave();  // every colour's group has been made
  std::shared_ptr<LocalGroup> group = peer(members[0]).group;
  leave();  // every member holds a reference to its group
  own.group.reset();
  const auto place = std::find(members.begin(), members.end(), rank_) - members.begin();
  return std::make_unique<LocalCommunicator>(std::move(group), static_cast<int>(place));
}

struct LocalWorld::State {
  State(int size, LocalOptions chosen) : options(std::move(chosen)) {
    faults.deadline_ns = options.deadline_ns;
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(r);
    group = std::make_shared<LocalGroup>(faults, ranks);
    faults.add(group);
    for (int r = 0; r < size; ++r) members.push_back(std::make_unique<LocalCommunicator>(group, r));
  }

  void watch();

  LocalOptions options;
  LocalFaults faults;
  std::shared_ptr<LocalGroup> group;
  std::vector<std::unique_ptr<LocalCommunicator>> members;
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  std::thread watchdog;
};

/// Checks every group four times per deadline; the first stuck one ends the world and this watch.
void LocalWorld::State::watch() {
  const base::SystemClock clock;
  const auto period = std::chrono::nanoseconds(std::max<int64_t>(options.deadline_ns / 4, base::kNsPerMs));
  std::unique_lock lock(mutex);
  while (!wake.wait_for(lock, period, [&] { return stop; })) {
    for (const auto& g : faults.groups()) {
      std::vector<RankFlight> ranks;
      for (size_t r = 0; r < g->recorders.size(); ++r) {
        ranks.push_back({g->world_ranks[r], g->recorders[r].last()});
      }
      const std::optional<std::string> report = diagnose(ranks, clock.now_ns(), options.deadline_ns);
      if (!report) continue;
      if (options.on_stuck) options.on_stuck(*report);
      faults.fail(base::ErrorCode::unavailable, *report);
      return;
    }
  }
}

LocalWorld::LocalWorld(int size, LocalOptions options) {
  constexpr int kMaxRanks = 256;
  base::require(size >= 1 && size <= kMaxRanks, "local ranks: 1 to ", kMaxRanks, ", not ", size);
  state_ = std::make_unique<State>(size, std::move(options));
  if (state_->options.deadline_ns > 0) state_->watchdog = std::thread([s = state_.get()] { s->watch(); });
}

LocalWorld::~LocalWorld() {
  if (!state_->watchdog.joinable()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  state_->watchdog.join();
}

int LocalWorld::size() const { return static_cast<int>(state_->members.size()); }

Communicator& LocalWorld::communicator(int rank) {
  base::require(rank >= 0 && rank < size(), "no rank ", rank, " in a world of ", size());
  return *state_->members[static_cast<size_t>(rank)];
}

void LocalWorld::fail(int rank, const std::string& why) {
  state_->faults.fail(base::ErrorCode::unavailable, concat("rank ", rank, " is gone: ", why));
}

void LocalWorld::run(const std::function<void(Communicator&)>& body) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto rank_main = [&](int rank) {
    // The first error is the cause: errors of the ranks that it woke come after fail().
    const auto failed = [&](const std::string& why, std::exception_ptr error) {
      {
        const std::lock_guard lock(mutex);
        if (!first) first = std::move(error);
      }
      fail(rank, why);
    };
    try {
      body(communicator(rank));
      // If a rank is done while others still wait for it, that is a disagreement, not a hang.
      state_->members[static_cast<size_t>(rank)]->finish();
    } catch (const base::Error& e) {
      failed(e.message(), std::make_exception_ptr(e.with(concat("rank ", rank))));
    } catch (const std::exception& e) {
      failed(e.what(), std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  int started = 1;
  try {
    for (; started < size(); ++started) threads.emplace_back(rank_main, started);
  } catch (const std::system_error& e) {
    fail(started, base::concat("its thread did not start: ", e.what()));  // rank 0 sees it at its next call
  }
  rank_main(0);
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace trireme::comm
