// Runs a program on a stream: addresses are computed once, and callers' buffers are set for each run.
#include "runtime/executor.h"

#include <chrono>

#include "backend/cpu/device/cpu_stream.h"
#include "base/clock.h"
#include "base/threads/float_controls.h"
#include "base/threads/pause_point.h"
#include "comm/mesh.h"
#include "runtime/device_ranks.h"
#include "runtime/device_run.h"
#include "runtime/same_collectives.h"
#include "runtime/side_lane.h"

namespace trireme::runtime {

using compile::SlotId;
using compile::SlotKind;

namespace {

int64_t now_ns() { return base::SystemClock().now_ns(); }

}  // namespace

/// The lane for aside steps, which share no thread with the computation.
struct Executor::Aside {
  explicit Aside(Executor& executor)
      : ns(executor.program_->steps.size(), 0),
        tickets(executor.program_->steps.size(), 0),
        lane([&](uint32_t step) {
          const int64_t start = now_ns();
          executor.run_step(step, stream);
          ns[step] = now_ns() - start;
        }) {}

  base::ThreadPool alone{1};
  cpu::CpuStream stream{alone};
  std::vector<int64_t> ns;        ///< duration of each step
  std::vector<uint32_t> tickets;  ///< of the present run, by step
  SideLane lane;                  ///< last, as its thread uses the other members
};

Executor::~Executor() = default;

DeviceBinding bind_device(tensor::Device& device, base::ThreadPool& pool, base::SharedCache& packs,
                          bool graphs, comm::Mesh* mesh) {
  if (device.kind() == tensor::DeviceKind::cpu) return {};
  DeviceBinding on{&device, &pool, &packs, std::make_shared<Staging>(device, pool), graphs};
  if (mesh != nullptr)
    on.ranks = std::make_shared<DeviceRanks>(*mesh, dynamic_cast<cuda::CudaDevice&>(device));
  return on;
}

std::string_view to_string(Lane lane) {
  return lane == Lane::compute ? "compute" : lane == Lane::communication ? "communication" : "copy";
}

Executor::Executor(std::shared_ptr<const compile::Program> program, std::vector<void*> states,
                   comm::Mesh* mesh, const DeviceBinding& on)
    : program_(std::move(program)), states_(std::move(states)), mesh_(mesh) {
  base::check(program_->is_bound(), "a program that is only planned: bind it to its weights first");
  base::check(states_.size() == program_->states.size(), "the program has ", program_->states.size(),
              " states, got ", states_.size());
  if (program_->on != tensor::DeviceKind::cpu) {
    base::check(on.device != nullptr, "a program for ", tensor::name_of(program_->on), " without a device");
    open_groups();
    open_on_device(on);
    device_run_ = std::make_unique<DeviceRun>(*program_, states_, on);
    return;
  }
  for (const compile::Step& step : program_->steps) {
    first_in_.push_back(addresses_.size());
    addresses_.resize(addresses_.size() + step.in.size());
    first_out_.push_back(addresses_.size());
    addresses_.resize(addresses_.size() + step.out.size());
  }
  workspaces_.resize(program_->steps.size());
  open_groups();
  bind_arena(nullptr);
}

void Executor::open_groups() {
  for (const compile::Step& step : program_->steps) {
    if (step.axes.empty()) continue;
    base::check(mesh_ != nullptr, "the program meets the ranks of ", step.axes, " ('", step.from,
                "') but was given no mesh");
    meets_ranks_ = true;
    if (program_->on == tensor::DeviceKind::cpu && step.is_aside && aside_ == nullptr)
      aside_ = std::make_unique<Aside>(*this);
  }
  if (meets_ranks_) open_same_collectives(*program_, *mesh_);
}

/// Opens the groups of device memory, in the order of the program like those of the host.
void Executor::open_on_device(const DeviceBinding& on) {
  for (const compile::Step& step : program_->steps) {
    if (step.axes.empty()) continue;
    base::check(on.ranks != nullptr, "'", step.from, "' meets ranks on a device that has none");
    on.ranks->mesh().open(step.axes);
  }
}

const Communication& Executor::communication() const {
  return device_run_ != nullptr ? device_run_->communication() : communication_;
}

int64_t Executor::arena_bytes() const {
  return device_run_ != nullptr ? device_run_->arena_bytes() : program_->memory.arena_bytes;
}

bool Executor::is_recorded() const { return device_run_ != nullptr && device_run_->is_recorded(); }

void Executor::bind_arena(void* arena) {
  if (device_run_ != nullptr) return device_run_->bind_arena(arena);
  const compile::Program& p = *program_;
  input_patches_.clear();
  output_patches_.clear();
  std::vector<size_t> binding(p.slots.size(), 0);
  for (size_t i = 0; i < p.inputs.size(); ++i) binding[compile::index(p.inputs[i])] = i;
  for (size_t i = 0; i < p.outputs.size(); ++i) binding[compile::index(p.outputs[i])] = i;
  for (size_t i = 0; i < p.states.size(); ++i) binding[compile::index(p.states[i])] = i;
  const auto at = [base = static_cast<std::byte*>(arena)](int64_t offset) {
    return base == nullptr ? nullptr : base + offset;  // null while there is no arena
  };
  const auto resolve = [&](SlotId id, size_t argument) {
    if (id == compile::kNoSlot) return;
    const compile::Slot& root = p.root(id);
    const size_t bound = binding[compile::index(p.slot(id).root)];
    switch (root.kind) {
      case SlotKind::arena: addresses_[argument] = at(root.offset); break;
      case SlotKind::constant: addresses_[argument] = const_cast<std::byte*>(root.constant.raw()); break;
      case SlotKind::state: addresses_[argument] = states_[bound]; break;
      case SlotKind::input: input_patches_.push_back({argument, bound}); break;
      case SlotKind::output: output_patches_.push_back({argument, bound}); break;
    }
  };
  for (size_t s = 0; s < p.steps.size(); ++s) {
    const compile::Step& step = p.steps[s];
    for (size_t i = 0; i < step.in.size(); ++i) resolve(step.in[i], first_in_[s] + i);
    for (size_t i = 0; i < step.out.size(); ++i) resolve(step.out[i], first_out_[s] + i);
    workspaces_[s] = at(step.workspace_offset);
  }
}

void Executor::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                   tensor::Stream& stream, Trace* trace) {
  if (device_run_ != nullptr) [[unlikely]]
    return device_run_->run(inputs, outputs, stream, trace);
  for (const Patch& p : input_patches_) addresses_[p.argument] = const_cast<void*>(inputs[p.binding]);
  for (const Patch& p : output_patches_) addresses_[p.argument] = outputs[p.binding];
  if (meets_ranks_) {
    launch_with_ranks(stream, trace);
  } else if (trace == nullptr) {
    launch_all(stream);
  } else {
    launch_timed(stream, *trace);
  }
  stream.synchronize();
  if (status_.failed()) throw_failure();
}

