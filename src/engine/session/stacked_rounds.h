// Results that a loop stacks along a new axis: rounds write into them where that is possible.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace trireme::engine {

/// How much the stacked results of one run of a loop may take: number and size of the rounds may be
/// determined by a request.
struct StackedMemory {
  int64_t left_bytes = 0;
};

/// Where a round's value goes.
struct StackedLayout {
  int64_t axis = 0;        ///< the new axis, from the last if negative; not 0: the number of rounds is known
  bool from_last = false;  ///< the first round's value is the last; the number of rounds is known
  int64_t rounds = 0;      ///< so many at most
  bool is_exact = false;   ///< there are just as many
};

/// One stacked result while it grows. For each round place(), then keep().
class StackedRounds {
 public:
  StackedRounds(const StackedLayout& layout, StackedMemory& memory) : layout_(layout), memory_(memory) {}

  /// Where the round writes its value. Throws invalid_argument if its type is not that of the first round,
  /// exhausted if there is no memory left.
  std::byte* place(tensor::DType dtype, const tensor::Dims& dims);
  /// The value is there.
  void keep();
  /// The result. `like`: the type of a value, for a loop without rounds.
  tensor::Tensor take(const tensor::TensorType& like);

 private:
  void open(tensor::DType dtype, const tensor::Dims& dims);
  void grow();

  StackedLayout layout_;
  StackedMemory& memory_;
  tensor::Tensor result_;  ///< [rounds that fit, value], or with another axis the whole result
  tensor::Tensor value_;   ///< of one round, where its elements do not lie side by side in the result
  tensor::Dims dims_;
  size_t axis_ = 0;
  int64_t value_bytes_ = 0, room_ = 0, count_ = 0;  ///< room, count: rounds
};

}  // namespace trireme::engine
