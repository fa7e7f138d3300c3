// CPU kernels that determine for every result index along each axis where it comes from: pad, crop, reversed
// sequences.
#include <algorithm>
#include <cstring>

#include "base/memory/memory_budget.h"
#include "backend/cpu/device/cpu_stream.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/shape/fill_ops.h"
#include "ops/shape/strided_copy.h"

namespace trireme::ops {
namespace {

constexpr int64_t kFill = -1;

/// source[d][i]: index of x along d that result index i copies, or kFill.
using AxisMaps = std::vector<std::vector<int64_t>>;

/// A run of result elements in one row: consecutive source elements, or the fill value.
struct Segment {
  int64_t at, from, count;  // from = kFill: fill
};

struct MapPlan {
  tensor::Dims out;  // all but the last dimension
  std::vector<std::vector<int64_t>>
      offset;                // element offsets in x of all but the last dimension, kFill: fill
  std::vector<Segment> row;  // the last dimension
  int64_t rows = 1, columns = 0, size = 0;
};

MapPlan plan_of(const tensor::Dims& x, const AxisMaps& maps, int64_t size) {
  MapPlan plan;
  plan.size = size;
  const std::vector<int64_t> steps = dense_steps(x);
  for (size_t d = 0; d + 1 < maps.size(); ++d) {
    plan.out.push_back(static_cast<int64_t>(maps[d].size()));
    plan.rows *= plan.out.back();
    plan.offset.push_back(maps[d]);
    for (int64_t& o : plan.offset.back()) o = o == kFill ? kFill : o * steps[d];
  }
  const std::vector<int64_t>& last = maps.back();
  plan.columns = static_cast<int64_t>(last.size());
  for (int64_t i = 0; i < plan.columns; ++i) {
    const int64_t from = last[static_cast<size_t>(i)];
    if (!plan.row.empty()) {
      Segment& s = plan.row.back();
      if (from == kFill ? s.from == kFill : s.from != kFill && s.from + s.count == from) {
        ++s.count;
        continue;
      }
    }
    plan.row.push_back({i, from, 1});
  }
  return plan;
}

/// Writes `count` elements of the same value: bytes that are alike at once, others by doubling what is there.
void fill_elements(std::byte* y, const std::byte* value, int64_t count, int64_t size) {
  if (count == 0) return;
  const auto all = static_cast<size_t>(count * size), one = static_cast<size_t>(size);
  if (std::all_of(value, value + size, [&](std::byte b) { return b == *value; })) {
    std::memset(y, static_cast<int>(*value), all);
    return;
  }
  std::memcpy(y, value, one);
  for (size_t done = one; done < all; done *= 2) std::memcpy(y + done, y, std::min(done, all - done));
}

void run_map(const MapPlan& plan, const std::byte* fill, const ByteArgs& args) {
  args.pool.for_range(plan.rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, plan.columns)),
                      [&](int64_t begin, int64_t end) {
                        for (int64_t r = begin; r < end; ++r) {
                          int64_t base = 0, rest = r;
                          for (size_t d = plan.out.size(); d-- > 0 && base != kFill; rest /= plan.out[d]) {
                            const int64_t o = plan.offset[d][static_cast<size_t>(rest % plan.out[d])];
                            base = o == kFill ? kFill : base + o;
                          }
                          std::byte* y = args.out[0] + r * plan.columns * plan.size;
                          if (base == kFill) {
                            fill_elements(y, fill, plan.columns, plan.size);
                            continue;
                          }
                          for (const Segment& s : plan.row) {
                            if (s.from == kFill) {
                              fill_elements(y + s.at * plan.size, fill, s.count, plan.size);
                            } else {
                              std::memcpy(y + s.at * plan.size, args.in[0] + (base + s.from) * plan.size,
                                          static_cast<size_t>(s.count * plan.size));
                            }
                          }
                        }
                      });
}

