// dequantize_blocks, block_linear(s), block_gather: types, costs, cut rules, expansions.
#include "ops/blocks/blocks.h"

#include <algorithm>
#include <set>

#include "ops/blocks/block_attention.h"
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

ir::AttrSpec formats_attr() {
  return {"formats", "strings", "of each matrix where they differ; `format` is the first one's"};
}
ir::AttrSpec epsilon_attr() { return {"epsilon", "float", "of the norm, default 1e-5"}; }

double bytes_of_all(const ir::NodeView& n) {
  double bytes = 0;
  for (size_t i = 0; i < n.in.size(); ++i)
    bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  return bytes + static_cast<double>(tensor::bytes_of(n.out[0]));
}
double results_of(const ir::NodeView& n) {
  return static_cast<double>(n.out[0].shape.elements().value_or(0));
}

/// Rows stay whole: a cut inside a row would have to fall between two blocks, which letters cannot express.
ir::CutRule dequantize_cut(const ir::NodeView& n) {
  return {.notation = CutNotation(n).in(0, "a.").out(0, "a.").text()};
}

/// Cuts rows of weights, or their columns between blocks; the latter gives each rank a partial sum.
ir::CutRule linear_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kBlX].shape.rank() - 1);
  if (n.present(kBlNorm) || n.present(kBlResidual)) {
    return {.notation =
                CutNotation(n).in(kBlX, rows + ".").in(kBlResidual, rows + ".").out(0, rows + ".").text()};
  }
  const BlockMatrix m = block_matrix(n, kBlWeights);
  return {
      .notation =
          CutNotation(n).in(kBlX, rows + "y").in(kBlWeights, "zy").in(kBlBias, "z").out(0, rows + "z").text(),
      .sums = "y",
      .added = 1u << kBlBias,
      .units = {{'y', m.k / m.format->weights}}};
}

/// This operator is made after a model was cut for its ranks, so only rows of x can be cut.
ir::CutRule linears_cut(const ir::NodeView& n) {
  const std::string rows = letters(n.in[kBlX].shape.rank() - 1);
  CutNotation notation(n);
  notation.in(kBlX, rows + ".");
  for (size_t i = 0; i < n.out.size(); ++i) notation.out(i, rows + ".");
  return {.notation = notation.text()};
}

/// Every rank holds the whole matrix and looks up its own indices.
ir::CutRule gather_blocks_cut(const ir::NodeView& n) {
  const std::string at = letters(n.in[kBgIndices].shape.rank());
  return {.notation = CutNotation(n).in(kBgIndices, at).out(0, at + ".").text()};
}

std::vector<TensorType> infer_dequantize(const ir::NodeView& n) {
  const BlockMatrix m = block_matrix(n, 0);
  return {{DType::f32, Shape{m.n, m.k}}};
}

/// The type of the product of rows x with one matrix; its bias, if not null, has x's type.
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

void need_norm(const ir::NodeView& n, size_t i, int64_t k) {
  if (!n.present(i)) return;
  base::require(n.in[i].dtype == n.in[kBlX].dtype && n.in[i].shape == Shape{k}, "the norm's scale is ",
                n.in[i].to_string(), " for rows of ", k);
}

std::vector<TensorType> infer_linear(const ir::NodeView& n) {
  block_rows(n.attrs);
  const TensorType* bias = n.present(kBlBias) ? &n.in[kBlBias] : nullptr;
  const BlockMatrix w = block_matrix(n, kBlWeights);
  const TensorType y = product_type(n.in[kBlX], w, bias);
  need_norm(n, kBlNorm, w.k);
  base::require(!n.present(kBlResidual) || !y.shape.is_static() || n.in[kBlResidual] == y, "a residual ",
                n.present(kBlResidual) ? n.in[kBlResidual].to_string() : "", " for ", y.to_string());
  return {y};
}

