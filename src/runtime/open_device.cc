// Opens a device by name: the only place that knows all backends.
#include "runtime/open_device.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>

#include "backend/cpu/device/cpu_device.h"
#include "backend/cuda/device/cuda_device.h"
#include "backend/cuda/kept/plan_store.h"
#include "base/error.h"
#include "comm/world.h"

namespace trireme::runtime {
namespace {

void add_gpus(std::vector<DeviceLine>& lines) {
  try {
    for (const cuda::GpuInfo& gpu : cuda::list_gpus()) {
      lines.push_back({base::concat("cuda:", gpu.ordinal), cuda::open_gpu(gpu.ordinal)->describe()});
    }
  } catch (const base::Error& e) {
    lines.push_back({"cuda", e.message(), false});
  }
  if (!cuda::has_toolkit()) lines.push_back({"emulated", cuda::open_emulated()->describe()});
}

}  // namespace

std::vector<DeviceLine> list_devices() {
  std::vector<DeviceLine> lines{{"cpu", cpu::CpuDevice().describe()}};
  add_gpus(lines);
  return lines;
}

namespace {

constexpr std::string_view kShared = ":shared";

/// The number in "cuda:N" for the kind "cuda", 0 for "cuda" alone; nothing for other names.
std::optional<int> ordinal_of(std::string_view name, std::string_view kind) {
  if (!name.starts_with(kind)) return std::nullopt;
  const std::string_view rest = name.substr(kind.size());
  if (rest.empty() || rest == kShared) return 0;
  if (rest[0] != ':') return std::nullopt;
  const char* end = rest.data() + rest.size();
  int ordinal = -1;
  const auto [at, error] = std::from_chars(rest.data() + 1, end, ordinal);
  return error == std::errc() && at == end && ordinal >= 0 ? std::optional(ordinal) : std::nullopt;
}

[[noreturn]] void fail_name(std::string_view name) {
  base::fail_invalid("no device '", name,
                     "'; there are cpu, cuda, cuda:N, emulated and emulated:N (see trireme devices)");
}

int emulated_devices() {
  constexpr int kUsual = 16;
  const char* text = std::getenv("TRIREME_EMULATED_DEVICES");
  if (text == nullptr) return kUsual;
  const int count = std::atoi(text);
  base::require(count > 0, "TRIREME_EMULATED_DEVICES is a number above 0, not '", text, "'");
  return count;
}

/// "cuda" or "emulated" if ranks take devices in turn; empty for names of single devices.
std::string kind_in_turn(const std::string& name) {
  for (const std::string kind : {"cuda", "emulated"}) {
    if (name == kind || name == kind + std::string(kShared)) return kind;
  }
  return {};
}

}  // namespace

std::unique_ptr<tensor::Device> open_device(std::string_view name) {
  if (name == "cpu") return std::make_unique<cpu::CpuDevice>();
  if (const auto ordinal = ordinal_of(name, "emulated")) return cuda::open_emulated(*ordinal);
  if (const auto ordinal = ordinal_of(name, "cuda")) return cuda::open_gpu(*ordinal);
  fail_name(name);
}

std::string device_of_rank(const std::string& name, LocalRank local) {
  const std::string kind = kind_in_turn(name);
  if (kind.empty() || (local.ranks == 1 && local.rank == 0)) return name;
  const auto count = kind == "cuda" ? static_cast<int>(cuda::list_gpus().size()) : emulated_devices();
  if (local.ranks > count && name == kind) {
    base::fail_invalid(local.ranks, " ranks on this machine, which shows ", count, " devices for ", kind,
                       ": start fewer ranks, or let them share devices with --oversubscribe-devices (device ",
                       kind, kShared, ")");
  }
  return base::concat(kind, ":", local.rank % count);
}

std::string device_of_rank(const std::string& name) {
  const auto launched = comm::launched_rank();
  if (!launched || kind_in_turn(name).empty()) return name;
  if (kind_in_turn(name) == "cuda" && std::getenv("CUDA_VISIBLE_DEVICES") != nullptr &&
      cuda::list_gpus().size() == 1 && launched->local_size > 1)
    return "cuda:0";
  return device_of_rank(name,
                        {launched->local_rank, std::max(launched->local_size, launched->local_rank + 1)});
}

std::string device_of_rank(const std::string& name, comm::Communicator& world) {
  const std::string kind = kind_in_turn(name);
  if (kind.empty() || world.size() == 1) return name;
  // Ranks that see the same devices divide them among themselves: those of one machine, unless the launcher
  // shows each rank its own.
  constexpr size_t kText = 256;
  std::array<char, kText> mine{};
  std::string text(36, ' ');
  std::ifstream("/proc/sys/kernel/random/boot_id").read(text.data(), static_cast<long>(text.size()));
  if (kind == "cuda") {
    for (const cuda::GpuInfo& gpu : cuda::list_gpus()) text += gpu.uuid.substr(0, 12);
  }
  std::copy_n(text.begin(), std::min(text.size(), kText - 1), mine.begin());
  std::vector<std::array<char, kText>> all(static_cast<size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(mine)), comm::as_bytes(std::span(all)), "devices of ranks");
  LocalRank local{0, 0};
  for (int r = 0; r < world.size(); ++r) {
    if (all[static_cast<size_t>(r)] != mine) continue;
    local.rank += r < world.rank();
    ++local.ranks;
  }
  return local.ranks == 1 ? kind + ":0" : device_of_rank(name, local);
}

std::string shared_device(const std::string& name) {
  const std::string kind = kind_in_turn(name);
  return kind.empty() ? name : kind + std::string(kShared);
}

tensor::DeviceKind kind_of_device(std::string_view name) {
  if (name == "cpu") return tensor::DeviceKind::cpu;
  if (!ordinal_of(name, "emulated") && !ordinal_of(name, "cuda")) fail_name(name);
  return tensor::DeviceKind::cuda;
}

std::string take_notice(base::SharedCache& packs) { return cuda::plan_store_of(packs)->take_notice(); }

}  // namespace trireme::runtime
