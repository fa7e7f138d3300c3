// Collectives on device memory: NCCL moves the bytes, our own kernel sums them in the order of the tree.
#if TRIREME_NCCL
#include "comm/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/device/toolkit_library.h"
#include "backend/cuda/device/tree_reduce.h"
#include "base/clock.h"
#include "base/error.h"
#include "comm/agreement.h"
#include "comm/slices.h"

namespace trireme::comm {
namespace {

// Sizes of pieces to be summed: large enough for the links' full speed, small beside the device's memory.
constexpr size_t kScratchBytes = size_t{64} << 20, kLeastPieceBytes = size_t{1} << 20;

/// NCCL's functions, loaded at run time: programs that do not need the library start without it.
class Library {
 public:
  Library() {
    find(get_unique_id, "ncclGetUniqueId");
    find(init, "ncclCommInitRankConfig");
    find(finalize, "ncclCommFinalize");
    find(destroy, "ncclCommDestroy");
    find(abort, "ncclCommAbort");
    find(async_error, "ncclCommGetAsyncError");
    find(error_text, "ncclGetErrorString");
    find(last_error, "ncclGetLastError");
    find(group_start, "ncclGroupStart");
    find(group_end, "ncclGroupEnd");
    find(send, "ncclSend");
    find(receive, "ncclRecv");
    find(all_reduce, "ncclAllReduce");
    find(reduce_scatter, "ncclReduceScatter");
    find(all_gather, "ncclAllGather");
    find(broadcast, "ncclBroadcast");
  }

  void require(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    base::fail(base::ErrorCode::unavailable, "NCCL: ", what, ": ", error_text(result), ": ",
               last_error(nullptr));
  }

  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGetErrorString) error_text = nullptr;
  decltype(&ncclGetLastError) last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    library_.find(function, name);
  }

  cuda::ToolkitLibrary library_{"libnccl.so.2"};
};

ncclDataType_t type_of(tensor::DType type) {
  using tensor::DType;
  switch (type) {
    case DType::f32: return ncclFloat32;
    case DType::f64: return ncclFloat64;
    case DType::i64: return ncclInt64;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    default: base::fail(base::ErrorCode::internal, "NCCL: no type for ", name_of(type));
  }
}

size_t index(int rank) { return static_cast<size_t>(rank); }
size_t bytes_of(const Reduction& r) { return static_cast<size_t>(tensor::bits_of(r.dtype) / 8); }

class NcclCommunicator : public DeviceGroup {
 public:
  NcclCommunicator(std::shared_ptr<const Library> library, Communicator& host, tensor::Stream& stream,
                   DeviceOrder order);
  ~NcclCommunicator() override;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  int64_t deadline_ns() const override { return host_.deadline_ns(); }
  const FlightRecorder& flights() const override { return flights_; }
  std::unique_ptr<Communicator> split(int color, int key) override;
  bool can_record() const override { return true; }
  std::string trouble() override;
  void abort() override;

 protected:
  void execute(const Call& call) override;

 private:
  /// Transfers that NCCL starts together; none can end unless both of its sides take part.
  class Group;

  void open();
  void meet(const Call& call, int64_t sequence);
  void require_open() const;
  void require_working();
  template <class Work>
  void ask(const char* what, const Work& work);
  void settle(ncclResult_t result, const char* what, int64_t deadline);
  [[noreturn]] void fail(const char* what, std::string_view why) const;
  void perform(const Call& call);
  void reduce(const Call& call);
  void reduce_by_library(const Call& call);
  void reduce_piece(const Call& call, size_t at, size_t most);
  void share_piece(const Call& call, size_t at, size_t most);
  void all_to_all(const Call& call);
  void all_to_all_uneven(const Call& call);
  std::byte* scratch(size_t bytes);
  void send(ConstBytes data, int to);
  void receive(Bytes data, int from);
  void copy(std::byte* to, const std::byte* from, size_t bytes);
  cudaStream_t queue() const { return cuda::queue_of(stream_); }

