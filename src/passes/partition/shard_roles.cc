// Derives from a model's structure how to split its weights: walks back from attention, products and losses
// to the products that feed them.
#include "passes/partition/shard_roles.h"

#include <algorithm>
#include <optional>
#include <set>

#include "ops/experts/experts.h"
#include "passes/name_match.h"
#include "passes/partition/vocab_parallel.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;

bool is_elementwise(const Node& node) { return ir::is_elementwise(node.op->schema); }

/// True for ops that move elements regardless of their values, or rotate them within their heads.
bool is_move(const Node& node) {
  return node.op->schema.is_rearrangement || node.op_name() == "rotary_embedding";
}

/// Whether operand i provides elements that the op moves; other operands are extents or angles.
bool is_moved(const Node& node, size_t i) {
  const uint32_t moves = node.op->schema.moves;
  return moves == 0 ? i == 0 : i >= 32 || (moves >> i & 1u) != 0;
}

/// A product of activations with a weight.
struct Product {
  ValueId x = ir::kNoValue, weight = ir::kNoValue, bias = ir::kNoValue, y = ir::kNoValue;
  size_t in_dim = 0, out_dim = 0;  ///< dimensions of the weight
  std::string from;
  int64_t blocks = 0;                  ///< for stored weights: groups along a row; 0 for plain weights
  std::vector<ValueId> beside = {};    ///< scales and zero points [rows, groups] of stored weights
  int sections = 1;                    ///< matrices of experts, stacked along the rows
  int64_t units = 1;                   ///< rows that must stay together; 1 for single rows
  ValueId expert_bias = ir::kNoValue;  ///< [experts, n]
  int64_t experts = 0;                 ///< of a product over experts
  bool sums_choices = false;           ///< the last product of a mixture
};

/// The products of a graph and the connections between them.
class Structure {
 public:
  explicit Structure(const ir::Graph& graph) : graph_(graph), uses_(graph.uses()) {
    for (const Node& node : graph.nodes()) {
      const std::optional<Product> p = product_of(node);
      if (!p) continue;
      at_[index(node.out[0])] = products_.size();
      products_.push_back(*p);
    }
  }

  const std::vector<Product>& products() const { return products_; }
  /// The number of channels of x that the product sums over.
  int64_t depth(const Product& p) const {
    if (p.blocks == 0) return extent(p.weight, p.in_dim);
    const tensor::Dim& d = graph_.type(p.x).shape.dims().back();
    return d.is_static() ? d.value() : 0;
  }
  int64_t extent(ValueId id, size_t dim) const {
    const tensor::Dim& d = graph_.type(id).shape[dim];
    return d.is_static() ? d.value() : 0;
  }
  bool is_weight(ValueId id) const {
    const ir::ValueKind kind = graph_.value(id).kind;
    return kind == ir::ValueKind::param || kind == ir::ValueKind::state;
  }

  /// The products from which elementwise ops, and moves of elements if `moves`, compute a value.
  struct Sources {
    std::set<size_t> products;
    std::vector<ValueId> vectors;  ///< one-dimensional weights on the way: biases
    std::string through;           ///< the last op other than an addition or a cast
    bool only_products = true;     ///< no other values of the model are involved
  };
  Sources sources(ValueId id, bool moves) const {
    Sources s;
    std::set<ValueId> seen;
    walk_back(id, moves, s, seen);
    return s;
  }

  /// The products that read a value through elementwise ops and moves.
  std::set<size_t> sinks(ValueId id) const {
    std::set<size_t> found;
    std::set<ValueId> seen;
    walk_on(id, found, seen);
    return found;
  }

  /// Vectors that are added to a product's result: its bias, at any place.
  std::vector<ValueId> biases_of(const Product& p) const {
    std::vector<ValueId> found;
    if (p.bias != ir::kNoValue) found.push_back(p.bias);
    for (ir::NodeId reader : uses_[index(p.y)]) {
      const Node& node = graph_.node(reader);
      for (ValueId id : node.in) {
        const ValueId vector = node.op_name() == "add" ? vector_of(id) : ir::kNoValue;
        if (vector != ir::kNoValue) found.push_back(vector);
      }
    }
    return found;
  }

