// Kernels of adafactor_update (Shazeer & Stern 2018; matrices with factored second moment) and
// adafactor_vector_update on CPU.
#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/optim/update_pieces_cpu.h"

namespace trireme::ops {
namespace {

using Plan = std::shared_ptr<const UpdatePlan>;

/// A parameter [matrices, rows, cols]; large matrices are cut into parts of `part_rows` rows.
struct Factored {
  int64_t matrices = 1, rows = 1, cols = 1;
  int64_t part_rows = 1, parts = 1;
  size_t partial_at = 0;  // column sums [matrices, parts, cols] in the workspace
  size_t mean_at = 0;     // means of the row factors [matrices]
};

/// Rows [first, last) of one parameter, numbered across its matrices: whole matrices or one part of a matrix.
struct RowBlock {
  size_t tensor;
  int64_t first, last;
};

/// Matrix and row within it of a numbered row; moving on needs no division.
struct RowAt {
  int64_t matrix, row, rows;
  RowAt(int64_t first, int64_t rows_of_matrix)
      : matrix(first / std::max<int64_t>(1, rows_of_matrix)),
        row(first % std::max<int64_t>(1, rows_of_matrix)),
        rows(rows_of_matrix) {}
  void next() {
    if (++row < rows) return;
    row = 0;
    ++matrix;
  }
};

constexpr int64_t kBlockElements = 16384;
constexpr int64_t kLeastPartRows = 128;  // column sums of all parts then take 1/16 of the parameter's bytes

/// Shapes and constants of one node. Rows are numbered across all matrices of a parameter, so that a block is
/// a range.
struct FactoredPlan {
  std::vector<Factored> tensors;
  std::vector<RowBlock> blocks;
  size_t partials = 0, means = 0;  // numbers of doubles in the workspace
  double beta2_decay, eps1, eps2, d, weight_decay;

  FactoredPlan(const UpdatePlan& plan, const ir::Attrs& attrs, double least_eps)
      : beta2_decay(attrs.get_float("beta2_decay", -0.8)),
        eps1(attrs.get_float("epsilon1", least_eps)),
        eps2(attrs.get_float("epsilon2", 1e-3)),
        d(attrs.get_float("clip_threshold", 1)),
        weight_decay(attrs.get_float("weight_decay", 0)) {
    for (size_t t = 0; t < plan.groups; ++t) add(t, plan.dims[t], plan.layout.states == 2);
  }

  /// Doubles in the workspace of one launch; see Work.
  size_t doubles() const { return partials + means + 2 * blocks.size() + tensors.size(); }

 private:
  /// The last two axes form the matrix, as in PyTorch; a convolution [o, i, h, w] has o * i small matrices.
  void add(size_t t, const tensor::Dims& dims, bool is_matrix) {
    Factored f;
    if (is_matrix) {
      f = {product(dims, 0, dims.size() - 2), dims[dims.size() - 2], dims[dims.size() - 1]};
      f.part_rows = std::max(kLeastPartRows, kBlockElements / std::max<int64_t>(1, f.cols));
      f.parts = std::max<int64_t>(1, (f.rows + f.part_rows - 1) / f.part_rows);
    } else {
      f.rows = tensor::element_count(dims);  // rows of one column: factors are per element
      f.part_rows = kBlockElements;
      f.parts = std::max<int64_t>(1, (f.rows + f.part_rows - 1) / f.part_rows);
    }
    f.partial_at = partials;
    f.mean_at = means;
    if (is_matrix) {
      partials += static_cast<size_t>(f.matrices * f.parts * f.cols);
      means += static_cast<size_t>(f.matrices);
    }
    tensors.push_back(f);
    if (f.matrices * f.rows * f.cols == 0) return;  // without blocks, its states stay unchanged
    if (f.parts == 1) {
      add_whole(t, f);
      return;
    }
    for (int64_t m = 0; m < f.matrices; ++m) {
      for (int64_t r = 0; r < f.rows; r += f.part_rows)
        blocks.push_back({t, m * f.rows + r, m * f.rows + std::min(f.rows, r + f.part_rows)});
    }
  }

