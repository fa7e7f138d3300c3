// The kernel of muon_update on CPU (Jordan et al. 2024): momentum, Newton-Schulz iteration of a matrix, step.
#include <algorithm>
#include <cmath>

#include "backend/cpu/elementwise/cast_types.h"
#include "backend/cpu/dense/gemm_f32.h"
#include "backend/cpu/move/transpose_copy.h"
#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using Plan = std::shared_ptr<const UpdatePlan>;

/// The iterate is the matrix with the shorter side first: [low, high].
struct Sides {
  int64_t rows, cols, low, high;
  explicit Sides(const tensor::Dims& dims)
      : rows(dims[0]), cols(dims[1]), low(std::min(rows, cols)), high(std::max(rows, cols)) {}
  bool transposed() const { return rows > cols; }
};

/// c = alpha a b, where a is [m, k] and b is [k, n] or, transposed, [n, k]; all are dense.
template <class T>
struct Product {
  const T *a, *b;
  T* c;
  int64_t m, k, n;
  bool b_transposed;
  T alpha;
};

void multiply(const Product<float>& p, void* workspace, base::ThreadPool& pool) {
  cpu::BatchedGemmArgs g;
  g.m = p.m;
  g.k = p.k;
  g.n = p.n;
  g.a = p.a;
  g.lda = p.k;
  g.b = p.b;
  g.ldb = p.b_transposed ? p.k : p.n;
  g.b_transposed = p.b_transposed;
  g.c = p.c;
  g.ldc = p.n;
  g.alpha = p.alpha;
  cpu::gemm_batched(g, workspace, pool);
}

/// f64 serves as a check: each element is one chain of sums.
void multiply(const Product<double>& p, void*, base::ThreadPool& pool) {
  pool.for_range(p.m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < p.k; ++l)
          sum += p.a[i * p.k + l] * (p.b_transposed ? p.b[j * p.k + l] : p.b[l * p.n + j]);
        p.c[i * p.n + j] = p.alpha * sum;
      }
    }
  });
}

/// Rounds to bf16 and back, to nearest even, as storing the iterate in bf16 would do.
void round_bf16(float* x, int64_t n) {
  constexpr int64_t kTile = 512;
  uint16_t tile[kTile];
  for (int64_t i = 0; i < n; i += kTile) {
    const size_t count = static_cast<size_t>(std::min(kTile, n - i));
    cpu::f32_to_bf16(x + i, tile, count);
    cpu::bf16_to_f32(tile, x + i, count);
  }
}
void round_bf16(double* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i)
    x[i] = static_cast<double>(static_cast<float>(tensor::BFloat16(static_cast<float>(x[i]))));
}

/// Constants of one node, and the largest workspace of its matrices, which are processed one after another.
struct MuonPlan {
  double momentum, weight_decay, eps;
  double a, b, c;  // coefficients of the quintic
  bool nesterov, bf16, match_adamw;
  int64_t steps;
  int64_t iterate_elements = 0, gram_elements = 0, gemm_bytes = 0;

  MuonPlan(const ir::NodeView& node, const UpdatePlan& plan, int threads) {
    const ir::Attrs& attrs = node.attrs;
    momentum = attrs.get_float("momentum", 0.95);
    weight_decay = attrs.get_float("weight_decay", 0.1);
    eps = attrs.get_float("epsilon", 1e-7);
    const std::vector<double> abc = attrs.get_floats("coefficients", {3.4445, -4.7750, 2.0315});
    a = abc[0], b = abc[1], c = abc[2];
    nesterov = attrs.get_int("nesterov", 1) != 0;
    bf16 = attrs.get_string("iterate", "f32") == "bf16";
    match_adamw = attrs.get_string("adjust", "original") == "match_rms_adamw";
    steps = attrs.get_int("steps", 5);
    for (const tensor::Dims& dims : plan.dims) {
      const Sides s(dims);
      iterate_elements = std::max(iterate_elements, s.low * s.high);
      gram_elements = std::max(gram_elements, s.low * s.low);
      for (const auto& [k, n] : {std::pair{s.high, s.low}, {s.low, s.low}, {s.low, s.high}}) {
        gemm_bytes =
            std::max(gemm_bytes, static_cast<int64_t>(cpu::gemm_batched_workspace_bytes(k, n, threads)));
      }
    }
  }

