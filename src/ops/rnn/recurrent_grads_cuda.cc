// rnn_grad, gru_grad and lstm_grad on NVIDIA GPUs: they repeat the forward pass with a tape, go back step by
// step, then compute the gradients of weights and inputs as products over all steps.
#include "backend/cuda/index/copy.h"
#include "backend/cuda/norm/reduce.h"
#include "ops/kernel_forms.h"
#include "ops/rnn/recurrent_cuda.h"

namespace trireme::ops {
namespace {

using cuda::RecurrentPhase;

float* floats_at(const ir::RunArgs& args, int64_t offset) {
  return reinterpret_cast<float*>(room_at(args, offset));
}

class RecurrentBackward {
 public:
  RecurrentBackward(const ir::KernelInit& init, size_t gates);
  void run(const ir::RunArgs& args) const;
  int64_t workspace_bytes() const { return room_.bytes(); }

 private:
  cuda::RecurrentTape tape(const ir::RunArgs& args) const;
  void make_products(const ir::KernelInit& init);
  void back(const ir::RunArgs& args, const RecurrentOperands& in) const;
  void step_back(const ir::RunArgs& args, const RecurrentOperands& in, cuda::RecurrentBack b) const;
  void weights(const ir::RunArgs& args, const RecurrentOperands& in) const;
  void biases(const ir::RunArgs& args) const;
  void* drec(const ir::RunArgs& args) const { return room_at(args, has_drec_ ? drec_ : dpre_); }
  int64_t bytes_of(int64_t elements) const { return elements * size_; }
  /// The rows of r from gate `gate` on.
  const void* r_from(const RecurrentOperands& in, int64_t gate) const {
    return static_cast<const std::byte*>(in[kR]) + bytes_of(gate * shape_.hidden * shape_.hidden);
  }

