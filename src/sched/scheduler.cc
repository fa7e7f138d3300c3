// The dynamic batcher of one model: a bounded queue in front of instances that run batches.
#include "sched/scheduler.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>
#include <utility>

#include "base/machine/busy_cpus.h"
#include "sched/current_error.h"
#include "sched/idle_work.h"

namespace trireme::sched {
namespace {

void refuse(Request& request, Ending ending, base::ErrorCode code, const char* message) {
  Outcome outcome{.outputs = {}, .error = {}, .ending = ending, .timing = request.timing};
  try {
    outcome.error.emplace(code, message);
  } catch (const std::bad_alloc&) {
    outcome.error = current_error();
  }
  request.sink(std::move(outcome));
}

/// A batch is gathered and split by `rows`: whoever makes requests has checked that the inputs agree with it.
bool has_its_rows(const Request& request, const Padding& padding) {
  return !padding.is_batched ||
         std::all_of(request.inputs.begin(), request.inputs.end(),
                     [&](const tensor::Tensor& t) { return t.rank() == 0 || t.dims()[0] == request.rows; });
}

/// No batch holds requests of both kinds.
bool is_of_background(const std::vector<Request>& batch) {
  return !batch.empty() && batch[0].priority == kBackgroundPriority;
}

/// Requests of clients that wait or run.
size_t in_flight(const WaitingQueue& queue, size_t running, const ClientLoad& load) {
  return queue.size() - queue.of_level(kBackgroundPriority) + running - load.background.running();
}

/// Takes work that may wait out of a view of requests of clients. True: nothing else is in it.
bool leave_to_clients(WaitingQueue::View& view) {
  size_t clients = 0;
  while (clients < view.waiting.size() && view.waiting[clients].priority != kBackgroundPriority) ++clients;
  if (clients == 0) return !view.waiting.empty();
  view.waiting.resize(clients);
  view.places.resize(clients);
  return false;
}

/// The most rows of a batch of `first` that `leave` has time for; 0: not even its own.
int64_t rows_within(const Waiting& first, int64_t most_rows, const BackgroundShare::Leave& leave,
                    const PredictNs& predict) {
  if (leave.most_ns == INT64_MAX) return most_rows;
  int64_t rows = 0;
  for (int64_t more = 1; more <= most_rows; more *= 2) {
    const int64_t cost_ns = predict(first.group, more);
    if (cost_ns > 0 && cost_ns <= leave.most_ns) rows = more;
  }
  if (rows >= first.rows) return rows;
  return leave.may_be_one && first.rows <= most_rows ? first.rows : 0;
}

/// Whether batches are cut where further rows make none cheaper.
bool prices_rows(const SchedulerOptions& options) {
  return !options.runs_whole && !options.places_rows && options.padding.is_batched &&
         options.limits.max_rows > 1;
}

/// Of a point that is null: 0.
uint64_t changes_of(const base::PausePoint* point) { return point == nullptr ? 0 : point->changes(); }

inline void pause_cpu() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

Scheduler::Scheduler(std::shared_ptr<const engine::PreparedModel> model, SchedulerOptions options,
                     const base::Clock& clock, std::function<void(const Timing&)> on_batch)
    : clock_(clock),
      options_(std::move(options)),
      on_batch_(std::move(on_batch)),
      queue_(options_.is_fair),
      prices_(options_.padding.row_buckets, options_.limits.max_rows),
      tuner_({.p99_ns = options_.p99_ns,
              .max_rows = options_.limits.max_rows,
              .row_buckets = options_.padding.row_buckets,
              .instances = options_.instances}),
      instances_(static_cast<size_t>(std::max(0, options_.instances))) {
  base::require(options_.instances >= 1 && options_.limits.max_rows >= 1,
                "a scheduler needs an instance and a row");
  is_held_ = options_.hold_until > 0;
  idle_work_ = IdleWork::of(model, options_, clock_, on_batch_);
  claim_resources();
  try {
    start(model);
  } catch (...) {
    stop(INT64_MAX);
    throw;
  }
}

void Scheduler::start(const std::shared_ptr<const engine::PreparedModel>& model) {
  for (int i = 0; i < options_.instances; ++i) {
    instances_[static_cast<size_t>(i)].thread = std::thread([this, model, i] { instance_main(model, i); });
  }
  {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return ready_ == options_.instances; });
    if (failure_) std::rethrow_exception(failure_);
  }
  keeper_ = std::thread([this] { run_keeper(); });
}