  /// Factor of the update relative to lr, which makes steps equally large for all shapes.
  double adjust(const Sides& s) const {
    const double rows = static_cast<double>(s.rows), cols = static_cast<double>(s.cols);
    return match_adamw ? 0.2 * std::sqrt(std::max(rows, cols)) : std::sqrt(std::max(1.0, rows / cols));
  }
};

/// One execution. The whole team works on each matrix; pieces and products depend only on its extents.
template <class T>
class MuonLaunch {
 public:
  MuonLaunch(const UpdatePlan& plan, const MuonPlan& muon, const ir::RunArgs& args)
      : plan_(plan),
        muon_(muon),
        args_(args),
        s_(plan.scalars(args)),
        pool_(cpu::pool_of(args.stream)),
        squares_(static_cast<double*>(args.workspace)),
        x_(reinterpret_cast<T*>(static_cast<std::byte*>(args.workspace) + squares_bytes(plan))),
        y_(x_ + padded(muon.iterate_elements)),
        gram_(y_ + padded(muon.iterate_elements)),
        gram2_(gram_ + padded(muon.gram_elements)),
        gemm_(gram2_ + padded(muon.gram_elements)) {}

  static int64_t bytes(const UpdatePlan& plan, const MuonPlan& muon) {
    const int64_t elements = 2 * padded(muon.iterate_elements) + 2 * padded(muon.gram_elements);
    return squares_bytes(plan) + elements * static_cast<int64_t>(sizeof(T)) + muon.gemm_bytes;
  }

  void run() {
    for (size_t t = 0; t < plan_.groups; ++t) {
      const Sides sides(plan_.dims[t]);
      if (sides.low == 0) continue;  // has no elements
      start(t, sides);
      for (int64_t i = 0; i < muon_.steps; ++i) iterate(sides);
      apply(t, sides);
    }
  }

 private:
  static int64_t padded(int64_t elements) { return (elements + 15) / 16 * 16; }
  static int64_t squares_bytes(const UpdatePlan& plan) {
    return align_up(static_cast<int64_t>(sizeof(double) * plan.pieces.pieces().size()));
  }

  /// Calls body(piece number, piece) for the pieces of parameter t.
  template <class Body>
  void for_pieces(size_t t, const Body& body) const {
    const size_t first = plan_.pieces.first(t);
    pool_.run(static_cast<int64_t>(plan_.pieces.first(t + 1) - first), [&](int64_t i) {
      const size_t number = first + static_cast<size_t>(i);
      body(number, plan_.pieces.pieces()[number]);
    });
  }

  /// to [cols, rows] = from [rows, cols] transposed.
  void swap_sides(const T* from, T* to, int64_t rows, int64_t cols) const {
    const int64_t shape[] = {rows, cols};
    const int order[] = {1, 0};
    cpu::permute({from, to, shape, order, static_cast<int>(sizeof(T))}, pool_);
  }

  /// Rounds if the iterate is bf16.
  void rounded(T* x, int64_t n) const {
    if (!muon_.bf16) return;
    pool_.for_range(n, 16384, [&](int64_t begin, int64_t end) { round_bf16(x + begin, end - begin); });
  }

