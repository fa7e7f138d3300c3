// Collectives by pairwise transfers: meet, send slices to their owners, sum in the fixed tree, send back.
#include "comm/mpi_group.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "comm/tree_reduce.h"

namespace trireme::comm {
namespace {

// Tags of one group's messages. All ranks make collectives in the same order, so these share their tags; an
// exchange concerns two ranks only, and its messages must not be taken for those of a collective.
enum Tag : int { kMeeting = 1, kGather, kShare, kHalf, kExchange };

// Below this many received bytes, an all-reduce sends whole inputs to all ranks: one round instead of two.
constexpr size_t kSmallBytes = 32 << 10;
// Above this size, a broadcast scatters slices that the ranks then all-gather, so that the root sends each
// byte only once.
constexpr size_t kScatterBytes = 64 << 10;
// Sizes of pieces of slices: large enough for the link's full speed, small enough for the second-level cache.
constexpr size_t kMostPieceBytes = 256 << 10, kLeastPieceBytes = 16 << 10, kScratchBytes = 4 << 20;

// A rank that waits for other ranks yields its core at once and sleeps after a millisecond. One that waits
// for bytes never sleeps, because MPI moves data only while it is being called.
constexpr int kSpinsOnMessages = 64;
constexpr int64_t kSleepAfterNs = base::kNsPerMs;
constexpr auto kSleep = std::chrono::microseconds(50);
// Operations that all ranks have started get this time to end after a failure elsewhere.
constexpr int64_t kGraceNs = base::kNsPerSecond;

uint64_t mix(uint64_t a, uint64_t b) {
  const uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2))) * 0xbf58476d1ce4e5b9ULL;
  return x ^ (x >> 29);
}

size_t index(int rank) { return static_cast<size_t>(rank); }

}  // namespace

MpiCommunicator::MpiCommunicator(MpiControl& control, std::unique_ptr<Link> link,
                                 std::shared_ptr<GroupRecord> record)
    : control_(control),
      link_(std::move(link)),
      record_(std::move(record)),
      calls_(link_->transfers()),
      gathering_{link_->transfers(), link_->transfers()},
      sharing_(link_->transfers()),
      questions_(index(link_->size())),
      halves_(2),
      sources_(index(link_->size())),
      piece_bytes_(std::clamp(kScratchBytes / index(link_->size()), kLeastPieceBytes, kMostPieceBytes) / 64 *
                   64) {
  control_.add(record_);
}

MpiCommunicator::~MpiCommunicator() {
  if (control_.failed()) link_->give_up();
}

int64_t MpiCommunicator::enqueue(const Call& call) {
  Flight flight{.what = call.what, .to = call.to, .from = call.from};
  flight.bytes = static_cast<int64_t>(call.in.empty() ? call.out.size() : call.in.size());
  return record_->flights.enqueue(flight, call.source, clock_.now_ns());
}

void MpiCommunicator::execute(const Call& call) {
  const int64_t sequence = enqueue(call);
  try {
    if (control_.failed()) control_.throw_failure();
    if (call.what == Collective::exchange) {
      exchange(call);
    } else {
      meet(call, sequence, 0, 0);
      require_same();
      perform(call);
    }
  } catch (const base::Error&) {
    for (Transfers* t : {calls_.get(), gathering_[0].get(), gathering_[1].get(), sharing_.get()})
      t->abandon();
    throw;
  }
  record_->flights.end(clock_.now_ns());
}

/// All-gather of the questions by doubling: after round k a rank knows its own question and those of the 2^k
/// - 1 ranks that follow it.
void MpiCommunicator::meet(const Call& call, int64_t sequence, int color, int key) {
  const int n = size(), me = rank();
  AskedLetter& own = questions_[0];
  own.write(asked(call, sequence));
  own.color = color;
  own.key = key;
  const std::span<AskedLetter> all(questions_);
  for (int known = 1; known < n; known *= 2) {
    const int more = std::min(known, n - known);
    calls_->receive(as_bytes(all.subspan(index(known), index(more))), (me + known) % n, kMeeting);
    calls_->send(as_bytes(all.first(index(more))), (me + n - known) % n, kMeeting);
    wait_for_ranks(*calls_);
  }
  // Brings them into the order of the ranks.
  std::rotate(questions_.begin(), questions_.begin() + (n - me) % n, questions_.end());
  record_->flights.start(clock_.now_ns());
}

