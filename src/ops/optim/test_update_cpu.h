// What the tests of the optimizers share: one update node run in place on tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/cpu_stream.h"
#include "ops/optim/update_layout.h"
#include "ops/test_eval.h"

namespace trireme::ops::testing {

using Group = std::vector<Tensor>;  ///< (param, grad, states ...)

struct Update {
  std::string op;
  ir::Attrs attrs = {};
  double lr = 0.125;
  int64_t step = 1;
  std::optional<float> grad_scale = {};
  bool skip = false;
  int threads = 3;
  bool in_place = true;
};

/// The operands of the node in schema order.
inline std::vector<Tensor> update_operands(const Update& u, const std::vector<Group>& groups) {
  const bool wide = !groups.empty() && groups[0][0].dtype() == DType::f64;
  std::vector<Tensor> in{
      wide ? Tensor::scalar<double>(u.lr) : Tensor::scalar<float>(static_cast<float>(u.lr)),
      Tensor::scalar<int64_t>(u.step), u.grad_scale ? Tensor::scalar<float>(*u.grad_scale) : Tensor(),
      u.skip ? Tensor::scalar<bool>(true) : Tensor()};
  for (const Group& g : groups) in.insert(in.end(), g.begin(), g.end());
  return in;
}

/// Binds and runs the node. The groups' params and states receive the results: in place, or (in_place =
/// false) by way of separate memory.
inline void run_update(const Update& u, std::vector<Group>& groups) {
  const ir::OpDef& def = table().need(u.op);
  const UpdateLayout layout = update_layout(u.op);
  std::vector<Tensor> in = update_operands(u, groups);
  ir::NodeView node{.attrs = u.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
  for (const Tensor& t : in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(nullptr);
  }
  node.out_count = groups.size() * layout.results();
  node.out = ir::infer_types(def.schema, node);
  base::ThreadPool pool(u.threads);
  base::SharedCache packs;
  const ir::BoundKernel bound = def.kernels.at(0).prepare({node, packs, u.threads});
  Tensor workspace = Tensor::empty(DType::u8, {bound.workspace_bytes});
  std::vector<const void*> in_at;
  for (const Tensor& t : in) in_at.push_back(t.defined() ? t.raw() : nullptr);
  std::vector<void*> out_at(node.out.size());
  std::vector<Tensor> fresh(node.out.size());
  for (const ir::StateUpdate& s : def.schema.updates(in.size())) {
    fresh[s.result] = u.in_place ? in[s.operand] : Tensor::empty(in[s.operand].dtype(), in[s.operand].dims());
    out_at[s.result] = fresh[s.result].mutable_raw();
  }
  cpu::CpuStream stream(pool);
  bound.run({in_at.data(), out_at.data(), workspace.mutable_raw(), stream});
  for (size_t g = 0; g < groups.size(); ++g) {
    groups[g][0] = fresh[layout.param_result(g)];
    for (size_t s = 0; s < layout.states; ++s) groups[g][2 + s] = fresh[layout.state_result(g, s)];
  }
}

inline std::vector<Group> clones(const std::vector<Group>& groups) {
  std::vector<Group> out;
  for (const Group& g : groups) {
    Group copy;
    for (const Tensor& t : g) copy.push_back(t.clone());
    out.push_back(std::move(copy));
  }
  return out;
}

/// The first tensor that differs in type, extents or bytes, in words; empty if none does.
inline std::string difference(const std::vector<Group>& a, const std::vector<Group>& b) {
  if (a.size() != b.size()) return "numbers of groups";
  for (size_t g = 0; g < a.size(); ++g) {
    for (size_t i = 0; i < a[g].size(); ++i) {
      if (!a[g][i].same_as(b[g][i])) return base::concat("group ", g, " tensor ", i);
    }
  }
  return "";
}

}  // namespace trireme::ops::testing
