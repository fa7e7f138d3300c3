// Compares every operator that moves or reduces memory with a copy of the same bytes, to find slow forms.
//
//   bench_cliffs [--only TEXT] [--seed N] [--least SHARE]
//
// Prints one line per case, worst first: GB/s of operands and results, their share of the speed of a copy
// that alternates with it, the kernel. One thread, timed by CPU time. With --least it exits with 1 and lists
// cases below SHARE (or the operator's own least share, which states a reason) and operators without a case.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/cpu/device/cpu_stream.h"
#include "base/rng.h"
#include "ops/table.h"
#include "runtime/cliff_limits.h"
#include "tests/unary_cases.h"

namespace trireme::runtime {
namespace {

using tensor::Dims;
using tensor::DType;
using tensor::Tensor;
using Ints = std::vector<int64_t>;

/// An operand of a case: random content, or integers that are known when the kernel is prepared.
struct Operand {
  DType dtype = DType::f32;
  Dims dims;
  double low = -2, high = 2;
  Ints known = {};
  bool is_known = false, is_absent = false;
};

struct Case {
  std::string op;
  std::vector<Operand> in;
  ir::Attrs attrs = {};
  size_t results = 1;
  /// The result is selected from operand 0, of which no more is read than is written.
  bool picks = false;
  /// All values are known: for operators whose result sizes depend on data.
  bool all_known = false;
};

Operand real(Dims dims, DType dtype = DType::f32) { return {.dtype = dtype, .dims = std::move(dims)}; }
Operand positive(Dims dims) { return {.dims = std::move(dims), .low = 0.1, .high = 2}; }
Operand ints(Ints values, DType dtype = DType::i64) {
  const int64_t n = static_cast<int64_t>(values.size());
  return {.dtype = dtype, .dims = {n}, .known = std::move(values), .is_known = true};
}
Operand scalar(int64_t value) {
  return {.dtype = DType::i64, .dims = {}, .known = {value}, .is_known = true};
}
Operand absent() { return {.is_absent = true}; }
Operand indices(Dims dims, int64_t below) {
  return {.dtype = DType::i64, .dims = std::move(dims), .low = 0, .high = static_cast<double>(below)};
}

Tensor tensor_of(const Operand& o, uint64_t seed) {
  if (o.is_absent) return {};
  Tensor t = Tensor::empty(o.dtype, o.dims);
  base::Rng rng(seed);
  tensor::visit_dtype(o.dtype, [&](auto zero) {
    using T = decltype(zero);
    auto values = t.mutable_data<T>();
    const size_t drawn = std::min<size_t>(values.size(), 1 << 16);
    for (size_t i = 0; i < drawn; ++i) {
      const double v =
          o.is_known ? static_cast<double>(o.known[i]) : o.low + (o.high - o.low) * rng.uniform();
      if constexpr (std::is_same_v<T, bool>)
        values[i] = v > 0;
      else if constexpr (std::is_unsigned_v<T>)
        values[i] = static_cast<T>(o.is_known ? v : 60 * std::abs(v));
      else if constexpr (std::is_integral_v<T>)
        values[i] = static_cast<T>(o.is_known || o.low >= 0 ? v : 30 * v);
      else
        values[i] = static_cast<T>(v);
    }
    for (size_t i = drawn; i < values.size(); ++i) values[i] = values[i - drawn];
  });
  return t;
}

/// Draws extents typical of networks, with 1e5 to 4e6 elements; every other one is odd.
class Shapes {
 public:
  explicit Shapes(uint64_t seed) : rng_(seed) {}
  int64_t between(int64_t low, int64_t high) {
    const double v = static_cast<double>(low) *
                     std::pow(static_cast<double>(high) / static_cast<double>(low), rng_.uniform());
    const int64_t n = static_cast<int64_t>(v);
    return n < 8 ? n : odd_ = !odd_, odd_ ? n | 1 : n / 4 * 4;
  }
  int64_t elements() { return between(400000, 4000000); }
  Dims rows() {
    const int64_t columns = between(64, 2048);
    return {elements() / columns, columns};
  }
  Dims tokens() {
    const int64_t width = between(64, 1024), length = between(32, 512);
    return {std::max<int64_t>(1, elements() / width / length), length, width};
  }
  Dims heads() {
    const int64_t heads = between(4, 16), width = between(32, 128);
    return {2, heads, std::max<int64_t>(2, elements() / 2 / heads / width), width};
  }
  Dims image() {
    const int64_t channels = between(16, 512);
    const double side = std::sqrt(static_cast<double>(elements() / channels));
    const int64_t height = std::max<int64_t>(3, static_cast<int64_t>(side * (0.7 + 0.6 * rng_.uniform())));
    return {1, channels, height, std::max<int64_t>(3, static_cast<int64_t>(side))};
  }
  Dims volume() {
    const int64_t channels = between(8, 64);
    const int64_t side = static_cast<int64_t>(std::cbrt(static_cast<double>(elements() / channels)));
    return {1, channels, side, side | 1, side};
  }
  Dims signal() {
    const int64_t channels = between(16, 256);
    return {2, channels, elements() / 2 / channels};
  }
  Ints permutation(size_t rank) {
    Ints p(rank);
    for (size_t i = 0; i < rank; ++i) p[i] = static_cast<int64_t>(i);
    for (size_t i = rank; i-- > 1;) std::swap(p[i], p[rng_.below(i + 1)]);
    return p;
  }