/// The index in [0, n) that stands for position i outside this range.
int64_t source_index(int64_t i, int64_t n, const std::string& mode) {
  if (i >= 0 && i < n) return i;
  if (mode == "constant" || n == 0) return kFill;
  if (mode == "edge") return i < 0 ? 0 : n - 1;
  if (mode == "wrap") return ((i % n) + n) % n;
  if (n == 1) return 0;
  const int64_t period = 2 * (n - 1);  // for reflect, which does not repeat the edge
  const int64_t k = ((i % period) + period) % period;
  return k < n ? k : period - k;
}

ir::BoundKernel bind_pad(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), out = n.out_dims(0);
  const Pads pads = pads_of(n);
  const std::string mode = n.attrs.get_string("mode", "constant");
  AxisMaps maps(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    for (int64_t i = 0; i < out[d]; ++i) maps[d].push_back(source_index(i - pads.before[d], x[d], mode));
  }
  if (maps.empty()) maps.push_back({0});
  const MapPlan plan = plan_of(x.empty() ? tensor::Dims{1} : x, maps, element_bytes_of(n.in[0].dtype));
  const bool has_value = n.present(2);
  return bind_bytes(n, [plan, has_value](const ByteArgs& args) {
    static constexpr std::array<std::byte, 16> kZero{};
    run_map(plan, has_value ? args.in[2] : kZero.data(), args);
  });
}

/// Adds dy to the elements of x from which it was copied, in the order of dy; sums have T's arithmetic type.
template <class T>
void add_back(const std::vector<std::vector<int64_t>>& offsets, const T* dy, T* dx, int64_t count) {
  std::fill_n(dx, count, static_cast<T>(0));
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < offsets.size(); ++d) rows *= static_cast<int64_t>(offsets[d].size());
  const std::vector<int64_t>& last = offsets.back();
  for (int64_t r = 0; r < rows; ++r) {
    int64_t base = 0, rest = r;
    for (size_t d = offsets.size() - 1; d-- > 0;) {
      const int64_t n = static_cast<int64_t>(offsets[d].size());
      base += offsets[d][static_cast<size_t>(rest % n)];
      rest /= n;
    }
    for (int64_t from : last) {
      T& sum = dx[base + from];
      sum = static_cast<T>(static_cast<Arithmetic<T>>(sum) + static_cast<Arithmetic<T>>(*dy++));
    }
  }
}

ir::BoundKernel bind_pad_grad(const ir::NodeView& n) {
  const tensor::Dims dy = n.in_dims(0), x = n.out_dims(0);
  const Pads pads = pads_of(n);
  const std::string mode = n.attrs.get_string("mode", "reflect");
  const std::vector<int64_t> steps = dense_steps(x);
  AxisMaps offsets(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    for (int64_t i = 0; i < dy[d]; ++i)
      offsets[d].push_back(source_index(i - pads.before[d], x[d], mode) * steps[d]);
  }
  if (offsets.empty()) offsets.push_back({0});
  const int64_t count = tensor::element_count(x);
  return tensor::visit_dtype(n.in[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[offsets, count](const ir::RunArgs& args) {
      add_back<T>(offsets, static_cast<const T*>(args.in[0]), static_cast<T*>(args.out[0]), count);
    }};
  });
}

ir::BoundKernel bind_crop(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0), out = n.out_dims(0);
  AxisMaps maps(x.size());
  for (size_t d = 0; d < x.size(); ++d) {
    // The smaller extent is in the middle of the larger; an odd element more is at the end.
    const int64_t shift = x[d] > out[d] ? (x[d] - out[d]) / 2 : -((out[d] - x[d]) / 2);
    for (int64_t i = 0; i < out[d]; ++i) maps[d].push_back(source_index(i + shift, x[d], "constant"));
  }
  if (maps.empty()) maps.push_back({0});
  const MapPlan plan = plan_of(x.empty() ? tensor::Dims{1} : x, maps, element_bytes_of(n.in[0].dtype));
  return bind_bytes(n, [plan](const ByteArgs& args) {
    static constexpr std::array<std::byte, 16> kZero{};
    run_map(plan, kZero.data(), args);
  });
}

