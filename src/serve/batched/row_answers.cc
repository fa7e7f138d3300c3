// Splits the outputs of one run into the answers of a decoupled model, one per row.
#include "serve/batched/row_answers.h"

#include <cstring>

namespace trireme::serve {

using tensor::Tensor;

int64_t answer_count(const std::vector<Tensor>& outputs, size_t axis) {
  int64_t count = -1;
  for (const Tensor& t : outputs) {
    base::require(t.rank() > axis, "stream_rows: an output of shape ", tensor::to_string(t.dims()),
                  " has no rows");
    if (count < 0) count = t.dims()[axis];
    base::require(count == t.dims()[axis], "stream_rows: outputs of ", count, " and of ", t.dims()[axis],
                  " rows");
  }
  if (count > kMostAnswers)
    base::fail(base::ErrorCode::exhausted, "a request has ", count, " answers, at most ", kMostAnswers);
  return count < 0 ? 0 : count;
}

Tensor answer_at(const Tensor& all, size_t axis, int64_t index) {
  tensor::Dims dims = all.dims();
  dims.erase(dims.begin() + static_cast<int64_t>(axis));
  if (axis == 0) return all.rows(index, index + 1).reshaped(dims);
  // [batch, count, ...]: one contiguous run of bytes per row of the batch.
  const int64_t rows = all.dims()[0], count = all.dims()[1];
  Tensor out = Tensor::empty(all.dtype(), dims);
  const int64_t step = rows == 0 ? 0 : out.bytes() / rows;
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out.mutable_raw() + r * step, all.raw() + (r * count + index) * step,
                static_cast<size_t>(step));
  }
  return out;
}

}  // namespace trireme::serve
