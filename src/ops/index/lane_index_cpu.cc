// Kernels of gather_elements and scatter_elements by lanes: runs of indices are checked and turned into
// offsets without branches, then a plain loop moves or joins elements of one size.
#include "ops/index/lane_index_cpu.h"

#include <cstring>

#include "backend/cpu/device/cpu_stream.h"
#include "ops/index/join_update.h"
#include "ops/kernel_forms.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

using tensor::Dims;

/// How lanes along the axis are grouped: a place stands for all indices except those of the axis and of the
/// last dimension.
struct LanePlan {
  Dims places;                             // extents of the indices that enumerate places
  std::vector<int64_t> x_steps, at_steps;  // steps along these
  int64_t count = 1;                       // number of places
  int64_t n = 1, extent = 1;               // indices per lane, and the extent that they index
  int64_t axis_step = 1, at_step = 1;      // steps along the axis, in x and in the indices
  bool is_last = true;                     // the axis is the last dimension: indices of a lane are contiguous
  int64_t columns = 1;                     // otherwise the number of adjacent lanes

  int64_t indices() const { return count * n * columns; }
};

LanePlan plan_lanes(const ir::NodeView& node) {
  Dims x = node.in_dims(0), at = node.in_dims(1);
  if (x.empty()) x = {1}, at = {1};
  const size_t axis = ir::normal_axis(node.attrs.get_int("axis", 0), x.size());
  const std::vector<int64_t> x_steps = dense_steps(x), at_steps = dense_steps(at);
  LanePlan p{.n = at[axis], .extent = x[axis], .axis_step = x_steps[axis], .at_step = at_steps[axis]};
  if (axis + 1 < x.size()) p.is_last = false, p.columns = at.back();
  for (size_t d = 0; d < x.size(); ++d) {
    if (d == axis || d + 1 == x.size()) continue;
    p.places.push_back(at[d]);
    p.x_steps.push_back(x_steps[d]);
    p.at_steps.push_back(at_steps[d]);
    p.count *= at[d];
  }
  return p;
}

/// Where the lanes of a place begin in x and in the indices.
struct Place {
  int64_t x = 0, at = 0;
};
Place place_of(const LanePlan& p, int64_t index) {
  Place place;
  for (size_t d = p.places.size(); d-- > 0; index /= p.places[d]) {
    place.x += index % p.places[d] * p.x_steps[d];
    place.at += index % p.places[d] * p.at_steps[d];
  }
  return place;
}

/// Offsets of up to kOffsetRun elements of x; -1 for indices out of range.
struct Offsets {
  int64_t at[kOffsetRun];
  bool all_valid;
};

/// With `beside`, neighbouring indices belong to neighbouring lanes, otherwise to the same lane.
template <class I>
void resolve(const LanePlan& p, const I* indices, int64_t count, bool beside, Offsets& to) {
  const int64_t step = p.axis_step, column = beside ? 1 : 0;
  bool all_valid = true;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t given = indices[i], k = given < 0 ? given + p.extent : given;
    const bool is_valid = static_cast<uint64_t>(k) < static_cast<uint64_t>(p.extent);
    all_valid &= is_valid;
    to.at[i] = is_valid ? k * step + i * column : -1;
  }
  to.all_valid = all_valid;
}

/// Turns a node's indices into offsets and reports those out of range.
class Resolver {
 public:
  explicit Resolver(const ir::NodeView& node) : is_wide_(node.in[1].dtype == tensor::DType::i64) {}
  void operator()(const LanePlan& p, const ir::RunArgs& args, int64_t first, int64_t count,
                  Offsets& to) const {
    const bool beside = !p.is_last;
    if (is_wide_) {
      resolve(p, in_ptr<int64_t>(args, 1) + first, count, beside, to);
    } else {
      resolve(p, in_ptr<int32_t>(args, 1) + first, count, beside, to);
    }
    if (to.all_valid || args.status == nullptr) return;
    for (int64_t i = 0; i < count; ++i) {
      if (to.at[i] >= 0) continue;
      const int64_t given =
          is_wide_ ? in_ptr<int64_t>(args, 1)[first + i] : in_ptr<int32_t>(args, 1)[first + i];
      return args.status->fail("an index is out of range", given);
    }
  }

 private:
  bool is_wide_;
};

/// Calls run(first in x, first index, count) for lanes [begin, end) of a place in runs; those of one lane
/// come in order.
template <class F>
void for_runs(const LanePlan& p, const Place& place, int64_t begin, int64_t end, const F& run) {
  if (p.is_last) {
    for (int64_t j = 0; j < p.n; j += kOffsetRun) run(place.x, place.at + j, std::min(kOffsetRun, p.n - j));
    return;
  }
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t c = begin; c < end; c += kOffsetRun)
      run(place.x + c, place.at + j * p.at_step + c, std::min(kOffsetRun, end - c));
  }
}