Scheduler::~Scheduler() { stop(INT64_MAX); }

void Scheduler::refuse_queue(const char* reason) {
  std::vector<Request> left;
  {
    const std::lock_guard lock(mutex_);
    left = queue_.take_all();
  }
  for (Request& r : left) refuse(r, Ending::refused, base::ErrorCode::unavailable, reason);
}

bool Scheduler::stop(int64_t patience_ns) {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  refuse_queue("the server is shutting down");
  changed_.notify_all();
  keep_.notify_all();
  if (keeper_.joinable()) keeper_.join();
  bool have_all_ended = idle_work_ == nullptr || idle_work_->stop(patience_ns);
  for (Instance& instance : instances_) {
    if (patience_ns < INT64_MAX && instance.thread.joinable()) {
      std::unique_lock lock(mutex_);
      const auto is_over = [&] { return instance.has_ended; };
      if (!idle_.wait_for(lock, std::chrono::nanoseconds(patience_ns), is_over)) {
        have_all_ended = false;
        instance.thread.detach();
        continue;
      }
    }
    if (instance.thread.joinable()) instance.thread.join();
    if (options_.limiter != nullptr && instance.claim != 0) options_.limiter->remove(instance.claim);
    instance.claim = 0;
  }
  return have_all_ended;
}

/// Throws for needs that can never be met, with nothing left behind.
void Scheduler::claim_resources() {
  if (options_.limiter == nullptr) return;
  for (size_t i = 0; i < instances_.size(); ++i) {
    try {
      instances_[i].claim = options_.limiter->add(options_.claims.at(i), [this, i] {
        const std::lock_guard lock(mutex_);
        instances_[i].leave = Instance::Leave::granted;
        changed_.notify_all();
      });
    } catch (...) {
      stop(INT64_MAX);
      throw;
    }
  }
}

engine::SessionOptions Scheduler::session_options(int index) const {
  engine::SessionOptions session = options_.session;
  const auto i = static_cast<size_t>(index);
  if (i < options_.devices.size() && !options_.devices[i].empty()) session.device = options_.devices[i];
  session.stop = &instances_[static_cast<size_t>(index)].stop;
  if (!options_.pin || options_.cpus.empty()) return session;
  for (int t = 0; t < session.threads; ++t) {
    session.cpus.push_back(
        options_.cpus[static_cast<size_t>(index * session.threads + t) % options_.cpus.size()]);
  }
  return session;
}

/// The session is made on the thread that uses it, so that pinning binds that thread and memory is near it.
void Scheduler::instance_main(const std::shared_ptr<const engine::PreparedModel>& model, int index) {
  const base::PausePoint::Scope here(options_.pause);
  std::unique_ptr<engine::Session> session;
  std::unique_ptr<BatchRunner> runner;
  std::exception_ptr failure;
  std::string host_operators;
  try {
    session = std::make_unique<engine::Session>(model, session_options(index));
    runner = std::make_unique<BatchRunner>(*session, options_.padding);
    for (const WarmUp& shapes : options_.warm_up) runner->warm_up(shapes);
    if (options_.p99_ns > 0) measure(*runner);
    host_operators = session->host_operators();
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    ++ready_;
    if (failure) failure_ = failure;
    if (host_operators_.empty()) host_operators_.swap(host_operators);
    if (runner) instances_[static_cast<size_t>(index)].scratch_bytes = runner->scratch_bytes();
    if (runner && session->sharded() == nullptr) instances_[static_cast<size_t>(index)].runner = runner.get();
  }
  idle_.notify_all();
  Instance& own = instances_[static_cast<size_t>(index)];
  if (!failure) work(*runner, own);
  runner.reset();
  session.reset();
  const std::lock_guard lock(mutex_);
  own.has_ended = true;
  idle_.notify_all();
}