std::vector<TensorType> infer_linears(const ir::NodeView& n) {
  block_rows(n.attrs);
  const size_t count = joined_products(n.attrs, n.out_count);
  base::require(
      count >= 2 && count <= kMostJoined && n.in.size() >= 1 + count && n.in.size() <= 2 + 2 * count,
      "block_linears with ", n.in.size(), " operands for ", n.out_count, " results");
  std::vector<TensorType> out;
  for (size_t i = 0; i < count; ++i) {
    const size_t bias = 1 + count + i;
    out.push_back(
        product_type(n.in[kBlX], block_matrix(n, 1 + i, i), n.present(bias) ? &n.in[bias] : nullptr));
  }
  need_norm(n, 1 + 2 * count, block_matrix(n, 1).k);
  if (count == n.out_count) return out;
  base::require(out[0] == out[1] && n.out_count == 1, "a gate takes two equal matrices, not ",
                n.in[1].to_string(), " and ", n.in[2].to_string());
  return {out[0]};
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

/// x as the products read it: normalised if the node has a norm.
ir::ValueId normalised(ir::Graph& g, const ir::Node& node, size_t norm) {
  if (operand_or_none(node, norm) == ir::kNoValue) return node.in[kBlX];
  return g.add1(op("rms_norm"), {node.in[kBlX], node.in[norm]},
                {{"epsilon", node.attrs.get_float("epsilon", 1e-5)}}, node.from);
}

/// A block_linear with the operands and attributes of a product alone.
ir::ValueId plain_product(ir::Graph& g, const ir::Node& node, std::vector<ir::ValueId> in,
                          size_t number = 0) {
  if (in.back() == ir::kNoValue) in.pop_back();
  ir::Attrs attrs = node.attrs;
  for (const char* name : {"gated", "epsilon", "formats"}) attrs.erase(name);
  attrs.set("format", block_format_of(node.attrs, number));
  return g.add1(op("block_linear"), std::move(in), attrs, node.from);
}

/// With a norm or residual: one node for each part. A plain product becomes a product of floats with
/// unrounded rows, whatever `rows` says, because rounding x to 8 bits is only a matter of precision.
std::vector<ir::ValueId> expand_linear(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  if (operand_or_none(node, kBlNorm) != ir::kNoValue || operand_or_none(node, kBlResidual) != ir::kNoValue) {
    const ir::ValueId x = normalised(g, node, kBlNorm);
    const ir::ValueId y = plain_product(g, node, {x, node.in[kBlWeights], operand_or_none(node, kBlBias)});
    if (operand_or_none(node, kBlResidual) == ir::kNoValue) return {y};
    return {g.add1(op("add"), {y, node.in[kBlResidual]}, {}, node.from)};
  }
  const bool is_f32 = g.type(node.in[kBlX]).dtype == DType::f32;
  const auto widened = [&](ir::ValueId id) {
    return is_f32 ? id : g.add1(op("cast"), {id}, {{"to", int64_t{1}}}, node.from);
  };
  const ir::ValueId w = as_floats(g, node, node.in[kBlWeights]);
  const ir::ValueId by_columns =
      g.add1(op("transpose"), {w}, {{"perm", std::vector<int64_t>{1, 0}}}, node.from);
  ir::ValueId y = g.add1(op("matmul"), {widened(node.in[kBlX]), by_columns}, {}, node.from);
  if (operand_or_none(node, kBlBias) != ir::kNoValue)
    y = g.add1(op("add"), {y, widened(node.in[kBlBias])}, {}, node.from);
  if (!is_f32) y = g.add1(op("cast_like"), {y, node.in[kBlX]}, {}, node.from);
  return {y};
}

std::vector<ir::ValueId> expand_linears(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;
  const size_t count = joined_products(node.attrs, node.out.size());
  const ir::ValueId x = normalised(g, node, 1 + 2 * count);
  std::vector<ir::ValueId> out;
  for (size_t i = 0; i < count; ++i)
    out.push_back(plain_product(g, node, {x, node.in[1 + i], operand_or_none(node, 1 + count + i)}, i));
  if (count == node.out.size()) return out;
  const ir::ValueId gate = g.add1(op("swish"), {out[0]}, {}, node.from);
  return {g.add1(op("mul"), {gate, out[1]}, {}, node.from)};
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
      .attrs = {block_format_attr()},
      .infer = infer_dequantize,
      .cost =
          [](const ir::NodeView& n) { return ir::Cost{.flop = 2 * results_of(n), .bytes = bytes_of_all(n)}; },
      .why_no_grad = kNoGrad};
}

