// Times one collective over sizes, beside a plain copy by all ranks, and fits the two-term cost model.
#include "comm/bench.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "base/clock.h"
#include "base/error.h"

namespace trireme::comm {
namespace {

/// Returns the slowest rank's value on every rank.
double slowest(Communicator& ranks, double value) {
  ranks.all_reduce(as_bytes(std::span(&value, 1)), {tensor::DType::f64, ReduceOp::max});
  return value;
}

/// Seconds of one call of each: the median over the repeats (calls alternate) of the slowest rank's mean.
std::vector<double> times_of(Communicator& ranks, const BenchSpec& spec,
                             std::span<const std::function<void()>> calls, const BenchDevice* on) {
  const base::SystemClock clock;
  const auto measure = [&](const std::function<void()>& call, int64_t count) {
    ranks.barrier();
    const int64_t begin = clock.now_ns();
    for (int64_t i = 0; i < count; ++i) call();
    if (on != nullptr) on->stream.synchronize();
    return slowest(ranks, static_cast<double>(clock.now_ns() - begin) / static_cast<double>(count));
  };
  const double budget_ns = static_cast<double>(spec.min_ns) / spec.repeats;
  std::vector<int64_t> counts;
  for (const auto& call : calls) {
    const double warm_ns = std::max(1.0, std::min(measure(call, 2), measure(call, 2)));
    counts.push_back(static_cast<int64_t>(std::clamp(budget_ns / warm_ns, 1.0, 1e5)));
  }
  std::vector<std::vector<double>> times(calls.size());
  for (int i = 0; i < spec.repeats; ++i) {
    for (size_t c = 0; c < calls.size(); ++c) times[c].push_back(measure(calls[c], counts[c]));
  }
  std::vector<double> medians;
  for (std::vector<double>& t : times) {
    std::nth_element(t.begin(), t.begin() + spec.repeats / 2, t.end());
    medians.push_back(t[static_cast<size_t>(spec.repeats / 2)] * 1e-9);
  }
  return medians;
}

/// Calls one operation, in place where it allows that, as training does. `data` and `other` hold [bytes].
void call_once(Communicator& c, Collective what, Bytes data, Bytes other) {
  const size_t block = data.size() / static_cast<size_t>(c.size());
  const Bytes own = data.subspan(static_cast<size_t>(c.rank()) * block, block);
  switch (what) {
    case Collective::all_reduce: return c.all_reduce(data, {});
    case Collective::reduce_scatter: return c.reduce_scatter(data, own, {});
    case Collective::all_gather: return c.all_gather(own, data);
    case Collective::broadcast: return c.broadcast(data, 0);
    case Collective::all_to_all: return c.all_to_all(data, other);
    default: base::fail_invalid("no benchmark of ", to_string(what));
  }
}

/// A zeroed buffer in the memory that the ranks work on: a device's or the host's.
class Buffer {
 public:
  Buffer(int64_t bytes, const BenchDevice* on) : host_(static_cast<size_t>(bytes / 4)) {
    if (on == nullptr) return;
    memory_ = on->device.allocate(bytes);
    on->stream.upload(memory_.get(), host_.data(), bytes);
    on->stream.synchronize();
  }
  Bytes span() const {
    const auto bytes = host_.size() * sizeof(float);
    if (memory_ != nullptr) return {static_cast<std::byte*>(memory_.get()), bytes};
    return {reinterpret_cast<std::byte*>(const_cast<float*>(host_.data())), bytes};
  }

 private:
  std::vector<float> host_;
  std::shared_ptr<void> memory_;
};

}  // namespace

double bus_factor(Collective what, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (what) {
    case Collective::all_reduce: return 2 * share;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all: return share;
    default: return 1;
  }
}

std::vector<int64_t> bench_sizes(const BenchSpec& spec, int ranks) {
  base::require(spec.min_bytes >= 1 && spec.min_bytes <= spec.max_bytes && spec.max_bytes <= kMostBenchBytes,
                "sizes of a benchmark are 1 byte to 1 TiB, min is not above max");
  std::vector<int64_t> sizes;
  const int64_t unit = 64 * ranks;  // A multiple of it gives each rank's block whole cache lines.
  for (int64_t want = spec.min_bytes; want <= spec.max_bytes; want *= 4) {
    const int64_t up = (want + unit - 1) / unit * unit;
    const int64_t bytes = up <= spec.max_bytes ? up : std::max(unit, spec.max_bytes / unit * unit);
    if (sizes.empty() || bytes > sizes.back()) sizes.push_back(bytes);
  }
  return sizes;
}

std::vector<BenchPoint> run_bench(Communicator& ranks, const BenchSpec& spec, const BenchDevice* on) {
  std::vector<BenchPoint> points;
  for (const int64_t bytes : bench_sizes(spec, ranks.size())) {
    const Buffer a(bytes, on), b(bytes, on);
    const Bytes data = a.span(), other = b.span();
    BenchPoint p{.bytes = bytes};
    const std::array<std::function<void()>, 2> calls{
        [&] { call_once(on == nullptr ? ranks : on->group, spec.what, data, other); },
        [&] {
          if (on != nullptr) return on->stream.copy(other.data(), data.data(), bytes);
          std::memcpy(other.data(), data.data(), data.size());
        }};
    const std::vector<double> seconds = times_of(ranks, spec, calls, on);
    p.seconds = seconds[0];
    const double copy_s = seconds[1];
    p.algorithm_gb_s = static_cast<double>(bytes) / p.seconds * 1e-9;
    p.bus_gb_s = p.algorithm_gb_s * bus_factor(spec.what, ranks.size());
    p.copy_gb_s = static_cast<double>(bytes) / copy_s * 1e-9;
    points.push_back(p);
  }
  return points;
}

BenchFit fit(std::span<const BenchPoint> points) {
  // Minimises sum of ((latency + slope x - t) / t)^2: weights w = 1 / t^2.
  double w = 0, wx = 0, wxx = 0, wt = 0, wxt = 0;
  for (const BenchPoint& p : points) {
    const double x = static_cast<double>(p.bytes), weight = 1 / (p.seconds * p.seconds);
    w += weight;
    wx += weight * x;
    wxx += weight * x * x;
    wt += weight * p.seconds;
    wxt += weight * x * p.seconds;
  }
  const double det = w * wxx - wx * wx;
  base::require(points.size() >= 2 && det > 0, "a fit needs two sizes");
  const double slope = (w * wxt - wx * wt) / det;
  if (slope <= 0) return {wt / w, 0};
  const double latency = (wt - slope * wx) / w;
  if (latency < 0) return {0, wxx / wxt};  // sizes too large to show a latency: a line through zero
  return {latency, 1 / slope};
}

}  // namespace trireme::comm
