// Parts of tensors and nodes along one mesh axis.
#include "passes/partition/partition_parts.h"

#include <cstring>

#include "base/error.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using tensor::Dims;
using tensor::Placement;
using tensor::Tensor;

/// The indices [begin, end) of a rank's part within one section.
struct Range {
  int64_t begin = 0, end = 0;
};

Range section_range(int64_t extent, const Placement& p, const AxisRank& rank) {
  const int64_t section = extent / p.sections;
  return {tensor::part_begin(section, rank.ranks, rank.index),
          tensor::part_begin(section, rank.ranks, rank.index + 1)};
}

Tensor ints(const std::vector<int64_t>& values) {
  return Tensor::from<int64_t>({static_cast<int64_t>(values.size())}, values);
}

/// Integer types of stored weights, which no optimizer changes.
bool is_stored(tensor::DType type) {
  return type == tensor::DType::u8 || type == tensor::DType::f8e4m3fn || type == tensor::DType::bf16 ||
         type == tensor::DType::f16;
}

/// Sizes of the pieces of a split along the dimension that is cut: the pieces are equal.
void part_split(const ir::NodeView& node, const CutFit& fit, const AxisRank& rank, PartNode& part) {
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", 0), node.in[0].shape.rank());
  const bool is_cut = fit.in[0].is_split() && static_cast<size_t>(fit.in[0].dim) == axis;
  if (!is_cut || !node.present(1)) return;
  std::vector<int64_t> sizes = node.value(1)->to_ints();
  for (int64_t& s : sizes) s /= rank.ranks;
  part.constants.emplace_back(1, ints(sizes));
}

/// Bounds of a slice of one section if the dimension's sections are cut.
void part_slice(const ir::NodeView& node, const CutFit& fit, const AxisRank& rank, PartNode& part) {
  if (!fit.in[0].is_split()) return;
  const size_t dim = static_cast<size_t>(fit.in[0].dim);
  const bool is_backward = node.in_dims(0)[dim] < node.out_dims(0)[dim];
  const int64_t whole = is_backward ? node.out_dims(0)[dim] : node.in_dims(0)[dim];
  const int64_t piece = is_backward ? node.in_dims(0)[dim] : node.out_dims(0)[dim];
  if (whole == piece) return;
  std::vector<int64_t> starts = node.value(1)->to_ints(), ends = node.value(2)->to_ints();
  for (size_t k = 0; k < starts.size(); ++k) {
    const int64_t axis = node.present(3) ? node.value(3)->to_ints()[k] : static_cast<int64_t>(k);
    if (ir::normal_axis(axis, node.in[0].shape.rank()) != dim) continue;
    const int64_t from = starts[k] < 0 ? starts[k] + whole : starts[k];
    starts[k] = from / rank.ranks;
    ends[k] = starts[k] + piece / rank.ranks;
  }
  part.constants.emplace_back(1, ints(starts));
  part.constants.emplace_back(2, ints(ends));
}

}  // namespace

Dims part_dims(const Dims& dims, const Placement& p, const AxisRank& rank) {
  Dims out = dims;
  if (!p.is_split()) return out;
  int64_t& extent = out.at(static_cast<size_t>(p.dim));
  const Range r = section_range(extent, p, rank);
  extent = (r.end - r.begin) * p.sections;
  return out;
}

Dims part_begin_of(const Dims& dims, const Placement& p, const AxisRank& rank) {
  Dims out(dims.size(), 0);
  if (p.is_split()) {
    const size_t d = static_cast<size_t>(p.dim);
    out.at(d) = section_range(dims.at(d), p, rank).begin;
  }
  return out;
}

Tensor part_of(const Tensor& whole, const Placement& p, const AxisRank& rank) {
  if (!p.is_split()) return whole;
  const int bits = tensor::bits_of(whole.dtype());
  if (bits % 8 != 0) base::fail_unsupported("parts of packed elements of type ", name_of(whole.dtype()));
  const Dims dims = whole.dims();
  const size_t d = static_cast<size_t>(p.dim);
  // Rows of stored weights are not copied: they are a view of a mapped file or of the model's tensor.
  if (d == 0 && p.sections == 1 && is_stored(whole.dtype())) {
    const Range own = section_range(dims[0], p, rank);
    return whole.rows(own.begin, own.end);
  }
  int64_t outer = p.sections, inner = bits / 8;  // number of rows to copy; bytes of one index
  for (size_t i = 0; i < d; ++i) outer *= dims[i];
  for (size_t i = d + 1; i < dims.size(); ++i) inner *= dims[i];
  const int64_t section = dims[d] / p.sections;
  const Range r = section_range(dims[d], p, rank);
  if (tensor::is_absent(whole)) return tensor::absent(whole.dtype(), part_dims(dims, p, rank));
  Tensor part = Tensor::empty(whole.dtype(), part_dims(dims, p, rank));
  const int64_t row = (r.end - r.begin) * inner;
  for (int64_t i = 0; i < outer && row > 0; ++i) {
    std::memcpy(part.mutable_raw() + i * row, whole.raw() + (i * section + r.begin) * inner,
                static_cast<size_t>(row));
  }
  return part;
}

PartNode part_node(const ir::OpSchema& op, const ir::NodeView& node, const CutFit& fit,
                   const AxisRank& rank) {
  PartNode part{.attrs = node.attrs, .constants = {}};
  std::vector<Dims> in, out, in_begin, out_begin;
  bool is_cut = false;
  for (size_t i = 0; i < node.in.size(); ++i) {
    is_cut = is_cut || fit.in[i].is_split();
    const Dims dims = node.present(i) ? node.in_dims(i) : Dims{};
    in.push_back(part_dims(dims, fit.in[i], rank));
    in_begin.push_back(part_begin_of(dims, fit.in[i], rank));
  }
  for (size_t i = 0; i < node.out.size(); ++i) {
    is_cut = is_cut || fit.out[i].is_split();
    out.push_back(part_dims(node.out_dims(i), fit.out[i], rank));
    out_begin.push_back(part_begin_of(node.out_dims(i), fit.out[i], rank));
  }
  if (!is_cut) return part;
  if (op.shape_operand && node.value(*op.shape_operand) != nullptr) {
    // As many dimensions as the whole node names, which are the last ones.
    const auto named = static_cast<std::ptrdiff_t>(node.value(*op.shape_operand)->elements());
    part.constants.emplace_back(*op.shape_operand, ints(Dims(out[0].end() - named, out[0].end())));
  }
  if (op.name == "split") part_split(node, fit, rank, part);
  if (op.name == "slice" || op.name == "slice_grad") part_slice(node, fit, rank, part);
  if (!op.localise) return part;
  ir::LocalNode local{.global = node,
                      .attrs = part.attrs,
                      .in = std::move(in),
                      .out = std::move(out),
                      .in_begin = std::move(in_begin),
                      .out_begin = std::move(out_begin)};
  op.localise(local);
  return part;
}

}  // namespace trireme::passes
