// A graph as a batch job sees it.
#include "batch/models/tensor_row_model.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "batch/models/answer_rows.h"
#include "sched/current_error.h"

namespace trireme::batch {

using tensor::Tensor;

/// A piece under way.
struct TensorRowModel::Work {
  Work(Task task, std::vector<data::Field> fields)
      : piece(std::move(task.piece)), sink(std::move(task.sink)), answers(std::move(fields), piece->count) {}

  const std::shared_ptr<const data::Rows> piece;
  PieceSink sink;
  std::mutex mutex;
  AnswerRows answers;                  // under the mutex
  std::atomic<int64_t> unanswered{0};  // rows
};

TensorRowModel::TensorRowModel(Parts parts, const base::Clock& clock)
    : front_(std::move(parts.front)),
      is_batched_(parts.is_batched),
      by_row_(std::move(parts.by_row)),
      piece_rows_(std::max<int64_t>(1, parts.window_rows / 4)),
      identity_(std::move(parts.identity)),
      instances_(parts.scheduler.instances),
      gate_(std::max<int64_t>(1, parts.window_rows)),
      tasks_(1) {
  parts.scheduler.max_queue = SIZE_MAX;  // the gate bounds it
  scheduler_ = std::make_unique<sched::Scheduler>(parts.prepared, std::move(parts.scheduler), clock,
                                                  [this](const sched::Timing& t) {
                                                    busy_ns_ += t.finished_ns - t.started_ns;
                                                    rows_ += t.batch_rows;
                                                    elements_ += t.elements;
                                                    padded_ += t.padded;
                                                  });
  for (int i = 0; i < std::max(1, parts.front_threads); ++i) {
    preparing_.emplace_back([this] {
      while (std::optional<Task> task = tasks_.pop()) prepare(std::move(*task));
    });
  }
}

TensorRowModel::~TensorRowModel() {
  tasks_.close();
  for (std::thread& t : preparing_) t.join();
  gate_.wait_empty();
}

void TensorRowModel::submit(std::shared_ptr<const data::Rows> piece, PieceSink sink) {
  if (!gate_.enter(piece->count)) return sink(given_up_answer(front_->outputs(), piece->count));
  Task task{std::move(piece), std::move(sink)};
  tasks_.push(std::move(task));
}

/// On a preparing thread. The piece's last row is settled by whoever comes last.
void TensorRowModel::prepare(Task task) {
  const auto work = std::make_shared<Work>(std::move(task), front_->outputs());
  const int64_t rows = work->piece->count;
  work->unanswered = rows + 1;  // one for this call
  std::vector<bool> is_given(static_cast<size_t>(rows), false);
  const auto give = [&](int64_t begin, int64_t count) {
    for (int64_t row = begin; row < begin + count; ++row) is_given[static_cast<size_t>(row)] = true;
  };
  const auto refuse = [&](int64_t row, const base::Error& error) {
    give(row, 1);
    {
      const std::lock_guard lock(work->mutex);
      work->answers.fail(row, error);
    }
    settle(*work, 1);
  };
  std::optional<base::Error> failure;
  try {
    if (gate_.is_given_up()) throw given_up_error();
    front_->prepare(*work->piece, {.part =
                                       [&](RowPart&& part) {
                                         give(part.row, part.rows);
                                         run(work, std::move(part));
                                       },
                                   .refuse = refuse});
  } catch (...) {
    failure = sched::current_error();
  }
  const base::Error forgotten(base::ErrorCode::internal, "the model's front passed over the row");
  for (int64_t row = 0; row < rows; ++row) {
    if (!is_given[static_cast<size_t>(row)]) refuse(row, failure.value_or(forgotten));
  }
  settle(*work, 1);
}

void TensorRowModel::run(const std::shared_ptr<Work>& work, RowPart part) {
  sched::Request request;
  request.rows = is_batched_ ? part.rows : 1;
  RowPart kept{.row = part.row, .rows = part.rows};
  if (part.rows > 1 || front_->keeps_inputs()) kept.inputs = part.inputs;
  request.inputs = std::move(part.inputs);
  request.cancelled = [this] { return gate_.is_given_up(); };
  request.sink = sched::Sink([this, work, kept = std::move(kept)](sched::Outcome&& outcome) {
    answer(work, kept, std::move(outcome));
  });
  scheduler_->submit(std::move(request));
}

/// Outputs of one of the rows that ran together, without their dimension of rows.
std::vector<Tensor> TensorRowModel::row_of(const std::vector<Tensor>& outputs, int64_t rows,
                                           int64_t row) const {
  std::vector<Tensor> values;
  for (size_t o = 0; o < outputs.size(); ++o) {
    const Tensor& t = outputs[o];
    if (!by_row_[o]) {
      values.push_back(t);
      continue;
    }
    base::require(t.rank() > 0 && t.dims()[0] == rows, "output ", o, " of the graph is ",
                  tensor::to_string(t.dims()), " for ", rows, " rows, which the model says it begins with");
    values.push_back(t.rows(row, row + 1).reshaped({t.dims().begin() + 1, t.dims().end()}));
  }
  return values;
}

/// On an instance's thread. Rows that failed together run once more one by one: the others are not to blame.
void TensorRowModel::answer(const std::shared_ptr<Work>& work, const RowPart& kept,
                            sched::Outcome&& outcome) {
  if (outcome.error && kept.rows > 1 && !gate_.is_given_up()) {
    for (int64_t i = 0; i < kept.rows; ++i) {
      RowPart one{.row = kept.row + i};
      for (const Tensor& t : kept.inputs) one.inputs.push_back(t.rows(i, i + 1));
      run(work, std::move(one));
    }
    return;
  }
  for (int64_t i = 0; i < kept.rows; ++i) {
    const int64_t row = kept.row + i;
    std::optional<base::Error> error = outcome.error;
    std::vector<OutputValue> values;
    try {
      if (!error) values = front_->finish(kept.inputs, row_of(outcome.outputs, kept.rows, i));
    } catch (...) {
      error = sched::current_error();
    }
    const std::lock_guard lock(work->mutex);
    if (error) {
      work->answers.fail(row, *error);
    } else {
      work->answers.set(row, std::move(values));
    }
  }
  settle(*work, kept.rows);
}

void TensorRowModel::settle(Work& work, int64_t rows) {
  if (work.unanswered.fetch_sub(rows) != rows) return;
  const int64_t all = work.piece->count;
  work.sink(work.answers.take());
  gate_.leave(all);
}

ModelUse TensorRowModel::use() const {
  return {
      .busy_ns = busy_ns_, .instances = instances_, .rows = rows_, .elements = elements_, .padded = padded_};
}

}  // namespace trireme::batch
