// What the tests of the optimizers share: one update node run in place on tensors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
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
  std::vector<Tensor> copies = {};  ///< states of attribute `copies`; undefined: a result alone
};

/// The operands of the node in schema order.
inline std::vector<Tensor> update_operands(const Update& u, const std::vector<Group>& groups) {
  const bool wide = !groups.empty() && groups[0][0].dtype() == DType::f64;
  std::vector<Tensor> in{
      wide ? Tensor::scalar<double>(u.lr) : Tensor::scalar<float>(static_cast<float>(u.lr)),
      Tensor::scalar<int64_t>(u.step), u.grad_scale ? Tensor::scalar<float>(*u.grad_scale) : Tensor(),
      u.skip ? Tensor::scalar<bool>(true) : Tensor()};
  for (const Group& g : groups) in.insert(in.end(), g.begin(), g.end());
  in.insert(in.end(), u.copies.begin(), u.copies.end());
  return in;
}

/// The node bound to the tensors of the groups; their params and states receive the results.
class BoundUpdate {
 public:
  BoundUpdate(const Update& u, std::vector<Group>& groups, base::ThreadPool& pool)
      : in_(update_operands(u, groups)), stream_(pool) {
    const ir::OpDef& def = table().need(u.op);
    const UpdateLayout layout = update_layout(u.op);
    ir::NodeView node{.attrs = u.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}};
    for (const Tensor& t : in_) {
      node.is_present.push_back(t.defined());
      node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
      node.known.push_back(nullptr);
      in_at_.push_back(t.defined() ? t.raw() : nullptr);
    }
    first_copy_ = groups.size() * layout.results();
    node.out_count = first_copy_ + u.copies.size();
    node.out = ir::infer_types(def.schema, node);
    cost_ = ir::cost_of(def.schema, node);
    bound_ = def.kernels.at(0).prepare({node, packs_, pool.size()});
    workspace_ = Tensor::empty(DType::u8, {bound_.workspace_bytes});
    out_.resize(node.out.size());
    out_at_.resize(node.out.size());
    const size_t operands = in_.size() - u.copies.size();
    std::vector<ir::StateUpdate> updates = def.schema.updates(operands);
    for (size_t c = 0; c < u.copies.size(); ++c) updates.push_back({first_copy_ + c, operands + c});
    for (const ir::StateUpdate& s : updates) {
      const Tensor& old = in_[s.operand];
      const tensor::TensorType& type = node.out[s.result];
      const bool is_old = u.in_place && old.defined();
      out_[s.result] = is_old ? old : Tensor::empty(type.dtype, type.shape.to_dims());
      out_at_[s.result] = out_[s.result].mutable_raw();
    }
    for (size_t g = 0; g < groups.size(); ++g) {
      groups[g][0] = out_[layout.param_result(g)];
      for (size_t s = 0; s < layout.states; ++s) groups[g][2 + s] = out_[layout.state_result(g, s)];
    }
  }

  void run() { bound_.run({in_at_.data(), out_at_.data(), workspace_.mutable_raw(), stream_}); }
  const ir::Cost& cost() const { return cost_; }
  const Tensor& copy(size_t c) const { return out_[first_copy_ + c]; }

 private:
  std::vector<Tensor> in_, out_;
  std::vector<const void*> in_at_;
  std::vector<void*> out_at_;
  size_t first_copy_ = 0;
  base::SharedCache packs_;
  ir::BoundKernel bound_;
  ir::Cost cost_;
  Tensor workspace_;
  cpu::CpuStream stream_;
};

/// Runs the node once.
inline void run_update(const Update& u, std::vector<Group>& groups) {
  base::ThreadPool pool(u.threads);
  BoundUpdate(u, groups, pool).run();
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
