// Random numbers on CPU, from a counter-based generator: a value depends only on seed and element.
#include <bit>
#include <cmath>
#include <numbers>

#include "backend/cpu/device/cpu_stream.h"
#include "base/rng.h"
#include "ops/elementwise/row_kernels.h"
#include "ops/random/random_ops.h"

namespace trireme::ops {
namespace {

uint64_t seed_of(const ir::Attrs& attrs) { return std::bit_cast<uint64_t>(attrs.get_float("seed", 0)); }

// Different streams, so that ops with the same seed draw different numbers.
constexpr uint64_t kValues = 1, kCoins = 2, kClasses = 3;

double uniform_at(uint64_t seed, uint64_t stream, int64_t i) {
  const base::PhiloxBlock b = base::philox_block(seed, stream, static_cast<uint64_t>(i));
  return base::uniform_f64(b[0], b[1]);
}

/// Box-Muller transform; 1 - u is in (0, 1], so the logarithm is finite.
double normal_at(uint64_t seed, int64_t i) {
  const base::PhiloxBlock b = base::philox_block(seed, kValues, static_cast<uint64_t>(i));
  const double radius = std::sqrt(-2 * std::log(1 - base::uniform_f64(b[0], b[1])));
  return radius * std::cos(2 * std::numbers::pi * base::uniform_f64(b[2], b[3]));
}

/// Calls set(T&, i) for each result element.
template <class Set>
ir::BoundKernel fill(const ir::NodeView& n, const Set& set) {
  const int64_t count = tensor::element_count(n.out_dims(0));
  return tensor::visit_dtype(n.out[0].dtype, [&](auto zero) -> ir::BoundKernel {
    using T = decltype(zero);
    return {[count, set](const ir::RunArgs& args) {
      T* y = static_cast<T*>(args.out[0]);
      cpu::pool_of(args.stream).for_range(count, 4096, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = static_cast<T>(set(args.in, i));
      });
    }};
  });
}

using ReadFn = double (*)(const void*, int64_t);
ReadFn reader_of(tensor::DType dtype) {
  return tensor::visit_dtype(dtype, [](auto zero) -> ReadFn {
    using T = decltype(zero);
    return [](const void* p, int64_t i) { return static_cast<double>(static_cast<const T*>(p)[i]); };
  });
}

ir::BoundKernel bind_random(const ir::NodeView& n, bool is_normal) {
  const uint64_t seed = seed_of(n.attrs);
  if (is_normal) {
    const double mean = n.attrs.get_float("mean", 0), scale = n.attrs.get_float("scale", 1);
    return fill(n, [=](const void* const*, int64_t i) { return mean + scale * normal_at(seed, i); });
  }
  const double low = n.attrs.get_float("low", 0), high = n.attrs.get_float("high", 1);
  return fill(
      n, [=](const void* const*, int64_t i) { return low + (high - low) * uniform_at(seed, kValues, i); });
}

ir::BoundKernel bind_bernoulli(const ir::NodeView& n) {
  const uint64_t seed = seed_of(n.attrs);
  const ReadFn read = reader_of(n.in[0].dtype);
  return fill(n, [=](const void* const* in, int64_t i) {
    return uniform_at(seed, kCoins, i) < read(in[0], i) ? 1.0 : 0.0;
  });
}

/// Draws by inverting the cumulative distribution of softmax(x).
ir::BoundKernel bind_multinomial(const ir::NodeView& n) {
  const int64_t classes = n.in_dims(0)[1], samples = n.out_dims(0)[1];
  const uint64_t seed = seed_of(n.attrs);
  const ReadFn read = reader_of(n.in[0].dtype);
  return fill(n, [=](const void* const* in, int64_t i) {
    const int64_t row = i / samples * classes;
    double largest = read(in[0], row), total = 0;
    for (int64_t c = 1; c < classes; ++c) largest = std::max(largest, read(in[0], row + c));
    for (int64_t c = 0; c < classes; ++c) total += std::exp(read(in[0], row + c) - largest);
    double left = uniform_at(seed, kClasses, i) * total;
    for (int64_t c = 0; c + 1 < classes; ++c) {
      left -= std::exp(read(in[0], row + c) - largest);
      if (left < 0) return static_cast<double>(c);
    }
    return static_cast<double>(classes - 1);
  });
}

std::vector<ir::Kernel> reference(std::function<ir::BoundKernel(const ir::NodeView&)> bind) {
  ir::Kernel k{.name = "reference", .is_reference = true};
  k.refuse = [](const ir::NodeView& n) -> ir::Refusal {
    if (!has_arithmetic(n.out[0].dtype)) return base::concat("no draws of ", name_of(n.out[0].dtype));
    return std::nullopt;
  };
  k.prepare = [bind = std::move(bind)](const ir::KernelInit& init) { return bind(init.node); };
  return {k};
}

}  // namespace

std::vector<ir::Kernel> random_cpu_kernels(bool is_normal) {
  return reference([is_normal](const ir::NodeView& n) { return bind_random(n, is_normal); });
}
std::vector<ir::Kernel> bernoulli_cpu_kernels() { return reference(bind_bernoulli); }
std::vector<ir::Kernel> multinomial_cpu_kernels() { return reference(bind_multinomial); }

}  // namespace trireme::ops
