// Attention by cuDNN's fused graphs: f16 and bf16, causal or not, grouped heads, any strides.
#include <bit>
#include <cmath>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/cudnn/toolkit_cudnn.cuh"

namespace trireme::cuda {
namespace {

using Ints = std::vector<int64_t>;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

/// Identifiers of operands and results in a graph.
enum : Uid { kQ = 1, kK, kV, kY, kLse, kDy, kDq, kDk, kDv };

/// Dimensions [batch, heads, positions, channels] with the strides that the tensor has in memory.
struct Operand {
  Ints dims, strides;
};
Operand operand(const AttentionShape& s, const AttentionStrides& at, bool of_keys, int64_t channels) {
  return {{s.batch, of_keys ? s.kv_heads : s.heads, of_keys ? s.keys : s.queries, channels},
          {at.batch, at.head, at.seq, 1}};
}

Tensor add(fe::graph::Graph& graph, Uid uid, const Operand& o) {
  return graph.tensor(fe::graph::Tensor_attributes().set_dim(o.dims).set_stride(o.strides).set_uid(uid));
}
void set_result(const Tensor& t, Uid uid, const Operand& o, fe::DataType_t type) {
  t->set_output(true).set_dim(o.dims).set_stride(o.strides).set_data_type(type).set_uid(uid);
}

Operand statistics(const AttentionShape& s) {
  return {{s.batch, s.heads, s.queries, 1}, {s.heads * s.queries, s.queries, 1, 1}};
}

int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// The deterministic gradient stores all probabilities in 16 bits and one sum per query; the rest of the
/// plan's workspace is small.
int64_t workspace_of(const AttentionShape& s, bool gradient) {
  if (!gradient) return kCudnnWorkspaceBytes;
  constexpr int64_t kRows = 128, kColumns = 128;  // extents of a tile
  const int64_t rows = s.batch * s.heads * rounded(s.queries, kRows);
  return kCudnnWorkspaceBytes + rows * (rounded(s.keys, kColumns) * 2 + static_cast<int64_t>(sizeof(float)));
}
constexpr int64_t kMostWorkspaceBytes = int64_t{8} << 30;

/// Operands of both the forward and the backward graph.
struct Inputs {
  Tensor q, k, v;
};

void describe_forward(fe::graph::Graph& graph, const AttentionShape& s, const Inputs& in, bool gives_lse) {
  auto attributes = fe::graph::SDPA_attributes().set_attn_scale(s.scale).set_generate_stats(gives_lse);
  if (s.causal) attributes.set_causal_mask(true);
  const auto [y, lse] = graph.sdpa(in.q, in.k, in.v, attributes);
  set_result(y, kY, operand(s, s.y, false, s.value_dim), cudnn_type(s.type));
  if (gives_lse) set_result(lse, kLse, statistics(s), fe::DataType_t::FLOAT);
}

void describe_backward(fe::graph::Graph& graph, const AttentionShape& s, const Inputs& in) {
  const Tensor y = add(graph, kY, operand(s, s.y, false, s.value_dim));
  const Tensor dy = add(graph, kDy, operand(s, s.y, false, s.value_dim));
  const Tensor lse = add(graph, kLse, statistics(s));
  lse->set_data_type(fe::DataType_t::FLOAT);
  auto attributes =
      fe::graph::SDPA_backward_attributes().set_attn_scale(s.scale).set_deterministic_algorithm(true);
  if (s.causal) attributes.set_causal_mask(true);
  const auto [dq, dk, dv] = graph.sdpa_backward(in.q, in.k, in.v, y, dy, lse, attributes);
  set_result(dq, kDq, operand(s, s.q, false, s.head_dim), cudnn_type(s.type));
  set_result(dk, kDk, operand(s, s.k, true, s.head_dim), cudnn_type(s.type));
  set_result(dv, kDv, operand(s, s.v, true, s.value_dim), cudnn_type(s.type));
}

std::string key_of(const AttentionShape& s, bool gives_lse, bool gradient) {
  std::string key = base::concat("attention ", name_of(s.type), " ", s.batch, ",", s.heads, ",", s.kv_heads,
                                 ",", s.queries, ",", s.keys, ",", s.head_dim, ",", s.value_dim, " ",
                                 std::bit_cast<uint32_t>(s.scale), " ", s.causal);
  for (const AttentionStrides* at : {&s.q, &s.k, &s.v, &s.y})
    key += base::concat(" ", at->batch, ",", at->seq, ",", at->head);
  return base::concat(key, " ", gives_lse, gradient);
}

/// Returns null if cuDNN refuses the shape.
std::unique_ptr<const fe::graph::Graph> build(const GemmPlace& place, const Cudnn& cudnn,
                                              const AttentionShape& s, bool gives_lse, bool gradient) {
  const PlanWish wish{.key = key_of(s, gives_lse, gradient),
                      .checks_notes = false,
                      .workspace_bytes = workspace_of(s, gradient)};
  return ready_graph(place, cudnn, wish, [&](fe::graph::Graph& graph) {
    graph.set_io_data_type(cudnn_type(s.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const Inputs in{add(graph, kQ, operand(s, s.q, false, s.head_dim)),
                    add(graph, kK, operand(s, s.k, true, s.head_dim)),
                    add(graph, kV, operand(s, s.v, true, s.value_dim))};
    gradient ? describe_backward(graph, s, in) : describe_forward(graph, s, in, gives_lse);
  });
}

class CudnnAttention final : public AttentionPlan {
 public:
  CudnnAttention(int64_t workspace, bool gives_lse, std::shared_ptr<const Cudnn> cudnn,
                 std::shared_ptr<const SharedGraph> shared, const fe::graph::Graph* graph)
      : workspace_(workspace),
        gives_lse_(gives_lse),
        cudnn_(std::move(cudnn)),
        shared_(std::move(shared)),
        graph_(graph) {}

  int64_t workspace_bytes() const override { return workspace_ + kCudnnAlignment; }

  void run(tensor::Stream& stream, const AttentionPointers& p, void* workspace) const override {
    CudnnAddresses at{
        {kQ, const_cast<void*>(p.q)}, {kK, const_cast<void*>(p.k)}, {kV, const_cast<void*>(p.v)}, {kY, p.y}};
    if (gives_lse_) at[kLse] = p.lse;
    run_graph(*graph_, *cudnn_, stream, std::move(at), cudnn_aligned(workspace));
  }

  void run_grad(tensor::Stream& stream, const AttentionGradPointers& p, void* workspace) const override {
    CudnnAddresses at{{kQ, const_cast<void*>(p.q)},
                      {kK, const_cast<void*>(p.k)},
                      {kV, const_cast<void*>(p.v)},
                      {kY, const_cast<void*>(p.y)},
                      {kDy, const_cast<void*>(p.dy)},
                      {kLse, const_cast<float*>(p.lse)},
                      {kDq, p.dq},
                      {kDk, p.dk},
                      {kDv, p.dv}};
    run_graph(*graph_, *cudnn_, stream, std::move(at), cudnn_aligned(workspace));
  }

 private:
  int64_t workspace_;
  bool gives_lse_;
  std::shared_ptr<const Cudnn> cudnn_;
  std::shared_ptr<const SharedGraph> shared_;
  const fe::graph::Graph* graph_;  // owned by shared_
};

/// Used where there is no device: the program is only inspected.
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

}  // namespace

std::shared_ptr<const AttentionPlan> make_attention(const GemmPlace& place, const AttentionShape& shape,
                                                    bool gives_lse, bool gradient) {
  const int64_t workspace = workspace_of(shape, gradient);
  if (!is_expressible(shape, gradient) || workspace > kMostWorkspaceBytes) return nullptr;
  if (place.device == nullptr) return std::make_shared<ImaginedAttention>(workspace);
  const std::shared_ptr<const Cudnn> cudnn = cudnn_of(place);
  if (cudnn == nullptr) return nullptr;
  const auto shared = place.shared->get<SharedGraph>(
      base::concat(key_of(shape, gives_lse, gradient), " on ", place.device->ordinal()),
      [] { return std::make_shared<const SharedGraph>(); });
  const fe::graph::Graph* graph =
      shared->get([&] { return build(place, *cudnn, shape, gives_lse, gradient); });
  if (graph == nullptr) return nullptr;
  return std::make_shared<CudnnAttention>(workspace, gives_lse, cudnn, shared, graph);
}

}  // namespace trireme::cuda
