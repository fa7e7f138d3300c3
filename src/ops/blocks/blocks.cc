// dequantize_blocks, block_linear(s), block_gather: types, costs, what ranks may split, expansions.
#include "ops/blocks/blocks.h"

#include <algorithm>
#include <set>

#include "ops/cut_notation.h"
#include "ops/stored_weights.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

constexpr const char* kNoGrad = "its weights are whole numbers";

ir::AttrSpec format_attr() {
  return {"format", kBlockFormatKind,
          "q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, mxfp4"};
}

double bytes_of_all(const ir::NodeView& n) {
  double bytes = 0;
  for (size_t i = 0; i < n.in.size(); ++i)
    bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  return bytes + static_cast<double>(tensor::bytes_of(n.out[0]));
}
double results_of(const ir::NodeView& n) {
  return static_cast<double>(n.out[0].shape.elements().value_or(0));
}

/// A cut inside a row would have to fall between two blocks, which letters cannot say: rows stay whole.
ir::CutRule dequantize_cut(const ir::NodeView& n) {
  return {.notation = CutNotation(n).in(0, "a.").out(0, "a.").text()};
}

/// Rows of weights, or whole blocks of their columns: then a rank has the summands of its part.
ir::CutRule linear_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kBlX].shape.rank() - 1);
  const BlockMatrix m = block_matrix(n, kBlWeights);
  return {
      .notation =
          CutNotation(n).in(kBlX, rows + "y").in(kBlWeights, "zy").in(kBlBias, "z").out(0, rows + "z").text(),
      .sums = "y",
      .added = 1u << kBlBias,
      .units = {{'y', m.k / m.format->weights}}};
}

/// Made for one rank: only rows are cut.
ir::CutRule linears_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kBlX].shape.rank() - 1);
  CutNotation notation(n);
  notation.in(kBlX, rows + ".");
  for (size_t i = 0; i < n.out.size(); ++i) notation.out(i, rows + ".");
  return {.notation = notation.text()};
}

/// Ranks look up different indices in the whole matrix.
ir::CutRule gather_blocks_cut(const ir::NodeView& n) {
  const std::string at = letters(n.in[kBgIndices].shape.rank());
  return {.notation = CutNotation(n).in(kBgIndices, at).out(0, at + ".").text()};
}

std::vector<TensorType> infer_dequantize(const ir::NodeView& n) {
  const BlockMatrix m = block_matrix(n, 0);
  return {{DType::f32, Shape{m.n, m.k}}};
}

/// y of rows x by one matrix, whose bias (or null) is of x's type.
TensorType product_type(const TensorType& x, const BlockMatrix& w, const TensorType* bias) {
  base::require(x.dtype == DType::f32 || x.dtype == DType::f16 || x.dtype == DType::bf16,
                "products with blocks of ", name_of(x.dtype), " rows");
  if (bias != nullptr)
    base::require(bias->dtype == x.dtype && bias->shape == Shape{w.n}, "bias ", bias->to_string(), " for ",
                  name_of(x.dtype), " rows of ", w.n);
  if (!x.shape.has_rank()) return {x.dtype, x.shape};
  const size_t rank = x.shape.rank();
  base::require(rank >= 1 && (!x.shape[rank - 1].is_static() || x.shape[rank - 1].value() == w.k), "rows ",
                x.shape.to_string(), " for weights of depth ", w.k);
  std::vector<Dim> out = x.shape.dims();
  out.back() = w.n;
  return {x.dtype, Shape(std::move(out))};
}

std::vector<TensorType> infer_linear(const ir::NodeView& n) {
  block_rows(n.attrs);
  const TensorType* bias = n.present(kBlBias) ? &n.in[kBlBias] : nullptr;
  return {product_type(n.in[kBlX], block_matrix(n, kBlWeights), bias)};
}

std::vector<TensorType> infer_linears(const ir::NodeView& n) {
  block_rows(n.attrs);
  const size_t count = n.out_count;
  base::require(
      count >= 2 && count <= kMostJoined && n.in.size() >= 1 + count && n.in.size() <= 1 + 2 * count,
      "block_linears with ", n.in.size(), " operands for ", count, " results");
  std::vector<TensorType> out;
  for (size_t i = 0; i < count; ++i) {
    const size_t bias = 1 + count + i;
    out.push_back(product_type(n.in[kBlX], block_matrix(n, 1 + i), n.present(bias) ? &n.in[bias] : nullptr));
  }
  return out;
}