std::string Scheduler::host_operators() const {
  const std::lock_guard lock(mutex_);
  return host_operators_;
}

void Scheduler::submit(Request request) {
  const bool is_background = request.priority == kBackgroundPriority;
  if (is_background && idle_work_ != nullptr) return idle_work_->submit(std::move(request));
  request.timing.enqueued_ns = clock_.now_ns();
  base::check(has_its_rows(request, options_.padding), "a request's inputs differ in their rows");
  Waiting waiting{.rows = request.rows,
                  .enqueued_ns = request.timing.enqueued_ns,
                  .deadline_ns = request.deadline_ns,
                  .priority = request.priority,
                  .group = group_key(request.inputs, options_.padding),
                  .finish_ns = request.finish_ns,
                  .runs_late = request.runs_late,
                  .tenant = options_.is_fair ? request.tenant : 0,
                  .weight = request.weight};
  const char* refusal = nullptr;
  Taken leaving;
  {
    std::unique_lock lock(mutex_);
    if (!is_background) load_.background.arrived(waiting.enqueued_ns);
    load_.last_arrival_ns = waiting.enqueued_ns;
    if (options_.is_fair) waiting.cost_ns = cost_of(waiting);
    if (options_.p99_ns > 0) tuner_.arrived({waiting.enqueued_ns, waiting.rows});
    refusal = refusal_of(request, waiting, leaving);
    if (refusal != nullptr) {
      ++stats_.refused;
    } else if (Instance* instance = take_instance(waiting, lock)) {
      if (idle_work_ != nullptr) idle_work_->hold();
      lock.unlock();
      return run_here(*instance, std::move(request));
    } else {
      if (options_.preserves_order) order_.place(request.priority, request.sink);
      if (options_.is_fair) shares_.join(waiting.tenant, queue_.of_tenant(waiting.tenant));
      queue_.push(std::move(request), waiting);
      if (idle_work_ != nullptr) idle_work_->hold();
      ++stats_.accepted;
      if (queue_.size() >= options_.hold_until) is_held_ = false;
      if (!is_background) load_.usual.arrived(in_flight(queue_, running_, load_));
      if (is_everybody_busy() || options_.p99_ns > 0) wake_keeper(next_look_ns(waiting.enqueued_ns));
    }
  }
  answer_unrun(leaving);
  if (refusal != nullptr) return refuse(request, Ending::refused, base::ErrorCode::unavailable, refusal);
  wake_one();
}

/// Whether a request is cheaper run here than handed over.
bool Scheduler::is_for_here(const Waiting& waiting) const {
  const bool may = options_.inline_ns > 0 && options_.p99_ns == 0 && !options_.is_fair &&
                   options_.limiter == nullptr && !options_.preserves_order;
  const bool is_late = waiting.deadline_ns != 0 && waiting.deadline_ns <= waiting.enqueued_ns;
  if (!may || waiting.priority == kBackgroundPriority || is_held_ || closing_ || !queue_.empty() || is_late)
    return false;
  const int64_t rows =
      options_.padding.is_batched ? bucket_of(options_.padding.row_buckets, waiting.rows) : waiting.rows;
  const int64_t cost_ns = compute_.predict(waiting.group, rows);
  return cost_ns > 0 && cost_ns <= options_.inline_ns;
}

/// An idle instance for a request that is to run here, or null. If all are in use, each by as little as this
/// one, it waits for as long as a hand-over would take: a moment, so without sleeping.
Scheduler::Instance* Scheduler::take_instance(const Waiting& waiting, std::unique_lock<std::mutex>& lock) {
  constexpr int kPauses = 2000;
  for (bool has_waited = false; is_for_here(waiting); has_waited = true) {
    for (Instance& instance : instances_) {
      if (instance.runner == nullptr || instance.is_taken || instance.busy_until_ns != 0) continue;
      instance.is_taken = true;
      ++busy_;
      ++running_;
      ++stats_.accepted;
      ++stats_.batches;
      load_.usual.arrived(running_);
      return &instance;
    }
    if (has_waited) return nullptr;
    const uint32_t before = ended_.load(std::memory_order_relaxed);
    lock.unlock();
    for (int i = 0; i < kPauses && ended_.load(std::memory_order_relaxed) == before; ++i) pause_cpu();
    lock.lock();
  }
  return nullptr;
}

