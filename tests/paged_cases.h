// Cases of paged_attention for the tests of its kernels: pages of all sequences shuffled into one pool.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/attention/paged.h"
#include "tensor/small_float_math.h"
#include "tests/run_kernels.h"

namespace trireme::ops::paged_cases {

using tensor::DType;
using tensor::Tensor;
using tests::random_tensor;

struct Case {
  int64_t heads, kv_heads, dim, page_tokens;
  std::vector<int> lengths, fresh;  ///< of each sequence: tokens in all, and how many of them are new
  DType pages = DType::f32, type = DType::f32;
  int64_t padding = 0;  ///< rows behind the last sequence
  int64_t left = -1;    ///< keys before a query that it sees; -1: all
  double softcap = 0;
  bool has_sinks = false;

  /// [heads]: below, among and above the scores.
  Tensor sinks() const { return has_sinks ? tests::random_tensor({heads}, 17, 3.0f) : Tensor(); }
  ir::Attrs attrs() const { return {{"left_window_size", left}, {"softcap", softcap}}; }
};

inline Tensor ints(const tensor::Dims& dims, const std::vector<int32_t>& values) {
  return Tensor::from<int32_t>(dims, std::span<const int32_t>(values));
}

inline Tensor as(const Tensor& t, DType type) {
  if (t.dtype() == type) return t;
  base::ThreadPool pool(1);
  const int64_t onnx = type == DType::f16 ? 10 : 16;
  return evaluate(table().need("cast"), {{"to", onnx}}, {t}, 1, pool)[0];
}

/// Rows of f32 as codes with their scale behind them.
inline Tensor coded(const Tensor& t, DType type) {
  tensor::Dims dims = t.dims();
  const int64_t dim = dims.back();
  dims.back() = row_elements(type, dim);
  Tensor made = Tensor::empty(type, dims);
  auto* to = made.mutable_raw();
  const std::span<const float> from = t.data<float>();
  for (size_t row = 0; row * static_cast<size_t>(dim) < from.size(); ++row) {
    const auto x = from.subspan(row * static_cast<size_t>(dim), static_cast<size_t>(dim));
    float most = 0;
    for (const float v : x) most = std::isnan(v) ? v : std::max(most, std::fabs(v));
    const float scale = most / (type == DType::i8 ? 127.0f : 448.0f);
    for (const float v : x) {
      const float code = most > 0 ? v * (1.0f / scale) : 0.0f;
      *to++ = static_cast<std::byte>(type == DType::i8 ? static_cast<uint8_t>(std::lrint(code))
                                                       : tensor::encode_small_float(type, code, true));
    }
    std::memcpy(to, &scale, sizeof scale);
    to += sizeof scale;
  }
  return made;
}

/// The floats that rows of codes stand for.
inline Tensor decoded(const Tensor& t) {
  tensor::Dims dims = t.dims();
  const int64_t elements = dims.back();
  dims.back() -= row_elements(t.dtype(), 0);
  Tensor made = Tensor::empty(DType::f32, dims);
  float* to = made.mutable_data<float>().data();
  const auto* row = reinterpret_cast<const uint8_t*>(t.raw());
  for (int64_t i = 0; i * dims.back() < made.elements(); ++i, row += elements) {
    float scale;
    std::memcpy(&scale, row + dims.back(), sizeof scale);
    for (int64_t d = 0; d < dims.back(); ++d) {
      const float code = t.dtype() == DType::i8 ? static_cast<float>(static_cast<int8_t>(row[d]))
                                                : tensor::decode_small_float(t.dtype(), row[d]);
      *to++ = code * scale;
    }
  }
  return made;
}

/// Pages of f32 in another type, and back.
inline Tensor pages_as(const Tensor& t, DType type) {
  return holds_codes(type) ? coded(t, type) : as(t, type);
}
inline Tensor plain_pages(const Tensor& t) { return holds_codes(t.dtype()) ? decoded(t) : t; }

/// Operands of a case: pages of all sequences shuffled into one pool, with unused ones full of NaN.
struct Operands {
  Tensor q, keys, values, table, lengths, starts, sinks = {};
  std::vector<Tensor> list() const {
    std::vector<Tensor> all{q, keys, values, table, lengths, starts};
    if (sinks.defined()) all.push_back(sinks);
    return all;
  }
};

/// Content of sequence s is the same whatever else is in the case: drawn by s + 1 and the token.
inline Operands make(const Case& c, const std::vector<int>& seeds) {
  const size_t n = c.lengths.size();
  int64_t most = 1, rows = 0;
  std::vector<int32_t> starts{0};
  for (size_t s = 0; s < n; ++s) {
    most = std::max<int64_t>(most, (c.lengths[s] + c.page_tokens - 1) / c.page_tokens);
    rows += c.fresh[s];
    starts.push_back(static_cast<int32_t>(rows));
  }
  const int64_t pages = static_cast<int64_t>(n) * most + 1, row = c.kv_heads * c.dim;
  const tensor::Dims dims{pages, c.kv_heads, c.page_tokens, c.dim};
  Tensor keys = Tensor::empty(DType::f32, dims), values = Tensor::empty(DType::f32, dims);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Tensor* t : {&keys, &values}) std::fill_n(t->mutable_data<float>().data(), t->elements(), nan);
  Tensor q = Tensor::empty(DType::f32, {1, rows + c.padding, c.heads * c.dim});
  std::fill_n(q.mutable_data<float>().data(), q.elements(), 1.0f);
  std::vector<int32_t> places(n * static_cast<size_t>(most), -1);
  for (size_t s = 0; s < n; ++s) {
    const auto seed = static_cast<uint32_t>(3 * seeds[s]);
    const Tensor k = random_tensor({c.lengths[s], row}, seed),
                 v = random_tensor({c.lengths[s], row}, seed + 1),
                 all = random_tensor({c.lengths[s], c.heads * c.dim}, seed + 2);
    for (int64_t t = 0; t < c.lengths[s]; ++t) {
      const int64_t in_order = t / c.page_tokens * static_cast<int64_t>(n) + static_cast<int64_t>(s);
      const int64_t page = pages - 1 - in_order;
      places[s * static_cast<size_t>(most) + static_cast<size_t>(t / c.page_tokens)] =
          static_cast<int32_t>(page);
      for (int64_t h = 0; h < c.kv_heads; ++h) {
        const int64_t to = ((page * c.kv_heads + h) * c.page_tokens + t % c.page_tokens) * c.dim;
        std::copy_n(k.data<float>().data() + t * row + h * c.dim, c.dim,
                    keys.mutable_data<float>().data() + to);
        std::copy_n(v.data<float>().data() + t * row + h * c.dim, c.dim,
                    values.mutable_data<float>().data() + to);
      }
    }
    const int64_t skipped = c.lengths[s] - c.fresh[s], width = c.heads * c.dim;
    std::copy_n(all.data<float>().data() + skipped * width, c.fresh[s] * width,
                q.mutable_data<float>().data() + starts[s] * width);
  }
  std::vector<int32_t> lengths(c.lengths.begin(), c.lengths.end());
  const auto count = static_cast<int64_t>(n);
  return {as(q, c.type),
          pages_as(keys, c.pages),
          pages_as(values, c.pages),
          ints({count, most}, places),
          ints({count}, lengths),
          ints({count + 1}, starts),
          c.sinks()};
}