/// The first two axes are batch and time in either order.
ir::BoundKernel bind_reverse(const ir::NodeView& n) {
  const tensor::Dims x = n.in_dims(0);
  const bool time_first = n.attrs.get_int("time_axis", 0) == 0;
  const int64_t row =
      x[0] * x[1] == 0 ? 0 : tensor::element_count(x) / (x[0] * x[1]) * element_bytes_of(n.in[0].dtype);
  const int64_t time = time_first ? x[0] : x[1], batch = time_first ? x[1] : x[0], second = x[1];
  return {[=](const ir::RunArgs& args) {
    const int64_t* lengths = static_cast<const int64_t*>(args.in[1]);
    const std::byte* in = static_cast<const std::byte*>(args.in[0]);
    std::byte* out = static_cast<std::byte*>(args.out[0]);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = std::clamp<int64_t>(lengths[b], 0, time);
      if (length != lengths[b] && args.status != nullptr)
        args.status->fail("the length of a sequence is out of range", lengths[b]);
      for (int64_t t = 0; t < time; ++t) {
        const int64_t from = t < length ? length - 1 - t : t;
        const int64_t to_row = time_first ? t * second + b : b * second + t;
        const int64_t from_row = time_first ? from * second + b : b * second + from;
        std::memcpy(out + to_row * row, in + from_row * row, static_cast<size_t>(row));
      }
    }
  }};
}

/// Memory reserved for the tables of a node, which have an entry for each index of each axis: extents may
/// come from the data of a request. Null for small tables.
std::shared_ptr<const base::MemoryLease> room_for_tables(const ir::NodeView& n) {
  constexpr int64_t kEntryBytes = 40, kSmall = int64_t{1} << 15;  // growing maps, offsets, segments
  int64_t entries = 0;
  for (const tensor::Dims& dims : {n.in_dims(0), n.out_dims(0)}) {
    for (int64_t d : dims) entries = std::max(entries, d);
  }
  if (entries <= kSmall) return nullptr;
  return std::make_shared<const base::MemoryLease>(base::MemoryUse::scratch, entries * kEntryBytes);
}

ir::Kernel kernel_with_tables(std::function<ir::BoundKernel(const ir::NodeView&)> bind,
                              std::function<ir::Refusal(const ir::NodeView&)> refuse = {}) {
  ir::Kernel k{.name = "tables"};
  k.refuse = std::move(refuse);
  k.prepare = [bind = std::move(bind)](const ir::KernelInit& init) {
    const auto room = room_for_tables(init.node);
    ir::BoundKernel bound = bind(init.node);
    if (room != nullptr)
      bound.run = [room, run = std::move(bound.run)](const ir::RunArgs& args) { run(args); };
    return bound;
  };
  return k;
}

}  // namespace

std::vector<ir::Kernel> pad_cpu_kernels() { return {kernel_with_tables(bind_pad, needs_values({1, 3}))}; }
std::vector<ir::Kernel> pad_grad_cpu_kernels() {
  return {kernel_with_tables(bind_pad_grad, needs_values({1, 3}))};
}
std::vector<ir::Kernel> center_crop_pad_cpu_kernels() { return {kernel_with_tables(bind_crop)}; }
std::vector<ir::Kernel> reverse_sequence_cpu_kernels() {
  return {kernel_with_tables(bind_reverse, [](const ir::NodeView& n) -> ir::Refusal {
    if (tensor::bits_of(n.in[0].dtype) < 8)
      return base::concat("elements of ", name_of(n.in[0].dtype), " are packed");
    return std::nullopt;
  })};
}

}  // namespace trireme::ops