std::vector<TensorType> infer_gather_blocks(const ir::NodeView& n) {
  const BlockMatrix w = block_matrix(n, kBgWeights);
  const TensorType& at = n.in[kBgIndices];
  base::require(at.dtype == DType::i64 || at.dtype == DType::i32, "indices must be i32 or i64, not ",
                name_of(at.dtype));
  if (!at.shape.has_rank()) return {{DType::f32, at.shape}};
  std::vector<Dim> out = at.shape.dims();
  out.emplace_back(w.k);
  return {{DType::f32, Shape(std::move(out))}};
}

const ir::OpDef& op(const char* name) { return table().need(name); }

ir::ValueId as_floats(ir::Graph& g, const ir::Node& node, ir::ValueId blocks) {
  return g.add1(op("dequantize_blocks"), {blocks}, {{"format", node.attrs.get_string("format", "")}},
                node.from);
}

/// With rows as they are, whatever `rows` says: 8 bits are a precision, not a meaning.
std::vector<ir::ValueId> expand_linear(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // adding nodes moves the original
  const bool is_f32 = g.type(node.in[kBlX]).dtype == DType::f32;
  const auto widened = [&](ir::ValueId id) {
    return is_f32 ? id : g.add1(op("cast"), {id}, {{"to", int64_t{1}}}, node.from);
  };
  const ir::ValueId w = as_floats(g, node, node.in[kBlWeights]);
  const ir::ValueId by_columns =
      g.add1(op("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}}, node.from);
  ir::ValueId y = g.add1(op("matmul"), {widened(node.in[kBlX]), by_columns}, {}, node.from);
  if (node.in.size() > kBlBias && node.in[kBlBias] != ir::kNoValue)
    y = g.add1(op("add"), {y, widened(node.in[kBlBias])}, {}, node.from);
  if (!is_f32) y = g.add1(op("cast_like"), {y, node.in[kBlX]}, {}, node.from);
  return {y};
}

std::vector<ir::ValueId> expand_linears(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;
  std::vector<ir::ValueId> out;
  for (size_t i = 0; i < node.out.size(); ++i) {
    std::vector<ir::ValueId> in{node.in[kBlX], node.in[1 + i]};
    const size_t bias = 1 + node.out.size() + i;
    if (bias < node.in.size() && node.in[bias] != ir::kNoValue) in.push_back(node.in[bias]);
    out.push_back(g.add1(op("block_linear"), in, node.attrs, node.from));
  }
  return out;
}

std::vector<ir::ValueId> expand_gather(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;
  const ir::ValueId w = as_floats(g, node, node.in[kBgWeights]);
  return {g.add1(op("gather"), {w, node.in[kBgIndices]}, {}, node.from)};
}

ir::OpSchema dequantize_schema() {
  return {
      .name = "dequantize_blocks",
      .doc = "y = the numbers that blocks stand for: u8 [n, bytes of a row] -> f32 [n, k]",
      .cut = dequantize_cut,
      .attrs = {format_attr()},
      .infer = infer_dequantize,
      .cost =
          [](const ir::NodeView& n) { return ir::Cost{.flop = 2 * results_of(n), .bytes = bytes_of_all(n)}; },
      .why_no_grad = kNoGrad};
}

ir::OpSchema linear_schema() {
  return {.name = "block_linear",
          .doc =
              "y = x W' + bias with W [n, k] in a block format: operands x [..., k], u8 [n, bytes of a row], "
              "bias [n] of x's type; rows of x may be rounded to 8 bits, 32 neighbours with one scale",
          .is_product = true,
          .cut = linear_cut,
          .min_in = 2,
          .max_in = 3,
          .attrs = {format_attr(), {"rows", "string", "f32: as they are; q8: in 8 bits"}},
          .infer = infer_linear,
          .expand = expand_linear,
          .cost =
              [](const ir::NodeView& n) {
                return ir::Cost{.flop = 2 * static_cast<double>(n.in_dims(kBlX).back()) * results_of(n),
                                .bytes = bytes_of_all(n)};
              },
          .why_no_grad = kNoGrad};
}

ir::OpSchema linears_schema() {
  return {.name = "block_linears",
          .doc =
              "y_i = x W_i' + bias_i, several block_linear of one x in one format: operands x [..., k], "
              "matrices W_i, then their biases, each of which may be left out",
          .is_product = true,
          .cut = linears_cut,
          .min_in = 3,
          .max_in = 1 + 2 * kMostJoined,
          .min_out = 2,
          .max_out = kMostJoined,
          .attrs = {format_attr(), {"rows", "string", "as block_linear"}},
          .infer = infer_linears,
          .expand = expand_linears,
          .cost =
              [](const ir::NodeView& n) {
                ir::Cost cost{.bytes = bytes_of_all(n)};
                for (size_t i = 1; i < n.out.size(); ++i)
                  cost.bytes += static_cast<double>(tensor::bytes_of(n.out[i]));
                for (const TensorType& y : n.out)
                  cost.flop += 2 * static_cast<double>(n.in_dims(kBlX).back()) *
                               static_cast<double>(y.shape.elements().value_or(0));
                return cost;
              },
          .why_no_grad = kNoGrad};
}

ir::OpSchema gather_schema() {
  return {
      .name = "block_gather",
      .doc =
          "y = rows of W [n, k] in a block format as f32: operands u8 [n, bytes of a row], indices [...] "
          "-> [..., k]; negative indices count from the end",
      .cut = gather_blocks_cut,
      .min_in = 2,
      .max_in = 2,
      .attrs = {format_attr(),
                {"packed", "int", "1: a block_linear reads the same operand, and its packed form serves"}},
      .infer = infer_gather_blocks,
      .expand = expand_gather,
      .cost =
          [](const ir::NodeView& n) {
            const double rows = static_cast<double>(n.in[kBgIndices].shape.elements().value_or(0));
            return ir::Cost{
                .flop = 2 * results_of(n),
                .bytes = 4 * results_of(n) + rows * static_cast<double>(n.in_dims(kBgWeights).back())};
          },
      .why_no_grad = kNoGrad};
}

}  // namespace

BlockMatrix block_matrix(const ir::NodeView& node, size_t i) {
  const TensorType& w = node.in[i];
  BlockMatrix m{.format = &tensor::need_block_format(node.attrs.get_string("format", ""))};
  base::require(w.dtype == DType::u8 && w.shape.is_static() && w.shape.rank() == 2, "weights in ",
                m.format->name, " are u8 [n, bytes of a row], not ", w.to_string());
  const int64_t bytes = w.shape[1].value();
  base::require(bytes % m.format->bytes == 0, "rows of ", bytes, " bytes are no whole blocks of ",
                m.format->name, ", which take ", m.format->bytes);
  m.n = w.shape[0].value();
  m.k = m.format->depth(bytes);
  return m;
}

std::vector<size_t> packed_operands(const ir::Node& node) {
  if (node.op_name() == "block_linear") return {kBlWeights};
  if (node.op_name() == "block_gather" && node.attrs.get_int("packed", 0) != 0) return {kBgWeights};
  std::vector<size_t> all;
  if (node.op_name() == "block_linears") {
    for (size_t i = 0; i < node.out.size(); ++i) all.push_back(1 + i);
  }
  return all;
}

std::map<ir::ValueId, const tensor::BlockFormat*> packed_weights(const ir::Graph& graph) {
  constexpr int64_t kLeastBytes = 65536;  // that are worth letting go of
  std::map<ir::ValueId, const tensor::BlockFormat*> packed;
  std::set<ir::ValueId> read;  // by others, too
  for (const ir::Node& node : graph.nodes()) {
    if (node.op == nullptr) continue;
    const std::vector<size_t> at = packed_operands(node);
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (std::find(at.begin(), at.end(), i) != at.end()) {
        packed[node.in[i]] = &tensor::need_block_format(node.attrs.get_string("format", ""));
      } else {
        read.insert(node.in[i]);
      }
    }
  }
  std::erase_if(packed, [&](const auto& item) {
    const tensor::Tensor* known = graph.known(item.first);
    return read.contains(item.first) || known == nullptr || known->bytes() < kLeastBytes;
  });
  return packed;
}

BlockRows block_rows(const ir::Attrs& attrs) {
  const std::string rows = attrs.get_string("rows", "q8");
  base::require(rows == "f32" || rows == "q8", "rows '", rows, "' of a block_linear are neither f32 nor q8");
  return rows == "f32" ? BlockRows::f32 : BlockRows::q8;
}

BlockLinearExtents block_linear_extents(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(kBlX);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.size(); ++d) rows *= x[d];
  return {.rows = rows, .w = block_matrix(node, kBlWeights), .form = block_rows(node.attrs)};
}

BlockLinearsExtents block_linears_extents(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(kBlX);
  BlockLinearsExtents e{.rows = 1, .count = node.out.size(), .form = block_rows(node.attrs)};
  for (size_t d = 0; d + 1 < x.size(); ++d) e.rows *= x[d];
  return e;
}

std::vector<ir::OpDef> blocks_ops() {
  return {{dequantize_schema(), dequantize_blocks_cpu_kernels()},
          {linear_schema(), block_linear_cpu_kernels()},
          {linears_schema(), block_linears_cpu_kernels()},
          {gather_schema(), block_gather_cpu_kernels()}};
}

}  // namespace trireme::ops