 private:
  /// A product whose weight is stored as rows.
  std::optional<Product> stored_product(const Node& node) const {
    if (!is_weight(node.in[1]) || graph_.type(node.in[1]).shape.rank() != 2) return std::nullopt;
    const ir::CutRule rule = node.op->schema.cut(graph_.view(node));
    Product p{.x = node.in[0], .weight = node.in[1], .y = node.out[0], .in_dim = 1, .out_dim = 0};
    p.from = node.from;
    p.blocks = rule.units.at(0).units;
    for (size_t i = 2; i < node.in.size(); ++i) {
      const ValueId id = node.in[i];
      if (id == ir::kNoValue) continue;
      if (graph_.type(id).shape.rank() == 1) {
        p.bias = vector_of(id);
      } else if (!is_weight(id)) {
        return std::nullopt;
      } else {
        p.beside.push_back(id);
      }
    }
    return p;
  }

  /// A product over experts, all of whose matrices are cut alike.
  std::optional<Product> experts_product(const Node& node, const ops::ExpertPlaces& at) const {
    const ValueId weight = node.in[ops::kExWeights];
    if (!is_weight(weight)) return std::nullopt;
    const bool is_stored = graph_.type(weight).shape.rank() == 2;
    Product p{.x = node.in[ops::kExX], .weight = weight, .y = node.out[0], .in_dim = 2, .out_dim = 1};
    p.from = node.from;
    p.experts = is_stored ? node.attrs.get_int("experts", 1) : extent(weight, 0);
    p.sums_choices = at.shares < node.in.size();
    if (at.bias < node.in.size() && node.in[at.bias] != ir::kNoValue) {
      p.expert_bias = node.in[at.bias];
      if (!is_weight(p.expert_bias)) return std::nullopt;
    }
    if (!is_stored) return p;
    p.in_dim = 1;
    p.out_dim = 0;
    p.sections = static_cast<int>(node.attrs.get_int("experts", 1));
    const ir::CutRule rule = node.op->schema.cut(graph_.view(node));
    p.blocks = rule.units.at(0).units;
    if (rule.units.size() > 1) p.units = rule.units[1].units;
    for (size_t i = ops::kExWeights + 1; i < at.bias; ++i) {
      if (node.in.size() <= i || node.in[i] == ir::kNoValue) continue;
      if (!is_weight(node.in[i])) return std::nullopt;
      p.beside.push_back(node.in[i]);
    }
    return p;
  }

  std::optional<Product> product_of(const Node& node) const {
    const std::string_view op = node.op_name();
    if (const ops::ExpertPlaces* at = ops::expert_places(node.op->schema)) return experts_product(node, *at);
    if (op == "block_linear" || op == "weight_only_linear") return stored_product(node);
    if (op != "linear" && op != "matmul" && op != "gemm") return std::nullopt;
    if (!graph_.type(node.in[1]).shape.has_rank() || graph_.type(node.in[1]).shape.rank() != 2)
      return std::nullopt;
    if (node.attrs.get_int("transA", 0) != 0) return std::nullopt;
    const bool transposed = node.attrs.get_int("transposed", 0) != 0 || node.attrs.get_int("transB", 0) != 0;
    const ValueDim out = root_of_dim(graph_, node.in[1], transposed ? 0 : 1);
    const ValueDim in = root_of_dim(graph_, node.in[1], transposed ? 1 : 0);
    if (out.value == ir::kNoValue || out.value != in.value || !is_weight(out.value)) return std::nullopt;
    Product p{.x = node.in[0], .weight = out.value, .y = node.out[0], .in_dim = in.dim, .out_dim = out.dim};
    p.from = node.from;
    if (op != "matmul" && node.in.size() > 2 && node.in[2] != ir::kNoValue) p.bias = vector_of(node.in[2]);
    return p;
  }

