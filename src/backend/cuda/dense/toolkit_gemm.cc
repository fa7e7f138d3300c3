// Products by cuBLASLt, whose matrices are column-major: our row-major matrices are their transposes there,
// and out' = op(b)' op(a)'.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/dense/gemm_choice.h"
#include "backend/cuda/dense/gemm_product.h"
#include "backend/cuda/dense/toolkit_gemm.cuh"
#include "base/error.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

// The size that NVIDIA recommends for Hopper. It is fixed, so that a plan can be sized before its algorithm
// is chosen.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kAlignment = 256;  // of the workspace; arenas guarantee less

void* aligned(void* p) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + kAlignment - 1) / kAlignment * kAlignment);
}

/// Bytes of cuBLASLt's workspace and of the sums, which must go somewhere even if a launch does not ask for
/// them.
int64_t bytes_for(const GemmShape& s) {
  const int64_t sums = s.finish.sums == SumsOf::none ? 0 : std::max(s.m, s.n);
  return kWorkspaceBytes + kAlignment + tensor::bytes_of(s.out, sums);
}

cudaDataType_t type_of(DType type) {
  switch (type) {
    case DType::f32: return CUDA_R_32F;
    case DType::f64: return CUDA_R_64F;
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f8e4m3fn: return CUDA_R_8F_E4M3;
    case DType::f8e5m2: return CUDA_R_8F_E5M2;
    case DType::i8: return CUDA_R_8I;
    case DType::i32: return CUDA_R_32I;
    default: base::fail_unsupported("no products of ", name_of(type), " on the device");
  }
}