ir::OpSchema linear_schema() {
  return {
      .name = "block_linear",
      .doc =
          "y = x W' + bias with W [n, k] in a block format: operands x [..., k], u8 [n, bytes of a row], "
          "bias [n] of x's type, the scale [k] of an RMS norm before the product, a residual like y that "
          "is added; rows of x may be rounded to 8 bits, 32 neighbours with one scale, or to bf16",
      .is_product = true,
      .cut = linear_cut,
      .min_in = 2,
      .max_in = 5,
      .attrs = {block_format_attr(),
                {"rows", "string", "f32: as they are; q8: in 8 bits; bf16: in bf16, with weights in bf16"},
                epsilon_attr()},
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
              "y_i = x W_i' + bias_i, several block_linear of one x: operands x [..., k], "
              "matrices W_i, then their biases, each of which may be left out, then the scale of an RMS norm "
              "before the products",
          .is_product = true,
          .cut = linears_cut,
          .min_in = 3,
          .max_in = 2 + 2 * kMostJoined,
          .max_out = kMostJoined,
          .attrs = {block_format_attr(),
                    formats_attr(),
                    {"gated", "int", "1: the one result is silu(y_0) y_1"},
                    {"rows", "string", "as block_linear"},
                    epsilon_attr()},
          .infer = infer_linears,
          .expand = expand_linears,
          .cost =
              [](const ir::NodeView& n) {
                ir::Cost cost{.bytes = bytes_of_all(n)};
                for (size_t i = 1; i < n.out.size(); ++i)
                  cost.bytes += static_cast<double>(tensor::bytes_of(n.out[i]));
                const auto k = static_cast<double>(n.in_dims(kBlX).back());
                const size_t count = joined_products(n.attrs, n.out.size());
                for (size_t i = 0; i < count; ++i)
                  cost.flop += 2 * k * results_of(n) / static_cast<double>(n.out_dims(0).back()) *
                               static_cast<double>(block_matrix(n, 1 + i, i).n);
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
      .attrs = {block_format_attr(),
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

ir::AttrSpec block_format_attr() {
  return {"format", kBlockFormatKind,
          "q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, mxfp4, int4_g32, int4_g128, "
          "int8_g32, int8_g128, bf16, f16"};
}

std::string block_format_of(const ir::Attrs& attrs, size_t number) {
  const std::vector<std::string> formats = attrs.get_strings("formats");
  if (formats.empty()) return attrs.get_string("format", "");
  base::require(number < formats.size(), "formats of ", formats.size(), " matrices, there are more");
  return formats[number];
}

void set_block_formats(ir::Attrs& attrs, const std::vector<std::string>& formats) {
  attrs.set("format", formats[0]);
  attrs.erase("formats");
  if (std::any_of(formats.begin(), formats.end(), [&](const std::string& f) { return f != formats[0]; }))
    attrs.set("formats", formats);
}

BlockMatrix block_matrix(const ir::NodeView& node, size_t i, size_t number) {
  const TensorType& w = node.in[i];
  BlockMatrix m{.format = &tensor::need_block_format(block_format_of(node.attrs, number))};
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
  if (node.op_name() == "block_experts") return {2};  // after rows and choices
  std::vector<size_t> all;
  if (node.op_name() == "block_linears") {
    for (size_t i = 0; i < joined_products(node.attrs, node.out.size()); ++i) all.push_back(1 + i);
  }
  if (node.op_name() == "block_attention") all = {kBaQuery, kBaKey, kBaValue};
  return all;
}

std::map<ir::ValueId, const tensor::BlockFormat*> packed_weights(const ir::Graph& graph) {
  constexpr int64_t kLeastBytes = 65536;  // smaller weights are not worth releasing
  std::map<ir::ValueId, const tensor::BlockFormat*> packed;
  std::set<ir::ValueId> read;  // also by other nodes
  for (const ir::Node& node : graph.nodes()) {
    if (node.op == nullptr) continue;
    const std::vector<size_t> at = packed_operands(node);
    for (size_t i = 0; i < node.in.size(); ++i) {
      if (std::find(at.begin(), at.end(), i) != at.end()) {
        packed[node.in[i]] = &tensor::need_block_format(block_format_of(node.attrs, i - at[0]));
      } else {
        read.insert(node.in[i]);
      }
    }
  }
  std::erase_if(packed, [&](const auto& item) {
    if (item.second->is_floats()) return true;  // they are read as they lie
    const tensor::Tensor* known = graph.known(item.first);
    return read.contains(item.first) || known == nullptr || known->bytes() < kLeastBytes;
  });
  return packed;
}

BlockRows block_rows(const ir::Attrs& attrs) {
  const std::string rows = attrs.get_string("rows", "q8");
  base::require(rows == "f32" || rows == "q8" || rows == "bf16", "rows '", rows,
                "' of a block_linear are neither f32 nor q8 nor bf16");
  if (rows == "f32") return BlockRows::f32;
  std::vector<std::string> formats = attrs.get_strings("formats");
  if (formats.empty()) formats.push_back(attrs.get_string("format", ""));
  for (const std::string& f : formats) {
    const bool is_floats = tensor::need_block_format(f).is_floats();
    base::require(rows == "bf16" ? f == "bf16" : !is_floats, "rows in ", rows, " do not meet weights in ", f);
  }
  return rows == "bf16" ? BlockRows::bf16 : BlockRows::q8;
}

BlockRows rows_for(const tensor::BlockFormat& format, BlockRows wanted) {
  if (!format.is_floats()) return wanted == BlockRows::f32 ? wanted : BlockRows::q8;
  return wanted == BlockRows::bf16 && format.name == "bf16" ? wanted : BlockRows::f32;
}

std::string_view to_string(BlockRows rows) {
  switch (rows) {
    case BlockRows::f32: return "f32";
    case BlockRows::q8: return "q8";
    case BlockRows::bf16: return "bf16";
  }
  return "?";
}

BlockLinearExtents block_linear_extents(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(kBlX);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < x.size(); ++d) rows *= x[d];
  return {.rows = rows, .w = block_matrix(node, kBlWeights), .form = block_rows(node.attrs)};
}

BlockLinearsExtents block_linears_extents(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(kBlX);
  const size_t count = joined_products(node.attrs, node.out.size());
  BlockLinearsExtents e{
      .rows = 1, .count = count, .form = block_rows(node.attrs), .is_gated = count != node.out.size()};
  for (size_t d = 0; d + 1 < x.size(); ++d) e.rows *= x[d];
  return e;
}

size_t joined_products(const ir::Attrs& attrs, size_t results) {
  return attrs.get_int("gated", 0) != 0 ? 2 : results;
}

float block_epsilon(const ir::Attrs& attrs) { return static_cast<float>(attrs.get_float("epsilon", 1e-5)); }

std::vector<ir::OpDef> blocks_ops() {
  return {{dequantize_schema(), dequantize_blocks_cpu_kernels()},
          {linear_schema(), block_linear_cpu_kernels()},
          {linears_schema(), block_linears_cpu_kernels()},
          {gather_schema(), block_gather_cpu_kernels()}};
}

}  // namespace trireme::ops
