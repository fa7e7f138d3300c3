// Lookups by index, their gradients and writes at indices on NVIDIA GPUs.
#include "backend/cuda/index/index.h"
#include "ops/cuda_kernels.h"
#include "ops/index/index_ops.h"
#include "ops/kernel_forms.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

using tensor::Dims;
using tensor::DType;

ir::Refusal refuse_packed(const ir::NodeView& n) {
  if (tensor::bits_of(n.in[0].dtype) < 8) return "packed elements";
  return std::nullopt;
}

/// Indices into an axis of `rows` rows, all of which are held here.
cuda::Indices indices_of(const ir::NodeView& n, int64_t rows) {
  return {.is_wide = n.in[1].dtype == DType::i64, .extent = rows, .first = 0, .rows = rows};
}
cuda::Indices part_of(const ir::NodeView& n, int64_t rows) {
  cuda::Indices at = indices_of(n, rows);
  const IndexReader::Rows all = rows_at_hand(n.attrs, rows);
  at.extent = all.extent;
  at.first = all.first;
  return at;
}
cuda::Indices with_data(cuda::Indices at, const ir::RunArgs& args) {
  at.data = args.in[1];
  at.fault = args.fault;
  at.step = args.step;
  return at;
}

ir::Kernel gather() {
  ir::Kernel k{.name = "slices"};
  k.refuse = refuse_packed;
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const Dims x = n.in_dims(0);
    const AxisLoops loops = axis_loops(x, ir::normal_axis(n.attrs.get_int("axis", 0), x.size()));
    const cuda::GatherSlices shape{.at = part_of(n, loops.n),
                                   .outer = loops.outer,
                                   .count = tensor::element_count(n.in_dims(1)),
                                   .slice_bytes = loops.inner * element_bytes_of(n.in[0].dtype)};
    return ir::BoundKernel{[shape](const ir::RunArgs& args) {
      cuda::GatherSlices a = shape;
      a.at = with_data(a.at, args);
      cuda::gather_slices(args.stream, a, args.in[0], args.out[0]);
    }};
  };
  return k;
}

ir::Kernel gather_grad() {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (tensor::element_count(n.in_dims(1)) > INT32_MAX) return "too many indices";
    return refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::f64});
  };
  k.prepare = [](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const Dims x = n.out_dims(0);
    const AxisLoops loops = axis_loops(x, ir::normal_axis(n.attrs.get_int("axis", 0), x.size()));
    cuda::GatherGrad shape{.at = part_of(n, loops.n),
                           .outer = loops.outer,
                           .count = tensor::element_count(n.in_dims(1)),
                           .slice = loops.inner};
    if (n.attrs.has("padding_idx")) {
      const int64_t given = n.attrs.need_int("padding_idx");
      shape.padding = (given < 0 ? given + shape.at.extent : given) - shape.at.first;
    }
    const DType dtype = n.in[0].dtype;
    const bool has_base = n.present(2);
    return ir::BoundKernel{
        [=](const ir::RunArgs& args) {
          cuda::GatherGrad a = shape;
          a.at = with_data(a.at, args);
          a.base = has_base ? args.in[2] : nullptr;
          cuda::gather_grad({args.stream, dtype}, a, args.in[0], args.out[0], args.workspace);
        },
        cuda::gather_grad_workspace_bytes(shape.count)};
  };
  k.may_overwrite = 4;
  return k;
}

/// The move with one index per element.
cuda::IndexedMove by_element(const ir::NodeView& n) {
  const Dims x = n.in_dims(0).empty() ? Dims{1} : n.in_dims(0);
  const Dims at = n.in_dims(1).empty() ? Dims{1} : n.in_dims(1);
  const size_t axis = ir::normal_axis(n.attrs.get_int("axis", 0), x.size());
  cuda::IndexedMove m{.at = indices_of(n, x[axis]), .extent = at, .steps = dense_steps(x)};
  m.axis_step = m.steps[axis];
  m.steps[axis] = 0;
  m.unit_bytes = element_bytes_of(n.in[0].dtype);
  return m;
}

/// The move with index tuples [batch..., tuples, depth] into x.
cuda::IndexedMove by_tuple(const ir::NodeView& n, size_t batch_dims) {
  const Dims x = n.in_dims(0), at = n.in_dims(1);
  const size_t depth = static_cast<size_t>(at.back());
  const std::vector<int64_t> steps = dense_steps(x);
  cuda::IndexedMove m{.at = indices_of(n, 0)};
  for (size_t d = batch_dims; d < batch_dims + depth; ++d) {
    m.tuple_extent.push_back(x[d]);
    m.tuple_step.push_back(steps[d]);
  }
  m.batches = product(at, 0, batch_dims);
  m.tuples = product(at, batch_dims, at.size() - 1);
  m.block = product(x, batch_dims, x.size());
  m.slice = product(x, batch_dims + depth, x.size());
  m.unit_bytes = element_bytes_of(n.in[0].dtype);
  return m;
}