  std::shared_ptr<const Library> library_;
  std::unique_ptr<Communicator> own_host_;  // set if split() made this group
  Communicator& host_;
  tensor::Stream& stream_;
  DeviceOrder order_;
  ncclComm_t group_ = nullptr;
  /// Serializes NCCL's calls about a group: the watch thread's abort() and trouble() and this rank's own
  /// calls. The calls do not block, so that no thread holds it for long.
  std::mutex use_;
  std::atomic<bool> failed_{false}, is_aborted_{false};
  base::SystemClock clock_;
  FlightRecorder flights_;
  std::vector<AskedLetter> questions_;  // [size]
  std::byte* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

class NcclCommunicator::Group {
 public:
  explicit Group(NcclCommunicator& owner) : owner_(owner), lock_(owner.use_) {
    owner_.require_open();
    owner_.library_->require(owner_.library_->group_start(), "beginning a group");
  }
  /// If it is not called, the destructor starts the group's transfers, but their errors are lost.
  void end() {
    open_ = false;
    const ncclResult_t result = owner_.library_->group_end();
    lock_.unlock();
    owner_.settle(result, "a group of transfers", owner_.deadline_ns());
  }
  ~Group() {
    if (open_) owner_.library_->group_end();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

 private:
  NcclCommunicator& owner_;
  std::unique_lock<std::mutex> lock_;
  bool open_ = true;
};

/// NCCL requires a GPU of its own for each rank, and may hang instead of reporting a shared one.
void require_own_gpus(Communicator& host) {
  std::array<char, 64> mine{};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(mine.data(), 36);
  int ordinal = 0;
  cuda::check_cuda(cudaGetDevice(&ordinal), "asking for the GPU of a rank");
  cuda::check_cuda(cudaDeviceGetPCIBusId(mine.data() + 36, 27, ordinal), "asking for the address of a GPU");
  std::vector<std::array<char, 64>> all(index(host.size()));
  host.all_gather(as_bytes(std::span(mine)), as_bytes(std::span(all)), "GPUs of ranks");
  for (int b = 1; b < host.size(); ++b) {
    for (int a = 0; a < b; ++a) {
      if (all[index(a)] != all[index(b)]) continue;
      base::fail_invalid("NCCL: ranks ", a, " and ", b, " have one GPU (", all[index(a)].data() + 36,
                         "): start as many ranks as there are GPUs, or let them share one with "
                         "TRIREME_DEVICE_LINK=staged");
    }
  }
}

NcclCommunicator::NcclCommunicator(std::shared_ptr<const Library> library, Communicator& host,
                                   tensor::Stream& stream, DeviceOrder order)
    : library_(std::move(library)),
      host_(host),
      stream_(stream),
      order_(order),
      questions_(index(host.size())) {
  try {
    open();
  } catch (const base::Error&) {
    abort();  // the destructor does not run after an exception here
    throw;
  }
}

/// NCCL's calls do not block: this rank waits for the others in settle(), where its deadline ends the wait.
void NcclCommunicator::open() {
  require_own_gpus(host_);
  ncclUniqueId id{};
  if (rank() == 0) library_->require(library_->get_unique_id(&id), "naming a group");
  host_.broadcast(as_bytes(std::span(&id, 1)), 0, "the name of a group of GPUs");
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const char* wish = std::getenv("TRIREME_NCCL_BLOCKING");
  config.blocking = wish != nullptr && std::string_view(wish) == "1" ? 1 : 0;
  settle(library_->init(&group_, size(), id, rank(), &config), "opening a group",
         opening_deadline_ns(deadline_ns()));
}

NcclCommunicator::~NcclCommunicator() {
  if (scratch_ != nullptr) cudaFreeAsync(scratch_, queue());
  if (group_ == nullptr || is_aborted_) return;
  try {
    if (!failed_) ask("ending a group", [this] { return library_->finalize(group_); });
  } catch (const base::Error&) {
    failed_ = true;
  }
  if (!is_aborted_) failed_ ? library_->abort(group_) : library_->destroy(group_);
}

/// Makes one call of NCCL and waits until it is queued.
template <class Work>
void NcclCommunicator::ask(const char* what, const Work& work) {
  std::unique_lock lock(use_);
  require_open();
  const ncclResult_t result = work();
  lock.unlock();
  settle(result, what, deadline_ns());
}

/// Waits until a call is queued, but no longer than `deadline` ns. The first call between two ranks is queued
/// only when the other rank makes it too.
void NcclCommunicator::settle(ncclResult_t result, const char* what, int64_t deadline) {
  constexpr int kTurns = 1000;  // polls before it begins to sleep
  const int64_t since = clock_.now_ns();
  for (int turn = 0; result == ncclInProgress; ++turn) {
    if (deadline > 0 && clock_.now_ns() - since > deadline) {
      abort();
      fail(what,
           base::concat("waits since ", (clock_.now_ns() - since) / base::kNsPerMs, " ms for other ranks"));
    }
    if (turn > kTurns) std::this_thread::sleep_for(std::chrono::microseconds(50));
    const std::lock_guard lock(use_);
    require_open();
    const ncclResult_t asked = library_->async_error(group_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result != ncclSuccess)
    fail(what, base::concat(library_->error_text(result), ": ", library_->last_error(nullptr)));
}

void NcclCommunicator::fail(const char* what, std::string_view why) const {
  const auto last = flights_.last();
  base::fail(base::ErrorCode::unavailable, "NCCL: rank ", rank(), ", ", what, ": ", why,
             last ? "; last queued: " + last->describe() : std::string());
}

std::string NcclCommunicator::trouble() {
  ncclResult_t state = ncclSuccess;
  const std::lock_guard lock(use_);
  if (is_aborted_ || group_ == nullptr) return {};
  const ncclResult_t asked = library_->async_error(group_, &state);
  const ncclResult_t worse = asked != ncclSuccess ? asked : state;
  return worse == ncclSuccess || worse == ncclInProgress ? "" : library_->error_text(worse);
}

/// Ends the kernels of this rank without their peers; the stream then goes on.
void NcclCommunicator::abort() {
  failed_ = true;
  const std::lock_guard lock(use_);
  if (!is_aborted_.exchange(true) && group_ != nullptr) library_->abort(group_);
}

void NcclCommunicator::execute(const Call& call) {
  Flight flight{.what = call.what, .to = call.to, .from = call.from};
  flight.bytes = static_cast<int64_t>(call.in.empty() ? call.out.size() : call.in.size());
  const int64_t sequence = flights_.enqueue(flight, call.source, clock_.now_ns());
  try {
    require_working();
    if (call.what == Collective::barrier) stream_.synchronize();
    if (call.what != Collective::exchange) meet(call, sequence);
    flights_.start(clock_.now_ns());
    perform(call);
  } catch (const base::Error&) {
    failed_ = true;  // peers may never arrive: the group cannot be finalized in order
    throw;
  }
  flights_.end(clock_.now_ns());
}

/// The ranks show each other over the host what they ask for; the host's watchdog names a rank that is late.
void NcclCommunicator::meet(const Call& call, int64_t sequence) {
  AskedLetter own;
  own.write(asked(call, sequence));
  host_.all_gather(as_bytes(std::span(&own, 1)), as_bytes(std::span(questions_)), call.source);
  for (int r = 1; r < size(); ++r) {
    const Asked first = questions_[0].read(), other = questions_[index(r)].read();
    base::require(same(first, other), disagreement(0, first, r, other));
  }
}

void NcclCommunicator::require_open() const {
  if (is_aborted_) fail("a call", "this group was given up");
}

void NcclCommunicator::require_working() {
  ncclResult_t state = ncclSuccess;
  const std::lock_guard lock(use_);
  require_open();
  library_->require(library_->async_error(group_, &state), "asking for errors");
  library_->require(state, "an operation before this one");
}

void NcclCommunicator::perform(const Call& call) {
  const Library& l = *library_;
  switch (call.what) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      return order_ == DeviceOrder::library ? reduce_by_library(call) : reduce(call);
    case Collective::all_gather:
      return ask("all_gather", [&] {
        return l.all_gather(call.in.data(), call.out.data(), call.in.size(), ncclUint8, group_, queue());
      });
    case Collective::broadcast:
      return ask("broadcast", [&] {
        return l.broadcast(call.in.data(), call.out.data(), call.out.size(), ncclUint8, call.to, group_,
                           queue());
      });
    case Collective::all_to_all: return all_to_all(call);
    case Collective::exchange: {
      Group both(*this);
      if (call.to >= 0) send(call.in, call.to);
      if (call.from >= 0) receive(call.out, call.from);
      return both.end();
    }
    case Collective::barrier:
    case Collective::split:
    case Collective::finish: return;
  }
}

void NcclCommunicator::reduce_by_library(const Call& call) {
  const Library& l = *library_;
  const ncclDataType_t type = type_of(call.reduction.dtype);
  const ncclRedOp_t op = call.reduction.op == ReduceOp::sum ? ncclSum : ncclMax;
  const size_t count = call.out.size() / bytes_of(call.reduction);
  const bool all = call.what == Collective::all_reduce;
  const auto run = all ? l.all_reduce : l.reduce_scatter;
  ask("a reduction", [&] { return run(call.in.data(), call.out.data(), count, type, op, group_, queue()); });
}

/// Part r goes to rank r, which sums it in the order of the tree; the stream keeps the steps in order.
void NcclCommunicator::reduce(const Call& call) {
  const size_t most = std::max(kScratchBytes / index(size()), kLeastPieceBytes) / kSliceBytes * kSliceBytes;
  const size_t longest = longest_part(call, size());
  for (size_t at = 0; at < longest; at += most) {
    reduce_piece(call, at, most);
    if (call.what == Collective::all_reduce) share_piece(call, at, most);
  }
}

void NcclCommunicator::reduce_piece(const Call& call, size_t at, size_t most) {
  const size_t stride = std::min(most, longest_part(call, size()));
  std::byte* pieces = scratch(stride * index(size()));
  const Part part = part_of(call, rank(), size()), mine = piece_of(part, at, most);
  Group transfers(*this);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const Part theirs = piece_of(part_of(call, r, size()), at, most);
    send(call.in.subspan(theirs.begin, theirs.bytes()), r);
    receive({pieces + index(r) * stride, mine.bytes()}, r);
  }
  transfers.end();
  const size_t element = bytes_of(call.reduction);
  const size_t to = call.what == Collective::all_reduce ? mine.begin : mine.begin - part.begin;
  cuda::tree_reduce({stream_, call.reduction.dtype}, {.pieces = pieces,
                                                      .own = call.in.data() + mine.begin,
                                                      .out = call.out.data() + to,
                                                      .stride = static_cast<int64_t>(stride / element),
                                                      .n = static_cast<int64_t>(mine.bytes() / element),
                                                      .rank = rank(),
                                                      .ranks = size(),
                                                      .maximum = call.reduction.op == ReduceOp::max});
}

void NcclCommunicator::share_piece(const Call& call, size_t at, size_t most) {
  const Part mine = piece_of(part_of(call, rank(), size()), at, most);
  Group transfers(*this);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const Part theirs = piece_of(part_of(call, r, size()), at, most);
    send(call.out.subspan(mine.begin, mine.bytes()), r);
    receive(call.out.subspan(theirs.begin, theirs.bytes()), r);
  }
  transfers.end();
}

