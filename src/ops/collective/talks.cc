// Collectives on any device: pack parts that are not contiguous, call the communicator once, unpack. Unlike
// other kernels these may throw: the communicator reports a missing or disagreeing peer as an error, which
// the executor passes to its caller.
#include "ops/collective/talks.h"

#include <algorithm>

#include "base/error.h"
#include "comm/mesh.h"

namespace trireme::ops {
namespace {

using comm::Bytes;
using comm::ConstBytes;
using ir::KernelInit;
using ir::RunArgs;

/// The operands and results of one launch, as bytes.
struct Launch {
  const RunArgs& args;
  comm::Communicator& comm;
  const Mover& mover;

  const std::byte* in(size_t i) const { return static_cast<const std::byte*>(args.in[i]); }
  std::byte* out(size_t i) const {
    base::check(args.out[i] != nullptr, "result ", i, " of a collective is read by nobody");
    return static_cast<std::byte*>(args.out[i]);
  }
  std::byte* block(size_t rank, const Parcel& p) const {
    return static_cast<std::byte*>(args.workspace) + static_cast<int64_t>(rank) * p.block_bytes;
  }
  size_t rank() const { return static_cast<size_t>(comm.rank()); }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) const {
    if (bytes > 0) mover.copy(args.stream, to, from, bytes);
  }
  void zero(std::byte* to, int64_t bytes) const {
    if (bytes > 0) mover.zero(args.stream, to, bytes);
  }
  void pack(const PieceCut& cut, const std::byte* whole, std::byte* part, size_t r,
            PieceRows rows = {}) const {
    mover.pack(args.stream, cut, {const_cast<std::byte*>(whole), part, r, rows});
  }
  void unpack(const PieceCut& cut, const std::byte* part, std::byte* whole, size_t r,
              PieceRows rows = {}) const {
    mover.unpack(args.stream, cut, {whole, const_cast<std::byte*>(part), r, rows});
  }
};

ConstBytes span_of(const std::byte* data, int64_t bytes) { return {data, static_cast<size_t>(bytes)}; }
Bytes span_of(std::byte* data, int64_t bytes) { return {data, static_cast<size_t>(bytes)}; }

/// What every bound collective holds.
struct Talk {
  RankGroup group;
  std::string source;
  const Mover& mover;
  std::vector<Parcel> parcels = {};
  comm::ReduceOp op = comm::ReduceOp::sum;

  Talk(const ir::NodeView& node, const Mover& device)
      : group(RankGroup::of(node.attrs)), source(node.name), mover(device) {
    if (node.attrs.get_string("op", "sum") == "max") op = comm::ReduceOp::max;
  }
  size_t ranks() const { return static_cast<size_t>(group.size()); }

  Launch launch(const RunArgs& args) const {
    base::check(args.mesh != nullptr, "'", source, "' meets the ranks of ", group.axes,
                " but the program runs on one rank alone");
    comm::Communicator& comm = args.mesh->axis(group.axes);
    base::check(comm.size() == group.size(), "'", source, "' was compiled for ", group.size(), " ranks of ",
                group.axes, ", there are ", comm.size());
    return {args, comm, mover};
  }
};

using TalkFn = void (*)(const Talk&, const Launch&, const Parcel&);

/// Binds a function that handles one parcel.
ir::BoundKernel bind(Talk talk, std::vector<Piece> pieces, bool mixed, TalkFn handle) {
  talk.parcels = make_parcels(std::move(pieces), {mixed, talk.mover.wants_chunks()}, talk.group.size());
  const int64_t bytes = workspace_bytes(talk.parcels, talk.group.size());
  auto shared = std::make_shared<const Talk>(std::move(talk));
  return {[shared, handle](const RunArgs& args) {
            const Launch launch = shared->launch(args);
            for (const Parcel& parcel : shared->parcels) handle(*shared, launch, parcel);
          },
          bytes};
}

/// The pieces of operands that are cut along the attribute `dim`; `whole(i)` is the type of operand i before
/// the cut.
template <class F>
std::vector<Piece> cut_pieces(const ir::NodeView& n, const RankGroup& group, const F& whole,
                              size_t step = 1) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i * step < n.in.size(); ++i) {
    const tensor::TensorType& type = whole(i);
    const size_t dim = ir::normal_axis(n.attrs.need_int("dim"), type.shape.rank());
    const Cut cut(type.shape[dim].value(), n.attrs.get_int("sections", 1), group);
    pieces.push_back({i * step + step - 1, i, type.dtype, PieceCut(type, dim, cut)});
  }
  return pieces;
}