cuda::IndexedMove move_of(const ir::NodeView& n, bool tuples) {
  return tuples ? by_tuple(n, static_cast<size_t>(n.attrs.get_int("batch_dims", 0))) : by_element(n);
}

ir::Refusal refuse_move(const ir::NodeView& n, bool tuples) {
  if (ir::Refusal no = refuse_packed(n)) return no;
  if (n.in_dims(0).size() > cuda::kCopyRank) return "more than 8 dimensions";
  if (tuples && n.in_dims(1).back() == 0) return "tuples of no indices";
  return std::nullopt;
}

ir::Kernel lookup(bool tuples) {
  ir::Kernel k{.name = "places"};
  k.refuse = [tuples](const ir::NodeView& n) { return refuse_move(n, tuples); };
  k.prepare = [tuples](const ir::KernelInit& init) {
    const cuda::IndexedMove shape = move_of(init.node, tuples);
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
      cuda::IndexedMove m = shape;
      m.at = with_data(m.at, args);
      (tuples ? cuda::gather_tuples : cuda::gather_elements)(args.stream, m, args.in[0], args.out[0]);
    }};
  };
  return k;
}

ir::Kernel scatter(bool tuples) {
  ir::Kernel k{.name = "last_wins"};
  k.refuse = [tuples](const ir::NodeView& n) -> ir::Refusal {
    if (scatter_mode(n.attrs) != ScatterMode::none) return "updates are joined";
    return refuse_move(n, tuples);
  };
  k.prepare = [tuples](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::IndexedMove shape = move_of(n, tuples);
    const int64_t elements = tensor::element_count(n.out_dims(0)), bytes = tensor::bytes_of(n.out[0]);
    const cuda::StridedCopy whole = cuda::widened({{bytes}, {1}, {1}, 0, 0, 1});
    return ir::BoundKernel{[=](const ir::RunArgs& args) {
                             cuda::IndexedMove m = shape;
                             m.at = with_data(m.at, args);
                             if (args.out[0] != args.in[0])
                               cuda::copy_strided(args.stream, whole, args.in[0], args.out[0]);
                             (tuples ? cuda::scatter_tuples : cuda::scatter_elements)(
                                 args.stream, m, {args.in[2], args.out[0], elements, args.workspace});
                           },
                           cuda::scatter_workspace_bytes(elements / std::max<int64_t>(1, shape.slice))};
  };
  k.may_overwrite = 1;
  return k;
}

/// Scatter that joins updates with the present values: sums, products, extremes.
ir::Kernel joining_scatter(bool tuples) {
  ir::Kernel k{.name = "sorted"};
  k.refuse = [tuples](const ir::NodeView& n) -> ir::Refusal {
    if (scatter_mode(n.attrs) == ScatterMode::none) return "updates are not joined";
    if (tensor::element_count(n.in_dims(1)) > INT32_MAX || tensor::element_count(n.in_dims(0)) > INT32_MAX)
      return "2^31 updates or elements";
    if (auto why =
            refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16, DType::f64, DType::i32, DType::i64}))
      return why;
    return refuse_move(n, tuples);
  };
  k.prepare = [tuples](const ir::KernelInit& init) {
    const ir::NodeView& n = init.node;
    const cuda::IndexedMove shape = move_of(n, tuples);
    const ScatterMode mode = scatter_mode(n.attrs);
    const cuda::ScatterJoin join = mode == ScatterMode::add   ? cuda::ScatterJoin::add
                                   : mode == ScatterMode::mul ? cuda::ScatterJoin::mul
                                   : mode == ScatterMode::max ? cuda::ScatterJoin::max
                                                              : cuda::ScatterJoin::min;
    const int64_t elements = tensor::element_count(n.out_dims(0)), bytes = tensor::bytes_of(n.out[0]);
    const cuda::StridedCopy whole = cuda::widened({{bytes}, {1}, {1}, 0, 0, 1});
    auto run = [=, dtype = n.in[0].dtype](const ir::RunArgs& args) {
      cuda::IndexedMove m = shape;
      m.at = with_data(m.at, args);
      if (args.out[0] != args.in[0]) cuda::copy_strided(args.stream, whole, args.in[0], args.out[0]);
      cuda::scatter_joined({args.stream, dtype}, m, tuples, join,
                           {args.in[2], args.out[0], elements, args.workspace});
    };
    return ir::BoundKernel{run, cuda::scatter_join_workspace_bytes(shape, tuples)};
  };
  k.may_overwrite = 1;
  return k;
}

}  // namespace

std::vector<CudaKernels> index_cuda_kernels() {
  return {{"gather", {gather()}},
          {"gather_grad", {gather_grad()}},
          {"gather_elements", {lookup(false)}},
          {"gather_nd", {lookup(true)}},
          {"scatter_elements", {scatter(false), joining_scatter(false)}},
          {"scatter", {scatter(false)}},
          {"scatter_nd", {scatter(true), joining_scatter(true)}}};
}

}  // namespace trireme::ops
