// The bounded queue of one model: who may wait, who leaves, and which requests form the next batch.
#include "sched/batch_queue.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

#include "base/clock.h"

namespace trireme::sched {
namespace {

constexpr const char* kFull = "Exceeds maximum queue size";

/// Removes background work from a view that has requests of clients. True: it only has background work.
bool leave_to_clients(WaitingQueue::View& view) {
  size_t clients = 0;
  while (clients < view.waiting.size() && view.waiting[clients].priority != kBackgroundPriority) ++clients;
  if (clients == 0) return !view.waiting.empty();
  view.waiting.resize(clients);
  view.places.resize(clients);
  return false;
}

/// The most rows of a batch with `first` that end within `leave`; 0 if not even one row does.
int64_t rows_within(const Waiting& first, int64_t most_rows, const BackgroundShare::Leave& leave,
                    const BatchTimes& times) {
  if (leave.most_ns == INT64_MAX) return most_rows;
  int64_t rows = 0;
  for (int64_t more = 1; more <= most_rows; more *= 2) {
    const int64_t cost_ns = times.predict(first.group, more);
    if (cost_ns > 0 && cost_ns <= leave.most_ns) rows = more;
  }
  if (rows >= first.rows) return rows;
  return leave.may_be_one && first.rows <= most_rows ? first.rows : 0;
}

}  // namespace

BatchQueue::BatchQueue(const SchedulerOptions& options, const BatchTimes& times, const ClientLoad& load,
                       SchedulerStats& stats)
    : options_(options),
      times_(times),
      load_(load),
      stats_(stats),
      queue_(options.is_fair),
      is_held_(options.hold_until > 0) {}

/// Evicts, from a full queue, the last request of the tenant with the most work waiting for its weight; not
/// if that is the tenant that asks.
bool BatchQueue::make_room(const Waiting& waiting, Leaving& leaving) {
  const uint32_t tenant = queue_.greediest(waiting);
  if (tenant == waiting.tenant) return false;
  leaving.evicted.push_back(queue_.evict(tenant));
  ++stats_.refused;
  return true;
}

void BatchQueue::sweep(int64_t now_ns, Leaving& leaving) {
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

const char* BatchQueue::refusal_of(Waiting& waiting, int64_t free_ns, Leaving& leaving) {
  if (options_.is_fair) waiting.cost_ns = times_.cost_of(waiting);
  const auto level = options_.level_queue.find(waiting.priority);
  const auto is_full = [&] { return queue_.size() >= options_.max_queue; };
  const auto is_level_full = [&] {
    return level != options_.level_queue.end() && queue_.of_level(waiting.priority) >= level->second;
  };
  // Requests that are late or cancelled must not keep others out.
  if ((is_full() || is_level_full()) && queue_.next_sweep_ns() <= waiting.enqueued_ns)
    sweep(waiting.enqueued_ns, leaving);
  if (is_level_full()) return kFull;
  if (is_full() && !(options_.is_fair && make_room(waiting, leaving))) return kFull;
  if (waiting.finish_ns == 0) return nullptr;
  std::vector<Waiting> list = queue_.all();
  if (options_.is_fair) {
    list.push_back(waiting);
    shares_.tag(list);
    waiting.fair_tag = list.back().fair_tag;
    list.pop_back();
  }
  const int64_t now_ns = waiting.enqueued_ns;
  const auto is_in_time = [&](const PredictNs& predict) {
    return admits(list, waiting, std::max(now_ns, free_ns), times_.limits(now_ns), predict);
  };
  if (is_in_time(times_.predictor())) return nullptr;
  // If every request were refused, nothing would run, and nothing better be learned: where one slow batch, or
  // a slow time long ago, is the only reason to refuse, one request at a time runs nevertheless.
  const bool is_tried = std::any_of(list.begin(), list.end(), [&](const Waiting& other) {
    return other.is_trial && other.group == waiting.group;
  });
  waiting.is_trial = !is_tried && is_in_time(times_.recent_predictor(now_ns));
  return waiting.is_trial ? nullptr : "Exceeds what can be done before the request's deadline";
}

bool BatchQueue::may_skip(const Waiting& waiting) const {
  const bool may = options_.inline_ns > 0 && options_.p99_ns == 0 && !options_.is_fair &&
                   options_.limiter == nullptr && !options_.preserves_order;
  const bool is_late = waiting.deadline_ns != 0 && waiting.deadline_ns <= waiting.enqueued_ns;
  if (!may || waiting.priority == kBackgroundPriority || is_held_ || is_closing_ || !queue_.empty() ||
      is_late)
    return false;
  return times_.is_quick(waiting);
}

void BatchQueue::push(Request&& request, const Waiting& waiting) {
  if (options_.preserves_order) order_.place(request.priority, request.sink);
  if (options_.is_fair) shares_.join(waiting.tenant, queue_.of_tenant(waiting.tenant));
  queue_.push(std::move(request), waiting);
  if (queue_.size() >= options_.hold_until) is_held_ = false;
}

/// The requests from which the instance may choose; removes those whose client has left.
WaitingQueue::View BatchQueue::view(int instance, int64_t max_rows, Leaving& leaving) {
  while (true) {
    WaitingQueue::View view = queue_.view(instance, max_rows);
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

Taken BatchQueue::take(int64_t now_ns, bool may_run, int instance) {
  Taken taken;
  try {
    choose(taken, now_ns, may_run, instance);
  } catch (const std::bad_alloc&) {  // retried in a millisecond
    taken.wake_ns = now_ns + base::kNsPerMs;
  }
  return taken;
}

/// The body of take(). If it throws, no batch has left the queue yet.
void BatchQueue::choose(Taken& taken, int64_t now_ns, bool may_run, int instance) {
  if (queue_.next_sweep_ns() <= now_ns) sweep(now_ns, taken.leaving);
  if (is_held_ && !is_closing_) return;
  BatchLimits now = times_.limits(now_ns);
  WaitingQueue::View seen = view(instance, now.max_rows, taken.leaving);
  if (leave_to_clients(seen) && !is_closing_) {
    if (load_.in_flight(clients()) > 0) return;  // the end of the clients' batch triggers the next attempt
    const BackgroundShare::Leave leave = load_.background_leave(now_ns);
    now.max_rows = rows_within(seen.waiting[0], now.max_rows, leave, times_);
    now.window_ns = 0;
    taken.wake_ns = leave.next_ns;
    if (now.max_rows == 0) return;
  }
  if (options_.is_fair) shares_.tag(seen.waiting);
  if (is_closing_ || (times_.may_end_window() && load_.is_complete(clients()))) now.window_ns = 0;
  Decision decision = decide(seen.waiting, now_ns, now, times_.predictor());
  taken.wake_ns = decision.wake_ns;
  taken.is_ripe = !decision.take.empty();
  if (!may_run) decision.take.clear();
  move_out(decision, seen, taken);
  if (!taken.batch.empty()) {
    int64_t rows = 0;
    for (const Request& r : taken.batch) rows += r.rows;
    taken.until_ns = now_ns + times_.predict(group_key(taken.batch[0].inputs, options_.padding), rows);
  }
}

/// Takes the chosen requests out of the queue; those that only match the first one's group hash stay in it.
void BatchQueue::move_out(Decision& decision, const WaitingQueue::View& seen, Taken& taken) {
  const auto& [waiting, places] = seen;
  if (!decision.take.empty()) {
    const size_t head = decision.take[0];
    std::erase_if(decision.take, [&places = places, head, this](size_t i) {
      return !same_group(places[i]->second.request.inputs, places[head]->second.request.inputs,
                         options_.padding);
    });
  }
  if (options_.is_fair) {
    for (size_t i : decision.take) shares_.run(waiting[i], i == decision.take[0]);
  }
  Leaving& leaving = taken.leaving;
  taken.batch.reserve(decision.take.size());
  leaving.expired.reserve(leaving.expired.size() + decision.expired.size());
  leaving.hopeless.reserve(leaving.hopeless.size() + decision.hopeless.size());
  const auto move = [&places = places, this](const std::vector<size_t>& list, std::vector<Request>& to) {
    for (size_t i : list) to.push_back(queue_.take(places[i]));
  };
  stats_.expired += decision.expired.size() + decision.hopeless.size();
  move(decision.take, taken.batch);
  move(decision.expired, leaving.expired);
  move(decision.hopeless, leaving.hopeless);
}

}  // namespace trireme::sched
