// Keys and shapes of measured choices of an algorithm.
#include "backend/cuda/dense/gemm_choice.h"

#include <numeric>

#include "base/error.h"

namespace trireme::cuda {
namespace {

/// Rows of the products measured when one algorithm serves any number of rows: one step, a server's step, a
/// prompt.
constexpr int64_t kRowsMeasured[] = {16, 256, 4096};

std::string_view name_of(Scales scales) {
  return scales == Scales::none ? "" : scales == Scales::single ? " s1" : " sv";
}

/// The same product with `rows` rows and without batches.
GemmShape with_rows(GemmShape s, int64_t rows) {
  if (s.transpose_a) s.lda += rows - s.m;  // a transposed a has m as its contiguous axis
  s.m = rows;
  s.outer = s.inner = 1;
  s.outer_a = s.outer_b = s.outer_c = s.inner_a = s.inner_b = s.inner_c = 0;
  return s;
}

}  // namespace

std::string choice_key(const GemmShape& s, const GemmOptions& options, std::string_view finish) {
  const bool fixed = options.fixed_order;
  std::string key = fixed ? std::string("fixed ") : base::concat(s.m, "x");
  key += base::concat(s.n, "x", s.k, s.transpose_a ? " t" : " n", s.transpose_b ? "t" : "n", " ");
  if (fixed) {
    key += base::concat(s.transpose_a ? s.lda - s.m : s.lda, ",", s.ldb, ",", s.ldc);
  } else {
    key += base::concat(s.lda, ",", s.ldb, ",", s.ldc, " ", s.inner, ":", s.inner_a, ",", s.inner_b, ",",
                        s.inner_c);
  }
  key += base::concat(" ", tensor::name_of(s.in), ",", tensor::name_of(s.in_b), ",", tensor::name_of(s.out),
                      options.tf32 ? " tf32" : "", " ", finish, s.finish.residual ? " r" : "",
                      name_of(s.scales));
  // "f32parts" tells these lines from older ones, which were measured without f32 partial sums.
  return base::concat(key, " f32parts a", choice_alignment(s, options));
}

std::vector<GemmShape> choice_shapes(const GemmShape& shape, const GemmOptions& options) {
  if (!options.fixed_order) return {shape};
  std::vector<GemmShape> shapes;
  for (const int64_t rows : kRowsMeasured) shapes.push_back(with_rows(shape, rows));
  return shapes;
}

int64_t choice_alignment(const GemmShape& s, const GemmOptions& options) {
  int64_t common = 16;
  const auto take = [&](int64_t elements, tensor::DType type) {
    common = std::gcd(common, tensor::bytes_of(type, elements));
  };
  if (options.fixed_order) {
    // Strides of batches are multiples of these, so only row strides count.
    take(s.transpose_a ? 1 : s.lda, s.in), take(s.ldb, s.in_b), take(s.ldc, s.out);
    return common;
  }
  for (const int64_t stride : {s.outer_a, s.inner_a}) take(stride, s.in);
  for (const int64_t stride : {s.outer_b, s.inner_b}) take(stride, s.in_b);
  for (const int64_t stride : {s.outer_c, s.inner_c}) take(stride, s.out);
  return common;
}

}  // namespace trireme::cuda