void Executor::launch(std::span<const void* const> inputs, std::span<void* const> outputs,
                      tensor::Stream& stream, size_t turn) {
  device_run_ != nullptr ? device_run_->launch(inputs, outputs, stream, turn) : run(inputs, outputs, stream);
}

void Executor::check() {
  if (device_run_ != nullptr) device_run_->check_data();
}

void Executor::throw_failure() {
  // The launch loop stops at the first failure, so the last launched step recorded the failure.
  const compile::Step& step = program_->steps[failed_step_];
  const std::string_view op = step.op == nullptr ? std::string_view("copy") : step.op->schema.name;
  status_.throw_if_failed(base::concat("step ", failed_step_, " '", step.from, "' (", op, ")"));
}

void Executor::run_step(size_t s, tensor::Stream& stream) {
  const base::SubnormalsAreZero controls;
  program_->steps[s].bound.run({addresses_.data() + first_in_[s], addresses_.data() + first_out_[s],
                                workspaces_[s], stream, &status_, mesh_});
}

void Executor::launch_all(tensor::Stream& stream) {
  const size_t count = program_->steps.size();
  base::PausePoint* const pause = base::PausePoint::of_this_thread();
  for (size_t s = 0; s < count; ++s) {
    if (pause != nullptr) [[unlikely]]
      pause->pass();
    failed_step_ = s;
    run_step(s, stream);
    if (status_.failed()) [[unlikely]]
      return;
  }
}

void Executor::launch_with_ranks(tensor::Stream& stream, Trace* trace) {
  const std::vector<compile::Step>& steps = program_->steps;
  communication_ = {};
  if (trace != nullptr) trace->step_ns.assign(steps.size(), 0);
  std::exception_ptr failure;
  try {
    for (size_t s = 0; s < steps.size() && !status_.failed(); ++s) {
      const compile::Step& step = steps[s];
      if (step.is_aside) {
        aside_->tickets[s] = aside_->lane.post(static_cast<uint32_t>(s));
        continue;
      }
      if (step.after_aside >= 0) {
        const int64_t start = now_ns();
        aside_->lane.wait(aside_->tickets[static_cast<size_t>(step.after_aside)]);
        communication_.exposed_ns += now_ns() - start;
        if (aside_->lane.has_failed()) break;
      }
      failed_step_ = s;
      if (step.axes.empty() && trace == nullptr) {
        run_step(s, stream);
        continue;
      }
      const int64_t start = now_ns();
      run_step(s, stream);
      if (trace != nullptr) stream.synchronize();
      const int64_t ns = now_ns() - start;
      if (trace != nullptr) trace->step_ns[s] = ns;
      if (!step.axes.empty()) communication_.total_ns += ns, communication_.exposed_ns += ns;
    }
  } catch (...) {
    failure = std::current_exception();
  }
  finish_aside(failure, trace);
}

void Executor::finish_aside(std::exception_ptr failure, Trace* trace) {
  if (aside_ != nullptr) {
    const int64_t start = now_ns();
    try {
      aside_->lane.finish();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    communication_.exposed_ns += now_ns() - start;
    for (size_t s = 0; s < program_->steps.size(); ++s) {
      if (!program_->steps[s].is_aside) continue;
      communication_.total_ns += aside_->ns[s];
      if (trace != nullptr) trace->step_ns[s] = aside_->ns[s];
    }
  }
  if (failure) std::rethrow_exception(failure);
}

void Executor::launch_timed(tensor::Stream& stream, Trace& trace) {
  using clock = std::chrono::steady_clock;
  const std::vector<compile::Step>& steps = program_->steps;
  trace.step_ns.resize(steps.size());
  for (size_t s = 0; s < steps.size(); ++s) {
    const auto start = clock::now();
    failed_step_ = s;
    run_step(s, stream);
    stream.synchronize();
    trace.step_ns[s] = std::chrono::duration_cast<std::chrono::nanoseconds>(clock::now() - start).count();
    if (status_.failed()) return;
  }
}

}  // namespace trireme::runtime