  /// x = u / max(|u|, eps) with the shorter side first; also writes the momentum.
  void start(size_t t, const Sides& sides) {
    const cpu::MuonMomentum rule{s_.grad_scale, 1 - muon_.momentum, muon_.nesterov};
    T* u = sides.transposed() ? y_ : x_;
    for_pieces(t, [&](size_t number, const Piece& p) {
      cpu::UpdateRun<T> run = plan_.template run_of<T>(args_, p);
      run.param = nullptr;
      run.param_out = u + p.begin;
      cpu::muon_momentum<T>(rule, run);
      if (muon_.bf16) round_bf16(run.param_out, run.n);
      squares_[number] = cpu::sum_squares(run.param_out, run.n);
    });
    const size_t first = plan_.pieces.first(t);
    const double squares = pairwise_sum(squares_ + first, plan_.pieces.first(t + 1) - first);
    // Dividing by the Frobenius norm bounds the largest singular value by 1, where the iteration converges.
    T norm = static_cast<T>(std::max(std::sqrt(squares), muon_.eps));
    if (muon_.bf16) round_bf16(&norm, 1);
    const T inverse = 1 / norm;
    for_pieces(t, [&](size_t, const Piece& p) {
      cpu::scale_run<T>(u + p.begin, inverse, u + p.begin, p.size());
      if (muon_.bf16) round_bf16(u + p.begin, p.size());
    });
    if (sides.transposed()) swap_sides(y_, x_, sides.rows, sides.cols);
  }

  /// x = a x + (b A + c A A) x with A = x x^T.
  void iterate(const Sides& s) {
    multiply(Product<T>{x_, x_, gram_, s.low, s.high, s.low, true, T(1)}, gemm_, pool_);
    rounded(gram_, s.low * s.low);
    multiply(Product<T>{gram_, gram_, gram2_, s.low, s.low, s.low, false, static_cast<T>(muon_.c)}, gemm_,
             pool_);
    blend({static_cast<T>(muon_.b), T(1)}, gram_, gram2_, s.low * s.low);
    rounded(gram2_, s.low * s.low);
    multiply(Product<T>{gram2_, x_, y_, s.low, s.low, s.high, false, T(1)}, gemm_, pool_);
    blend({static_cast<T>(muon_.a), T(1)}, x_, y_, s.low * s.high);
    rounded(y_, s.low * s.high);
    std::swap(x_, y_);
  }

  void blend(const cpu::Blend<T>& by, const T* x, T* y, int64_t n) const {
    pool_.for_range(n, 16384, [&](int64_t begin, int64_t end) {
      cpu::blend_run<T>(by, x + begin, y + begin, y + begin, end - begin);
    });
  }

  /// p = p (1 - lr weight_decay) - lr adjust x, with x in the orientation of the parameter.
  void apply(size_t t, const Sides& sides) {
    if (sides.transposed()) {
      swap_sides(x_, y_, sides.low, sides.high);
      std::swap(x_, y_);
    }
    const cpu::Blend<T> by{static_cast<T>(-s_.lr * muon_.adjust(sides)),
                           static_cast<T>(1 - s_.lr * muon_.weight_decay)};
    for_pieces(t, [&](size_t, const Piece& p) {
      const cpu::UpdateRun<T> run = plan_.template run_of<T>(args_, p);
      cpu::blend_run<T>(by, x_ + p.begin, run.param, run.param_out, run.n);
      plan_.round_piece(args_, p);
    });
  }

  const UpdatePlan& plan_;
  const MuonPlan& muon_;
  const ir::RunArgs& args_;
  UpdateScalars s_;
  base::ThreadPool& pool_;
  double* squares_;   // [pieces]
  T *x_, *y_;         // the iterate [low, high] and its successor
  T *gram_, *gram2_;  // [low, low]
  void* gemm_;
};

template <class T>
ir::BoundKernel prepare_muon(const ir::KernelInit& init, const Plan& plan) {
  const auto muon = std::make_shared<const MuonPlan>(init.node, *plan, init.threads);
  return {[=](const ir::RunArgs& args) { MuonLaunch<T>(*plan, *muon, args).run(); },
          MuonLaunch<T>::bytes(*plan, *muon)};
}

}  // namespace

std::vector<ir::Kernel> muon_update_cpu_kernels() {
  return {update_kernel("muon_update", [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_muon<decltype(zero)>(init, plan);
  })};
}

}  // namespace trireme::ops