  /// The one-dimensional weight that `id` is, or is a cast of.
  ValueId vector_of(ValueId id) const {
    const tensor::Shape& shape = graph_.type(id).shape;
    if (!shape.has_rank() || shape.rank() != 1) return ir::kNoValue;
    const ValueDim root = root_of_dim(graph_, id, 0);
    return root.value != ir::kNoValue && is_weight(root.value) ? root.value : ir::kNoValue;
  }

  void walk_back(ValueId id, bool moves, Sources& s, std::set<ValueId>& seen) const {
    if (id == ir::kNoValue || !seen.insert(id).second) return;
    if (const auto product = at_.find(index(id)); product != at_.end()) {
      s.products.insert(product->second);
      const Product& p = products_[product->second];
      if (p.bias != ir::kNoValue) s.vectors.push_back(p.bias);
      return;
    }
    const Node* node = graph_.producer(id);
    if (const ValueId vector = vector_of(id); vector != ir::kNoValue)
      return void(s.vectors.push_back(vector));
    if (node == nullptr) {
      s.only_products &= graph_.value(id).kind != ir::ValueKind::input;
      return;
    }
    if (!is_elementwise(*node) && !(moves && is_move(*node))) {
      s.only_products = false;
      return;
    }
    const std::string_view op = node->op_name();
    if (s.through.empty() && op != "add" && op != "cast") s.through = op;
    for (size_t i = 0; i < node->in.size(); ++i) {
      if (!is_move(*node) || is_moved(*node, i)) walk_back(node->in[i], moves, s, seen);
    }
  }

  void walk_on(ValueId id, std::set<size_t>& found, std::set<ValueId>& seen) const {
    if (!seen.insert(id).second) return;
    for (ir::NodeId reader : uses_[index(id)]) {
      const Node& node = graph_.node(reader);
      const auto product = node.out.empty() ? at_.end() : at_.find(index(node.out[0]));
      if (product != at_.end()) {
        if (products_[product->second].x == id) found.insert(product->second);
        continue;
      }
      const bool passes = is_elementwise(node) || is_move(node);
      for (ValueId out : node.out) {
        if (passes && out != ir::kNoValue) walk_on(out, found, seen);
      }
    }
  }

  const ir::Graph& graph_;
  std::vector<std::vector<ir::NodeId>> uses_;
  std::vector<Product> products_;
  std::map<size_t, size_t> at_;  ///< index of a product by its result
};

/// q, k, v of an attention node (one operand if packed), the numbers of heads, and the result.
struct Attention {
  std::vector<ValueId> in;
  ValueId y;
  int64_t heads = 0, kv_heads = 0;
  int64_t head_dim = 0, value_dim = 0;  ///< 0: unknown

  /// The number of heads in the product before operand i, which is `width` wide: fewer if each is repeated
  /// later.
  int64_t heads_in(size_t i, int64_t width) const {
    const int64_t all = i == 0 ? heads : kv_heads, channels = i == 2 ? value_dim : head_dim;
    const bool is_repeated = i > 0 && channels > 0 && width % channels == 0 && width < all * channels;
    return is_repeated ? width / channels : all;
  }
};

