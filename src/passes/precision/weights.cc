// Converts constant matrices of products to weights of 8 or 4 bits, or to a block format.
#include "passes/precision/weights.h"

#include <cstdio>
#include <map>
#include <optional>

#include "ops/experts/experts.h"
#include "ops/stored_weights.h"
#include "ops/table.h"
#include "ops/weight_only/weight_only.h"
#include "passes/precision/block_weights.h"
#include "passes/precision/blocks.h"
#include "passes/precision/matrix_product.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using ir::Node;
using ir::ValueId;
using tensor::DType;
using tensor::Tensor;

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

/// The stored matrix of a value, as operands 1 to 3 of the product.
struct StoredMatrix {
  ValueId w = ir::kNoValue, scale = ir::kNoValue, zero = ir::kNoValue;
  WeightRow row;
};

class Storing {
 public:
  Storing(ir::Graph& graph, const WeightOptions& options, StoredWeightCache* cache)
      : rw_(graph), options_(options), blocks_(options.blocks()), cache_(cache) {
    form_ = {.bits = options.weights == WeightBits::int4 ? 4 : 8,
             .group = options.weight_group,
             .asymmetric = options.weight_zeros};
    if (blocks_ != nullptr || options.weights == WeightBits::f32) return;
    if (ir::Refusal no = ops::refuse_weight_form(form_, form_.group)) base::fail_invalid("weights: ", *no);
  }

  WeightReport run() {
    rw_.for_each([&](ir::NodeId id, const Node& node) { return visit(id, node); });
    rw_.graph().sort();
    share_packed_blocks(rw_.graph());
    return std::move(report_);
  }

 private:
  bool visit(ir::NodeId id, const Node& node) {
    if (ops::reads_stored_weights(node.op->schema)) return set_rows(id, node);
    if (options_.weights == WeightBits::f32) return false;
    std::optional<MatrixProduct> p = matrix_product(rw_, node);
    const bool is_lookup = !p && looks_up_rows(node);
    if (is_lookup) p = MatrixProduct{.x = node.in[1], .w = node.in[0], .by_rows = true};
    const bool is_experts = node.op_name() == "expert_linear";
    if (is_experts)
      p = MatrixProduct{.x = node.in[ops::kExX], .w = node.in[ops::kExWeights], .by_rows = true};
    if (!p) return false;
    const Tensor* w = rw_.known(p->w);
    if (w == nullptr || w->rank() != (is_experts ? 3u : 2u) || !holds_floats(w->dtype())) return false;
    WeightRow row = row_of(node, *p, matrix(p->w), is_lookup);
    if (ir::Refusal no = ops::refuse_block_experts(row.n / w->dims()[0]);
        is_experts && blocks_ != nullptr && no)
      row.why = *no;
    if (row.why.empty()) {
      is_lookup    ? replace_lookup(node, *p, row)
      : is_experts ? replace_experts(node, *p, row)
                   : replace(node, *p, row);
    }
    report_.rows.push_back(row);
    return row.why.empty();
  }

  /// A constant matrix, or the matrices of experts stacked along the rows.
  Tensor matrix(ValueId id) const {
    const Tensor& w = *rw_.known(id);
    return w.rank() == 2 ? w : w.reshaped({w.dims()[0] * w.dims()[1], w.dims()[2]});
  }

  /// gather along the rows of an f32 matrix, which block_gather can replace.
  bool looks_up_rows(const Node& node) const {
    return blocks_ != nullptr && node.op_name() == "gather" && node.attrs.get_int("axis", 0) == 0 &&
           !node.attrs.has("first") && rw_.graph().type(node.out[0]).dtype == DType::f32;
  }

  /// Sets the requested type of rows for a product whose weights came in blocks.
  bool set_rows(ir::NodeId id, const Node& node) {
    if (node.op->schema.name != "block_linear" && node.op->schema.name != "block_experts") return false;
    ir::Attrs& attrs = rw_.graph().node(id).attrs;
    attrs.set("rows", rows_of(tensor::need_block_format(ops::block_format_of(attrs))));
    return true;
  }

  WeightRow row_of(const Node& node, const MatrixProduct& p, const Tensor& w, bool is_lookup) const {
    WeightRow row{.from = node.from.empty() ? rw_.graph().value(node.out[0]).name : node.from,
                  .n = w.dims()[p.by_rows ? 0 : 1],
                  .k = w.dims()[p.by_rows ? 1 : 0],
                  .bytes_before = w.bytes(),
                  .bytes_after = w.bytes()};
    const DType x = rw_.graph().type(p.x).dtype;
    if (w.elements() < options_.least_elements) {
      row.why = "few weights";
    } else if (!is_lookup && !holds_floats(x)) {
      row.why = base::concat("its rows are ", name_of(x));
    } else if (blocks_ != nullptr) {
      if (fitting_format(*blocks_, row.k) == nullptr)
        row.why = base::concat("a depth of ", row.k, " is no multiple of 32");
    } else if (ir::Refusal no = ops::refuse_weight_form(form_, row.k)) {
      row.why = *no;
    }
    return row;
  }

