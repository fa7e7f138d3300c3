// Runs a program on a device whose memory is not the host's: constants uploaded once, inputs and results
// staged, launches recorded and replayed, steps without a device kernel run on the host.
#include "runtime/device_run.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <tuple>
#include <utility>

#include "tensor/repeated.h"

namespace trireme::runtime {

using compile::SlotId;
using compile::SlotKind;

namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool is_there(const std::vector<bool>& there, size_t i) { return i < there.size() && there[i]; }

/// Places the slots, of the host's before those that are `there`; returns where each of the two ends. Parts
/// that are there have no place in the host's memory.
std::array<int64_t, 2> lay_out(const compile::Program& p, const std::vector<SlotId>& slots,
                               const std::vector<bool>& there, std::vector<StagedPart>& parts) {
  std::array<int64_t, 2> ends{};
  int64_t end = 0;
  parts.resize(slots.size());
  for (const bool wanted : {false, true}) {
    for (size_t i = 0; i < slots.size(); ++i) {
      if (is_there(there, i) != wanted) continue;
      const int64_t bytes = p.slot(slots[i]).bytes;
      parts[i] = {.host = nullptr, .offset = end, .bytes = bytes};
      end += aligned(bytes);
    }
    ends[wanted ? 1 : 0] = end;
  }
  return ends;
}

}  // namespace

DeviceRun::DeviceRun(const compile::Program& program, std::vector<void*> states, const DeviceBinding& on)
    : program_(program),
      states_(std::move(states)),
      on_(on),
      met_(program.steps.size()),
      host_stream_(*on.pool),
      constants_(program.slots.size()),
      binding_(program.slots.size(), 0),
      host_steps_(program.steps.size()),
      fault_(on.device->allocate_host(2 * sizeof(int64_t))) {
  std::memset(fault_.get(), 0, 2 * sizeof(int64_t));
  std::tie(in_staged_, in_bytes_) = std::tuple_cat(lay_out(program, program.inputs, on_.inputs_there, in_));
  std::tie(out_staged_, out_bytes_) =
      std::tuple_cat(lay_out(program, program.outputs, on_.outputs_there, out_));
  for (size_t i = 0; i < in_.size(); ++i) {
    if (!is_there(on_.inputs_there, i)) staged_in_.push_back(in_[i]);
  }
  for (size_t i = 0; i < out_.size(); ++i) {
    if (!is_there(on_.outputs_there, i)) staged_out_.push_back(out_[i]);
  }
  inputs_at_ = aligned(program.memory.arena_bytes);
  outputs_at_ = inputs_at_ + in_bytes_;
  lay_out_arguments();
  for (size_t s = 0; s < program.steps.size(); ++s) {
    if (program.steps[s].axes.empty()) continue;
    if (ready_ == nullptr) ready_ = on_.ranks->stream().make_event();
    met_[s] = on_.ranks->stream().make_event();
  }
  const auto is_of_device = [](const compile::Step& s) { return !s.on_host; };
  may_record_ = on.graphs && !program.steps.empty() && (ready_ == nullptr || on_.ranks->can_record()) &&
                std::all_of(program.steps.begin(), program.steps.end(), is_of_device);
  on_.staging->reserve(std::max(in_staged_, out_staged_), 0);
  upload_constants();
}

void DeviceRun::lay_out_arguments() {
  const compile::Program& p = program_;
  for (size_t i = 0; i < p.inputs.size(); ++i) binding_[compile::index(p.inputs[i])] = i;
  for (size_t i = 0; i < p.outputs.size(); ++i) binding_[compile::index(p.outputs[i])] = i;
  for (size_t i = 0; i < p.states.size(); ++i) binding_[compile::index(p.states[i])] = i;
  size_t most = 0;
  for (const compile::Step& step : p.steps) {
    first_in_.push_back(addresses_.size());
    addresses_.resize(addresses_.size() + step.in.size());
    first_out_.push_back(addresses_.size());
    addresses_.resize(addresses_.size() + step.out.size());
    most = std::max(most, step.in.size() + step.out.size());
  }
  for (size_t s = 0; s < p.steps.size(); ++s) {
    if (p.steps[s].on_host) plan_host_step(s);
  }
  host_args_.resize(most);
}

