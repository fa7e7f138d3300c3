// Converts float matrices to block formats, a few rows at a time on all threads.
#include "passes/precision/block_weights.h"

#include <algorithm>
#include <cmath>

#include "base/machine/cpu_info.h"
#include "base/rng.h"
#include "ops/table.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using tensor::BlockFormat;
using tensor::DType;
using tensor::Tensor;

constexpr int64_t kRows = 16;  // rows that one task widens

/// Rows [first, first + count) as f32 [count, k].
void widen_rows(const Tensor& weights, bool by_rows, int64_t first, int64_t count, std::vector<float>& to) {
  const int64_t n = weights.dims()[by_rows ? 0 : 1], k = weights.dims()[by_rows ? 1 : 0];
  to.resize(static_cast<size_t>(count * k));
  tensor::visit_dtype(weights.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto* from = reinterpret_cast<const T*>(weights.raw());
    if (by_rows) {
      std::transform(from + first * k, from + (first + count) * k, to.begin(),
                     [](T v) { return static_cast<float>(v); });
      return;
    }
    for (int64_t i = 0; i < k; ++i) {
      for (int64_t r = 0; r < count; ++r)
        to[static_cast<size_t>(r * k + i)] = static_cast<float>(from[i * n + first + r]);
    }
  });
}

/// Sums over rows: squares of the errors and of the weights; finite as long as all weights are.
struct Loss {
  double missed = 0, all = 0, largest = 0;
  void add(const std::vector<float>& given, const std::vector<float>& stored) {
    for (size_t i = 0; i < given.size(); ++i) {
      const double w = static_cast<double>(given[i]), off = w - static_cast<double>(stored[i]);
      missed += off * off;
      all += w * w;
      largest = std::max(largest, std::abs(off));
    }
  }
};

}  // namespace

const BlockFormat* fitting_format(const BlockFormat& wanted, int64_t k) {
  if (k > 0 && k % wanted.weights == 0) return &wanted;
  const BlockFormat& bytes = tensor::need_block_format("q8_0");
  return k > 0 && k % bytes.weights == 0 ? &bytes : nullptr;
}

Tensor store_blocks(const Tensor& weights, bool by_rows, const BlockFormat& format, ops::WeightError& error) {
  const int64_t n = weights.dims()[by_rows ? 0 : 1], k = weights.dims()[by_rows ? 1 : 0];
  const int64_t bytes = format.row_bytes(k), blocks = k / format.weights;
  if (tensor::is_absent(weights)) return tensor::absent(DType::u8, {n, bytes});
  Tensor out = Tensor::empty(DType::u8, {n, bytes});
  auto* to = reinterpret_cast<uint8_t*>(out.mutable_raw());
  const int64_t tasks = (n + kRows - 1) / kRows;
  std::vector<Loss> losses(static_cast<size_t>(tasks));
  base::ThreadPool pool(base::read_cpu_info().threads());
  pool.run(tasks, [&](int64_t task) {
    const int64_t first = task * kRows, count = std::min(kRows, n - first);
    std::vector<float> given, stored(static_cast<size_t>(count * k));
    widen_rows(weights, by_rows, first, count, given);
    format.encode(given.data(), count * blocks, to + first * bytes, nullptr);
    format.decode(to + first * bytes, count * blocks, stored.data());
    losses[static_cast<size_t>(task)].add(given, stored);
  });
  Loss sum;
  for (const Loss& loss : losses) {
    sum.missed += loss.missed;
    sum.all += loss.all;
    sum.largest = std::max(sum.largest, loss.largest);
  }
  base::require(std::isfinite(sum.all), "weights that are not finite have no form in ", format.name);
  error.relative = sum.all > 0 ? std::sqrt(sum.missed / sum.all) : 0;
  error.largest = sum.largest;
  return out;
}

double rounded_rows_error(const Tensor& blocks, const BlockFormat& format) {
  if (tensor::is_absent(blocks)) return 0;
  const Tensor some = blocks.rows(0, std::min<int64_t>(kRows, blocks.dims()[0]));
  Tensor x = Tensor::empty(DType::f32, {4, format.depth(blocks.dims()[1])});
  base::Rng rng(1);
  for (float& v : x.mutable_data<float>()) v = static_cast<float>(rng.normal());
  base::ThreadPool pool(1);
  const auto product = [&](const char* rows) {
    const ir::Attrs attrs{{"format", std::string(format.name)}, {"rows", std::string(rows)}};
    return ops::evaluate(ops::table().need("block_linear"), attrs, {x, some}, 1, pool)[0].to_doubles();
  };
  const std::vector<double> exact = product("f32"), rounded = product("q8");
  double missed = 0, all = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    missed += (exact[i] - rounded[i]) * (exact[i] - rounded[i]);
    all += exact[i] * exact[i];
  }
  return all > 0 ? std::sqrt(missed / all) : 0;
}

}  // namespace trireme::passes
