// Prepares a loop from the values that it begins with, then runs round after round.
#include "engine/session/loop_runner.h"

#include <algorithm>
#include <cstring>

namespace trireme::engine {

using lower::LoopForm;
using lower::LoopRows;
using lower::RoundInput;
using lower::StateRule;
using tensor::Dims;
using tensor::Tensor;

namespace {

/// Rounds whose carried values grow need a program for each length.
constexpr size_t kMostRoundPrograms = 512;

Tensor number_as(tensor::DType dtype, const Dims& dims, int64_t value) {
  Tensor out = Tensor::empty(dtype, dims);
  if (dtype == tensor::DType::i64)
    out.mutable_data<int64_t>()[0] = value;
  else
    out.mutable_data<int32_t>()[0] = static_cast<int32_t>(value);
  return out;
}

bool is_true(const Tensor& t) {
  base::require(t.defined() && t.elements() == 1, "a condition must have one element");
  return t.dtype() == tensor::DType::boolean ? t.raw()[0] != std::byte{0} : t.to_ints()[0] != 0;
}

}  // namespace

/// The parts of a loop, each with its programs.
struct LoopRunner::Formed {
  explicit Formed(LoopForm given, RunnerContext& context)
      : form(std::move(given)),
        before(std::move(form.before), context),
        lifted(std::move(form.lifted), context),
        round(std::move(form.round), context, std::max(context.max_programs, kMostRoundPrograms)) {}

  LoopForm form;  ///< its graphs are the runners'
  GraphRunner before, lifted, round;
};

/// One run of a loop.
class LoopRunner::Rounds {
 public:
  Rounds(Formed& formed, const lower::LoopSignature& signature, LoopCall& call, const RunnerContext& context)
      : formed_(formed),
        form_(formed.form),
        signature_(signature),
        call_(call),
        stop_(context.stop),
        reads_(form_, formed.before, formed.lifted, call, context.compile.memory_bytes),
        stacked_memory_{context.compile.memory_bytes / 2} {}

  /// Returns false if a row that a part names does not exist.
  bool begin() { return reads_.begin(); }
  std::vector<Tensor> run(const ir::Graph& body);

 private:
  void prepare_inputs();
  void prepare_results();
  void set_inputs();
  void set_results(const CompiledShape& shape);
  void one_round();
  void run_as_tensors();
  Tensor input_tensor(const RoundInput& input) const;
  void move_on();
  std::vector<Tensor> results(const ir::Graph& body);

