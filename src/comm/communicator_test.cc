// One conformance suite for every communicator: compares each operation with naive loops over world sizes,
// types, lengths and alignments; then tests which misuse fails and with which error. Under mpirun the suite
// Mpi runs on the ranks of the job.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backend/cuda/device/cuda_device.h"
#include "base/error.h"
#include "comm/device_group.h"
#include "comm/local.h"
#include "comm/mesh.h"
#include "comm/mpi.h"
#include "comm/nccl.h"
#include "comm/world.h"

namespace trireme::comm {
namespace {

using base::Error;
using base::ErrorCode;
using tensor::BFloat16;
using tensor::DType;
using tensor::Half;

using Body = std::function<void(Communicator&)>;

struct Watch {
  int64_t deadline_ns = 0;
  std::function<void(const std::string&)> on_stuck = {};
};

/// How the suite starts ranks: runs a body on each rank of a new world.
struct Launcher {
  std::string name;
  std::function<void(int size, const Body&, const Watch&)> run;
  bool is_world = true;  ///< false: a single group, which learns only from a watchdog that a rank is done
};

void run_local(int size, const Body& body, const Watch& watch = {}) {
  LocalWorld(size, {.deadline_ns = watch.deadline_ns, .on_stuck = watch.on_stuck}).run(body);
}

/// The number of GPUs for ranks; 0 in builds without the toolkit.
int gpus() {
  try {
    return cuda::has_toolkit() ? static_cast<int>(cuda::list_gpus().size()) : 0;
  } catch (const Error&) {
    return 0;
  }
}

/// The device of a rank. Ranks share the GPUs if there are fewer GPUs than ranks.
std::shared_ptr<tensor::Device> device_of(int rank) {
  return cuda::has_toolkit() ? cuda::open_gpu(rank % std::max(1, gpus())) : cuda::open_emulated(rank);
}

/// Copies host buffers to and from a device's memory, on which the device group under test works.
class ThroughDevice final : public Communicator {
 public:
  using Open = std::unique_ptr<DeviceGroup> (*)(Communicator&, tensor::Device&, tensor::Stream&);
  ThroughDevice(Communicator& host, Open open)
      : device_(device_of(host.rank())),
        pool_(std::make_shared<base::ThreadPool>(1)),
        stream_(
            dynamic_cast<cuda::CudaDevice&>(*device_).open_stream(*pool_, cuda::StreamRole::communication)),
        group_(open(host, *device_, *stream_)) {}
  ThroughDevice(const ThroughDevice& of, std::unique_ptr<Communicator> group)
      : device_(of.device_), pool_(of.pool_), stream_(of.stream_), group_(std::move(group)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const FlightRecorder& flights() const override { return group_->flights(); }
  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<ThroughDevice>(*this, group_->split(color, key));
  }

 protected:
  void execute(const Call& call) override {
    const std::byte *in = call.in.data(), *out = call.out.data();
    const bool is_one = in != nullptr && out != nullptr && in <= out + call.out.size() &&
                        out <= in + call.in.size();  // in place: both are one block of memory
    const std::byte* begin = in == nullptr ? out : is_one ? std::min(in, out) : in;
    const auto shift = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % 64);
    const auto far = static_cast<int64_t>((call.in.size() + 127) / 64 * 64);
    const int64_t in_at = shift + (in == nullptr ? 0 : in - begin);
    const int64_t out_at = shift + (out == nullptr || in == nullptr ? 0 : is_one ? out - begin : far);
    const std::shared_ptr<void> memory =
        device_->allocate(shift + far + 64 + static_cast<int64_t>(call.in.size() + call.out.size()));
    auto* base = static_cast<std::byte*>(memory.get());
    const auto bytes = [](size_t n) { return static_cast<int64_t>(n); };
    stream_->upload(base + out_at, out, bytes(call.out.size()));
    stream_->upload(base + in_at, in, bytes(call.in.size()));
    stream_->synchronize();
    repeat(*group_, call, {base + in_at, call.in.size()}, {base + out_at, call.out.size()});
    stream_->download(call.out.data(), base + out_at, bytes(call.out.size()));
    stream_->synchronize();
  }

