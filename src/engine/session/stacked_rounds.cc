// Grows the stacked results of a loop within a limit of memory.
#include "engine/session/stacked_rounds.h"

#include <algorithm>
#include <cstring>

#include "ir/schema.h"

namespace trireme::engine {

using tensor::Dims;
using tensor::Tensor;

std::byte* StackedRounds::place(tensor::DType dtype, const Dims& dims) {
  if (!result_.defined()) open(dtype, dims);
  if (dims != dims_ || dtype != result_.dtype()) {
    base::fail_invalid("an iteration yielded ",
                       tensor::TensorType{dtype, tensor::Shape::of(dims)}.to_string(),
                       " where the first yielded ",
                       tensor::TensorType{result_.dtype(), tensor::Shape::of(dims_)}.to_string());
  }
  if (value_.defined()) return value_.mutable_raw();
  if (count_ == room_) grow();
  const int64_t row = layout_.from_last ? layout_.rounds - 1 - count_ : count_;
  return result_.mutable_raw() + row * value_bytes_;
}

void StackedRounds::open(tensor::DType dtype, const Dims& dims) {
  constexpr int64_t kFirstRows = 16;
  if (tensor::bits_of(dtype) < 8)
    base::fail_unsupported("values of iterations in ", name_of(dtype), ", of which several share a byte");
  axis_ = ir::normal_axis(layout_.axis, dims.size() + 1);
  dims_ = dims;
  value_bytes_ = tensor::bytes_of(dtype, tensor::element_count(dims));
  const int64_t charged = std::max<int64_t>(1, value_bytes_);  // rounds without elements do not last for ever
  int64_t rounds = layout_.rounds;
  if (!layout_.is_exact)
    rounds = std::min({rounds, kFirstRows, std::max<int64_t>(1, memory_.left_bytes / charged)});
  if (rounds > memory_.left_bytes / charged) {
    base::fail(base::ErrorCode::exhausted, "the results of ", rounds,
               " rounds leave no room: each is of type ",
               tensor::TensorType{dtype, tensor::Shape::of(dims)}.to_string());
  }
  memory_.left_bytes -= rounds * charged;
  room_ = rounds;
  Dims all = dims;
  all.insert(all.begin() + static_cast<int64_t>(axis_), rounds);
  result_ = Tensor::empty(dtype, all);
  const bool lies_apart = std::any_of(dims.begin(), dims.begin() + static_cast<int64_t>(axis_),
                                      [](int64_t extent) { return extent != 1; });
  if (lies_apart) value_ = Tensor::empty(dtype, dims);
}

void StackedRounds::grow() {
  const int64_t charged = std::max<int64_t>(1, value_bytes_);
  const int64_t more = std::min(room_, memory_.left_bytes / charged);
  if (more <= 0) {
    base::fail(base::ErrorCode::exhausted, "the results of ", count_,
               " rounds leave no room for another of type ",
               tensor::TensorType{result_.dtype(), tensor::Shape::of(dims_)}.to_string());
  }
  memory_.left_bytes -= more * charged;
  Dims all = result_.dims();
  room_ += more;
  all[0] = room_;
  Tensor larger = Tensor::empty(result_.dtype(), all);
  std::memcpy(larger.mutable_raw(), result_.raw(), static_cast<size_t>(count_ * value_bytes_));
  result_ = std::move(larger);
}

void StackedRounds::keep() {
  if (value_.defined()) {
    const Dims& all = result_.dims();
    int64_t outer = 1;
    for (size_t d = 0; d < axis_; ++d) outer *= all[d];
    const int64_t run = outer == 0 ? 0 : value_bytes_ / outer;  // bytes that lie side by side
    const int64_t row = layout_.from_last ? layout_.rounds - 1 - count_ : count_;
    for (int64_t o = 0; o < outer; ++o) {
      std::memcpy(result_.mutable_raw() + (o * all[axis_] + row) * run, value_.raw() + o * run,
                  static_cast<size_t>(run));
    }
  }
  ++count_;
}

Tensor StackedRounds::take(const tensor::TensorType& like) {
  if (!result_.defined()) {
    Dims dims;
    for (const tensor::Dim& d : like.shape.dims()) dims.push_back(d.is_static() ? d.value() : 0);
    const size_t axis = like.shape.has_rank() ? ir::normal_axis(layout_.axis, dims.size() + 1) : 0;
    dims.insert(dims.begin() + static_cast<int64_t>(axis), 0);
    return Tensor::empty(like.dtype, dims);
  }
  if (count_ == room_) return result_;
  return result_.rows(0, count_);
}

}  // namespace trireme::engine
