// Runs a program on a device: launches its steps, records and replays the launches, and reports which step
// failed.
#include "runtime/device_run.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

namespace trireme::runtime {

DeviceRun::DeviceRun(const compile::Program& program, std::vector<void*> states, const DeviceBinding& on)
    : program_(program),
      on_(on),
      transfers_(program, on_),
      operands_(program, std::move(states), on_, transfers_),
      host_steps_(program, operands_, on_),
      collectives_(program, on_),
      fault_(on.device->allocate_host(2 * sizeof(int64_t))) {
  std::memset(fault_.get(), 0, 2 * sizeof(int64_t));
  const auto is_of_device = [](const compile::Step& s) { return !s.on_host; };
  may_record_ = on.graphs && !program.steps.empty() && collectives_.can_record() &&
                std::all_of(program.steps.begin(), program.steps.end(), is_of_device);
}

void DeviceRun::bind_arena(void* arena) {
  arena_ = static_cast<std::byte*>(arena);
  recording_.reset();
  transfers_.bind_arena(arena_);
  operands_.bind_arena(arena_);
}

void DeviceRun::begin(std::span<const void* const> inputs, std::span<void* const> outputs) {
  transfers_.take(inputs, outputs);
  is_launching_ = false;
  collectives_.begin();
}

void DeviceRun::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                    tensor::Stream& stream, Trace* trace) {
  begin(inputs, outputs);
  try {
    if (trace != nullptr) {
      launch_timed(stream, inputs, outputs, *trace);
    } else {
      transfers_.send(inputs, stream);
      launch_or_replay(stream);
      transfers_.fetch(outputs, stream);
    }
    collectives_.finish(stream);
  } catch (const base::Error& e) {
    explain(e, stream);
  }
  ++runs_;
  check_data();
  transfers_.deliver();
}

void DeviceRun::launch(std::span<const void* const> inputs, std::span<void* const> outputs,
                       tensor::Stream& stream, size_t turn) {
  base::check(transfers_.keeps_outputs(), "results of a program that is launched stay on the device");
  begin(inputs, outputs);
  try {
    if (!transfers_.sends_in_order()) stream.synchronize();
    transfers_.send(inputs, stream, turn);
    launch_or_replay(stream);
    transfers_.fetch(outputs, stream);
    // Ranks that wait for each other are watched until the end.
    if (collectives_.has_any()) collectives_.finish(stream);
  } catch (const base::Error& e) {
    explain(e, stream);
  }
  ++runs_;
}

/// Libraries load and tune their code in the first run; from the second run on launches are the same.
void DeviceRun::launch_or_replay(tensor::Stream& stream) {
  if (recording_ == nullptr && may_record_ && runs_ > 0 && stream.can_record()) record(stream);
  recording_ != nullptr ? recording_->replay(stream) : launch_all(stream);
}

void DeviceRun::record(tensor::Stream& stream) {
  stream.synchronize();
  stream.begin_recording();
  std::exception_ptr failure;
  try {
    launch_all(stream);
  } catch (const base::Error& e) {
    failure = std::make_exception_ptr(e.with(base::concat("recording ", step_text(failed_step_))));
  }
  is_launching_ = false;
  try {
    recording_ = stream.end_recording();
  } catch (const base::Error&) {
    if (!failure) failure = std::current_exception();
  }
  if (!failure) return;
  // A launch that cannot be recorded runs directly as before; tests get the reason.
  recording_.reset();
  may_record_ = false;
  const char* wish = std::getenv("TRIREME_RECORD");
  if (wish != nullptr && std::string_view(wish) == "must") std::rethrow_exception(failure);
}

ir::RunArgs DeviceRun::args_of(size_t s, tensor::Stream& stream) {
  return {.in = operands_.at(operands_.first_in(s)),
          .out = operands_.at(operands_.first_out(s)),
          .workspace = arena_ + program_.steps[s].workspace_offset,
          .stream = stream,
          .status = &*status_,
          .mesh = collectives_.mesh(),
          .fault = static_cast<int64_t*>(fault_.get()),
          .step = static_cast<int64_t>(s)};
}

void DeviceRun::run_step(size_t s, tensor::Stream& stream, DeviceTimeline* timeline) {
  failed_step_ = s;
  if (!program_.steps[s].axes.empty()) {
    const ir::RunArgs args = args_of(s, collectives_.stream());
    return collectives_.run(s, cuda::cuda_stream(stream), args, timeline);
  }
  collectives_.wait_before(s, stream, timeline);
  compute(s, stream);
}