  void replace(const Node& node, const MatrixProduct& p, WeightRow& row) {
    const StoredMatrix& s = stored(p, row);
    copy_facts(s, row);
    std::vector<ValueId> in{p.x, s.w, p.bias};
    if (blocks_ == nullptr) in = {p.x, s.w, s.scale, s.zero, p.bias};
    while (in.back() == ir::kNoValue) in.pop_back();
    const char* op = blocks_ == nullptr ? "weight_only_linear" : "block_linear";
    finish_product(rw_, node, p, rw_.add(op, in, product_attrs(row), node.from));
  }

  void replace_experts(const Node& node, const MatrixProduct& p, WeightRow& row) {
    const StoredMatrix& s = stored(p, row);
    copy_facts(s, row);
    std::vector<ValueId> in = node.in;
    in[ops::kExWeights] = s.w;
    ir::Attrs attrs = product_attrs(row);
    attrs.set("experts", rw_.known(p.w)->dims()[0]);
    ops::copy_experts_here(node.attrs, attrs);
    if (blocks_ == nullptr) in.insert(in.begin() + ops::kExScale, {s.scale, s.zero});
    while (in.back() == ir::kNoValue) in.pop_back();
    const char* op = blocks_ == nullptr ? "weight_only_experts" : "block_experts";
    rw_.replace(node.out[0], rw_.add(op, in, attrs, node.from));
  }

  void replace_lookup(const Node& node, const MatrixProduct& p, WeightRow& row) {
    const StoredMatrix& s = stored(p, row);
    copy_facts(s, row);
    row.rows_error = 0;
    rw_.replace(node.out[0], rw_.add("block_gather", {s.w, p.x}, block_attrs(row), node.from));
  }

  ir::Attrs product_attrs(const WeightRow& row) const {
    if (blocks_ == nullptr) return {{"bits", int64_t{form_.bits}}, {"group", form_.group}};
    ir::Attrs attrs = block_attrs(row);
    attrs.set("rows", rows_of(tensor::need_block_format(row.format)));
    return attrs;
  }
  std::string rows_of(const tensor::BlockFormat& format) const {
    return std::string(to_string(ops::rows_for(format, options_.weight_rows)));
  }
  static ir::Attrs block_attrs(const WeightRow& row) { return {{"format", row.format}}; }
  static void copy_facts(const StoredMatrix& s, WeightRow& row) {
    row.bytes_after = s.row.bytes_after;
    row.relative = s.row.relative;
    row.largest = s.row.largest;
    row.format = s.row.format;
    row.rows_error = s.row.rows_error;
  }

  /// Weights shared by several layers are stored once.
  const StoredMatrix& stored(const MatrixProduct& p, const WeightRow& row) {
    const auto [at, is_new] = stored_.try_emplace({p.w, p.by_rows});
    if (!is_new) return at->second;
    const auto [made, error] = made_of(matrix(p.w), p.by_rows, row);
    StoredMatrix& s = at->second;
    s.row.bytes_after = made.w.bytes() + (made.scale.defined() ? made.scale.bytes() : 0) +
                        (made.zero.defined() ? made.zero.bytes() : 0);
    s.row.relative = error.relative;
    s.row.largest = error.largest;
    s.w = rw_.constant(made.w);
    if (made.scale.defined()) s.scale = rw_.constant(made.scale);
    if (made.zero.defined()) s.zero = rw_.constant(made.zero);
    if (blocks_ == nullptr) return s;
    const tensor::BlockFormat& format = *fitting_format(*blocks_, row.k);
    s.row.format = format.name;
    if (options_.weight_rows != ops::BlockRows::f32) s.row.rows_error = rounded_rows_error(made.w, format);
    return s;
  }

  std::pair<ops::StoredWeights, ops::WeightError> made_of(const Tensor& w, bool by_rows,
                                                          const WeightRow& row) const {
    const std::pair<const std::byte*, bool> key(w.raw(), by_rows);
    if (cache_ != nullptr) {
      const auto at = cache_->entries.find(key);
      const bool is_kept = at != cache_->entries.end() && at->second.source.type() == w.type();
      if (is_kept) return {at->second.made, at->second.error};  // else another view of the same memory
    }
    ops::WeightError error;
    ops::StoredWeights made;
    if (blocks_ == nullptr && tensor::is_absent(w)) {
      const tensor::Dims groups{row.n, row.k / form_.group};
      made = {tensor::absent(DType::u8, {row.n, row.k * form_.bits / 8}), tensor::absent(DType::f32, groups),
              form_.asymmetric ? tensor::absent(DType::i8, groups) : Tensor()};
    } else if (blocks_ != nullptr) {
      made.w = store_blocks(w, by_rows, *fitting_format(*blocks_, row.k), error);
    } else {
      const std::vector<float> values = floats_of(w);
      made = ops::store_weights({values.data(), row.n, row.k, by_rows}, form_, error);
    }
    if (cache_ != nullptr) cache_->entries.emplace(key, StoredWeightCache::Entry{w, made, error});
    return {made, error};
  }

  Rewriter rw_;
  const WeightOptions& options_;
  const tensor::BlockFormat* blocks_;  ///< null for groups
  StoredWeightCache* cache_;
  ops::WeightForm form_;
  std::map<std::pair<ValueId, bool>, StoredMatrix> stored_;
  WeightReport report_;
};

}  // namespace

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
      out += line + row.format + (row.format.empty() ? "" : "  ");
      if (row.rows_error > 0) {
        std::snprintf(line, sizeof line, "rows in 8 bits %.4f  ", row.rows_error);
        out += line;
      }
      out += row.from + "\n";
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