std::optional<Attention> attention_of(const ir::Graph& graph, const Node& node) {
  const std::string_view op = node.op_name();
  const auto extent = [&](size_t operand, size_t dim) {
    const tensor::Shape& s = graph.type(node.in[operand]).shape;
    return s.has_rank() && s[dim].is_static() ? s[dim].value() : 0;
  };
  if (op == "attention_qkv") {
    const int64_t heads = node.attrs.get_int("heads", 0), kv = node.attrs.get_int("kv_heads", 0);
    return Attention{{node.in[0]}, node.out[0], heads, kv == 0 ? heads : kv};
  }
  const bool flat = op == "attention" && graph.type(node.in[0]).shape.rank() == 3;
  if (op != "attention_bsnd" && op != "attention") return std::nullopt;
  Attention a{{node.in[0], node.in[1], node.in[2]}, node.out[0]};
  const size_t dim = op == "attention" ? 1 : 2;
  a.heads = flat ? node.attrs.get_int("q_num_heads", 0) : extent(0, dim);
  a.kv_heads = flat ? node.attrs.get_int("kv_num_heads", 0) : extent(1, dim);
  if (a.heads == 0 || a.kv_heads == 0) return std::nullopt;
  a.head_dim = flat ? extent(1, 2) / a.kv_heads : extent(1, 3);
  a.value_dim = flat ? extent(2, 2) / a.kv_heads : extent(2, 3);
  return a;
}

/// Finds the weights to split.
class Finder {
 public:
  Finder(const ir::Graph& graph, std::span<const std::string_view> vocabularies, bool whole_experts)
      : graph_(graph), structure_(graph), vocabularies_(vocabularies), whole_experts_(whole_experts) {}

  std::map<std::string, WeightSplit> run() {
    find_vocabulary();
    for (const Node& node : graph_.nodes()) {
      if (const auto a = attention_of(graph_, node)) find_attention(*a);
    }
    for (size_t i = 0; whole_experts_ && i < structure_.products().size(); ++i) find_mixture(i);
    for (size_t i = 0; i < structure_.products().size(); ++i) find_pair(i);
    find_small_heads();
    return std::move(found_);
  }

 private:
  const std::string& name(ValueId id) const { return graph_.value(id).name; }
  bool is_free(size_t product) const { return !found_.contains(name(structure_.products()[product].weight)); }

  void columns(size_t product, WeightSplit split) {
    const Product& p = structure_.products()[product];
    split.dim = p.out_dim;
    if (p.sections > 1) split.sections = p.sections;
    if (p.units > 1) split.units = p.units;
    place(p, split);
    if (p.expert_bias == ir::kNoValue) return;
    split.dim = 1;
    split.sections = 1;
    found_.emplace(name(p.expert_bias), split);
  }
  /// Records the split of a weight and of its scales and zero points.
  void place(const Product& p, const WeightSplit& split) {
    found_.emplace(name(p.weight), split);
    for (ValueId id : p.beside) found_.emplace(name(id), split);
  }
  void biases(const std::vector<ValueId>& vectors, WeightSplit split, int64_t extent) {
    split.dim = 0;
    for (ValueId id : vectors) {
      if (structure_.extent(id, 0) == extent) found_.emplace(name(id), split);
    }
  }
  void rows(size_t product, size_t group, const std::string& why, int64_t units = 1) {
    const Product& p = structure_.products()[product];
    place(p, {.role = WeightRole::rows,
              .dim = p.in_dim,
              .units = units,
              .group = group,
              .blocks = p.blocks,
              .why = why});
  }

  /// The head before a loss over many classes, and the table that it shares, or that is indexed by the
  /// inputs.
  void find_vocabulary() {
    for (const Node& node : graph_.nodes()) {
      if (node.op_name() != "gather" || node.attrs.get_int("axis", 0) != 0) continue;
      const ValueDim root = root_of_dim(graph_, node.in[0], 0);
      if (root.value == ir::kNoValue || !structure_.is_weight(root.value) || root.dim != 0) continue;
      if (graph_.type(root.value).shape.rank() == 2) tables_.insert(root.value);
    }
    for (const ValueDim& head : heads()) {
      if (is_many(head)) add_head(head, WeightRole::vocabulary, "scores of the vocabulary");
    }
    for (ValueId table : tables_) {
      const int64_t rows = structure_.extent(table, 0);
      if (rows < kManyRows && !is_vocabulary(table)) continue;
      found_.emplace(name(table), WeightSplit{.role = WeightRole::vocabulary,
                                              .group = ++groups_,
                                              .why = "embeddings of the vocabulary"});
    }
  }

