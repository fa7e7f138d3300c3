// One unit of work for a scheduler: tensors in, a deadline, and the sink that gets the outcome.
#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tensor/tensor.h"

namespace trireme::sched {

/// When things happened to a request; the clock is the scheduler's.
struct Timing {
  int64_t enqueued_ns = 0;
  int64_t started_ns = 0;    ///< its batch was formed
  int64_t computed_ns = 0;   ///< the model began, after inputs were gathered
  int64_t finished_ns = 0;   ///< the model ended
  int64_t batch_rows = 0;    ///< rows of all requests in the batch
  int64_t padded_rows = 0;   ///< rows the model ran on
  int64_t queue_length = 0;  ///< requests that waited when its batch was formed, those of the batch included
  int64_t own_rows = 0;      ///< of the request itself
  int64_t elements = 0;      ///< of all inputs of the batch, as the model got them
  int64_t padded = 0;        ///< of these, what was only filled in
  int instance = 0;          ///< that ran it
  bool depends_on_data = false;  ///< the work, on values and not on extents alone: its time tells of no other
};

/// How a request ended, for counting; the error says it in words.
enum class Ending : uint8_t { done, refused, expired, cancelled, failed };

/// What a sink receives: outputs in the model's order with this request's rows only, or the error.
struct Outcome {
  std::vector<tensor::Tensor> outputs;
  std::optional<base::Error> error;
  Ending ending = Ending::done;
  Timing timing;
};

class AnswerLine;  // ordered_release.h

/// Who waits for a request's outcome. Copies are handles to the same waiter, which is told once: by the run
/// or by whoever answers in its place, whichever is first. What comes later goes nowhere. Any thread.
class Sink {
 public:
  Sink() = default;
  template <class Take>
  requires(!std::same_as<Take, Sink> && std::is_invocable_v<Take&, Outcome&&>) Sink(Take take)
      : state_(std::make_shared<State>(std::move(take))) {}

  explicit operator bool() const { return state_ != nullptr; }
  void operator()(Outcome&& outcome) const;
  /// Takes the next place in a line: the outcome is held until all before it were told. Once, before anybody
  /// may call.
  void join(std::shared_ptr<AnswerLine> line);

 private:
  struct State {
    explicit State(std::function<void(Outcome&&)> t) : take(std::move(t)) {}
    std::function<void(Outcome&&)> take;
    std::atomic<bool> is_told{false};
    std::shared_ptr<AnswerLine> line = {};  ///< null: the outcome waits for nobody
    uint64_t place = 0;                     ///< in the line
  };
  std::shared_ptr<State> state_;
};

/// Inputs in the model's order; dimension 0 is the batch where the model batches.
struct Request {
  std::vector<tensor::Tensor> inputs;
  int64_t rows = 1;  ///< extent of dimension 0 of every input (asserted); 1 where the model does not batch
  int64_t deadline_ns = 0;  ///< it must have started by then, else it is refused; 0: none
  int64_t finish_ns = 0;    ///< its answer is of use until then: refused once that cannot be met; 0: always
  bool runs_late = false;   ///< past deadline_ns it goes behind all others instead
  uint32_t priority = 0;    ///< lower goes first
  uint32_t tenant = 0;      ///< who shares the model with others; meaningful where the scheduler is fair
  double weight = 1;        ///< of the tenant's share
  int instance = -1;        ///< that must run it; -1: any
  int64_t row = -1;         ///< of the batch, where all requests of the model have theirs; -1: as they come
  std::function<bool()> cancelled = {};  ///< true: nobody waits any more; any thread, must be quick
  Sink sink;                             ///< told exactly once, on an owner thread or inside submit
  Timing timing = {};
};

}  // namespace trireme::sched
