// What a launch of a multi-tensor update on a GPU keeps of its node.
#pragma once

#include <vector>

#include "backend/cuda/optim/optimizer.h"
#include "ops/kernel_forms.h"
#include "ops/optim/update_layout.h"

namespace trireme::ops {

struct UpdateNode {
  UpdateLayout layout;
  std::vector<int64_t> elements;  // by group
  std::vector<tensor::Dims> dims;
  UpdateCopies copies;
  bool lr_is_wide, scale_is_wide;

  UpdateNode(const ir::NodeView& node, std::string_view op)
      : layout(update_layout(op)), copies(node.attrs, layout, node.in.size()) {
    for (size_t g = 0; g < layout.groups(copies.first_operand); ++g) {
      dims.push_back(node.in_dims(layout.param(g)));
      elements.push_back(tensor::element_count(dims.back()));
    }
    lr_is_wide = node.in[kUpdateLr].dtype == tensor::DType::f64;
    scale_is_wide = node.present(kUpdateGradScale) && node.in[kUpdateGradScale].dtype == tensor::DType::f64;
  }

  /// `writes`: the node's results are the groups' params, states and copies.
  std::vector<cuda::UpdateTensor> tensors(const ir::RunArgs& args, bool writes = true) const {
    std::vector<cuda::UpdateTensor> out(elements.size());
    for (size_t g = 0; g < elements.size(); ++g) {
      cuda::UpdateTensor& t = out[g];
      t.param = in_ptr<float>(args, layout.param(g));
      t.grad = in_ptr<float>(args, layout.grad(g));
      if (writes) t.param_out = out_ptr<float>(args, layout.param_result(g));
      for (size_t s = 0; s < layout.states; ++s) {
        t.state[s] = in_ptr<float>(args, layout.state(g, s));
        if (writes) t.state_out[s] = out_ptr<float>(args, layout.state_result(g, s));
      }
      t.n = elements[g];
    }
    for (size_t c = 0; c < copies.groups.size() && writes; ++c) {
      cuda::RoundedCopy& copy = out[static_cast<size_t>(copies.groups[c])].copy;
      copy = {args.out[copies.first_result + c], copies.is_bf16};
    }
    return out;
  }

  cuda::UpdateOperands operands(const ir::RunArgs& args) const {
    return {.lr = args.in[kUpdateLr],
            .lr_is_wide = lr_is_wide,
            .step = in_ptr<int64_t>(args, kUpdateStep),
            .grad_scale = args.in[kUpdateGradScale],
            .grad_scale_is_wide = scale_is_wide,
            .skip = in_ptr<uint8_t>(args, kUpdateSkip)};
  }
};

/// Refuses f64, and a node without parameters.
inline ir::Refusal refuse_wide_update(const ir::NodeView& node) {
  if (node.in.size() <= kUpdateScalars) return "nothing to update";
  return refuse_dtype(node, kUpdateScalars, {tensor::DType::f32});
}

}  // namespace trireme::ops
