// Runs every CPU kernel of an op that accepts a node, so that a test can hold each against its oracle.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/table.h"
#include "tensor/absent.h"

namespace trireme::tests {

using tensor::Tensor;

/// Standard normal values times `scale`; the same for the same seed.
inline Tensor random_tensor(const tensor::Dims& dims, uint32_t seed, float scale = 1.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Tensor t = Tensor::empty(tensor::DType::f32, dims);
  for (float& v : t.mutable_data<float>()) v = normal(engine) * scale;
  return t;
}

/// Uniform bytes of type T in [low, high].
template <class T>
Tensor random_bytes(const tensor::Dims& dims, uint32_t seed, int low, int high) {
  std::mt19937 engine(seed);
  std::uniform_int_distribution<int> uniform(low, high);
  Tensor t = Tensor::empty(tensor::dtype_of<T>(), dims);
  for (T& v : t.template mutable_data<T>()) v = static_cast<T>(uniform(engine));
  return t;
}

/// Results of one kernel.
struct KernelResult {
  std::string kernel;
  std::vector<Tensor> out;
};

/// Whether a constant may lack content while a kernel is planned: weights do, and what programs compute
/// shapes and places by is small.
inline bool may_be_absent(const Tensor& t) {
  return t.defined() && t.rank() >= 2 && (tensor::is_float(t.dtype()) || tensor::bits_of(t.dtype()) <= 8);
}

/// A kernel says the same of its workspace and of what it does not read whether weights have content or not.
inline void expect_planned(const ir::Kernel& kernel, ir::NodeView node, int threads,
                           const ir::BoundKernel& bound) {
  std::vector<Tensor> types(node.known.size());
  for (size_t i = 0; i < types.size(); ++i) {
    if (node.known[i] == nullptr || !may_be_absent(*node.known[i])) continue;
    types[i] = tensor::absent(node.known[i]->dtype(), node.known[i]->dims());
    node.known[i] = &types[i];
  }
  base::SharedCache packs;
  const ir::BoundKernel planned = kernel.prepare({node, packs, threads});
  EXPECT_EQ(planned.workspace_bytes, bound.workspace_bytes) << kernel.name;
  EXPECT_EQ(planned.unread_inputs, bound.unread_inputs) << kernel.name;
}

/// Binds and runs every accepting CPU kernel of `op` with a team of `threads`; an undefined tensor is an
/// absent operand. All operands count as constants unless listed in `fed`. Results and workspace hold
/// arbitrary bytes when a kernel begins, as in a server.
inline std::vector<KernelResult> run_kernels(const std::string& op, const ir::Attrs& attrs,
                                             const std::vector<Tensor>& in, size_t out_count = 1,
                                             const std::vector<size_t>& fed = {}, int threads = 3) {
  const ir::OpDef& def = ops::table().need(op);
  ir::NodeView node{
      .attrs = attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = out_count};
  for (const Tensor& t : in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(t.defined() ? &t : nullptr);
  }
  node.out = ir::infer_types(def.schema, node);
  for (size_t i : fed) node.known[i] = nullptr;
  base::ThreadPool pool(threads);
  std::vector<KernelResult> results;
  for (const ir::Kernel& kernel : def.kernels) {
    if (kernel.on != tensor::DeviceKind::cpu || (kernel.refuse && kernel.refuse(node))) continue;
    base::SharedCache packs;
    const ir::BoundKernel bound = kernel.prepare({node, packs, threads});
    expect_planned(kernel, node, threads, bound);
    const auto used = [](tensor::DType type, const tensor::Dims& dims) {
      Tensor t = Tensor::empty(type, dims);
      std::memset(t.mutable_raw(), 0xA5, static_cast<size_t>(t.bytes()));
      return t;
    };
    Tensor workspace = used(tensor::DType::u8, {bound.workspace_bytes});
    KernelResult result{kernel.name, {}};
    std::vector<const void*> in_at;
    std::vector<void*> out_at;
    for (size_t i = 0; i < in.size(); ++i) {
      const bool is_read = in[i].defined() && (bound.unread_inputs >> i & 1u) == 0;
      in_at.push_back(is_read ? in[i].raw() : nullptr);
    }
    for (const tensor::TensorType& t : node.out) result.out.push_back(used(t.dtype, t.shape.to_dims()));
    for (Tensor& t : result.out) out_at.push_back(t.mutable_raw());
    cpu::CpuStream stream(pool);
    bound.run({in_at.data(), out_at.data(), workspace.mutable_raw(), stream});
    results.push_back(std::move(result));
  }
  return results;
}

/// |got - want| <= absolute + relative |want| for every element.
inline void expect_close(const Tensor& got, const std::vector<double>& want, double relative, double absolute,
                         const std::string& what) {
  const std::vector<double> values = got.to_doubles();
  ASSERT_EQ(values.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_LE(std::abs(values[i] - want[i]), absolute + relative * std::abs(want[i]))
        << what << " at " << i << ": got " << values[i] << ", want " << want[i];
  }
}

/// Evaluates an op's expand() on constants with the ops' own evaluation; the second oracle of fused ops.
inline std::vector<Tensor> run_expanded(const std::string& op, const ir::Attrs& attrs,
                                        const std::vector<Tensor>& in, size_t out_count = 1) {
  const ir::OpDef& def = ops::table().need(op);
  ir::Graph g;
  ir::Node node{.op = &def,
                .attrs = attrs,
                .in = {},
                .out = std::vector<ir::ValueId>(out_count, ir::kNoValue),
                .from = {}};
  for (const Tensor& t : in) node.in.push_back(t.defined() ? g.add_constant(t) : ir::kNoValue);
  const std::vector<ir::ValueId> wanted = def.schema.expand(g, node);
  base::ThreadPool pool(2);
  std::vector<Tensor> value(g.values().size());
  for (size_t i = 0; i < value.size(); ++i) value[i] = g.values()[i].data;
  for (const ir::Node& step : g.nodes()) {
    std::vector<Tensor> operands;
    for (ir::ValueId id : step.in) operands.push_back(id == ir::kNoValue ? Tensor() : value[ir::index(id)]);
    const std::vector<Tensor> out = ops::evaluate(*step.op, step.attrs, operands, step.out.size(), pool);
    for (size_t i = 0; i < out.size(); ++i) value[ir::index(step.out[i])] = out[i];
  }
  std::vector<Tensor> results;
  for (ir::ValueId id : wanted) results.push_back(value[ir::index(id)]);
  return results;
}

/// Result 0 of a node of `op` for each of `attrs`, by the first CPU kernel that accepts it. Operand 0 is fed,
/// the others are constants. All nodes are prepared before any runs.
inline std::vector<Tensor> run_sharing_packs(const std::string& op, const std::vector<ir::Attrs>& attrs,
                                             const std::vector<Tensor>& in) {
  const ir::OpDef& def = ops::table().need(op);
  base::ThreadPool pool(3);
  base::SharedCache packs;
  std::vector<ir::BoundKernel> bound;
  std::vector<Tensor> results;
  for (const ir::Attrs& own : attrs) {
    ir::NodeView node{.attrs = own, .in = {}, .out = {}, .known = {}, .is_present = {}};
    for (const Tensor& t : in) {
      node.is_present.push_back(t.defined());
      node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
      node.known.push_back(t.defined() ? &t : nullptr);
    }
    node.out = ir::infer_types(def.schema, node);
    node.known[0] = nullptr;
    const ir::Kernel* kernel = ops::choose_kernel(def, node, tensor::DeviceKind::cpu);
    base::check(kernel != nullptr, "no kernel takes ", op, " with ", own.to_string());
    bound.push_back(kernel->prepare({node, packs, pool.size()}));
    results.push_back(Tensor::empty(node.out[0].dtype, node.out[0].shape.to_dims()));
  }
  std::vector<const void*> operands;
  for (const Tensor& t : in) operands.push_back(t.defined() ? t.raw() : nullptr);
  for (size_t i = 0; i < bound.size(); ++i) {
    Tensor workspace = Tensor::empty(tensor::DType::u8, {bound[i].workspace_bytes});
    void* out[] = {results[i].mutable_raw()};
    cpu::CpuStream stream(pool);
    bound[i].run({operands.data(), out, workspace.mutable_raw(), stream});
  }
  return results;
}

}  // namespace trireme::tests
