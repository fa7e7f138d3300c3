// Plans of products: cuBLASLt does as much of the finish as it can in its pass, kernels of ours do the rest.
#include "backend/cuda/dense/gemm.h"

#include <cstdlib>

#include "backend/cuda/dense/float8.h"
#include "backend/cuda/dense/gemm_finish.h"
#include "backend/cuda/dense/gemm_product.h"
#include "backend/cuda/kept/plan_store.h"
#include "base/error.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

bool is_set(const char* name, std::string_view value) {
  const char* text = std::getenv(name);
  return text != nullptr && value == text;
}

std::string cache_file() {
  const std::string directory = cache_directory();
  return directory.empty() ? directory : directory + "/gemm.jsonl";
}

/// The parts of a finish that our own kernels do after the product.
struct Rest {
  bool finish = false;  ///< finish_product does all parts except `sums`
  bool sums = false;
  /// finish_product does the activation only: cuBLASLt writes the activation's argument to the aux output.
  bool activation = false;
  bool is_empty() const { return !finish && !sums && !activation; }
};

/// Whether the parts named by `rest` are needed and may be separated from the product.
bool applies(const GemmFinish& f, Rest rest) {
  if (rest.activation) return f.writes_aux && f.sums == SumsOf::none && !f.act_before_residual;
  return (!rest.finish || has_finish(f)) && (!rest.sums || f.sums != SumsOf::none);
}

/// The shape that is left for cuBLASLt when kernels do all of `rest`.
GemmShape without(GemmShape shape, Rest rest) {
  const SumsOf sums = shape.finish.sums;
  if (rest.finish) shape.finish = {};
  if (rest.activation) {
    shape.finish.act = {};
    shape.finish.writes_aux = false;
  }
  shape.finish.sums = rest.sums ? SumsOf::none : sums;
  return shape;
}

class ComposedPlan final : public GemmPlan {
 public:
  ComposedPlan(const GemmShape& shape, Rest rest, std::unique_ptr<GemmPlan> product)
      : shape_(shape), rest_(rest), product_(std::move(product)) {}

  int64_t workspace_bytes() const override {
    const int64_t product = product_ == nullptr ? 0 : product_->workspace_bytes();
    const int64_t sums = rest_.sums ? column_sums_workspace_bytes(shape_.k, summed_columns()) : 0;
    return std::max(product, sums);
  }

  void run(tensor::Stream& stream, const GemmPointers& p, void* workspace) const override {
    GemmPointers at = p;
    if (rest_.activation) at.out = p.aux;
    if (product_ != nullptr) product_->run(stream, at, workspace);
    if (rest_.finish) finish_product({stream, shape_.out}, finish_args(p));
    if (rest_.activation) finish_product({stream, shape_.out}, activation_args(p));
    if (rest_.sums && p.sums != nullptr) add_sums(stream, p, workspace);
  }

 private:
  int64_t rows() const { return shape_.outer * shape_.inner * shape_.m; }
  int64_t summed_columns() const { return shape_.finish.sums == SumsOf::a ? shape_.m : shape_.n; }

  FinishArgs finish_args(const GemmPointers& p) const {
    const GemmFinish& f = shape_.finish;
    return {.out = p.out,
            .from_zero = product_ == nullptr,
            .bias = f.bias ? p.bias : nullptr,
            .residual = f.residual ? p.residual : nullptr,
            .residual_row = f.residual_row,
            .residual_column = f.residual_column,
            .beta = f.beta,
            .act = f.act,
            .act_before_residual = f.act_before_residual,
            .aux_out = f.writes_aux ? p.aux : nullptr,
            .aux_in = f.is_gradient ? p.aux : nullptr,
            .rows = rows(),
            .n = shape_.n};
  }
  FinishArgs activation_args(const GemmPointers& p) const {
    return {.out = p.out, .in = p.aux, .act = shape_.finish.act, .rows = rows(), .n = shape_.n};
  }

