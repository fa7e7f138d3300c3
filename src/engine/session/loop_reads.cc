// Follows the counters of a loop to the rows that its rounds read.
#include "engine/session/loop_reads.h"

#include <algorithm>
#include <cstring>

#include "passes/lists/lists.h"

namespace trireme::engine {

using lower::RoundConstant;
using lower::RoundInput;
using tensor::Dims;
using tensor::Tensor;

namespace {

/// Values that are computed ahead for many rounds take at most this part of a session's memory.
constexpr int64_t kAheadPart = 8;

using WideNumber = __int128;  ///< holds sums of products of two numbers

int64_t row_bytes(const Tensor& rows) { return rows.dims()[0] == 0 ? 0 : rows.bytes() / rows.dims()[0]; }

/// Whether n is below a limit of one element, compared as values of its type.
bool is_below(int64_t n, const Tensor& limit, bool or_equal) {
  const auto below = [or_equal](auto a, auto b) { return a < b || (or_equal && a == b); };
  switch (limit.dtype()) {
    case tensor::DType::f32: return below(static_cast<float>(n), limit.data<float>()[0]);
    case tensor::DType::f64: return below(static_cast<double>(n), limit.data<double>()[0]);
    default: return below(n, limit.to_ints()[0]);
  }
}

}  // namespace

int64_t wrapped_sum(int64_t a, int64_t b, int64_t n) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b) * static_cast<uint64_t>(n));
}

int64_t LoopReads::number(const lower::RoundNumber& n) const {
  return wrapped_sum(starts_[n.counter], n.offset, 1);
}

const Tensor& LoopReads::constant(const RoundConstant& c) const {
  switch (c.from) {
    case RoundConstant::From::operand: return call_.operands[c.index];
    case RoundConstant::From::before: return before_[c.index];
    case RoundConstant::From::known: break;
  }
  return c.value;
}

bool LoopReads::begin() {
  starts_.resize(std::max<size_t>(1, call_.operands.size()));
  for (const auto& [input, step] : form_.steps) {
    if (call_.operands[input].defined()) starts_[input] = call_.operands[input].to_ints()[0];
  }
  if (!before_runner_.graph().outputs().empty()) {
    std::vector<Tensor> in;
    for (size_t input : form_.before_inputs) in.push_back(call_.operands[input]);
    before_ = before_runner_.run(in);
  }
  limit_rounds();
  open_slices();
  return !form_.needs_rows || rows_exist();
}

/// The condition is looked at after a round: the first round of which the limit does not hold is the last.
/// Found by halving, since numbers grow from round to round.
void LoopReads::limit_rounds() {
  rounds_ = call_.trips;
  for (const lower::RoundBound& bound : form_.bounds) {
    const WideNumber step = form_.steps.at(bound.number.counter), start = number(bound.number);
    const auto holds_after = [&](int64_t round) {
      const WideNumber n = start + step * round;
      return n <= INT64_MAX && is_below(static_cast<int64_t>(n), constant(bound.limit), bound.or_equal);
    };
    int64_t last = 0, above = rounds_;  // it holds after all rounds before `last`
    while (last < above) {
      const int64_t middle = last + (above - last) / 2;
      if (holds_after(middle))
        last = middle + 1;
      else
        above = middle;
    }
    rounds_ = std::min(rounds_, last < INT64_MAX ? last + 1 : last);
  }
}

void LoopReads::open_slices() {
  for (const lower::RoundSlice& slice : form_.slices) {
    const bool is_read =
        slice.is_scanned || slice.rows.from != RoundConstant::From::known || slice.rows.value.defined();
    const Tensor* rows = is_read ? &constant(slice.rows) : nullptr;
    rows_.push_back(rows);
    row_bytes_.push_back(rows == nullptr ? 0 : row_bytes(*rows));
    const int64_t last = rows == nullptr ? 0 : rows->dims()[0] - 1;
    first_row_.push_back(!slice.is_scanned ? number(slice.at) : slice.from_last ? last : 0);
    row_step_.push_back(!slice.is_scanned ? form_.steps.at(slice.at.counter) : slice.from_last ? -1 : 1);
  }
}

