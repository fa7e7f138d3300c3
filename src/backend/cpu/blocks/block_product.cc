// Products with weights in blocks: rows of x are converted once, then groups of sixteen weight rows of all
// matrices are divided among the team; each group multiplies all rows of x while it lies in the L1 cache.
#include "backend/cpu/blocks/block_product.h"

#include <algorithm>

#include "backend/cpu/elementwise/fused_program.h"
#include "backend/cpu/norm/norm_rows.h"
#include "backend/cpu/device/round_up.h"

namespace trireme::cpu {
namespace {

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Rows of x in a tile of two groups at least.
constexpr int64_t kPairedRows = 4;

/// A pool of one thread for loops within a task, since the other threads run other tasks.
base::ThreadPool& alone() {
  static base::ThreadPool pool(1);
  return pool;
}

/// The program o0 = silu(i0) * i1.
const FusedProgram& silu_gate() {
  static const FusedProgram program{
      {fused_unary(UnaryOp::swish_, fused_reg(0), fused_input(0), {.a = 1.0f}),
       fused_binary(BinaryOp::mul_, fused_output(0), fused_reg(0), fused_input(1))},
      {},
      1};
  return program;
}

}  // namespace

BlockLoop::FormAt::FormAt(const PackedBlocks& w, int64_t m, int64_t from) {
  const int64_t part = w.layout().part;
  codes = from;
  scales = codes + align64(m * w.k * w.layout().code_bytes());
  starts = scales + align64(m * (w.k / kUnit) * 4);
  sums = starts + align64(m * (w.k / part) * 4);
  end = sums + align64(m * (w.k / part) * 4);
}

int64_t block_product_workspace(std::span<const PackedBlocks> weights, int64_t m, bool has_norm) {
  int64_t end = has_norm ? align64(m * weights[0].k * 4) : 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool is_new = std::none_of(weights.begin(), weights.begin() + static_cast<int64_t>(i),
                                     [&](const PackedBlocks& w) { return w.format == weights[i].format; });
    if (is_new) end = BlockLoop::FormAt(weights[i], m, end).end;
  }
  return end;
}

BlockLoop::BlockLoop(const BlockProducts& call, void* workspace)
    : call_(call),
      k_(call.results[0].w.k),
      memory_(static_cast<uint8_t*>(workspace)),
      piece_rows_(std::max<int64_t>(1, 8192 / std::max<int64_t>(1, k_))),
      pieces_((call.m + piece_rows_ - 1) / piece_rows_) {
  const BlockKernels& kernels = block_kernels(call.isa);
  int64_t groups = 0, bytes = 0, end = call.norm != nullptr ? align64(call.m * k_ * 4) : 0;
  for (const BlockResult& to : call.results) {
    groups += to.w.groups();
    bytes += to.w.groups() * to.w.group_bytes();
    const int f = to.w.format;
    const bool is_known = std::any_of(families_, families_ + family_count_,
                                      [&](const Family& known) { return known.format == f; });
    if (is_known) continue;
    families_[family_count_++] = {
        .format = f,
        .part = to.w.layout().part,
        .code_bytes = to.w.layout().code_bytes(),
        .tiles = call.rounds ? kernels.rounded[f] : kernels.f32[f],
        .pair = call.rounds && kernels.rounded_pair[f][2] != nullptr ? kernels.rounded_pair[f] : nullptr,
        .to_form = call.rounds ? kernels.rounded_row[f] : kernels.f32_row[f],
        .at = FormAt(to.w, call.m, end)};
    end = families_[family_count_ - 1].at.end;
  }
  slice_groups_ = (call.is_gated ? call.results[0].w.groups() : groups) / call.slices;
  // A task reads some ten thousand bytes, enough for prefetches to arrive in time.
  const int64_t shared = std::max<int64_t>(1, slice_groups_ * call.slices);
  const int64_t work = (bytes + shared - 1) / shared * std::max<int64_t>(1, call.m / 4);
  const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, work));
  const int64_t wanted = (slice_groups_ + grain - 1) / grain, most = std::max<int64_t>(1, 64 / call.slices);
  slice_tasks_ = std::clamp<int64_t>(wanted, 1, most);
}

const BlockLoop::Family& BlockLoop::family_of(const BlockResult& to) const {
  const Family* family = families_;
  while (family->format != to.w.format) ++family;
  return *family;
}

const float* BlockLoop::row(int64_t i) const {
  return (call_.norm == nullptr ? call_.x : reinterpret_cast<const float*>(memory_)) + i * k_;
}

BlockRowOut BlockLoop::form(const Family& family, int64_t i) const {
  const auto array = [&](int64_t from, int64_t each) { return memory_ + from + 4 * i * each; };
  return {.codes = reinterpret_cast<int8_t*>(memory_) + family.at.codes + i * k_ * family.code_bytes,
          .scales = reinterpret_cast<float*>(array(family.at.scales, k_ / kUnit)),
          .starts = reinterpret_cast<int32_t*>(array(family.at.starts, k_ / family.part)),
          .sums = reinterpret_cast<float*>(array(family.at.sums, k_ / family.part))};
}

