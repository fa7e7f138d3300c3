// Launchers of cross entropy and its parts.
#include "backend/cuda/norm/loss.h"

#include "backend/cuda/norm/loss_kernels.h"
#include "backend/cuda/norm/loss_part_kernels.h"
#include "backend/cuda/device/types.h"

namespace trireme::cuda {
namespace {

ClassTargets targets_of(const TargetArgs& t) { return {t.at, t.is_wide, t.ignored, t.classes}; }

/// Per row: loss, log-sum-exp, and whether the prediction is right.
struct RowResults {
  float *loss, *log_sum_exp;
  uint8_t* correct;
};
RowResults row_results(const CrossEntropyArgs& a, const EntropyResults& results) {
  auto* loss = static_cast<float*>(a.workspace);
  return {loss, results.log_sum_exp != nullptr ? results.log_sum_exp : loss + a.rows,
          reinterpret_cast<uint8_t*>(loss + 2 * a.rows)};
}

void sum_rows(tensor::Stream& stream, const CrossEntropyArgs& a, const RowResults& rows,
              const EntropyResults& out) {
  launch(stream, "cross_entropy_sums", {1, 512, kReduceScratchBytes},
         CrossEntropySums{rows.loss, rows.correct, targets_of(a.targets), out.loss, out.count, out.hits,
                          a.rows});
}

}  // namespace

int64_t cross_entropy_workspace_bytes(int64_t rows) { return rows * 9; }

void cross_entropy(On on, const CrossEntropyArgs& a, const EntropyResults& results) {
  const RowResults rows = row_results(a, results);
  if (a.rows > 0) {
    by_float(on.dtype, [&](auto zero) {
      using T = decltype(zero);
      launch(on.stream, "cross_entropy", row_launch<float>(on.stream, a.rows, a.n),
             CrossEntropyRows<T>{.logits = static_cast<const T*>(a.logits),
                                 .targets = targets_of(a.targets),
                                 .weights = {a.smoothing, a.z_loss},
                                 .loss = rows.loss,
                                 .log_sum_exp = rows.log_sum_exp,
                                 .correct = rows.correct,
                                 .rows = a.rows,
                                 .n = a.n,
                                 .stride = a.n + a.padded,
                                 .fault = a.targets.fault,
                                 .step = a.targets.step});
    });
  }
  sum_rows(on.stream, a, rows, results);
}

void cross_entropy_grad(On on, const CrossEntropyGradArgs& g) {
  const CrossEntropyArgs& a = g.of;
  if (a.rows == 0 || a.n == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "cross_entropy_grad", row_launch<T>(on.stream, a.rows, a.n),
           CrossEntropyGradRows<T>{.logits = static_cast<const T*>(a.logits),
                                   .targets = targets_of(a.targets),
                                   .weights = {a.smoothing, a.z_loss},
                                   .log_sum_exp = g.log_sum_exp,
                                   .dloss = g.dloss,
                                   .dlogits = static_cast<T*>(g.dlogits),
                                   .rows = a.rows,
                                   .n = a.n,
                                   .stride = a.n + a.padded,
                                   .first = g.first,
                                   .fault = a.targets.fault,
                                   .step = a.targets.step});
  });
}

void entropy_part(On on, const EntropyPartArgs& p) {
  const CrossEntropyArgs& a = p.of;
  if (a.rows == 0) return;
  by_float(on.dtype, [&](auto zero) {
    using T = decltype(zero);
    launch(on.stream, "cross_entropy_part", row_launch<float>(on.stream, a.rows * p.parts, p.part_length),
           EntropyParts<T>{.logits = static_cast<const T*>(a.logits),
                           .targets = targets_of(a.targets),
                           .peaks = p.peaks,
                           .sums = p.sums,
                           .rows = a.rows,
                           .n = a.n,
                           .stride = a.n + a.padded,
                           .parts = p.parts,
                           .part_length = p.part_length,
                           .first = p.first,
                           .with_mean = a.smoothing != 0,
                           .fault = a.targets.fault,
                           .step = a.targets.step});
  });
}

void entropy_total(tensor::Stream& stream, const EntropyTotalArgs& a) {
  if (a.rows == 0) return;
  launch(stream, "cross_entropy_total", flat_launch(stream, a.rows),
         EntropyTotals{a.peaks, a.sums, a.largest, a.out, a.rows, a.parts, a.with_mean});
}

void entropy_join(tensor::Stream& stream, const CrossEntropyArgs& a, const float* largest,
                  const float* totals, const EntropyResults& results) {
  const RowResults rows = row_results(a, results);
  if (a.rows > 0) {
    launch(stream, "cross_entropy_join", flat_launch(stream, a.rows),
           EntropyJoin{largest,
                       totals,
                       targets_of(a.targets),
                       {a.smoothing, a.z_loss},
                       rows.loss,
                       rows.log_sum_exp,
                       rows.correct,
                       a.rows});
  }
  sum_rows(stream, a, rows, results);
}

}  // namespace trireme::cuda