/// Processes all lanes in parallel: places, and pieces of columns if there are few places.
template <class F>
void for_lanes(const LanePlan& p, base::ThreadPool& pool, const F& run) {
  constexpr int64_t kTask = 16384;  // indices per task
  const int64_t of_place = std::max<int64_t>(1, p.n * p.columns);
  const int64_t pieces = std::clamp<int64_t>(of_place / kTask, 1, (p.columns + kOffsetRun - 1) / kOffsetRun);
  pool.for_range(p.count * pieces, std::max<int64_t>(1, kTask * pieces / of_place),
                 [&](int64_t first, int64_t last) {
                   for (int64_t task = first; task < last; ++task) {
                     const int64_t piece = task % pieces;
                     for_runs(p, place_of(p, task / pieces), p.columns * piece / pieces,
                              p.columns * (piece + 1) / pieces, run);
                   }
                 });
}

ir::BoundKernel bind_gather_lanes(const ir::NodeView& node) {
  const LanePlan p = plan_lanes(node);
  const Resolver resolver(node);
  const auto bind = [&](auto word) -> ir::BoundKernel {
    using W = decltype(word);
    return {[=](const ir::RunArgs& args) {
      const W* x = in_ptr<W>(args, 0);
      W* y = out_ptr<W>(args, 0);
      for_lanes(p, cpu::pool_of(args.stream), [&](int64_t x_first, int64_t first, int64_t count) {
        Offsets from;
        resolver(p, args, first, count, from);
        if (from.all_valid) {
          for (int64_t i = 0; i < count; ++i) y[first + i] = x[x_first + from.at[i]];
        } else {
          for (int64_t i = 0; i < count; ++i) {
            if (from.at[i] >= 0) y[first + i] = x[x_first + from.at[i]];
          }
        }
      });
    }};
  };
  switch (element_bytes_of(node.in[0].dtype)) {
    case 1: return bind(uint8_t{});
    case 2: return bind(uint16_t{});
    case 4: return bind(uint32_t{});
    default: return bind(uint64_t{});
  }
}

/// Updates into y at offsets, in their order.
using JoinRun = void (*)(void* y, const void* updates, const Offsets& to, int64_t count);

struct JoinRuns {
  template <class T, ScatterMode kMode>
  static JoinRun of() {
    return [](void* y, const void* updates, const Offsets& to, int64_t count) {
      T* out = static_cast<T*>(y);
      const T* u = static_cast<const T*>(updates);
      for (int64_t i = 0; i < count; ++i) {
        if (to.at[i] >= 0) join_update<T, kMode>(out[to.at[i]], u[i]);
      }
    };
  }
};

ir::BoundKernel bind_scatter(const ir::NodeView& node) {
  const LanePlan p = plan_lanes(node);
  const Resolver resolver(node);
  const JoinRun join = join_loop<JoinRuns>(node);
  const int64_t size = element_bytes_of(node.in[0].dtype), bytes = tensor::bytes_of(node.out[0]);
  return {[=](const ir::RunArgs& args) {
    if (args.out[0] != args.in[0] && bytes > 0)
      std::memcpy(args.out[0], args.in[0], static_cast<size_t>(bytes));
    std::byte* y = out_ptr<std::byte>(args, 0);
    const std::byte* updates = in_ptr<std::byte>(args, 2);
    for_lanes(p, cpu::pool_of(args.stream), [&](int64_t x_first, int64_t first, int64_t count) {
      Offsets to;
      resolver(p, args, first, count, to);
      join(y + x_first * size, updates + first * size, to, count);
    });
  }};
}

ir::Refusal refuse_odd(const ir::NodeView& n) {
  if (auto why = refuse_empty(n)) return why;
  if (tensor::bits_of(n.in[0].dtype) < 8 || tensor::bits_of(n.in[0].dtype) > 64)
    return base::concat("elements of ", name_of(n.in[0].dtype));
  return std::nullopt;
}

ir::Kernel lanes(std::function<ir::Refusal(const ir::NodeView&)> refuse,
                 ir::BoundKernel (*bind)(const ir::NodeView&)) {
  ir::Kernel k{.name = "lanes"};
  k.refuse = std::move(refuse);
  k.prepare = [bind](const ir::KernelInit& init) { return bind(init.node); };
  return k;
}

}  // namespace

ir::Kernel gather_lanes_kernel() { return lanes(refuse_odd, bind_gather_lanes); }

ir::Refusal refuse_join(const ir::NodeView& n) {
  if (auto why = refuse_odd(n)) return why;
  if (scatter_mode(n.attrs) != ScatterMode::none && !has_arithmetic(n.in[0].dtype))
    return base::concat("no arithmetic on ", name_of(n.in[0].dtype));
  return std::nullopt;
}

ir::Kernel scatter_lanes_kernel() {
  ir::Kernel k = lanes(refuse_join, bind_scatter);
  k.may_overwrite = 1;
  return k;
}

}  // namespace trireme::ops