int64_t Scheduler::predict(uint64_t group, int64_t rows) const {
  return cost_.predict(group,
                       options_.padding.is_batched ? bucket_of(options_.padding.row_buckets, rows) : rows);
}

/// What a request adds to a full batch; a millisecond a row where nothing is known yet.
double Scheduler::cost_of(const Waiting& waiting) const {
  const int64_t most = options_.limits.max_rows;
  const auto full_ns = static_cast<double>(predict(waiting.group, most));
  const double row_ns = full_ns > 0 ? full_ns / static_cast<double>(most) : 1e6;
  return row_ns * static_cast<double>(std::max<int64_t>(1, waiting.rows));
}

/// In a full queue the last request of the tenant with most waiting for its weight gives way, unless that is
/// the one that asks.
bool Scheduler::make_room(const Waiting& waiting, Taken& leaving) {
  const uint32_t tenant = queue_.greediest(waiting);
  if (tenant == waiting.tenant) return false;
  leaving.evicted.push_back(queue_.evict(tenant));
  ++stats_.refused;
  return true;
}

/// With the lock held: a slice of the queue is looked through for who left or is too late.
void Scheduler::sweep(int64_t now_ns, Taken& leaving) {
  WaitingQueue::Leavers leavers;
  queue_.sweep(now_ns, leavers);
  stats_.expired += leavers.expired.size() + leavers.hopeless.size();
  stats_.cancelled += leavers.cancelled.size();
  const auto move_all = [](std::vector<Request>& from, std::vector<Request>& to) {
    std::move(from.begin(), from.end(), std::back_inserter(to));
  };
  move_all(leavers.expired, leaving.expired);
  move_all(leavers.hopeless, leaving.hopeless);
  move_all(leavers.cancelled, leaving.cancelled);
}

/// Why a request cannot be queued, or null.
const char* Scheduler::refusal_of(const Request& request, Waiting& waiting, Taken& leaving) {
  if (closing_) return "the server is shutting down";
  const bool is_own_hung = request.instance >= 0 && instances_[static_cast<size_t>(request.instance)].is_hung;
  if (is_own_hung || stats_.hung == options_.instances)
    return "no instance of the model is left: their batches do not end";
  const auto level = options_.level_queue.find(request.priority);
  const auto is_full = [&] { return queue_.size() >= options_.max_queue; };
  const auto is_level_full = [&] {
    return level != options_.level_queue.end() && queue_.of_level(request.priority) >= level->second;
  };
  // Who is gone keeps nobody out.
  if ((is_full() || is_level_full()) && queue_.next_sweep_ns() <= waiting.enqueued_ns)
    sweep(waiting.enqueued_ns, leaving);
  if (is_level_full()) return "Exceeds maximum queue size";
  if (is_full() && !(options_.is_fair && make_room(waiting, leaving))) return "Exceeds maximum queue size";
  if (waiting.finish_ns == 0) return nullptr;
  const auto first_free =
      std::min_element(instances_.begin(), instances_.end(),
                       [](const auto& a, const auto& b) { return a.busy_until_ns < b.busy_until_ns; });
  const int64_t free_ns = std::max(waiting.enqueued_ns, first_free->busy_until_ns);
  std::vector<Waiting> list = queue_.all();
  if (options_.is_fair) {
    list.push_back(waiting);
    shares_.tag(list);
    waiting.fair_tag = list.back().fair_tag;
    list.pop_back();
  }
  const bool is_in_time = admits(list, waiting, free_ns, limits(waiting.enqueued_ns),
                                 [this](uint64_t group, int64_t rows) { return predict(group, rows); });
  return is_in_time ? nullptr : "Exceeds what can be done before the request's deadline";
}