/// Bytes after which a constant repeats itself; all of them for most.
static int64_t period_of(const tensor::Tensor& content) {
  const tensor::Tensor block = tensor::repetition_of(content).block;
  return block.defined() ? std::min(block.bytes(), content.bytes()) : content.bytes();
}

/// One copy of a constant on a device serves all programs and instances of a model.
void DeviceRun::upload_constants() {
  const std::unique_ptr<tensor::Stream> stream = on_.device->open_stream(*on_.pool);
  const std::string format = base::concat("on device ", on_.device->ordinal());
  const auto upload = [&](const tensor::Tensor& content) {
    return on_.packs->get<void>(ir::pack_key(content, format), [&]() -> std::shared_ptr<const void> {
      std::shared_ptr<void> memory = on_.device->allocate(content.bytes());
      auto* to = static_cast<std::byte*>(memory.get());
      const int64_t period = period_of(content);
      const StagedPart once{const_cast<std::byte*>(content.raw()), 0, period};
      on_.staging->reserve(period, 0);
      on_.staging->upload(to, {&once, 1}, period, *stream);
      for (int64_t done = period; done < content.bytes(); done *= 2)
        stream->copy(to + done, to, std::min(done, content.bytes() - done));
      stream->synchronize();
      return memory;
    });
  };
  for (const compile::Step& step : program_.steps) {
    for (size_t i = 0; i < step.in.size() && !step.on_host; ++i) {
      if (step.in[i] == compile::kNoSlot) continue;
      const compile::Slot& root = program_.root(step.in[i]);
      std::shared_ptr<const void>& copy = constants_[compile::index(root.root)];
      const bool is_unread = i < 32 && (step.bound.unread_inputs >> i & 1u);
      if (root.kind == SlotKind::constant && copy == nullptr && !is_unread) copy = upload(root.constant);
    }
  }
}

void DeviceRun::plan_host_step(size_t s) {
  const compile::Step& step = program_.steps[s];
  HostStep& host = host_steps_[s];
  int64_t end = 0;
  std::vector<SlotId> roots;
  const auto place = [&](SlotId id, size_t argument, bool is_result) {
    host.fixed.push_back(nullptr);
    host.from.push_back(-1);
    if (id == compile::kNoSlot) return;
    const compile::Slot& root = program_.root(id);
    if (root.kind == SlotKind::constant) {
      host.fixed.back() = const_cast<std::byte*>(root.constant.raw());
      return;
    }
    const auto known = std::find(roots.begin(), roots.end(), root.root);
    host.from.back() = static_cast<int>(known - roots.begin());
    if (known == roots.end()) {
      roots.push_back(root.root);
      host.moved.push_back({.argument = argument, .at = end, .bytes = program_.slot(id).bytes});
      end += aligned(program_.slot(id).bytes);
    }
    Moved& moved = host.moved[static_cast<size_t>(host.from.back())];
    (is_result ? moved.is_written : moved.is_read) = true;
  };
  for (size_t i = 0; i < step.in.size(); ++i) {
    const bool is_unread = i < 32 && (step.bound.unread_inputs >> i & 1u);
    place(is_unread ? compile::kNoSlot : step.in[i], first_in_[s] + i, false);
  }
  for (size_t i = 0; i < step.out.size(); ++i) place(step.out[i], first_out_[s] + i, true);
  host.workspace_at = end;
  on_.staging->reserve(0, end + step.bound.workspace_bytes);
}