/// Every rank sees the same questions here, so all reach the same verdict and report it in the same words.
void MpiCommunicator::require_same() const {
  const Asked first = questions_[0].read();
  for (int r = 1; r < size(); ++r) {
    const Asked other = questions_[index(r)].read();
    const std::vector<int>& names = record_->world_ranks;
    if (!same(first, other)) disagree(disagreement(names[0], first, names[index(r)], other));
  }
}

void MpiCommunicator::disagree(const std::string& text) const {
  const int me = record_->world_ranks[index(rank())];
  control_.fail({.rank = me, .code = base::ErrorCode::invalid_argument, .text = text});
  control_.throw_failure();
}

/// Gathers the rows of all ranks, [size, in and out, size], so that all ranks reach the same verdict.
void MpiCommunicator::require_same_sizes(const Call& call) {
  const size_t n = index(size()), row = 2 * n * sizeof(int64_t);
  scratch_.resize(std::max(scratch_.size(), n * row));
  std::byte* own = scratch(index(rank()), row);
  std::memcpy(own, call.in_sizes.data(), row / 2);
  std::memcpy(own + row / 2, call.out_sizes.data(), row / 2);
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    calls_->receive({scratch(index(from), row), row}, from, kGather);
    calls_->send({own, row}, to, kGather);
  }
  wait_for_bytes(*calls_);
  std::vector<int64_t> rows(n * 2 * n);
  std::memcpy(rows.data(), scratch_.data(), n * row);
  std::vector<SizesOf> sizes;
  for (size_t r = 0; r < n; ++r) {
    const std::span<const int64_t> both = std::span(rows).subspan(r * 2 * n, 2 * n);
    sizes.push_back({record_->world_ranks[r], both.first(n), both.last(n), questions_[r].source.data()});
  }
  if (const std::string text = disagreement(sizes); !text.empty()) disagree(text);
}

void MpiCommunicator::perform(const Call& call) {
  switch (call.what) {
    case Collective::all_reduce:
      return call.in.size() * index(size() - 1) <= kSmallBytes ? all_reduce_small(call) : reduce_parts(call);
    case Collective::reduce_scatter: return reduce_parts(call);
    case Collective::all_gather: return all_gather(call);
    case Collective::all_to_all:
      if (!call.in_sizes.empty()) return all_to_all_uneven(call);
      return call.in.data() == call.out.data() ? all_to_all_in_place(call) : all_to_all(call);
    case Collective::broadcast: return broadcast(call);
    case Collective::barrier:
    case Collective::split:
    case Collective::finish:
    case Collective::exchange: return;
  }
}

/// Slot `i` of equal slots that lie one after the other. Pointers to slots stay valid during a call, because
/// scratch_ grows only before the call's first transfer.
std::byte* MpiCommunicator::scratch(size_t i, size_t bytes_each) { return scratch_.data() + i * bytes_each; }

void MpiCommunicator::all_reduce_small(const Call& call) {
  const size_t bytes = call.in.size();
  scratch_.resize(std::max(scratch_.size(), bytes * index(size())));
  sources_[index(rank())] = call.in.data();
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    std::byte* place = scratch(index(from), bytes);
    sources_[index(from)] = place;
    if (bytes == 0) continue;
    calls_->receive({place, bytes}, from, kGather);
    calls_->send(call.in, to, kGather);
  }
  wait_for_bytes(*calls_);
  tree_reduce(sources_, 0, call.out, call.reduction);
}

/// Bytes [at, at + piece_bytes_) of the part that rank `r` reduces.
Part MpiCommunicator::piece(const Call& call, int r, size_t at) const {
  return piece_of(part_of(call, r, size()), at, piece_bytes_);
}

/// Rank r reduces part r, piece by piece: while one piece is summed, the next one is being received and, in
/// an all-reduce, the previous one is being sent.
void MpiCommunicator::reduce_parts(const Call& call) {
  const size_t steps = (longest_part(call, size()) + piece_bytes_ - 1) / piece_bytes_;
  scratch_.resize(std::max(scratch_.size(), 2 * index(size()) * piece_bytes_));
  if (steps > 0) send_pieces(call, 0, 0);
  for (size_t step = 0; step < steps; ++step) {
    const size_t at = step * piece_bytes_;
    if (step + 1 < steps) send_pieces(call, at + piece_bytes_, step + 1);
    wait_for_bytes(*gathering_[step % 2]);
    reduce_piece(call, at, step);
    if (call.what != Collective::all_reduce) continue;
    wait_for_bytes(*sharing_);
    share_piece(call, at);
  }
  wait_for_bytes(*sharing_);
}

