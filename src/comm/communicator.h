// What ranks say to each other: collectives and point-to-point transfers on bytes, in one fixed reduction
// order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "comm/flight_recorder.h"
#include "tensor/dtype.h"

namespace trireme::comm {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

enum class ReduceOp : uint8_t { sum, max };
std::string_view to_string(ReduceOp op);

/// How elements are combined. f32, f64, i64, f16 and bf16; the 16-bit types in f32, rounded once at the end.
struct Reduction {
  tensor::DType dtype = tensor::DType::f32;
  ReduceOp op = ReduceOp::sum;
};

/// One operation as an implementation sees it, already checked by Communicator for what one rank can know.
struct Call {
  Collective what = Collective::barrier;
  ConstBytes in;
  Bytes out;
  Reduction reduction;
  int to = -1;                                   // root of a broadcast; whom an exchange sends to, or -1
  int from = -1;                                 // whom an exchange receives from, or -1
  std::span<const int64_t> in_sizes, out_sizes;  // all_to_all of uneven blocks: [size] bytes; else empty
  std::string_view source;
};

/// Size of a group's members and their talk. Used by its rank's owner thread only.
///
/// Order of reductions: element i of the result is T(0, size), where T(lo, n) is rank lo's element for n = 1
/// and otherwise T(lo, p) + T(lo + p, n - p) with p the largest power of two below n. So 2^k ranks that each
/// hold the sum of an aligned power-of-two run of micro-batches, summed by the same tree, give the bits of
/// one rank that holds them all. f16 and bf16 inputs were rounded per rank: only f32, f64 and i64 have that
/// property. `max` keeps NaN.
///
/// Spans may have any alignment. Output and input are the same memory ("in place") or do not overlap. All
/// ranks make the same calls in the same order with the same sizes; a difference is an invalid_argument on
/// every rank that names the ranks and what each of them asked for. Ranks that are gone: unavailable, naming
/// the rank. `source` is the layer the operation was made for.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// How long the world lets a rank wait for others before it is given up; 0: for ever.
  virtual int64_t deadline_ns() const { return 0; }
  /// The last operations of this rank in this group; readable from any thread.
  virtual const FlightRecorder& flights() const = 0;

  /// out[i] = reduction over ranks of in[i]; equal sizes.
  void all_reduce(ConstBytes in, Bytes out, Reduction reduction, std::string_view source = {});
  void all_reduce(Bytes data, Reduction reduction, std::string_view source = {}) {
    all_reduce(data, data, reduction, source);
  }
  /// in has size() blocks like out; rank r gets the reduction of block r. In place: out is block rank() of
  /// in.
  void reduce_scatter(ConstBytes in, Bytes out, Reduction reduction, std::string_view source = {});
  /// out has size() blocks like in; block r comes from rank r. In place: in is block rank() of out.
  void all_gather(ConstBytes in, Bytes out, std::string_view source = {});
  /// data of `root` everywhere.
  void broadcast(Bytes data, int root, std::string_view source = {});
  /// Block p of rank r's `in` becomes block r of rank p's `out`. In place: the same memory.
  void all_to_all(ConstBytes in, Bytes out, std::string_view source = {});
  /// The same with blocks of any size: `in` is in[p] bytes for each rank p, one after another, `out` is
  /// out[r] bytes from each rank r. Not in place. The two ranks of a block name one size.
  struct BlockSizes {
    std::span<const int64_t> in, out;  // [size]
  };
  void all_to_all(ConstBytes in, Bytes out, BlockSizes sizes, std::string_view source = {});
  void barrier(std::string_view source = {});

  /// Returns when `to` has the bytes. Two ranks that send to each other first wait for ever: use exchange.
  void send(ConstBytes data, int to, std::string_view source = {});
  void recv(Bytes data, int from, std::string_view source = {});
  /// Sends and receives at once; the spans do not overlap.
  struct Peers {
    int to, from;
  };
  void exchange(ConstBytes out, Bytes in, Peers peers, std::string_view source = {});

  /// Ranks with the same colour form a group, ordered by key and then by rank. Collective; may allocate.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;

 protected:
  virtual void execute(const Call& call) = 0;

 private:
  void require_peer(int peer, std::string_view what) const;
};

/// Elements as bytes: bytes_of(vector) for the calls above.
template <class T>
Bytes as_bytes(std::span<T> items) {
  return std::as_writable_bytes(items);
}

/// T(lo, n) of the order above splits n into this many and the rest.
constexpr int left_share(int n) {
  int p = 1;
  while (p * 2 < n) p *= 2;
  return p;
}

}  // namespace trireme::comm