// --- all_reduce: every piece is one part of one rank ---

void reduce_parcel(const Talk& talk, const Launch& l, const Parcel& p) {
  const comm::Reduction how{p.pieces[0].dtype, talk.op};
  if (!p.is_packed) {
    const Piece& piece = p.pieces[0];
    const int64_t bytes = piece.cut.whole_bytes();
    l.comm.all_reduce(span_of(l.in(piece.operand), bytes), span_of(l.out(piece.result), bytes), how,
                      talk.source);
    return;
  }
  std::byte* block = l.block(0, p);
  for (const Piece& piece : p.pieces) {
    const int64_t bytes = piece.cut.whole_bytes(), room = (bytes + 15) / 16 * 16;
    l.copy(block + piece.offset, l.in(piece.operand), bytes);
    l.zero(block + piece.offset + bytes, room - bytes);
  }
  l.comm.all_reduce(span_of(block, p.block_bytes), how, talk.source);
  for (const Piece& piece : p.pieces)
    l.copy(l.out(piece.result), block + piece.offset, piece.cut.whole_bytes());
}

ir::BoundKernel prepare_all_reduce(const KernelInit& init, const Mover& mover) {
  Talk talk(init.node, mover);
  std::vector<Piece> pieces;
  const RankGroup alone = RankGroup::of({{"axes", std::string("r")}, {"parts", std::vector<int64_t>{1}}});
  for (size_t i = 0; i < init.node.in.size(); ++i) {
    const tensor::TensorType flat{init.node.in[i].dtype, tensor::Shape{*init.node.in[i].shape.elements()}};
    pieces.push_back({i, i, flat.dtype, PieceCut(flat, 0, Cut(flat.shape[0].value(), 1, alone))});
  }
  ir::BoundKernel bound = bind(std::move(talk), std::move(pieces), false, reduce_parcel);
  return bound;
}

// --- all_gather, gather_into ---

/// Calls body(rows) for each run of rows in which a chunked parcel is exchanged.
template <class Body>
void each_chunk(const Parcel& p, const Body& body) {
  const int64_t rows = p.pieces[0].cut.rows();
  for (int64_t first = 0; first < rows; first += p.chunk_rows)
    body(PieceRows{first, std::min(rows, first + p.chunk_rows)});
}

Bytes all_blocks(const Talk& talk, const Launch& l, const Parcel& p) {
  return span_of(l.block(0, p), p.block_bytes * static_cast<int64_t>(talk.ranks()));
}

void gather_chunks(const Talk& talk, const Launch& l, const Parcel& p) {
  const Piece& piece = p.pieces[0];
  const int64_t own_row = piece.cut.row_bytes(l.rank());
  std::byte* own = l.block(l.rank(), p);
  each_chunk(p, [&](PieceRows rows) {
    l.copy(own, l.in(piece.operand) + rows.first * own_row, (rows.last - rows.first) * own_row);
    l.comm.all_gather(span_of(own, p.block_bytes), all_blocks(talk, l, p), talk.source);
    for (size_t r = 0; r < talk.ranks(); ++r)
      l.unpack(piece.cut, l.block(r, p), l.out(piece.result), r, rows);
  });
}

