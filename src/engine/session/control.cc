// Control flow: `if` runs one branch; `loop` and `scan` run a body per iteration and stack its results.
#include "engine/session/control.h"

#include <algorithm>
#include <cstring>

#include "engine/session/graph_runner.h"
#include "passes/lists/lists.h"

namespace trireme::engine {
namespace {

using tensor::Dims;
using tensor::Tensor;

GraphRunner& runner_of(const ir::GraphPtr& graph, SubgraphCache& cache, RunnerContext& context) {
  std::unique_ptr<GraphRunner>& slot = cache[graph.get()];
  if (slot == nullptr) {
    ir::Graph prepared = *graph;
    passes::run_passes(passes::prepare_passes(), prepared, context.passes);
    slot = std::make_unique<GraphRunner>(std::move(prepared), context);
  }
  return *slot;
}

std::vector<Tensor> captured(const ir::Node& node, const std::vector<Tensor>& in) {
  const int64_t count = node.attrs.get_int("captures", 0);
  base::check(count >= 0 && count <= static_cast<int64_t>(in.size()), "captures out of range");
  return {in.end() - count, in.end()};
}

/// Stacks tensors of equal type and shape along a new dimension `axis`. `like`: the type for an empty list.
Tensor stack(const std::vector<Tensor>& parts, size_t axis, const tensor::TensorType& like) {
  if (parts.empty()) {
    Dims dims{0};
    for (const tensor::Dim& d : like.shape.dims()) dims.push_back(d.is_static() ? d.value() : 0);
    return Tensor::empty(like.dtype, dims);
  }
  const Dims& part = parts[0].dims();
  base::require(axis <= part.size(), "scan axis ", axis, " is outside a rank of ", part.size() + 1);
  for (const Tensor& t : parts) {
    base::require(t.dims() == part && t.dtype() == parts[0].dtype(), "an iteration yielded ",
                  t.type().to_string(), " where the first yielded ", parts[0].type().to_string());
  }
  if (tensor::bits_of(parts[0].dtype()) < 8)
    base::fail_unsupported("values of iterations in ", name_of(parts[0].dtype()),
                           ", of which several share a byte");
  Dims dims = part;
  dims.insert(dims.begin() + static_cast<int64_t>(axis), static_cast<int64_t>(parts.size()));
  Tensor out = Tensor::empty(parts[0].dtype(), dims);
  const int64_t outer = tensor::element_count(Dims(part.begin(), part.begin() + static_cast<int64_t>(axis)));
  const int64_t chunk = outer == 0 ? 0 : parts[0].bytes() / outer;  // bytes of one inner block
  std::byte* to = out.mutable_raw();
  for (int64_t o = 0; o < outer; ++o) {
    for (const Tensor& t : parts) {
      std::memcpy(to, t.raw() + o * chunk, static_cast<size_t>(chunk));
      to += chunk;
    }
  }
  return out;
}

/// Element `i` of `t` along `axis`, without that dimension.
Tensor slice(const Tensor& t, size_t axis, int64_t i) {
  if (tensor::bits_of(t.dtype()) < 8)
    base::fail_unsupported("a scan over ", name_of(t.dtype()), ", of which several elements share a byte");
  Dims dims = t.dims();
  const int64_t length = dims[axis];
  dims.erase(dims.begin() + static_cast<int64_t>(axis));
  if (axis == 0) return t.rows(i, i + 1).reshaped(dims);
  Tensor out = Tensor::empty(t.dtype(), dims);
  const int64_t outer =
      tensor::element_count(Dims(t.dims().begin(), t.dims().begin() + static_cast<int64_t>(axis)));
  const int64_t chunk = outer == 0 ? 0 : out.bytes() / outer;
  for (int64_t o = 0; o < outer; ++o) {
    std::memcpy(out.mutable_raw() + o * chunk, t.raw() + (o * length + i) * chunk,
                static_cast<size_t>(chunk));
  }
  return out;
}

/// Collects the results of a loop's iterations within the memory limit of the session: the number and size of
/// the results may be determined by a request.
class KeptRounds {
 public:
  KeptRounds(size_t lists, int64_t max_bytes) : lists_(lists), left_(max_bytes) {}
  void keep(size_t list, Tensor t) {
    constexpr int64_t kOwnBytes = 256;  // of a tensor in addition to its elements
    left_ -= t.bytes() + kOwnBytes;
    if (left_ < 0) {
      base::fail(base::ErrorCode::exhausted, "the results of ", lists_[list].size(),
                 " rounds leave no room for another of type ", t.type().to_string());
    }
    lists_[list].push_back(std::move(t));
  }
  std::vector<Tensor>& of(size_t list) { return lists_[list]; }
  size_t lists() const { return lists_.size(); }