cublasComputeType_t compute_of(DType in, bool tf32) {
  if (in == DType::f64) return CUBLAS_COMPUTE_64F;
  if (in == DType::i8) return CUBLAS_COMPUTE_32I;
  return in == DType::f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

cudaDataType_t scale_type_of(DType in) {
  return in == DType::f64 ? CUDA_R_64F : in == DType::i8 ? CUDA_R_32I : CUDA_R_32F;
}

/// A scalar in the type in which cuBLASLt reads it.
union Scale {
  float f;
  double d;
  int32_t i;
};
Scale scale_of(DType in, float value) {
  Scale s{};
  if (in == DType::f64) {
    s.d = double{value};
  } else if (in == DType::i8) {
    s.i = static_cast<int32_t>(value);
  } else {
    s.f = value;
  }
  return s;
}

/// The epilogue that does the whole finish; nullopt if cuBLASLt cannot do all of it.
std::optional<cublasLtEpilogue_t> epilogue_of(const GemmShape& s) {
  const GemmFinish& f = s.finish;
  const bool is_one = s.outer * s.inner == 1;
  if (f.sums != SumsOf::none) {
    const bool is_alone = !f.bias && !f.residual && f.act.kind == Activation::none && is_one;
    // cuBLASLt's A is our b.
    return is_alone ? std::optional(f.sums == SumsOf::a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA)
                    : std::nullopt;
  }
  if (f.act_before_residual) return std::nullopt;
  const bool residual_fits = f.residual_row == s.ldc && f.residual_column == 1;
  if (f.residual && !residual_fits) return std::nullopt;
  if ((f.bias || f.act.kind != Activation::none) && !is_one) return std::nullopt;
  if (f.is_gradient) {
    // cuBLASLt computes tanh with the hardware's approximation, whose error of up to 2^-11 is below the
    // rounding of 16 bits but far above that of f32.
    if (tensor::bits_of(s.out) > 16) return std::nullopt;
    return f.act.kind == Activation::gelu_tanh && !f.bias && !f.residual && !f.writes_aux
               ? std::optional(CUBLASLT_EPILOGUE_DGELU)
               : std::nullopt;
  }
  if (f.act.kind == Activation::none) {
    if (f.writes_aux) return std::nullopt;
    return f.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
  if (f.act.kind == Activation::relu && !f.writes_aux)
    return f.bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  // cuBLASLt has only the tanh form of GELU.
  if (f.act.kind != Activation::gelu_tanh) return std::nullopt;
  if (f.writes_aux) return f.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return f.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

template <class T>
void set(const CublasLt& lt, cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t what,
         const T& value) {
  lt.require(lt.set_desc(&desc, what, &value, sizeof(value)), "describing a product");
}

/// A row-major matrix of `rows` by `columns` elements; cuBLASLt sees it as column-major [columns, rows].
struct RowMajor {
  DType type;
  int64_t rows, columns, leading;
};
void set_layout(const CublasLt& lt, cublasLtMatrixLayoutOpaque_t& layout, const RowMajor& m) {
  lt.require(lt.init_layout(&layout, sizeof(layout), type_of(m.type), static_cast<uint64_t>(m.columns),
                            static_cast<uint64_t>(m.rows), m.leading),
             "describing a matrix");
}
void set_batches(const CublasLt& lt, cublasLtMatrixLayoutOpaque_t& layout, int64_t count, int64_t stride) {
  const auto n = static_cast<int32_t>(count);
  lt.require(lt.set_layout(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof(n)), "describing batches");
  lt.require(lt.set_layout(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)),
             "describing batches");
}

/// cuBLASLt's description of a product. The pointers of the finish are set for each run.
struct LtProblem {
  cublasLtMatmulDescOpaque_t desc{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};  // cuBLASLt's A is our b
  Scale alpha{}, beta{};

  LtProblem(const CublasLt& lt, const GemmShape& s, cublasLtEpilogue_t epilogue, bool tf32) {
    lt.require(lt.init_desc(&desc, sizeof(desc), compute_of(s.in, tf32), scale_type_of(s.in)),
               "describing a product");
    set(lt, desc, CUBLASLT_MATMUL_DESC_TRANSA, s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(lt, desc, CUBLASLT_MATMUL_DESC_TRANSB, s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(lt, desc, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (s.finish.writes_aux || s.finish.is_gradient)
      set(lt, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, s.ldc);
    if (s.finish.sums != SumsOf::none) set(lt, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(s.out));
    const int64_t a_rows = s.transpose_a ? s.k : s.m, b_rows = s.transpose_b ? s.n : s.k;
    set_layout(lt, a, {s.in_b, b_rows, s.k + s.n - b_rows, s.ldb});
    set_layout(lt, b, {s.in, a_rows, s.m + s.k - a_rows, s.lda});
    set_layout(lt, c, {s.out, s.m, s.n, s.ldc});
    if (s.inner > 1) {
      set_batches(lt, a, s.inner, s.inner_b);
      set_batches(lt, b, s.inner, s.inner_a);
      set_batches(lt, c, s.inner, s.inner_c);
    }
    set_scales(lt, s);
    alpha = scale_of(s.in, s.alpha);
    beta = scale_of(s.in, s.finish.residual ? s.finish.beta : 0.0f);
  }

 private:
  void set_scales(const CublasLt& lt, const GemmShape& s) {
    if (s.finish.bias && tensor::bits_of(s.in) == 8)
      set(lt, desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(s.out)));
    if (s.scales != Scales::vectors) return;
    const auto mode = static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    for (auto what : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_MODE})
      set(lt, desc, what, mode);
  }
};

const void* at_element(const void* base, int64_t element, DType type) {
  return static_cast<const std::byte*>(base) + tensor::bytes_of(type, element);
}

using Algorithm = cublasLtMatmulAlgo_t;

class LtProduct final : public GemmPlan {
 public:
  LtProduct(std::shared_ptr<const CublasLt> lt, const GemmShape& shape, cublasLtEpilogue_t epilogue,
            const GemmOptions& options)
      : lt_(std::move(lt)),
        shape_(shape),
        epilogue_(epilogue),
        options_(options),
        problem_(*lt_, shape, epilogue, options.tf32) {}

  int64_t workspace_bytes() const override { return bytes_for(shape_); }

  void run(tensor::Stream& stream, const GemmPointers& p, void* workspace) const override {
    launch(queue_of(stream), p, aligned(workspace), choice_.algo);
  }

  /// Chooses the algorithm; false if cuBLASLt has none. Throws unsupported if the algorithm fixed for
  /// products with this weight cannot run this many rows.
  bool choose(const GemmPlace& place);

 private:
  using Products = std::vector<std::shared_ptr<const LtProduct>>;

  Products measured() const;
  std::vector<Algorithm> candidates(const Products& products) const;
  std::vector<Algorithm> proposals(int most) const;
  bool runs(const Algorithm& algo) const;
  bool splits_sums(const Algorithm& algo) const;
  void launch(cudaStream_t queue, const GemmPointers& p, void* workspace, const Algorithm& algo) const;
  void point(cublasLtMatmulDescOpaque_t& desc, const GemmPointers& p) const;
  GemmTrial::Launch trial_launch(const GemmPlace& place) const;
  /// The alignment in bytes that all matrices share, at most 16.
  uint32_t alignment() const { return static_cast<uint32_t>(choice_alignment(shape_, options_)); }

  std::shared_ptr<const CublasLt> lt_;
  GemmShape shape_;
  cublasLtEpilogue_t epilogue_;
  GemmOptions options_;
  LtProblem problem_;
  GemmChoice choice_;
  std::shared_ptr<const GemmChoices> choices_;  // keeps the entry alive in the cache
};

/// cuBLASLt takes layouts as non-const pointers.
cublasLtMatrixLayoutOpaque_t* layout(const cublasLtMatrixLayoutOpaque_t& l) {
  return const_cast<cublasLtMatrixLayoutOpaque_t*>(&l);
}

std::vector<Algorithm> LtProduct::proposals(int most) const {
  cublasLtMatmulPreferenceOpaque_t preference{};
  lt_->require(lt_->init_preference(&preference, sizeof(preference)), "asking for algorithms");
  auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    lt_->require(lt_->set_preference(&preference, what, &value, sizeof(value)), "asking for algorithms");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  // Partial sums of several blocks are added in f32 (f64, i32): the other schemes may add them in the 16 bits
  // of the result. In a fixed order sums are not split.
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(options_.fixed_order ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                 : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(what, alignment());
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  // cuBLASLt derives the alignment of these operands from their addresses without reading them; a null
  // pointer would count as aligned to anything.
  cublasLtMatmulDescOpaque_t desc = problem_.desc;
  const auto* some = reinterpret_cast<const void*>(uintptr_t{alignment()});
  point(desc, {.bias = some,
               .aux = const_cast<void*>(some),
               .sums = const_cast<void*>(some),
               .scale_a = static_cast<const float*>(some),
               .scale_b = static_cast<const float*>(some)});
  const cublasStatus_t status =
      lt_->heuristic(lt_->handle(), &desc, layout(problem_.a), layout(problem_.b), layout(problem_.c),
                     layout(problem_.c), &preference, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    count = 0;
  } else {
    lt_->require(status, "asking for algorithms");
  }
  std::vector<Algorithm> algos;
  for (int i = 0; i < count; ++i) {
    const cublasLtMatmulHeuristicResult_t& r = found[static_cast<size_t>(i)];
    if (r.state == CUBLAS_STATUS_SUCCESS) algos.push_back(r.algo);
  }
  return algos;
}

/// Whether the algorithm, which was proposed for another product, also runs this one.
bool LtProduct::runs(const Algorithm& algo) const {
  cublasLtMatmulHeuristicResult_t result{};
  cublasLtMatmulDescOpaque_t desc = problem_.desc;
  const cublasStatus_t status = lt_->check(lt_->handle(), &desc, layout(problem_.a), layout(problem_.b),
                                           layout(problem_.c), layout(problem_.c), &algo, &result);
  return status == CUBLAS_STATUS_SUCCESS && result.state == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(kWorkspaceBytes);
}

bool LtProduct::splits_sums(const Algorithm& algo) const {
  int32_t parts = 1;
  size_t written = 0;
  const cublasStatus_t status =
      lt_->get_config(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &parts, sizeof(parts), &written);
  return status != CUBLAS_STATUS_SUCCESS || parts > 1;
}

/// Sets the pointers of the finish, which are part of the description.
void LtProduct::point(cublasLtMatmulDescOpaque_t& desc, const GemmPointers& p) const {
  const GemmFinish& f = shape_.finish;
  if (f.bias) set(*lt_, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (f.sums != SumsOf::none) set(*lt_, desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.sums);
  if (f.writes_aux || f.is_gradient) set(*lt_, desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
  if (shape_.scales != Scales::none) {
    set(*lt_, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.scale_b);
    set(*lt_, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.scale_a);
  }
}

void LtProduct::launch(cudaStream_t queue, const GemmPointers& p, void* workspace,
                       const Algorithm& algo) const {
  const GemmShape& s = shape_;
  cublasLtMatmulDescOpaque_t desc = problem_.desc;
  GemmPointers at = p;
  // Sums that nobody asks for are written after cuBLASLt's workspace.
  if (p.sums == nullptr) at.sums = static_cast<std::byte*>(workspace) + kWorkspaceBytes;
  point(desc, at);
  const void* residual = s.finish.residual ? p.residual : p.out;
  for (int64_t i = 0; i < s.outer; ++i) {
    const cublasStatus_t status =
        lt_->matmul(lt_->handle(), &desc, &problem_.alpha, at_element(p.b, i * s.outer_b, s.in_b),
                    layout(problem_.a), at_element(p.a, i * s.outer_a, s.in), layout(problem_.b),
                    &problem_.beta, at_element(residual, i * s.outer_c, s.out), layout(problem_.c),
                    const_cast<void*>(at_element(p.out, i * s.outer_c, s.out)), layout(problem_.c), &algo,
                    workspace, static_cast<size_t>(kWorkspaceBytes), queue);
    lt_->require(status, "a product");
  }
}

/// Number of elements from the first of an operand to past its last.
int64_t extent(int64_t rows, int64_t leading, int64_t outer_reach, int64_t inner_reach) {
  return rows * leading + outer_reach + inner_reach;
}

/// Returns a function that launches this product on memory of its own.
GemmTrial::Launch LtProduct::trial_launch(const GemmPlace& place) const {
  const GemmShape& s = shape_;
  auto room = [&](int64_t elements, DType type) {
    const int64_t bytes = tensor::bytes_of(type, elements);
    std::shared_ptr<void> memory = place.device->allocate(bytes);
    // In every type the byte 0x3c repeated is a small number; zeros would run faster than real data.
    check_cuda(cudaMemset(memory.get(), 0x3c, static_cast<size_t>(bytes)), "filling memory");
    return memory;
  };
  const int64_t o = s.outer - 1, i = s.inner - 1;
  const auto a = room(extent(s.transpose_a ? s.k : s.m, s.lda, o * s.outer_a, i * s.inner_a), s.in);
  const auto b = room(extent(s.transpose_b ? s.n : s.k, s.ldb, o * s.outer_b, i * s.inner_b), s.in_b);
  const auto c = room(extent(s.m, s.ldc, o * s.outer_c, i * s.inner_c), s.out);
  const auto aux = room(extent(s.m, s.ldc, o * s.outer_c, i * s.inner_c), s.out);  // as large as the result
  const auto small = room(std::max(s.m, s.n), DType::f32);
  const auto workspace = room(kWorkspaceBytes, DType::i8);
  const GemmPointers p{.a = a.get(),
                       .b = b.get(),
                       .out = c.get(),
                       .bias = small.get(),
                       .residual = aux.get(),
                       .aux = aux.get(),
                       .sums = small.get(),
                       .scale_a = static_cast<const float*>(small.get()),
                       .scale_b = static_cast<const float*>(small.get())};
  return [this, p, workspace, a, b, c, aux, small](cudaStream_t queue, const Algorithm& algo) {
    launch(queue, p, workspace.get(), algo);
  };
}

LtProduct::Products LtProduct::measured() const {
  Products products;
  for (const GemmShape& shape : choice_shapes(shape_, options_))
    products.push_back(std::make_shared<const LtProduct>(lt_, shape, epilogue_, options_));
  return products;
}

/// The algorithms that cuBLASLt proposes for these products; in a fixed order, those that run all of them
/// without splitting sums.
std::vector<Algorithm> LtProduct::candidates(const Products& products) const {
  constexpr int kProposals = 8;
  if (!options_.fixed_order) return products[0]->proposals(kProposals);
  std::vector<Algorithm> all;
  for (const auto& product : products) {
    for (const Algorithm& algo : product->proposals(kProposals)) {
      const auto is_same = [&](const Algorithm& a) { return std::memcmp(&a, &algo, sizeof(algo)) == 0; };
      const auto takes = [&](const auto& other) { return other->runs(algo); };
      const bool is_new = std::none_of(all.begin(), all.end(), is_same);
      if (is_new && !splits_sums(algo) && std::all_of(products.begin(), products.end(), takes))
        all.push_back(algo);
    }
  }
  return all;
}

bool LtProduct::choose(const GemmPlace& place) {
  const Products products = measured();
  const std::vector<Algorithm> found = candidates(products);
  if (found.empty()) return false;
  choice_.algo = found[0];
  if (options_.measure && found.size() > 1 && place.shared != nullptr) {
    const std::string& file = options_.cache_file;
    choices_ = place.shared->get<GemmChoices>(
        base::concat("gemm choices ", file, " ", lt_->device_key()),
        [&] { return std::make_shared<const GemmChoices>(file, lt_->device_key()); });
    try {
      const std::string finish = base::concat("e", static_cast<int>(epilogue_));
      choice_ = choices_->get(choice_key(shape_, options_, finish), [&] {
        GemmTrial trial{.algos = found};
        for (const auto& product : products) trial.launches.push_back(product->trial_launch(place));
        return trial;
      });
    } catch (const base::Error& e) {
      // If there is no memory for a trial, the first proposal is used.
      if (e.code() != base::ErrorCode::exhausted) throw;
    }
  }
  if (options_.fixed_order && !runs(choice_.algo))
    base::fail_unsupported("the algorithm for products with [", shape_.k, ", ", shape_.n, "] does not run ",
                           shape_.m, " rows: TRIREME_CUDA_DETERMINISTIC=0 takes one for each number of rows");
  return true;
}

/// Used where there is no device: the program is only inspected.
class ImaginedProduct final : public GemmPlan {
 public:
  explicit ImaginedProduct(const GemmShape& shape) : bytes_(bytes_for(shape)) {}
  int64_t workspace_bytes() const override { return bytes_; }
  void run(tensor::Stream&, const GemmPointers&, void*) const override {
    base::fail(base::ErrorCode::internal, "a product that was planned without a device is run");
  }

 private:
  int64_t bytes_;
};

}  // namespace

std::unique_ptr<GemmPlan> make_product(const GemmPlace& place, const GemmShape& shape,
                                       const GemmOptions& options) {
  const std::optional<cublasLtEpilogue_t> epilogue = epilogue_of(shape);
  if (!epilogue || (shape.finish.sums != SumsOf::none && !options.library_sums)) return nullptr;
  if (place.device == nullptr) return std::make_unique<ImaginedProduct>(shape);
  check_cuda(cudaSetDevice(place.device->ordinal()), "choosing a GPU");
  base::SharedCache own;
  base::SharedCache& shared = place.shared == nullptr ? own : *place.shared;
  const auto lt = shared.get<CublasLt>(base::concat("cublasLt ", place.device->ordinal()), [&] {
    return std::make_shared<const CublasLt>(place.device->ordinal());
  });
  auto product = std::make_unique<LtProduct>(lt, shape, *epilogue, options);
  return product->choose(place) ? std::move(product) : nullptr;
}

}  // namespace trireme::cuda
