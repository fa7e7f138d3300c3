// float8_rows, float8_columns, float8_both, float8_values, float8_product: types, costs, expansion.
#include "ops/quant/float8s.h"

#include "ops/cut_notation.h"
#include "ops/dense/activation.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;
using tensor::DType;
using tensor::Shape;
using tensor::TensorType;

constexpr const char* kNoGrad = "products become 8-bit after they were differentiated";

ir::AttrSpec form_attr() { return {"e5m2", "int", "E5M2 instead of E4M3"}; }
ir::AttrSpec type_attr() { return {"type", "string", "element type of the result: f32, f16 or bf16"}; }

DType code_type(const ir::Attrs& attrs) {
  return attrs.get_int("e5m2", 0) != 0 ? DType::f8e5m2 : DType::f8e4m3fn;
}
DType result_type(const ir::Attrs& attrs) {
  const DType type = tensor::dtype_from_name(attrs.get_string("type", "bf16"));
  base::require(type == DType::f32 || type == DType::f16 || type == DType::bf16, "8-bit floats into ",
                name_of(type));
  return type;
}
bool is_float8(DType t) { return t == DType::f8e4m3fn || t == DType::f8e5m2; }

Shape without_last(const Shape& shape) {
  std::vector<Dim> dims = shape.dims();
  dims.pop_back();
  return Shape(std::move(dims));
}

void require_rows(const ir::NodeView& n) {
  const DType t = n.in[0].dtype;
  base::require(t == DType::f32 || t == DType::f16 || t == DType::bf16, "8-bit floats from ", name_of(t));
  base::require(n.in[0].shape.has_rank() && n.in[0].shape.rank() >= 1, "8-bit floats from a scalar");
}

void add_rows(const ir::NodeView& n, std::vector<TensorType>& out) {
  out.push_back({code_type(n.attrs), n.in[0].shape});
  out.push_back({DType::f32, without_last(n.in[0].shape)});
}
void add_columns(const ir::NodeView& n, std::vector<TensorType>& out) {
  base::require(n.in[0].shape.is_static(), "columns of a shape that is not known yet");
  const Dims dims = n.in_dims(0);
  const int64_t rows = tensor::element_count(Dims(dims.begin(), dims.end() - 1));
  const int64_t padded = (rows + kFloat8Align - 1) / kFloat8Align * kFloat8Align;
  out.push_back({code_type(n.attrs), Shape{dims.back(), padded}});
  out.push_back({DType::f32, Shape{dims.back()}});
  out.push_back({DType::f32, Shape{dims.back()}});  // sums, if they are asked for
}

ir::Cost bytes_cost(const ir::NodeView& n, double reads) {
  ir::Cost c;
  c.bytes = reads * static_cast<double>(tensor::bytes_of(n.in[0]));
  for (const TensorType& t : n.out) c.bytes += static_cast<double>(tensor::bytes_of(t));
  c.flop = reads * static_cast<double>(n.in[0].shape.elements().value_or(0));
  return c;
}

/// Letters of the rows: all dimensions but the last. Products become 8-bit after a model was cut for its
/// ranks, so dimensions that rows share stay whole.
std::string row_letters(const ir::NodeView& n) { return letters(n.in[0].shape.rank() - 1); }

/// Rows have scales of their own and may be cut; the scale of a column depends on all rows.
ir::CutRule quantizer_cut(const ir::NodeView& n, bool by_rows) {
  CutNotation notation(n);
  const std::string rows = row_letters(n);
  if (by_rows && n.out.size() == 2) notation.in(0, rows + ".").out(0, rows + ".").out(1, rows);
  return {.notation = notation.text()};
}

ir::CutRule values_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  const std::string rows = row_letters(n);
  if (n.in[1].shape.rank() == rows.size()) notation.in(0, rows + ".").in(1, rows).out(0, rows + ".");
  return {.notation = notation.text()};
}

ir::CutRule product_cut(const ir::NodeView& n) {
  CutNotation notation(n);
  const std::string rows = row_letters(n);
  if (n.in[kF8ScaleA].shape.rank() != rows.size()) return {.notation = notation.text()};
  notation.in(kF8A, rows + ".").in(kF8ScaleA, rows).out(0, rows + ".");
  if (n.in.size() > kF8Residual) notation.in(kF8Residual, rows + ".");
  return {.notation = notation.text()};
}

ir::OpDef quantizer(const char* name, const char* doc, Float8Results results) {
  const bool rows = results.rows >= 0, columns = results.columns >= 0;
  const size_t count = rows && columns ? 4 : 2, sums = columns ? 1 : 0;
  ir::OpSchema schema{.name = name,
                      .doc = doc,
                      .cut = [rows](const ir::NodeView& n) { return quantizer_cut(n, rows); },
                      .min_out = count,
                      .max_out = count + sums,
                      .attrs = {form_attr()},
                      .infer =
                          [rows, columns](const ir::NodeView& n) {
                            std::vector<TensorType> out;
                            require_rows(n);
                            if (rows) add_rows(n, out);
                            if (columns) add_columns(n, out);
                            return out;
                          },
                      .cost = [columns](const ir::NodeView& n) { return bytes_cost(n, columns ? 2 : 1); },
                      .why_no_grad = kNoGrad};
  return {std::move(schema), float8_quantize_cpu_kernels(results)};
}