void gather_parcel(const Talk& talk, const Launch& l, const Parcel& p) {
  if (p.chunk_rows > 0) return gather_chunks(talk, l, p);
  if (!p.is_packed) {
    const Piece& piece = p.pieces[0];
    l.comm.all_gather(span_of(l.in(piece.operand), piece.cut.piece_bytes()),
                      span_of(l.out(piece.result), piece.cut.whole_bytes()), talk.source);
    return;
  }
  std::byte* own = l.block(l.rank(), p);
  for (const Piece& piece : p.pieces)
    l.copy(own + piece.offset, l.in(piece.operand), piece.cut.part_bytes(l.rank()));
  l.comm.all_gather(span_of(own, p.block_bytes),
                    span_of(l.block(0, p), p.block_bytes * static_cast<int64_t>(talk.ranks())), talk.source);
  for (const Piece& piece : p.pieces) {
    for (size_t r = 0; r < talk.ranks(); ++r)
      l.unpack(piece.cut, l.block(r, p) + piece.offset, l.out(piece.result), r);
  }
}

ir::BoundKernel prepare_all_gather(const KernelInit& init, const Mover& mover) {
  Talk talk(init.node, mover);
  const ir::NodeView& n = init.node;
  auto pieces = cut_pieces(n, talk.group, [&](size_t i) { return n.out[i]; });
  return bind(std::move(talk), std::move(pieces), true, gather_parcel);
}

ir::BoundKernel prepare_gather_into(const KernelInit& init, const Mover& mover) {
  Talk talk(init.node, mover);
  const ir::NodeView& n = init.node;
  auto pieces = cut_pieces(
      n, talk.group, [&](size_t i) { return n.in[2 * i]; }, 2);
  return bind(std::move(talk), std::move(pieces), true, gather_parcel);
}

// --- reduce_scatter, shard_slice ---

void scatter_chunks(const Talk& talk, const Launch& l, const Parcel& p) {
  const Piece& piece = p.pieces[0];
  const int64_t own_row = piece.cut.row_bytes(l.rank());
  std::byte* own = l.block(l.rank(), p);
  each_chunk(p, [&](PieceRows rows) {
    for (size_t r = 0; r < talk.ranks(); ++r) {
      const int64_t bytes = (rows.last - rows.first) * piece.cut.row_bytes(r);
      l.pack(piece.cut, l.in(piece.operand), l.block(r, p), r, rows);
      l.zero(l.block(r, p) + bytes, p.block_bytes - bytes);
    }
    l.comm.reduce_scatter(all_blocks(talk, l, p), span_of(own, p.block_bytes), {piece.dtype, talk.op},
                          talk.source);
    l.copy(l.out(piece.result) + rows.first * own_row, own, (rows.last - rows.first) * own_row);
  });
}

void scatter_parcel(const Talk& talk, const Launch& l, const Parcel& p) {
  if (p.chunk_rows > 0) return scatter_chunks(talk, l, p);
  const comm::Reduction how{p.pieces[0].dtype, talk.op};
  if (!p.is_packed) {
    const Piece& piece = p.pieces[0];
    l.comm.reduce_scatter(span_of(l.in(piece.operand), piece.cut.whole_bytes()),
                          span_of(l.out(piece.result), piece.cut.piece_bytes()), how, talk.source);
    return;
  }
  for (size_t r = 0; r < talk.ranks(); ++r) {
    for (size_t k = 0; k < p.pieces.size(); ++k) {
      const Piece& piece = p.pieces[k];
      l.pack(piece.cut, l.in(piece.operand), l.block(r, p) + piece.offset, r);
      const int64_t end = piece.offset + piece.cut.part_bytes(r);
      const int64_t next = k + 1 < p.pieces.size() ? p.pieces[k + 1].offset : p.block_bytes;
      l.zero(l.block(r, p) + end, next - end);
    }
  }
  std::byte* own = l.block(l.rank(), p);
  l.comm.reduce_scatter(span_of(static_cast<const std::byte*>(l.block(0, p)),
                                p.block_bytes * static_cast<int64_t>(talk.ranks())),
                        span_of(own, p.block_bytes), how, talk.source);
  for (const Piece& piece : p.pieces)
    l.copy(l.out(piece.result), own + piece.offset, piece.cut.part_bytes(l.rank()));
}

