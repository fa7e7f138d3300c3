// Kernels for half precision by way of f32, and index arithmetic along an axis.
#include <algorithm>
#include <array>

#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

bool is_half(DType t) { return t == DType::f16 || t == DType::bf16; }

/// Where a converted operand or result is in the workspace.
struct Converted {
  size_t index;
  DType type;
  int64_t elements;
  int64_t offset;
};

constexpr size_t kMaxOperands = 16;

struct HalfPlan {
  std::vector<Converted> in, out;
  ir::BoundKernel inner;
};

/// Replaces half types in `types` by f32 and gives each such tensor a place from `offset` on.
std::vector<Converted> place(std::vector<tensor::TensorType>& types, int64_t& offset) {
  std::vector<Converted> list;
  for (size_t i = 0; i < types.size(); ++i) {
    if (!is_half(types[i].dtype)) continue;
    const int64_t n = types[i].shape.elements().value_or(0);
    list.push_back({i, types[i].dtype, n, offset});
    offset += align_up(n * 4);
    types[i].dtype = DType::f32;
  }
  return list;
}

void run_halves(const HalfPlan& plan, const ir::RunArgs& args, size_t in_count, size_t out_count) {
  base::ThreadPool& pool = cpu::pool_of(args.stream);
  std::array<const void*, kMaxOperands> in{};
  std::array<void*, kMaxOperands> out{};
  std::copy_n(args.in, in_count, in.begin());
  std::copy_n(args.out, out_count, out.begin());
  std::byte* base = static_cast<std::byte*>(args.workspace);
  for (const Converted& c : plan.in) {
    if (args.in[c.index] == nullptr) continue;
    float* to = reinterpret_cast<float*>(base + c.offset);
    cpu::cast({args.in[c.index], c.type, to, DType::f32, c.elements}, pool);
    in[c.index] = to;
  }
  for (const Converted& c : plan.out) {
    if (args.out[c.index] != nullptr) out[c.index] = base + c.offset;
  }
  plan.inner.run({in.data(), out.data(), args.workspace, args.stream, args.status});
  for (const Converted& c : plan.out) {
    if (args.out[c.index] == nullptr) continue;
    const float* from = reinterpret_cast<const float*>(base + c.offset);
    cpu::cast({from, DType::f32, args.out[c.index], c.type, c.elements}, pool);
  }
}

ir::NodeView in_f32(const ir::NodeView& node) {
  ir::NodeView wide = node;
  // A half-precision constant is not a known f32 constant, because it is converted in every run.
  for (size_t i = 0; i < wide.known.size(); ++i)
    if (is_half(wide.in[i].dtype)) wide.known[i] = nullptr;
  for (auto* types : {&wide.in, &wide.out}) {
    for (tensor::TensorType& t : *types) t.dtype = is_half(t.dtype) ? DType::f32 : t.dtype;
  }
  return wide;
}

}  // namespace

ir::Kernel via_f32(ir::Kernel inner) {
  auto refuse = [inner](const ir::NodeView& node) -> ir::Refusal {
    auto any_half = [](const std::vector<tensor::TensorType>& types) {
      return std::any_of(types.begin(), types.end(), [](const auto& t) { return is_half(t.dtype); });
    };
    if (!any_half(node.in) && !any_half(node.out)) return "no operand or result is f16 or bf16";
    if (node.in.size() > kMaxOperands) return "more operands than half precision is converted for";
    return inner.refuse ? inner.refuse(in_f32(node)) : std::nullopt;
  };
  auto prepare = [inner](const ir::KernelInit& init) {
    HalfPlan plan;
    std::vector<tensor::TensorType> in_types = init.node.in, out_types = init.node.out;
    const ir::NodeView wide = in_f32(init.node);
    plan.inner = inner.prepare({wide, init.packs, init.threads, init.device, init.team});
    int64_t offset = align_up(plan.inner.workspace_bytes);
    plan.in = place(in_types, offset);
    plan.out = place(out_types, offset);
    if (!plan.inner.run) return ir::BoundKernel{.workspace_bytes = offset};
    const size_t in_count = wide.in.size(), out_count = wide.out.size();
    return ir::BoundKernel{
        [plan, in_count, out_count](const ir::RunArgs& args) { run_halves(plan, args, in_count, out_count); },
        offset};
  };
  return {.name = inner.name + "_via_f32",
          .is_reference = inner.is_reference,
          .refuse = refuse,
          .prepare = prepare,
          .is_via_f32 = true};
}

ir::Refusal refuse_dtype(const ir::NodeView& node, size_t i, std::initializer_list<DType> accepted) {
  const DType given = node.in[i].dtype;
  if (std::find(accepted.begin(), accepted.end(), given) != accepted.end()) return std::nullopt;
  return base::concat("operand ", i, " is ", name_of(given));
}

ir::Refusal refuse_non_float(const ir::NodeView& node) {
  return refuse_dtype(node, 0, {DType::f32, DType::f64});
}

ir::Refusal refuse_empty(const ir::NodeView& node) {
  for (const auto* types : {&node.in, &node.out}) {
    for (const tensor::TensorType& t : *types) {
      if (t.shape.elements().value_or(0) == 0) return "an operand or the result has no elements";
    }
  }
  return std::nullopt;
}

std::vector<ir::Kernel> float_reference(PrepareFn prepare) {
  ir::Kernel plain{
      .name = "reference", .is_reference = true, .refuse = refuse_non_float, .prepare = std::move(prepare)};
  return {plain, via_f32(plain)};
}

std::vector<ir::Kernel> faster(std::vector<ir::Kernel> fast, std::vector<ir::Kernel> reference) {
  std::vector<ir::Kernel> all = fast;
  for (const ir::Kernel& kernel : fast) all.push_back(via_f32(kernel));
  all.insert(all.end(), reference.begin(), reference.end());
  return all;
}

int64_t product(const tensor::Dims& dims, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= dims[i];
  return n;
}

AxisLoops axis_loops(const tensor::Dims& dims, size_t axis) {
  return {product(dims, 0, axis), dims[axis], product(dims, axis + 1, dims.size())};
}

std::vector<int64_t> broadcast_strides(const tensor::Dims& dims, size_t rank) {
  std::vector<int64_t> strides(rank, 0);
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1) strides[rank - dims.size() + i] = stride;
    stride *= dims[i];
  }
  return strides;
}

int64_t grain_for(double flop) {
  return std::max<int64_t>(1, static_cast<int64_t>(16384.0 / std::max(flop, 1.0)));
}

}  // namespace trireme::ops
