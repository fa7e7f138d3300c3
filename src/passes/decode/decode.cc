// Rewrites attention over sequences as attention over cached pages; positions become an operand.
#include "passes/decode/decode.h"

#include <algorithm>

#include "ops/attention/attention_plan.h"
#include "ops/attention/paged.h"
#include "ops/random/sample_tokens.h"
#include "ops/table.h"
#include "passes/independence/independence.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::NodeId;
using ir::ValueId;
using tensor::Dim;
using tensor::DType;
using tensor::Shape;

class DecodeRewriter {
 public:
  DecodeRewriter(const ir::Graph& graph, const DecodeOptions& options)
      : form_{.graph = graph, .layers = {}, .adapters = {}, .options = options}, rw_(form_.graph) {}

  DecodeGraph run() {
    take_inputs();
    const size_t attentions = rw_.for_each("attention_bsnd", [&](NodeId, const Node& node) {
      attend(node);
      return true;
    });
    if (attentions == 0) base::fail_unsupported("decoding of a graph without causal attention");
    rw_.for_each("rotary_embedding", [&](NodeId id, const Node& node) { return rotate(id, node); });
    rw_.for_each("slice", [&](NodeId, const Node& node) { return place(node); });
    keep_last();
    graph().sort();
    check_tokens();
    graph().infer_all();
    finish();
    return std::move(form_);
  }

 private:
  ir::Graph& graph() { return form_.graph; }

  void take_inputs() {
    base::require(graph().inputs().size() == 1 && graph().outputs().size() == 1,
                  "decoding takes a graph of token ids to logits, this one has ", graph().inputs().size(),
                  " inputs and ", graph().outputs().size(), " outputs");
    ids_ = graph().inputs()[0];
    base::require(graph().type(ids_).dtype == DType::i64 && graph().type(ids_).shape.rank() == 2,
                  "decoding takes token ids i64 [batch, seq], input '", graph().value(ids_).name, "' is ",
                  graph().type(ids_).to_string());
    const Dim tokens = Dim::symbol("tokens"), sequences = Dim::symbol("sequences");
    graph().value(ids_).type.shape = Shape{Dim(1), tokens};
    positions_ = graph().add_input("positions", {DType::i64, Shape{Dim(1), tokens}});
    slots_ = graph().add_input("slots", {DType::i32, Shape{tokens}});
    // The second extent of the page table is known once all tables are found; finish() sets it.
    table_ = graph().add_input("table", {DType::i32, Shape{sequences, Dim::symbol("pages")}});
    lengths_ = graph().add_input("lengths", {DType::i32, Shape{sequences}});
    starts_ = graph().add_input("starts", {DType::i32, Shape{Dim::symbol("starts")}});
    graph().add_input("last", {DType::i64, Shape{sequences}});
  }

  /// Extent `dim` of an operand of attention; the numbers of heads and channels are always known.
  int64_t extent(const Node& node, size_t operand, size_t dim) {
    const Shape& shape = graph().type(node.in[operand]).shape;
    if (!shape.has_rank() || shape.rank() != 4 || !shape[dim].is_static())
      base::fail_unsupported("decoding of attention '", node.from, "' over ", shape.to_string());
    return shape[dim].value();
  }

  /// [.., heads, dim] as [.., heads * dim]: the operand of the reshape that split it, or a new reshape.
  ValueId flat(const Node& node, size_t operand) {
    const int64_t channels = extent(node, operand, 2) * extent(node, operand, 3);
    if (const auto split = rw_.producer(node.in[operand], "reshape")) {
      const Shape& shape = graph().type(split->in[0]).shape;
      if (shape.has_rank() && shape.rank() == 3 && shape[2] == Dim(channels)) return split->in[0];
    }
    return reshape(node.in[operand], {0, 0, channels}, node.from);
  }

  ValueId reshape(ValueId x, const std::vector<int64_t>& to, const std::string& from) {
    const auto shape = tensor::Tensor::from<int64_t>({static_cast<int64_t>(to.size())}, std::span(to));
    return rw_.add("reshape", {x, rw_.constant(shape)}, {}, from);
  }

