// Adafactor of matrices: the second moment is a product of running means of squares of rows and columns. The
// gradient is read four times (28 bytes an element in all) and nothing of its size is stored.
#pragma once

#include <cstdint>

#include "backend/cuda/optim/factored_table.h"
#include "backend/cuda/optim/gradient_norm_kernels.h"

namespace trireme::cuda {

/// Row factors, and sums of squares of the parameter's rows.
struct FactorRows {
  FactoredTable table;
  FactoredRule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *rule.numbers;
    for_factored_rows(lane, table, [&](const FactoredGroup& g, int, int64_t row, bool is_one, int at) {
      double grad = 0, param = 0;
      for (int64_t c = at; c < g.cols && is_one; c += g.width) {
        grad += squared(g.grad[row * g.cols + c]);
        param += squared(g.param[row * g.cols + c]);
      }
      grad = row_total(lane, grad, g.width);
      param = row_total(lane, param, g.width);
      if (at != 0 || !is_one) return;
      const double scale = k.grad_scale * k.grad_scale / static_cast<double>(g.cols);
      g.row_out[row] = blended(k, g.row[row], grad * scale);
      g.param_squares[row] = param;
    });
  }
};

/// Sums of squares of the columns of each part, a thread a column; of a matrix of one part its factors.
struct FactorColumns {
  FactoredTable table;
  FactoredRule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *rule.numbers;
    for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < table.first_column[table.count];
         i += lane.blocks() * lane.threads()) {
      const int number = table.group_of(table.first_column, i);
      const FactoredGroup& g = table.group[number];
      const int64_t own = i - table.first_column[number], column = own % g.cols, run = own / g.cols;
      const int64_t part = run % g.parts, matrix = run / g.parts, first = part * kFactoredPartRows;
      const int64_t left = g.rows - first, rows = left < kFactoredPartRows ? left : kFactoredPartRows;
      const float* from = g.grad + (matrix * g.rows + first) * g.cols + column;
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += squared(from[r * g.cols]);
      if (g.parts > 1) {
        g.partial[own] = sum;
        continue;
      }
      const double scale = k.grad_scale * k.grad_scale / static_cast<double>(g.rows);
      g.col_out[own] = blended(k, g.col[own], sum * scale);
    }
  }
};

/// Column factors from the parts in their order.
struct JoinColumns {
  FactoredTable table;
  FactoredRule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *rule.numbers;
    for (int number = 0; number < table.count; ++number) {
      const FactoredGroup& g = table.group[number];
      if (g.parts == 1) continue;
      const double scale = k.grad_scale * k.grad_scale / static_cast<double>(g.rows);
      for (int64_t i = lane.block() * lane.threads() + lane.thread(); i < g.matrices * g.cols;
           i += lane.blocks() * lane.threads()) {
        const double* from = g.partial + i / g.cols * g.parts * g.cols + i % g.cols;
        double sum = 0;
        for (int64_t p = 0; p < g.parts; ++p) sum += from[p * g.cols];
        g.col_out[i] = blended(k, g.col[i], sum * scale);
      }
    }
  }
};

/// The mean of the row factors of each matrix, a warp a matrix.
struct MeanOfRows {
  FactoredTable table;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const int warps = lane.threads() / kWarp, in_warp = lane.thread() % kWarp;
    for (int number = 0; number < table.count; ++number) {
      const FactoredGroup& g = table.group[number];
      for (int64_t m = lane.block() * warps + lane.thread() / kWarp; m < g.matrices;
           m += lane.blocks() * warps) {
        double sum = 0;
        for (int64_t r = in_warp; r < g.rows; r += kWarp)
          sum += static_cast<double>(g.row_out[m * g.rows + r]);
        sum = row_total(lane, sum, kWarp);
        if (in_warp == 0) g.mean[m] = sum / static_cast<double>(g.rows);
      }
    }
  }
};

/// The factor of a row, in f32.
TRIREME_DEVICE float row_factor(const FactoredGroup& g, const FactoredRule& rule, int64_t row) {
  const double mean = g.mean[row / g.rows];
  return static_cast<float>(static_cast<double>(g.row_out[row]) / (rule.eps1 > mean ? rule.eps1 : mean));
}

/// Sums of squares of the direction's rows.
struct MeasureFactored {
  FactoredTable table;
  FactoredRule rule;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *rule.numbers;
    for_factored_rows(lane, table, [&](const FactoredGroup& g, int, int64_t row, bool is_one, int at) {
      const float factor = is_one ? row_factor(g, rule, row) : 0;
      const float* col = g.col_out + (is_one ? row / g.rows * g.cols : 0);
      double sum = 0;
      for (int64_t c = at; c < g.cols && is_one; c += g.width)
        sum += squared(
            factored_direction(g.grad[row * g.cols + c], k.scale, exact::times(factor, col[c]), rule.floor));
      sum = row_total(lane, sum, g.width);
      if (at == 0 && is_one) g.update_squares[row] = sum;
    });
  }
};

/// The step of each parameter, a block a parameter.
struct FactoredSteps {
  FactoredTable table;
  FactoredRule rule;
  double* step;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    double* scratch = lane.template shared<double>();
    const FactoredGroup& g = table.group[lane.block()];
    double param = 0, update = 0;
    for (int64_t r = lane.thread(); r < g.matrices * g.rows; r += lane.threads()) {
      param += g.param_squares[r];
      update += g.update_squares[r];
    }
    param = block_reduce(lane, param, scratch, PlusWide{});
    update = block_reduce(lane, update, scratch, PlusWide{});
    if (lane.thread() == 0)
      step[lane.block()] = rule.step(*rule.numbers, param, update, g.matrices * g.rows * g.cols);
  }
};

/// p = p keep - step u.
struct ApplyFactored {
  FactoredTable table;
  FactoredRule rule;
  const double* step;

  template <class Lane>
  TRIREME_DEVICE void operator()(const Lane& lane) const {
    const TrustNumbers k = *rule.numbers;
    for_factored_rows(lane, table, [&](const FactoredGroup& g, int number, int64_t row, bool is_one, int at) {
      if (!is_one) return;
      const float factor = row_factor(g, rule, row), by = -static_cast<float>(step[number]);
      const float* col = g.col_out + row / g.rows * g.cols;
      for (int64_t c = at; c < g.cols; c += g.width) {
        const int64_t i = row * g.cols + c;
        const float u = factored_direction(g.grad[i], k.scale, exact::times(factor, col[c]), rule.floor);
        float p = g.param[i];
        if (k.is_skipped == 0) p = exact::plus(exact::times(by, u), exact::times(k.keep, p));
        g.param_out[i] = p;
        store_rounded(g.copy, &p, i, 1);
      }
    });
  }
};

}  // namespace trireme::cuda
