// Constant matrices under products become weights of 8 or 4 bits.
#include "passes/precision/weights.h"

#include <cstdio>
#include <map>
#include <optional>

#include "ops/dense/activation.h"
#include "ops/weight_only/weight_only.h"
#include "ops/table.h"
#include "passes/rewriter.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

/// A product x W + bias, and what follows it.
struct Product {
  ValueId x, w, bias = ir::kNoValue, residual = ir::kNoValue;
  bool by_rows = false;  ///< W is [n, k]
  ops::ActivationSpec act;
};

ValueId operand(const Node& node, size_t i) { return i < node.in.size() ? node.in[i] : ir::kNoValue; }

/// The node as a product of rows by a matrix; nullopt if it is none or scales its operands.
std::optional<Product> product_of(Rewriter& rw, const Node& node) {
  const auto flag = [&](const char* name) { return node.attrs.get_int(name, 0) != 0; };
  if (node.op_name() == "matmul") return Product{.x = node.in[0], .w = node.in[1]};
  if (node.op_name() == "linear") {
    return Product{.x = node.in[0],
                   .w = node.in[1],
                   .bias = operand(node, 2),
                   .residual = operand(node, 3),
                   .by_rows = flag("transposed"),
                   .act = ops::activation_of(node.attrs)};
  }
  if (node.op_name() != "gemm" || flag("transA") || node.attrs.get_float("alpha", 1) != 1)
    return std::nullopt;
  Product p{.x = node.in[0], .w = node.in[1], .bias = operand(node, 2), .by_rows = flag("transB")};
  if (p.bias == ir::kNoValue) return p;
  const auto bias = rw.weight_dims(p.bias);
  const auto w = rw.weight_dims(p.w);
  if (!bias || !w || node.attrs.get_float("beta", 1) != 1) return std::nullopt;
  const int64_t n = (*w)[p.by_rows ? 0 : 1];
  if (tensor::element_count(*bias) != n || bias->back() != n) return std::nullopt;
  if (bias->size() > 1) p.bias = rw.reshaped_weight(p.bias, {n}, node.from);
  return p;
}

std::vector<float> floats_of(const Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.elements()));
  tensor::visit_dtype(t.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto* from = reinterpret_cast<const T*>(t.raw());
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(from[i]);
  });
  return out;
}