  void attend(const Node& node) {
    if (node.attrs.get_int("is_causal", 0) == 0)
      base::fail_unsupported("decoding of attention '", node.from, "', which sees later tokens");
    if (node.in.size() > 3 && node.in[3] != ir::kNoValue)
      base::fail_unsupported("decoding of attention '", node.from, "' with a mask of its own");
    const int64_t heads = extent(node, 0, 2), kv_heads = extent(node, 1, 2), dim = extent(node, 1, 3);
    if (extent(node, 2, 3) != dim || extent(node, 0, 3) != dim)
      base::fail_unsupported("decoding of attention '", node.from, "' whose values have another width");
    const size_t layer = form_.layers.size();
    form_.layers.push_back({kv_heads, dim, layer});
    const tensor::TensorType pages{form_.options.page_type,
                                   Shape::of({form_.options.pages, kv_heads, form_.options.page_tokens,
                                              ops::row_elements(form_.options.page_type, dim)})};
    const ValueId keys = graph().add_state(key_pages(layer), pages);
    const ValueId values = graph().add_state(value_pages(layer), pages);
    const ValueId q = flat(node, 0), k = flat(node, 1), v = flat(node, 2);
    const auto now = graph().add(*append_, {k, v, keys, values, slots_}, {}, 2, node.from);
    ir::Attrs attrs;
    for (const char* name : {"scale", "softcap", "left_window_size"}) {
      if (const auto* value = node.attrs.find(name)) attrs.set(name, *value);
    }
    std::vector<ValueId> in{q, now[0], now[1], table_, lengths_, starts_};
    if (node.in.size() > ops::kBsndSinks) in.push_back(node.in[ops::kBsndSinks]);
    const ValueId y = rw_.add("paged_attention", in, attrs, node.from);
    graph().replace_uses(node.out[0], reshape(y, {0, 0, heads, dim}, node.from));
  }

  void limit_positions(int64_t rows) {
    form_.positions = form_.positions == 0 ? rows : std::min(form_.positions, rows);
  }

  bool rotate(NodeId id, const Node& node) {
    const Shape& table = graph().type(node.in[1]).shape;
    if (node.in.size() < 4 || node.in[3] == ir::kNoValue || !rw_.is_weight(node.in[1]))
      base::fail_unsupported("decoding of rotary positions '", node.from, "' that are not looked up");
    limit_positions(table[0].value());
    graph().set_operand(id, 3, positions_);
    return true;
  }

  /// A slice of consecutive rows of a table of positions becomes a lookup with the positions operand.
  bool place(const Node& node) {
    if (!rw_.is_weight(node.in[0])) return false;
    const tensor::Dims table = *rw_.weight_dims(node.in[0]);
    const Shape& rows = graph().type(node.out[0]).shape;
    const auto begin = rw_.ints(node.in[1]);
    if (table.size() != 2 || !rows.has_rank() || rows[0].is_static() || !begin || begin->size() != 1 ||
        begin->front() < 0 || begin->front() >= table[0])
      return false;
    const int64_t first = begin->front();
    limit_positions(table[0] - first);
    ValueId at = positions_;
    if (first > 0) at = rw_.add("add", {at, rw_.constant(tensor::Tensor::scalar(first))}, {}, node.from);
    const ValueId y = rw_.add("gather", {node.in[0], at}, {{"axis", int64_t{0}}}, node.from);
    graph().replace_uses(node.out[0], y);
    return true;
  }

  /// How values depend on an index over these inputs. Pages written and read by attention belong to a token's
  /// own sequence by construction, so they count as independent.
  std::vector<IndexUse> follow(const std::vector<std::pair<DecodeInput, size_t>>& indexed, bool by_token) {
    IndexedInputs in;
    for (const ValueId id : graph().inputs()) {
      in.shapes.emplace_back();
      for (const Dim& d : graph().type(id).shape.dims())
        in.shapes.back().push_back(d.is_static() ? d.value() : 1);
      in.dims.emplace_back();
    }
    in.shapes[kDecodeStarts] = {2};  // for one sequence
    for (const auto& [input, dim] : indexed) in.dims[input] = dim;
    for (const Node& node : graph().nodes()) {
      if (node.op == append_) in.given[node.out[0]] = in.given[node.out[1]] = {};
      if (node.op != attention_) continue;
      const size_t tokens = graph().type(node.out[0]).shape.rank() - 2;
      in.given[node.out[0]] = by_token ? IndexUse{IndexUse::Kind::along, {tokens}} : IndexUse{};
    }
    return follow_index(graph(), in);
  }

