// Attention by cuDNN's fused graphs: f16 and bf16, causal or not, grouped heads, any strides.
#include <cmath>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/cudnn/toolkit_cudnn.cuh"

namespace trireme::cuda {
namespace {

using Ints = std::vector<int64_t>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

struct Built {
  fe::graph::Graph graph;
  Tensor q, k, v, y, lse, dy, dq, dk, dv;
};

/// [batch, heads, positions, channels] as it lies.
struct Operand {
  Ints dims, strides;
};
Operand operand(const AttentionShape& s, const AttentionStrides& at, bool of_keys, int64_t channels) {
  return {{s.batch, of_keys ? s.kv_heads : s.heads, of_keys ? s.keys : s.queries, channels},
          {at.batch, at.head, at.seq, 1}};
}

Tensor add(Built& b, const Operand& o) {
  return b.graph.tensor(fe::graph::Tensor_attributes().set_dim(o.dims).set_stride(o.strides));
}
void set_result(const Tensor& t, const Operand& o, fe::DataType_t type) {
  t->set_output(true).set_dim(o.dims).set_stride(o.strides).set_data_type(type);
}

Operand statistics(const AttentionShape& s) {
  return {{s.batch, s.heads, s.queries, 1}, {s.heads * s.queries, s.queries, 1, 1}};
}

int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// A deterministic gradient keeps all probabilities in 16 bits and a sum for each query; what the plan asks
/// for beside it is small.
int64_t workspace_of(const AttentionShape& s, bool gradient) {
  if (!gradient) return kCudnnWorkspaceBytes;
  constexpr int64_t kRows = 128, kColumns = 128;  // tiles
  const int64_t rows = s.batch * s.heads * rounded(s.queries, kRows);
  return kCudnnWorkspaceBytes + rows * (rounded(s.keys, kColumns) * 2 + static_cast<int64_t>(sizeof(float)));
}
constexpr int64_t kMostWorkspaceBytes = int64_t{8} << 30;

void build_forward(Built& b, const AttentionShape& s, bool gives_lse) {
  auto attributes = fe::graph::SDPA_attributes().set_attn_scale(s.scale).set_generate_stats(gives_lse);
  if (s.causal) attributes.set_causal_mask(true);
  const auto [y, lse] = b.graph.sdpa(b.q, b.k, b.v, attributes);
  b.y = y;
  set_result(b.y, operand(s, s.y, false, s.value_dim), cudnn_type(s.type));
  if (!gives_lse) return;
  b.lse = lse;
  set_result(b.lse, statistics(s), fe::DataType_t::FLOAT);
}

void build_backward(Built& b, const AttentionShape& s) {
  b.y = add(b, operand(s, s.y, false, s.value_dim));
  b.dy = add(b, operand(s, s.y, false, s.value_dim));
  b.lse = add(b, statistics(s));
  b.lse->set_data_type(fe::DataType_t::FLOAT);
  auto attributes =
      fe::graph::SDPA_backward_attributes().set_attn_scale(s.scale).set_deterministic_algorithm(true);
  if (s.causal) attributes.set_causal_mask(true);
  const auto [dq, dk, dv] = b.graph.sdpa_backward(b.q, b.k, b.v, b.y, b.dy, b.lse, attributes);
  b.dq = dq;
  b.dk = dk;
  b.dv = dv;
  set_result(b.dq, operand(s, s.q, false, s.head_dim), cudnn_type(s.type));
  set_result(b.dk, operand(s, s.k, true, s.head_dim), cudnn_type(s.type));
  set_result(b.dv, operand(s, s.v, true, s.value_dim), cudnn_type(s.type));
}

/// Null if cuDNN refuses the shape.
std::unique_ptr<Built> build(const AttentionShape& s, const Cudnn& cudnn, bool gives_lse, bool gradient) {
  auto built = std::make_unique<Built>();
  Built& b = *built;
  b.graph.set_io_data_type(cudnn_type(s.type))
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  b.q = add(b, operand(s, s.q, false, s.head_dim));
  b.k = add(b, operand(s, s.k, true, s.head_dim));
  b.v = add(b, operand(s, s.v, true, s.value_dim));
  gradient ? build_backward(b, s) : build_forward(b, s, gives_lse);
  const PlanWish wish{.checks_notes = false, .workspace_bytes = workspace_of(s, gradient)};
  return build_graph(b.graph, cudnn, wish) ? std::move(built) : nullptr;
}

/// A built graph that attentions of one shape share.
struct SharedGraph {
  std::unique_ptr<Built> built;  // null: cuDNN refused
};

class CudnnAttention final : public AttentionPlan {
 public:
  CudnnAttention(int64_t workspace, std::shared_ptr<const Cudnn> cudnn,
                 std::shared_ptr<const SharedGraph> graph)
      : workspace_(workspace), cudnn_(std::move(cudnn)), graph_(std::move(graph)) {}