bool holds_floats(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

/// The stored matrix of a value as operands 1 to 3 of the product.
struct Stored {
  ValueId w, scale, zero = ir::kNoValue;
  WeightRow row;
};

class Storing {
 public:
  Storing(ir::Graph& graph, const WeightOptions& options, StoredWeightCache* cache)
      : rw_(graph), options_(options), cache_(cache) {
    form_ = {.bits = options.weights == WeightBits::int4 ? 4 : 8,
             .group = options.weight_group,
             .asymmetric = options.weight_zeros};
    if (ir::Refusal no = ops::refuse_weight_form(form_, form_.group)) base::fail_invalid("weights: ", *no);
  }

  WeightReport run() {
    rw_.for_each([&](ir::NodeId, const Node& node) { return visit(node); });
    rw_.graph().sort();
    return std::move(report_);
  }

 private:
  bool visit(const Node& node) {
    const std::optional<Product> p = product_of(rw_, node);
    if (!p) return false;
    const Tensor* w = rw_.known(p->w);
    if (w == nullptr || w->rank() != 2 || !holds_floats(w->dtype())) return false;
    WeightRow row = row_of(node, *p, *w);
    if (row.why.empty()) replace(node, *p, row);
    report_.rows.push_back(row);
    return row.why.empty();
  }

  WeightRow row_of(const Node& node, const Product& p, const Tensor& w) const {
    WeightRow row{.from = node.from.empty() ? rw_.graph().value(node.out[0]).name : node.from,
                  .n = w.dims()[p.by_rows ? 0 : 1],
                  .k = w.dims()[p.by_rows ? 1 : 0],
                  .bytes_before = w.bytes(),
                  .bytes_after = w.bytes()};
    const DType x = rw_.graph().type(p.x).dtype;
    if (w.elements() < options_.least_elements) {
      row.why = "few weights";
    } else if (!holds_floats(x)) {
      row.why = base::concat("its rows are ", name_of(x));
    } else if (ir::Refusal no = ops::refuse_weight_form(form_, row.k)) {
      row.why = *no;
    }
    return row;
  }

  void replace(const Node& node, const Product& p, WeightRow& row) {
    const Stored& s = stored(p, row);
    row.bytes_after = s.row.bytes_after;
    row.relative = s.row.relative;
    row.largest = s.row.largest;
    std::vector<ValueId> in{p.x, s.w, s.scale, s.zero, p.bias};
    while (in.back() == ir::kNoValue) in.pop_back();
    ValueId y =
        rw_.add("weight_only_linear", in, {{"bits", int64_t{form_.bits}}, {"group", form_.group}}, node.from);
    if (p.residual != ir::kNoValue || p.act.kind != ops::ActivationKind::none)
      y = ops::expand_finish(rw_.graph(), y, p.residual, p.act);
    rw_.replace(node.out[0], y);
  }

  /// Weights that several layers share are stored once.
  const Stored& stored(const Product& p, const WeightRow& row) {
    const auto [at, is_new] = stored_.try_emplace({p.w, p.by_rows});
    if (!is_new) return at->second;
    const auto [made, error] = made_of(*rw_.known(p.w), p.by_rows, row);
    Stored& s = at->second;
    s.row.bytes_after = made.w.bytes() + made.scale.bytes() + (made.zero.defined() ? made.zero.bytes() : 0);
    s.row.relative = error.relative;
    s.row.largest = error.largest;
    s.w = rw_.constant(made.w);
    s.scale = rw_.constant(made.scale);
    if (made.zero.defined()) s.zero = rw_.constant(made.zero);
    return s;
  }

  std::pair<ops::StoredWeights, ops::WeightError> made_of(const Tensor& w, bool by_rows,
                                                          const WeightRow& row) const {
    const std::pair<const std::byte*, bool> key(w.raw(), by_rows);
    if (cache_ != nullptr && cache_->entries.contains(key)) {
      const StoredWeightCache::Entry& entry = cache_->entries.at(key);
      return {entry.made, entry.error};
    }
    const std::vector<float> values = floats_of(w);
    ops::WeightError error;
    const ops::StoredWeights made = ops::store_weights({values.data(), row.n, row.k, by_rows}, form_, error);
    if (cache_ != nullptr) cache_->entries.emplace(key, StoredWeightCache::Entry{w, made, error});
    return {made, error};
  }

  Rewriter rw_;
  const WeightOptions& options_;
  StoredWeightCache* cache_;
  ops::WeightForm form_;
  std::map<std::pair<ValueId, bool>, Stored> stored_;
  WeightReport report_;
};

}  // namespace

void WeightOptions::fields(base::OptionList& f) {
  f.add_choice("weights", &weights, {"f32", "int8", "int4"},
               "how matrices under products are stored; f32: as the model has them");
  f.add("weight_group", &weight_group, "weights that share a scale: 32, 64 or 128");
  f.add("weight_zeros", &weight_zeros, "a zero point for each group of weights beside the scale");
}

size_t WeightReport::stored() const {
  size_t count = 0;
  for (const WeightRow& row : rows) count += row.why.empty();
  return count;
}

std::string WeightReport::text() const {
  std::string out;
  int64_t before = 0, after = 0;
  char line[256];
  for (const WeightRow& row : rows) {
    before += row.bytes_before;
    after += row.bytes_after;
    if (row.why.empty()) {
      std::snprintf(line, sizeof line, "  [%lld, %lld] error %.4f, largest %.3g, %.3f of the bytes  ",
                    static_cast<long long>(row.n), static_cast<long long>(row.k), row.relative, row.largest,
                    static_cast<double>(row.bytes_after) / static_cast<double>(row.bytes_before));
      out += line + row.from + "\n";
    } else {
      out += base::concat("  [", row.n, ", ", row.k, "] stays: ", row.why, "  ", row.from, "\n");
    }
  }
  std::snprintf(line, sizeof line, "%zu of %zu matrices stored, %.1f MiB instead of %.1f\n", stored(),
                rows.size(), static_cast<double>(after) / (1 << 20), static_cast<double>(before) / (1 << 20));
  return out + line;
}

WeightReport store_weights(ir::Graph& graph, const WeightOptions& options, StoredWeightCache* cache) {
  return Storing(graph, options, cache).run();
}

}  // namespace trireme::passes