 private:
  std::shared_ptr<tensor::Device> device_;
  std::shared_ptr<base::ThreadPool> pool_;
  std::shared_ptr<cuda::CudaStream> stream_;
  std::unique_ptr<Communicator> group_;
};

void run_through_device(int size, const Body& body, const Watch& watch, ThroughDevice::Open open) {
  run_local(
      size,
      [&](Communicator& host) {
        ThroughDevice device(host, open);
        body(device);
      },
      watch);
}
void run_calls(int size, const Body& body, const Watch& watch) {
  run_through_device(size, body, watch, [](Communicator& host, tensor::Device&, tensor::Stream& stream) {
    return open_calls(host, stream);
  });
}
void run_staged(int size, const Body& body, const Watch& watch) {
  run_through_device(size, body, watch, open_staged);
}
void run_nccl(int size, const Body& body, const Watch& watch) {
  run_through_device(size, body, watch, [](Communicator& host, tensor::Device&, tensor::Stream& stream) {
    return open_nccl(host, stream);
  });
}
std::vector<int> emulated_sizes() {
  return cuda::has_toolkit() ? std::vector<int>{} : std::vector<int>{1, 2, 3, 4, 8};
}
std::vector<int> staged_sizes() { return gpus() > 0 ? std::vector<int>{1, 2, 3} : emulated_sizes(); }
/// World sizes with a GPU for each rank.
std::vector<int> nccl_sizes() {
  std::vector<int> sizes;
  for (int size = 1; has_nccl() && size <= gpus(); size *= 2) sizes.push_back(size);
  return sizes;
}

/// Keeps MPI initialised from the first test to the last, if a launcher started this process.
class MpiEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    if (launched_rank() && has_mpi()) session_.emplace();
  }
  void TearDown() override { session_.reset(); }
  void run(const Body& body, const Watch& watch) {
    MpiWorld(*session_, {.deadline_ns = watch.deadline_ns, .on_stuck = watch.on_stuck}).run(body);
  }

 private:
  std::optional<MpiSession> session_;
};
MpiEnvironment& mpi() {
  static MpiEnvironment* const environment = [] {
    auto made = std::make_unique<MpiEnvironment>();
    MpiEnvironment* const kept = made.release();  // GoogleTest deletes it
    ::testing::AddGlobalTestEnvironment(kept);
    return kept;
  }();
  return *environment;
}

void run_mpi(int, const Body& body, const Watch& watch) { mpi().run(body, watch); }

/// The size of the MPI job; empty outside of one.
std::vector<int> mpi_sizes() {
  mpi();
  const std::optional<LaunchedRank> rank = launched_rank();
  return rank && has_mpi() ? std::vector<int>{rank->size} : std::vector<int>{};
}

class Conformance : public ::testing::TestWithParam<std::tuple<Launcher, int>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  void run(const Body& body, const Watch& watch = {}) const {
    std::get<0>(GetParam()).run(size(), body, watch);
  }
};

/// A buffer that begins `shift` bytes past an aligned address.
class Shifted {
 public:
  Shifted(size_t bytes, size_t shift) : store_(bytes + shift + 64), bytes_(bytes), shift_(shift) {}
  Bytes span() { return Bytes(store_).subspan(shift_, bytes_); }
  template <class T>
  void set(size_t i, T value) {
    std::memcpy(span().data() + i * sizeof(T), &value, sizeof(T));
  }
  template <class T>
  T get(size_t i) {
    T value;
    std::memcpy(&value, span().data() + i * sizeof(T), sizeof(T));
    return value;
  }

 private:
  std::vector<std::byte> store_;
  size_t bytes_, shift_;
};

/// Element i of rank r. Magnitudes vary widely, so that a sum in another order gives other bits.
template <class T>
T element(int rank, size_t i) {
  const auto mixed = static_cast<uint32_t>((static_cast<uint64_t>(rank) * 7919 + i * 104729 + 13) % 65521);
  const double x = (static_cast<double>(mixed) - 32760.0) * std::pow(2.0, static_cast<int>(mixed % 11) - 13);
  if constexpr (std::is_same_v<T, int64_t>) {
    return static_cast<int64_t>(mixed) * 1000003 - 32760000000;
  } else {
    return T(static_cast<float>(x));
  }
}