bool LoopReads::rows_exist() const {
  if (rounds_ == INT64_MAX) return false;
  for (size_t s = 0; s < rows_.size(); ++s) {
    if (rows_[s] == nullptr) continue;
    const WideNumber first = first_row_[s], last = first + WideNumber{row_step_[s]} * (rounds_ - 1);
    if (std::min(first, last) < 0 || std::max(first, last) >= rows_[s]->dims()[0]) return false;
  }
  return true;
}

int64_t LoopReads::row_of(size_t slice, int64_t round) const {
  const int64_t count = rows_[slice]->dims()[0];
  const int64_t at = wrapped_sum(first_row_[slice], row_step_[slice], round), row = at < 0 ? at + count : at;
  if (row < 0 || row >= count) [[unlikely]]
    base::fail_invalid("round ", round, " of a loop reads row ", at, " of ", count);
  return row;
}

Tensor LoopReads::tensor(const RoundInput& input) const {
  switch (input.kind) {
    case RoundInput::Kind::operand: return call_.operands[input.index];
    case RoundInput::Kind::before: return before_[input.index];
    case RoundInput::Kind::slice: {
      const int64_t row = row_of(input.index, round_);
      return rows_[input.index]->rows(row, row + 1).reshaped(form_.slices[input.index].dims);
    }
    default: break;
  }
  const Tensor& all = lifted_[input.index];
  const int64_t rows = all.dims()[0] / (ahead_end_ - ahead_begin_), at = (round_ - ahead_begin_) * rows;
  return all.rows(at, at + rows);
}

const void* LoopReads::address(const RoundInput& input, const void* constant) const {
  if (input.kind == RoundInput::Kind::slice)
    return rows_[input.index]->raw() + row_of(input.index, round_) * row_bytes_[input.index];
  if (input.kind == RoundInput::Kind::lifted)
    return lifted_[input.index].raw() + (round_ - ahead_begin_) * lifted_bytes_[input.index];
  return constant;
}

void LoopReads::reach(int64_t round) {
  round_ = round;
  if (!form_.lifted_inputs.empty() && round_ == ahead_end_) compute_ahead();
}

/// An input of the lifted part: its slices have the rows of `rounds` rounds.
Tensor LoopReads::ahead_input(const RoundInput& input, int64_t rounds) const {
  if (input.kind == RoundInput::Kind::operand) return call_.operands[input.index];
  if (input.kind == RoundInput::Kind::before) return before_[input.index];
  Dims dims = form_.slices[input.index].dims;
  dims[0] *= rounds;
  const Tensor& rows = *rows_[input.index];
  const int64_t first = row_of(input.index, round_);
  if (row_step_[input.index] == 1 && first + rounds <= rows.dims()[0])
    return rows.rows(first, first + rounds).reshaped(dims);
  Tensor out = Tensor::empty(rows.dtype(), dims);
  const int64_t bytes = row_bytes_[input.index];
  for (int64_t r = 0; r < rounds; ++r) {
    std::memcpy(out.mutable_raw() + r * bytes, rows.raw() + row_of(input.index, round_ + r) * bytes,
                static_cast<size_t>(bytes));
  }
  return out;
}

/// Computes the values of the lifted part for the next rounds.
void LoopReads::compute_ahead() {
  if (ahead_most_ == 0) {
    // What one round needs: its rows and the results, whose types follow from one round's.
    int64_t bytes = 1;
    for (const RoundInput& input : form_.lifted_inputs)
      bytes += input.kind == RoundInput::Kind::slice ? row_bytes_[input.index] : 0;
    std::vector<Dims> shapes;
    for (const RoundInput& input : form_.lifted_inputs) shapes.push_back(ahead_input(input, 1).dims());
    const ir::Graph one = passes::bind_shapes(lifted_runner_.graph(), shapes);
    for (ir::ValueId id : one.outputs()) bytes += tensor::bytes_of(one.type(id));
    ahead_most_ = std::max<int64_t>(1, memory_bytes_ / kAheadPart / bytes);
  }
  const int64_t rounds = std::min(rounds_ - round_, ahead_most_);
  std::vector<Tensor> in;
  for (const RoundInput& input : form_.lifted_inputs) in.push_back(ahead_input(input, rounds));
  lifted_ = lifted_runner_.run(in);
  ahead_begin_ = round_, ahead_end_ = round_ + rounds;
  lifted_bytes_.clear();
  for (const Tensor& t : lifted_) lifted_bytes_.push_back(t.bytes() / rounds);
}

}  // namespace trireme::engine
