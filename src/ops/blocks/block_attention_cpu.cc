// The kernel of block_attention on CPU: products, rotation with append, and attention are stages of one loop,
// in which the attention of a key head waits for that head only.
#include "backend/cpu/attention/paged_attention.h"
#include "backend/cpu/blocks/block_product.h"
#include "backend/cpu/device/cpu_stream.h"
#include "backend/cpu/device/stage_loop.h"
#include "ops/blocks/block_attention.h"
#include "ops/attention/decode_rows.h"
#include "ops/blocks/packed_blocks_cpu.h"
#include "ops/kernel_forms.h"

namespace trireme::ops {
namespace {

using tensor::DType;

/// Rows per task of rotation and append.
constexpr int64_t kRows = 16;

/// A node and all that is decided when it is bound.
struct Bound {
  BlockAttentionPlan plan;
  std::shared_ptr<const PackedMatrix> weights[3];
  cpu::PagedAttention attention;  // addresses are set in each run
  PageWriter pages;
  Rotation turn;
  int64_t slices = 1;  // of the products: one per key head, or a single one
  bool has_norm = false;
  size_t operands = 0;
  int64_t rows_at[3] = {}, form_at = 0, paged_at = 0, heads_at = 0, bytes = 0;  // offsets in the workspace

  int64_t kv_heads() const { return attention.kv_heads; }
  int64_t row_tasks() const { return (plan.rows + kRows - 1) / kRows; }
};

/// The addresses of one run.
struct Run {
  const Bound& b;
  const ir::RunArgs& args;
  float* rows[3];                  // queries [rows, heads dim], keys and values [rows, kv_heads dim]
  cpu::Pending *products, *heads;  // counters per slice, and per key head of its rotated and appended rows
};

template <class T>
T* at(const ir::RunArgs& args, int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(args.workspace) + bytes);
}

/// For rows [begin, end): rotates the queries and the key of key head `head`, then appends key and value.
void place_rows(const Run& run, int64_t head, int64_t begin, int64_t end) {
  const Bound& b = run.b;
  const int64_t dim = b.attention.dim, heads = b.attention.heads, group = heads / b.kv_heads();
  const auto* slots = in_ptr<int32_t>(run.args, kBaSlots);
  for (int64_t row = begin; row < end; ++row) {
    float* q = run.rows[0] + (row * heads + head * group) * dim;
    float* own[2] = {run.rows[1] + (row * b.kv_heads() + head) * dim,
                     run.rows[2] + (row * b.kv_heads() + head) * dim};
    if (b.turn.rotated > 0) {
      const int64_t angle = angle_row(in_ptr<int64_t>(run.args, kBaPositions)[row], b.plan.step.angle_rows) *
                            b.turn.rotated / 2;
      const float *cosine = in_ptr<float>(run.args, kBaCosine) + angle,
                  *sine = in_ptr<float>(run.args, kBaSine) + angle;
      for (int64_t h = 0; h < group; ++h) rotate_head(b.turn, q + h * dim, cosine, sine, q + h * dim);
      rotate_head(b.turn, own[0], cosine, sine, own[0]);
    }
    const int64_t slot = slots[row];
    if (slot < 0) continue;
    if (slot >= b.pages.places()) {
      if (run.args.status != nullptr) run.args.status->fail("slot out of range", slot);
      continue;
    }
    for (const size_t i : {0, 1}) b.pages.write(own[i], slot, head, run.args.out[i + 1]);
  }
}

void run_bound(const Bound& b, const ir::RunArgs& args) {
  Run run{b,
          args,
          {at<float>(args, b.rows_at[0]), at<float>(args, b.rows_at[1]), at<float>(args, b.rows_at[2])},
          at<cpu::Pending>(args, b.heads_at),
          at<cpu::Pending>(args, b.heads_at) + b.slices};
  cpu::PagedAttention attention = b.attention;
  attention.q = run.rows[0];
  attention.keys = args.out[1];
  attention.values = args.out[2];
  attention.table = in_ptr<int32_t>(args, kBaTable);
  attention.lengths = in_ptr<int32_t>(args, kBaLengths);
  attention.starts = in_ptr<int32_t>(args, kBaStarts);
  attention.y = args.out[0];
  attention.workspace = at<std::byte>(args, b.paged_at);
  int64_t value = 0;
  if (const char* fault = cpu::paged_fault(attention, &value)) {
    if (args.status != nullptr) args.status->fail(fault, value);
    return;
  }
  for (const size_t i : {0, 1}) b.pages.keep(args.in[kBaKeyPages + i], args.out[i + 1]);

  cpu::BlockResult results[3];
  for (size_t i = 0; i < 3; ++i)
    results[i] = {b.weights[i]->blocks, opt_ptr<float>(args, kBaQueryBias + i, b.operands), run.rows[i]};
  const cpu::BlockProducts call{.results = results,
                                .x = in_ptr<float>(args, kBaX),
                                .m = b.plan.rows,
                                .rounds = b.plan.form != BlockRows::f32,
                                .norm = b.has_norm ? in_ptr<float>(args, kBaNorm) : nullptr,
                                .epsilon = b.plan.epsilon,
                                .slices = b.slices};
  cpu::BlockLoop products(call, at<std::byte>(args, b.form_at));
  base::ThreadPool& pool = cpu::pool_of(args.stream);
  const cpu::PagedLoop attend(attention, pool.size());
  for (int64_t i = 0; i < b.slices; ++i)
    (new (run.products + i) cpu::Pending())->start(products.slice_tasks());
  for (int64_t h = 0; h < b.kv_heads(); ++h) (new (run.heads + h) cpu::Pending())->start(b.row_tasks());
  const auto work = [&](size_t stage, int64_t task) {
    if (stage == 0) {
      products.run(task);
      run.products[products.slice_of(task)].finish();
    } else if (stage == 1) {
      const int64_t head = task / b.row_tasks(), begin = task % b.row_tasks() * kRows;
      run.products[b.slices == 1 ? 0 : head].wait();
      place_rows(run, head, begin, std::min(b.plan.rows, begin + kRows));
      run.heads[head].finish();
    } else {
      run.heads[attend.kv_head(task)].wait();
      attend.run(task);
    }
  };
  cpu::run_stages<3>(pool, {products.tasks(), b.kv_heads() * b.row_tasks(), attend.tasks()}, work);
  attend.clear_rest();
}

ir::BoundKernel prepare(const ir::KernelInit& init) {
  Bound b;
  b.plan = plan_block_attention(init.node);
  cpu::PackedBlocks weights[3];
  bool is_packed = true;
  for (size_t i = 0; i < 3; ++i) {
    b.weights[i] = packed_matrix(init, kBaQuery + i, i);
    is_packed = is_packed && b.weights[i] != nullptr;
    weights[i] = packed_form(init.node, kBaQuery + i, i);
  }
  const PagedPlan& p = b.plan.step.attention;
  b.attention = {.type = DType::f32,
                 .page_type = init.node.in[kBaKeyPages].dtype,
                 .rows = p.rows,
                 .sequences = p.sequences,
                 .heads = p.heads,
                 .kv_heads = p.pages.kv_heads,
                 .dim = p.pages.dim,
                 .row_bytes = row_bytes(init.node.in[kBaKeyPages].dtype, p.pages.dim),
                 .pages = p.pages.pages,
                 .page_tokens = p.pages.page_tokens,
                 .most_pages = p.most_pages,
                 .window = p.window,
                 .scale = p.scale,
                 .softcap = p.softcap};
  b.pages = {p.pages, DType::f32, b.attention.page_type};
  b.turn = {p.pages.dim, b.plan.step.rotated, b.plan.step.interleaved};
  b.slices = p.pages.dim % cpu::kGroupRows == 0 ? p.pages.kv_heads : 1;
  b.has_norm = init.node.present(kBaNorm);
  b.operands = init.node.in.size();
  b.bytes = 0;
  const auto take = [&](int64_t bytes) {
    const int64_t from = b.bytes;
    b.bytes += align_up(bytes);
    return from;
  };
  for (size_t i = 0; i < 3; ++i) b.rows_at[i] = take(p.rows * weights[i].n * 4);
  b.form_at = take(cpu::block_product_workspace(weights, p.rows, b.has_norm));
  b.paged_at = take(cpu::paged_attention_workspace_bytes(b.attention));
  b.heads_at = take((b.slices + p.pages.kv_heads) * static_cast<int64_t>(sizeof(cpu::Pending)));
  ir::BoundKernel bound{.workspace_bytes = b.bytes,
                        .unread_inputs = 1u << kBaQuery | 1u << kBaKey | 1u << kBaValue};
  if (is_packed) bound.run = [b](const ir::RunArgs& args) { run_bound(b, args); };
  return bound;
}

ir::Refusal refuse(const ir::NodeView& n) {
  if (auto why = refuse_dtype(n, kBaX, {DType::f32})) return why;
  for (const size_t w : {kBaQuery, kBaKey, kBaValue}) {
    if (auto why = refuse_packed(n, w)) return why;
  }
  if (plan_block_attention(n).step.attention.pages.dim > cpu::kPagedMaxDim)
    return base::concat("a head has more than ", cpu::kPagedMaxDim, " channels");
  return std::nullopt;
}

}  // namespace

std::vector<ir::Kernel> block_attention_cpu_kernels() {
  return {{.name = "stages", .refuse = refuse, .prepare = prepare}};
}

}  // namespace trireme::ops
