// Decides which kind of ranks a process has, and the processors of each rank.
#include "comm/world.h"

#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/machine/cpu_info.h"
#include "base/error.h"
#include "comm/local.h"
#include "comm/mpi.h"

namespace trireme::comm {
namespace {

/// The value of the first of these environment variables that holds a number.
std::optional<int> number_in_environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text == nullptr) continue;
    const std::string_view digits(text);
    int value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc() && end == digits.data() + digits.size()) return value;
  }
  return std::nullopt;
}

/// Restricts the calling thread to processors for a while; threads that it starts meanwhile inherit them.
class Pinned {
 public:
  explicit Pinned(const std::vector<int>& processors) {
    if (processors.empty() || ::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int p : processors) CPU_SET(p, &set);
    changed_ = ::sched_setaffinity(0, sizeof set, &set) == 0;
  }
  ~Pinned() {
    if (changed_) (void)::sched_setaffinity(0, sizeof before_, &before_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  cpu_set_t before_{};
  bool changed_ = false;
};

/// Equal runs of the processors; if ranks outnumber processors, several ranks share one.
std::vector<int> processors_of(const base::CpuInfo& machine, int rank, int ranks) {
  const int usable = std::min(machine.threads(), static_cast<int>(machine.allowed.size()));
  if (ranks >= usable) return {machine.allowed[static_cast<size_t>(rank % usable)]};
  const int each = usable / ranks;
  const auto begin = machine.allowed.begin() + static_cast<ptrdiff_t>(rank) * each;
  return {begin, begin + each};
}

void run_local(const RankOptions& options, const std::function<void(Communicator&)>& body) {
  const int ranks = options.ranks == 0 ? 1 : options.ranks;
  const base::CpuInfo machine = base::read_cpu_info();
  LocalWorld world(ranks, {.deadline_ns = options.deadline_ns, .on_stuck = options.on_stuck});
  world.run([&](Communicator& c) {
    const bool pin = options.pin && ranks > 1;
    const Pinned pinned(pin ? processors_of(machine, c.rank(), ranks) : std::vector<int>{});
    body(c);
  });
}

/// The ranks on this machine divide its processors, unless the launcher has given each rank its own already.
std::vector<int> processors_here(Communicator& world) {
  constexpr size_t kName = 64;
  struct Place {
    char machine[kName];
    cpu_set_t allowed;
  };
  Place own{};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(own.machine, kName - 1);  // one ID per machine
  if (::sched_getaffinity(0, sizeof own.allowed, &own.allowed) != 0) return {};
  std::vector<Place> all(static_cast<size_t>(world.size()));
  world.all_gather(as_bytes(std::span(&own, 1)), as_bytes(std::span(all)), "processors of ranks");
  int rank = 0, ranks = 0;
  for (int r = 0; r < world.size(); ++r) {
    const Place& other = all[static_cast<size_t>(r)];
    if (std::string_view(other.machine) != own.machine) continue;
    if (!CPU_EQUAL(&other.allowed, &own.allowed)) return {};
    rank += r < world.rank();
    ++ranks;
  }
  return ranks == 1 ? std::vector<int>{} : processors_of(base::read_cpu_info(), rank, ranks);
}

void run_mpi(const RankOptions& options, const std::function<void(Communicator&)>& body) {
  if (has_mpi() && !launched_rank()) {
    base::fail_invalid(
        "MPI ranks are started by a launcher: `mpirun -n 4 trireme …`, `srun -n 4 trireme …`, or `trireme "
        "launch "
        "-n 4 --kind mpi -- …`");
  }
  MpiSession session;
  base::require(options.ranks == 0 || options.ranks == session.size(), "the job has ", session.size(),
                " ranks, ", options.ranks, " are asked for");
  MpiWorld world(session, {.deadline_ns = options.deadline_ns, .on_stuck = options.on_stuck});
  world.run([&](Communicator& c) {
    const Pinned pinned(options.pin ? processors_here(c) : std::vector<int>{});
    body(c);
  });
}

}  // namespace

std::optional<LaunchedRank> launched_rank() {
  const auto open_mpi = number_in_environment({"OMPI_COMM_WORLD_SIZE"});
  if (open_mpi) {
    return LaunchedRank{.launcher = "Open MPI",
                        .rank = number_in_environment({"OMPI_COMM_WORLD_RANK"}).value_or(0),
                        .size = *open_mpi,
                        .local_rank = number_in_environment({"OMPI_COMM_WORLD_LOCAL_RANK"}).value_or(0),
                        .local_size = number_in_environment({"OMPI_COMM_WORLD_LOCAL_SIZE"}).value_or(1)};
  }
  // A step of srun. The batch script itself also sees SLURM_NTASKS, but has no PMIx server.
  const bool served = std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr;
  const auto rank = number_in_environment({"SLURM_PROCID", "PMIX_RANK", "PMI_RANK"});
  const auto size = number_in_environment({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "PMI_SIZE"});
  if (!served || !rank || !size) return std::nullopt;
  return LaunchedRank{.launcher = std::getenv("SLURM_PROCID") != nullptr ? "Slurm" : "PMIx",
                      .rank = *rank,
                      .size = *size,
                      .local_rank = number_in_environment({"SLURM_LOCALID"}).value_or(0),
                      .local_size = number_in_environment({"SLURM_NTASKS_PER_NODE"}).value_or(1)};
}

RankKind chosen_kind(const RankOptions& options) {
  if (options.kind != RankKind::automatic) return options.kind;
  return launched_rank() ? RankKind::mpi : RankKind::local;
}

void run_ranks(const RankOptions& options, const std::function<void(Communicator&)>& body) {
  base::require(options.ranks >= 0, "ranks: ", options.ranks);
  chosen_kind(options) == RankKind::mpi ? run_mpi(options, body) : run_local(options, body);
}

}  // namespace trireme::comm