  /// op(a) is [m, k] and op(b) is [k, n], so k runs down the columns of a transposed a and of an untransposed
  /// b.
  void add_sums(tensor::Stream& stream, const GemmPointers& p, void* workspace) const {
    const bool of_a = shape_.finish.sums == SumsOf::a;
    const bool down = of_a ? shape_.transpose_a : !shape_.transpose_b;
    const On on{stream, shape_.in};
    const void* x = of_a ? p.a : p.b;
    const bool is_wide = shape_.out == DType::f32 && shape_.in != DType::f32;
    if (down) {
      column_sums(on, {x, p.sums, shape_.k, summed_columns(), is_wide}, workspace);
    } else {
      row_sums(on, {x, p.sums, summed_columns(), shape_.k, is_wide});
    }
  }

  GemmShape shape_;
  Rest rest_;
  std::unique_ptr<GemmPlan> product_;
};

/// A product whose result has no elements.
class EmptyPlan final : public GemmPlan {
 public:
  int64_t workspace_bytes() const override { return 0; }
  void run(tensor::Stream&, const GemmPointers&, void*) const override {}
};

void require_finishable(const GemmShape& s) {
  const bool is_packed = s.ldc == s.n && (s.inner == 1 || s.inner_c == s.m * s.n) &&
                         (s.outer == 1 || s.outer_c == s.inner * s.m * s.n);
  base::check(is_packed, "a finish over matrices that do not follow one another");
  base::check(s.finish.sums == SumsOf::none || s.outer * s.inner == 1, "sums beside several products");
}

}  // namespace

GemmOptions gemm_options_from_environment() {
  return {.tf32 = is_set("TRIREME_CUDA_TF32", "1"),
          .library_sums = !is_set("TRIREME_CUDA_SUMS", "0"),
          .measure = !is_set("TRIREME_CUDA_TUNE", "0"),
          .fixed_order = is_set("TRIREME_CUDA_DETERMINISTIC", "1"),
          .cache_file = cache_file()};
}

GemmShape with_leading_dimensions(GemmShape s) {
  if (s.lda == 0) s.lda = s.transpose_a ? s.m : s.k;
  if (s.ldb == 0) s.ldb = s.transpose_b ? s.k : s.n;
  if (s.ldc == 0) s.ldc = s.n;
  return s;
}

std::shared_ptr<const GemmPlan> prepare_gemm(const GemmPlace& place, const GemmShape& asked) {
  if (asked.scales == Scales::vectors) return prepare_scaled(place, asked);
  const GemmShape shape = with_leading_dimensions(asked);
  const GemmFinish& f = shape.finish;
  const bool is_finished = has_finish(f);
  if (is_finished || f.sums != SumsOf::none) require_finishable(shape);
  if (shape.m * shape.n * shape.outer * shape.inner == 0 && f.sums == SumsOf::none)
    return std::make_shared<EmptyPlan>();
  const bool has_sums = f.sums != SumsOf::none;
  if (shape.m * shape.n * shape.k * shape.outer * shape.inner == 0) {
    const Rest all{.finish = true, .sums = has_sums};
    return std::make_shared<ComposedPlan>(shape, all, nullptr);
  }
  const GemmOptions options = gemm_options_from_environment();
  for (const Rest rest : {Rest{}, Rest{.sums = true}, Rest{.activation = true}, Rest{.finish = true},
                          Rest{.finish = true, .sums = true}}) {
    if (!applies(f, rest)) continue;
    std::unique_ptr<GemmPlan> product = make_product(place, without(shape, rest), options);
    if (product == nullptr) continue;
    if (rest.is_empty()) return product;
    return std::make_shared<ComposedPlan>(shape, rest, std::move(product));
  }
  base::fail_unsupported("no product of ", name_of(shape.in), " and ", name_of(shape.in_b), " into ",
                         name_of(shape.out), " on the device: [", shape.m, ", ", shape.k, "] by [", shape.k,
                         ", ", shape.n, "]");
}

}  // namespace trireme::cuda