void DeviceRun::resolve(SlotId id, size_t argument) {
  if (id == compile::kNoSlot) return;
  const compile::Slot& root = program_.root(id);
  const size_t slot = compile::index(root.root);
  const size_t bound = binding_[slot];
  switch (root.kind) {
    case SlotKind::arena: addresses_[argument] = arena_ + root.offset; break;
    case SlotKind::constant: addresses_[argument] = const_cast<void*>(constants_[slot].get()); break;
    case SlotKind::state: addresses_[argument] = states_[bound]; break;
    case SlotKind::input: addresses_[argument] = arena_ + inputs_at_ + in_[bound].offset; break;
    case SlotKind::output: addresses_[argument] = arena_ + outputs_at_ + out_[bound].offset; break;
  }
}

void DeviceRun::bind_arena(void* arena) {
  arena_ = static_cast<std::byte*>(arena);
  recording_.reset();
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    const compile::Step& step = program_.steps[s];
    for (size_t i = 0; i < step.in.size(); ++i) resolve(step.in[i], first_in_[s] + i);
    for (size_t i = 0; i < step.out.size(); ++i) resolve(step.out[i], first_out_[s] + i);
  }
}

void DeviceRun::take_addresses(std::span<const void* const> inputs, std::span<void* const> outputs) {
  for (size_t i = 0, k = 0; i < in_.size(); ++i) {
    if (!is_there(on_.inputs_there, i))
      staged_in_[k++].host = static_cast<std::byte*>(const_cast<void*>(inputs[i]));
  }
  for (size_t i = 0, k = 0; i < out_.size(); ++i) {
    if (!is_there(on_.outputs_there, i)) staged_out_[k++].host = static_cast<std::byte*>(outputs[i]);
  }
  is_launching_ = false;
  if (ready_ != nullptr) on_.ranks->begin(program_.name);
}

void DeviceRun::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                    tensor::Stream& stream, Trace* trace) {
  take_addresses(inputs, outputs);
  try {
    if (trace != nullptr) {
      launch_timed(stream, inputs, outputs, *trace);
    } else {
      move_there(stream, inputs);
      launch_or_replay(stream);
      move_back(stream, outputs);
    }
    finish(stream);
  } catch (const base::Error& e) {
    explain(e, stream);
  }
  ++runs_;
  check_data();
  on_.staging->deliver(arena_ + outputs_at_, staged_out_, out_staged_);
}

void DeviceRun::launch(std::span<const void* const> inputs, std::span<void* const> outputs,
                       tensor::Stream& stream, size_t turn) {
  base::check(staged_out_.empty(), "results of a program that is launched stay on the device");
  take_addresses(inputs, outputs);
  try {
    // Larger ones do not go in stream order: what is under way may still read the region.
    if (!Staging::fits_chunk(in_staged_)) stream.synchronize();
    move_there(stream, inputs, turn);
    launch_or_replay(stream);
    move_back(stream, outputs);
    if (ready_ != nullptr) finish(stream);  // ranks that wait for each other are watched to the end
  } catch (const base::Error& e) {
    explain(e, stream);
  }
  ++runs_;
}

void DeviceRun::move_there(tensor::Stream& stream, std::span<const void* const> inputs, size_t turn) {
  on_.staging->upload(arena_ + inputs_at_, staged_in_, in_staged_, stream, turn);
  for (size_t i = 0; i < on_.inputs_there.size(); ++i) {
    if (on_.inputs_there[i]) stream.copy(arena_ + inputs_at_ + in_[i].offset, inputs[i], in_[i].bytes);
  }
}

void DeviceRun::move_back(tensor::Stream& stream, std::span<void* const> outputs) {
  on_.staging->fetch(arena_ + outputs_at_, out_staged_, stream);
  for (size_t i = 0; i < on_.outputs_there.size(); ++i) {
    if (on_.outputs_there[i]) stream.copy(outputs[i], arena_ + outputs_at_ + out_[i].offset, out_[i].bytes);
  }
}