BatchLimits Scheduler::limits(int64_t now_ns) const {
  BatchLimits limits = options_.limits;
  limits.instances = options_.instances;
  // A window that was asked for or tuned is waited out, a usual one only while that gains something.
  const bool ends_waits = options_.is_window_adaptive && options_.p99_ns == 0;
  if (prices_rows(options_)) limits.worth = prices_.worth_at(now_ns, ends_waits);
  if (options_.p99_ns == 0) return limits;
  limits.window_ns = tuner_.setting().window_ns;
  limits.max_rows = tuner_.setting().max_rows;
  limits.instances = tuner_.setting().instances;
  return limits;
}

/// False for those that the tuner leaves idle; one that hangs is made up for.
bool Scheduler::is_active(const Instance& instance) const {
  if (options_.p99_ns == 0 || closing_) return true;
  return &instance - instances_.data() < tuner_.setting().instances + stats_.hung;
}

/// Those the instance may choose from; who has left goes.
WaitingQueue::View Scheduler::view(const Instance& instance, int64_t max_rows, Taken& leaving) {
  const auto index = static_cast<int>(&instance - instances_.data());
  while (true) {
    WaitingQueue::View view = queue_.view(index, max_rows);
    const size_t before = leaving.cancelled.size();
    for (const auto place : view.places) {
      const Request& r = place->second.request;
      if (r.cancelled && r.cancelled()) leaving.cancelled.push_back(queue_.take(place));
    }
    const size_t left = leaving.cancelled.size() - before;
    if (left == 0) return view;
    stats_.cancelled += left;
  }
}

Scheduler::Taken Scheduler::take(int64_t now_ns, bool may_run, const Instance& instance) {
  Taken taken;
  try {
    choose(taken, now_ns, may_run, instance);
  } catch (const std::bad_alloc&) {  // again in a moment
    taken.wake_ns = now_ns + base::kNsPerMs;
  }
  return taken;
}

/// The body of take(). What it throws, it throws before a batch leaves the queue.
void Scheduler::choose(Taken& taken, int64_t now_ns, bool may_run, const Instance& instance) {
  if (queue_.next_sweep_ns() <= now_ns) sweep(now_ns, taken);
  if (is_held_ && !closing_) return;
  BatchLimits now = limits(now_ns);
  WaitingQueue::View seen = view(instance, now.max_rows, taken);
  const auto predicted = [this](uint64_t group, int64_t rows) { return predict(group, rows); };
  if (leave_to_clients(seen) && !closing_) {
    if (in_flight(queue_, running_, load_) > 0) return;  // the end of their batch is the next look
    const BackgroundShare::Leave leave = load_.background.at(now_ns);
    now.max_rows = rows_within(seen.waiting[0], now.max_rows, leave, predicted);
    now.window_ns = 0;
    taken.wake_ns = leave.next_ns;
    if (now.max_rows == 0) return;
  }
  auto& [waiting, places] = seen;
  if (options_.is_fair) shares_.tag(waiting);
  const bool is_complete = load_.usual.is_complete(in_flight(queue_, running_, load_));
  if (closing_ || (options_.is_window_adaptive && options_.p99_ns == 0 && is_complete)) now.window_ns = 0;
  Decision decision = decide(waiting, now_ns, now, predicted);
  taken.wake_ns = decision.wake_ns;
  taken.is_ripe = !decision.take.empty();
  if (!may_run) decision.take.clear();
  if (!decision.take.empty()) {
    const size_t head = decision.take[0];
    std::erase_if(decision.take, [&](size_t i) {
      return !same_group(places[i]->second.request.inputs, places[head]->second.request.inputs,
                         options_.padding);
    });
  }
  if (options_.is_fair) {
    for (size_t i : decision.take) shares_.run(waiting[i], i == decision.take[0]);
  }
  taken.batch.reserve(decision.take.size());
  taken.expired.reserve(taken.expired.size() + decision.expired.size());
  taken.hopeless.reserve(taken.hopeless.size() + decision.hopeless.size());
  const auto move_out = [&](const std::vector<size_t>& list, std::vector<Request>& to) {
    for (size_t i : list) to.push_back(queue_.take(places[i]));
  };
  stats_.expired += decision.expired.size() + decision.hopeless.size();
  move_out(decision.take, taken.batch);
  move_out(decision.expired, taken.expired);
  move_out(decision.hopeless, taken.hopeless);
  if (!taken.batch.empty()) {
    int64_t rows = 0;
    for (const Request& r : taken.batch) rows += r.rows;
    taken.until_ns = now_ns + predict(group_key(taken.batch[0].inputs, options_.padding), rows);
  }
}

