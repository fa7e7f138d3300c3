// The checks that every communicator makes before it communicates: sizes, types, overlap and peers.
#include "comm/communicator.h"

#include <functional>
#include <initializer_list>

#include "base/error.h"

namespace trireme::comm {
namespace {

using tensor::DType;

bool reducible(DType type) {
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i64}) {
    if (type == t) return true;
  }
  return false;
}

void require_reducible(const Reduction& r, size_t bytes, Collective what) {
  if (!reducible(r.dtype)) {
    base::fail_unsupported(to_string(what), " of ", name_of(r.dtype),
                           ": reductions take f32, f64, f16, bf16 and i64");
  }
  const auto element = static_cast<size_t>(tensor::bits_of(r.dtype) / 8);
  base::require(bytes % element == 0, to_string(what), " of a part of an element: ", bytes, " bytes of ",
                name_of(r.dtype));
}

/// Requires that the two buffers do not overlap, unless out is `same`. std::less orders any two addresses.
void require_apart(ConstBytes in, ConstBytes out, const std::byte* same, Collective what) {
  if (in.empty() || out.empty() || out.data() == same) return;
  const std::less<const std::byte*> before;
  const bool apart =
      !before(in.data(), out.data() + out.size()) || !before(out.data(), in.data() + in.size());
  base::require(apart, to_string(what), ": input and output overlap without being in place");
}

void require_blocks(size_t whole, size_t block, int ranks, Collective what) {
  base::require(whole == block * static_cast<size_t>(ranks), to_string(what), ": ", whole,
                " bytes are not one block of ", block, " for each of ", ranks, " ranks");
}

void require_sizes(std::span<const int64_t> sizes, size_t bytes, int ranks) {
  int64_t total = 0;
  for (const int64_t n : sizes) {
    base::require(n >= 0, "all_to_all: a block of ", n, " bytes");
    total += n;
  }
  base::require(sizes.size() == static_cast<size_t>(ranks) && total == static_cast<int64_t>(bytes),
                "all_to_all: ", sizes.size(), " blocks of ", total, " bytes together for ", ranks,
                " ranks and a buffer of ", bytes);
}

}  // namespace

std::string_view to_string(ReduceOp op) { return op == ReduceOp::sum ? "sum" : "max"; }

void Communicator::require_peer(int peer, std::string_view what) const {
  base::require(peer >= 0 && peer < size(), what, ": no rank ", peer, " in a group of ", size());
}

void Communicator::all_reduce(ConstBytes in, Bytes out, Reduction reduction, std::string_view source) {
  constexpr auto kWhat = Collective::all_reduce;
  require_reducible(reduction, in.size(), kWhat);
  base::require(in.size() == out.size(), "all_reduce: input ", in.size(), " bytes, output ", out.size());
  require_apart(in, out, in.data(), kWhat);
  execute({.what = kWhat, .in = in, .out = out, .reduction = reduction, .source = source});
}

void Communicator::reduce_scatter(ConstBytes in, Bytes out, Reduction reduction, std::string_view source) {
  constexpr auto kWhat = Collective::reduce_scatter;
  require_reducible(reduction, out.size(), kWhat);
  require_blocks(in.size(), out.size(), size(), kWhat);
  require_apart(in, out, in.data() + static_cast<size_t>(rank()) * out.size(), kWhat);
  execute({.what = kWhat, .in = in, .out = out, .reduction = reduction, .source = source});
}

void Communicator::all_gather(ConstBytes in, Bytes out, std::string_view source) {
  constexpr auto kWhat = Collective::all_gather;
  require_blocks(out.size(), in.size(), size(), kWhat);
  const std::byte* own = out.data() + static_cast<size_t>(rank()) * in.size();
  require_apart(in, out, in.data() == own ? out.data() : nullptr, kWhat);
  execute({.what = kWhat, .in = in, .out = out, .source = source});
}

void Communicator::broadcast(Bytes data, int root, std::string_view source) {
  require_peer(root, "broadcast");
  execute({.what = Collective::broadcast, .in = data, .out = data, .to = root, .source = source});
}

void Communicator::all_to_all(ConstBytes in, Bytes out, std::string_view source) {
  constexpr auto kWhat = Collective::all_to_all;
  base::require(in.size() == out.size(), "all_to_all: input ", in.size(), " bytes, output ", out.size());
  require_blocks(in.size(), in.size() / static_cast<size_t>(size()), size(), kWhat);
  require_apart(in, out, in.data(), kWhat);
  execute({.what = kWhat, .in = in, .out = out, .source = source});
}

void Communicator::all_to_all(ConstBytes in, Bytes out, BlockSizes sizes, std::string_view source) {
  constexpr auto kWhat = Collective::all_to_all;
  require_sizes(sizes.in, in.size(), size());
  require_sizes(sizes.out, out.size(), size());
  require_apart(in, out, nullptr, kWhat);
  execute(
      {.what = kWhat, .in = in, .out = out, .in_sizes = sizes.in, .out_sizes = sizes.out, .source = source});
}

void Communicator::barrier(std::string_view source) {
  execute({.what = Collective::barrier, .source = source});
}

void Communicator::send(ConstBytes data, int to, std::string_view source) {
  require_peer(to, "send");
  base::require(to != rank(), "send: rank ", to, " to itself");
  execute({.what = Collective::exchange, .in = data, .to = to, .source = source});
}

void Communicator::recv(Bytes data, int from, std::string_view source) {
  require_peer(from, "recv");
  base::require(from != rank(), "recv: rank ", from, " from itself");
  execute({.what = Collective::exchange, .out = data, .from = from, .source = source});
}

void Communicator::exchange(ConstBytes out, Bytes in, Peers peers, std::string_view source) {
  require_peer(peers.to, "exchange");
  require_peer(peers.from, "exchange");
  base::require(peers.to != rank() && peers.from != rank(), "exchange: rank ", rank(), " with itself");
  require_apart(out, in, nullptr, Collective::exchange);
  execute({.what = Collective::exchange,
           .in = out,
           .out = in,
           .to = peers.to,
           .from = peers.from,
           .source = source});
}

}  // namespace trireme::comm
