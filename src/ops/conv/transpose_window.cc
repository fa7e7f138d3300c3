// The geometry of transposed convolution.
#include "ops/conv/transpose_window.h"

#include "ops/shape/shape_rules.h"

#include <algorithm>

namespace trireme::ops {
namespace {

using tensor::Dim;
using tensor::Dims;

int64_t entry(const ir::Attrs& attrs, std::string_view name, size_t i, int64_t fallback) {
  const std::vector<int64_t> list = attrs.get_ints(name);
  if (list.empty()) return fallback;
  base::require(i < list.size(), name, " has ", list.size(), " entries, needs more");
  constexpr int64_t kMost = int64_t{1} << 31;
  base::require(list[i] < kMost && list[i] > -kMost, name, " entry ", list[i], " is too large");
  return list[i];
}

WindowAxis resolve_transposed(const ir::Attrs& attrs, size_t i, size_t rank, WindowAxis a) {
  a.stride = entry(attrs, "strides", i, 1);
  a.dilation = entry(attrs, "dilations", i, 1);
  base::require(a.stride > 0 && a.dilation > 0, "stride or dilation below 1 on axis ", i);
  constexpr int64_t kMost = int64_t{1} << 31;  // so that products of two fit into 64 bits
  base::require(a.in < kMost && a.kernel >= 1 && a.kernel < kMost, "transposed convolution of an extent of ",
                a.in, " with a window of ", a.kernel);
  const int64_t extra = entry(attrs, "output_padding", i, 0);
  const std::string auto_pad = attrs.get_string("auto_pad", "NOTSET");
  const bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  const int64_t full = (a.in - 1) * a.stride + a.reach() + extra;  // extent without any padding
  const int64_t wanted = entry(attrs, "output_shape", i, same ? a.in * a.stride : -1);
  if (wanted >= 0) {
    a.out = wanted;
    const int64_t total = std::max<int64_t>(0, full - wanted);
    a.pad_begin = auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
    a.pad_end = total - a.pad_begin;
    return a;
  }
  a.pad_begin = auto_pad == "VALID" ? 0 : entry(attrs, "pads", i, 0);
  a.pad_end = auto_pad == "VALID" ? 0 : entry(attrs, "pads", rank + i, 0);
  a.out = full - a.pad_begin - a.pad_end;
  base::require(a.out >= 0, "transposed convolution has a result extent of ", a.out);
  return a;
}

}  // namespace

tensor::Shape infer_conv_transpose_shape(const ir::Attrs& attrs, const tensor::Shape& x,
                                         const tensor::Shape& w) {
  if (!x.has_rank() || !w.has_rank()) return tensor::Shape::unknown_rank();
  base::require(x.rank() >= 3 && w.rank() == x.rank(), "transposed convolution of ", x.to_string(),
                " with weights ", w.to_string());
  const int64_t group = attrs.get_int("group", 1);
  base::require(group >= 1 && group < (1 << 24), "group ", group, " is outside [1, 2^24)");
  if (x[1].is_static() && w[0].is_static()) {
    base::require(x[1] == w[0] && x[1].value() % group == 0, "channels of ", x.to_string(), " and weights ",
                  w.to_string(), " do not fit ", group, " groups");
  }
  std::vector<Dim> out{x[0], w[1].is_static() ? times(w[1], group) : Dim::unknown()};
  const size_t rank = x.rank() - 2;
  for (size_t i = 0; i < rank; ++i) {
    const bool known = x[i + 2].is_static() && w[i + 2].is_static();
    const WindowAxis axis{.in = known ? x[i + 2].value() : 1, .kernel = known ? w[i + 2].value() : 1};
    out.push_back(known ? Dim(resolve_transposed(attrs, i, rank, axis).out) : Dim::unknown());
  }
  return tensor::Shape(std::move(out));
}

Window transpose_window(const ir::Attrs& attrs, const Dims& kernel, const Dims& in) {
  if (in.size() > 3) base::fail_unsupported("windows have at most 3 spatial axes, got ", in.size());
  Window w;
  for (size_t i = 0; i < in.size(); ++i) {
    w.axes[3 - in.size() + i] = resolve_transposed(attrs, i, in.size(), {.in = in[i], .kernel = kernel[i]});
  }
  return w;
}

}  // namespace trireme::ops