void Scheduler::answer_unrun(Taken& taken) {
  for (Request& r : taken.expired) {
    refuse(r, Ending::expired, base::ErrorCode::unavailable, "Request timeout expired");
  }
  for (Request& r : taken.hopeless) {
    refuse(r, Ending::expired, base::ErrorCode::unavailable,
           "Request timeout expired: the answer would come after its deadline");
  }
  for (Request& r : taken.cancelled) {
    refuse(r, Ending::cancelled, base::ErrorCode::unavailable, "the client left");
  }
  for (Request& r : taken.evicted) {
    refuse(r, Ending::refused, base::ErrorCode::unavailable,
           "Exceeds maximum queue size: others have a right to this tenant's place");
  }
}

/// Asks for leave where a batch is ripe, gives it back where none is. True if that may have changed what can
/// be taken. The limiter calls back with its own lock held, so it is never called with ours.
bool Scheduler::settle_leave(Instance& instance, bool is_ripe, std::unique_lock<std::mutex>& lock) {
  using Leave = Instance::Leave;
  if (options_.limiter == nullptr) return false;
  if (is_ripe && instance.leave == Leave::none) {
    instance.leave = Leave::asked;
    lock.unlock();
    const bool is_granted = options_.limiter->ask(instance.claim);
    lock.lock();
    if (is_granted) instance.leave = Leave::granted;
    return true;
  }
  const bool is_useless = instance.leave == Leave::granted || (closing_ && instance.leave == Leave::asked);
  if (is_ripe || !is_useless) return false;
  instance.leave = Leave::none;
  lock.unlock();
  options_.limiter->give_back(instance.claim, false);
  lock.lock();
  instance.leave = Leave::none;  // a grant may have come just before
  return true;
}

void Scheduler::wait(int64_t wake_ns, std::unique_lock<std::mutex>& lock) {
  if (wake_ns == INT64_MAX) return changed_.wait(lock);
  changed_.wait_until(lock, std::chrono::steady_clock::time_point{std::chrono::nanoseconds(wake_ns)});
}

/// All, where the one that would be woken may be waiting for its leave, or not be wanted now or for this, or
/// be taken by a thread that submits.
void Scheduler::wake_one() {
  const bool may_be_wrong = options_.limiter != nullptr || options_.p99_ns > 0 || options_.places_rows ||
                            (options_.inline_ns > 0 && options_.instances > 1);
  may_be_wrong ? changed_.notify_all() : changed_.notify_one();
}

