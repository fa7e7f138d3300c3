// rnn, gru and lstm on NVIDIA GPUs: the products of the inputs of all steps at once, then one or two launches
// per step.
#include "ops/cuda_kernels.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/recurrent_cuda.h"

namespace trireme::ops {
namespace {

using cuda::RecurrentPhase;
using tensor::DType;

/// Up to so many sequences, one launch computes a step's products and cells; for more, the library's product
/// of whole tiles is worth its additional launch.
constexpr int64_t kFewSequences = 16;

struct Phases {
  std::array<RecurrentPhase, 2> phase{};
  size_t count = 1;
};
Phases phases_of(const cuda::RecurrentShape& s) {
  if (s.gates == 1) return {{RecurrentPhase::rnn}};
  if (s.gates == 4) return {{RecurrentPhase::lstm}};
  if (s.linear_before_reset) return {{RecurrentPhase::gru}};
  return {{RecurrentPhase::gru_gates, RecurrentPhase::gru_candidate}, 2};
}

/// The first gate that a phase multiplies, and the number of gates.
std::array<int64_t, 2> rows_of(RecurrentPhase phase) {
  switch (phase) {
    case RecurrentPhase::rnn: return {0, 1};
    case RecurrentPhase::lstm: return {0, 4};
    case RecurrentPhase::gru: return {0, 3};
    case RecurrentPhase::gru_gates: return {0, 2};
    case RecurrentPhase::gru_candidate: return {2, 1};
  }
  return {0, 0};
}

ir::Refusal refuse_layer_on_gpu(const ir::NodeView& n) {
  if (auto why = refuse_dtype(n, 0, {DType::f32, DType::f16, DType::bf16})) return why;
  for (size_t i = 0; i < n.in.size(); ++i) {
    if (!n.present(i)) continue;
    if (i == kLengths) {
      if (auto why = refuse_dtype(n, i, {DType::i32})) return why;
    } else if (n.in[i].dtype != n.in[0].dtype) {
      return base::concat("operand ", i, " is ", name_of(n.in[i].dtype));
    }
    if (tensor::element_count(n.in_dims(i)) == 0) return "an operand has no elements";
  }
  return std::nullopt;
}

ir::Kernel forward_kernel(size_t gates) {
  auto prepare = [gates](const ir::KernelInit& init) {
    const RecurrentPlan plan = plan_recurrent(init.node, gates);
    RecurrentRoom room;
    auto layer = std::make_shared<RecurrentForward>(init, plan, room);
    layer->set_gemm_room(room.take(layer->gemm_bytes()));
    const size_t operands = init.node.in.size(), results = init.node.out.size();
    const auto run = [layer, operands, results](const ir::RunArgs& args) {
      const auto out = [&](size_t i) { return i < results ? args.out[i] : nullptr; };
      layer->run(args, recurrent_operands(args, operands), {.y = out(0), .h = out(1), .c = out(2)}, {});
    };
    return ir::BoundKernel{run, room.bytes()};
  };
  return {.name = "steps", .refuse = refuse_layer_on_gpu, .prepare = prepare};
}

ir::Kernel backward_kernel(size_t gates) {
  return {.name = "steps", .refuse = refuse_layer_on_gpu, .prepare = [gates](const ir::KernelInit& init) {
            return bind_recurrent_grad(init, gates);
          }};
}

}  // namespace

RecurrentOperands recurrent_operands(const ir::RunArgs& args, size_t count) {
  RecurrentOperands in{};
  std::copy_n(args.in, std::min<size_t>(count, in.size()), in.begin());
  return in;
}

cuda::RecurrentShape recurrent_shape(const RecurrentPlan& p) {
  cuda::RecurrentShape s{.seq = p.seq,
                         .batch = p.batch,
                         .hidden = p.hidden,
                         .directions = p.directions,
                         .gates = static_cast<int>(p.gates),
                         .batch_first = p.batch_first,
                         .starts_reversed = p.starts_reversed,
                         .linear_before_reset = p.linear_before_reset,
                         .input_forget = p.input_forget,
                         .clip = static_cast<float>(p.clip),
                         .functions = {}};
  for (int64_t d = 0; d < p.directions; ++d) {
    for (int64_t f = 0; f < p.functions(); ++f) {
      const Gate& gate = p.activations[static_cast<size_t>(d * p.functions() + f)];
      s.functions[d][f] = {gate.kind, static_cast<float>(gate.alpha), static_cast<float>(gate.beta)};
    }
  }
  return s;
}

RecurrentProduct recurrent_product(const ir::KernelInit& init, const cuda::GemmShape& given,
                                   int64_t& gemm_bytes) {
  cuda::GemmShape shape = given;
  shape.in = shape.in_b = shape.out = init.node.in[kX].dtype;
  RecurrentProduct product{cuda::prepare_gemm({init.device, &init.packs}, shape)};
  gemm_bytes = std::max(gemm_bytes, product.plan->workspace_bytes());
  return product;
}

RecurrentForward::RecurrentForward(const ir::KernelInit& init, const RecurrentPlan& plan, RecurrentRoom& room)
    : shape_(recurrent_shape(plan)), dtype_(init.node.in[kX].dtype) {
  const int64_t size = tensor::bits_of(dtype_) / 8, rows = shape_.rows(), n = shape_.hidden;
  inputs_ = recurrent_product(
      init, {.m = shape_.places(), .n = shape_.directions * rows, .k = plan.input, .transpose_b = true},
      gemm_bytes_);
  pre_ = room.take(shape_.places() * shape_.directions * rows * size);
  for (int64_t& h : h_) h = room.take(shape_.cells() * size);
  c_ = room.take(shape_.gates == 4 ? shape_.cells() * 4 : 0);
  reset_h_ = room.take(has_two_phases() ? shape_.cells() * size : 0);
  if (shape_.batch <= kFewSequences) return;
  product_ = room.take(shape_.cells() * shape_.gates * size);
  const Phases phases = phases_of(shape_);
  for (size_t i = 0; i < phases.count; ++i) {
    const int64_t count = rows_of(phases.phase[i])[1];
    recurrent_[i] = recurrent_product(init,
                                      {.m = shape_.batch,
                                       .n = count * n,
                                       .k = n,
                                       .transpose_b = true,
                                       .outer = shape_.directions,
                                       .outer_a = shape_.batch * n,
                                       .outer_b = rows * n,
                                       .outer_c = shape_.batch * count * n},
                                      gemm_bytes_);
  }
}

void RecurrentForward::step(const ir::RunArgs& args, const RecurrentOperands& in,
                            cuda::RecurrentStep s) const {
  const Phases phases = phases_of(shape_);
  const int64_t matrix = shape_.hidden * shape_.hidden * (tensor::bits_of(dtype_) / 8);
  for (size_t i = 0; i < phases.count; ++i) {
    s.phase = phases.phase[i];
    if (recurrent_[i].plan != nullptr) {
      recurrent_[i].run(args,
                        {.a = s.phase == RecurrentPhase::gru_candidate ? s.reset_h : s.h,
                         .b = static_cast<const std::byte*>(in[kR]) + rows_of(s.phase)[0] * matrix,
                         .out = room_at(args, product_)},
                        gemm_);
      s.product = room_at(args, product_);
    }
    cuda::recurrent_step({args.stream, dtype_}, s);
  }
}

void RecurrentForward::run(const ir::RunArgs& args, const RecurrentOperands& in, const Results& out,
                           const cuda::RecurrentTape& tape) const {
  const cuda::On on{args.stream, dtype_};
  inputs_.run(args, {.a = in[kX], .b = in[kW], .out = room_at(args, pre_)}, gemm_);
  cuda::RecurrentStates states{.shape = shape_, .h0 = in[kH], .c0 = in[kC], .h = room_at(args, h_[0])};
  if (shape_.gates == 4) states.c = reinterpret_cast<float*>(room_at(args, c_));
  cuda::load_recurrent_states(on, states);
  cuda::RecurrentStep s{.shape = shape_,
                        .r = in[kR],
                        .bias = in[kB],
                        .peephole = in[kPeephole],
                        .lengths = static_cast<const int32_t*>(in[kLengths]),
                        .pre = room_at(args, pre_),
                        .c = states.c,
                        .reset_h = room_at(args, reset_h_),
                        .y = out.y,
                        .tape = tape};
  for (s.step = 0; s.step < shape_.seq; ++s.step) {
    s.h = room_at(args, h_[s.step % 2]);
    s.next = room_at(args, h_[(s.step + 1) % 2]);
    step(args, in, s);
  }
  states.h = room_at(args, h_[shape_.seq % 2]);
  states.h_result = out.h;
  states.c_result = out.c;
  cuda::store_recurrent_states(on, states);
}

std::vector<CudaKernels> recurrents_cuda_kernels() {
  return {{"rnn", {forward_kernel(1)}},       {"gru", {forward_kernel(3)}},
          {"lstm", {forward_kernel(4)}},      {"rnn_grad", {backward_kernel(1)}},
          {"gru_grad", {backward_kernel(3)}}, {"lstm_grad", {backward_kernel(4)}}};
}

}  // namespace trireme::ops