/// In place, the blocks are sent from a copy.
void NcclCommunicator::all_to_all(const Call& call) {
  if (!call.in_sizes.empty()) return all_to_all_uneven(call);
  const size_t block = call.out.size() / index(size());
  const std::byte* from = call.in.data();
  if (call.in.data() == call.out.data()) {
    std::byte* leaving = scratch(call.in.size());
    copy(leaving, call.in.data(), call.in.size());
    from = leaving;
  }
  const size_t own = index(rank()) * block;
  copy(call.out.data() + own, from + own, block);
  Group transfers(*this);
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    send({from + index(r) * block, block}, r);
    receive(call.out.subspan(index(r) * block, block), r);
  }
  transfers.end();
}

/// The ranks first compare all sizes over the host, so that all reach the same verdict.
void NcclCommunicator::all_to_all_uneven(const Call& call) {
  const size_t n = index(size());
  std::vector<int64_t> own(call.in_sizes.begin(), call.in_sizes.end()), rows(n * 2 * n);
  own.insert(own.end(), call.out_sizes.begin(), call.out_sizes.end());
  host_.all_gather(as_bytes(std::span(own)), as_bytes(std::span(rows)), call.source);
  std::vector<SizesOf> sizes;
  for (size_t r = 0; r < n; ++r) {
    const std::span<const int64_t> both = std::span(rows).subspan(r * 2 * n, 2 * n);
    sizes.push_back({static_cast<int>(r), both.first(n), both.last(n), questions_[r].source.data()});
  }
  const std::string text = disagreement(sizes);
  base::require(text.empty(), text);
  Group transfers(*this);
  for (int r = 0; r < size(); ++r) {
    const ConstBytes leaving =
        call.in.subspan(block_begin(call.in_sizes, r), static_cast<size_t>(call.in_sizes[index(r)]));
    const Bytes coming =
        call.out.subspan(block_begin(call.out_sizes, r), static_cast<size_t>(call.out_sizes[index(r)]));
    if (r == rank()) {
      copy(coming.data(), leaving.data(), coming.size());
      continue;
    }
    send(leaving, r);
    receive(coming, r);
  }
  transfers.end();
}

