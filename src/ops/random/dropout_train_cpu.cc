// Kernels of dropout_train on CPU.
#include "backend/cpu/cpu_stream.h"
#include "backend/cpu/dropout.h"
#include "ops/kernel_forms.h"
#include "ops/random/random_ops.h"

namespace trireme::ops {
namespace {

struct DropoutPlan {
  int64_t elements, row_elements;
  double ratio;
  uint64_t op;
};

DropoutPlan plan_dropout(const ir::NodeView& node) {
  const tensor::Dims x = node.in_dims(0);
  const int64_t elements = tensor::element_count(x);
  const int64_t rows = node.attrs.get_int("rows", x.empty() ? 1 : x[0]);
  base::require(rows >= 0 && (rows == 0 ? elements == 0 : elements % rows == 0), "dropout of ", elements,
                " elements in ", rows, " rows");
  return {elements, rows == 0 ? 0 : elements / rows, node.attrs.get_float("ratio", 0.5),
          static_cast<uint64_t>(node.attrs.get_int("op", 0))};
}

/// What the run knows: seed, stream and the batch index of the first element.
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
    cpu::dropout(call, cpu::pool_of(args.stream));
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
          const cpu::DropoutWord at = cpu::dropout_word(d.first + static_cast<uint64_t>(i));
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
