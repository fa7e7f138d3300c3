// dequantize_blocks, block_linear, block_gather: types, costs, what ranks may split, expansions.
#include "ops/blocks/blocks.h"

#include <algorithm>

#include "ops/cut_notation.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

/// The kind of an attribute that names a block format: what reads_blocks() knows operators by.
constexpr const char* kFormatKind = "block format";
constexpr const char* kNoGrad = "its weights are whole numbers";

ir::AttrSpec format_attr() {
  return {"format", kFormatKind, "q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, mxfp4"};
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

ir::CutRule linear_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kBlX].shape.rank() - 1);
  return {.notation = CutNotation(n)
                          .in(kBlX, rows + ".")
                          .in(kBlWeights, "z.")
                          .in(kBlBias, "z")
                          .out(0, rows + "z")
                          .text()};
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

std::vector<TensorType> infer_linear(const ir::NodeView& n) {
  const BlockMatrix w = block_matrix(n, kBlWeights);
  block_rows(n.attrs);
  const TensorType& x = n.in[kBlX];
  base::require(x.dtype == DType::f32 || x.dtype == DType::f16 || x.dtype == DType::bf16, "block_linear of ",
                name_of(x.dtype), " rows");
  if (n.present(kBlBias))
    base::require(n.in[kBlBias].dtype == x.dtype && n.in[kBlBias].shape == Shape{w.n}, "bias ",
                  n.in[kBlBias].to_string(), " for ", name_of(x.dtype), " rows of ", w.n);
  if (!x.shape.has_rank()) return {{x.dtype, x.shape}};
  const size_t rank = x.shape.rank();
  base::require(rank >= 1 && (!x.shape[rank - 1].is_static() || x.shape[rank - 1].value() == w.k), "rows ",
                x.shape.to_string(), " for weights of depth ", w.k);
  std::vector<Dim> out = x.shape.dims();
  out.back() = w.n;
  return {{x.dtype, Shape(std::move(out))}};
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

bool reads_blocks(const ir::OpSchema& schema) {
  return std::any_of(schema.attrs.begin(), schema.attrs.end(),
                     [](const ir::AttrSpec& a) { return a.kind == kFormatKind; });
}

std::optional<size_t> packed_operand(const ir::Node& node) {
  if (node.op_name() == "block_linear") return kBlWeights;
  if (node.op_name() == "block_gather" && node.attrs.get_int("packed", 0) != 0) return kBgWeights;
  return std::nullopt;
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

std::vector<ir::OpDef> blocks_ops() {
  return {{dequantize_schema(), dequantize_blocks_cpu_kernels()},
          {linear_schema(), block_linear_cpu_kernels()},
          {gather_schema(), block_gather_cpu_kernels()}};
}

}  // namespace trireme::ops
