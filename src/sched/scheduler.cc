// The dynamic batcher of one model: runs batches on the threads of its instances.
#include "sched/scheduler.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "base/machine/busy_cpus.h"
#include "sched/alarm.h"
#include "sched/idle_work.h"

namespace trireme::sched {
namespace {

/// A batch is gathered and split by `rows`, so whoever creates a request must make its inputs agree with it.
bool has_its_rows(const Request& request, const Padding& padding) {
  return !padding.is_batched ||
         std::all_of(request.inputs.begin(), request.inputs.end(),
                     [&](const tensor::Tensor& t) { return t.rank() == 0 || t.dims()[0] == request.rows; });
}

/// How often the point was held or released; 0 for null.
uint64_t changes_of(const base::PausePoint* point) { return point == nullptr ? 0 : point->changes(); }

engine::SessionOptions session_options(const SchedulerOptions& options, const Instance& instance) {
  engine::SessionOptions session = options.session;
  const auto i = static_cast<size_t>(instance.index);
  if (i < options.devices.size() && !options.devices[i].empty()) session.device = options.devices[i];
  session.stop = &instance.stop;
  if (!options.pin || options.cpus.empty()) return session;
  for (int t = 0; t < session.threads; ++t) {
    session.cpus.push_back(
        options.cpus[static_cast<size_t>(instance.index * session.threads + t) % options.cpus.size()]);
  }
  return session;
}

}  // namespace

/// While it lives, the thread that waits for the instances to start ends the loops of the instance's runs
/// once `limit_ns` have passed; 0: they may go on.
class Scheduler::LoopTime {
 public:
  LoopTime(Scheduler& scheduler, Instance& instance, int64_t limit_ns)
      : scheduler_(scheduler), instance_(instance) {
    if (limit_ns > 0) set(scheduler_.clock_.now_ns() + limit_ns);
  }
  ~LoopTime() { set(0); }
  LoopTime(const LoopTime&) = delete;
  LoopTime& operator=(const LoopTime&) = delete;

 private:
  void set(int64_t end_ns) {
    const std::lock_guard lock(scheduler_.mutex_);
    scheduler_.workers_[static_cast<size_t>(instance_.index)].loops_end_ns = end_ns;
    instance_.stop.set(engine::StopReason::none);
    scheduler_.changed_.notify_all();
  }

  Scheduler& scheduler_;
  Instance& instance_;
};

Scheduler::Scheduler(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
                     const base::Clock& clock, std::function<void(const Timing&)> on_batch)
    : clock_(clock),
      options_(std::move(options)),
      on_batch_(std::move(on_batch)),
      idle_work_(IdleWork::of(model, options_, clock_, on_batch_)),
      dispatcher_(options_, clock_, idle_work_.get()),
      workers_(static_cast<size_t>(std::max(0, options_.instances))) {
  base::require(options_.instances >= 1 && options_.limits.max_rows >= 1,
                "a scheduler needs an instance and a row");
  try {
    start(model);
  } catch (...) {
    stop(INT64_MAX);
    throw;
  }
}

void Scheduler::start(const std::shared_ptr<const engine::PreparedModel>& model) {
  for (int i = 0; i < options_.instances; ++i) dispatcher_.open_lease(dispatcher_.instance(i));
  for (int i = 0; i < options_.instances; ++i) {
    workers_[static_cast<size_t>(i)].thread =
        std::thread([this, model, i] { work(model, dispatcher_.instance(i)); });
  }
  {
    std::unique_lock lock(mutex_);
    while (ready_ < options_.instances) wait_until(changed_, lock, end_loops());
    if (failure_) std::rethrow_exception(failure_);
  }
  keeper_ = std::thread([this] { dispatcher_.keep(); });
}

/// With the lock held: ends loops of the warm-up that have had their time. Gives when the next will have.
int64_t Scheduler::end_loops() {
  const int64_t now_ns = clock_.now_ns();
  int64_t next_ns = INT64_MAX;
  for (size_t i = 0; i < workers_.size(); ++i) {
    int64_t& end_ns = workers_[i].loops_end_ns;
    if (end_ns == 0) continue;
    if (now_ns < end_ns) {
      next_ns = std::min(next_ns, end_ns);
      continue;
    }
    end_ns = 0;
    dispatcher_.instance(static_cast<int>(i)).stop.set(engine::StopReason::rounds);
  }
  return next_ns;
}

Scheduler::~Scheduler() { stop(INT64_MAX); }

bool Scheduler::stop(int64_t patience_ns) {
  dispatcher_.close();
  if (keeper_.joinable()) keeper_.join();
  bool have_all_ended = idle_work_ == nullptr || idle_work_->stop(patience_ns);
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (patience_ns < INT64_MAX && worker.thread.joinable()) {
      std::unique_lock lock(mutex_);
      const auto is_over = [&] { return worker.has_ended; };
      if (!changed_.wait_for(lock, std::chrono::nanoseconds(patience_ns), is_over)) {
        have_all_ended = false;
        worker.thread.detach();
        continue;
      }
    }
    if (worker.thread.joinable()) worker.thread.join();
    dispatcher_.instance(static_cast<int>(i)).lease.close();
  }
  return have_all_ended;
}