/// Waits for both streams. What went wrong between ranks is the cause of what else did.
void DeviceRun::finish(tensor::Stream& stream) {
  if (ready_ == nullptr) return stream.synchronize();
  std::exception_ptr failure;
  try {
    stream.synchronize();
  } catch (const base::Error&) {
    failure = std::current_exception();
  }
  on_.ranks->stream().synchronize();
  on_.ranks->end();
  if (failure) std::rethrow_exception(failure);
}

/// Libraries load and tune their code in the first run; from the second on the launches are one.
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
  // A launch that cannot be recorded runs as the others did before; checks want to hear of it.
  recording_.reset();
  may_record_ = false;
  const char* wish = std::getenv("TRIREME_RECORD");
  if (wish != nullptr && std::string_view(wish) == "must") std::rethrow_exception(failure);
}

/// Events around what is launched on the streams; read once all have passed.
struct DeviceRun::Timeline {
  using Clock = std::unique_ptr<tensor::Event>;
  struct Entry {
    Span span;
    Clock from, to;
  };
  explicit Timeline(tensor::Stream& stream) : origin(stream.record_event()) {}

  void begin(tensor::Stream& stream) { from = stream.record_event(); }
  void end(tensor::Stream& stream, Lane lane, int step, const char* what = "") {
    entries.push_back({{.lane = lane, .step = step, .what = what}, std::move(from), stream.record_event()});
  }
  std::vector<Span> spans() const {
    std::vector<Span> all;
    for (const Entry& e : entries) {
      all.push_back(e.span);
      all.back().begin_ns = e.from->ns_since(*origin);
      all.back().end_ns = e.to->ns_since(*origin);
    }
    return all;
  }

  Clock origin, from;
  std::vector<Entry> entries;
};

ir::RunArgs DeviceRun::args_of(size_t s, tensor::Stream& stream) {
  return {.in = addresses_.data() + first_in_[s],
          .out = addresses_.data() + first_out_[s],
          .workspace = arena_ + program_.steps[s].workspace_offset,
          .stream = stream,
          .status = &status_,
          .mesh = ready_ == nullptr ? nullptr : &on_.ranks->mesh(),
          .fault = static_cast<int64_t*>(fault_.get()),
          .step = static_cast<int64_t>(s)};
}

void DeviceRun::run_step(size_t s, tensor::Stream& stream, Timeline* timeline) {
  failed_step_ = s;
  const compile::Step& step = program_.steps[s];
  if (!step.axes.empty()) return run_collective(s, cuda::cuda_stream(stream), timeline);
  wait_aside(s, stream, timeline);
  if (step.on_host) return run_host_step(s, stream);
  step.bound.run(args_of(s, stream));
}

/// Ranks meet on the communication stream, after what the computation has launched so far; the computation
/// waits at once where the step is in line, else where a step needs it.
void DeviceRun::run_collective(size_t s, cuda::CudaStream& stream, Timeline* timeline) {
  cuda::CudaStream& aside = on_.ranks->stream();
  stream.set(*ready_);
  aside.wait(*ready_);
  if (timeline != nullptr) timeline->begin(aside);
  program_.steps[s].bound.run(args_of(s, aside));
  if (timeline != nullptr) timeline->end(aside, Lane::communication, static_cast<int>(s));
  aside.set(*met_[s]);
  last_met_ = static_cast<int>(s);
  if (program_.steps[s].is_aside) return;
  wait_aside(s, stream, timeline);
}

/// The step before which the computation waits for a step aside; a collective in line waits for itself.
void DeviceRun::wait_aside(size_t s, tensor::Stream& stream, Timeline* timeline) {
  const compile::Step& step = program_.steps[s];
  const int awaited = step.axes.empty() ? step.after_aside : static_cast<int>(s);
  if (awaited < 0) return;
  if (timeline != nullptr) timeline->begin(stream);
  stream.wait(*met_[static_cast<size_t>(awaited)]);
  if (timeline != nullptr) timeline->end(stream, Lane::compute, -1, "wait");
  if (awaited == last_met_) last_met_ = -1;
}

