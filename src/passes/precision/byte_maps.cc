// Replaces functions of one quantized tensor by tables of 256 entries.
#include "passes/precision/byte_maps.h"

#include <algorithm>
#include <map>

#include "ops/table.h"
#include "passes/precision/narrow_types.h"
#include "passes/rewriter.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

constexpr size_t kMostNodes = 32;  // of one function

/// A quantize or dequantize node with constant parameters of one element.
bool has_one_scale(const Rewriter& rw, const Node& node) {
  for (size_t i = 1; i < node.in.size(); ++i) {
    if (node.in[i] == ir::kNoValue) continue;
    if (rw.known(node.in[i]) == nullptr || rw.known(node.in[i])->elements() != 1) return false;
  }
  return node.attrs.get_int("block_size", 0) == 0;
}

/// Whether a node computes its result element by element.
bool is_function(const Rewriter& rw, const Node& node) {
  if (node.op == nullptr || node.out.size() != 1) return false;
  if (node.op_name() == "dequantize_linear" || node.op_name() == "quantize_linear")
    return has_one_scale(rw, node);
  const ir::OpSchema& schema = node.op->schema;
  return ir::is_elementwise(schema) && !schema.is_random && !schema.is_control;
}

/// Computed 8-bit values from which `id` may follow, nearest first.
std::vector<ValueId> sources_of(const Rewriter& rw, ValueId id) {
  std::vector<ValueId> walk{id}, found;
  for (size_t i = 0; i < walk.size() && walk.size() <= kMostNodes; ++i) {
    const bool is_result = i == 0;
    if (!is_result && is_8_bit(rw.graph().type(walk[i]).dtype)) found.push_back(walk[i]);
    const Node* node = rw.graph().producer(walk[i]);
    if (node == nullptr || !is_function(rw, *node)) continue;
    for (ValueId in : node->in) {
      const bool is_new = std::find(walk.begin(), walk.end(), in) == walk.end();
      if (in != ir::kNoValue && rw.known(in) == nullptr && is_new) walk.push_back(in);
    }
  }
  return found;
}

/// The nodes between an 8-bit value and a result, and their result for every byte.
class ByteFunction {
 public:
  ByteFunction(const Rewriter& rw, ValueId source, base::ThreadPool& pool)
      : rw_(rw), pool_(pool), source_(source) {}

  /// Whether `id` is computed from the source and from constants of one element only.
  bool gather(ValueId id) {
    if (id == ir::kNoValue || id == source_ || done_.contains(id)) return true;
    if (const Tensor* constant = rw_.known(id)) {
      done_[id] = *constant;
      return constant->elements() == 1;
    }
    const Node* node = rw_.graph().producer(id);
    if (node == nullptr || !is_function(rw_, *node) || nodes_.size() == kMostNodes) return false;
    for (ValueId in : node->in) {
      if (!gather(in)) return false;
    }
    nodes_.push_back(*node);
    done_[id] = Tensor();
    return true;
  }

  size_t size() const { return nodes_.size(); }

  /// Every intermediate value has the shape of the source, or one element.
  bool keeps_shape() const {
    const tensor::Shape& shape = rw_.graph().type(source_).shape;
    if (!shape.has_rank() || shape.rank() == 0) return false;
    for (const Node& node : nodes_) {
      const tensor::Shape& own = rw_.graph().type(node.out[0]).shape;
      if (!(own == shape) && own.elements() != 1) return false;
    }
    return rw_.graph().type(nodes_.back().out[0]).shape == shape;
  }

  /// The bytes of the last result for source bytes 0 to 255; nullopt if a node cannot run.
  std::optional<std::vector<int64_t>> table() {
    Tensor bytes = Tensor::empty(rw_.graph().type(source_).dtype, {256});
    for (int i = 0; i < 256; ++i)
      reinterpret_cast<uint8_t*>(bytes.mutable_raw())[i] = static_cast<uint8_t>(i);
    done_[source_] = bytes;
    for (const Node& node : nodes_) {
      std::vector<Tensor> in;
      for (ValueId id : node.in) in.push_back(id == ir::kNoValue ? Tensor() : done_.at(id));
      try {
        done_[node.out[0]] = ops::evaluate(*node.op, node.attrs, in, 1, pool_)[0];
      } catch (const base::Error&) {
        return std::nullopt;  // remains a node; the compiler reports why it cannot run
      }
    }
    const Tensor& last = done_.at(nodes_.back().out[0]);
    if (last.elements() != 256 || tensor::is_absent(last)) return std::nullopt;
    const uint8_t* entries = reinterpret_cast<const uint8_t*>(last.raw());
    return std::vector<int64_t>(entries, entries + 256);
  }

 private:
  const Rewriter& rw_;
  base::ThreadPool& pool_;
  ValueId source_;
  std::vector<Node> nodes_;         // in an order of execution
  std::map<ValueId, Tensor> done_;  // by value; undefined until computed
};

bool is_identity(const std::vector<int64_t>& table) {
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

bool convert_from(Rewriter& rw, const Node& node, ValueId x, base::ThreadPool& pool) {
  ByteFunction function(rw, x, pool);
  if (!function.gather(node.out[0]) || function.size() < 2 || !function.keeps_shape()) return false;
  const auto table = function.table();
  if (!table) return false;
  const DType type = rw.graph().type(node.out[0]).dtype;
  if (is_identity(*table) && rw.graph().type(x).dtype == type) {
    rw.replace(node.out[0], x);
    return true;
  }
  const ir::Attrs attrs{{"table", *table}, {"is_signed", int64_t{type == DType::i8}}};
  rw.replace(node.out[0], rw.add("byte_map", {x}, attrs, node.from));
  return true;
}

/// The farthest value that alone determines the result removes the most nodes.
bool convert(Rewriter& rw, const Node& node, base::ThreadPool& pool) {
  const bool is_8_bit_result = is_8_bit(rw.graph().type(node.out[0]).dtype);
  if (rw.uses(node.out[0]) == 0 || !is_8_bit_result || !has_one_scale(rw, node)) return false;
  const std::vector<ValueId> sources = sources_of(rw, node.out[0]);
  return std::any_of(sources.rbegin(), sources.rend(),
                     [&](ValueId x) { return convert_from(rw, node, x, pool); });
}

}  // namespace

size_t use_byte_maps(ir::Graph& graph) {
  Rewriter rw(graph);
  base::ThreadPool pool(1);
  return rw.for_each("quantize_linear",
                     [&](ir::NodeId, const Node& node) { return convert(rw, node, pool); });
}

}  // namespace trireme::passes