  static constexpr std::pair<DecodeInput, size_t> kTokens[] = {
      {kDecodeIds, 1}, {kDecodePositions, 1}, {kDecodeSlots, 0}};

  /// The only operand of `node` that is not a weight, if there is exactly one and the node treats each token
  /// independently of the number of tokens; else kNoValue.
  ValueId only_operand(const Node& node, const std::vector<IndexUse>& uses) {
    const bool has_extents = node.op->schema.is_view || node.op->schema.shape_operand.has_value();
    if (has_extents || node.out.size() != 1 || node.op == attention_) return ir::kNoValue;
    ValueId found = ir::kNoValue;
    for (ValueId id : node.in) {
      if (id == ir::kNoValue || rw_.is_weight(id)) continue;
      if (found != ir::kNoValue) return ir::kNoValue;
      found = id;
    }
    const bool by_token = found != ir::kNoValue && uses[ir::index(found)].is_along(1);
    return by_token && uses[ir::index(node.out[0])].is_along(1) ? found : ir::kNoValue;
  }

  /// After the last value where tokens or branches meet, the graph continues with only the last token of each
  /// sequence.
  void keep_last() {
    graph().sort();
    const std::vector<IndexUse> by_token = follow({std::begin(kTokens), std::end(kTokens)}, true);
    const ValueId logits = graph().outputs()[0], last = graph().inputs()[kDecodeLast];
    ValueId at = logits;
    std::vector<NodeId> tail;
    const auto uses = graph().uses();
    for (const Node* node; (node = graph().producer(at)) != nullptr;) {
      const ValueId before = only_operand(*node, by_token);
      if (before == ir::kNoValue || (at != logits && uses[ir::index(at)].size() > 1)) break;
      tail.push_back(graph().value(at).producer);
      at = before;
    }
    check(by_token[ir::index(at)], 1);
    const ValueId rows = rw_.add("gather", {at, last}, {{"axis", int64_t{1}}}, "last_tokens");
    if (tail.empty()) return graph().set_outputs({rows}, {"logits"});
    const Node first = graph().node(tail.back());
    for (size_t i = 0; i < first.in.size(); ++i) {
      if (first.in[i] == at) graph().set_operand(tail.back(), i, rows);
    }
    graph().set_outputs({logits}, {"logits"});
  }

  static void check(const IndexUse& use, size_t dim) {
    if (!use.is_along(dim))
      base::fail_unsupported("decoding of a graph that does not treat tokens one by one: ",
                             use.why.empty() ? "a value does not hold them" : use.why);
  }

  /// Throws unless the pages take keys and values per token, attention takes queries per token, and a
  /// sequence's logits follow from its last token.
  void check_tokens() {
    const std::vector<IndexUse> by_token = follow({std::begin(kTokens), std::end(kTokens)}, true);
    for (const Node& node : graph().nodes()) {
      const size_t operands = node.op == append_ ? 2 : node.op == attention_ ? 1 : 0;
      for (size_t i = 0; i < operands; ++i)
        check(by_token[ir::index(node.in[i])], graph().type(node.in[i]).shape.rank() - 2);
    }
    check(follow({{kDecodeLast, 0}}, false)[ir::index(graph().outputs()[0])], 1);
  }

  void finish() {
    DecodeOptions& o = form_.options;
    if (o.most_pages == 0) {
      base::require(form_.positions > 0, "the model limits no sequence, so say how many pages one may have");
      o.most_pages = (form_.positions + o.page_tokens - 1) / o.page_tokens;
    }
    graph().value(graph().inputs()[kDecodeTable]).type.shape =
        Shape{Dim::symbol("sequences"), Dim(o.most_pages)};
    const Shape& logits = graph().type(graph().outputs()[0]).shape;
    base::require(
        logits.rank() == 3 && logits[2].is_static() && graph().type(graph().outputs()[0]).dtype == DType::f32,
        "decoding gives logits f32 [batch, seq, vocabulary], this graph ",
        graph().type(graph().outputs()[0]).to_string());
    form_.vocabulary = logits[2].value();
    graph().infer_all();
  }

