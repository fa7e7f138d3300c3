// Runs one stage of a pipeline.
#include "engine/ranks/pipeline.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "runtime/device_ranks.h"

namespace trireme::engine {

using passes::PipelineAction;
using passes::PipelineTransfer;
using passes::PipelineWork;

/// A ring of buffers of equal size.
struct PipelineRing {
  std::shared_ptr<void> memory;
  int64_t bytes = 0;  ///< of one buffer, a multiple of the alignment
  int64_t used = 0;   ///< number of buffers in use
  int count = 1;

  std::byte* at(int micro_batch) const {
    return bytes == 0 ? nullptr : static_cast<std::byte*>(memory.get()) + bytes * (micro_batch % count);
  }
};

namespace {

PipelineRing make_ring(tensor::Device& device, int64_t bytes, int count) {
  constexpr int64_t kAlign = 64;
  PipelineRing ring{
      .memory = nullptr, .bytes = (bytes + kAlign - 1) / kAlign * kAlign, .used = bytes, .count = count};
  if (ring.bytes > 0) ring.memory = device.allocate(ring.bytes * count);
  return ring;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The two ranks of a link form a group; other ranks get none.
std::unique_ptr<comm::Communicator> open_link(comm::Communicator& pp, int from, int to) {
  const bool is_member = pp.rank() == from || pp.rank() == to;
  auto link = pp.split(is_member ? 1 : 0, pp.rank() == from ? 0 : 1);
  return is_member ? std::move(link) : nullptr;
}

constexpr int kFrom = 0, kTo = 1;  // ranks of a link

}  // namespace

/// A stream for each link, and the host communicators beneath those of the device.
struct PipelineLinks::OnDevice {
  struct Link {
    std::unique_ptr<comm::Communicator> host;
    std::unique_ptr<cuda::CudaStream> stream;
    comm::DeviceGroup* link;
  };
  cuda::CudaDevice& device;
  comm::DeviceLink how;
  base::ThreadPool pool{1};
  std::vector<Link> links = {};
};

PipelineLinks::~PipelineLinks() {
  for (auto* link : {&activation_out, &activation_in, &gradient_out, &gradient_in}) link->reset();
}

std::unique_ptr<comm::Communicator> PipelineLinks::put_on_device(std::unique_ptr<comm::Communicator> link) {
  if (on_device_ == nullptr || link == nullptr) return link;
  auto stream = on_device_->device.open_stream(on_device_->pool, cuda::StreamRole::copy);
  auto made = runtime::open_device_group(on_device_->how, *link, on_device_->device, *stream);
  on_device_->links.push_back({std::move(link), std::move(stream), made.get()});
  return made;
}

void PipelineLinks::settle(const comm::Communicator* link) const {
  if (on_device_ == nullptr) return;
  for (const OnDevice::Link& l : on_device_->links) {
    if (l.link == link) runtime::wait_for_ranks(*l.stream, *l.link, on_device_->how);
  }
}

PipelineLinks::PipelineLinks(comm::Communicator& pp, bool is_ring, tensor::Device* device,
                             const runtime::DeviceRanks* ranks)
    : stages(pp) {
  if (ranks != nullptr)
    on_device_.reset(new OnDevice{dynamic_cast<cuda::CudaDevice&>(*device), ranks->choice().link});
  const int count = pp.size();
  for (int r = 0; r < (is_ring ? count : count - 1); ++r) {
    const int next = (r + 1) % count;
    auto activations = put_on_device(open_link(pp, r, next));
    auto gradients = put_on_device(open_link(pp, next, r));
    if (pp.rank() == r) activation_out = std::move(activations), gradient_in = std::move(gradients);
    if (pp.rank() == next) activation_in = std::move(activations), gradient_out = std::move(gradients);
  }
}

/// The buffers of a part, and the number of micro-batches that have completed each event. Counts only grow
/// during a run.
struct PipelineRunner::Chunk {
  PipelineRing in, out, out_gradient, in_gradient, kept, late;
  bool is_first = false, is_last = false;  ///< of the model
  std::string first_layer, last_layer;
  std::atomic<int> arrived{0}, forward{0}, sent{0};
  std::atomic<int> gradient_arrived{0}, backward{0}, gradient_sent{0};
  std::atomic<int> through{0};

