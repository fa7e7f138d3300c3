// Runs a program on a stream: walks the steps over prepared addresses; no allocation, no lock, no decision.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "compile/program.h"
#include "tensor/device.h"

namespace trireme::base {
class SharedCache;
}

namespace trireme::comm {
class Mesh;
}

namespace trireme::runtime {

class DeviceRanks;
class DeviceRun;
class Staging;

/// Where programs run that are not the CPU's. All that is named here outlives the executors.
struct DeviceBinding {
  tensor::Device* device = nullptr;    ///< null: programs are the CPU's
  base::ThreadPool* pool = nullptr;    ///< for steps that run on the host
  base::SharedCache* packs = nullptr;  ///< of the model: its programs share constants on the device
  std::shared_ptr<Staging> staging;    ///< of the session
  bool graphs = true;                  ///< launches are recorded in the second run and replayed from then on
  std::shared_ptr<DeviceRanks> ranks = nullptr;  ///< where programs meet other ranks; null: one rank
  /// Of one program, in its order: inputs and outputs whose addresses in run() are memory of the device;
  /// empty: none is. Who wrote such an input is done, and such an output is there when run() returns.
  std::vector<bool> inputs_there = {}, outputs_there = {};
};

/// What executors of one session need on `device`: empty for the CPU. `mesh`: collective over its world; the
/// ranks' programs meet on a stream of their own.
DeviceBinding bind_device(tensor::Device& device, base::ThreadPool& pool, base::SharedCache& packs,
                          bool graphs, comm::Mesh* mesh = nullptr);

/// Where a span ran.
enum class Lane : uint8_t { compute, communication, copy };
std::string_view to_string(Lane lane);

/// Work of one run on one stream, in nanoseconds since the run began.
struct Span {
  Lane lane = Lane::compute;
  int step = -1;          ///< of the program; -1: see `what`
  const char* what = "";  ///< "inputs", "results", "wait"
  int64_t begin_ns = 0, end_ns = 0;
};

/// Measured times of one run; filled only when a trace is passed.
struct Trace {
  std::vector<int64_t> step_ns;  ///< [steps]; of steps aside while they ran on their lane
  std::vector<Span> spans;       ///< in the order they were launched; those of a stream do not overlap
};

/// How long the last run met other ranks.
struct Communication {
  int64_t total_ns = 0;    ///< in collectives
  int64_t exposed_ns = 0;  ///< of it, while the computation stood still: in line, or waiting for a step aside
};

/// One program bound to one arena and one stream. Not thread-safe: one owner runs it.
class Executor {
 public:
  /// `program` is shared with other executors. `states`: addresses of program->states, which outlive the
  /// executor. Call bind_arena before the first run. `mesh`: where collectives meet the other ranks, which
  /// outlives the executor. With collectives in the program the constructor is itself collective: it opens
  /// the groups of all axes in program order, so all ranks make their executors in the same order. `on`: for
  /// programs that are not the CPU's; the constructor uploads constants that are not on the device yet.
  explicit Executor(std::shared_ptr<const compile::Program> program, std::vector<void*> states = {},
                    comm::Mesh* mesh = nullptr, const DeviceBinding& on = {});

  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  const compile::Program& program() const { return *program_; }
  const Communication& communication() const;
  /// Bytes of the arena: the program's, and on devices the places of inputs and outputs.
  int64_t arena_bytes() const;
  /// Points every planned slot into `arena`, memory of the device of at least arena_bytes() bytes.
  void bind_arena(void* arena);
  /// True once the launches of a device's program are recorded and replayed.
  bool is_recorded() const;

  /// Runs all steps; on the CPU subnormal numbers count as zero. `inputs`/`outputs`: host addresses in the
  /// program's order, sized as its slots say; outputs must not overlap anything else. Throws invalid_argument
  /// when a kernel reports bad data (an index out of range), and what the communicator throws: unavailable
  /// for ranks that are gone, invalid_argument for ranks that disagree. After a throw results and states are
  /// undefined.
  void run(std::span<const void* const> inputs, std::span<void* const> outputs, tensor::Stream& stream,
           Trace* trace = nullptr);

  /// run() that on a device may return before the work is done, where all outputs are memory of the device
  /// (DeviceBinding::outputs_there). Inputs may change afterwards. At most two launches are under way, whose
  /// `turn` (0 or 1) differ; `stream` is synchronized before anything else is done with its session's
  /// programs. What kernels found wrong with their data check() throws later, and then tells of any of them.
  void launch(std::span<const void* const> inputs, std::span<void* const> outputs, tensor::Stream& stream,
              size_t turn);
  void check();

 private:
  /// Where the address of a caller's buffer has to be written before a run.
  struct Patch {
    size_t argument;  ///< index into addresses_
    size_t binding;   ///< index into inputs or outputs
  };
  struct Aside;
  void open_groups();
  void open_on_device(const DeviceBinding& on);
  void run_step(size_t step, tensor::Stream& stream);
  void launch_all(tensor::Stream& stream);
  void launch_with_ranks(tensor::Stream& stream, Trace* trace);
  void launch_timed(tensor::Stream& stream, Trace& trace);
  /// Waits for the steps aside, counts their time and throws the failure there was, theirs after the
  /// caller's.
  void finish_aside(std::exception_ptr failure, Trace* trace);

  /// Throws what a kernel found wrong with its data. (A device that fails later than it launches blames a
  /// later step.)
  void throw_failure();

  std::shared_ptr<const compile::Program> program_;
  std::vector<void*> states_;                 ///< in the program's order
  comm::Mesh* mesh_;                          ///< null: one rank
  std::vector<void*> addresses_;              ///< operands and results of all steps, step after step
  std::vector<size_t> first_in_, first_out_;  ///< per step: where its operands and results begin
  std::vector<void*> workspaces_;             ///< per step
  std::vector<Patch> input_patches_, output_patches_;
  ir::RunStatus status_;    ///< where kernels report bad data
  size_t failed_step_ = 0;  ///< the step launched last
  bool meets_ranks_ = false;
  Communication communication_;
  std::unique_ptr<Aside> aside_;           ///< only where steps run aside
  std::unique_ptr<DeviceRun> device_run_;  ///< runs programs that are not the CPU's
};

}  // namespace trireme::runtime