 private:
  std::vector<std::vector<Tensor>> lists_;
  int64_t left_;
};

bool truth(const Tensor& t) {
  base::require(t.defined() && t.elements() == 1, "a condition must have one element");
  return t.to_ints()[0] != 0;
}

std::vector<Tensor> run_if(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                           RunnerContext& context) {
  const ir::GraphPtr branch = node.attrs.get_graph(truth(in[0]) ? "then_branch" : "else_branch");
  return runner_of(branch, cache, context).run(captured(node, in));
}

std::vector<Tensor> run_loop(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                             RunnerContext& context) {
  const ir::GraphPtr body = node.attrs.get_graph("body");
  GraphRunner& runner = runner_of(body, cache, context);
  const std::vector<Tensor> outer = captured(node, in);
  base::require(!in[0].defined() || in[0].elements() == 1, "loop: the trip count must be one number");
  const int64_t trips = in[0].defined() ? in[0].to_ints()[0] : INT64_MAX;
  bool go_on = !in[1].defined() || truth(in[1]);
  std::vector<Tensor> carried(in.begin() + 2, in.end() - static_cast<int64_t>(outer.size()));
  base::require(body->outputs().size() >= carried.size() + 1, "the loop body yields too few values");
  // Stacking copies the results once more.
  KeptRounds scanned(body->outputs().size() - 1 - carried.size(), context.compile.memory_bytes / 2);
  for (int64_t i = 0; i < trips && go_on; ++i) {
    std::vector<Tensor> args{Tensor::scalar<int64_t>(i), Tensor::scalar<bool>(true)};
    args.insert(args.end(), carried.begin(), carried.end());
    args.insert(args.end(), outer.begin(), outer.end());
    std::vector<Tensor> out = runner.run(args);
    go_on = truth(out[0]);
    for (size_t c = 0; c < carried.size(); ++c) carried[c] = std::move(out[1 + c]);
    for (size_t s = 0; s < scanned.lists(); ++s) scanned.keep(s, std::move(out[1 + carried.size() + s]));
  }
  std::vector<Tensor> results = std::move(carried);
  const size_t first = body->outputs().size() - scanned.lists();
  for (size_t s = 0; s < scanned.lists(); ++s) {
    results.push_back(stack(scanned.of(s), 0, body->type(body->outputs()[first + s])));
    scanned.of(s).clear();
  }
  return results;
}

int64_t at_or(const std::vector<int64_t>& list, size_t i, int64_t fallback) {
  return i < list.size() ? list[i] : fallback;
}

std::vector<Tensor> run_scan(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                             RunnerContext& context) {
  const ir::GraphPtr body = node.attrs.get_graph("body");
  GraphRunner& runner = runner_of(body, cache, context);
  const std::vector<Tensor> outer = captured(node, in);
  const size_t scans =
      static_cast<size_t>(node.attrs.need_int("num_scan_inputs"));  // checked by the type rule
  const size_t states = in.size() - outer.size() - scans;
  std::vector<Tensor> carried(in.begin(), in.begin() + static_cast<int64_t>(states));
  const std::vector<int64_t> in_axes = node.attrs.get_ints("scan_input_axes");
  const std::vector<int64_t> in_reversed = node.attrs.get_ints("scan_input_directions");
  const std::vector<int64_t> out_axes = node.attrs.get_ints("scan_output_axes");
  const std::vector<int64_t> out_reversed = node.attrs.get_ints("scan_output_directions");
  const auto axis_of = [&](size_t s) { return ir::normal_axis(at_or(in_axes, s, 0), in[states + s].rank()); };
  const int64_t length = in[states].dims()[axis_of(0)];
  base::require(body->outputs().size() >= states, "the scan body yields too few values");
  KeptRounds scanned(body->outputs().size() - states, context.compile.memory_bytes / 2);
  for (int64_t i = 0; i < length; ++i) {
    std::vector<Tensor> args = carried;
    for (size_t s = 0; s < scans; ++s) {
      const size_t axis = axis_of(s);
      base::require(in[states + s].dims()[axis] == length, "scan inputs differ in length");
      args.push_back(slice(in[states + s], axis, at_or(in_reversed, s, 0) ? length - 1 - i : i));
    }
    args.insert(args.end(), outer.begin(), outer.end());
    std::vector<Tensor> out = runner.run(args);
    for (size_t c = 0; c < states; ++c) carried[c] = std::move(out[c]);
    for (size_t s = 0; s < scanned.lists(); ++s) scanned.keep(s, std::move(out[states + s]));
  }
  std::vector<Tensor> results = std::move(carried);
  for (size_t s = 0; s < scanned.lists(); ++s) {
    const tensor::TensorType& like = body->type(body->outputs()[states + s]);
    std::vector<Tensor>& rounds = scanned.of(s);
    if (at_or(out_reversed, s, 0)) std::reverse(rounds.begin(), rounds.end());
    const size_t rank = rounds.empty() ? like.shape.dims().size() + 1 : rounds[0].rank() + 1;
    results.push_back(stack(rounds, ir::normal_axis(at_or(out_axes, s, 0), rank), like));
    rounds.clear();
  }
  return results;
}

}  // namespace

std::vector<Tensor> run_control(const ir::Node& node, const std::vector<Tensor>& in, SubgraphCache& cache,
                                RunnerContext& context) {
  if (node.op_name() == "if") return run_if(node, in, cache, context);
  if (node.op_name() == "loop") return run_loop(node, in, cache, context);
  if (node.op_name() == "scan") return run_scan(node, in, cache, context);
  base::fail_unsupported("control operator '", node.op_name(), "'");
}

}  // namespace trireme::engine