ir::OpSchema values_schema() {
  return {
      .name = "float8_values",
      .doc = "y = code scale: operands codes [..., k], scale [...]; exact in f32, and in bf16 above 2^-126",
      .cut = values_cut,
      .min_in = 2,
      .max_in = 2,
      .attrs = {type_attr()},
      .infer =
          [](const ir::NodeView& n) {
            base::require(is_float8(n.in[0].dtype), "codes are ", name_of(n.in[0].dtype));
            return std::vector<TensorType>{{result_type(n.attrs), n.in[0].shape}};
          },
      .cost = [](const ir::NodeView& n) { return bytes_cost(n, 1); },
      .why_no_grad = kNoGrad};
}

std::vector<TensorType> infer_product(const ir::NodeView& n) {
  const Shape &a = n.in[kF8A].shape, &b = n.in[kF8B].shape;
  activation_of(n.attrs);
  base::require(is_float8(n.in[kF8A].dtype) && is_float8(n.in[kF8B].dtype), "float8_product of ",
                name_of(n.in[kF8A].dtype), " and ", name_of(n.in[kF8B].dtype));
  base::require(n.in[kF8ScaleA].dtype == DType::f32 && n.in[kF8ScaleB].dtype == DType::f32,
                "scales of 8-bit floats are f32");
  base::require(a.has_rank() && a.rank() >= 1 && b.has_rank() && b.rank() == 2,
                "float8_product takes [..., k] and [n, k], got ", a.to_string(), " and ", b.to_string());
  const Dim &k = a[a.rank() - 1], &bk = b[1];
  base::require(!k.is_static() || !bk.is_static() || k == bk, "inner extents differ: ", a.to_string(),
                " and ", b.to_string());
  std::vector<Dim> out = a.dims();
  out.back() = b[0];
  return {{result_type(n.attrs), Shape(std::move(out))}};
}

/// Scales are powers of two, so the scaled codes are exact in the result's type, or in f32 if that is f16.
std::vector<ir::ValueId> expand_product(ir::Graph& g, const ir::Node& given) {
  const ir::Node node = given;  // a copy, since adding nodes moves the original
  const auto operand = [&](size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; };
  const DType to = result_type(node.attrs), type = to == DType::f16 ? DType::f32 : to;
  const ir::Attrs as{{"type", std::string(name_of(type))}};
  const auto widened = [&](ir::ValueId id) {
    if (id == ir::kNoValue || g.type(id).dtype == type) return id;
    return g.add1(table().need("cast"), {id}, {{"to", int64_t{1}}}, node.from);
  };
  std::vector<ir::ValueId> in{
      g.add1(table().need("float8_values"), {operand(kF8A), operand(kF8ScaleA)}, as, node.from),
      g.add1(table().need("float8_values"), {operand(kF8B), operand(kF8ScaleB)}, as, node.from),
      widened(operand(kF8Bias)), widened(operand(kF8Residual))};
  while (in.back() == ir::kNoValue) in.pop_back();
  ir::Attrs attrs{{"transposed", int64_t{1}}};
  for (const auto& [name, value] : node.attrs.items()) {
    if (name != "type") attrs.set(name, value);
  }
  ir::ValueId y = g.add1(table().need("linear"), in, attrs, node.from);
  if (type != to) y = g.add1(table().need("cast"), {y}, {{"to", int64_t{10}}}, node.from);
  return {y};
}

ir::Cost float8_product_cost(const ir::NodeView& n) {
  ir::Cost c;
  for (size_t i = 0; i < n.in.size(); ++i)
    c.bytes += n.present(i) ? static_cast<double>(tensor::bytes_of(n.in[i])) : 0;
  c.bytes += static_cast<double>(tensor::bytes_of(n.out[0]));
  c.flop = 2.0 * static_cast<double>(n.in_dims(kF8A).back()) *
           static_cast<double>(n.out[0].shape.elements().value_or(0));
  return c;
}

ir::OpSchema product_schema() {
  std::vector<ir::AttrSpec> attrs = activation_attrs();
  attrs.push_back(type_attr());
  return {.name = "float8_product",
          .doc =
              "y = act(a b' scale_a scale_b + bias + residual), sums in f32: operands a [..., k], scale_a "
              "[...], b [n, k], scale_b [n], bias [n] and residual of y's type",
          .cut = product_cut,
          .min_in = 4,
          .max_in = 6,
          .attrs = std::move(attrs),
          .infer = infer_product,
          .expand = expand_product,
          .cost = float8_product_cost,
          .why_no_grad = kNoGrad};
}

}  // namespace

Float8Extents float8_extents(const ir::NodeView& node) {
  const Dims x = node.in_dims(0);
  return {.rows = tensor::element_count(Dims(x.begin(), x.end() - 1)),
          .n = x.back(),
          .e5m2 = node.attrs.get_int("e5m2", 0) != 0};
}

Float8Product float8_product_extents(const ir::NodeView& node) {
  const Dims a = node.in_dims(kF8A), b = node.in_dims(kF8B);
  return {.m = tensor::element_count(Dims(a.begin(), a.end() - 1)), .n = b[0], .k = b[1]};
}

std::vector<ir::OpDef> float8s_ops() {
  return {quantizer("float8_rows",
                    "codes and scale of each row: x [..., k] = code scale, scale the least power of two that "
                    "keeps the row in range; results codes [..., k], scale [...]",
                    kF8Rows),
          quantizer(
              "float8_columns",
              "codes and scale of each column of x [..., c], transposed: results codes [c, rows], rows "
              "padded with zeros to a multiple of 16, scale [c], and if asked for sums of columns [c] in f32",
              kF8Columns),
          quantizer("float8_both",
                    "float8_rows and float8_columns of one x: results codes and scale of rows, codes and "
                    "scale of columns, and if asked for their sums",
                    kF8Both),
          {values_schema(), float8_values_cpu_kernels()},
          {product_schema(), {}}};
}

}  // namespace trireme::ops