  Formed& formed_;
  const LoopForm& form_;
  const lower::LoopSignature& signature_;
  LoopCall& call_;
  const RunStop* const stop_;
  LoopReads reads_;
  int64_t round_ = 0;
  Tensor iteration_ = Tensor::scalar<int64_t>(0), true_ = Tensor::scalar(true),
         condition_ = Tensor::scalar(true);
  std::vector<size_t> computed_;       ///< states that rounds compute, in the order of their results
  std::vector<Tensor> state_, spare_;  ///< by state; spare: memory for the next value, of the round before
  std::vector<bool> is_own_;           ///< by state: it was computed here, so its memory may be written again
  std::vector<StackedRounds> stacked_;
  StackedMemory stacked_memory_;
  CompiledShape* shape_ = nullptr;
  std::vector<Dims> shapes_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
};

void LoopRunner::Rounds::prepare_inputs() {
  for (size_t s = 0; s < signature_.states; ++s) {
    state_.push_back(call_.operands[signature_.first_state() + s]);
    if (form_.states[s].kind == StateRule::Kind::computed) computed_.push_back(s);
  }
  spare_.resize(state_.size());
  is_own_.resize(state_.size());
  for (const RoundInput& input : form_.round_inputs) {
    const Tensor first = input_tensor(input);
    in_.push_back(first.raw());
    shapes_.push_back(first.dims());
  }
}

void LoopRunner::Rounds::prepare_results() {
  for (StackedLayout layout : call_.stacked) {
    layout.rounds = reads_.rounds();
    layout.is_exact = form_.is_exact;
    stacked_.emplace_back(layout, stacked_memory_);
  }
  out_.resize(formed_.round.graph().outputs().size());
}

void LoopRunner::Rounds::set_inputs() {
  for (size_t i = 0; i < in_.size(); ++i) {
    const RoundInput& input = form_.round_inputs[i];
    in_[i] = input.kind == RoundInput::Kind::state ? state_[input.index - signature_.first_state()].raw()
                                                   : reads_.address(input, in_[i]);
  }
}

/// Gives every result of the round its place.
void LoopRunner::Rounds::set_results(const CompiledShape& shape) {
  size_t r = 0;
  const auto has_room = [&](const Tensor& t) {
    return t.defined() && t.dtype() == GraphRunner::result_dtype(shape, r) &&
           t.dims() == GraphRunner::result_dims(shape, r);
  };
  if (form_.has_condition) {
    if (!has_room(condition_))
      condition_ = Tensor::empty(GraphRunner::result_dtype(shape, r), GraphRunner::result_dims(shape, r));
    out_[r++] = condition_.mutable_raw();
  }
  for (size_t s : computed_) {
    if (!has_room(spare_[s]))
      spare_[s] = Tensor::empty(GraphRunner::result_dtype(shape, r), GraphRunner::result_dims(shape, r));
    out_[r++] = spare_[s].mutable_raw();
  }
  for (StackedRounds& stacked : stacked_) {
    out_[r] = stacked.place(GraphRunner::result_dtype(shape, r), GraphRunner::result_dims(shape, r));
    ++r;
  }
}

/// The new states are in the spare memory: changes places, and looks for the program of new extents.
void LoopRunner::Rounds::move_on() {
  for (StackedRounds& stacked : stacked_) stacked.keep();
  for (size_t s : computed_) {
    const bool same = state_[s].dims() == spare_[s].dims();
    std::swap(state_[s], spare_[s]);
    if (!is_own_[s]) spare_[s] = {};  // the caller's operand
    is_own_[s] = true;
    if (same) continue;
    shape_ = nullptr;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const RoundInput& input = form_.round_inputs[i];
      if (input.kind == RoundInput::Kind::state && input.index == signature_.first_state() + s)
        shapes_[i] = state_[s].dims();
    }
  }
  ++round_;
  iteration_.mutable_data<int64_t>()[0] = round_;
}

void LoopRunner::Rounds::one_round() {
  reads_.reach(round_);
  if (round_ == 0) prepare_inputs();
  set_inputs();
  if (shape_ == nullptr) shape_ = formed_.round.whole(shapes_);
  if (shape_ == nullptr) return run_as_tensors();
  set_results(*shape_);
  formed_.round.run_at(*shape_, in_, out_);
  move_on();
}

Tensor LoopRunner::Rounds::input_tensor(const RoundInput& input) const {
  switch (input.kind) {
    case RoundInput::Kind::iteration: return iteration_;
    case RoundInput::Kind::condition: return true_;
    case RoundInput::Kind::state: return state_[input.index - signature_.first_state()];
    default: return reads_.tensor(input);
  }
}

/// A round with results whose extents depend on data.
void LoopRunner::Rounds::run_as_tensors() {
  std::vector<Tensor> in;
  for (const RoundInput& input : form_.round_inputs) in.push_back(input_tensor(input));
  std::vector<Tensor> out = formed_.round.run(in);
  size_t r = 0;
  if (form_.has_condition) condition_ = std::move(out[r++]);
  for (size_t s : computed_) spare_[s] = std::move(out[r++]);
  for (StackedRounds& stacked : stacked_) {
    const Tensor& value = out[r++];
    std::memcpy(stacked.place(value.dtype(), value.dims()), value.raw(), static_cast<size_t>(value.bytes()));
  }
  move_on();
  // Results of a run are given away, and may be operands that several values share.
  for (size_t s : computed_) is_own_[s] = false;
}

std::vector<Tensor> LoopRunner::Rounds::run(const ir::Graph& body) {
  prepare_results();
  for (bool go_on = true; go_on && round_ < reads_.rounds();) {
    if (stop_ != nullptr) stop_->check_round(round_);
    one_round();
    if (form_.has_condition) go_on = is_true(condition_);
  }
  return results(body);
}