void BlockLoop::make_form(int64_t i) {
  if (call_.norm != nullptr) {
    rms_norm({.x = call_.x + i * k_,
              .y = reinterpret_cast<float*>(memory_) + i * k_,
              .rows = 1,
              .cols = k_,
              .scale = call_.norm,
              .eps = call_.epsilon},
             alone());
  }
  for (size_t f = 0; f < family_count_; ++f) families_[f].to_form(row(i), k_, form(families_[f], i));
}

/// Rows are converted by the tasks themselves: each task converts pieces that nobody has taken, then waits
/// for the pieces that others took. This saves a second synchronisation of the team.
void BlockLoop::make_forms() {
  if (done_.load(std::memory_order_acquire) == pieces_) return;
  for (int64_t piece; (piece = next_.fetch_add(1, std::memory_order_relaxed)) < pieces_;) {
    const int64_t end = std::min(call_.m, (piece + 1) * piece_rows_);
    for (int64_t i = piece * piece_rows_; i < end; ++i) make_form(i);
    done_.fetch_add(1, std::memory_order_release);
  }
  while (done_.load(std::memory_order_acquire) != pieces_) pause();
}

/// Multiplies rows of x from `row_at` on by one or two groups of a result's weights; a pair of groups takes
/// kPairedRows rows at least. Returns the first row that is left.
int64_t BlockLoop::group_product(const BlockResult& to, GroupRange groups, int64_t row_at) const {
  const PackedBlocks& w = to.w;
  const Family& family = family_of(to);
  const int64_t column = groups.first * kGroupRows;
  BlockTile t{.w = w.data + groups.first * w.group_bytes(),
              .blocks = w.blocks(),
              .x = {},
              .bias = to.bias == nullptr ? nullptr : to.bias + column,
              .y = nullptr,
              .ldy = w.n,
              .n = static_cast<int>(std::min(groups.count * kGroupRows, w.n - column))};
  const bool is_pair = groups.count == 2;
  const BlockTileFn* tiles = is_pair ? family.pair : family.tiles;
  while (row_at + (is_pair ? kPairedRows : 1) <= call_.m) {
    int height = kBlockTileHeights - 1;
    while (tiles[height] == nullptr || int64_t{1} << height > call_.m - row_at) --height;
    const BlockRowOut own = form(family, row_at);
    t.x = {row(row_at), own.codes, own.scales, own.starts, own.sums, w.k};
    t.y = to.y + row_at * w.n + column;
    tiles[height](t);
    row_at += int64_t{1} << height;
  }
  return row_at;
}

/// Multiplies all rows of x by groups [begin, end) of a result's weights.
void BlockLoop::range_product(const BlockResult& to, int64_t begin, int64_t end) const {
  for (int64_t group = begin; group < end;) {
    const int64_t count = family_of(to).pair != nullptr && call_.m >= kPairedRows && group + 1 < end ? 2 : 1;
    const int64_t left = count == 2 ? group_product(to, {group, 2}, 0) : 0;
    for (int64_t i = 0; i < count && left < call_.m; ++i) group_product(to, {group + i, 1}, left);
    group += count;
  }
  if (to.residual != nullptr) add_residual(to, begin, end);
}

void BlockLoop::add_residual(const BlockResult& to, int64_t begin, int64_t end) const {
  const int64_t n = to.w.n, first = begin * kGroupRows, last = std::min(n, end * kGroupRows);
  for (int64_t i = 0; i < call_.m; ++i) {
    float* y = to.y + i * n;
    const float* add = to.residual + i * n;
    for (int64_t c = first; c < last; ++c) y[c] += add[c];
  }
}

void BlockLoop::gate(int64_t begin, int64_t end) const {
  const int64_t n = call_.results[0].w.n, first = begin * kGroupRows, last = std::min(n, end * kGroupRows);
  for (int64_t i = 0; i < call_.m; ++i) {
    float* y = call_.results[1].y + i * n + first;
    const FusedInput in[2] = {{call_.results[0].y + i * n + first, FusedShape::full}, {y, FusedShape::full}};
    run_fused(silu_gate(), {.inputs = in, .outputs = {&y, 1}, .rows = 1, .cols = last - first}, alone());
  }
}

void BlockLoop::run(int64_t task) {
  make_forms();
  const int64_t slice = slice_of(task), piece = task % slice_tasks_;
  const int64_t begin = slice_groups_ * piece / slice_tasks_,
                end = slice_groups_ * (piece + 1) / slice_tasks_;
  if (call_.is_gated) {
    const int64_t before = slice * slice_groups_;
    for (const BlockResult& to : call_.results) range_product(to, before + begin, before + end);
    return gate(before + begin, before + end);
  }
  int64_t before = 0;  // groups of this slice in the results so far
  for (const BlockResult& to : call_.results) {
    const int64_t own = to.w.groups() / call_.slices, at = slice * own - before;
    const int64_t from = std::max(begin, before), until = std::min(end, before + own);
    if (from < until) range_product(to, at + from, at + until);
    before += own;
  }
}

void block_products(const BlockProducts& call, void* workspace, base::ThreadPool& pool) {
  if (call.m == 0 || call.results.empty()) return;
  BlockLoop loop(call, workspace);
  pool.run(loop.tasks(), [&](int64_t task) { loop.run(task); });
}

}  // namespace trireme::cpu