/// The documented order of reduction, written as its definition states. A is float for 16-bit types.
template <class T, class A>
A tree(int low, int n, size_t i, ReduceOp op) {
  if (n == 1) return static_cast<A>(element<T>(low, i));
  int p = 1;
  while (2 * p < n) p *= 2;
  const A a = tree<T, A>(low, p, i, op), b = tree<T, A>(low + p, n - p, i, op);
  return op == ReduceOp::sum ? a + b : std::max(a, b);
}

template <class T>
T expected(int ranks, size_t i, ReduceOp op) {
  using A = std::conditional_t<sizeof(T) == 2, float, T>;
  return T(tree<T, A>(0, ranks, i, op));
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Returns the error that `body` throws; fails the test if it throws none.
Error error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "no error";
  return Error(ErrorCode::internal, "none");
}

bool mentions(const Error& e, std::string_view text) { return e.message().find(text) != std::string::npos; }

const std::vector<size_t> kLengths{0, 1, 3, 17, 64, 1000, 4099};

template <class T>
void check_all_reduce(Communicator& c, ReduceOp op) {
  for (const size_t n : kLengths) {
    for (const size_t shift : {0u, 1u, 6u}) {
      Shifted in(n * sizeof(T), shift), out(n * sizeof(T), shift + 3);
      for (size_t i = 0; i < n; ++i) in.set(i, element<T>(c.rank(), i));
      const Reduction reduction{tensor::dtype_of<T>(), op};
      c.all_reduce(in.span(), out.span(), reduction, "apart");
      c.all_reduce(in.span(), reduction, "in place");
      size_t wrong = 0;
      for (size_t i = 0; i < n; ++i) {
        const T want = expected<T>(c.size(), i, op);
        wrong += !same_bits(out.get<T>(i), want) || !same_bits(in.get<T>(i), want);
      }
      EXPECT_EQ(wrong, 0u) << n << " elements, shift " << shift << ", " << name_of(tensor::dtype_of<T>());
    }
  }
}

template <class T>
void check_reduce_scatter(Communicator& c, ReduceOp op) {
  const auto ranks = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.rank());
  for (const size_t n : kLengths) {
    Shifted in(n * ranks * sizeof(T), 1), out(n * sizeof(T), 0);
    for (size_t i = 0; i < n * ranks; ++i) in.set(i, element<T>(c.rank(), i));
    const Reduction reduction{tensor::dtype_of<T>(), op};
    c.reduce_scatter(in.span(), out.span(), reduction);
    const Bytes own = in.span().subspan(me * n * sizeof(T), n * sizeof(T));
    c.reduce_scatter(in.span(), own, reduction);
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      const T want = expected<T>(c.size(), me * n + i, op);
      wrong += !same_bits(out.get<T>(i), want) || !same_bits(in.get<T>(me * n + i), want);
    }
    EXPECT_EQ(wrong, 0u) << n << " elements";
  }
}

template <class T>
void check_reductions(Communicator& c) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
    check_all_reduce<T>(c, op);
    check_reduce_scatter<T>(c, op);
  }
}

TEST_P(Conformance, ReductionsHaveTheBitsOfTheTree) {
  run([](Communicator& c) {
    check_reductions<float>(c);
    check_reductions<double>(c);
    check_reductions<int64_t>(c);
    check_reductions<Half>(c);
    check_reductions<BFloat16>(c);
  });
}

TEST_P(Conformance, MaximumKeepsNaN) {
  run([](Communicator& c) {
    for (int bad = 0; bad < c.size(); ++bad) {
      std::vector<float> x(19, static_cast<float>(c.rank()));
      if (c.rank() == bad) x[7] = x[18] = std::numeric_limits<float>::quiet_NaN();
      c.all_reduce(as_bytes(std::span(x)), {DType::f32, ReduceOp::max});
      EXPECT_TRUE(std::isnan(x[7]) && std::isnan(x[18])) << "NaN of rank " << bad;
      EXPECT_EQ(x[0], static_cast<float>(c.size() - 1));
    }
  });
}

/// Byte i of the block that rank `from` sends to rank `to`.
std::byte mark(int from, int to, size_t i) {
  return static_cast<std::byte>((static_cast<size_t>(from) * 31 + static_cast<size_t>(to) * 57 + i * 7) %
                                251);
}