/// The thread of an instance. It creates its own session, so that pinning applies to that thread and memory
/// is near it.
void Scheduler::work(const std::shared_ptr<const engine::PreparedModel>& model, Instance& instance) {
  const base::PausePoint::Scope here(options_.pause);
  std::unique_ptr<engine::Session> session;
  std::unique_ptr<BatchRunner> runner;
  std::exception_ptr failure;
  std::string host_operators;
  try {
    session = std::make_unique<engine::Session>(model, session_options(options_, instance));
    runner = std::make_unique<BatchRunner>(*session, options_.padding);
    std::vector<WarmUp> list = options_.warm_up;
    warm_up(*runner, instance, list);
    std::vector<BatchTimes::WarmedUp> measured;
    if (options_.p99_ns > 0) measured = measure(*runner, list);
    host_operators = session->host_operators();
    dispatcher_.opened(
        instance,
        {.runner = *runner, .may_share = session->sharded() == nullptr, .measured = std::move(measured)});
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    ++ready_;
    if (failure) failure_ = failure;
    if (host_operators_.empty()) host_operators_.swap(host_operators);
  }
  changed_.notify_all();
  while (!failure) {
    std::vector<Request> batch = dispatcher_.next_batch(instance);
    if (batch.empty()) break;
    run_batch(*runner, instance, std::move(batch));
  }
  runner.reset();
  session.reset();
  const std::lock_guard lock(mutex_);
  workers_[static_cast<size_t>(instance.index)].has_ended = true;
  changed_.notify_all();
}

/// Makes the shapes of the list ready. Once values that nobody gave have failed, such entries of the list are
/// no longer run.
void Scheduler::warm_up(BatchRunner& runner, Instance& instance, std::vector<WarmUp>& list) {
  for (const WarmUp& shapes : list) {
    if (!shapes.is_made_up) {
      const LoopTime limit(*this, instance, options_.has_loops ? options_.loop_ns : 0);
      runner.warm_up(shapes);
      continue;
    }
    // What cannot be compiled fails whatever the values are.
    runner.warm_up({.example = shapes.example, .rows = shapes.rows, .is_run = false});
    if (!shapes.is_run || takes_made_up(runner, instance, shapes)) continue;
    for (WarmUp& other : list) other.is_run = other.is_run && !other.is_made_up;
  }
}

/// Runs values that nobody gave. False: the model refuses them, or its loops were ended.
bool Scheduler::takes_made_up(BatchRunner& runner, Instance& instance, const WarmUp& shapes) {
  constexpr int64_t kSeconds = 2;
  int64_t limit_ns = kSeconds * base::kNsPerSecond;
  if (options_.loop_ns > 0) limit_ns = std::min(limit_ns, options_.loop_ns);
  const LoopTime limit(*this, instance, options_.has_loops ? limit_ns : 0);
  try {
    runner.warm_up(shapes);
    return true;
  } catch (const base::Error& e) {
    if (e.code() != base::ErrorCode::invalid_argument) throw;
    const bool was_ended = instance.stop.reason() == engine::StopReason::rounds;
    const std::lock_guard lock(mutex_);
    warm_up_problem_ = was_ended ? "with zeros its loops go on: they were ended" : e.what();
    return false;
  }
}

/// Times every size once more after the warm-up, so that the first plan for the goal has measurements before
/// the first request.
std::vector<BatchTimes::WarmedUp> Scheduler::measure(BatchRunner& runner,
                                                     const std::vector<WarmUp>& list) const {
  std::vector<BatchTimes::WarmedUp> measured;
  for (const WarmUp& shapes : list) {
    if (!shapes.is_run) continue;
    for (int64_t rows : shapes.rows) {
      const int64_t start_ns = clock_.now_ns();
      runner.warm_up({.example = shapes.example, .rows = {rows}, .is_run = true});
      const int64_t now_ns = clock_.now_ns();
      measured.push_back({.rows = rows, .took_ns = now_ns - start_ns, .now_ns = now_ns});
    }
  }
  return measured;
}

