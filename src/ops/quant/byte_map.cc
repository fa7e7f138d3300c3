// byte_map: applies a function to an 8-bit tensor, element by element, by a table. Passes make this op.
#include "ops/elementwise/cast.h"
#include "ops/table.h"

namespace trireme::ops {
namespace {

using tensor::DType;
using tensor::Tensor;

DType byte_map_type(const ir::NodeView& n) {
  return n.attrs.get_int("is_signed", 0) != 0 ? DType::i8 : DType::u8;
}

std::vector<tensor::TensorType> infer_byte_map(const ir::NodeView& n) {
  const DType x = n.in[0].dtype;
  base::require(x == DType::u8 || x == DType::i8, "byte_map of ", name_of(x));
  const std::vector<int64_t> table = n.attrs.get_ints("table");
  base::require(table.size() == 256, "byte_map needs a table of 256 entries, found ", table.size());
  for (int64_t entry : table)
    base::require(entry >= 0 && entry < 256, "byte_map: entry ", entry, " is no byte");
  return {{byte_map_type(n), n.in[0].shape}};
}

/// Gathers rows of the table by the bytes, taken as numbers from 0 to 255.
std::vector<ir::ValueId> expand_byte_map(ir::Graph& g, const ir::Node& node) {
  constexpr int64_t kOnnxInt64 = 7;
  const bool is_signed = node.attrs.get_int("is_signed", 0) != 0;
  Tensor table = Tensor::empty(is_signed ? DType::i8 : DType::u8, {256});
  const std::vector<int64_t> entries = node.attrs.get_ints("table");
  uint8_t* bytes = reinterpret_cast<uint8_t*>(table.mutable_raw());
  for (size_t i = 0; i < entries.size(); ++i) bytes[i] = static_cast<uint8_t>(entries[i]);
  ir::ValueId at = g.add1(ops::table().need("cast"), {node.in[0]}, {{"to", kOnnxInt64}}, node.from);
  if (g.type(node.in[0]).dtype == DType::i8) {
    const ir::ValueId size = g.add_constant(Tensor::scalar<int64_t>(256));
    at = g.add1(ops::table().need("mod"), {at, size}, {}, node.from);  // the result has the sign of 256
  }
  return {
      g.add1(ops::table().need("gather"), {g.add_constant(table), at}, {{"axis", int64_t{0}}}, node.from)};
}

}  // namespace

ir::OpSchema byte_map_schema() {
  return {.name = "byte_map",
          .doc =
              "y = table[x], x u8 or i8, the table indexed by the byte of x: a function between two "
              "quantizations",
          .dims = "...->...",
          .attrs = {{"table", "ints", "256 bytes"}, {"is_signed", "int", "the result is i8, else u8"}},
          .infer = infer_byte_map,
          .expand = expand_byte_map,
          .cost =
              [](const ir::NodeView& n) {
                return ir::Cost{.bytes = 2 * static_cast<double>(n.in[0].shape.elements().value_or(0))};
              },
          .why_no_grad = "its operand is quantized"};
}

}  // namespace trireme::ops