ir::BoundKernel prepare_reduce_scatter(const KernelInit& init, const Mover& mover) {
  Talk talk(init.node, mover);
  const ir::NodeView& n = init.node;
  auto pieces = cut_pieces(n, talk.group, [&](size_t i) { return n.in[i]; });
  return bind(std::move(talk), std::move(pieces), false, scatter_parcel);
}

ir::BoundKernel prepare_shard_slice(const KernelInit& init, const Mover& mover) {
  const RankGroup group = RankGroup::of(init.node.attrs);
  const ir::NodeView& n = init.node;
  const size_t rank = static_cast<size_t>(group.rank());
  auto pieces =
      std::make_shared<const std::vector<Piece>>(cut_pieces(n, group, [&](size_t i) { return n.in[i]; }));
  return {[pieces, rank, &mover](const RunArgs& args) {
    for (const Piece& piece : *pieces) {
      auto* whole = static_cast<std::byte*>(const_cast<void*>(args.in[piece.operand]));
      mover.pack(args.stream, piece.cut, {whole, static_cast<std::byte*>(args.out[piece.result]), rank, {}});
    }
  }};
}

// --- all_to_all ---

/// x [.., part of concat, .., whole split, ..]: the operand is cut along `split`, the result along `concat`.
struct Swap {
  Talk talk;
  PieceCut sent, received;
  int64_t block_bytes;
};

void swap_parts(const Swap& s, const Launch& l) {
  const auto block = [&](size_t r) {
    return static_cast<std::byte*>(l.args.workspace) + static_cast<int64_t>(r) * s.block_bytes;
  };
  for (size_t r = 0; r < s.talk.ranks(); ++r) l.pack(s.sent, l.in(0), block(r), r);
  const Bytes all = span_of(block(0), s.block_bytes * static_cast<int64_t>(s.talk.ranks()));
  l.comm.all_to_all(all, all, s.talk.source);
  for (size_t r = 0; r < s.talk.ranks(); ++r) l.unpack(s.received, block(r), l.out(0), r);
}

ir::BoundKernel prepare_all_to_all(const KernelInit& init, const Mover& mover) {
  const ir::NodeView& n = init.node;
  Talk talk(n, mover);
  const size_t split = ir::normal_axis(n.attrs.need_int("split"), n.in[0].shape.rank());
  const size_t concat = ir::normal_axis(n.attrs.need_int("concat"), n.in[0].shape.rank());
  PieceCut sent(n.in[0], split, Cut(n.in_dims(0)[split], 1, talk.group));
  PieceCut received(n.out[0], concat, Cut(n.out_dims(0)[concat], 1, talk.group));
  const int64_t block = sent.piece_bytes(), bytes = block * talk.group.size();
  auto swap =
      std::make_shared<const Swap>(Swap{std::move(talk), std::move(sent), std::move(received), block});
  return {[swap](const RunArgs& args) { swap_parts(*swap, swap->talk.launch(args)); }, bytes};
}

using PrepareFn = ir::BoundKernel (*)(const KernelInit&, const Mover&);

/// With `in_place`, results may share the memory of their operands.
ir::Kernel one(const char* name, PrepareFn prepare, const Mover& mover, bool in_place = false) {
  return {.name = name,
          .prepare = [prepare, &mover](const KernelInit& init) { return prepare(init, mover); },
          .may_overwrite = in_place ? ~0u : 0u};
}

}  // namespace

ir::Kernel all_reduce_kernel(const Mover& m) { return one("ranks", prepare_all_reduce, m, true); }
ir::Kernel all_gather_kernel(const Mover& m) { return one("ranks", prepare_all_gather, m); }
ir::Kernel reduce_scatter_kernel(const Mover& m) { return one("ranks", prepare_reduce_scatter, m); }
ir::Kernel all_to_all_kernel(const Mover& m) { return one("ranks", prepare_all_to_all, m); }
ir::Kernel shard_slice_kernel(const Mover& m) { return one("copy", prepare_shard_slice, m); }
ir::Kernel gather_into_kernel(const Mover& m) { return one("ranks", prepare_gather_into, m); }

}  // namespace trireme::ops
