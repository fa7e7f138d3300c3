// Converts weights in groups to blocks that hold scale, zero point and codes together; floats of 16 bits are
// blocks as they lie.
#include "passes/precision/byte_products.h"

#include <cstring>
#include <map>

#include "base/machine/cpu_info.h"
#include "ops/experts/experts.h"
#include "ops/weight_only/weight_only.h"
#include "passes/rewriter.h"
#include "tensor/absent.h"
#include "tensor/blocks/block_format.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

/// A matrix in the form that products by groups read.
struct Groups {
  Tensor codes, scale, zero;  ///< scale of floats, and zero without zero points, are undefined
  ops::WeightForm form;
  bool is_floats() const { return !form.has_scales(); }
  int64_t n() const { return codes.dims()[0]; }
  int64_t row_bytes() const { return codes.bytes() / n(); }
  int64_t k() const { return row_bytes() * 8 / form.bits; }
};

/// Blocks never span groups.
const tensor::BlockFormat& format_of(const ops::WeightForm& form) {
  if (!form.has_scales()) return tensor::need_block_format(form.type == DType::bf16 ? "bf16" : "f16");
  const bool is_long = form.group % 128 == 0;
  if (form.bits == 4) return tensor::need_block_format(is_long ? "int4_g128" : "int4_g32");
  return tensor::need_block_format(is_long ? "int8_g128" : "int8_g32");
}

Tensor in_blocks(const Groups& g, const tensor::BlockFormat& format, base::ThreadPool& pool) {
  const int64_t bytes = format.row_bytes(g.k()), codes = format.weights * g.form.bits / 8;
  if (tensor::is_absent(g.codes) || tensor::is_absent(g.scale) || tensor::is_absent(g.zero))
    return tensor::absent(DType::u8, {g.n(), bytes});
  if (g.is_floats()) {
    const std::span raw(g.codes.raw(), static_cast<size_t>(g.codes.bytes()));
    return Tensor::view(DType::u8, {g.n(), bytes}, raw, std::make_shared<const Tensor>(g.codes));
  }
  Tensor out = Tensor::empty(DType::u8, {g.n(), bytes});
  const auto* from = reinterpret_cast<const uint8_t*>(g.codes.raw());
  auto* to = reinterpret_cast<uint8_t*>(out.mutable_raw());
  const std::span<const float> scale = g.scale.data<float>();
  pool.for_range(g.n(), 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      uint8_t* block = to + row * bytes;
      for (int64_t at = 0; at < g.k(); at += format.weights, block += format.bytes) {
        const auto group = static_cast<size_t>(row * (g.k() / g.form.group) + at / g.form.group);
        const int zero = g.zero.defined() ? g.zero.data<int8_t>()[group] : ops::default_zero(g.form.bits);
        std::memcpy(block, &scale[group], sizeof(float));
        block[4] = static_cast<uint8_t>(zero);
        std::memcpy(block + 5, from + row * g.row_bytes() + at * g.form.bits / 8, static_cast<size_t>(codes));
      }
    }
  });
  return out;
}

/// The number of operands between x and the weights of a product: the choices of experts.
size_t choices_of(const Node& node) { return node.op_name() == "weight_only_experts" ? 1 : 0; }

/// The groups of a product whose weights are known integers, or floats in whole blocks.
std::optional<Groups> groups_of(const Rewriter& rw, const Node& node) {
  const size_t more = choices_of(node);
  const ValueId zero = node.operand(ops::kWoZero + more), scale = node.operand(ops::kWoScale + more);
  const Tensor* codes = rw.known(node.in[ops::kWoWeights + more]);
  if (codes == nullptr) return std::nullopt;
  if (codes->dtype() == DType::bf16 || codes->dtype() == DType::f16) {
    const ops::WeightForm floats{.bits = 16, .type = codes->dtype()};
    const bool fits = codes->rank() == 2 && codes->elements() > 0 && codes->dims()[1] % 32 == 0;
    return fits ? std::optional(Groups{*codes, {}, {}, floats}) : std::nullopt;
  }
  if (scale == ir::kNoValue || rw.known(scale) == nullptr) return std::nullopt;
  if (zero != ir::kNoValue && rw.known(zero) == nullptr) return std::nullopt;
  const ops::WeightForm form = ops::weight_form(node.attrs, codes->dtype(), zero != ir::kNoValue);
  if (form.type != DType::u8 || rw.known(scale)->dtype() != DType::f32) return std::nullopt;
  return Groups{*codes, *rw.known(scale), zero == ir::kNoValue ? Tensor() : *rw.known(zero), form};
}

}  // namespace

size_t use_byte_products(ir::Graph& graph, ops::BlockRows rows,
                         const std::function<void(const Tensor&)>& was_read) {
  Rewriter rw(graph);
  base::ThreadPool pool(base::read_cpu_info().threads());
  std::map<ValueId, ValueId> made;  // by the codes, so that tied weights remain one matrix
  const size_t changes = rw.for_each([&](ir::NodeId, const Node& node) {
    const size_t more = choices_of(node);
    if (node.op_name() != "weight_only_linear" && more == 0) return false;
    const std::optional<Groups> groups = groups_of(rw, node);
    const int64_t experts = node.attrs.get_int("experts", 1);
    if (!groups || (more > 0 && ops::refuse_block_experts(groups->n() / experts))) return false;
    if (rows == ops::BlockRows::f32 && !groups->is_floats()) return false;
    const tensor::BlockFormat& format = format_of(groups->form);
    const ValueId codes = node.in[ops::kWoWeights + more];
    auto at = made.find(codes);
    if (at == made.end()) {
      // The blocks take the name of the codes, by which ranks identify parts of weights.
      std::string name = std::exchange(rw.graph().value(codes).name, "");
      Tensor blocks = in_blocks(*groups, format, pool);
      if (!tensor::is_absent(blocks) && !groups->is_floats()) was_read(groups->codes);
      const ValueId id = name.empty() ? rw.constant(std::move(blocks))
                                      : rw.graph().add_param(std::move(name), std::move(blocks));
      at = made.emplace(codes, id).first;
    }
    std::vector<ValueId> in{node.in[ops::kWoX]};
    if (more > 0) in.push_back(node.in[ops::kExChosen]);
    in.push_back(at->second);
    for (size_t i = ops::kWoBias + more; i < node.in.size(); ++i) in.push_back(node.in[i]);
    ir::Attrs attrs{{"format", std::string(format.name)},
                    {"rows", std::string(to_string(ops::rows_for(format, rows)))}};
    if (more > 0) attrs.set("experts", experts);
    ops::copy_experts_here(node.attrs, attrs);
    rw.replace(node.out[0], rw.add(more > 0 ? "block_experts" : "block_linear", in, attrs, node.from));
    return true;
  });
  graph.sort();
  return changes;
}

}  // namespace trireme::passes
