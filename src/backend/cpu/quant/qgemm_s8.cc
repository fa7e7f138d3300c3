// Packs 8-bit weights, folds zero points into column offsets, and starts plain 8-bit products.
#include "backend/cpu/quant/qgemm_s8.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/quant/qgemm_bytes.h"
#include "backend/cpu/quant/qgemm_driver.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

/// Number of groups of k in the packed form of one column.
int64_t packed_groups(int64_t taps, int64_t run, int group) { return taps * ((run + group - 1) / group); }

int32_t weight_at(const QuantMatrixB& b, int64_t k, int64_t n) {
  const int64_t at = b.transposed ? n * b.ld + k : k * b.ld + n;
  return b.is_signed ? static_cast<const int8_t*>(b.data)[at] : static_cast<const uint8_t*>(b.data)[at] - 128;
}

/// Packs column n as lane `lane` of a panel of `width`; returns the sum of its weights.
int32_t pack_column(const QuantMatrixB& b, int64_t n, int group, int width, int32_t* panel) {
  int32_t sum = 0;
  int64_t row = 0;
  for (int64_t tap = 0; tap < b.taps; ++tap) {
    for (int64_t k0 = 0; k0 < b.run; k0 += group, ++row) {
      int8_t bytes[4] = {0, 0, 0, 0};
      int16_t words[2] = {0, 0};
      for (int i = 0; i < group && k0 + i < b.run; ++i) {
        const int32_t w = weight_at(b, tap * b.run + k0 + i, n);
        sum += w;
        if (group == 4) {
          bytes[i] = static_cast<int8_t>(w);
        } else {
          words[i] = static_cast<int16_t>(w);
        }
      }
      std::memcpy(panel + row * width, group == 4 ? static_cast<const void*>(bytes) : words, 4);
    }
  }
  return sum;
}

/// Where a panel of packed columns and the sums of their weights are written.
struct BytePanel {
  int64_t first;     // column index
  int valid, width;  // columns that exist, and columns of the panel including padding
  int32_t* to;
  int32_t* sums;  // [valid]
};

/// Packs columns in groups of four bytes, reading the source row by row or, if it is transposed, column by
/// column. Must be fast: products of two computed operands pack in every run.
void pack_byte_columns(const QuantMatrixB& b, const BytePanel& panel) {
  constexpr int kGroup = 4;
  const uint8_t flip = b.is_signed ? 0 : 128;  // u8 weights are stored minus 128
  const uint8_t* data = static_cast<const uint8_t*>(b.data);
  std::fill_n(panel.sums, panel.valid, 0);
  for (int64_t k0 = 0; k0 < b.run; k0 += kGroup) {
    uint8_t* row = reinterpret_cast<uint8_t*>(panel.to + k0 / kGroup * panel.width);
    const int rows = static_cast<int>(std::min<int64_t>(kGroup, b.run - k0));
    for (int i = 0; i < rows; ++i) {
      const int64_t n0 = panel.first, step = b.transposed ? b.ld : 1;
      const uint8_t* from = b.transposed ? data + n0 * b.ld + k0 + i : data + (k0 + i) * b.ld + n0;
      for (int j = 0; j < panel.valid; ++j) {
        const uint8_t byte = from[j * step] ^ flip;
        row[j * kGroup + i] = byte;
        panel.sums[j] += static_cast<int8_t>(byte);
      }
    }
  }
}

}  // namespace

size_t packed_quant_bytes(int64_t taps, int64_t run, int64_t n, Isa isa) {
  const QuantKernels& kernels = quant_kernels(isa);
  const int64_t columns = (n + kernels.width - 1) / kernels.width * kernels.width;
  const int64_t groups = packed_groups(taps, run, kernels.group);
  return static_cast<size_t>((groups + 1) * columns) * sizeof(int32_t) + 2 * kAlignment;
}

PackedQuantMatrix pack_quant_b(const QuantMatrixB& b, void* memory, Isa isa) {
  const QuantKernels& kernels = quant_kernels(isa);
  const int64_t groups = packed_groups(b.taps, b.run, kernels.group);
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  int32_t* sums = reinterpret_cast<int32_t*>(align64(address));
  int32_t* out = reinterpret_cast<int32_t*>(align64(reinterpret_cast<uintptr_t>(sums + b.n)));
  const PackedQuantMatrix packed = {out,          sums, b.taps, b.run, b.n, b.taps * b.run - b.fillers,
                                    !b.is_signed, isa};
  for (int64_t n0 = 0; n0 < b.n; n0 += kernels.panel) {
    const int valid = static_cast<int>(std::min<int64_t>(kernels.panel, b.n - n0));
    const int width = valid > kernels.width ? kernels.panel : kernels.width;
    std::memset(out, 0, static_cast<size_t>(groups * width) * sizeof(int32_t));
    if (kernels.group == 4 && b.taps == 1) {
      pack_byte_columns(b, {n0, valid, width, out, sums + n0});
    } else {
      for (int j = 0; j < valid; ++j) sums[n0 + j] = pack_column(b, n0 + j, kernels.group, width, out + j);
    }
    out += groups * width;
  }
  return packed;
}

bool quant_offsets(const PackedQuantMatrix& b, QuantInput a, const int32_t* bias, const int32_t* b_zero,
                   QuantOffsets out) {
  // Kernels with byte groups read signed activations as a + 128; kernels with words read them unchanged.
  const int64_t flip = quant_kernels(b.isa).group == 4 && a.is_signed ? 128 : 0;
  bool any = false;
  for (int64_t n = 0; n < b.n; ++n) {
    const int64_t zero = (b_zero ? b_zero[n] : 0) - (b.shifted ? 128 : 0);
    const int64_t offset =
        (bias ? bias[n] : 0) - (a.zero + flip) * b.column_sums[n] + a.zero * zero * b.depth;
    out.offsets[n] = static_cast<int32_t>(offset);
    out.row_factors[n] = static_cast<int32_t>(zero);
    any = any || zero != 0;
  }
  return any;
}

size_t qgemm_workspace_bytes(int64_t m, const PackedQuantMatrix& b, int threads) {
  RowSource source;
  source.run = b.run;
  size_t bytes = 0;
  for (const int64_t stride : {b.run, int64_t{4096}}) {
    source.row_stride = stride;
    const GemmPlan plan = plan_quant(source, std::max<int64_t>(m, 1), b.n, b.isa, threads);
    bytes = std::max(bytes, static_cast<size_t>(plan.lanes) * plan.lane_bytes);
  }
  return bytes + kAlignment;
}

void qgemm(const QuantGemmArgs& args, void* workspace, base::ThreadPool& pool) {
  if (args.m == 0 || args.b.n == 0) return;
  if (fits_byte_tiles(args)) return run_byte_tiles(args, pool);
  QuantJob job;
  job.source.base = static_cast<const char*>(args.a);
  job.source.row_stride = args.lda;
  job.source.run = args.b.run;
  job.m = args.m;
  job.input = args.input;
  job.b = args.b;
  job.c = args.c;
  job.ldc = args.ldc;
  job.epilogue = args.epilogue;
  run_quant(job, plan_quant(job.source, job.m, args.b.n, args.b.isa, pool.size()), workspace, pool);
}

}  // namespace trireme::cpu