void check_gather(Communicator& c, size_t n) {
  const auto ranks = static_cast<size_t>(c.size()), me = static_cast<size_t>(c.rank());
  Shifted in(n, 1), out(n * ranks, 2), placed(n * ranks, 3);
  for (size_t i = 0; i < n; ++i) in.span()[i] = placed.span()[me * n + i] = mark(c.rank(), 0, i);
  c.all_gather(in.span(), out.span());
  c.all_gather(placed.span().subspan(me * n, n), placed.span());
  size_t wrong = 0;
  for (size_t i = 0; i < n * ranks; ++i) {
    const std::byte want = mark(static_cast<int>(i / n), 0, i % n);
    wrong += out.span()[i] != want || placed.span()[i] != want;
  }
  EXPECT_EQ(wrong, 0u) << n << " bytes a block";
}

void check_all_to_all(Communicator& c, size_t n) {
  const auto ranks = static_cast<size_t>(c.size());
  Shifted in(n * ranks, 1), out(n * ranks, 2);
  for (size_t i = 0; i < n * ranks; ++i) in.span()[i] = mark(c.rank(), static_cast<int>(i / n), i % n);
  c.all_to_all(in.span(), out.span());
  c.all_to_all(in.span(), in.span());
  size_t wrong = 0;
  for (size_t i = 0; i < n * ranks; ++i) {
    const std::byte want = mark(static_cast<int>(i / n), c.rank(), i % n);
    wrong += out.span()[i] != want || in.span()[i] != want;
  }
  EXPECT_EQ(wrong, 0u) << n << " bytes a block";
}

void check_broadcast(Communicator& c, size_t n) {
  for (int root = 0; root < c.size(); ++root) {
    Shifted data(n, 5);
    for (size_t i = 0; i < n; ++i) data.span()[i] = mark(c.rank(), 9, i);
    c.broadcast(data.span(), root);
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) wrong += data.span()[i] != mark(root, 9, i);
    EXPECT_EQ(wrong, 0u) << n << " bytes from " << root;
  }
}

/// The number of bytes that rank `from` sends to rank `to`: zero for some pairs, many for others.
int64_t uneven_bytes(int from, int to) {
  const int kind = (from * 3 + to) % 4;
  return kind == 0 ? 0 : kind == 1 ? 70'001 : 13 * from + to + 1;
}

TEST_P(Conformance, MovesUnevenBlocks) {
  run([](Communicator& c) {
    std::vector<int64_t> sent, received;
    std::vector<std::byte> in, want;
    for (int r = 0; r < c.size(); ++r) {
      sent.push_back(uneven_bytes(c.rank(), r));
      received.push_back(uneven_bytes(r, c.rank()));
      for (int64_t i = 0; i < sent.back(); ++i) in.push_back(mark(c.rank(), r, static_cast<size_t>(i)));
      for (int64_t i = 0; i < received.back(); ++i) want.push_back(mark(r, c.rank(), static_cast<size_t>(i)));
    }
    std::vector<std::byte> out(want.size());
    c.all_to_all(in, out, {sent, received}, "experts");
    EXPECT_TRUE(out == want);
    EXPECT_THROW(c.all_to_all(in, out, {std::span(sent).first(0), received}), Error);
    in.emplace_back();
    EXPECT_THROW(c.all_to_all(in, out, {sent, received}), Error);
    c.barrier();  // the refused call sent nothing to the other ranks
  });
}

