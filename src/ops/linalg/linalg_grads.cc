// Gradient rules of einsum and det.
#include <set>

#include "ops/grad.h"
#include "ops/linalg/linalg_ops.h"

namespace trireme::ops {
namespace {

char letter(size_t id) {
  if (id >= 52) base::fail_unsupported("the gradient of an einsum over ", id, " indices");
  return static_cast<char>(id < 26 ? 'a' + id : 'A' + (id - 26));
}

std::string letters(const std::vector<size_t>& ids) {
  std::string text;
  for (size_t id : ids) text += letter(id);
  return text;
}

ValueId filled(GradBuilder& g, const tensor::Dims& dims, bool is_identity) {
  tensor::Tensor t = tensor::Tensor::empty(g.type(g.in(0)).dtype, dims);
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto data = t.mutable_data<T>();
    for (size_t i = 0; i < data.size(); ++i) {
      const size_t columns = static_cast<size_t>(dims.back());
      data[i] = static_cast<T>(!is_identity || i / columns == i % columns ? 1.0f : 0.0f);
    }
  });
  return g.constant(t);
}

/// The einsum that computes the gradient of one operand.
struct Backward {
  const EinsumPlan& plan;
  std::vector<ValueId> in = {};
  std::vector<std::string> terms = {};
  std::set<size_t> seen = {};  // letters of the plan that the terms so far reach at full extent

  void add(ValueId v, const std::vector<size_t>& ids, const tensor::Dims& dims) {
    in.push_back(v);
    terms.push_back(letters(ids));
    for (size_t d = 0; d < ids.size(); ++d) {
      if (ids[d] < plan.extents.size() && dims[d] == plan.extents[ids[d]].value()) seen.insert(ids[d]);
    }
  }
};

/// Multiplies dy and the other operands and sums to the letters of operand k. A letter that only k has is
/// expanded by a vector of ones, a letter that k has twice (a diagonal) by an identity matrix; a letter in
/// which k was broadcast is summed, and its extent of 1 is restored.
ValueId operand_gradient(GradBuilder& g, const EinsumPlan& plan, size_t k) {
  Backward b{plan};
  b.add(g.grad(), plan.result, g.dims(g.grad()));
  for (size_t i = 0; i < plan.operands.size(); ++i) {
    if (i != k) b.add(g.in(i), plan.operands[i], g.dims(g.in(i)));
  }
  const tensor::Dims dims = g.dims(g.in(k));
  std::vector<size_t> target;
  size_t fresh = plan.extents.size();
  for (size_t d = 0; d < dims.size(); ++d) {
    size_t id = plan.operands[k][d];
    const int64_t extent = plan.extents[id].value();
    if (dims[d] == 1 && extent != 1) continue;
    if (std::find(target.begin(), target.end(), id) != target.end()) {
      b.add(filled(g, {extent, extent}, true), {id, fresh}, {extent, extent});
      id = fresh++;
    } else if (!b.seen.contains(id)) {
      b.add(filled(g, {extent}, false), {id}, {extent});
    }
    target.push_back(id);
  }
  std::string equation = b.terms[0];  // empty if the result is a scalar
  for (size_t i = 1; i < b.terms.size(); ++i) equation += "," + b.terms[i];
  return g.reshape(g.op("einsum", b.in, {{"equation", equation + "->" + letters(target)}}), dims);
}

}  // namespace

Gradients einsum_rule(GradBuilder& g) {
  Gradients out = g.none();
  std::vector<tensor::Shape> shapes;
  for (size_t i = 0; i < out.size(); ++i) shapes.push_back(g.type(g.in(i)).shape);
  const EinsumPlan plan = parse_einsum(g.attrs().get_string("equation", ""), shapes);
  for (size_t i = 0; i < out.size(); ++i) out[i] = operand_gradient(g, plan, i);
  return out;
}

Gradients det_rule(GradBuilder& g) { return {g.op("det_grad", {g.grad(), g.in(0)})}; }

}  // namespace trireme::ops
