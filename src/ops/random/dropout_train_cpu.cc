// Kernels of dropout_train on CPU.
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/elementwise/dropout.h"
#include "ops/kernel_forms.h"
#include "ops/random/random_ops.h"

namespace trireme::ops {
namespace {

struct DropoutPlan {
  int64_t elements, row_elements;
  double ratio;
  uint64_t op;
  int64_t length;               // of a run, whose elements are contiguous in the whole tensor
  std::vector<int64_t> starts;  // number of each run's first element in the whole tensor
};

/// Finds the runs of x, whose first element has index `begin` in a tensor of extents `whole`.
void find_runs(const tensor::Dims& x, const tensor::Dims& whole, const tensor::Dims& begin, DropoutPlan& p) {
  size_t inner = x.size();  // dimensions from here on are not cut
  while (inner > 0 && x[inner - 1] == whole[inner - 1]) --inner;
  const size_t outer = inner == 0 ? 0 : inner - 1;
  p.length = tensor::element_count(tensor::Dims(x.begin() + static_cast<int64_t>(outer), x.end()));
  p.starts = {0};
  for (size_t d = 0; d < x.size(); ++d) {
    std::vector<int64_t> next;
    const int64_t indices = d < outer ? x[d] : 1;
    for (int64_t start : p.starts) {
      for (int64_t i = 0; i < indices; ++i) next.push_back(start * whole[d] + begin[d] + i);
    }
    p.starts = std::move(next);
  }
  if (p.elements == 0) p.starts.clear();
}

DropoutPlan plan_dropout(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(0);
  const tensor::Dims whole = node.attrs.get_ints("dims", x);
  const tensor::Dims begin = node.attrs.get_ints("begin", tensor::Dims(x.size(), 0));
  base::require(whole.size() == x.size() && begin.size() == x.size(), "dropout of ", tensor::to_string(x),
                " as a part of ", tensor::to_string(whole));
  DropoutPlan p{.elements = tensor::element_count(x),
                .row_elements = dropout_row_elements(node, whole),
                .ratio = node.attrs.get_float("ratio", 0.5),
                .op = static_cast<uint64_t>(node.attrs.get_int("op", 0)),
                .length = 0,
                .starts = {}};
  find_runs(x, whole, begin, p);
  return p;
}

/// What is known in a run: seed, stream and the batch index of the first element.
cpu::Dropout draw_of(const DropoutPlan& p, const ir::RunArgs& args) {
  const int64_t* rng = in_ptr<int64_t>(args, 1);
  cpu::Dropout d{.x = nullptr, .y = nullptr, .n = p.elements};
  d.first = static_cast<uint64_t>(rng[2]) * static_cast<uint64_t>(p.row_elements);
  d.seed = static_cast<uint64_t>(rng[0]);
  d.stream = cpu::dropout_stream(p.op, static_cast<uint64_t>(rng[1]));
  d.ratio = p.ratio;
  return d;
}

ir::BoundKernel prepare_vector(const ir::KernelInit& init) {
  const DropoutPlan plan = plan_dropout(init.node);
  return {[plan](const ir::RunArgs& args) {
    cpu::Dropout call = draw_of(plan, args);
    call.x = in_ptr<float>(args, 0);
    call.y = out_ptr<float>(args, 0);
    cpu::dropout_runs(call, plan.starts, plan.length, cpu::pool_of(args.stream));
  }};
}

ir::BoundKernel prepare_reference(const ir::KernelInit& init) {
  const DropoutPlan plan = plan_dropout(init.node);
  return visit_float(init.node.in[0].dtype, [&](auto t) {
    using T = decltype(t);
    return ir::BoundKernel{[plan](const ir::RunArgs& args) {
      const cpu::Dropout d = draw_of(plan, args);
      const T* x = in_ptr<T>(args, 0);
      T* y = out_ptr<T>(args, 0);
      cpu::pool_of(args.stream).for_range(plan.elements, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t in_whole = plan.starts[static_cast<size_t>(i / plan.length)] + i % plan.length;
          const cpu::DropoutWord at = cpu::dropout_word(d.first + static_cast<uint64_t>(in_whole));
          const uint32_t word = base::philox_block(d.seed, d.stream, at.block)[at.word];
          y[i] = word < cpu::dropout_threshold(d.ratio) ? T(0) : T(double(x[i]) / (1 - d.ratio));
        }
      });
    }};
  });
}

}  // namespace

std::vector<ir::Kernel> dropout_train_cpu_kernels() {
  const auto refuse = [](const ir::NodeView& node) { return refuse_dtype(node, 0, {tensor::DType::f32}); };
  return faster({{.name = "vector", .refuse = refuse, .prepare = prepare_vector, .may_overwrite = 1}},
                float_reference(prepare_reference));
}

}  // namespace trireme::ops