TEST_P(Conformance, NamesWhoExpectsAnotherBlock) {
  if (size() == 1) return;
  const Error error = error_of([&] {
    run([](Communicator& c) {
      std::vector<int64_t> sent(static_cast<size_t>(c.size()), 8), received = sent;
      if (c.rank() == 1) received[0] = 12;
      std::vector<std::byte> in(8 * sent.size()), out(in.size() + (c.rank() == 1 ? 4 : 0));
      c.all_to_all(in, out, {sent, received}, "experts");
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(mentions(error, "rank 0 sends 8 bytes for layer 'experts', rank 1 expects 12"))
      << error.message();
}

TEST_P(Conformance, MovesBytes) {
  run([](Communicator& c) {
    for (const size_t n : {size_t{0}, size_t{1}, size_t{13}, size_t{4096}, size_t{10001}}) {
      if (n > 0) check_gather(c, n);
      if (n > 0) check_all_to_all(c, n);
      check_broadcast(c, n);
    }
    c.barrier();
  });
}

/// An element that is cheap to compute and whose sums are not exact.
float large_element(int rank, size_t i) {
  return static_cast<float>(rank + 1) * 1e-3f * static_cast<float>(i % 8191);
}

float large_sum(int low, int n, size_t i) {
  if (n == 1) return large_element(low, i);
  const int left = left_share(n);
  return large_sum(low, left, i) + large_sum(low + left, n - left, i);
}

TEST_P(Conformance, LargeBuffersGoInPieces) {
  run([](Communicator& c) {
    const size_t ranks = static_cast<size_t>(c.size()), n = 300'001 * ranks;
    std::vector<float> x(n), whole(n), part(n / ranks);
    for (size_t i = 0; i < n; ++i) x[i] = large_element(c.rank(), i);
    c.reduce_scatter(as_bytes(std::span(x)), as_bytes(std::span(part)), {});
    c.all_gather(as_bytes(std::span(part)), as_bytes(std::span(whole)));
    c.all_reduce(as_bytes(std::span(x)), {});
    size_t wrong = 0;
    for (size_t i = 0; i < n; ++i) {
      const float want = large_sum(0, c.size(), i);
      wrong += !same_bits(x[i], want) || !same_bits(whole[i], want);
    }
    EXPECT_EQ(wrong, 0u);
    check_all_to_all(c, 300'007);
    check_broadcast(c, 700'001);
  });
}

TEST_P(Conformance, PointToPoint) {
  run([](Communicator& c) {
    if (c.size() == 1) return;
    const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
    for (int round = 0; round < 50; ++round) {
      int64_t mine = c.rank() * 1000 + round, theirs = -1;
      c.exchange(as_bytes(std::span(&mine, 1)), as_bytes(std::span(&theirs, 1)), {next, before}, "ring");
      EXPECT_EQ(theirs, before * 1000 + round);
    }
    // A chain: each rank adds its number and passes the sum on.
    int64_t sum = 0;
    if (c.rank() > 0) c.recv(as_bytes(std::span(&sum, 1)), c.rank() - 1);
    sum += c.rank();
    if (c.rank() + 1 < c.size()) c.send(as_bytes(std::span(&sum, 1)), c.rank() + 1);
    EXPECT_EQ(sum, c.rank() * (c.rank() + 1) / 2);
  });
}

TEST_P(Conformance, GroupsWorkSideBySide) {
  run([](Communicator& c) {
    // Ranks of one colour are ordered by key: here in the reverse order of their ranks.
    const auto group = c.split(c.rank() % 2, -c.rank());
    const int members = (c.size() - c.rank() % 2 + 1) / 2;
    ASSERT_EQ(group->size(), members);
    EXPECT_EQ(group->rank(), members - 1 - c.rank() / 2);
    for (int round = 0; round < 200; ++round) {
      int64_t sum = c.rank();
      group->all_reduce(as_bytes(std::span(&sum, 1)), {DType::i64, ReduceOp::sum});
      EXPECT_EQ(sum, members * (members - 1) + members * (c.rank() % 2));
    }
    c.barrier();
    const auto alone = c.split(c.rank(), 0);
    EXPECT_EQ(alone->size(), 1);
  });
}

TEST_P(Conformance, RunsOfRanksKeepTheBitsOfOne) {
  // There are 8 micro-batches; each of 1, 2, 4 or 8 ranks sums its own run of them by the same tree.
  if (8 % size() != 0) return;
  run([](Communicator& c) {
    const int each = 8 / c.size();
    std::vector<float> x(1001);
    for (size_t i = 0; i < x.size(); ++i) x[i] = tree<float, float>(c.rank() * each, each, i, ReduceOp::sum);
    c.all_reduce(as_bytes(std::span(x)), {});
    size_t wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) wrong += !same_bits(x[i], expected<float>(8, i, ReduceOp::sum));
    EXPECT_EQ(wrong, 0u);
  });
}

TEST_P(Conformance, NamesWhoDisagrees) {
  if (size() == 1) return;
  const int odd = size() - 1;
  const std::string odd_name = "rank " + std::to_string(odd) + " for ";
  const Error sizes = error_of([&] {
    run([&](Communicator& c) {
      std::vector<float> x(c.rank() == odd ? 5 : 4);
      c.all_reduce(as_bytes(std::span(x)), {}, "h.1.mlp");
    });
  });
  EXPECT_EQ(sizes.code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(mentions(sizes, odd_name + "all_reduce #1, 20 bytes")) << sizes.message();
  EXPECT_TRUE(mentions(sizes, "h.1.mlp")) << sizes.message();
  const Error ops = error_of([&] {
    run([&](Communicator& c) {
      std::vector<float> x(4);
      c.rank() == odd ? c.barrier() : c.all_reduce(as_bytes(std::span(x)), {});
    });
  });
  EXPECT_TRUE(mentions(ops, odd_name + "barrier")) << ops.message();
  if (!std::get<0>(GetParam()).is_world) return;
  const Error early = error_of([&] {
    run([&](Communicator& c) {
      if (c.rank() != odd) c.barrier("loss");
    });
  });
  EXPECT_TRUE(mentions(early, odd_name + "the end of the rank")) << early.message();
}

TEST_P(Conformance, RefusesWhatOneRankCanSee) {
  run([](Communicator& c) {
    std::vector<std::byte> x(24 * static_cast<size_t>(c.size()));
    const Bytes all(x);
    EXPECT_THROW(c.all_reduce(all.first(16), all.subspan(8, 16), {}), Error);
    EXPECT_THROW(c.all_reduce(all.first(7), {}), Error);
    EXPECT_THROW(c.all_reduce(all, {DType::i8, ReduceOp::sum}), Error);
    EXPECT_THROW(c.broadcast(all, c.size()), Error);
    EXPECT_THROW(c.send(all, c.rank()), Error);
    EXPECT_THROW(c.all_gather(all, all.first(1)), Error);
    c.barrier();  // the refused calls sent nothing to the other ranks
  });
}

TEST_P(Conformance, DeadRankWakesAll) {
  if (size() == 1) return;
  const Error error = error_of([&] {
    run([&](Communicator& c) {
      const auto group = c.split(0, c.rank());
      if (c.rank() == 1) throw Error(ErrorCode::exhausted, "no memory left");
      const Error mine = error_of([&] { c.rank() == 0 ? group->barrier() : c.barrier(); });
      EXPECT_EQ(mine.code(), ErrorCode::unavailable);
      EXPECT_TRUE(mentions(mine, "rank 1 is gone: no memory left")) << mine.message();
      throw mine;
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::exhausted) << error.message();
  EXPECT_TRUE(mentions(error, "rank 1")) << error.message();
}

TEST_P(Conformance, FailureAmidLargeTransfersEndsAll) {
  if (size() == 1) return;
  for (int round = 0; round < 12; ++round) {
    const int dies = round % size();
    const Error error = error_of([&] {
      run([&](Communicator& c) {
        const auto ring = c.split(0, c.rank());
        std::vector<float> x(100'000 * (1 + static_cast<size_t>(round) % 4), 1.0f), y(x.size());
        const int next = (c.rank() + 1) % c.size(), before = (c.rank() + c.size() - 1) % c.size();
        for (int i = 0;; ++i) {
          if (c.rank() == dies && i == round) throw Error(ErrorCode::exhausted, "no memory left");
          c.all_reduce(as_bytes(std::span(x)), {}, "large");
          ring->exchange(as_bytes(std::span(x)), as_bytes(std::span(y)), {next, before}, "ring");
          const size_t whole = x.size() / 840 * 840;  // divides into equal blocks for 1 to 8 ranks
          if (round % 2 == 1)
            c.all_to_all(as_bytes(std::span(y).first(whole)), as_bytes(std::span(x).first(whole)));
        }
      });
    });
    EXPECT_EQ(error.code(), ErrorCode::exhausted) << error.message();
    EXPECT_TRUE(mentions(error, "rank " + std::to_string(dies) + ": no memory left")) << error.message();
  }
}

TEST_P(Conformance, ReceiverThatExpectsOtherSize) {
  if (size() == 1) return;
  const Error error = error_of([&] {
    run([](Communicator& c) {
      std::vector<std::byte> x(c.rank() == 0 ? 8 : 12);
      if (c.rank() == 0) c.send(x, 1, "stage 0");
      if (c.rank() == 1) c.recv(x, 0, "stage 1");
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(mentions(error, "rank 0 sends 8 bytes for layer 'stage 0', rank 1 expects 12"))
      << error.message();
}

// Short enough for a test, yet long enough that correct ranks on a busy machine do not exceed it.
const Watch kShortDeadline{.deadline_ns = 500'000'000};

TEST_P(Conformance, WatchdogNamesRankCollectiveAndLayer) {
  if (size() == 1 || size() > 4) return;  // the test waits in real time, so it runs for a few sizes only
  const int late = size() - 1;
  const Error error = error_of([&] {
    run(
        [&](Communicator& c) {
          c.barrier("first");
          std::vector<float> x(8);
          if (c.rank() == late) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1500));
            return;
          }
          c.all_reduce(as_bytes(std::span(x)), {}, "h.7.attention");
        },
        kShortDeadline);
  });
  EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.message();
  EXPECT_TRUE(mentions(error, "all_reduce #2 of 32 bytes for layer 'h.7.attention' waits"))
      << error.message();
  const std::string name = "rank " + std::to_string(late);
  EXPECT_TRUE(mentions(
      error, "; not started by " + name + "; " + name + " last finished barrier #1 for layer 'first'"))
      << error.message();
}

TEST_P(Conformance, WatchdogSeesTwoThatSendToEachOther) {
  if (size() == 1) return;
  // A third rank would be done and wait in the world group, and the watchdog may name that group first.
  if (!std::get<0>(GetParam()).is_world && size() > 2) return;
  const Error error = error_of([&] {
    run(
        [](Communicator& c) {
          std::vector<std::byte> x(4);
          if (c.rank() < 2) c.send(x, 1 - c.rank(), "stage");
        },
        kShortDeadline);
  });
  // The report is about the rank that has waited longer.
  EXPECT_TRUE(mentions(error, "not started by rank 1; rank 1 is in exchange to 0") ||
              mentions(error, "not started by rank 0; rank 0 is in exchange to 1"))
      << error.message();
}

TEST_P(Conformance, WatchdogLeavesSlowWorkAlone) {
  if (size() > 4) return;
  std::string report;
  const auto on_stuck = [&](const std::string& r) { report = r; };
  run(
      [](Communicator& c) {
        for (int i = 0; i < 8; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(150));
          c.barrier();
        }
      },
      {.deadline_ns = 1'000'000'000, .on_stuck = on_stuck});
  EXPECT_EQ(report, "");
}

TEST_P(Conformance, FlightsKeepTheLastAndNumberCollectives) {
  run([](Communicator& c) {
    for (int i = 0; i < 300; ++i) c.barrier("layer " + std::to_string(i));
    const std::vector<Flight> history = c.flights().history();
    ASSERT_EQ(history.size(), 256u);
    EXPECT_EQ(history.front().sequence, 45);
    EXPECT_EQ(history.back().sequence, 300);
    EXPECT_EQ(history.back().source(), "layer 299");
    for (const Flight& f : history) {
      EXPECT_TRUE(0 < f.enqueue_ns && f.enqueue_ns <= f.start_ns && f.start_ns <= f.end_ns);
    }
  });
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<Launcher, int>>& chosen) {
  return std::get<0>(chosen.param).name + std::to_string(std::get<1>(chosen.param));
}

INSTANTIATE_TEST_SUITE_P(Local, Conformance,
                         ::testing::Combine(::testing::Values(Launcher{"local", run_local}),
                                            ::testing::Range(1, 9)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Calls, Conformance,
                         ::testing::Combine(::testing::Values(Launcher{"calls", run_calls, false}),
                                            ::testing::ValuesIn(emulated_sizes())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Staged, Conformance,
                         ::testing::Combine(::testing::Values(Launcher{"staged", run_staged, false}),
                                            ::testing::ValuesIn(staged_sizes())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Nccl, Conformance,
                         ::testing::Combine(::testing::Values(Launcher{"nccl", run_nccl, false}),
                                            ::testing::ValuesIn(nccl_sizes())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Mpi, Conformance,
                         ::testing::Combine(::testing::Values(Launcher{"mpi", run_mpi}),
                                            ::testing::ValuesIn(mpi_sizes())),
                         name_of_case);

TEST(NcclOnDevice, TwoRanksOfOneGpuAreRefusedByName) {
  if (gpus() == 0 || !has_nccl()) GTEST_SKIP() << "no GPU, or no NCCL";
  run_local(2, [](Communicator& host) {
    const auto device = cuda::open_gpu(0);
    base::ThreadPool pool(1);
    const auto stream = device->open_stream(pool);
    try {
      open_nccl(host, *stream);
      ADD_FAILURE() << "nothing thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(e.message().find("ranks 0 and 1 have one GPU"), std::string::npos) << e.message();
    }
  });
}

TEST(NcclOnDevice, CallsAreRecordedAndReplayed) {
  if (gpus() == 0 || !has_nccl()) GTEST_SKIP() << "no GPU, or no NCCL";
  run_local(std::min(gpus(), 2), [](Communicator& host) {
    const auto device = cuda::open_gpu(host.rank());
    base::ThreadPool pool(1);
    const auto stream = device->open_stream(pool);
    const auto group = open_nccl(host, *stream);
    std::vector<float> values(1000, 1.0f + static_cast<float>(host.rank()));
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(float));
    const auto memory = device->allocate(bytes);
    const Bytes all{static_cast<std::byte*>(memory.get()), static_cast<size_t>(bytes)};
    group->all_reduce(all, {});  // allocates its scratch memory before the recording
    stream->synchronize();
    stream->begin_recording();
    group->all_reduce(all, {});
    const auto recording = stream->end_recording();
    stream->upload(memory.get(), values.data(), bytes);
    recording->replay(*stream);
    stream->download(values.data(), memory.get(), bytes);
    stream->synchronize();
    EXPECT_EQ(values[999], host.size() == 2 ? 3.0f : 1.0f);
  });
}

TEST(LocalWorld, ManyRanksReduceByHalves) {
  for (const int size : {11, 19}) {
    run_local(size, [](Communicator& c) { check_reductions<float>(c); });
  }
}

TEST(LocalWatchdog, ReportsToWhoAsksForIt) {
  std::string report;
  const Watch watch{.deadline_ns = 100'000'000, .on_stuck = [&](const std::string& r) { report = r; }};
  const Error error = error_of([&] {
    run_local(
        2,
        [](Communicator& c) {
          std::vector<std::byte> x(4);
          if (c.rank() == 0) c.recv(x, 1, "stage");
          std::this_thread::sleep_for(std::chrono::milliseconds(500));
        },
        watch);
  });
  EXPECT_NE(report, "");
  EXPECT_TRUE(mentions(error, report)) << error.message();
}

TEST(Mesh, CoordinatesAndAxes) {
  const MeshShape shape({{"pp", 2}, {"dp", 2}, {"tp", 2}});
  EXPECT_EQ(shape.coordinates(6), (std::vector<int>{1, 1, 0}));
  for (int r = 0; r < 8; ++r) EXPECT_EQ(shape.rank(shape.coordinates(r)), r);
  EXPECT_THROW(MeshShape({{"dp", 2}, {"dp", 2}}), Error);
  EXPECT_THROW(MeshShape({{"dp", 0}}), Error);
  run_local(8, [&](Communicator& world) {
    Mesh mesh(world, shape);
    const std::vector<int> own = shape.coordinates(world.rank());
    for (size_t axis = 0; axis < 3; ++axis) {
      Communicator& group = mesh.axis(shape.axes()[axis].name);
      EXPECT_EQ(group.size(), 2);
      EXPECT_EQ(group.rank(), own[axis]);
      int64_t sum = world.rank();
      group.all_reduce(as_bytes(std::span(&sum, 1)), {DType::i64, ReduceOp::sum});
      std::vector<int> other = own;
      other[axis] = 1 - own[axis];
      EXPECT_EQ(sum, world.rank() + shape.rank(other));
    }
    EXPECT_THROW(mesh.open("cp"), Error);
  });
}

}  // namespace
}  // namespace trireme::comm
