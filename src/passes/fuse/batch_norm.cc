// Folds a batch norm after a convolution with constant weights into these weights.
#include <cmath>
#include <unordered_map>

#include "base/memory/slab.h"
#include "passes/fuse/batch_norm.h"
#include "passes/rewriter.h"
#include "tensor/absent.h"

namespace trireme::passes {
namespace {

using tensor::Tensor;

/// The affine form of a batch norm: y = x * scale + shift per channel. Without the contents of its operands
/// only the number of channels is known.
struct Affine {
  std::vector<double> scale, shift;
  bool is_absent = false;
};

/// nullopt if operands are computed or differ in number: lengths are unchecked for an x of unknown rank.
std::optional<Affine> affine_of(const Rewriter& rw, const ir::Node& bn) {
  std::vector<std::vector<double>> p;  // scale, bias, mean, variance: [channels] each
  Affine a;
  for (size_t i = 1; i < 5; ++i) {
    const Tensor* t = rw.known(bn.in[i]);
    if (t == nullptr || t->elements() == 0 || t->elements() != rw.known(bn.in[1])->elements())
      return std::nullopt;
    a.is_absent = a.is_absent || tensor::is_absent(*t);
    p.push_back(a.is_absent ? std::vector<double>(static_cast<size_t>(t->elements()), 1.0) : t->to_doubles());
  }
  const double eps = bn.attrs.get_float("epsilon", 1e-5);
  for (size_t c = 0; c < p[0].size(); ++c) {
    const double s = p[0][c] / std::sqrt(p[3][c] + eps);
    a.scale.push_back(s);
    a.shift.push_back(p[1][c] - p[2][c] * s);
  }
  return a;
}

/// A tensor on the slab, whose huge pages take one fault where 512 would be taken: what is folded has the
/// size of the file, and lives as long as the model.
Tensor folded_tensor(const tensor::Dims& dims, const base::Slab& slab) {
  const auto bytes = static_cast<size_t>(tensor::bytes_of(tensor::DType::f32, tensor::element_count(dims)));
  const std::shared_ptr<char> memory = slab.allocate(bytes);
  return Tensor::view(tensor::DType::f32, dims, std::as_bytes(std::span(memory.get(), bytes)), memory);
}

/// Multiplies each row (first dimension) of an f32 weight by its channel's scale.
Tensor scaled_rows(const Tensor& w, const Affine& by, const base::Slab& slab) {
  const std::vector<double>& scale = by.scale;
  if (by.is_absent || tensor::is_absent(w)) return tensor::absent(tensor::DType::f32, w.dims());
  Tensor out = folded_tensor(w.dims(), slab);
  const size_t row = static_cast<size_t>(w.elements()) / scale.size();
  const std::span<const float> from = w.data<float>();
  const std::span<float> to = out.mutable_data<float>();
  for (size_t c = 0; c < scale.size(); ++c) {
    for (size_t i = c * row; i < (c + 1) * row; ++i) {
      to[i] = static_cast<float>(static_cast<double>(from[i]) * scale[c]);
    }
  }
  return out;
}

/// The bias after the norm: shift + scale * bias, where the convolution's bias may be null.
Tensor folded_bias(const Tensor* b, const Affine& a) {
  const auto channels = static_cast<int64_t>(a.scale.size());
  if (a.is_absent || (b != nullptr && tensor::is_absent(*b)))
    return tensor::absent(tensor::DType::f32, {channels});
  std::vector<float> bias(a.scale.size());
  const std::vector<double> old = b ? b->to_doubles() : std::vector<double>(bias.size(), 0.0);
  for (size_t c = 0; c < bias.size(); ++c) bias[c] = static_cast<float>(old[c] * a.scale[c] + a.shift[c]);
  return Tensor::from<float>({channels}, std::span<const float>(bias));
}

/// True if the norm uses given statistics and computes nothing but y.
bool is_plain_batch_norm(const Rewriter& rw, const ir::Node& bn) {
  if (bn.attrs.get_int("training_mode", 0) != 0) return false;
  for (size_t i = 1; i < bn.out.size(); ++i) {
    if (bn.out[i] != ir::kNoValue && rw.uses(bn.out[i]) > 0) return false;
  }
  return true;
}

/// Gives folded weights their names. The programs of a rank share weights by name, so a name may stand for
/// one content only: convolutions that read one weight before norms of their own then have a weight each.
class FoldedNames {
 public:
  explicit FoldedNames(Rewriter& rw) : rw_(rw) {
    for (size_t i = 0; i < rw.graph().values().size(); ++i) {
      const ir::Value& v = rw.graph().values()[i];
      if (v.kind != ir::ValueKind::computed && !v.name.empty())
        holders_.emplace(v.name, ir::ValueId(static_cast<uint32_t>(i)));
    }
  }