/// Runs a step that is no collective.
void DeviceRun::compute(size_t s, tensor::Stream& stream) {
  const compile::Step& step = program_.steps[s];
  step.on_host ? host_steps_.run(s, stream, *status_) : step.bound.run(args_of(s, stream));
}

void DeviceRun::launch_all(tensor::Stream& stream) {
  is_launching_ = true;
  const size_t count = program_.steps.size();
  for (size_t s = 0; s < count && !status_->failed(); ++s) run_step(s, stream);
  collectives_.join(stream);
  is_launching_ = false;
}

void DeviceRun::launch_timed(tensor::Stream& stream, std::span<const void* const> inputs,
                             std::span<void* const> outputs, Trace& trace) {
  const size_t count = program_.steps.size();
  DeviceTimeline timeline(stream);
  timeline.begin(stream);
  transfers_.send(inputs, stream);
  timeline.end(stream, Lane::copy, -1, "inputs");
  is_launching_ = true;
  for (size_t s = 0; s < count && !status_->failed(); ++s) {
    if (!program_.steps[s].axes.empty()) {
      run_step(s, stream, &timeline);
      continue;
    }
    collectives_.wait_before(s, stream, &timeline);
    timeline.begin(stream);
    compute(s, stream);
    timeline.end(stream, Lane::compute, static_cast<int>(s));
    failed_step_ = s;
  }
  collectives_.join(stream);
  is_launching_ = false;
  timeline.begin(stream);
  transfers_.fetch(outputs, stream);
  timeline.end(stream, Lane::copy, -1, "results");
  collectives_.finish(stream);
  trace.spans = timeline.spans();
  trace.step_ns.assign(count, 0);
  communication_ = {};
  for (const Span& span : trace.spans) {
    const int64_t ns = span.end_ns - span.begin_ns;
    if (span.step >= 0) trace.step_ns[static_cast<size_t>(span.step)] = ns;
    if (span.lane == Lane::communication) communication_.total_ns += ns;
    if (span.lane == Lane::compute && span.step < 0) communication_.exposed_ns += ns;
  }
}

std::string DeviceRun::step_text(size_t s) const {
  const compile::Step& step = program_.steps[s];
  const std::string_view op = step.op == nullptr ? std::string_view("copy") : step.op->schema.name;
  return base::concat("step ", s, " '", step.from, "' (", op, ", kernel ", step.kernel, ")");
}

/// What kernels on the device found wrong with their data: {step + 1, value}, or zeros, as the words are then
/// again.
std::array<int64_t, 2> DeviceRun::take_fault() {
  auto* words = static_cast<int64_t*>(fault_.get());
  if (words[0] == 0) [[likely]]
    return {};
  const std::array<int64_t, 2> fault{words[0], words[1]};
  words[0] = words[1] = 0;
  return fault;
}

void DeviceRun::check_data() {
  const auto [place, value] = take_fault();  // in any case: the next run begins without it
  if (status_->failed()) [[unlikely]]
    status_->throw_if_failed(step_text(failed_step_));
  if (place == 0) [[likely]]
    return;
  const auto step = static_cast<size_t>(place - 1);
  base::fail_invalid(step_text(std::min(step, program_.steps.size() - 1)),
                     ": a value is out of range: ", value);
}

/// Throws the error with the step that caused it. The next run begins without what this one found in its
/// data.
void DeviceRun::explain(const base::Error& error, tensor::Stream& stream) {
  try {
    find_step(error, stream);
  } catch (const base::Error&) {
    try {
      stream.synchronize();  // kernels that are under way may still report data
    } catch (const base::Error&) {
      // The first error is already being reported.
    }
    take_fault();
    status_.emplace();
    throw;
  }
}

/// A replay or a wait may report errors of any step, so the steps are run again one by one, unless the device
/// accepts no more work.
void DeviceRun::find_step(const base::Error& error, tensor::Stream& stream) {
  const std::string program = base::concat("program '", program_.name, "'");
  collectives_.give_up(stream);
  if (collectives_.has_any() && !is_launching_) throw error.with(program);
  if (is_launching_) throw error.with(step_text(failed_step_));
  const bool was_replayed = std::exchange(recording_, nullptr) != nullptr;
  const std::string how = was_replayed ? program + ", replayed" : program;
  try {
    stream.synchronize();
  } catch (const base::Error&) {
    throw error.with(how +
                     ": the device takes no more work; a profiled run without recording names the step");
  }
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    try {
      run_step(s, stream);
      stream.synchronize();
    } catch (const base::Error& again) {
      throw again.with(base::concat(how, ", then run step by step: ", step_text(s)));
    }
  }
  throw error.with(how + ": no step fails when they are run one by one");
}

}  // namespace trireme::runtime
