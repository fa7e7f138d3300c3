// Starts the ranks of a job: threads of this process, or this process as one rank of a launched job.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "comm/communicator.h"

namespace trireme::comm {

/// automatic: mpi where a launcher started this process, else local.
enum class RankKind : uint8_t { automatic, local, mpi };

struct RankOptions {
  RankKind kind = RankKind::automatic;
  /// local: how many threads are ranks (0: one). mpi: 0, or what the job's size has to be.
  int ranks = 0;
  /// Each rank gets its own processors: the machine's in equal runs. Threads that it starts inherit them, and
  /// base::read_cpu_info() there counts them.
  bool pin = true;
  /// How long a rank may wait for others before the world is given up with a report; 0: for ever.
  int64_t deadline_ns = 0;
  std::function<void(const std::string& report)> on_stuck = {};
};

/// This process as its launcher (mpirun, srun) counts it, from the environment.
struct LaunchedRank {
  std::string launcher;  // "Open MPI", "Slurm"
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // on this machine
};

/// Nothing if no launcher started this process. Does not touch MPI.
std::optional<LaunchedRank> launched_rank();

/// mpi or local, as run_ranks will choose.
RankKind chosen_kind(const RankOptions& options);

/// Runs `body` once on each rank that lives in this process: every local rank (on threads, rank 0 on the
/// caller's), or the one rank of a launched process. Returns when all ranks of the world are done. A rank
/// that throws ends the world: the others get unavailable with its name where they next communicate, and the
/// first error, with the noun "rank r", is thrown here (in every process of the job).
///
/// Throws invalid_argument if the job has another size than `ranks`; unsupported for mpi in a program that
/// was built without it.
void run_ranks(const RankOptions& options, const std::function<void(Communicator&)>& body);

}  // namespace trireme::comm
