// Products by cuBLASLt. Its matrices are column-major: ours, read so, are their transposes, and
// out' = op(b)' op(a)'.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <numeric>
#include <optional>

#include "backend/cuda/device/cuda_check.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/dense/gemm_product.h"
#include "backend/cuda/dense/toolkit_gemm.cuh"
#include "base/error.h"

namespace trireme::cuda {
namespace {

using tensor::DType;

// What NVIDIA recommends for Hopper; a plan does not depend on the algorithm that is chosen later.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kAlignment = 256;  // of it; arenas promise less

void* aligned(void* p) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + kAlignment - 1) / kAlignment * kAlignment);
}

/// The library's workspace, and room for sums that are not asked for in some launch.
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

/// A number in the type that the library reads it in.
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

/// What the library can do behind the product; nullopt: not all that is asked for.
std::optional<cublasLtEpilogue_t> epilogue_of(const GemmShape& s) {
  const GemmFinish& f = s.finish;
  const bool is_one = s.outer * s.inner == 1;
  if (f.sums != SumsOf::none) {
    const bool is_alone = !f.bias && !f.residual && f.act.kind == Activation::none && is_one;
    // Its A is our b.
    return is_alone ? std::optional(f.sums == SumsOf::a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA)
                    : std::nullopt;
  }
  if (f.act_before_residual) return std::nullopt;
  const bool residual_fits = f.residual_row == s.ldc && f.residual_column == 1;
  if (f.residual && !residual_fits) return std::nullopt;
  if ((f.bias || f.act.kind != Activation::none) && !is_one) return std::nullopt;
  if (f.is_gradient) {
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
  // The library's GELU is the one with tanh.
  if (f.act.kind != Activation::gelu_tanh) return std::nullopt;
  if (f.writes_aux) return f.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return f.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

template <class T>
void set(const CublasLt& lt, cublasLtMatmulDescOpaque_t& desc, cublasLtMatmulDescAttributes_t what,
         const T& value) {
  lt.require(lt.set_desc(&desc, what, &value, sizeof(value)), "describing a product");
}

/// `rows` of `columns` elements, row-major; in the library's words [columns, rows].
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

/// The library's view of a product. Pointers of the finish are set for each run.
struct LtProblem {
  cublasLtMatmulDescOpaque_t desc{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};  // its A is our b
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

class LtProduct final : public GemmPlan {
 public:
  LtProduct(std::shared_ptr<const CublasLt> lt, const GemmShape& shape, cublasLtEpilogue_t epilogue,
            bool tf32)
      : lt_(std::move(lt)), shape_(shape), epilogue_(epilogue), problem_(*lt_, shape, epilogue, tf32) {}

  int64_t workspace_bytes() const override { return bytes_for(shape_); }

  void run(tensor::Stream& stream, const GemmPointers& p, void* workspace) const override {
    launch(queue_of(stream), p, aligned(workspace), choice_.algo);
  }

  /// False if the library has no algorithm.
  bool choose(const GemmPlace& place, const GemmOptions& options);

 private:
  std::vector<cublasLtMatmulHeuristicResult_t> proposals(int most) const;
  void launch(cudaStream_t queue, const GemmPointers& p, void* workspace,
              const cublasLtMatmulAlgo_t& algo) const;
  void point(cublasLtMatmulDescOpaque_t& desc, const GemmPointers& p) const;
  GemmTrial trial_of(const GemmPlace& place, const std::vector<cublasLtMatmulHeuristicResult_t>& found) const;
  /// The alignment that all matrices have, at most 16.
  uint32_t alignment() const;

  std::shared_ptr<const CublasLt> lt_;
  GemmShape shape_;
  cublasLtEpilogue_t epilogue_;
  LtProblem problem_;
  GemmChoice choice_;
  std::shared_ptr<const GemmChoices> choices_;  // the cache keeps what somebody holds
};

uint32_t LtProduct::alignment() const {
  const GemmShape& s = shape_;
  int64_t common = 16;
  auto take = [&](int64_t elements, DType type) {
    common = std::gcd(common, tensor::bytes_of(type, elements));
  };
  for (int64_t stride : {s.outer_a, s.inner_a}) take(stride, s.in);
  for (int64_t stride : {s.outer_b, s.inner_b}) take(stride, s.in_b);
  for (int64_t stride : {s.outer_c, s.inner_c}) take(stride, s.out);
  return static_cast<uint32_t>(common);
}

std::vector<cublasLtMatmulHeuristicResult_t> LtProduct::proposals(int most) const {
  cublasLtMatmulPreferenceOpaque_t preference{};
  lt_->require(lt_->init_preference(&preference, sizeof(preference)), "asking for algorithms");
  auto set = [&](cublasLtMatmulPreferenceAttributes_t what, auto value) {
    lt_->require(lt_->set_preference(&preference, what, &value, sizeof(value)), "asking for algorithms");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kWorkspaceBytes));
  for (auto what : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(what, alignment());
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  // The library takes the alignment of these operands from addresses, which it does not follow here: null
  // would stand for any alignment.
  cublasLtMatmulDescOpaque_t desc = problem_.desc;
  const auto* some = reinterpret_cast<const void*>(uintptr_t{alignment()});
  point(desc, {.bias = some,
               .aux = const_cast<void*>(some),
               .sums = const_cast<void*>(some),
               .scale_a = static_cast<const float*>(some),
               .scale_b = static_cast<const float*>(some)});
  auto layout = [](const cublasLtMatrixLayoutOpaque_t& l) {
    return const_cast<cublasLtMatrixLayoutOpaque_t*>(&l);
  };
  const cublasStatus_t status =
      lt_->heuristic(lt_->handle(), &desc, layout(problem_.a), layout(problem_.b), layout(problem_.c),
                     layout(problem_.c), &preference, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
    count = 0;
  } else {
    lt_->require(status, "asking for algorithms");
  }
  found.resize(static_cast<size_t>(count));
  std::erase_if(found, [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; });
  return found;
}

/// Operands of the finish, which are the description's.
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
                       const cublasLtMatmulAlgo_t& algo) const {
  const GemmShape& s = shape_;
  cublasLtMatmulDescOpaque_t desc = problem_.desc;
  GemmPointers at = p;
  // Sums that nobody reads go behind the library's workspace.
  if (p.sums == nullptr) at.sums = static_cast<std::byte*>(workspace) + kWorkspaceBytes;
  point(desc, at);
  const void* residual = s.finish.residual ? p.residual : p.out;
  auto layout = [](const cublasLtMatrixLayoutOpaque_t& l) {
    return const_cast<cublasLtMatrixLayoutOpaque_t*>(&l);
  };
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

/// What names a product in the file of measured choices.
std::string key_of(const GemmShape& s, cublasLtEpilogue_t epilogue, bool tf32) {
  const char* types = tf32 ? " tf32" : "";
  return base::concat(s.m, "x", s.n, "x", s.k, s.transpose_a ? " t" : " n", s.transpose_b ? "t" : "n", " ",
                      s.lda, ",", s.ldb, ",", s.ldc, " ", s.inner, ":", s.inner_a, ",", s.inner_b, ",",
                      s.inner_c, " ", name_of(s.in), ",", name_of(s.in_b), ",", name_of(s.out), types, " e",
                      static_cast<int>(epilogue), s.finish.residual ? " r" : "",
                      s.scales == Scales::none     ? ""
                      : s.scales == Scales::single ? " s1"
                                                   : " sv");
}

/// Elements from the first to behind the last of one operand.
int64_t extent(int64_t rows, int64_t leading, int64_t outer_reach, int64_t inner_reach) {
  return rows * leading + outer_reach + inner_reach;
}

GemmTrial LtProduct::trial_of(const GemmPlace& place,
                              const std::vector<cublasLtMatmulHeuristicResult_t>& found) const {
  const GemmShape& s = shape_;
  auto room = [&](int64_t elements, DType type) {
    const int64_t bytes = tensor::bytes_of(type, elements);
    std::shared_ptr<void> memory = place.device->allocate(bytes);
    // Small numbers in every type: zeros run faster than data does.
    check_cuda(cudaMemset(memory.get(), 0x3c, static_cast<size_t>(bytes)), "filling memory");
    return memory;
  };
  const int64_t o = s.outer - 1, i = s.inner - 1;
  const auto a = room(extent(s.transpose_a ? s.k : s.m, s.lda, o * s.outer_a, i * s.inner_a), s.in);
  const auto b = room(extent(s.transpose_b ? s.n : s.k, s.ldb, o * s.outer_b, i * s.inner_b), s.in_b);
  const auto c = room(extent(s.m, s.ldc, o * s.outer_c, i * s.inner_c), s.out);
  const auto aux = room(extent(s.m, s.ldc, 0, 0), s.out);
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
  std::vector<cublasLtMatmulAlgo_t> algos;
  for (const auto& f : found) algos.push_back(f.algo);
  // The buffers live as long as the trial.
  return {algos,
          [this, p, workspace, a, b, c, aux, small](cudaStream_t queue, const cublasLtMatmulAlgo_t& algo) {
            launch(queue, p, workspace.get(), algo);
          }};
}

bool LtProduct::choose(const GemmPlace& place, const GemmOptions& options) {
  constexpr int kProposals = 8;
  const std::vector<cublasLtMatmulHeuristicResult_t> found = proposals(kProposals);
  if (found.empty()) return false;
  choice_.algo = found[0].algo;
  if (!options.measure || found.size() == 1 || place.shared == nullptr) return true;
  choices_ = place.shared->get<GemmChoices>(
      base::concat("gemm choices ", options.cache_file, " ", lt_->device_key()),
      [&] { return std::make_shared<const GemmChoices>(options.cache_file, lt_->device_key()); });
  try {
    choice_ = choices_->get(base::concat(key_of(shape_, epilogue_, options.tf32), " a", alignment()),
                            [&] { return trial_of(place, found); });
  } catch (const base::Error& e) {
    // Without memory for a trial the first proposal stands.
    if (e.code() != base::ErrorCode::exhausted) throw;
  }
  return true;
}

/// Stands where there is no device: the program is only looked at.
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
  auto product = std::make_unique<LtProduct>(lt, shape, *epilogue, options.tf32);
  return product->choose(place, options) ? std::move(product) : nullptr;
}

}  // namespace trireme::cuda