  void reset() {
    for (auto* count : {&arrived, &forward, &sent, &gradient_arrived, &backward, &gradient_sent, &through}) {
      count->store(0, std::memory_order_relaxed);
    }
  }
};

/// One direction of a link, with its own thread.
struct PipelineRunner::Lane {
  comm::Communicator* link = nullptr;
  bool is_gradient = false, is_send = false;
  std::vector<PipelineTransfer> transfers;  ///< with this stage's chunk numbers
  std::atomic<int> runs{0};                 ///< completed runs
  std::thread thread;
};

/// The report that stages exchange after a run.
struct PipelineRunner::StageReport {
  int code = -1;  ///< of the error, or -1
  std::array<char, 244> text{};
  double seconds = 0, busy = 0;
};

PipelineRunner::PipelineRunner(passes::PipelineOrder order, std::vector<PipelineBytes> bytes,
                               PipelineLinks& links, tensor::Device& device)
    : order_(std::move(order)), links_(links), stage_(links.stages.rank()) {
  const passes::PipelineShape& shape = order_.shape;
  base::check(shape.stages == links.stages.size() && shape.stages > 1, "an order for ", shape.stages,
              " stages on ", links.stages.size(), " ranks");
  base::check(bytes.size() == static_cast<size_t>(shape.chunks), "bytes of ", bytes.size(), " chunks of ",
              shape.chunks);
  const auto slots = passes::plan_pipeline_slots(order_)[static_cast<size_t>(stage_)];
  for (const PipelineAction& a : order_.of_stage[0]) last_ = std::max(last_, a.work);
  for (size_t c = 0; c < bytes.size(); ++c) {
    auto chunk = std::make_unique<Chunk>();
    chunk->in = make_ring(device, bytes[c].in, slots[c].in);
    chunk->out = make_ring(device, bytes[c].out, slots[c].out);
    chunk->out_gradient = make_ring(device, bytes[c].out_gradient, slots[c].out_gradient);
    chunk->in_gradient = make_ring(device, bytes[c].in_gradient, slots[c].in_gradient);
    chunk->kept = make_ring(device, bytes[c].kept, slots[c].kept);
    chunk->late = make_ring(device, bytes[c].late, slots[c].late);
    chunk->first_layer = bytes[c].first_layer;
    chunk->last_layer = bytes[c].last_layer;
    chunk->is_first = stage_ == 0 && c == 0;
    chunk->is_last = stage_ + 1 == shape.stages && c + 1 == bytes.size();
    for (const PipelineRing* r :
         {&chunk->in, &chunk->out, &chunk->out_gradient, &chunk->in_gradient, &chunk->kept, &chunk->late}) {
      buffer_bytes_ += r->bytes * r->count;
    }
    chunks_.push_back(std::move(chunk));
  }
  add_lane(links.activation_out.get(), false, true);
  add_lane(links.activation_in.get(), false, false);
  add_lane(links.gradient_out.get(), true, true);
  add_lane(links.gradient_in.get(), true, false);
  for (auto& lane : lanes_) lane->thread = std::thread([this, &lane = *lane] { run_lane(lane); });
}

PipelineRunner::~PipelineRunner() {
  stops_.store(true, std::memory_order_release);
  signal();
  for (auto& lane : lanes_) lane->thread.join();
}

void PipelineRunner::add_lane(comm::Communicator* link, bool is_gradient, bool is_send) {
  if (link == nullptr) return;
  auto lane = std::make_unique<Lane>();
  lane->link = link;
  lane->is_gradient = is_gradient;
  lane->is_send = is_send;
  const int stages = order_.shape.stages;
  const auto listed = is_gradient ? passes::gradient_transfers : passes::activation_transfers;
  const int step = is_gradient ? 1 : -1;  // from a receiver to its sender
  const int sender = is_send ? stage_ : (stage_ + step + stages) % stages;
  lane->transfers = listed(order_, sender);
  if (!is_send) {
    // The parts at both ends of a transfer have the same chunk number, except across the wrap-around of the
    // ring.
    for (PipelineTransfer& t : lane->transfers) {
      if (!is_gradient && stage_ == 0) ++t.chunk;
      if (is_gradient && stage_ + 1 == stages) --t.chunk;
    }
  }
  if (!lane->transfers.empty()) lanes_.push_back(std::move(lane));
}

void PipelineRunner::signal() {
  epoch_.fetch_add(1, std::memory_order_acq_rel);
  epoch_.notify_all();
}

/// Returns false if the runner stops or a link fails before the condition holds.
bool PipelineRunner::wait(const std::function<bool()>& condition) {
  constexpr int kSpins = 200;
  for (int spin = 0;; ++spin) {
    // Read before the condition: a later event changes the epoch, so that the wait returns at once.
    const uint32_t epoch = epoch_.load(std::memory_order_acquire);
    if (has_failed_.load(std::memory_order_acquire)) return false;
    if (condition()) return true;
    if (stops_.load(std::memory_order_acquire)) return false;
    if (spin >= kSpins) epoch_.wait(epoch, std::memory_order_acquire);
  }
}

void PipelineRunner::fail(std::exception_ptr error) {
  bool is_failing = false;
  if (is_failing_.compare_exchange_strong(is_failing, true)) {
    failure_ = std::move(error);
    has_failed_.store(true, std::memory_order_release);
  }
  signal();
}

void PipelineRunner::run_lane(Lane& lane) {
  try {
    links_.settle(lane.link);  // from here on this thread uses the device
    for (;;) {
      const int done = lane.runs.load(std::memory_order_relaxed);
      if (!wait([&] { return runs_.load(std::memory_order_acquire) > done; })) return;
      for (const PipelineTransfer& t : lane.transfers) {
        if (!transfer(lane, t)) return;
      }
      lane.runs.store(done + 1, std::memory_order_release);
      signal();
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

bool PipelineRunner::transfer(Lane& lane, const PipelineTransfer& t) {
  Chunk& c = *chunks_[static_cast<size_t>(t.chunk)];
  const int i = t.micro_batch;
  const PipelineRing& ring =
      lane.is_send ? (lane.is_gradient ? c.in_gradient : c.out) : (lane.is_gradient ? c.out_gradient : c.in);
  const std::span<std::byte> bytes(ring.at(i), static_cast<size_t>(ring.used));
  if (lane.is_send) {
    const std::atomic<int>& made = lane.is_gradient ? c.backward : c.forward;
    if (!wait([&] { return made.load(std::memory_order_acquire) > i; })) return false;
    lane.link->send(bytes, kTo, lane.is_gradient ? c.first_layer : c.last_layer);
    links_.settle(lane.link);
    (lane.is_gradient ? c.gradient_sent : c.sent).store(i + 1, std::memory_order_release);
  } else {
    if (!wait([&] { return c.through.load(std::memory_order_acquire) > i - ring.count; })) return false;
    lane.link->recv(bytes, kFrom, lane.is_gradient ? c.last_layer : c.first_layer);
    links_.settle(lane.link);
    (lane.is_gradient ? c.gradient_arrived : c.arrived).store(i + 1, std::memory_order_release);
  }
  signal();
  return true;
}

bool PipelineRunner::is_ready(const PipelineAction& a) const {
  const Chunk& c = *chunks_[static_cast<size_t>(a.chunk)];
  const auto passed = [&](const std::atomic<int>& count, int least) {
    return count.load(std::memory_order_acquire) > least;
  };
  const int i = a.micro_batch;
  switch (a.work) {
    case PipelineWork::forward:
      return (c.is_first || passed(c.arrived, i)) && (c.is_last || passed(c.sent, i - c.out.count));
    case PipelineWork::backward:
    case PipelineWork::input_gradient:
      return (c.is_last || passed(c.gradient_arrived, i)) &&
             (c.is_first || passed(c.gradient_sent, i - c.in_gradient.count));
    case PipelineWork::weight_gradient: return true;
  }
  return true;
}

PipelineBuffers PipelineRunner::buffers_of(const PipelineAction& a) const {
  const Chunk& c = *chunks_[static_cast<size_t>(a.chunk)];
  const int i = a.micro_batch;
  return {.in = c.in.at(i),
          .out = c.out.at(i),
          .out_gradient = c.out_gradient.at(i),
          .in_gradient = c.in_gradient.at(i),
          .kept = c.kept.at(i),
          .late = c.late.at(i)};
}

void PipelineRunner::finish(const PipelineAction& a) {
  Chunk& c = *chunks_[static_cast<size_t>(a.chunk)];
  if (a.work == PipelineWork::forward) c.forward.store(a.micro_batch + 1, std::memory_order_release);
  if (a.work == PipelineWork::backward || a.work == PipelineWork::input_gradient)
    c.backward.store(a.micro_batch + 1, std::memory_order_release);
  if (a.work == last_) c.through.store(a.micro_batch + 1, std::memory_order_release);
  signal();
}

void PipelineRunner::act(const PipelineAction& a, const Work& work, StageReport& mine) {
  // After an error the transfers continue with whatever the buffers contain, so that no stage waits.
  if (mine.code >= 0) return;
  try {
    work(a, buffers_of(a));
  } catch (const base::Error& e) {
    mine.code = static_cast<int>(e.code());
    e.message().copy(mine.text.data(), mine.text.size() - 1);
    work_failure_ = std::current_exception();
  } catch (const std::exception& e) {
    mine.code = static_cast<int>(base::ErrorCode::internal);
    std::strncpy(mine.text.data(), e.what(), mine.text.size() - 1);
    work_failure_ = std::current_exception();
  }
}

PipelineReport PipelineRunner::run(const Work& work) {
  if (has_failed_.load(std::memory_order_acquire)) std::rethrow_exception(failure_);
  // The lanes all wait for the next run, so none of them reads the counts now.
  for (auto& c : chunks_) c->reset();
  work_failure_ = nullptr;
  StageReport mine;
  const auto chunks = static_cast<size_t>(order_.shape.chunks);
  constexpr size_t kWorks = 4;
  std::vector<double> spent(chunks * kWorks, 0);
  runs_.fetch_add(1, std::memory_order_acq_rel);
  signal();
  const auto begin = std::chrono::steady_clock::now();
  for (const PipelineAction& a : order_.of_stage[static_cast<size_t>(stage_)]) {
    if (!wait([&] { return is_ready(a); })) std::rethrow_exception(failure_);
    const auto start = std::chrono::steady_clock::now();
    act(a, work, mine);
    const double seconds = seconds_since(start);
    spent[static_cast<size_t>(a.chunk) * kWorks + static_cast<size_t>(a.work)] += seconds;
    mine.busy += seconds;
    finish(a);
  }
  mine.seconds = seconds_since(begin);
  const auto all_done = [&] {
    return std::all_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
      return lane->runs.load(std::memory_order_acquire) == runs_.load(std::memory_order_relaxed);
    });
  };
  // Buffers may be read until the last transfer is complete.
  if (!wait(all_done)) std::rethrow_exception(failure_);
  return agree(mine, spent);
}

PipelineReport PipelineRunner::agree(const StageReport& mine, const std::vector<double>& spent) {
  const auto stages = static_cast<size_t>(order_.shape.stages);
  std::vector<StageReport> reports(stages);
  links_.stages.all_gather(std::as_bytes(std::span(&mine, 1)), comm::as_bytes(std::span(reports)),
                           "pipeline report");
  if (work_failure_) std::rethrow_exception(work_failure_);
  for (size_t r = 0; r < stages; ++r) {
    if (reports[r].code < 0) continue;
    base::fail(static_cast<base::ErrorCode>(reports[r].code), "pipeline stage ", r, ": ",
               reports[r].text.data());
  }
  std::vector<double> all(stages * spent.size());
  links_.stages.all_gather(std::as_bytes(std::span(spent)), comm::as_bytes(std::span(all)),
                           "pipeline report");
  PipelineReport report;
  double busy = 0;
  for (const StageReport& r : reports) {
    report.seconds = std::max(report.seconds, r.seconds);
    busy += r.busy;
  }
  if (report.seconds > 0) report.bubble = 1 - busy / (report.seconds * static_cast<double>(stages));
  const double count = order_.shape.micro_batches;
  report.times.parts.resize(static_cast<size_t>(order_.shape.parts()));
  for (size_t part = 0; part < report.times.parts.size(); ++part) {
    const double* of = all.data() + (part % stages) * spent.size() + part / stages * 4;
    report.times.parts[part] = {.forward = of[0] / count,
                                .backward = of[1] / count,
                                .input_gradient = of[2] / count,
                                .weight_gradient = of[3] / count};
  }
  report.predicted = passes::simulate(order_, report.times).bubble;
  return report;
}

}  // namespace trireme::engine