std::vector<Request> Scheduler::next_batch(Instance& instance) {
  std::unique_lock lock(mutex_);
  while (true) {
    // Taken by a thread that submits, which tells when it leaves somebody waiting; or not wanted now.
    if (instance.is_taken || !is_active(instance)) {
      changed_.wait(lock);
      continue;
    }
    const bool may_run = options_.limiter == nullptr || instance.leave == Instance::Leave::granted;
    Taken taken = take(clock_.now_ns(), may_run, instance);
    if (!taken.empty()) {
      ++busy_;
      if (!taken.batch.empty()) ++stats_.batches;
      running_ += taken.batch.size();
      instance.is_background = is_of_background(taken.batch);
      if (instance.is_background) load_.background.began(taken.batch.size());
      instance.busy_until_ns = taken.until_ns;
      const bool more = !queue_.empty();
      if (more && is_everybody_busy()) wake_keeper(queue_.next_sweep_ns());
      const size_t queued = queue_.size() + taken.batch.size();
      for (Request& r : taken.batch) r.timing.queue_length = static_cast<int64_t>(queued);
      lock.unlock();
      if (more) wake_one();  // another instance may take what is left
      answer_unrun(taken);
      if (!taken.batch.empty()) return std::move(taken.batch);
      lock.lock();
      --busy_;
      continue;
    }
    if (settle_leave(instance, taken.is_ripe, lock)) continue;
    tell_if_idle();
    if (closing_ && queue_.empty()) return {};
    wait(taken.wake_ns, lock);
  }
}

void Scheduler::finish_batch(Instance& instance, size_t still_running) {
  bool asks_again = false;
  {
    const std::lock_guard lock(mutex_);
    instance.busy_until_ns = 0;
    end_watch(instance);
    ended_.fetch_add(1, std::memory_order_relaxed);
    running_ -= still_running;
    if (instance.is_background) load_.background.ended(still_running);
    asks_again = !queue_.empty();
    if (options_.limiter != nullptr)
      instance.leave = asks_again ? Instance::Leave::asked : Instance::Leave::none;
    if (std::exchange(instance.is_hung, false)) {
      --stats_.hung;  // the watchdog has counted it out already
    } else {
      --busy_;
    }
    tell_if_idle();
  }
  if (options_.limiter == nullptr) return;
  if (!options_.limiter->give_back(instance.claim, true, asks_again)) return;
  const std::lock_guard lock(mutex_);
  instance.leave = Instance::Leave::granted;
}

void Scheduler::work(BatchRunner& runner, Instance& instance) {
  while (true) {
    std::vector<Request> batch = next_batch(instance);
    if (batch.empty()) return;
    run_batch(runner, instance, std::move(batch));
  }
}

/// With the lock held: what a batch took, gathering and computing.
void Scheduler::learn_from(const Timing& timing, uint64_t group) {
  const int64_t took_ns = timing.finished_ns - timing.started_ns;
  // Where a request's values say how long it takes, a quick one before it is no promise.
  if (options_.inline_ns > 0 && !timing.depends_on_data) compute_.observe(group, timing.padded_rows, took_ns);
  if (prices_rows(options_)) prices_.observe(group, timing.padded_rows, took_ns, timing.finished_ns);
}

/// Runs what next_batch() has taken; the instance is free afterwards.
void Scheduler::run_batch(BatchRunner& runner, Instance& instance, std::vector<Request> batch) {
  if (options_.halt_polling != nullptr) options_.halt_polling->worked();
  const base::BusyCpu seat = base::BusyCpu::alone();
  const uint64_t group = group_key(batch[0].inputs, options_.padding);
  const int64_t start = clock_.now_ns();
  for (Request& r : batch) {
    r.timing.started_ns = start;
    r.timing.instance = static_cast<int>(&instance - instances_.data());
  }
  if (options_.hang_ns > 0 || options_.p99_ns > 0) watch_batch(instance, batch, group);
  size_t count = batch.size();
  int64_t rows = 0;
  for (const Request& r : batch) rows += r.rows;
  // Before the sinks are called: a client that sends its next request at once must not count itself twice.
  int64_t padded = 0, runs = 0;
  const uint64_t changes = changes_of(options_.pause);
  const auto on_batch = [&](const Timing& timing) {
    padded = timing.padded_rows;
    ++runs;
    bool has_hung = false;
    {
      const std::lock_guard lock(mutex_);
      const size_t ended = std::exchange(count, 0);
      running_ -= ended;
      if (instance.is_background) {
        load_.background.ended(ended);
        load_.background.ran(timing.finished_ns, timing.finished_ns - timing.started_ns);
      } else {
        load_.background.answered(timing.finished_ns - timing.enqueued_ns);
      }
      instance.scratch_bytes = runner.scratch_bytes();
      has_hung = instance.is_hung;
      // A batch that failed runs again in parts, and one may have stood still: their times say nothing.
      if (timing.batch_rows == rows && changes == changes_of(options_.pause)) learn_from(timing, group);
      for (const Request& r : batch) {
        if (options_.p99_ns > 0) tuner_.answered(timing.finished_ns - r.timing.enqueued_ns);
      }
    }
    if (on_batch_ && !has_hung) on_batch_(timing);
  };
  runner.run(batch, clock_, std::ref(on_batch));
  batch.clear();  // requests hold memory of their clients: free it before waiting
  if (runs == 1 && changes == changes_of(options_.pause)) {  // a failed batch ran in parts
    const std::lock_guard lock(mutex_);
    const int64_t now_ns = clock_.now_ns();
    try {
      cost_.observe(group, padded, now_ns - start);
      if (options_.p99_ns > 0) tuner_.ran(instance.busy_at_start, padded, now_ns - start, now_ns);
    } catch (const std::bad_alloc&) {
      runs = 0;  // not learned from
    }
  }
  finish_batch(instance, count);
  if (options_.halt_polling != nullptr) options_.halt_polling->worked();
}

