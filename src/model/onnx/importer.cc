// The main pass of an ONNX import: inputs, initializers, nodes, functions, outputs.
#include "model/onnx/importer.h"

#include <algorithm>
#include <unordered_set>

#include "model/onnx/import.h"

namespace trireme::model::onnx {

using ir::ValueId;
using tensor::Dim;
using tensor::Shape;
using tensor::Tensor;
using tensor::TensorType;

namespace {

constexpr int kMaxCallDepth = 32;  // nesting of function calls and of bodies
constexpr int64_t kMaxNodes = 1 << 20;
/// Functions that call each other twice grow as 2^depth: calls may make this many nodes for each of the
/// file's.
constexpr int64_t kFreeNodes = 1 << 16, kNodesPerNode = 64;
constexpr std::string_view kDefaultDomain = "ai.onnx";

std::string_view normal_domain(std::string_view domain) { return domain == kDefaultDomain ? "" : domain; }

std::string function_key(std::string_view domain, std::string_view name, std::string_view overload) {
  return base::concat(normal_domain(domain), "\n", name, "\n", overload);
}

/// A name, shortened to a length that fits a message.
std::string_view shown(std::string_view name) { return name.substr(0, 120); }

std::string node_label(const NodeProto& node, const Scope& scope) {
  std::string_view own = node.name;
  if (own.empty()) {
    for (std::string_view out : node.output) {
      if (own.empty()) own = out;
    }
  }
  return base::concat(scope.prefix, own.empty() ? shown(node.op_type) : shown(own));
}

/// What a copy of a node costs, in nodes: lists of attributes are copied with it.
int64_t copy_cost(const NodeProto& node) {
  constexpr size_t kWordsPerNode = 32;
  size_t words = node.input.size() + node.output.size();
  for (const AttributeProto& a : node.attribute)
    words += 4 + a.ints.size() + a.floats.size() + 4 * a.strings.size() + a.s.size() / 8;
  return 1 + static_cast<int64_t>(words / kWordsPerNode);
}

/// Nodes of the file itself, bodies included; they are as deep as the reader let them be.
int64_t nodes_of(const std::vector<NodeProto>& nodes) {
  auto count = static_cast<int64_t>(nodes.size());
  for (const NodeProto& node : nodes) {
    for (const AttributeProto& a : node.attribute) count += a.g == nullptr ? 0 : nodes_of(a.g->node);
  }
  return count;
}

int64_t most_nodes_of(const ModelProto& proto) {
  int64_t own = nodes_of(proto.graph.node);
  for (const FunctionProto& f : proto.functions) own += nodes_of(f.node);
  return std::min(kMaxNodes, kFreeNodes + kNodesPerNode * own);
}

}  // namespace

tensor::TensorType type_from(const ValueInfoProto& info) {
  const TypeProto& type = info.type;
  if (type.kind != "tensor") {
    base::require(!type.kind.empty(), "value '", shown(info.name), "' has no type");
    base::fail_unsupported("value '", shown(info.name), "' is of type ", type.kind,
                           ", only dense tensors are supported");
  }
  tensor::TensorType out;
  try {
    out.dtype = dtype_from_onnx(type.elem_type);
  } catch (const base::Error& e) {
    throw e.with(base::concat("value '", shown(info.name), "'"));
  }
  if (!type.has_shape) {
    out.shape = Shape::unknown_rank();
    return out;
  }
  base::require(type.dims.size() <= kMaxRank, "value '", shown(info.name), "' has ", type.dims.size(),
                " dimensions");
  std::vector<Dim> dims;
  for (const DimProto& d : type.dims) {
    if (d.value) {
      // Some exporters write -1 for what is not known; ONNX Runtime takes every negative number so.
      dims.push_back(*d.value >= 0 ? Dim(*d.value) : Dim::unknown());
    } else {
      dims.push_back(d.param.empty() ? Dim::unknown() : Dim::symbol(std::string(d.param)));
    }
  }
  out.shape = Shape(std::move(dims));
  if (out.shape.is_static()) tensor::element_count(out.shape.to_dims());  // throws if the count overflows
  return out;
}

Importer::Importer(const ModelProto& proto, TensorSource source, bool takes_strings,
                   const std::vector<std::string>& fed)
    : proto_(proto),
      fed_(fed.begin(), fed.end()),
      contents_(std::move(source)),
      strings_(proto.graph, takes_strings),
      most_nodes_(most_nodes_of(proto)) {
  opsets_ = read_opsets(proto.opset_import);
  // Files older than IR version 3 have no list of opsets; they use opset 1.
  if (proto.ir_version < 3) opsets_.emplace("", 1);
  for (const FunctionProto& f : proto.functions) {
    functions_.emplace(function_key(f.domain, f.name, f.overload), &f);
  }
}

int64_t Importer::default_opset() const {
  const auto at = opsets_.find("");
  return at == opsets_.end() ? 0 : at->second;
}

Opsets Importer::read_opsets(const std::vector<OpsetId>& imports) const {
  Opsets opsets;
  for (const OpsetId& id : imports) {
    const std::string domain(normal_domain(id.domain));
    base::require(id.version >= 1, "opset version ", id.version, " of domain '", shown(id.domain), "'");
    if (domain.empty() && id.version > kNewestOpset) {
      base::fail_unsupported("opset ", id.version, " is newer than ", kNewestOpset, ", the newest supported");
    }
    opsets[domain] = id.version;
  }
  return opsets;
}

ir::Graph Importer::run() {
  ir::Graph graph = import_main();
  graph.sort();
  return graph;
}

ir::Graph Importer::import_main() {
  ir::Graph graph;
  graph.name = std::string(proto_.graph.name);
  Scope scope{.graph = graph, .opsets = opsets_};
  strings_.begin(graph);
  add_initializers(proto_.graph, scope);
  add_inputs(proto_.graph, scope);
  add_nodes(proto_.graph.node, scope);
  for (const ValueInfoProto& info : proto_.graph.output) {
    if (const ValueId id = scope.lookup(info.name); strings_.has(id, graph)) {
      strings_.note_output(info, id);
    } else if (!info.type.kind.empty()) {
      tensor::Shape shape = type_from(info).shape;
      if (id != ir::kNoValue && !graph.type(id).shape.has_rank() && shape.has_rank())
        declared_outputs_.emplace_back(info.name, std::move(shape));
    }
  }
  add_outputs(proto_.graph, scope);
  return graph;
}

void Scope::bind(std::string_view name, ValueId value) {
  base::require(values.emplace(name, value).second, "value '", shown(name), "' is defined twice");
}

ValueId Scope::lookup(std::string_view name) const {
  if (name.empty()) return ir::kNoValue;
  const auto at = values.find(name);
  base::require(at != values.end(), "value '", shown(name), "' is read before any node defines it");
  return at->second;
}

void Importer::add_initializers(const GraphProto& graph, Scope& scope) {
  const auto is_fed = [&](std::string_view name) { return &graph == &proto_.graph && fed_.contains(name); };
  for (const TensorProto& proto : graph.initializer) {
    if (is_fed(proto.name)) continue;
    Tensor t = contents_.tensor(proto);
    const bool is_weight = tensor::is_float(t.dtype()) && t.rank() > 0;
    std::string name(proto.name);
    scope.bind(proto.name, is_weight && scope.keeps_names
                               ? scope.graph.add_param(std::move(name), std::move(t))
                               : scope.graph.add_constant(std::move(t), std::move(name)));
  }
  for (const SparseTensorProto& proto : graph.sparse_initializer) {
    if (is_fed(proto.values.name)) continue;
    scope.bind(proto.values.name,
               scope.graph.add_param(std::string(proto.values.name), contents_.dense(proto)));
  }
}

void Importer::add_inputs(const GraphProto& graph, Scope& scope) {
  for (const ValueInfoProto& info : graph.input) {
    // Initializers, which are constants: see FileInput.
    if (scope.values.contains(info.name)) continue;
    const bool is_text = strings_.is_input(info);
    const TensorType type = type_from(is_text ? strings_.add_input(info) : info);
    const ValueId id = scope.graph.add_input(std::string(info.name), type);
    if (is_text) strings_.bound(id);
    scope.bind(info.name, id);
  }
}

void Importer::add_outputs(const GraphProto& graph, Scope& scope) {
  std::unordered_set<size_t> taken;
  for (const ValueInfoProto& info : graph.output) {
    ValueId id = scope.lookup(info.name);
    base::require(id != ir::kNoValue, "an output has no name");
    const bool is_taken = !taken.insert(ir::index(id)).second;
    // Every output must be a computed value that is no other output.
    if (scope.graph.value(id).kind != ir::ValueKind::computed || is_taken) {
      id = Emitter(scope.graph, base::concat("output ", shown(info.name))).emit("Identity", {id});
    }
    scope.graph.add_output(id, std::string(info.name));
  }
}

void Importer::add_nodes(const std::vector<NodeProto>& nodes, Scope& scope) {
  for (const NodeProto* each : in_order(nodes)) {
    const NodeProto& node = *each;
    node_count_ += scope.call_attrs == nullptr ? 1 : copy_cost(node);
    base::require(node_count_ <= most_nodes_, "the model has more than ", most_nodes_,
                  " nodes, with those that calls of its functions make");
    try {
      add_node(node, scope);
    } catch (const base::Error& e) {
      if (e.message().starts_with("node '")) throw;
      throw e.with(base::concat("node '", node_label(node, scope), "' (", shown(node.op_type), ")"));
    }
  }
}

const FunctionProto* Importer::find_function(const NodeProto& node) const {
  if (functions_.empty()) return nullptr;
  const auto at = functions_.find(function_key(node.domain, node.op_type, node.overload));
  return at == functions_.end() ? nullptr : at->second;
}

void Importer::add_node(const NodeProto& node, Scope& scope) {
  if (const FunctionProto* function = find_function(node)) return inline_call(*function, node, scope);
  if (add_constant_node(node, scope)) return;
  PendingNode pending{.op_type = std::string(node.op_type), .from = node_label(node, scope)};
  for (std::string_view name : node.input) pending.in.push_back(scope.lookup(name));
  while (!pending.in.empty() && pending.in.back() == ir::kNoValue) pending.in.pop_back();
  pending.listed_outputs = node.output.size();
  pending.out_count = pending.listed_outputs;
  while (pending.out_count > 1 && node.output[pending.out_count - 1].empty()) --pending.out_count;
  base::require(pending.out_count > 0, "the node has no output");
  pending.attrs = contents_.attrs(node, scope.call_attrs);
  if (const auto result = strings_.add_cast(node, pending, scope.graph))
    return scope.bind(node.output[0], *result);
  const bool gives_strings = strings_.moves(pending, scope.graph);
  const std::vector<ValueId> results = add_operator(node, std::move(pending), scope);
  for (size_t i = 0; i < results.size(); ++i) {
    const Shape& shape = scope.graph.type(results[i]).shape;
    base::require(shape.dims().size() <= kMaxRank, "the result has ", shape.dims().size(), " dimensions");
    if (gives_strings) strings_.moved(results[i]);
    if (node.output[i].empty()) continue;
    scope.bind(node.output[i], results[i]);
    ir::Value& value = scope.graph.value(results[i]);
    if (scope.keeps_names && value.name.empty()) value.name = std::string(node.output[i]);
  }
}

bool Importer::add_constant_node(const NodeProto& node, Scope& scope) {
  if (node.op_type != "Constant" || (!node.domain.empty() && node.domain != "ai.onnx")) return false;
  base::require(node.output.size() == 1, "a constant has one output");
  std::string name = scope.keeps_names ? std::string(node.output[0]) : std::string();
  scope.bind(node.output[0],
             scope.graph.add_constant(contents_.constant(node, scope.call_attrs), std::move(name)));
  return true;
}

std::vector<ValueId> Importer::add_operator(const NodeProto& node, PendingNode pending, Scope& scope) {
  const std::string_view domain = normal_domain(node.domain);
  if (domain == "ai.onnx.preview" && node.op_type == "FlexAttention")
    return add_flex_attention(node, pending, scope);
  if (!domain.empty()) need_onnx_op(node.op_type, domain);
  const auto opset = scope.opsets.find(domain);
  base::require(opset != scope.opsets.end(), "the model imports no opset of the default domain");
  pending.opset = opset->second;
  if (node.op_type == "If" || node.op_type == "Loop" || node.op_type == "Scan")
    add_bodies(node, pending, scope);
  if (node.op_type == "Unsqueeze" && pending.has_input(1)) {
    const Tensor* axes = scope.graph.known(pending.in[1]);
    base::require(axes == nullptr || axes->elements() <= static_cast<int64_t>(kMaxRank), "too many axes");
  }
  Emitter emitter(scope.graph, pending.from);
  if (auto results = upgrade(emitter, pending)) {
    base::require(results->size() >= pending.out_count, node.op_type, " has only ", results->size(),
                  " outputs");
    results->resize(pending.out_count);
    return *results;
  }
  if (auto results = decompose(emitter, pending)) {
    base::require(results->size() >= pending.out_count, node.op_type, " has only ", results->size(),
                  " outputs");
    results->resize(pending.out_count);
    return *results;
  }
  const ir::OpDef& op = need_onnx_op(pending.op_type);
  // Kernels write every result that the op must have, even if the file does not name it.
  const size_t made = std::max(pending.out_count, op.schema.min_out);
  if (op.schema.is_random) give_seed(op.schema, pending.attrs);
  std::vector<ValueId> results =
      scope.graph.add(op, std::move(pending.in), std::move(pending.attrs), made, pending.from);
  results.resize(pending.out_count);
  return results;
}

void Importer::give_seed(const ir::OpSchema& schema, ir::Attrs& attrs) {
  for (const ir::AttrSpec& spec : schema.attrs) {
    if (spec.name != "seed" || attrs.has("seed")) continue;
    // By the node's place in the file, so that a model draws the same wherever it is loaded; negative, since
    // the seeds that files state seldom are.
    const int64_t seed = -++given_seeds_;
    attrs.set("seed", spec.kind == "float" ? ir::AttrValue(static_cast<double>(seed)) : ir::AttrValue(seed));
  }
}

void Importer::inline_call(const FunctionProto& function, const NodeProto& node, Scope& scope) {
  base::require(++depth_ <= kMaxCallDepth, "functions call each other deeper than ", kMaxCallDepth);
  // A call costs at least its signature, even if its body is empty.
  node_count_ += static_cast<int64_t>(function.input.size() + function.attribute_proto.size() +
                                      function.opset_import.size());
  const Opsets opsets = function.opset_import.empty() ? scope.opsets : read_opsets(function.opset_import);
  CallAttrs attrs;
  for (const AttributeProto& a : function.attribute_proto) attrs[a.name] = &a;
  for (const AttributeProto& a : node.attribute) {
    if (const AttributeProto* given = resolve(a, scope.call_attrs)) attrs[a.name] = given;
  }
  Scope inner{.graph = scope.graph,
              .opsets = opsets,
              .call_attrs = &attrs,
              .keeps_names = false,
              .prefix = node_label(node, scope) + "/"};
  if (inner.prefix.size() > 400) inner.prefix.resize(400);
  base::require(node.input.size() <= function.input.size(), "function '", shown(function.name), "' takes ",
                function.input.size(), " inputs, got ", node.input.size());
  for (size_t i = 0; i < function.input.size(); ++i) {
    inner.bind(function.input[i], i < node.input.size() ? scope.lookup(node.input[i]) : ir::kNoValue);
  }
  add_nodes(function.node, inner);
  base::require(node.output.size() <= function.output.size(), "function '", shown(function.name), "' has ",
                function.output.size(), " outputs, the call wants ", node.output.size());
  for (size_t i = 0; i < node.output.size(); ++i) {
    if (!node.output[i].empty()) scope.bind(node.output[i], inner.lookup(function.output[i]));
  }
  --depth_;
}

}  // namespace trireme::model::onnx
