// One client's request, from the border of a model to its answer.
#include "serve/models/call.h"

#include <functional>
#include <utility>

#include "serve/models/served_model.h"

namespace trireme::serve {

Call::Call(const ServedModel& model, const InferRequest& request, InferSink sink)
    : model_(model), id_(request.id), has_id_(request.has_id), sink_(std::move(sink)) {}

InferResponse Call::head() const {
  return {.id = id_,
          .has_id = has_id_,
          .model_name = model_.name(),
          .model_version = model_.version(),
          .outputs = {}};
}

void Call::give_part(InferResponse&& response, int64_t infer_ns, int64_t begin_ns) {
  sink_.part(std::move(response));
  const int64_t end_ns = model_.clock().now_ns();
  model_.metrics()->responses().count_answer(parts_, infer_ns, end_ns - begin_ns);
  if (parts_++ == 0) model_.metrics()->count_first_response(end_ns - sink_.received_ns);
}

/// Throws the sink's error if the answer has no wire form; the answer is then not counted.
void Call::hand_over(InferResponse&& response) {
  bool is_counted = false;
  const auto count = [&, timing = response.timing] {
    if (std::exchange(is_counted, true)) return;
    const base::Clock& clock = model_.clock();
    const int64_t now_ns = clock.now_ns();
    model_.metrics()->count_success(timing, sink_.received_ns, now_ns, clock.wall_ns() / base::kNsPerMs);
    model_.tenants().count(tenant_.number, timing, sched::Ending::done, now_ns - sink_.received_ns);
  };
  const std::function<void()> before_send = std::ref(count);
  response.before_send = &before_send;
  if (sink_.observer) sink_.observer->on_answer(response);
  sink_.done(std::move(response));
  if (sink_.observer) sink_.observer->on_told();
  count();  // a sink inside the process sends nothing
}

void Call::fail(const base::Error& error, sched::Ending ending, const sched::Timing& timing) {
  model_.metrics()->count_failure(ending, sink_.received_ns, model_.clock().now_ns());
  model_.tenants().count(tenant_.number, timing, ending, 0);
  drop(error);
}

void Call::drop(const base::Error& error) {
  if (sink_.observer) sink_.observer->on_failure();
  sink_.failed(error);
  if (sink_.observer) sink_.observer->on_told();
}

void Call::count_refusal() const {
  model_.metrics()->count_failure(sched::Ending::done, sink_.received_ns, model_.clock().now_ns());
}

}  // namespace trireme::serve