void NcclCommunicator::send(ConstBytes data, int to) {
  if (data.empty()) return;
  library_->require(library_->send(data.data(), data.size(), ncclUint8, to, group_, queue()), "send");
}

void NcclCommunicator::receive(Bytes data, int from) {
  if (data.empty()) return;
  library_->require(library_->receive(data.data(), data.size(), ncclUint8, from, group_, queue()), "receive");
}

void NcclCommunicator::copy(std::byte* to, const std::byte* from, size_t bytes) {
  if (to == from || bytes == 0) return;
  cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, queue()), "copying a block");
}

/// Grows the device buffer; the old one is freed in stream order, after the work that is queued on it.
std::byte* NcclCommunicator::scratch(size_t bytes) {
  if (bytes <= scratch_bytes_) return scratch_;
  if (scratch_ != nullptr) cuda::check_cuda(cudaFreeAsync(scratch_, queue()), "freeing scratch memory");
  scratch_ = nullptr;
  scratch_bytes_ = 0;
  void* made = nullptr;
  cuda::check_cuda(cudaMallocAsync(&made, bytes, queue()), "scratch memory of a collective");
  scratch_ = static_cast<std::byte*>(made);
  scratch_bytes_ = bytes;
  return scratch_;
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  std::unique_ptr<Communicator> part = host_.split(color, key);
  auto group = std::make_unique<NcclCommunicator>(library_, *part, stream_, order_);
  group->own_host_ = std::move(part);
  return group;
}

}  // namespace

bool has_nccl() { return true; }

std::string nccl_refusal() {
  try {
    const Library library;
    return {};
  } catch (const base::Error& e) {
    return e.message();
  }
}

std::unique_ptr<DeviceGroup> open_nccl(Communicator& host, tensor::Stream& stream, DeviceOrder order) {
  base::require(stream.kind() == tensor::DeviceKind::cuda, "NCCL takes streams of GPUs");
  return std::make_unique<NcclCommunicator>(std::make_shared<const Library>(), host, stream, order);
}

}  // namespace trireme::comm
#endif
