// Ranks that have devices: the stream for collectives aside of the computation, groups on device memory, and
// a watchdog for collectives that no host thread waits in.
#include "runtime/device_ranks.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/guarded.h"
#include "comm/nccl.h"

namespace trireme::runtime {
namespace {

constexpr size_t kIdentity = 96;

/// A rank's machine and device, and whether it supports NCCL.
struct Place {
  std::array<char, kIdentity> device{};
  int32_t has_calls = 0, has_nccl = 0, wants_staged = 0;
};

Place place_of(cuda::CudaDevice& device) {
  Place place;
  std::string machine(36, ' ');
  std::ifstream("/proc/sys/kernel/random/boot_id").read(machine.data(), static_cast<long>(machine.size()));
  const std::string text = machine + device.identity();
  std::memcpy(place.device.data(), text.data(), std::min(text.size(), kIdentity - 1));
  place.has_calls = device.ordinal() < 0;
  place.has_nccl = comm::has_nccl() && comm::nccl_refusal().empty();
  const char* wish = std::getenv("TRIREME_DEVICE_LINK");
  place.wants_staged = wish != nullptr && std::string_view(wish) == "staged";
  return place;
}

}  // namespace

DeviceLinkChoice choose_link(comm::Communicator& world, cuda::CudaDevice& device) {
  const Place mine = place_of(device);
  std::vector<Place> all(static_cast<size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), comm::as_bytes(std::span(all)), "devices of ranks");
  std::set<std::string> devices;
  bool all_call = true, all_nccl = true;
  for (const Place& p : all) {
    if (p.wants_staged != 0) return {comm::DeviceLink::staged, "TRIREME_DEVICE_LINK asks for it"};
    devices.insert(p.device.data());
    all_call = all_call && p.has_calls != 0;
    all_nccl = all_nccl && p.has_nccl != 0;
  }
  if (all_call) return {comm::DeviceLink::calls, "the memory of emulated devices is the host's"};
  if (!all_nccl) return {comm::DeviceLink::staged, "NCCL is not there: " + comm::nccl_refusal()};
  if (devices.size() < all.size())
    return {comm::DeviceLink::staged, "ranks share a GPU, which NCCL does not take"};
  return {comm::DeviceLink::nccl, "every rank has a GPU"};
}

std::unique_ptr<comm::DeviceGroup> open_device_group(comm::DeviceLink link, comm::Communicator& host,
                                                     cuda::CudaDevice& device, tensor::Stream& stream) {
  if (link == comm::DeviceLink::calls) return comm::open_calls(host, stream);
  if (link == comm::DeviceLink::staged) return comm::open_staged(host, device, stream);
  const char* order = std::getenv("TRIREME_NCCL_ORDER");
  const bool is_library = order != nullptr && std::string_view(order) == "library";
  return comm::open_nccl(host, stream, is_library ? comm::DeviceOrder::library : comm::DeviceOrder::tree);
}

void wait_for_ranks(cuda::CudaStream& stream, comm::DeviceGroup& group, comm::DeviceLink link) {
  const int64_t limit = group.deadline_ns(), since = base::SystemClock().now_ns();
  if (link != comm::DeviceLink::nccl || limit == 0) return stream.synchronize();
  constexpr int kTurns = 1000;  // before sleeping
  for (int64_t turn = 0; !stream.is_done(); ++turn) {
    const std::string trouble = turn % kTurns == kTurns - 1 ? group.trouble() : std::string();
    if (trouble.empty() && base::SystemClock().now_ns() - since < limit) {
      if (turn > kTurns) std::this_thread::sleep_for(std::chrono::microseconds(20));
      continue;
    }
    const auto last = group.flights().last();
    group.abort();
    base::fail(base::ErrorCode::unavailable, "rank ", group.rank(), " of a link: ",
               trouble.empty() ? base::concat("the device waits since ",
                                              (base::SystemClock().now_ns() - since) / 1'000'000,
                                              " ms for the other rank")
                               : trouble,
               last ? "; last queued: " + last->describe() : std::string());
  }
}

/// Watches the groups during a run; aborts them if a device waits too long.
struct DeviceRanks::Watch {
  Watch(int rank_of_world, int64_t deadline)
      : rank(rank_of_world), deadline_ns(deadline), thread([this] { work(); }) {}
  ~Watch() {
    stops = true;
    stops.notify_all();
    thread.join();
  }

  void work() {
    constexpr auto kPeriod = std::chrono::milliseconds(100);
    while (!stops) {
      std::this_thread::sleep_for(kPeriod);
      const int64_t since = begun_ns;
      if (since != 0) look(base::SystemClock().now_ns() - since);
    }
  }
  void look(int64_t waited_ns) {
    state.with([&](State& s) {
      if (!s.report.empty()) return;
      std::string trouble;
      for (comm::DeviceGroup* group : s.groups) trouble += group->trouble();
      const bool is_late = deadline_ns > 0 && waited_ns > deadline_ns;
      if (trouble.empty() && !is_late) return;
      s.report = base::concat("rank ", rank, ", ", s.program, ": ",
                              trouble.empty() ? base::concat("the device waits since ", waited_ns / 1'000'000,
                                                             " ms for other ranks")
                                              : trouble);
      for (comm::DeviceGroup* group : s.groups) {
        if (const auto last = group->flights().last()) s.report += "; last queued: " + last->describe();
        group->abort();
      }
    });
  }

  struct State {
    std::vector<comm::DeviceGroup*> groups;
    std::string program, report;
  };
  int rank;
  int64_t deadline_ns;
  std::atomic<int64_t> begun_ns{0};
  std::atomic<bool> stops{false};
  base::Guarded<State> state;
  std::thread thread;
};

DeviceRanks::DeviceRanks(comm::Mesh& host, cuda::CudaDevice& device, DeviceRanksOptions options)
    : options_(options),
      choice_(choose_link(host.world(), device)),
      stream_(device.open_stream(pool_, cuda::StreamRole::communication)) {
  if (choice_.link == comm::DeviceLink::nccl)
    watch_ = std::make_unique<Watch>(
        host.world().rank(), options_.deadline_ns > 0 ? options_.deadline_ns : host.world().deadline_ns());
  mesh_ = std::make_unique<comm::Mesh>(host, [this, &device](comm::Communicator& group) {
    std::unique_ptr<comm::DeviceGroup> made = open_device_group(choice_.link, group, device, *stream_);
    if (watch_ != nullptr) watch_->state.with([&](Watch::State& s) { s.groups.push_back(made.get()); });
    return made;
  });
}

DeviceRanks::~DeviceRanks() {
  watch_.reset();  // before the groups that it watches
}

void DeviceRanks::begin(const std::string& program) {
  if (watch_ == nullptr) return;
  watch_->state.with([&](Watch::State& s) { s.program = program; });
  watch_->begun_ns = base::SystemClock().now_ns();
}

void DeviceRanks::end() {
  if (watch_ == nullptr) return;
  watch_->begun_ns = 0;
  const std::string report = watch_->state.with([](Watch::State& s) { return s.report; });
  if (!report.empty()) base::fail(base::ErrorCode::unavailable, report);
}

}  // namespace trireme::runtime