/// The operands of decode_attention of a case: its queries, new keys and values for places of the pages, and
/// angles that rotate `rotated` channels, if any do.
inline std::vector<Tensor> decode_operands(const Case& c, int64_t rotated, DType angles) {
  const std::vector<Tensor> list = make(c, std::vector<int>(c.lengths.size(), 3)).list();
  const int64_t rows = list[0].dims()[1], capacity = 40;
  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  const auto page = [&](size_t s, int token) {
    return list[3].data<int32_t>()[s * static_cast<size_t>(list[3].dims()[1]) +
                                   static_cast<size_t>(token / c.page_tokens)];
  };
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    for (int token = c.lengths[s] - c.fresh[s]; token < c.lengths[s]; ++token) {
      const auto in_page = static_cast<int32_t>(token % c.page_tokens);
      slots.push_back(page(s, token) * static_cast<int32_t>(c.page_tokens) + in_page);
      positions.push_back(token);
    }
  }
  while (static_cast<int64_t>(slots.size()) < rows) slots.push_back(-1), positions.push_back(0);
  std::vector<Tensor> in{list[0],
                         as(random_tensor({1, rows, c.kv_heads * c.dim}, 21), c.type),
                         as(random_tensor({1, rows, c.kv_heads * c.dim}, 22), c.type),
                         list[1],
                         list[2],
                         ints({rows}, slots),
                         list[3],
                         list[4],
                         list[5]};
  if (rotated == 0) return in;
  in.push_back(as(random_tensor({capacity, rotated / 2}, 23), angles));
  in.push_back(as(random_tensor({capacity, rotated / 2}, 24), angles));
  in.push_back(Tensor::from<int64_t>({1, rows}, std::span<const int64_t>(positions)));
  return in;
}

}  // namespace trireme::ops::paged_cases