  DecodeGraph form_;
  Rewriter rw_;
  const ir::OpDef* append_ = &ops::table().need("kv_append");
  const ir::OpDef* attention_ = &ops::table().need("paged_attention");
  ValueId ids_, positions_, slots_, table_, lengths_, starts_;
};

}  // namespace

std::string key_pages(size_t layer) { return base::concat("cache.", layer, ".keys"); }
std::string value_pages(size_t layer) { return base::concat("cache.", layer, ".values"); }

DecodeGraph decode_form(const ir::Graph& graph, const DecodeOptions& options) {
  base::require(options.pages > 0 && options.page_tokens > 0, "a pool of ", options.pages, " pages of ",
                options.page_tokens, " tokens");
  ir::Graph sorted = graph;
  sorted.sort();
  return DecodeRewriter(sorted, options).run();
}

std::vector<size_t> inputs_of(DecodeResult result, bool has_adapters) {
  std::vector<size_t> inputs;
  for (size_t i = 0; i < kDecodeInputs; ++i) {
    if (i != kDecodeAdapters || has_adapters) inputs.push_back(i);
  }
  if (result == DecodeResult::logits) return inputs;
  inputs.insert(inputs.end(), {kDrawChosen, kDrawFrom, kDrawSettings, kDrawCounters});
  if (includes(result, DecodeResult::penalized)) inputs.push_back(kDrawPlaces);
  if (includes(result, DecodeResult::edited))
    inputs.insert(inputs.end(), {kDrawAllowed, kDrawBiasIds, kDrawBiases});
  if (includes(result, DecodeResult::listed)) inputs.push_back(kDrawWanted);
  return inputs;
}

namespace {

/// Logits [sequences, vocabulary] plus biases, with minus infinity for tokens that are not allowed.
ValueId edit(ir::Graph& graph, ValueId logits, Dim sequences, int64_t vocabulary) {
  const ValueId allowed =
      graph.add_input("allowed", {DType::i32, Shape{sequences, Dim((vocabulary + 31) / 32)}});
  const ValueId ids = graph.add_input("bias_ids", {DType::i32, Shape{sequences, Dim(kMostBiases)}});
  const ValueId biases = graph.add_input("biases", {DType::f32, Shape{sequences, Dim(kMostBiases)}});
  return graph.add(ops::table().need("edit_logits"), {logits, allowed, ids, biases}, {}, 1, "draw")[0];
}

/// The `count` most likely tokens of logits [sequences, vocabulary], the logarithms of their probabilities,
/// and of those of the tokens `wanted` [sequences, 1].
std::vector<ValueId> list(Rewriter& rw, ir::Graph& graph, ValueId logits, Dim sequences, int64_t count) {
  const ValueId wanted = graph.add_input("wanted", {DType::i64, Shape{sequences, Dim(1)}});
  const std::vector<int64_t> counts{count};
  const ValueId k = rw.constant(tensor::Tensor::from<int64_t>({1}, std::span(counts)));
  const ValueId logs = rw.add("log_softmax", {logits}, {{"axis", int64_t{-1}}}, "draw");
  const std::vector<ValueId> best = graph.add(ops::table().need("top_k"), {logs, k}, {}, 2, "draw");
  return {best[1], best[0], rw.add("gather_elements", {logs, wanted}, {{"axis", int64_t{1}}}, "draw")};
}

/// Replaces input ids by the tokens drawn in the previous step where `from` says so.
void take_chosen(ir::Graph& graph, int64_t most_sequences) {
  const ValueId ids = graph.inputs()[kDecodeIds];
  const ValueId chosen = graph.add_input("chosen", {DType::i64, Shape{Dim(most_sequences)}});
  const ValueId from = graph.add_input("from", {DType::i32, Shape{graph.type(ids).shape[1]}});
  const ValueId taken = Rewriter(graph).add("take_tokens", {ids, chosen, from}, {}, "take_tokens");
  const ir::NodeId taker = graph.value(taken).producer;
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    const auto id = ir::NodeId(static_cast<uint32_t>(n));
    for (size_t i = 0; id != taker && i < graph.node(id).in.size(); ++i) {
      if (graph.node(id).op != nullptr && graph.node(id).in[i] == ids) graph.set_operand(id, i, taken);
    }
  }
}