void MpiCommunicator::send_pieces(const Call& call, size_t at, size_t step) {
  const Part mine = piece(call, rank(), at);
  Transfers& transfers = *gathering_[step % 2];
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    const Part theirs = piece(call, to, at);
    std::byte* place = scratch((step % 2) * index(size()) + index(from), piece_bytes_);
    if (mine.bytes() > 0) transfers.receive({place, mine.bytes()}, from, kGather);
    if (theirs.bytes() > 0) {
      transfers.send(call.in.subspan(theirs.begin, theirs.bytes()), to, kGather);
    }
  }
}

void MpiCommunicator::reduce_piece(const Call& call, size_t at, size_t step) {
  const Part part = part_of(call, rank(), size()), mine = piece(call, rank(), at);
  for (int r = 0; r < size(); ++r) {
    sources_[index(r)] = scratch((step % 2) * index(size()) + index(r), piece_bytes_);
  }
  sources_[index(rank())] = call.in.data() + mine.begin;
  const size_t to = call.what == Collective::all_reduce ? mine.begin : mine.begin - part.begin;
  tree_reduce(sources_, 0, call.out.subspan(to, mine.bytes()), call.reduction);
}

/// Sends this rank's reduced piece to all others, whose inputs at that place have been received already.
void MpiCommunicator::share_piece(const Call& call, size_t at) {
  const Part mine = piece(call, rank(), at);
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    const Part theirs = piece(call, from, at);
    if (theirs.bytes() > 0) {
      sharing_->receive(call.out.subspan(theirs.begin, theirs.bytes()), from, kShare);
    }
    if (mine.bytes() > 0) {
      sharing_->send(call.out.subspan(mine.begin, mine.bytes()), to, kShare);
    }
  }
}

void MpiCommunicator::all_gather(const Call& call) {
  const size_t bytes = call.in.size();
  if (bytes == 0) return;
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    calls_->receive(call.out.subspan(index(from) * bytes, bytes), from, kGather);
    calls_->send(call.in, to, kGather);
  }
  copy_bytes(call.out.data() + index(rank()) * bytes, call.in.data(), bytes);
  wait_for_bytes(*calls_);
}

void MpiCommunicator::all_to_all(const Call& call) {
  const size_t bytes = call.out.size() / index(size());
  if (bytes == 0) return;
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    calls_->receive(call.out.subspan(index(from) * bytes, bytes), from, kGather);
    calls_->send(call.in.subspan(index(to) * bytes, bytes), to, kGather);
  }
  const size_t own = index(rank()) * bytes;
  copy_bytes(call.out.data() + own, call.in.data() + own, bytes);
  wait_for_bytes(*calls_);
}

void MpiCommunicator::all_to_all_uneven(const Call& call) {
  require_same_sizes(call);
  const auto leaving = [&](int r) {
    return call.in.subspan(block_begin(call.in_sizes, r), static_cast<size_t>(call.in_sizes[index(r)]));
  };
  const auto coming = [&](int r) {
    return call.out.subspan(block_begin(call.out_sizes, r), static_cast<size_t>(call.out_sizes[index(r)]));
  };
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    if (!coming(from).empty()) calls_->receive(coming(from), from, kGather);
    if (!leaving(to).empty()) calls_->send(leaving(to), to, kGather);
  }
  copy_bytes(coming(rank()).data(), leaving(rank()).data(), coming(rank()).size());
  wait_for_bytes(*calls_);
}

/// Copies the pieces to scratch memory before sending, so that received pieces can take their place.
void MpiCommunicator::all_to_all_in_place(const Call& call) {
  const size_t bytes = call.out.size() / index(size());
  scratch_.resize(std::max(scratch_.size(), index(size()) * piece_bytes_));
  for (size_t at = 0; at < bytes; at += piece_bytes_) {
    const size_t n = std::min(piece_bytes_, bytes - at);
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      std::byte* leaving = scratch(index(r), piece_bytes_);
      std::byte* place = call.out.data() + index(r) * bytes + at;
      copy_bytes(leaving, place, n);
      calls_->receive({place, n}, r, kGather);
      calls_->send({leaving, n}, r, kGather);
    }
    wait_for_bytes(*calls_);
  }
}