  RecurrentRoom room_;
  RecurrentPlan plan_;
  RecurrentForward forward_;
  cuda::RecurrentShape shape_;
  tensor::DType dtype_;
  size_t operands_;
  int64_t size_;
  bool has_drec_;  // gru whose reset gate scales a product
  RecurrentProduct states_, candidate_, weights_w_, weights_r_, weights_candidate_, inputs_;
  cuda::ReducePlan columns_;
  int64_t gemm_ = 0, gemm_bytes_ = 0;
  int64_t tape_h_, tape_reset_, tape_c_, tape_cell_, tape_inner_;
  int64_t product_, reset_product_, direct_, dc_, step_grad_, dpre_, drec_, sums_, reduce_;
};

RecurrentBackward::RecurrentBackward(const ir::KernelInit& init, size_t gates)
    : plan_(plan_recurrent(init.node, gates)),
      forward_(init, plan_, room_),
      shape_(forward_.shape()),
      dtype_(forward_.dtype()),
      operands_(init.node.in.size()),
      size_(tensor::bits_of(dtype_) / 8),
      has_drec_(gates == 3 && plan_.linear_before_reset) {
  const int64_t all = shape_.places() * shape_.directions, units = all * shape_.hidden;
  const int64_t cells = shape_.cells(), rows = shape_.directions * shape_.rows();
  const bool is_lstm = gates == 4;
  tape_h_ = room_.take(bytes_of(units));
  tape_reset_ = room_.take(forward_.has_two_phases() ? bytes_of(units) : 0);
  tape_c_ = room_.take(is_lstm ? units * 4 : 0);
  tape_cell_ = room_.take(is_lstm ? units * 4 : 0);
  tape_inner_ = room_.take(has_drec_ ? units * 4 : 0);
  product_ = room_.take(bytes_of(cells));
  reset_product_ = room_.take(forward_.has_two_phases() ? bytes_of(cells) : 0);
  direct_ = room_.take(cells * 4);
  dc_ = room_.take(cells * 4);
  step_grad_ = room_.take(bytes_of(cells * shape_.gates));
  dpre_ = room_.take(bytes_of(all * shape_.rows()));
  drec_ = room_.take(has_drec_ ? bytes_of(all * shape_.rows()) : 0);
  columns_ = cuda::plan_reduce({shape_.places(), rows}, {true, false});
  sums_ = room_.take(bytes_of(rows));
  reduce_ = room_.take(cuda::reduce_workspace_bytes(columns_, dtype_));
  make_products(init);
  gemm_bytes_ = std::max(gemm_bytes_, forward_.gemm_bytes());
  gemm_ = room_.take(gemm_bytes_);
  forward_.set_gemm_room(gemm_);
}

void RecurrentBackward::make_products(const ir::KernelInit& init) {
  const int64_t n = shape_.hidden, rows = shape_.rows(), all_rows = shape_.directions * rows;
  const bool two = forward_.has_two_phases();
  const auto product = [&](const cuda::GemmShape& s) { return recurrent_product(init, s, gemm_bytes_); };
  // For each direction: gradients [batch, k] of a step times k rows of r.
  const auto to_states = [&](int64_t k) {
    return product({.m = shape_.batch,
                    .n = n,
                    .k = k,
                    .lda = rows,
                    .outer = shape_.directions,
                    .outer_a = shape_.batch * rows,
                    .outer_b = rows * n,
                    .outer_c = shape_.batch * n});
  };
  states_ = to_states(two ? 2 * n : rows);
  if (two) candidate_ = to_states(n);
  // For each direction: gradients [m rows, places] times the states before each step.
  const auto of_states = [&](int64_t m) {
    return product({.m = m,
                    .n = n,
                    .k = shape_.places(),
                    .transpose_a = true,
                    .lda = all_rows,
                    .ldb = shape_.directions * n,
                    .outer = shape_.directions,
                    .outer_a = rows,
                    .outer_b = n,
                    .outer_c = rows * n});
  };
  weights_r_ = of_states(two ? 2 * n : rows);
  if (two) weights_candidate_ = of_states(n);
  weights_w_ = product({.m = all_rows, .n = plan_.input, .k = shape_.places(), .transpose_a = true});
  inputs_ = product({.m = shape_.places(), .n = plan_.input, .k = all_rows});
}

cuda::RecurrentTape RecurrentBackward::tape(const ir::RunArgs& args) const {
  cuda::RecurrentTape t{.h = room_at(args, tape_h_)};
  if (forward_.has_two_phases()) t.reset_h = room_at(args, tape_reset_);
  if (shape_.gates == 4) {
    t.c = floats_at(args, tape_c_);
    t.cell = floats_at(args, tape_cell_);
  }
  if (has_drec_) t.inner = floats_at(args, tape_inner_);
  return t;
}

void RecurrentBackward::step_back(const ir::RunArgs& args, const RecurrentOperands& in,
                                  cuda::RecurrentBack b) const {
  const cuda::On on{args.stream, dtype_};
  cuda::recurrent_back(on, b);
  if (forward_.has_two_phases()) {
    const std::byte* of_candidate = room_at(args, step_grad_) + bytes_of(2 * shape_.hidden);
    candidate_.run(args, {.a = of_candidate, .b = r_from(in, 2), .out = room_at(args, reset_product_)},
                   gemm_);
    b.phase = RecurrentPhase::gru_gates;
    b.product = room_at(args, reset_product_);
    cuda::recurrent_back(on, b);
  }
  states_.run(args, {.a = room_at(args, step_grad_), .b = in[kR], .out = room_at(args, product_)}, gemm_);
}

void RecurrentBackward::back(const ir::RunArgs& args, const RecurrentOperands& in) const {
  const cuda::On on{args.stream, dtype_};
  cuda::RecurrentStates states{.shape = shape_,
                               .h0 = in[kDh],
                               .c0 = in[kDc],
                               .c = floats_at(args, dc_),
                               .wide_h = floats_at(args, direct_)};
  cuda::load_recurrent_states(on, states);
  cuda::fill_zero(args.stream, room_at(args, product_), bytes_of(shape_.cells()));
  cuda::RecurrentBack b{.shape = shape_,
                        .phase = shape_.gates == 1   ? RecurrentPhase::rnn
                                 : shape_.gates == 4 ? RecurrentPhase::lstm
                                 : has_drec_         ? RecurrentPhase::gru
                                                     : RecurrentPhase::gru_candidate,
                        .pre = room_at(args, forward_.pre()),
                        .peephole = in[kPeephole],
                        .dy = in[kDy],
                        .lengths = static_cast<const int32_t*>(in[kLengths]),
                        .tape = tape(args),
                        .product = room_at(args, product_),
                        .direct = floats_at(args, direct_),
                        .dc = floats_at(args, dc_),
                        .step_grad = room_at(args, step_grad_),
                        .dpre = room_at(args, dpre_)};
  if (has_drec_) b.drec = drec(args);
  for (int64_t s = shape_.seq; s-- > 0;) {
    b.step = s;
    step_back(args, in, b);
  }
  states.add = room_at(args, product_);
  states.h_result = args.out[kOutH];
  states.c_result = args.out[kOutC];
  if (shape_.gates != 4) states.c = nullptr;
  cuda::store_recurrent_states(on, states);
}

/// [directions, 2, rows]: the biases of the input, then those of the recurrence.
void RecurrentBackward::biases(const ir::RunArgs& args) const {
  const int64_t rows = shape_.rows();
  for (const int64_t which : {0, 1}) {
    const void* from = which == 0 ? room_at(args, dpre_) : drec(args);
    if (which == 0 || has_drec_)
      cuda::reduce({args.stream, dtype_}, columns_, from, room_at(args, sums_), room_at(args, reduce_));
    const cuda::StridedCopy place = cuda::widened({.extent = {shape_.directions, rows},
                                                   .x_steps = {rows, 1},
                                                   .y_steps = {2 * rows, 1},
                                                   .y_base = which * rows,
                                                   .unit_bytes = size_});
    cuda::copy_strided(args.stream, place, room_at(args, sums_), args.out[kOutB]);
  }
}

void RecurrentBackward::weights(const ir::RunArgs& args, const RecurrentOperands& in) const {
  const int64_t n = shape_.hidden;
  const void* dpre = room_at(args, dpre_);
  if (args.out[kOutX] != nullptr) inputs_.run(args, {.a = dpre, .b = in[kW], .out = args.out[kOutX]}, gemm_);
  if (args.out[kOutW] != nullptr)
    weights_w_.run(args, {.a = dpre, .b = in[kX], .out = args.out[kOutW]}, gemm_);
  if (args.out[kOutR] != nullptr) {
    auto* to = static_cast<std::byte*>(args.out[kOutR]);
    weights_r_.run(args, {.a = drec(args), .b = room_at(args, tape_h_), .out = to}, gemm_);
    if (forward_.has_two_phases()) {
      const std::byte* of_candidate = room_at(args, dpre_) + bytes_of(2 * n);
      weights_candidate_.run(
          args, {.a = of_candidate, .b = room_at(args, tape_reset_), .out = to + bytes_of(2 * n * n)}, gemm_);
    }
  }
  if (args.out[kOutB] != nullptr) biases(args);
  if (args.out[kOutPeephole] == nullptr) return;
  if (in[kPeephole] == nullptr) {
    cuda::fill_zero(args.stream, args.out[kOutPeephole], bytes_of(shape_.directions * 3 * n));
  } else {
    cuda::recurrent_peepholes({args.stream, dtype_}, shape_, dpre, tape(args), args.out[kOutPeephole]);
  }
}

void RecurrentBackward::run(const ir::RunArgs& args) const {
  const RecurrentOperands in = recurrent_operands(args, operands_);
  forward_.run(args, in, {}, tape(args));
  back(args, in);
  weights(args, in);
}

}  // namespace

ir::BoundKernel bind_recurrent_grad(const ir::KernelInit& init, size_t gates) {
  const auto run = std::make_shared<const RecurrentBackward>(init, gates);
  return {[run](const ir::RunArgs& args) { run->run(args); }, run->workspace_bytes()};
}

}  // namespace trireme::ops