  /// Puts several small matrices into one block.
  void add_whole(size_t t, const Factored& f) {
    const int64_t together = std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, f.rows * f.cols));
    for (int64_t m = 0; m < f.matrices; m += together)
      blocks.push_back({t, m * f.rows, std::min(f.matrices, m + together) * f.rows});
  }
};

/// The parts of the workspace: column sums of parts, mean row factor per matrix, squares of p and u per
/// block, step per parameter.
struct Work {
  double *partial, *mean, *param_squares, *update_squares, *step;
  Work(const FactoredPlan& f, void* memory) {
    partial = static_cast<double*>(memory);
    mean = partial + f.partials;
    param_squares = mean + f.means;
    update_squares = param_squares + f.blocks.size();
    step = update_squares + f.blocks.size();
  }
};

/// One execution: four loops over the blocks of all parameters with a barrier after each. Nothing as large as
/// a parameter is stored in between; computing the direction u twice costs less than storing it.
template <class T>
class AdafactorLaunch {
 public:
  AdafactorLaunch(const UpdatePlan& plan, const FactoredPlan& f, const ir::RunArgs& args)
      : plan_(plan), f_(f), args_(args), s_(plan.scalars(args)), work_(f, args.workspace) {
    take_ = std::pow(s_.step, f.beta2_decay);
  }

  void run() {
    base::ThreadPool& pool = cpu::pool_of(args_.stream);
    const int64_t blocks = static_cast<int64_t>(f_.blocks.size());
    const bool matrices = plan_.layout.states == 2;
    for (size_t r = 0; r < plan_.out_bytes.size(); ++r) {
      const Factored& f = f_.tensors[r / plan_.layout.results()];
      if (f.matrices * f.rows * f.cols == 0) plan_.keep(args_, r);
    }
    pool.run(blocks, [&](int64_t b) { matrices ? sum_block(b) : mean_block(b); });
    if (matrices) combine_all(pool);
    pool.run(blocks, [&](int64_t b) { measure_block(b); });
    set_steps();
    pool.run(blocks, [&](int64_t b) { apply_block(b); });
  }

 private:
  static constexpr int64_t kTile = 1024;
  // For matrices as small as the 3 x 3 ones of convolutions, a call per row would cost more than its work.
  static bool is_narrow(const Factored& f) { return f.cols < 16; }

  const T* param(size_t t) const { return in_ptr<T>(args_, plan_.layout.param(t)); }
  const T* grad(size_t t) const { return in_ptr<T>(args_, plan_.layout.grad(t)); }
  const T* state(size_t t, size_t s) const { return in_ptr<T>(args_, plan_.layout.state(t, s)); }
  T* state_out(size_t t, size_t s) const { return out_ptr<T>(args_, plan_.layout.state_result(t, s)); }
  /// Running mean: old + (1 - beta2) (mean - old).
  T blend(T old, double mean) const { return old + static_cast<T>(take_) * (static_cast<T>(mean) - old); }

  /// Computes a block's row factors, its part of the column sums, and its share of |p|^2.
  void sum_block(int64_t number) const {
    const RowBlock& b = f_.blocks[static_cast<size_t>(number)];
    const Factored& f = f_.tensors[b.tensor];
    const double scale2 = s_.grad_scale * s_.grad_scale;
    const double row_scale = scale2 / static_cast<double>(f.cols);
    RowAt at(b.first, f.rows);
    for (int64_t r = b.first; r < b.last; ++r, at.next()) {
      const int64_t matrix = at.matrix, part = f.parts == 1 ? 0 : at.row / f.part_rows;
      double* sums = work_.partial + f.partial_at + static_cast<size_t>((matrix * f.parts + part) * f.cols);
      if (at.row == part * f.part_rows) std::fill_n(sums, f.cols, 0.0);
      const T* g = grad(b.tensor) + r * f.cols;
      double squares = 0;
      if (is_narrow(f)) {
        for (int64_t c = 0; c < f.cols; ++c) {
          const double square = static_cast<double>(g[c]) * static_cast<double>(g[c]);
          squares += square;
          sums[c] += square;
        }
      } else {
        squares = cpu::sum_squares(g, f.cols);
        cpu::add_squares(g, sums, f.cols);
      }
      state_out(b.tensor, 0)[r] = blend(state(b.tensor, 0)[r], squares * row_scale);
    }
    work_.param_squares[number] =
        cpu::sum_squares(param(b.tensor) + b.first * f.cols, (b.last - b.first) * f.cols);
  }

