// Lowers a bucket's graph so that products have 16-bit operands.
#include "lower/low_precision.h"

#include <algorithm>
#include <map>

#include "lower/rounded_weights.h"
#include "ops/table.h"
#include "passes/precision/casts.h"
#include "passes/precision/float8.h"
#include "tensor/absent.h"
#include "tensor/repeated.h"
#include "tensor/rounded.h"

namespace trireme::lower {
namespace {

using tensor::Tensor;

using Results = std::vector<Tensor>;

/// The weight in the cast's type, shared by programs for as long as one of them reads it. For a weight with a
/// repeated block only the block is rounded.
Tensor rounded(const ir::Node& cast, tensor::DType to, const Tensor& weight, base::SharedCache& packs,
               bool later) {
  const std::string format = base::concat("rounded ", tensor::name_of(to));
  const auto shared = [&](const Tensor& from, const std::function<Tensor()>& make) {
    // The cache holds the owner of the memory itself, from whose type its kind is recognized.
    const auto bytes = packs.get<std::byte>(ir::pack_key(from, format), [&make] { return make().owner(); });
    const auto count = static_cast<size_t>(tensor::bytes_of(to, from.elements()));
    return Tensor::view(to, from.dims(), {bytes.get(), count}, bytes);
  };
  const auto round = [&](const Tensor& from) {
    base::ThreadPool pool(1);
    return ops::evaluate(*cast.op, cast.attrs, {from}, 1, pool)[0];
  };
  const tensor::Repetition large = tensor::repetition_of(weight);
  if (!large.block.defined())
    return shared(weight, [&] { return later ? tensor::rounded_later(weight, to) : round(weight); });
  const Tensor block = shared(large.block, [&] { return round(large.block); });
  return shared(weight, [&] { return tensor::repeated(block, large.first, weight.dims()); });
}

/// Computes the content of a weight whose rounding was deferred, once for all programs that share it.
void fill(const Tensor& weight, base::SharedCache& packs) {
  packs.get<std::byte>(ir::pack_key(weight, "filled"), [&] {
    base::ThreadPool pool(1);
    const Tensor source = tensor::source_of(weight);
    const ir::Attrs to{{"to", int64_t{16}}};  // bf16
    tensor::fill_rounded(weight, ops::evaluate(ops::table().need("cast"), to, {source}, 1, pool)[0]);
    return weight.owner();
  });
}

/// True if the kernel packs the operand from its unrounded source, and does not read it later.
bool packs_source(const ir::Graph& graph, const ir::Node& node, size_t operand) {
  const ir::Kernel* kernel = ops::choose_kernel(*node.op, graph.view(node), tensor::DeviceKind::cpu);
  return kernel != nullptr && operand < 32 && (kernel->packs_source >> operand & 1u) != 0;
}

/// Computes the content of deferred weights that a kernel reads, or packs from rounded values.
void fill_what_is_read(const ir::Graph& graph, base::SharedCache& packs) {
  for (const ir::Node& node : graph.nodes()) {
    for (size_t i = 0; node.op != nullptr && i < node.in.size(); ++i) {
      const Tensor* weight = node.in[i] == ir::kNoValue ? nullptr : graph.known(node.in[i]);
      if (weight == nullptr || !tensor::source_of(*weight).defined()) continue;
      if (!packs_source(graph, node, i)) fill(*weight, packs);
    }
  }
  for (const ir::ValueId id : graph.outputs()) {
    const Tensor* weight = graph.known(id);
    if (weight != nullptr && tensor::source_of(*weight).defined()) fill(*weight, packs);
  }
}

/// Computes casts and quantizations of weights in advance, once for all graphs that share `packs`.
class WeightFolder {
 public:
  /// `later`: defers rounding to bf16 for weights that only linear products read, until a reader needs it.
  WeightFolder(ir::Graph& graph, base::SharedCache& packs, bool later)
      : graph_(graph), packs_(packs), uses_(graph.uses()), later_(later) {}

  void run() {
    const size_t count = graph_.nodes().size();
    for (size_t n = 0; n < count; ++n) {
      const auto id = ir::NodeId(static_cast<uint32_t>(n));
      const ir::Node node = graph_.node(id);
      if (node.op == nullptr || is_folded(id)) continue;
      for (size_t i = 0; i < node.in.size(); ++i) {
        const ir::Node* made = node.in[i] == ir::kNoValue ? nullptr : graph_.producer(node.in[i]);
        if (made != nullptr && is_folded(graph_.value(node.in[i]).producer))
          graph_.set_operand(id, i, constant(node.in[i]));
      }
    }
    graph_.sort();
  }

 private:
  /// True for a cast or a quantizer, whose result is smaller than the weight.
  bool is_of_weights(const ir::Node& node) const {
    const std::string_view op = node.op_name();
    if (op == "cast") return graph_.type(node.in[0]).dtype == tensor::DType::f32;
    return op == "float8_rows" || op == "float8_columns" || op == "float8_values";
  }