/// Runs one request on an instance that take_instance() gave. The instance is free again before the sink is
/// called, which writes to sockets; results are tensors of their own.
void Scheduler::run_here(Instance& instance, Request request) {
  if (options_.halt_polling != nullptr) options_.halt_polling->worked();
  const base::BusyCpu seat = base::BusyCpu::here();
  const uint64_t group = group_key(request.inputs, options_.padding);
  request.timing.started_ns = clock_.now_ns();
  request.timing.queue_length = 1;
  bool has_instance = true, has_hung = false;
  const auto leave = [&] {  // with the lock held
    has_instance = false;
    --running_;
    instance.is_taken = false;
    end_watch(instance);
    has_hung = std::exchange(instance.is_hung, false);
    if (has_hung) --stats_.hung;
    ended_.fetch_add(1, std::memory_order_relaxed);
    if (!queue_.empty() || closing_) changed_.notify_all();
  };
  const auto on_batch = [&](const Timing& timing) {
    {
      const std::lock_guard lock(mutex_);
      learn_from(timing, group);
      load_.background.answered(timing.finished_ns - timing.enqueued_ns);
      instance.scratch_bytes = instance.runner->scratch_bytes();
      leave();
    }
    if (on_batch_ && !has_hung) on_batch_(timing);
  };
  std::vector<Request> batch;
  try {
    batch.push_back(std::move(request));
    batch[0].timing.instance = static_cast<int>(&instance - instances_.data());
    if (options_.hang_ns > 0) watch_batch(instance, batch, group);
    instance.runner->run(batch, clock_, std::ref(on_batch));
    batch.clear();
  } catch (const std::bad_alloc&) {
    if (batch.empty()) refuse(request, Ending::failed, base::ErrorCode::exhausted, "out of memory");
  }
  const std::lock_guard lock(mutex_);
  if (has_instance) leave();  // the model failed
  if (!has_hung) --busy_;     // else the watchdog has counted it out already
  tell_if_idle();
}

void Scheduler::drain() {
  std::unique_lock lock(mutex_);
  closing_ = true;
  changed_.notify_all();
  idle_.wait(lock, [&] { return queue_.empty() && busy_ == 0; });
  if (idle_work_ == nullptr) return;
  lock.unlock();
  idle_work_->drain();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats;
  if (idle_work_ != nullptr) idle_work_->add_to(stats);
  const std::lock_guard lock(mutex_);
  stats.waiting += queue_.size();
  stats.accepted += stats_.accepted;
  stats.refused += stats_.refused;
  stats.expired += stats_.expired;
  stats.cancelled += stats_.cancelled;
  stats.batches += stats_.batches;
  stats.hung = stats_.hung;
  for (const Instance& instance : instances_) stats.scratch_bytes += instance.scratch_bytes;
  return stats;
}

}  // namespace trireme::sched
