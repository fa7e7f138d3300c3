// Measures the ceilings for the verbs that print rates.
#include "cli/rates.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/machine/memory_read.h"
#include "base/threads/thread_pool.h"
#include "passes/lists/lists.h"
#include "runtime/device_speed.h"
#include "runtime/open_device.h"
#include "train/flop.h"

namespace trireme::cli {
namespace {

bool is_cpu(const std::string& device) { return runtime::kind_of_device(device) == tensor::DeviceKind::cpu; }

/// What one GPU of the place reaches; empty for devices that are emulated on the host.
runtime::Ceilings gpu_ceilings(const Place& place) {
  if (place.ranks > 1 && place.device.find("shared") != std::string::npos) return {};
  const auto device = runtime::open_device(runtime::device_of_rank(place.device, {0, place.ranks}));
  if (device->ordinal() < 0) return {};
  base::ThreadPool pool(std::max(1, place.threads));
  return runtime::measure_ceilings(*device, pool, {.scale = 0.5, .seconds = 0.05});
}

}  // namespace

base::Ceiling product_ceiling(const Place& place, passes::Precision precision) {
  if (precision == passes::Precision::fp8) return {};
  if (is_cpu(place.device))
    return {train::measure_product_rate(place.threads, precision),
            base::concat("products of square matrices on ", place.threads, " threads")};
  constexpr std::pair<passes::Precision, tensor::DType> kTypes[] = {
      {passes::Precision::f32, tensor::DType::f32},
      {passes::Precision::bf16, tensor::DType::bf16},
      {passes::Precision::f16, tensor::DType::f16}};
  for (const auto& [p, type] : kTypes) {
    if (p == precision) return {place.ranks * gpu_ceilings(place).tflop_s(type) * 1e12, "large products"};
  }
  return {};
}

base::Ceiling read_ceiling(const Place& place, int64_t bytes) {
  constexpr int64_t kMost = int64_t{512} << 20, kLargestCache = int64_t{256} << 20;
  if (!is_cpu(place.device)) {
    if (bytes / place.ranks < kLargestCache) return {};
    return {place.ranks * gpu_ceilings(place).copy_gbytes_s * 1e9, "copies"};
  }
  base::ThreadPool pool(std::max(1, place.threads));
  const auto words = static_cast<size_t>(std::clamp(bytes, int64_t{1} << 16, kMost) / 8);
  const std::vector<uint64_t> memory(words, 1);
  const size_t part = words / static_cast<size_t>(pool.size());
  std::vector<uint64_t> sums(static_cast<size_t>(pool.size()) *
                             16);  // 128 bytes apart: not in one cache line
  double best_s = 1e9;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(150);
  while (std::chrono::steady_clock::now() < end) {
    const auto from = std::chrono::steady_clock::now();
    pool.run(pool.size(), [&](int64_t i) {
      sums[static_cast<size_t>(i) * 16] =
          base::read_through({memory.data() + static_cast<size_t>(i) * part, part});
    });
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count());
  }
  base::check(sums[0] == part, "the memory that was read holds ones");
  const double read = static_cast<double>(part * 8) * pool.size();
  return {read / best_s, base::concat("reading as many bytes on ", place.threads, " threads")};
}

double whole_flop(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes) {
  const ir::Graph bound = passes::bind_shapes(graph, shapes);
  double flop = 0;
  for (const ir::Node& node : bound.nodes()) flop += ir::cost_of(node.op->schema, bound.view(node)).flop;
  return flop;
}

}  // namespace trireme::cli