std::vector<Tensor> LoopRunner::Rounds::results(const ir::Graph& body) {
  std::vector<Tensor> out;
  for (size_t s = 0; s < signature_.states; ++s) {
    const Tensor& operand = call_.operands[signature_.first_state() + s];
    const StateRule& rule = form_.states[s];
    const int64_t start = rule.kind == StateRule::Kind::counted ? operand.to_ints()[0] : 0;
    switch (rule.kind) {
      case StateRule::Kind::computed: out.push_back(round_ == 0 ? operand : state_[s]); break;
      case StateRule::Kind::unchanged: out.push_back(operand); break;
      case StateRule::Kind::counted:
        out.push_back(number_as(operand.dtype(), operand.dims(), wrapped_sum(start, rule.step, round_)));
        break;
    }
  }
  const size_t first = body.outputs().size() - stacked_.size();
  for (size_t i = 0; i < stacked_.size(); ++i)
    out.push_back(stacked_[i].take(body.type(body.outputs()[first + i])));
  return out;
}

LoopRunner::LoopRunner(ir::Graph body, lower::LoopSignature signature, RunnerContext& context)
    : body_(std::move(body)),
      signature_(std::move(signature)),
      context_(context),
      exact_rows_(context.max_programs),
      any_rows_(context.max_programs) {}

LoopRunner::~LoopRunner() = default;

LoopRunner::Formed& LoopRunner::formed_for(const std::vector<Dims>& shapes, LoopRows rows) {
  auto& cache = rows == LoopRows::exist ? exact_rows_ : any_rows_;
  return cache.find(shapes, [&] {
    return std::make_unique<Formed>(lower::form_loop(body_, signature_, shapes, rows), context_);
  });
}

/// Extents of the body's inputs in the first round.
std::vector<Dims> LoopRunner::body_shapes(const LoopCall& call) const {
  std::vector<Dims> shapes;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    Dims dims = call.operands[i].defined() ? call.operands[i].dims() : Dims{};
    if (i >= signature_.first_slice() && i < signature_.first_capture()) dims.erase(dims.begin());
    shapes.push_back(std::move(dims));
  }
  return shapes;
}

/// Rounds read operands and the states of the round before where they lie, without a look at their types.
void LoopRunner::check_types(const LoopCall& call) const {
  const auto check = [&](size_t i, tensor::DType given) {
    const ir::Value& input = body_.value(body_.inputs()[i]);
    if (given == input.type.dtype) return;
    base::fail_invalid("input '", input.name, "' of a loop's body is ", tensor::name_of(input.type.dtype),
                       ", it is given ", tensor::name_of(given));
  };
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const Tensor& operand = call.operands[i];
    base::require(operand.defined() || i < signature_.first_state(), "a loop lacks operand ", i);
    if (operand.defined()) check(i, operand.dtype());
  }
  for (size_t s = 0; s < signature_.states; ++s)
    check(signature_.first_state() + s,
          body_.type(body_.outputs()[signature_.first_state_result() + s]).dtype);
}

std::vector<Tensor> LoopRunner::run(LoopCall call) {
  check_types(call);
  if (call.trips <= 0) return without_rounds(call);
  const std::vector<Dims> shapes = body_shapes(call);
  for (const LoopRows rows : {LoopRows::exist, LoopRows::may_be_missing}) {
    Rounds rounds(formed_for(shapes, rows), signature_, call, context_);
    if (rounds.begin()) return rounds.run(body_);
  }
  base::check(false, "a loop whose rows may be missing needs none");
  return {};
}

std::vector<Tensor> LoopRunner::without_rounds(const LoopCall& call) const {
  const auto first = call.operands.begin() + static_cast<int64_t>(signature_.first_state());
  std::vector<Tensor> out(first, first + static_cast<int64_t>(signature_.states));
  StackedMemory none;
  const size_t scanned = signature_.first_state_result() + signature_.states;
  for (size_t i = 0; i < call.stacked.size(); ++i)
    out.push_back(StackedRounds(call.stacked[i], none).take(body_.type(body_.outputs()[scanned + i])));
  return out;
}

int64_t LoopRunner::folded_bytes() const {
  int64_t bytes = 0;
  for (const auto* cache : {&exact_rows_, &any_rows_}) {
    cache->for_each([&](const std::vector<Dims>&, const Formed& formed) {
      bytes += formed.before.folded_bytes() + formed.lifted.folded_bytes() + formed.round.folded_bytes();
    });
  }
  return bytes;
}

}  // namespace trireme::engine