  /// The form without factors: a mean of squares for each element.
  void mean_block(int64_t number) const {
    const RowBlock& b = f_.blocks[static_cast<size_t>(number)];
    const int64_t n = b.last - b.first;
    cpu::mean_square_run<T>(take_, s_.grad_scale,
                            {state(b.tensor, 0) + b.first,
                             grad(b.tensor) + b.first,
                             {},
                             state_out(b.tensor, 0) + b.first,
                             {},
                             n});
    work_.param_squares[number] = cpu::sum_squares(param(b.tensor) + b.first, n);
  }

  void combine_all(base::ThreadPool& pool) const {
    for (size_t t = 0; t < f_.tensors.size(); ++t) {
      const Factored& f = f_.tensors[t];
      if (f.rows * f.cols == 0) continue;
      pool.for_range(f.matrices, grain_for(static_cast<double>(f.parts * f.cols + f.rows)),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t m = begin; m < end; ++m) combine(t, f, m);
                     });
    }
  }

  /// Sums the column factors of one matrix over its parts in order, and averages its row factors.
  void combine(size_t t, const Factored& f, int64_t matrix) const {
    const double scale = s_.grad_scale * s_.grad_scale / static_cast<double>(std::max<int64_t>(1, f.rows));
    const double* sums = work_.partial + f.partial_at + static_cast<size_t>(matrix * f.parts * f.cols);
    for (int64_t c = 0; c < f.cols; ++c) {
      double total = 0;
      for (int64_t p = 0; p < f.parts; ++p) total += sums[p * f.cols + c];
      const int64_t at = matrix * f.cols + c;
      state_out(t, 1)[at] = blend(state(t, 1)[at], total * scale);
    }
    double rows = 0;
    for (int64_t r = 0; r < f.rows; ++r) rows += static_cast<double>(state_out(t, 0)[matrix * f.rows + r]);
    work_.mean[f.mean_at + static_cast<size_t>(matrix)] = rows / static_cast<double>(f.rows);
  }

  /// The factor of row r of a matrix parameter.
  double row_factor(size_t t, const Factored& f, int64_t r, int64_t matrix) const {
    const double mean = work_.mean[f.mean_at + static_cast<size_t>(matrix)];
    return static_cast<double>(state_out(t, 0)[r]) / std::max(mean, f_.eps1);
  }

  /// directions() for narrow matrices: row * column factors are first computed for a tile of many rows.
  template <class Use>
  void narrow_directions(const RowBlock& b, const Factored& f, const Use& use) const {
    T u[kTile], square[kTile];
    const cpu::FactoredRow rule{s_.grad_scale, 1, f_.eps1 * f_.eps1};
    const int64_t step = kTile / f.cols;
    RowAt row_at(b.first, f.rows);
    for (int64_t first = b.first; first < b.last; first += step) {
      const int64_t last = std::min(b.last, first + step), n = (last - first) * f.cols;
      T* to = square;
      for (int64_t r = first; r < last; ++r, to += f.cols, row_at.next()) {
        const T row = static_cast<T>(row_factor(b.tensor, f, r, row_at.matrix));
        const T* variance = state_out(b.tensor, 1) + row_at.matrix * f.cols;
        for (int64_t c = 0; c < f.cols; ++c) to[c] = row * variance[c];
      }
      cpu::factored_direction<T>(rule, grad(b.tensor) + first * f.cols, square, u, n);
      use(first * f.cols, u, n);
    }
  }

  /// Calls use(element offset, direction, elements) for each tile of the block.
  template <class Use>
  void directions(const RowBlock& b, const Use& use) const {
    const Factored& f = f_.tensors[b.tensor];
    const bool matrix = plan_.layout.states == 2;
    if (matrix && is_narrow(f)) return narrow_directions(b, f, use);
    T u[kTile];
    cpu::FactoredRow rule{s_.grad_scale, 1, f_.eps1 * f_.eps1};
    for (int64_t r = b.first; r < b.last; r += matrix ? 1 : kTile) {
      const int64_t n = matrix ? f.cols : std::min(kTile, b.last - r);
      const T* variance = matrix ? state_out(b.tensor, 1) + r / f.rows * f.cols : state_out(b.tensor, 0) + r;
      if (matrix) rule.row = row_factor(b.tensor, f, r, r / f.rows);
      for (int64_t at = 0; at < n; at += kTile) {
        const int64_t count = std::min(kTile, n - at), offset = (matrix ? r * f.cols : r) + at;
        cpu::factored_direction<T>(rule, grad(b.tensor) + offset, variance + at, u, count);
        use(offset, u, count);
      }
    }
  }

  /// Computes the block's share of |u|^2.
  void measure_block(int64_t number) const {
    double squares = 0;
    directions(f_.blocks[static_cast<size_t>(number)],
               [&](int64_t, const T* u, int64_t n) { squares += cpu::sum_squares(u, n); });
    work_.update_squares[number] = squares;
  }

  /// p = p (1 - lr weight_decay) - step u.
  void apply_block(int64_t number) const {
    const RowBlock& b = f_.blocks[static_cast<size_t>(number)];
    const cpu::Blend<T> by{static_cast<T>(-work_.step[b.tensor]),
                           static_cast<T>(1 - s_.lr * f_.weight_decay)};
    T* out = out_ptr<T>(args_, plan_.layout.param_result(b.tensor));
    directions(b, [&](int64_t at, const T* u, int64_t n) {
      cpu::blend_run<T>(by, u, param(b.tensor) + at, out + at, n);
      plan_.round_piece(args_, {b.tensor, at, at + n});
    });
  }

  /// step = alpha / max(1, RMS(u) / d), alpha = max(eps2, RMS(p)) min(lr, 1 / sqrt(t)).
  void set_steps() const {
    const double rho = std::min(s_.lr, 1 / std::sqrt(s_.step));
    size_t block = 0;
    for (size_t t = 0; t < f_.tensors.size(); ++t) {
      const size_t first = block;
      while (block < f_.blocks.size() && f_.blocks[block].tensor == t) ++block;
      const double n = static_cast<double>(tensor::element_count(plan_.dims[t]));
      const double param = std::sqrt(pairwise_sum(work_.param_squares + first, block - first) / n);
      const double update = std::sqrt(pairwise_sum(work_.update_squares + first, block - first) / n);
      work_.step[t] = std::max(f_.eps2, param) * rho / std::max(1.0, update / f_.d);
    }
  }

  const UpdatePlan& plan_;
  const FactoredPlan& f_;
  const ir::RunArgs& args_;
  UpdateScalars s_;
  Work work_;
  double take_ = 1;  // 1 - beta2 of this step
};

template <class T>
ir::BoundKernel prepare_adafactor(const ir::KernelInit& init, const Plan& plan) {
  const auto factored = std::make_shared<const FactoredPlan>(
      *plan, init.node.attrs, static_cast<double>(std::numeric_limits<T>::epsilon()));
  return {[=](const ir::RunArgs& args) { AdafactorLaunch<T>(*plan, *factored, args).run(); },
          static_cast<int64_t>(factored->doubles() * sizeof(double))};
}

ir::Kernel kernel(std::string_view op) {
  return update_kernel(op, [](auto zero, const ir::KernelInit& init, const Plan& plan) {
    return prepare_adafactor<decltype(zero)>(init, plan);
  });
}

}  // namespace

std::vector<ir::Kernel> adafactor_update_cpu_kernels() { return {kernel("adafactor_update")}; }
std::vector<ir::Kernel> adafactor_vector_update_cpu_kernels() { return {kernel("adafactor_vector_update")}; }

}  // namespace trireme::ops