  /// Names a param `name`, with a number behind it where another value that is read has that name.
  void give(ir::ValueId param, const std::string& name) {
    if (name.empty()) return;
    std::string own = name;
    while (is_taken(own)) own = base::concat(name, ".", ++last_number_);
    holders_[own] = param;
    rw_.graph().value(param).name = std::move(own);
  }

 private:
  bool is_taken(const std::string& name) const {
    const auto at = holders_.find(name);
    return at != holders_.end() && rw_.uses(at->second) > 0;
  }

  Rewriter& rw_;
  std::unordered_map<std::string, ir::ValueId> holders_;
  size_t last_number_ = 0;
};

bool fold_one(Rewriter& rw, const ir::Node& bn, const base::Slab& slab, FoldedNames& names) {
  if (!is_plain_batch_norm(rw, bn)) return false;
  const auto conv = rw.producer(bn.in[0], "conv");
  if (!conv || !rw.single_use(bn.in[0])) return false;
  const Tensor* w = rw.known(conv->in[1]);
  const bool has_bias = conv->in.size() > 2 && conv->in[2] != ir::kNoValue;
  const Tensor* b = has_bias ? rw.known(conv->in[2]) : nullptr;
  if (w == nullptr || w->dtype() != tensor::DType::f32 || (has_bias && b == nullptr)) return false;
  const std::optional<Affine> a = affine_of(rw, bn);
  if (!a || a->scale.size() != static_cast<size_t>(w->dims()[0])) return false;
  // Compute both before adding a value, which may move the tensors that w and b point to.
  Tensor scaled = scaled_rows(*w, *a, slab), folded = folded_bias(b, *a);
  const ir::ValueId weight = rw.graph().add_param({}, std::move(scaled));
  const ir::ValueId shift = rw.graph().add_param({}, std::move(folded));
  rw.replace(bn.out[0], rw.add("conv", {conv->in[0], weight, shift}, conv->attrs, conv->from));
  // Only now does the old convolution not read its weight any more, which may leave the name to the new one.
  names.give(weight, rw.graph().value(conv->in[1]).name);
  names.give(shift, bn.from + ".bias");
  return true;
}

/// [channels] as an operand that broadcasts over [n, channels, spatial...].
ir::ValueId along_channels(Rewriter& rw, const std::vector<double>& values, size_t rank, bool is_absent) {
  const std::vector<float> rounded(values.begin(), values.end());
  tensor::Dims dims(std::max<size_t>(rank, 2) - 1, 1);
  dims[0] = static_cast<int64_t>(rounded.size());
  if (is_absent) return rw.constant(tensor::absent(tensor::DType::f32, dims));
  return rw.constant(Tensor::from<float>(dims, std::span<const float>(rounded)));
}

bool open_one(Rewriter& rw, const ir::Node& bn) {
  const auto dims = rw.dims(bn.in[0]);
  if (!is_plain_batch_norm(rw, bn) || !dims || dims->size() < 2 ||
      rw.graph().type(bn.in[0]).dtype != tensor::DType::f32)
    return false;
  const std::optional<Affine> a = affine_of(rw, bn);
  if (!a || a->scale.size() != static_cast<size_t>((*dims)[1])) return false;
  const ir::ValueId scaled =
      rw.add("mul", {bn.in[0], along_channels(rw, a->scale, dims->size(), a->is_absent)}, {}, bn.from);
  return rw.replace_same(
      bn.out[0],
      rw.add("add", {scaled, along_channels(rw, a->shift, dims->size(), a->is_absent)}, {}, bn.from));
}

}  // namespace

size_t open_batch_norm(ir::Graph& graph) {
  Rewriter rw(graph);
  return rw.for_each("batch_norm", [&](ir::NodeId, const ir::Node& bn) { return open_one(rw, bn); });
}

size_t fold_batch_norm(ir::Graph& graph) {
  Rewriter rw(graph);
  const base::Slab slab;
  FoldedNames names(rw);
  return rw.for_each("batch_norm",
                     [&](ir::NodeId, const ir::Node& bn) { return fold_one(rw, bn, slab, names); });
}

}  // namespace trireme::passes