  bool is_vocabulary(ValueId id) const {
    return std::any_of(vocabularies_.begin(), vocabularies_.end(),
                       [&](std::string_view pattern) { return name_matches(pattern, name(id)); });
  }

  bool is_many(const ValueDim& head) const {
    return tables_.contains(head.value) || is_vocabulary(head.value) ||
           structure_.extent(head.value, head.dim) >= kManyRows;
  }

  /// The weights whose products are scored by a loss or are outputs of the graph.
  std::vector<ValueDim> heads() const {
    std::vector<ValueDim> found;
    const auto add = [&](ValueId scores) {
      const tensor::Shape& shape = graph_.type(scores).shape;
      if (!shape.has_rank() || shape.rank() < 2) return;
      const ValueDim root = root_of_dim(graph_, scores, shape.rank() - 1);
      if (root.value != ir::kNoValue && structure_.is_weight(root.value) &&
          graph_.type(root.value).shape.rank() == 2)
        found.push_back(root);
    };
    for (const Node& node : graph_.nodes()) {
      if (node.op_name() == "cross_entropy") add(node.in[0]);
    }
    for (ValueId id : graph_.outputs()) add(id);
    return found;
  }

  void add_head(const ValueDim& head, WeightRole role, const std::string& why) {
    const WeightSplit split{.role = role, .dim = head.dim, .group = ++groups_, .why = why};
    if (!found_.emplace(name(head.value), split).second) return;
    for (size_t i = 0; i < structure_.products().size(); ++i) {
      const Product& p = structure_.products()[i];
      if (p.weight != head.value || p.out_dim != head.dim) continue;
      biases(structure_.biases_of(p), split, structure_.extent(head.value, head.dim));
    }
  }

  void find_small_heads() {
    for (const ValueDim& head : heads()) add_head(head, WeightRole::classes, "scores of the classes");
  }

  void find_attention(const Attention& a) {
    std::vector<Structure::Sources> from;
    for (ValueId id : a.in) from.push_back(structure_.sources(id, true));
    const auto to = structure_.sinks(a.y);
    if (to.size() != 1) return;
    for (const auto& s : from) {
      if (s.products.size() != 1 || !is_free(*s.products.begin())) return;
    }
    if (!is_free(*to.begin())) return;
    const size_t group = ++groups_;
    const bool is_packed = from.size() == 1 || from[0].products == from[1].products;
    if (is_packed) {
      if (!find_packed(a, from, group)) return;
    } else {
      if (from[1].products == from[2].products) return;
      const char* const kWhat[] = {"queries", "keys", "values"};
      for (size_t i = 0; i < 3; ++i) {
        const size_t product = *from[i].products.begin();
        const int64_t heads = a.heads_in(i, width(product));
        const WeightSplit split{.role = WeightRole::columns,
                                .units = heads,
                                .has_key_heads = i > 0,
                                .group = group,
                                .why = base::concat(kWhat[i], " of ", heads, " heads")};
        columns(product, split);
        biases(from[i].vectors, split, width(product));
      }
    }
    rows(*to.begin(), group, base::concat("after ", a.heads, " heads"), a.heads);
  }

  int64_t width(size_t product) const {
    const Product& p = structure_.products()[product];
    return structure_.extent(p.weight, p.out_dim) / p.sections;
  }

  /// One product for queries, keys and values, in three consecutive sections or interleaved by head.
  bool find_packed(const Attention& a, const std::vector<Structure::Sources>& from, size_t group) {
    const size_t product = *from[0].products.begin();
    if (a.heads != a.kv_heads || width(product) % (3 * a.heads) != 0) return false;
    if (from.size() == 3 && from[2].products != from[0].products) return false;
    const bool by_head = from.size() == 3 && !is_cut_whole(structure_.products()[product].y);
    const WeightSplit split{.role = WeightRole::columns,
                            .sections = by_head ? 1 : 3,
                            .units = a.heads,
                            .group = group,
                            .why = base::concat("queries, keys and values of ", a.heads, " heads")};
    columns(product, split);
    biases(from[0].vectors, split, width(product));
    return true;
  }