 private:
  base::Rng rng_;
  bool odd_ = false;
};

Dims last(Dims dims) {
  std::swap(dims[1], dims.back());
  return dims;
}

struct List {
  std::vector<Case> cases;
  Shapes shapes;
  void add(Case c) { cases.push_back(std::move(c)); }
};

/// ONNX's elementwise operators of one operand, or of two that broadcast, for type `t`; those that need
/// attributes or other operands have separate cases.
std::vector<std::string> elementwise_of(size_t operands, DType t) {
  std::vector<std::string> names;
  for (const ir::OpDef& op : ops::table().all()) {
    const ir::OpSchema& s = op.schema;
    const bool is_alike = s.dims == "...->..." && (operands == 1 ? s.max_in == 1 : s.max_in > 2);
    const bool fits = is_alike || (operands == 2 && s.dims == "...,...->...");
    if (!fits || s.onnx.empty() || s.is_random || s.is_view) continue;
    try {
      const std::vector<tensor::TensorType> in(operands, {t, {2, 2}});
      ir::infer_types(s, {ir::Attrs{}, in, {}, {}, std::vector<bool>(operands, true)});
      names.push_back(s.name);
    } catch (const base::Error&) {  // not for this type, or needs an attribute
    }
  }
  return names;
}

void add_elementwise(List& l) {
  for (const std::string& name : elementwise_of(1, DType::f32)) {
    Operand x = real(l.shapes.tokens());
    const tests::UnaryCase* c = tests::unary_case(name);  // where the function is defined
    if (c != nullptr) x.low = std::max(x.low, c->range.low), x.high = std::min(x.high, c->range.high);
    l.add({name, {x}});
  }
  for (const DType t : {DType::i64, DType::i32, DType::boolean}) {
    for (const std::string& op : elementwise_of(1, t)) l.add({op, {real(l.shapes.rows(), t)}});
  }
  for (const char* op : {"abs", "neg", "relu"}) l.add({op, {real(l.shapes.rows(), DType::f16)}});
  const Operand low{.dims = {}, .low = -1, .high = -1}, high{.dims = {}, .low = 1, .high = 1};
  l.add({"clip", {real(l.shapes.image()), low, high}});
  for (const DType t : {DType::i64, DType::i32}) {
    Operand a = low, b = high;
    a.dtype = b.dtype = t;
    l.add({"clip", {real(l.shapes.rows(), t), a, b}});
  }
  l.add({"dropout", {real(l.shapes.rows())}});
}

/// Equal shapes; one operand broadcast as a scalar or along the last, first and middle axes; or both.
void add_broadcasts(List& l, const std::string& op, DType t) {
  const Dims x = l.shapes.image();
  Operand whole = real(x, t);
  whole.low = 1, whole.high = 5;
  const auto like = [&](Dims dims) {
    Operand o = whole;
    o.dims = std::move(dims);
    return o;
  };
  for (const Dims& d : std::vector<Dims>{x, {}, {x[3]}, {x[1], 1, 1}, {1, x[1], x[2], 1}}) {
    l.add({op, {whole, like(d)}});
    if (op != "prelu" && d.size() < 4) l.add({op, {like(d), whole}});
  }
  if (op != "prelu") l.add({op, {like({x[1], 1, x[3]}), like({1, x[2], 1})}});
  if (op != "prelu") l.add({op, {like({x[1] * x[2], x[3], 1}), like({1, x[3], 3})}});
}

void add_binary(List& l) {
  for (const DType t : {DType::f32, DType::i64, DType::boolean}) {
    for (const std::string& op : elementwise_of(2, t)) add_broadcasts(l, op, t);
  }
  for (const std::string& op : elementwise_of(2, DType::i32)) {
    const Dims x = l.shapes.rows();
    l.add({op, {real(x, DType::i32), real(x, DType::i32)}});
  }
  const Dims x = l.shapes.rows();
  Operand bits = real(x, DType::u32);
  l.add({"bit_shift", {bits, bits}, {{"direction", std::string("LEFT")}}});
  l.add({"mod", {positive(x), positive(x)}, {{"fmod", int64_t{1}}}});
  l.add({"pow", {positive(x), {.dims = {}, .known = {2}, .is_known = true}}});
  l.add({"pow", {positive(x), {.dims = {}, .known = {3}, .is_known = true}}});
  l.add({"pow", {positive(x), positive(x)}});
  l.add({"add", {real(x, DType::f16), real(x, DType::f16)}});
}

void add_where(List& l) {
  const Dims x = l.shapes.heads();
  const auto select = [&](Dims c, Dims a, Dims b, DType t) {
    l.add({"where", {real(c, DType::boolean), real(a, t), real(b, t)}});
  };
  for (const DType t : {DType::f32, DType::i64, DType::boolean}) {
    select(x, x, x, t);
    select(x, x, {}, t);
    select(x, {}, x, t);
    select(x, {}, {}, t);
    select({x[0], 1, 1, x[3]}, x, {}, t);
    select({x[0], 1, x[2], 1}, x, x, t);
    select({x[2], x[3]}, {1}, x, t);
    select(x, {x[3]}, {x[2], 1}, t);
  }
}

void add_casts(List& l) {
  const DType types[] = {DType::f32, DType::f16, DType::bf16, DType::f64,    DType::i64,
                         DType::i32, DType::i8,  DType::u8,   DType::boolean};
  const std::map<DType, int64_t> codes{{DType::f32, 1},  {DType::u8, 2},   {DType::i8, 3},
                                       {DType::i32, 6},  {DType::i64, 7},  {DType::boolean, 9},
                                       {DType::f16, 10}, {DType::f64, 11}, {DType::bf16, 16}};
  for (const DType from : types) {
    for (const DType to : types) {
      if (from == to) continue;
      l.add({"cast", {real(l.shapes.rows(), from)}, {{"to", codes.at(to)}}});
    }
  }
  l.add({"cast_like", {real(l.shapes.rows()), real({1}, DType::f16)}});
}

void add_reductions(List& l) {
  for (const char* op :
       {"sum", "mean", "max", "min", "prod", "l1", "l2", "sum_square", "log_sum", "log_sum_exp"}) {
    const std::string name = std::string("reduce_") + op;
    const auto reduce = [&](const Dims& x, Ints axes, DType t) {
      Operand operand = real(x, t);
      if (t == DType::f32) operand = positive(x);
      l.add({name, {operand, ints(std::move(axes))}, {{"keepdims", int64_t{1}}}});
    };
    reduce(l.shapes.rows(), {1}, DType::f32);
    reduce(l.shapes.rows(), {0}, DType::f32);
    reduce(l.shapes.tokens(), {1}, DType::f32);
    reduce(l.shapes.image(), {2, 3}, DType::f32);
    reduce(l.shapes.image(), {0, 2, 3}, DType::f32);
    reduce(l.shapes.image(), {1, 3}, DType::f32);
    reduce({l.shapes.elements() / 3, 3}, {1}, DType::f32);
    reduce({l.shapes.elements() / 12, 3, 4}, {1}, DType::f32);
    reduce({l.shapes.elements()}, {0}, DType::f32);
    if (name == "reduce_log_sum" || name == "reduce_log_sum_exp" || name == "reduce_l2") continue;
    reduce(l.shapes.rows(), {1}, DType::i64);
    reduce(l.shapes.rows(), {0}, DType::i64);
    reduce(l.shapes.tokens(), {1}, DType::i32);
    reduce(l.shapes.rows(), {1}, DType::i32);
  }
  l.add({"reduce_mean", {real(l.shapes.rows(), DType::f16), ints({1})}});
  for (const char* op : {"arg_max", "arg_min"}) {
    for (const DType t : {DType::f32, DType::i64}) {
      l.add({op, {real(l.shapes.rows(), t)}, {{"axis", int64_t{1}}}});
      l.add({op, {real(l.shapes.image(), t)}, {{"axis", int64_t{1}}}});
      l.add({op, {real({l.shapes.elements() / 21, 21}, t)}, {{"axis", int64_t{-1}}}});
    }
  }
  for (const char* op : {"cum_sum", "cum_prod"}) {
    for (const DType t : {DType::f32, DType::i64}) {
      l.add({op, {real(l.shapes.rows(), t), scalar(1)}});
      l.add({op, {real(l.shapes.rows(), t), scalar(0)}});
      l.add({op,
             {real(l.shapes.tokens(), t), scalar(1)},
             {{"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}});
    }
  }
}

void add_norms(List& l) {
  for (const char* op : {"softmax", "log_softmax", "hardmax"}) {
    l.add({op, {real(l.shapes.rows())}, {{"axis", int64_t{-1}}}});
    l.add({op, {real(l.shapes.image())}, {{"axis", int64_t{1}}}});
    l.add({op, {real(l.shapes.heads())}, {{"axis", int64_t{2}}}});
    l.add({op, {real({l.shapes.elements() / 16, 16})}, {{"axis", int64_t{1}}}});
    l.add({op, {real({l.shapes.elements() / 160, 16, 10})}, {{"axis", int64_t{1}}}});
  }
  for (const Dims& x : {l.shapes.tokens(), Dims{1, l.shapes.elements() / 32, 32}}) {
    const Operand w = real({x[2]});
    l.add({"layer_norm", {real(x), w, w}});
    l.add({"layer_norm", {real(x), w}});
    l.add({"rms_norm", {real(x), w}});
    l.add({"add_layer_norm", {real(x), real(x), w, w}});
    l.add({"l2_normalize", {real(x)}});
    l.add({"lp_norm", {real(x)}, {{"axis", int64_t{-1}}}});
  }
  for (const Dims& x : {l.shapes.image(), l.shapes.signal(), l.shapes.volume(), Dims{64, 96, 14, 14}}) {
    const Operand c = real({x[1]}), v = positive({x[1]});
    l.add({"batch_norm", {real(x), c, c, c, v}});
    l.add({"instance_norm", {real(x), c, c}});
    l.add({"lp_norm", {real(x)}, {{"axis", int64_t{1}}, {"p", int64_t{x.size() == 3 ? 1 : 2}}}});
    if (x.size() == 4) l.add({"mean_variance_norm", {real(x)}});
    l.add({"lrn", {real(x)}, {{"size", int64_t{5}}}});
  }
  const Dims g{1, 64, 57, 97};
  l.add({"group_norm", {real(g), real({64}), real({64})}, {{"num_groups", int64_t{32}}}});
  l.add({"batch_norm", {real({4000, 256}), real({256}), real({256}), real({256}), positive({256})}});
  l.add({"masked_mean_pool", {real({32, 128, 257}), real({32, 128})}});
}

void add_pools(List& l) {
  const auto windows = [&](const Dims& x, int64_t k, int64_t stride, ir::Attrs more, size_t results = 1) {
    const size_t axes = x.size() - 2;
    more.set("kernel_shape", Ints(axes, k));
    more.set("strides", Ints(axes, stride));
    more.set("pads", Ints(2 * axes, k / 2));
    if (results == 1) l.add({"average_pool", {real(x)}, more});
    if (results == 1) l.add({"lp_pool", {real(x)}, more});
    l.add({"max_pool", {real(x)}, more, results});
  };
  for (const Dims& x : {l.shapes.image(), l.shapes.signal(), l.shapes.volume()}) {
    windows(x, 3, 2, {});
    windows(x, 3, 1, {});
    windows(x, 2, 2, {{"ceil_mode", int64_t{1}}});
  }
  windows(l.shapes.image(), 5, 1, {});
  windows(l.shapes.image(), 3, 1, {{"dilations", Ints{2, 2}}});
  windows(l.shapes.image(), 3, 2, {}, 2);
  windows(l.shapes.image(), 3, 2, {{"ceil_mode", int64_t{1}}});
  l.add({"average_pool",
         {real(l.shapes.image())},
         {{"kernel_shape", Ints{3, 3}}, {"pads", Ints{1, 1, 1, 1}}, {"count_include_pad", int64_t{1}}}});
  l.add({"max_pool",
         {real(l.shapes.image(), DType::u8)},
         {{"kernel_shape", Ints{3, 3}}, {"strides", Ints{2, 2}}}});
  for (const char* op : {"global_average_pool", "global_max_pool", "global_lp_pool"}) {
    for (const Dims& x : {l.shapes.image(), l.shapes.signal(), l.shapes.volume(), Dims{16, 1280, 7, 7}})
      l.add({op, {real(x)}});
  }
  for (const int64_t stride : {1, 2}) {
    const ir::Attrs window{
        {"kernel_shape", Ints{3, 3}}, {"strides", Ints{stride, stride}}, {"pads", Ints{1, 1, 1, 1}}};
    l.add({"max_pool_nhwc", {real(last(l.shapes.image()))}, window});
    l.add({"average_pool_nhwc", {real(last(l.shapes.image()))}, window});
  }
  l.add({"global_average_pool_nhwc", {real(last(l.shapes.image()))}});
  const Dims x{1, 64, 100, 120};
  l.add({"max_unpool",
         {real({1, 64, 80, 60}), indices({1, 64, 80, 60}, 64 * 160 * 120)},
         {{"kernel_shape", Ints{2, 2}}, {"strides", Ints{2, 2}}}});
  Operand boxes{.dims = {128, 5}, .low = 0, .high = 60}, rois{.dims = {128, 4}, .low = 0, .high = 60};
  l.add({"max_roi_pool", {real(x), boxes}, {{"pooled_shape", Ints{7, 7}}}});
  for (const char* mode : {"avg", "max"}) {
    const ir::Attrs align{{"output_height", int64_t{7}},
                          {"output_width", int64_t{7}},
                          {"sampling_ratio", int64_t{2}},
                          {"mode", std::string(mode)}};
    l.add({"roi_align", {real(x), rois, indices({128}, 1)}, align});
  }
}

/// Enlarges and shrinks images in the usual layouts; operands are x, roi, scales, sizes.
void add_resizes(List& l) {
  const auto resize = [&](const Dims& x, Dims sizes, const char* mode, const char* where) {
    const ir::Attrs attrs{{"mode", std::string(mode)},
                          {"coordinate_transformation_mode", std::string(where)}};
    l.add({"resize", {real(x), absent(), absent(), ints(std::move(sizes))}, attrs});
  };
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* where : {"half_pixel", "align_corners", "asymmetric"}) {
      const Dims x = l.shapes.image(), y = last(x);
      resize(x, {x[0], x[1], 2 * x[2], 2 * x[3]}, mode, where);
      if (std::string(where) == "align_corners") continue;
      resize(x, {x[0], x[1], x[2] / 2 + 1, x[3] / 2 + 1}, mode, where);
      resize(x, {x[0], x[1], x[2] + 3, x[3] + x[3] / 3}, mode, where);
      resize(y, {y[0], 2 * y[1], 2 * y[2], y[3]}, mode, where);
      resize(y, {y[0], y[1] / 2 + 1, y[2] * 2 / 3, y[3]}, mode, where);
    }
    const Dims s = l.shapes.signal(), v = l.shapes.volume();
    resize(s, {s[0], s[1], 2 * s[2]}, mode, "half_pixel");
    resize(v, {v[0], v[1], 2 * v[2], 2 * v[3], 2 * v[4]}, mode, "half_pixel");
    resize({1, 19, 65, 65}, {1, 19, 513, 513}, mode, "half_pixel");
    resize({1, 480, 640, 3}, {1, 224, 224, 3}, mode, "half_pixel");
    resize({1, 3, 480, 640}, {1, 3, 224, 224}, mode, "half_pixel");
  }
  const Dims x{1, 33, 97, 121};
  l.add({"resize", {real(x, DType::u8), absent(), absent(), ints({1, 33, 194, 242})}});
  l.add({"resize",
         {real(x), absent(), absent(), ints({1, 33, 48, 60})},
         {{"mode", std::string("linear")}, {"antialias", int64_t{1}}}});
  l.add({"upsample", {real(x), {.dims = {4}, .known = {1, 1, 2, 2}, .is_known = true}}});
  for (const char* mode : {"linear", "nearest", "cubic"}) {
    for (const char* padding : {"zeros", "border"}) {
      l.add({"grid_sample",
             {real({1, 64, 80, 96}), {.dims = {1, 75, 101, 2}, .low = -1.1, .high = 1.1}},
             {{"mode", std::string(mode)}, {"padding_mode", std::string(padding)}}});
    }
  }
  l.add({"affine_grid", {real({4, 2, 3}), ints({4, 3, 300, 401})}});
}

void add_transposes(List& l) {
  for (const DType t : {DType::f32, DType::u8, DType::f16, DType::i64}) {
    for (int i = 0; i < 3; ++i) {
      l.add({"transpose", {real(l.shapes.tokens(), t)}, {{"perm", l.shapes.permutation(3)}}});
      l.add({"transpose", {real(l.shapes.heads(), t)}, {{"perm", l.shapes.permutation(4)}}});
      l.add({"transpose", {real(l.shapes.volume(), t)}, {{"perm", l.shapes.permutation(5)}}});
    }
  }
  const std::vector<std::pair<Dims, Ints>> known{{{8, 197, 12, 64}, {0, 2, 1, 3}},
                                                 {{8, 12, 197, 64}, {0, 1, 3, 2}},
                                                 {{1, 64, 112, 113}, {0, 2, 3, 1}},
                                                 {{1, 112, 113, 64}, {0, 3, 1, 2}},
                                                 {{1, 3, 640, 641}, {0, 2, 3, 1}},
                                                 {{1, 255, 80, 80}, {0, 2, 3, 1}},
                                                 {{1, 3, 85, 80, 80}, {0, 1, 3, 4, 2}},
                                                 {{1, 8, 7, 8, 7, 96}, {0, 1, 3, 2, 4, 5}},
                                                 {{1, 58, 2, 56, 57}, {0, 2, 1, 3, 4}},
                                                 {{4, 2, 3, 49, 97, 11}, {5, 2, 0, 4, 1, 3}},
                                                 {{1, 56, 57, 96}, {0, 2, 1, 3}},
                                                 {{197, 8, 768}, {1, 0, 2}},
                                                 {{1, 16, 4, 4, 37, 41}, {0, 1, 4, 2, 5, 3}},
                                                 {{3, 197, 8, 12, 16}, {0, 2, 3, 1, 4}}};
  for (const auto& [x, perm] : known) l.add({"transpose", {real(x)}, {{"perm", perm}}});
}

void add_slices(List& l) {
  const auto slice = [&](const Dims& x, Ints starts, Ints ends, Ints axes, Ints steps, DType t = DType::f32) {
    l.add({"slice", {real(x, t), ints(starts), ints(ends), ints(axes), ints(steps)}, {}, 1, true});
  };
  const Dims x = l.shapes.image(), y = last(x);
  slice(x, {0, 1}, {x[2], x[3]}, {2, 3}, {2, 2});
  slice(x, {1}, {x[3]}, {3}, {2});
  slice(x, {1}, {x[3]}, {3}, {3});
  slice(x, {0, 1}, {x[2], x[3]}, {2, 3}, {2, 2}, DType::u8);
  slice(x, {1}, {x[3]}, {3}, {2}, DType::i64);
  slice(y, {0, 1}, {y[1], y[2]}, {1, 2}, {2, 2});
  slice(x, {-1}, {INT64_MIN}, {3}, {-1});
  slice(x, {-1}, {INT64_MIN}, {2}, {-1});
  slice(x, {3, 3}, {x[2] - 1, x[3] - 4}, {2, 3}, {1, 1});
  slice({l.shapes.elements() / 85, 85}, {0}, {4}, {1}, {1});
  slice({l.shapes.elements() / 85, 85}, {5}, {85}, {1}, {1});
  slice({l.shapes.elements() / 6, 6}, {0}, {1}, {1}, {1});
  slice(l.shapes.tokens(), {0}, {1}, {2}, {1});
  for (const Dims& d : {l.shapes.image(), l.shapes.tokens()}) {
    for (int64_t axis = 1; axis < static_cast<int64_t>(d.size()); ++axis) {
      Dims half = d;
      half[static_cast<size_t>(axis)] = d[static_cast<size_t>(axis)] / 2 + 1;
      l.add({"concat", {real(d), real(half)}, {{"axis", axis}}});
      l.add({"split", {real(d)}, {{"axis", axis}}, 2});
      l.add({"split", {real(d)}, {{"axis", axis}}, 3});
    }
  }
  const int64_t n = l.shapes.elements() / 8;
  for (const int64_t width : {1, 2, 3, 4}) {
    const Operand part = real({n, width});
    l.add({"concat", {part, part, part, part}, {{"axis", int64_t{1}}}});
    l.add({"split", {real({n, 4 * width})}, {{"axis", int64_t{1}}}, 4});
  }
  const Operand u8 = real({n, 1}, DType::u8), i64 = real({n, 1}, DType::i64);
  l.add({"concat", {u8, u8, u8}, {{"axis", int64_t{1}}}});
  l.add({"concat", {i64, i64, i64}, {{"axis", int64_t{1}}}});
}

void add_fills(List& l) {
  for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
    const ir::Attrs attrs{{"mode", std::string(mode)}};
    l.add({"pad", {real(l.shapes.image()), ints({0, 0, 1, 1, 0, 0, 1, 1})}, attrs});
    l.add({"pad", {real(last(l.shapes.image())), ints({0, 3, 3, 0, 0, 2, 3, 0})}, attrs});
    l.add({"pad", {real({l.shapes.elements() / 14, 14}), ints({0, 1, 0, 2})}, attrs});
    l.add({"pad", {real({l.shapes.elements() / 3, 3}), ints({0, 0, 0, 1})}, attrs});
    l.add({"pad", {real(l.shapes.image(), DType::u8), ints({0, 0, 1, 1, 0, 0, 1, 1})}, attrs});
  }
  l.add({"center_crop_pad", {real({300, 301, 7}), ints({224, 320, 7})}});
  const Dims x = l.shapes.image();
  for (const Ints& repeats : {Ints{2, 1, 1, 1}, Ints{1, 3, 1, 1}, Ints{1, 1, 1, 2}})
    l.add({"tile", {real(x), ints(repeats)}});
  l.add({"tile", {real({100000, 1}), ints({1, 9})}});
  l.add({"tile", {real({100000, 3}), ints({1, 5})}});
  l.add({"tile", {real({1, 1, 7}), ints({300, 300, 1})}});
  const auto expand = [&](Dims from, Dims to, DType t) {
    l.add({"expand", {real(std::move(from), t), ints(to)}});
  };
  for (const DType t : {DType::f32, DType::i64, DType::boolean}) {
    expand({1, x[1], 1, 1}, {1, x[1], x[2], x[3]}, t);
    expand({x[1], 1, x[3]}, {1, x[1], x[2], x[3]}, t);
    expand({1, 1, x[3]}, {1, x[1], x[2], x[3]}, t);
    expand({x[1] * x[2] * x[3] / 12, 1, 3}, {x[1] * x[2] * x[3] / 12, 4, 3}, t);
    expand({}, {x[1], x[2], x[3]}, t);
  }
  l.add({"one_hot", {indices({20000}, 100), scalar(100), real({2})}});
  l.add({"one_hot", {indices({8, 4000}, 50), scalar(50), real({2})}, {{"axis", int64_t{1}}}});
  l.add({"constant_of_shape", {ints({1000, 1001})}});
  l.add({"range", {scalar(0), scalar(1000000), scalar(1)}});
  l.add({"trilu", {real({12, 400, 401})}});
  l.add({"eye_like", {real({1000, 1001})}});
  l.add({"depth_to_space", {real({1, 64, 111, 121})}, {{"blocksize", int64_t{2}}}});
  l.add({"depth_to_space",
         {real({1, 27, 111, 121})},
         {{"blocksize", int64_t{3}}, {"mode", std::string("CRD")}}});
  l.add({"depth_to_space",
         {real({1, 12, 256, 255})},
         {{"blocksize", int64_t{2}}, {"mode", std::string("CRD")}}});
  l.add({"space_to_depth", {real({1, 64, 112, 114})}, {{"blocksize", int64_t{2}}}});
  l.add({"space_to_depth", {real({1, 3, 640, 640})}, {{"blocksize", int64_t{2}}}});
  l.add({"reverse_sequence", {real({250, 16, 129}), indices({16}, 250)}});
  l.add({"col2im", {real({1, 32 * 9, 62 * 60}), ints({64, 62}), ints({3, 3})}});
  l.add({"im2col", {real({1, 32, 64, 62}), ints({64, 62}), ints({3, 3})}});
}

void add_indexed(List& l) {
  for (const int64_t width : {1, 3, 8, 64, 768}) {
    const int64_t rows = 2000000 / width;
    l.add({"gather", {real({30000, width}), indices({rows}, 30000)}, {}, 1, true});
  }
  const Dims x = l.shapes.image();
  l.add({"gather", {real(x), indices({x[3]}, x[3])}, {{"axis", int64_t{3}}}, 1, true});
  l.add({"gather", {real(x), indices({x[1]}, x[1])}, {{"axis", int64_t{1}}}, 1, true});
  l.add({"gather", {real(x), indices({}, x[3])}, {{"axis", int64_t{3}}}, 1, true});
  l.add({"gather", {real({30000}, DType::i64), indices({800000}, 30000)}, {}, 1, true});
  for (const int64_t width : {1, 4, 64}) {
    const int64_t tuples = 1000000 / width;
    l.add({"gather_nd", {real({300, 200, width}), indices({tuples, 2}, 200)}, {}, 1, true});
    l.add({"scatter_nd", {real({300, 200, width}), indices({tuples, 2}, 200), real({tuples, width})}});
  }
  for (const int64_t axis : {0, 1}) {
    const Operand at = indices({700, 900}, 700);
    const ir::Attrs attrs{{"axis", axis}};
    l.add({"gather_elements", {real({1000, 900}), at}, attrs, 1, true});
    l.add({"scatter_elements", {real({1000, 900}), at, real({700, 900})}, attrs});
    l.add({"scatter", {real({1000, 900}), at, real({700, 900})}, attrs});
    ir::Attrs sums = attrs;
    sums.set("reduction", std::string("add"));
    l.add({"scatter_elements", {real({1000, 900}), at, real({700, 900})}, sums});
  }
  const Operand flags = real({3000}, DType::boolean);
  l.add({"compress", {real({3000, 257}), flags}, {{"axis", int64_t{0}}}, 1, true, true});
  l.add({"compress", {real({257, 3000}), flags}, {{"axis", int64_t{1}}}, 1, true, true});
  l.add({"non_zero", {real(l.shapes.rows(), DType::boolean)}, {}, 1, false, true});
  l.add({"non_zero", {real(l.shapes.image())}, {}, 1, false, true});
}

void add_sorts(List& l) {
  const auto top = [&](Dims x, int64_t k, int64_t axis, DType t) {
    l.add({"top_k", {real(std::move(x), t), ints({k})}, {{"axis", axis}}, 2});
  };
  for (const DType t : {DType::f32, DType::i64}) {
    top({1, 900000}, 1000, 1, t);
    top({8, 50257}, 50, 1, t);
    top({8400, 80}, 1, 1, t);
    top({8400, 80}, 5, 1, t);
    top({1000, 700}, 700, 1, t);
    top({80, 8400}, 3, 0, t);
  }
}

void add_codes(List& l) {
  const Operand scale{.dims = {}, .low = 0.1, .high = 0.1}, zero{.dtype = DType::u8, .dims = {}};
  for (const Dims& x : {l.shapes.image(), l.shapes.rows()}) {
    const Operand scales{.dims = {x[1]}, .low = 0.1, .high = 0.2}, zeros{.dtype = DType::i8, .dims = {x[1]}};
    l.add({"quantize_linear", {real(x), scale, zero}});
    l.add({"quantize_linear", {real(x), scales, zeros}});
    l.add({"dequantize_linear", {real(x, DType::u8), scale, zero}});
    l.add({"dequantize_linear", {real(x, DType::i8), scales, zeros}});
    l.add({"dynamic_quantize_linear", {real(x)}, {}, 3});
  }
}

void add_einsums(List& l) {
  const auto einsum = [&](const char* equation, std::vector<Operand> in) {
    l.add({"einsum", std::move(in), {{"equation", std::string(equation)}}});
  };
  einsum("ijk->kij", {real(l.shapes.tokens())});
  einsum("ijk->ik", {real(l.shapes.tokens())});
  einsum("ijk->ij", {real(l.shapes.tokens())});
  const Dims x = l.shapes.tokens();
  einsum("bij,bij->bij", {real(x), real(x)});
  einsum("bij,bj->bij", {real(x), real({x[0], x[2]})});
  l.add({"rotary_embedding", {real({2, 12, 197, 64}), real({2, 197, 32}), real({2, 197, 32})}});
}

std::vector<Case> all_cases(uint64_t seed) {
  List l{{}, Shapes(seed)};
  add_elementwise(l);
  add_binary(l);
  add_where(l);
  add_casts(l);
  add_reductions(l);
  add_norms(l);
  add_pools(l);
  add_resizes(l);
  add_transposes(l);
  add_slices(l);
  add_fills(l);
  add_indexed(l);
  add_sorts(l);
  add_codes(l);
  add_einsums(l);
  return std::move(l.cases);
}

/// A case that is ready to run: operands, results, and the prepared kernel.
struct Bound {
  std::vector<Tensor> in, out;
  Tensor workspace;
  std::string kernel;
  ir::BoundKernel run;
  double bytes = 0;
};

double bytes_of(const Case& c, const Bound& b) {
  double written = 0, read = 0;
  for (const Tensor& t : b.out) written += static_cast<double>(t.bytes());
  for (size_t i = 0; i < b.in.size(); ++i) {
    if (!b.in[i].defined()) continue;
    const double bytes = static_cast<double>(b.in[i].bytes());
    read += c.picks && i == 0 ? std::min(bytes, written) : bytes;
  }
  return read + written;
}

Bound bind(const Case& c, base::SharedCache& packs) {
  const ir::OpDef& op = ops::table().need(c.op);
  Bound b;
  ir::NodeView node{
      .attrs = c.attrs, .in = {}, .out = {}, .known = {}, .is_present = {}, .out_count = c.results};
  for (const Operand& o : c.in) b.in.push_back(tensor_of(o, 1 + b.in.size()));
  for (const Tensor& t : b.in) {
    node.is_present.push_back(t.defined());
    node.in.push_back(t.defined() ? t.type() : tensor::TensorType{});
    node.known.push_back(t.defined() ? &t : nullptr);
  }
  node.out = ir::infer_types(op.schema, node);
  for (size_t i = 0; i < c.in.size(); ++i) {
    if (!c.in[i].is_known && !c.all_known) node.known[i] = nullptr;
  }
  std::vector<std::string> reasons;
  const ir::Kernel* kernel = ops::choose_kernel(op, node, tensor::DeviceKind::cpu, &reasons);
  if (kernel == nullptr) {
    std::string all = op.schema.expand ? "expands" : "no kernel";
    for (const std::string& r : reasons) all += "; " + r;
    base::fail_unsupported(all);
  }
  b.kernel = kernel->name;
  b.run = kernel->prepare({node, packs, 1});
  for (const tensor::TensorType& t : node.out) b.out.push_back(Tensor::zeros(t.dtype, t.shape.to_dims()));
  b.workspace = Tensor::zeros(DType::u8, {b.run.workspace_bytes});
  b.bytes = bytes_of(c, b);
  return b;
}

double seconds_of_thread() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

template <class F>
double seconds(int times, const F& f) {
  const double start = seconds_of_thread();
  for (int i = 0; i < times; ++i) f();
  return (seconds_of_thread() - start) / times;
}

double median(std::vector<double>& v) {
  std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

struct Speed {
  std::string op, kernel, shape, refused;
  double gbytes_s = 0, share = 0;
};

/// Alternates between the kernel and a copy of as many bytes.
void rotate(Bound& b, Speed& speed) {
  base::ThreadPool pool(1);
  cpu::CpuStream stream(pool);
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const Tensor& t : b.in) in.push_back(t.defined() ? t.raw() : nullptr);
  for (Tensor& t : b.out) out.push_back(t.mutable_raw());
  const auto kernel = [&] { b.run.run({in.data(), out.data(), b.workspace.mutable_raw(), stream}); };
  const int64_t half = std::max<int64_t>(64, static_cast<int64_t>(b.bytes / 2));
  const Tensor from = Tensor::zeros(DType::u8, {half});
  Tensor to = Tensor::zeros(DType::u8, {half});
  const auto copy = [&] { std::memcpy(to.mutable_raw(), from.raw(), static_cast<size_t>(half)); };
  seconds(1, copy);
  const double once = seconds(1, kernel);
  const int rounds = once > 0.1 ? 1 : 7;
  const int times = std::clamp(static_cast<int>(2e-3 / std::max(once, 1e-9)), 1, 1000);
  std::vector<double> kernel_s, copy_s;
  for (int i = 0; i < rounds; ++i) {
    copy_s.push_back(seconds(times, copy));
    kernel_s.push_back(seconds(times, kernel));
  }
  const double took = median(kernel_s);
  speed.gbytes_s = b.bytes / took / 1e9;
  speed.share = median(copy_s) / took;
}

std::string shape_text(const Case& c) {
  std::string text;
  for (const Operand& o : c.in) {
    if (o.is_absent) continue;
    if (!text.empty()) text += " ";
    if (o.is_known) {
      text += tensor::to_string(o.known);
    } else {
      text += base::concat(tensor::to_string(o.dims), tensor::name_of(o.dtype));
    }
  }
  text += " " + c.attrs.to_string();
  return text;
}

Speed measure(const Case& c) {
  Speed speed{.op = c.op, .kernel = {}, .shape = shape_text(c), .refused = {}};
  try {
    base::SharedCache packs;
    Bound b = bind(c, packs);
    speed.kernel = b.kernel;
    rotate(b, speed);
  } catch (const base::Error& e) {
    speed.refused = e.message();
  }
  return speed;
}

/// Lists cases below their least share, failed cases and operators without a case. True if there are none.
bool is_without_cliffs(const std::vector<Speed>& speeds, double least, bool is_whole) {
  bool good = true;
  std::set<std::string> covered(std::begin(kElsewhere), std::end(kElsewhere));
  for (const Speed& s : speeds) {
    covered.insert(s.op);
    const double wanted = least_of(s.op, least);
    if (s.refused.empty() && s.share >= wanted) continue;
    std::printf("below %.1f %%: %s %s\n", 100 * wanted, s.op.c_str(), s.shape.c_str());
    good = false;
  }
  for (const ir::OpDef& op : ops::table().all()) {
    if (!is_whole || op.schema.onnx.empty() || covered.count(op.schema.name) > 0) continue;
    std::printf("no case: %s\n", op.schema.name.c_str());
    good = false;
  }
  return good;
}

}  // namespace
}  // namespace trireme::runtime

int main(int argc, char** argv) {
  using namespace trireme::runtime;
  std::string only;
  double least = 0, seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag.starts_with("--benchmark_")) continue;  // `./dev bench` passes these to every benchmark
    const std::string value = i + 1 < argc ? argv[++i] : "";
    if (value.empty() || (flag != "--only" && flag != "--least" && flag != "--seed"))
      return std::fputs("usage: bench_cliffs [--only TEXT] [--seed N] [--least SHARE]\n", stderr), 2;
    if (flag == "--only") only = value;
    if (flag == "--least") least = std::stod(value);
    if (flag == "--seed") seed = std::stod(value);
  }
  std::vector<Speed> speeds;
  for (const Case& c : all_cases(static_cast<uint64_t>(seed))) {
    if (c.op.find(only) != std::string::npos) speeds.push_back(measure(c));
  }
  std::stable_sort(speeds.begin(), speeds.end(),
                   [](const Speed& a, const Speed& b) { return a.share < b.share; });
  for (const Speed& s : speeds) {
    std::printf("%-22s %7.2f GB/s %6.1f %%  %-20s %s %s\n", s.op.c_str(), s.gbytes_s, 100 * s.share,
                s.kernel.c_str(), s.shape.c_str(), s.refused.c_str());
  }
  return least > 0 && !is_without_cliffs(speeds, least, only.empty()) ? 1 : 0;
}