  /// The only weight that a value depends on, or null; `recipe` receives the ops that compute it.
  const Tensor* root(ir::ValueId id, std::string& recipe) const {
    const Tensor* known = graph_.known(id);
    if (known != nullptr) return tensor::is_float(known->dtype()) && known->elements() > 0 ? known : nullptr;
    const ir::Node* node = graph_.producer(id);
    if (node == nullptr || !is_of_weights(*node)) return nullptr;
    const Tensor* all = nullptr;
    for (ir::ValueId in : node->in) {
      const Tensor* one = root(in, recipe);
      if (one == nullptr || (all != nullptr && one != all)) return nullptr;
      all = one;
    }
    recipe += base::concat(" ", node->op_name(), node->attrs.to_string());
    return all;
  }
  bool is_folded(ir::NodeId id) const {
    std::string recipe;
    const ir::Node& node = graph_.node(id);
    return is_of_weights(node) && root(node.out[0], recipe) != nullptr;
  }

  /// The results of a node whose operands are weights or computed from one.
  Results results(const ir::Node& node, base::ThreadPool& pool) const {
    std::vector<Tensor> in;
    std::map<ir::NodeId, Results> made;
    for (ir::ValueId id : node.in) {
      if (const Tensor* known = graph_.known(id)) {
        in.push_back(*known);
        continue;
      }
      const ir::Value& v = graph_.value(id);
      Results& all = made[v.producer];
      if (all.empty()) all = results(graph_.node(v.producer), pool);
      in.push_back(all[v.producer_index]);
    }
    return ops::evaluate(*node.op, node.attrs, in, node.out.size(), pool);
  }

  bool is_of_products(ir::ValueId id) const {
    const std::vector<ir::NodeId>& readers = uses_[ir::index(id)];
    return std::all_of(readers.begin(), readers.end(), [&](ir::NodeId reader) {
      const ir::Node& node = graph_.node(reader);
      return node.op_name() == "linear" && node.in[1] == id;
    });
  }

  /// The computed constant, which lives as long as a program reads it.
  ir::ValueId constant(ir::ValueId id) {
    ir::ValueId& made = constants_.try_emplace(id, ir::kNoValue).first->second;
    if (made != ir::kNoValue) return made;
    std::string recipe;
    const Tensor* weight = root(id, recipe);
    const ir::Value value = graph_.value(id);
    const ir::Node node = graph_.node(value.producer);
    if (node.op_name() == "cast" && graph_.known(node.in[0]) == weight) {
      const bool waits = later_ && value.type.dtype == tensor::DType::bf16 && is_of_products(id);
      Tensor small = rounded(node, value.type.dtype, *weight, packs_, waits);
      // The program for another size may have deferred it.
      if (!waits && tensor::source_of(small).defined()) fill(small, packs_);
      return made = graph_.add_constant(std::move(small), value.name);
    }
    const auto shared = packs_.get<Results>(ir::pack_key(*weight, recipe), [&] {
      base::ThreadPool pool(1);
      return std::make_shared<const Results>(results(node, pool));
    });
    const Tensor& own = (*shared)[value.producer_index];
    if (tensor::is_absent(own)) return made = graph_.add_constant(own, value.name);
    const std::span<const std::byte> bytes(own.raw(), static_cast<size_t>(own.bytes()));
    return made = graph_.add_constant(Tensor::view(own.dtype(), own.dims(), bytes, shared), value.name);
  }

  ir::Graph& graph_;
  base::SharedCache& packs_;
  std::vector<std::vector<ir::NodeId>> uses_;  // before the changes
  bool later_;
  std::map<ir::ValueId, ir::ValueId> constants_;
};

}  // namespace

void lower_for_inference(ir::Graph& graph, const passes::PrecisionOptions& precision,
                         tensor::DeviceKind device, base::SharedCache& packs) {
  if (precision.compute == passes::Precision::f32) return;
  passes::lower_precision(graph, precision);
  graph.sort();
  if (precision.compute == passes::Precision::fp8) passes::lower_float8(graph, device);
  const bool is_later = device == tensor::DeviceKind::cpu && precision.compute == passes::Precision::bf16;
  WeightFolder(graph, packs, is_later).run();
  passes::widen_unsupported(graph, device);
  passes::localise_casts(graph);
  passes::absorb_casts(graph, device);
  graph.sort();
  if (is_later) fill_what_is_read(graph, packs);
}

void fill_read_weights(const compile::Program& program, base::SharedCache& packs) {
  for (const compile::Slot& slot : program.slots) {
    const bool is_read = slot.kind == compile::SlotKind::constant && !slot.unread;
    if (is_read && tensor::source_of(slot.constant).defined()) fill(slot.constant, packs);
  }
}

}  // namespace trireme::lower