/// Draws tokens instead of returning logits. `places`: the rows of the table of seen tokens.
void draw(ir::Graph& graph, const DecodeGraph& form, DecodeResult result, int64_t places) {
  const ValueId logits = graph.outputs()[0];
  const Dim sequences = Dim::symbol("sequences");
  const bool has_penalties = includes(result, DecodeResult::penalized);
  const ValueId settings = graph.add_input(
      "settings",
      {DType::f32, Shape{sequences, Dim(has_penalties ? ops::kSampleSettings : ops::kPlainSettings)}});
  const ValueId counters = graph.add_input("counters", {DType::i64, Shape{sequences, Dim(2)}});
  Rewriter rw(graph);
  const std::vector<int64_t> rows{-1, form.vocabulary};
  const ValueId shape = rw.constant(tensor::Tensor::from<int64_t>({2}, std::span(rows)));
  std::vector<ValueId> in{rw.add("reshape", {logits, shape}, {}, "draw"), settings, counters};
  if (has_penalties) {
    in.push_back(graph.add_state(kSeenTokens, {DType::i32, Shape::of({places, form.vocabulary})}));
    in.push_back(graph.add_input("places", {DType::i32, Shape{sequences}}));
  }
  if (includes(result, DecodeResult::edited)) in[0] = edit(graph, in[0], sequences, form.vocabulary);
  std::vector<ValueId> drawn = graph.add(ops::table().need("sample_tokens"), in, {}, 2, "draw");
  if (has_penalties) graph.add(ops::table().need("count_tokens"), {in[3], in[4], drawn[0]}, {}, 1, "draw");
  std::vector<std::string> names{"tokens", "log_probabilities"};
  if (includes(result, DecodeResult::listed)) {
    const std::vector<ValueId> listed = list(rw, graph, in[0], sequences, listed_tokens(form));
    drawn.insert(drawn.end(), listed.begin(), listed.end());
    names.insert(names.end(), {"likeliest", "likeliest_logarithms", "wanted_logarithms"});
  }
  graph.set_outputs(drawn, names);
}

}  // namespace

ir::Graph draw_form(const DecodeGraph& form, DecodeResult result, int64_t most_sequences, int64_t places) {
  ir::Graph graph = form.graph;
  if (form.takes_tokens()) take_chosen(graph, most_sequences);
  if (form.draws()) draw(graph, form, result, places);
  graph.sort();
  graph.infer_all();
  return graph;
}

size_t operand_called(std::string_view name) {
  static constexpr std::pair<std::string_view, size_t> kNames[] = {
      {"positions", kDecodePositions}, {"slots", kDecodeSlots},     {"table", kDecodeTable},
      {"lengths", kDecodeLengths},     {"starts", kDecodeStarts},   {"last", kDecodeLast},
      {"adapters", kDecodeAdapters},   {"chosen", kDrawChosen},     {"from", kDrawFrom},
      {"settings", kDrawSettings},     {"counters", kDrawCounters}, {"places", kDrawPlaces},
      {"allowed", kDrawAllowed},       {"bias_ids", kDrawBiasIds},  {"biases", kDrawBiases},
      {"wanted", kDrawWanted}};
  for (const auto& [known, operand] : kNames) {
    if (known == name) return operand;
  }
  base::fail(base::ErrorCode::internal, "a step of decoding has no operand '", name, "'");
}

void set_pages(DecodeGraph& form, int64_t pages) {
  form.options.pages = pages;
  for (size_t i = 0; i < form.graph.values().size(); ++i) {
    ir::Value& v = form.graph.value(ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::state || !v.name.starts_with("cache.")) continue;
    tensor::Dims dims = v.type.shape.to_dims();
    dims[0] = pages;
    v.type.shape = Shape::of(dims);
  }
  form.graph.infer_all();
}

}  // namespace trireme::passes
