// Cut rules of gather and its gradient. Letters: from 'a' on the dimensions of x, 'v' the one that is looked
// up, and from 'i' on those of the indices.
#include <algorithm>

#include "ops/cut_notation.h"
#include "ops/index/index_ops.h"

namespace trireme::ops {
namespace {

struct GatherLetters {
  std::string x, at, y;
};

GatherLetters gather_letters(size_t x_rank, size_t at_rank, int64_t axis) {
  GatherLetters l{letters(x_rank), letters(at_rank, 'i'), {}};
  const size_t v = ir::normal_axis(axis, x_rank);
  l.y = l.x.substr(0, v) + l.at + l.x.substr(v + 1);
  l.x[v] = 'v';
  return l;
}

/// Sets the attributes of a part that holds `local` of `rows` rows of the looked-up axis, starting at
/// `first`.
void set_rows(ir::LocalNode& n, int64_t local, int64_t rows, int64_t first) {
  if (local == rows) return;
  const IndexReader::Rows before = rows_at_hand(n.global.attrs, rows);
  n.attrs.set("first", before.first + first).set("extent", before.extent);
}

}  // namespace

IndexReader::Rows rows_at_hand(const ir::Attrs& attrs, int64_t rows) {
  const IndexReader::Rows all{attrs.get_int("extent", rows), attrs.get_int("first", 0), rows};
  constexpr int64_t kMost = int64_t{1} << 62;
  base::require(all.extent >= 0 && all.first >= 0 && all.first < kMost && rows < kMost, "rows from ",
                all.first, " on of ", all.extent);
  return all;
}

ir::CutRule gather_cut(const ir::NodeView& n) {
  GatherLetters l = gather_letters(n.in[0].shape.rank(), n.in[1].shape.rank(), n.attrs.get_int("axis", 0));
  // Booleans cannot be summed over ranks, so 'v' stays whole.
  if (n.in[0].dtype == tensor::DType::boolean) std::replace(l.x.begin(), l.x.end(), 'v', '.');
  // `first` describes a single run of rows, so a part must not consist of sections.
  const size_t v = ir::normal_axis(n.attrs.get_int("axis", 0), n.in[0].shape.rank());
  return {.notation = CutNotation(n).in(0, l.x).in(1, l.at).out(0, l.y).text(),
          .sums = "v",
          .linear = {1},
          .sections = {{false, 0, v, 1}},
          .uneven = l.x + l.at};
}

void localise_gather(ir::LocalNode& n) {
  const size_t v = ir::normal_axis(n.attrs.get_int("axis", 0), n.in[0].size());
  set_rows(n, n.in[0][v], n.global.in_dims(0)[v], n.in_begin[0][v]);
}

ir::CutRule gather_grad_cut(const ir::NodeView& n) {
  const GatherLetters l =
      gather_letters(n.out[0].shape.rank(), n.in[1].shape.rank(), n.attrs.get_int("axis", 0));
  const size_t v = ir::normal_axis(n.attrs.get_int("axis", 0), n.out[0].shape.rank());
  return {.notation = CutNotation(n).in(0, l.y).in(1, l.at).in(2, l.x).out(0, l.x).text(),
          .sums = l.at,
          .linear = {n.present(2) ? 0b101u : 1u},
          .added = 0b100,
          .sections = {{true, 0, v, 1}},
          .uneven = l.x + l.at};
}

void localise_gather_grad(ir::LocalNode& n) {
  const size_t v = ir::normal_axis(n.attrs.get_int("axis", 0), n.out[0].size());
  n.attrs.set("shape", n.out[0]);
  set_rows(n, n.out[0][v], n.global.out_dims(0)[v], n.out_begin[0][v]);
}

}  // namespace trireme::ops