std::string Scheduler::host_operators() const {
  const std::lock_guard lock(mutex_);
  return host_operators_;
}

std::string Scheduler::warm_up_problem() const {
  const std::lock_guard lock(mutex_);
  return warm_up_problem_;
}

void Scheduler::submit(Request request) {
  if (request.priority == kBackgroundPriority && idle_work_ != nullptr)
    return idle_work_->submit(std::move(request));
  request.timing.enqueued_ns = clock_.now_ns();
  base::check(has_its_rows(request, options_.padding), "a request's inputs differ in their rows");
  if (Instance* instance = dispatcher_.submit(request)) run_here(*instance, std::move(request));
}

/// Runs a batch on its instance's thread; the instance is free afterwards.
void Scheduler::run_batch(BatchRunner& runner, Instance& instance, std::vector<Request> batch) {
  if (options_.halt_polling != nullptr) options_.halt_polling->worked();
  const base::BusyCpu seat = base::BusyCpu::alone();
  const uint64_t group = group_key(batch[0].inputs, options_.padding);
  const int64_t start = clock_.now_ns();
  int64_t rows = 0;
  for (Request& r : batch) {
    r.timing.started_ns = start;
    r.timing.instance = instance.index;
    rows += r.rows;
  }
  dispatcher_.begins(instance, batch, group);
  size_t running = batch.size();
  int64_t padded = 0, runs = 0;
  const uint64_t changes = changes_of(options_.pause);
  const auto on_batch = [&](const Timing& timing) {
    padded = timing.padded_rows;
    ++runs;
    // A failed batch runs again in parts, and one may have been paused: such times are not typical.
    const bool is_typical = timing.batch_rows == rows && changes == changes_of(options_.pause);
    const bool has_hung = dispatcher_.computed(instance, timing,
                                               {.batch = batch,
                                                .ended = std::exchange(running, 0),
                                                .group = group,
                                                .is_typical = is_typical,
                                                .scratch_bytes = runner.scratch_bytes()});
    if (on_batch_ && !has_hung) on_batch_(timing);
  };
  const auto on_alone = [&](std::span<const Request> one) { dispatcher_.begins(instance, one, group, true); };
  runner.run(batch, clock_, std::ref(on_batch), std::ref(on_alone));
  batch.clear();  // requests hold their clients' memory: free it before waiting
  if (runs == 1 && changes == changes_of(options_.pause)) dispatcher_.ran(instance, group, padded, start);
  dispatcher_.finish(instance, running);
  if (options_.halt_polling != nullptr) options_.halt_polling->worked();
}

/// Runs a request on the submitting thread, on an instance that was idle. The instance is free again before
/// the sink, which writes to sockets, is called; the results are tensors of their own.
void Scheduler::run_here(Instance& instance, Request request) {
  if (options_.halt_polling != nullptr) options_.halt_polling->worked();
  const base::BusyCpu seat = base::BusyCpu::here();
  const uint64_t group = group_key(request.inputs, options_.padding);
  request.timing.started_ns = clock_.now_ns();
  request.timing.queue_length = 1;
  request.timing.instance = instance.index;
  bool has_instance = true, has_hung = false;
  const auto on_batch = [&](const Timing& timing) {
    has_hung = dispatcher_.ran_here(instance, group, &timing);
    has_instance = false;  // not before: if ran_here() throws for lack of memory, the instance is still taken
    if (on_batch_ && !has_hung) on_batch_(timing);
  };
  std::vector<Request> batch;
  try {
    batch.push_back(std::move(request));
    if (options_.hang_ns > 0 || options_.has_loops) dispatcher_.begins(instance, batch, group);
    instance.runner->run(batch, clock_, std::ref(on_batch));
    batch.clear();
  } catch (const std::bad_alloc&) {
    if (batch.empty()) refuse(request, Ending::failed, base::ErrorCode::exhausted, "out of memory");
  }
  if (has_instance) has_hung = dispatcher_.ran_here(instance, group, nullptr);  // the model failed
  dispatcher_.told_here(has_hung);
}

void Scheduler::drain() {
  dispatcher_.drain();
  if (idle_work_ != nullptr) idle_work_->drain();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = dispatcher_.stats();
  if (idle_work_ != nullptr) idle_work_->add_to(stats);
  return stats;
}

}  // namespace trireme::sched