  int64_t workspace_bytes() const override { return workspace_ + kCudnnAlignment; }

  void run(tensor::Stream& stream, const AttentionPointers& p, void* workspace) const override {
    const Built& b = *graph_->built;
    CudnnAddresses at{{b.q, const_cast<void*>(p.q)},
                      {b.k, const_cast<void*>(p.k)},
                      {b.v, const_cast<void*>(p.v)},
                      {b.y, p.y}};
    if (b.lse != nullptr) at[b.lse] = p.lse;
    run_graph(b.graph, *cudnn_, stream, std::move(at), cudnn_aligned(workspace));
  }

  void run_grad(tensor::Stream& stream, const AttentionGradPointers& p, void* workspace) const override {
    const Built& b = *graph_->built;
    CudnnAddresses at{{b.q, const_cast<void*>(p.q)},
                      {b.k, const_cast<void*>(p.k)},
                      {b.v, const_cast<void*>(p.v)},
                      {b.y, const_cast<void*>(p.y)},
                      {b.dy, const_cast<void*>(p.dy)},
                      {b.lse, const_cast<float*>(p.lse)},
                      {b.dq, p.dq},
                      {b.dk, p.dk},
                      {b.dv, p.dv}};
    run_graph(b.graph, *cudnn_, stream, std::move(at), cudnn_aligned(workspace));
  }

 private:
  int64_t workspace_;
  std::shared_ptr<const Cudnn> cudnn_;
  std::shared_ptr<const SharedGraph> graph_;
};

/// Stands where there is no device: the program is only looked at.
class ImaginedAttention final : public AttentionPlan {
 public:
  explicit ImaginedAttention(int64_t workspace) : workspace_(workspace) {}
  int64_t workspace_bytes() const override { return workspace_ + kCudnnAlignment; }
  void run(tensor::Stream&, const AttentionPointers&, void*) const override { refuse(); }
  void run_grad(tensor::Stream&, const AttentionGradPointers&, void*) const override { refuse(); }

 private:
  [[noreturn]] static void refuse() {
    base::fail(base::ErrorCode::internal, "an attention that was planned without a device is run");
  }
  int64_t workspace_;
};

bool is_expressible(const AttentionShape& s, bool gradient) {
  if (s.type == tensor::DType::f32 || s.mask.given || s.has_lengths || s.softcap > 0) return false;
  if (s.left >= 0 || s.right >= 0 || (s.causal && s.offset != 0)) return false;
  if (s.batch * s.heads * s.queries * s.keys == 0) return false;
  constexpr int64_t kMostDim = 128;
  const bool fits = s.head_dim <= kMostDim && s.value_dim <= kMostDim;
  return fits && s.head_dim % 8 == 0 && s.value_dim % 8 == 0 && (!gradient || s.head_dim == s.value_dim);
}

std::string key_of(const AttentionShape& s) {
  std::string key =
      base::concat("attention ", name_of(s.type), " ", s.batch, ",", s.heads, ",", s.kv_heads, ",", s.queries,
                   ",", s.keys, ",", s.head_dim, ",", s.value_dim, " ", s.scale, " ", s.causal);
  for (const AttentionStrides* at : {&s.q, &s.k, &s.v, &s.y})
    key += base::concat(" ", at->batch, ",", at->seq, ",", at->head);
  return key;
}

}  // namespace

std::shared_ptr<const AttentionPlan> make_attention(const GemmPlace& place, const AttentionShape& shape,
                                                    bool gives_lse, bool gradient) {
  const int64_t workspace = workspace_of(shape, gradient);
  if (!is_expressible(shape, gradient) || workspace > kMostWorkspaceBytes) return nullptr;
  if (place.device == nullptr) return std::make_shared<ImaginedAttention>(workspace);
  const std::shared_ptr<const Cudnn> cudnn = cudnn_of(place);
  if (cudnn == nullptr) return nullptr;
  const auto graph = place.shared->get<SharedGraph>(
      base::concat(key_of(shape), gives_lse, gradient, " on ", place.device->ordinal()), [&] {
        return std::make_shared<const SharedGraph>(SharedGraph{build(shape, *cudnn, gives_lse, gradient)});
      });
  if (graph->built == nullptr) return nullptr;
  return std::make_shared<CudnnAttention>(workspace, cudnn, graph);
}

}  // namespace trireme::cuda