void MpiCommunicator::broadcast(const Call& call) {
  const size_t bytes = call.out.size();
  if (bytes <= kScatterBytes || size() == 2) return broadcast_tree(call.out, call.to);
  const int root = call.to;
  const auto slice = [&](int r) {
    const size_t begin = slice_begin(bytes, r, size());
    return call.out.subspan(begin, slice_begin(bytes, r + 1, size()) - begin);
  };
  if (rank() != root) {
    calls_->receive(slice(rank()), root, kGather);
    sharing_->receive(slice(root), root, kShare);
    wait_for_bytes(*calls_);
  }
  for (int i = 1; i < size(); ++i) {
    const int to = (rank() + i) % size(), from = (rank() + size() - i) % size();
    if (rank() == root) calls_->send(slice(to), to, kGather);
    if (to != root) sharing_->send(slice(rank()), to, kShare);
    if (from != root && rank() != root) sharing_->receive(slice(from), from, kShare);
  }
  wait_for_bytes(*calls_);
  wait_for_bytes(*sharing_);
}

/// Broadcasts along a binomial tree over the ranks' distances from the root.
void MpiCommunicator::broadcast_tree(Bytes data, int root) {
  if (data.empty()) return;
  const int n = size(), distance = (rank() + n - root) % n;
  int step = 1;
  while (step < n && (distance & step) == 0) step *= 2;
  if (distance != 0) {
    calls_->receive(data, (rank() + n - step) % n, kGather);
    wait_for_bytes(*calls_);
  }
  for (step /= 2; step >= 1; step /= 2) {
    if (distance + step < n) calls_->send(data, (rank() + step) % n, kGather);
  }
  wait_for_bytes(*calls_);
}

void MpiCommunicator::exchange(const Call& call) {
  AskedLetter& leaving = halves_[0];
  AskedLetter& coming = halves_[1];
  if (call.to >= 0) {
    leaving.write(asked(call, 0));
    sharing_->send(as_bytes(std::span(&leaving, 1)), call.to, kHalf);
    sharing_->send_until_taken(call.in, call.to, kExchange);
  }
  if (call.from >= 0) {
    calls_->receive(as_bytes(std::span(&coming, 1)), call.from, kHalf);
    wait_for_ranks(*calls_);
    if (coming.asked.in_bytes != call.out.size()) {
      const std::vector<int>& names = record_->world_ranks;
      disagree(disagreement({names[index(call.from)], coming.asked.in_bytes, coming.source.data()},
                            {names[index(rank())], call.out.size(), call.source}));
    }
    record_->flights.start(clock_.now_ns());
    calls_->receive(call.out, call.from, kExchange);
    wait_for_bytes(*calls_);
  }
  wait_for_ranks(*sharing_);
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color, int key) {
  const Call call{.what = Collective::split};
  const int64_t sequence = enqueue(call);
  if (control_.failed()) control_.throw_failure();
  meet(call, sequence, color, key);
  require_same();
  std::vector<int> members;
  for (int r = 0; r < size(); ++r) {
    if (questions_[index(r)].color == color) members.push_back(r);
  }
  const int first = members[0];  // identifies the colour; the colour itself may be negative
  std::stable_sort(members.begin(), members.end(),
                   [&](int a, int b) { return questions_[index(a)].key < questions_[index(b)].key; });
  auto record = std::make_shared<GroupRecord>();
  record->id = mix(mix(record_->id, static_cast<uint64_t>(sequence)), index(first));
  for (const int r : members) record->world_ranks.push_back(record_->world_ranks[index(r)]);
  auto link = link_->split(first, key);
  record_->flights.end(clock_.now_ns());
  return std::make_unique<MpiCommunicator>(control_, std::move(link), std::move(record));
}

void MpiCommunicator::wait_for_ranks(Transfers& transfers) {
  int64_t sleep_at = 0;
  for (int i = 0; !transfers.done(); ++i) {
    if (control_.failed()) control_.throw_failure();
    if (i < kSpinsOnMessages) continue;
    const int64_t now = clock_.now_ns();
    if (sleep_at == 0) sleep_at = now + kSleepAfterNs;
    now < sleep_at ? std::this_thread::yield() : std::this_thread::sleep_for(kSleep);
  }
}

void MpiCommunicator::wait_for_bytes(Transfers& transfers) {
  int64_t give_up_at = 0;
  for (int i = 0; !transfers.done(); ++i) {
    if (control_.failed()) {
      const int64_t now = clock_.now_ns();
      if (give_up_at == 0) give_up_at = now + kGraceNs;
      if (now > give_up_at) control_.throw_failure();
    }
    if (i >= kSpinsOnMessages) std::this_thread::yield();
  }
}

}  // namespace trireme::comm