  /// Whether a split or slices cut the last dimension of a product's result before it is divided into heads.
  bool is_cut_whole(ValueId y) const {
    const tensor::Dim& last = graph_.type(y).shape.dims().back();
    std::vector<ValueId> next{y};
    for (size_t i = 0; i < next.size() && i < 8; ++i) {
      for (const Node& node : graph_.nodes()) {
        if (std::find(node.in.begin(), node.in.end(), next[i]) == node.in.end()) continue;
        const bool same = graph_.type(next[i]).shape.dims().back() == last;
        if (same && (node.op_name() == "split" || node.op_name() == "slice")) return true;
        if (is_elementwise(node)) next.push_back(node.out[0]);
      }
    }
    return false;
  }

  /// The products of a mixture, from the one that sums over choices back: whole experts.
  void find_mixture(size_t product) {
    const Product& last = structure_.products()[product];
    if (!last.sums_choices || !is_free(product)) return;
    const auto s = structure_.sources(last.x, false);
    if (s.products.empty() || !s.only_products) return;
    for (size_t i : s.products) {
      if (!is_free(i) || structure_.products()[i].experts != last.experts) return;
    }
    const WeightSplit split{.role = WeightRole::experts,
                            .units = last.experts,
                            .group = ++groups_,
                            .why = base::concat("whole experts of ", last.experts)};
    const auto place_all = [&](const Product& p) {
      place(p, split);
      if (p.expert_bias != ir::kNoValue) found_.emplace(name(p.expert_bias), split);
    };
    for (size_t i : s.products) place_all(structure_.products()[i]);
    place_all(last);
  }

  /// Products whose results are combined elementwise into the operand of one product.
  void find_pair(size_t product) {
    const auto s = structure_.sources(structure_.products()[product].x, false);
    if (!is_free(product) || s.products.empty() || !s.only_products) return;
    const int64_t inner = structure_.depth(structure_.products()[product]);
    for (size_t i : s.products) {
      if (!is_free(i) || width(i) != inner) return;
    }
    const size_t group = ++groups_;
    const WeightSplit split{.role = WeightRole::columns,
                            .group = group,
                            .why = s.through.empty() ? "before a product" : "before " + s.through};
    for (size_t i : s.products) columns(i, split);
    biases(s.vectors, split, inner);
    rows(product, group, s.through.empty() ? "after a product" : "after " + s.through);
  }

  static constexpr int64_t kManyRows = 1024;  // smaller tables or heads are not worth splitting on their own

  const ir::Graph& graph_;
  Structure structure_;
  std::span<const std::string_view> vocabularies_;
  bool whole_experts_;
  std::set<ValueId> tables_;
  std::map<std::string, WeightSplit> found_;
  size_t groups_ = 0;
};

}  // namespace

std::vector<HeadCounts> attention_heads(const ir::Graph& graph) {
  std::vector<HeadCounts> found;
  const Structure structure(graph);
  for (const Node& node : graph.nodes()) {
    const auto a = attention_of(graph, node);
    if (!a) continue;
    int64_t kv_heads = a->kv_heads;
    for (size_t i = 1; i < a->in.size(); ++i) {
      const auto products = structure.sources(a->in[i], true).products;
      if (products.size() != 1) continue;
      const Product& p = structure.products()[*products.begin()];
      kv_heads = std::min(kv_heads, a->heads_in(i, structure.extent(p.weight, p.out_dim)));
    }
    found.push_back({a->heads, kv_heads, node.from});
  }
  return found;
}

std::map<std::string, WeightSplit> find_splits(const ir::Graph& graph,
                                               std::span<const std::string_view> vocabularies,
                                               bool whole_experts) {
  return Finder(graph, vocabularies, whole_experts).run();
}

}  // namespace trireme::passes
