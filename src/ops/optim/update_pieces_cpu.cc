// Pieces of multi-tensor updates, their scalar operands, and skipped updates.
#include "ops/optim/update_pieces_cpu.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/elementwise/cast_types.h"

namespace trireme::ops {
namespace {

// Adam moves 28 bytes per element, so a piece has 450 KiB and takes 40 us, much more than handing it out.
constexpr int64_t kPieceElements = 16384;

}  // namespace

PiecePlan::PiecePlan(const std::vector<int64_t>& elements)
    : PiecePlan(elements, std::vector<int64_t>(elements.size(), 1)) {}

// A piece never spans two tensors or blocks; a task may consist of pieces of several.
PiecePlan::PiecePlan(const std::vector<int64_t>& elements, const std::vector<int64_t>& blocks) {
  int64_t in_task = 0;
  for (size_t t = 0; t < elements.size(); ++t) {
    const int64_t n = elements[t] / blocks[t], count = (n + kPieceElements - 1) / kPieceElements;
    for (int64_t i = 0; i < count * blocks[t]; ++i) {
      const int64_t begin = i / count * n, part = i % count;
      pieces_.push_back({t, begin + n * part / count, begin + n * (part + 1) / count});
      in_task += pieces_.back().size();
      if (in_task < kPieceElements / 2) continue;
      tasks_.push_back(pieces_.size());
      in_task = 0;
    }
    first_.push_back(pieces_.size());
  }
  if (in_task > 0) tasks_.push_back(pieces_.size());
}

double pairwise_sum(const double* x, size_t n) {
  if (n == 0) return 0;
  if (n == 1) return x[0];
  return pairwise_sum(x, n / 2) + pairwise_sum(x + n / 2, n - n / 2);
}

double scalar_of(const void* operand, tensor::DType type, double absent) {
  if (operand == nullptr) return absent;
  if (type == tensor::DType::f64) return *static_cast<const double*>(operand);
  return static_cast<double>(*static_cast<const float*>(operand));
}

UpdatePlan::UpdatePlan(const ir::NodeView& node, UpdateLayout layout_of_op) : layout(layout_of_op) {
  const UpdateCopies copies(node.attrs, layout, node.in.size());
  groups = layout.groups(copies.first_operand);
  copy_result.assign(groups, -1);
  copies_are_bf16 = copies.is_bf16;
  for (size_t c = 0; c < copies.groups.size(); ++c)
    copy_result[static_cast<size_t>(copies.groups[c])] = static_cast<int>(copies.first_result + c);
  lr_type = node.in[kUpdateLr].dtype;
  if (node.present(kUpdateGradScale)) scale_type = node.in[kUpdateGradScale].dtype;
  lr_scale = node.attrs.get_float("lr_scale", 1);
  std::vector<int64_t> elements;
  for (size_t g = 0; g < groups; ++g) {
    dims.push_back(node.in_dims(layout.param(g)));
    elements.push_back(tensor::element_count(dims.back()));
  }
  pieces = PiecePlan(elements);
  for (size_t r = 0; r < groups * layout.results(); ++r) {
    const tensor::TensorType& type = node.in[operand_of_result(r)];
    out_bytes.push_back(tensor::bytes_of(type.dtype, tensor::element_count(type.shape.to_dims())));
  }
}

size_t UpdatePlan::operand_of_result(size_t result) const {
  const size_t group = result / layout.results(), i = result % layout.results();
  return i == 0 ? layout.param(group) : layout.state(group, i - 1);
}

UpdateScalars UpdatePlan::scalars(const ir::RunArgs& args) const {
  return {scalar_of(args.in[kUpdateLr], lr_type, 0) * lr_scale,
          static_cast<double>(*in_ptr<int64_t>(args, kUpdateStep)),
          scalar_of(args.in[kUpdateGradScale], scale_type, 1),
          args.in[kUpdateSkip] != nullptr && *in_ptr<bool>(args, kUpdateSkip)};
}

void UpdatePlan::keep(const ir::RunArgs& args, size_t result) const {
  const void* from = args.in[operand_of_result(result)];
  if (args.out[result] == from || out_bytes[result] == 0) return;
  std::memcpy(args.out[result], from, static_cast<size_t>(out_bytes[result]));
}

void UpdatePlan::keep_all(const ir::RunArgs& args) const {
  for (size_t r = 0; r < out_bytes.size(); ++r) keep(args, r);
  pieces.run(cpu::pool_of(args.stream), [&](size_t, const Piece& p) { round_piece(args, p); });
}

void UpdatePlan::round_piece(const ir::RunArgs& args, const Piece& p) const {
  if (copy_result[p.tensor] < 0) return;
  const float* from = out_ptr<float>(args, layout.param_result(p.tensor)) + p.begin;
  uint16_t* to = out_ptr<uint16_t>(args, static_cast<size_t>(copy_result[p.tensor])) + p.begin;
  const auto n = static_cast<size_t>(p.size());
  copies_are_bf16 ? cpu::f32_to_bf16(from, to, n) : cpu::f32_to_f16(from, to, n);
}

}  // namespace trireme::ops
