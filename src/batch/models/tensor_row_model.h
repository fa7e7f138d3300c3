// A graph as a batch job sees it: rows through the scheduler that serves it, on its instances.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/threads/bounded_queue.h"
#include "batch/models/row_front.h"
#include "batch/models/row_gate.h"
#include "batch/row_model.h"
#include "sched/scheduler.h"

namespace trireme::batch {

/// Rows of like size share batches, in whatever order that makes; answers are put back in their places.
class TensorRowModel final : public RowModel {
 public:
  struct Parts {
    std::shared_ptr<const engine::PreparedModel> prepared;
    std::unique_ptr<RowFront> front;
    bool is_batched = true;    ///< false: rows run alone
    std::vector<bool> by_row;  ///< the graph's results: whether they have a dimension of rows
    int front_threads = 1;
    int64_t window_rows = 0;  ///< under way at most; more by a piece
    sched::SchedulerOptions scheduler;
    base::Json identity;
  };
  /// Returns when every instance has a session; throws what that threw. `clock` outlives the model.
  TensorRowModel(Parts parts, const base::Clock& clock);
  /// Waits for the rows under way.
  ~TensorRowModel() override;

  std::vector<std::string> columns() const override { return front_->columns(); }
  std::vector<data::Field> outputs() const override { return front_->outputs(); }
  int64_t piece_rows() const override { return piece_rows_; }
  void submit(std::shared_ptr<const data::Rows> piece, PieceSink sink) override;
  void give_up() override { gate_.give_up(); }
  ModelUse use() const override;
  base::Json identity() const override { return identity_; }

 private:
  struct Work;
  struct Task {
    std::shared_ptr<const data::Rows> piece;
    PieceSink sink;
  };
  void prepare(Task task);
  void run(const std::shared_ptr<Work>& work, RowPart part);
  void answer(const std::shared_ptr<Work>& work, const RowPart& kept, sched::Outcome&& outcome);
  std::vector<tensor::Tensor> row_of(const std::vector<tensor::Tensor>& outputs, int64_t rows,
                                     int64_t row) const;
  void settle(Work& work, int64_t rows);

  const std::unique_ptr<RowFront> front_;
  const bool is_batched_;
  const std::vector<bool> by_row_;
  const int64_t piece_rows_;
  const base::Json identity_;
  const int instances_;
  RowGate gate_;
  std::atomic<int64_t> busy_ns_{0}, rows_{0}, elements_{0}, padded_{0};
  std::unique_ptr<sched::Scheduler> scheduler_;  ///< its threads use the others
  base::BoundedQueue<Task> tasks_;
  std::vector<std::thread> preparing_;
};

}  // namespace trireme::batch