/// The computation ends after the last collective.
void DeviceRun::join(tensor::Stream& stream) {
  if (last_met_ >= 0) stream.wait(*met_[static_cast<size_t>(std::exchange(last_met_, -1))]);
}

void DeviceRun::run_host_step(size_t s, tensor::Stream& stream) {
  const compile::Step& step = program_.steps[s];
  const HostStep& host = host_steps_[s];
  std::byte* memory = on_.staging->host();
  for (const Moved& m : host.moved) {
    if (m.is_read) stream.download(memory + m.at, addresses_[m.argument], m.bytes);
  }
  stream.synchronize();
  for (size_t i = 0; i < host.from.size(); ++i) {
    host_args_[i] =
        host.from[i] < 0 ? host.fixed[i] : memory + host.moved[static_cast<size_t>(host.from[i])].at;
  }
  step.bound.run({.in = host_args_.data(),
                  .out = host_args_.data() + step.in.size(),
                  .workspace = memory + host.workspace_at,
                  .stream = host_stream_,
                  .status = &status_});
  for (const Moved& m : host.moved) {
    if (m.is_written) stream.upload(addresses_[m.argument], memory + m.at, m.bytes);
  }
}

void DeviceRun::launch_all(tensor::Stream& stream) {
  is_launching_ = true;
  const size_t count = program_.steps.size();
  for (size_t s = 0; s < count && !status_.failed(); ++s) run_step(s, stream);
  join(stream);
  is_launching_ = false;
}

void DeviceRun::launch_timed(tensor::Stream& stream, std::span<const void* const> inputs,
                             std::span<void* const> outputs, Trace& trace) {
  const size_t count = program_.steps.size();
  Timeline timeline(stream);
  timeline.begin(stream);
  move_there(stream, inputs);
  timeline.end(stream, Lane::copy, -1, "inputs");
  is_launching_ = true;
  for (size_t s = 0; s < count && !status_.failed(); ++s) {
    if (!program_.steps[s].axes.empty()) {
      run_step(s, stream, &timeline);
      continue;
    }
    wait_aside(s, stream, &timeline);
    timeline.begin(stream);
    program_.steps[s].on_host ? run_host_step(s, stream) : program_.steps[s].bound.run(args_of(s, stream));
    timeline.end(stream, Lane::compute, static_cast<int>(s));
    failed_step_ = s;
  }
  join(stream);
  is_launching_ = false;
  timeline.begin(stream);
  move_back(stream, outputs);
  timeline.end(stream, Lane::copy, -1, "results");
  finish(stream);
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

void DeviceRun::check_data() {
  auto* words = static_cast<int64_t*>(fault_.get());
  if (status_.failed()) [[unlikely]]
    status_.throw_if_failed(step_text(failed_step_));
  if (words[0] == 0) [[likely]]
    return;
  const auto step = static_cast<size_t>(words[0] - 1);
  const int64_t value = words[1];
  words[0] = words[1] = 0;
  base::fail_invalid(step_text(std::min(step, program_.steps.size() - 1)),
                     ": a value is out of range: ", value);
}

/// Lets what is launched end, so that nothing of it is under way when memory goes.
void DeviceRun::give_up(tensor::Stream& stream) {
  for (tensor::Stream* each : {&stream, static_cast<tensor::Stream*>(&on_.ranks->stream())}) {
    try {
      each->synchronize();
    } catch (const base::Error&) {
      // the error under way is the first
    }
  }
}

/// Throws the error with the step it came from. What a replay or a wait reports may come from any step: they
/// are run again one by one, unless the device takes no more work.
void DeviceRun::explain(const base::Error& error, tensor::Stream& stream) {
  const std::string program = base::concat("program '", program_.name, "'");
  last_met_ = -1;
  if (ready_ != nullptr) {
    give_up(stream);
    if (!is_launching_) throw error.with(program);
  }
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
