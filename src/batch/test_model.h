// A model of arithmetic for tests of batch jobs: out of order, from several threads, with rows that fail.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "batch/row_model.h"

namespace trireme::batch {

/// y = 3 x + 1 and a text, answered by some threads in any order. Rows with x % 100 == 13 always fail; those
/// with x % 100 == 17 fail `passing_failures` times with an error that may pass.
class ArithmeticModel : public RowModel {
 public:
  struct Options {
    int threads = 2;
    int64_t piece_rows = 5;
    int passing_failures = 0;
    bool fails = false;  ///< rows with x % 100 == 13
    std::string version = "1";
    int64_t dies_after = -1;  ///< pieces; then it throws
    bool divides = false;     ///< a third output: 1 / (x % 100 - 19), of which one is infinite
  };
  explicit ArithmeticModel(Options options) : options_(std::move(options)) {
    for (int t = 0; t < options_.threads; ++t)
      threads_.emplace_back([this, t] { work(static_cast<uint64_t>(t)); });
  }
  ~ArithmeticModel() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  std::vector<std::string> columns() const override { return {"x"}; }
  std::vector<data::Field> outputs() const override {
    std::vector<data::Field> fields{{.name = "y", .dtype = tensor::DType::i64},
                                    {.name = "said", .kind = data::FieldKind::text}};
    if (options_.divides) fields.push_back({.name = "inverse", .dtype = tensor::DType::f64});
    return fields;
  }
  int64_t piece_rows() const override { return options_.piece_rows; }
  void submit(std::shared_ptr<const data::Rows> piece, PieceSink sink) override {
    std::unique_lock lock(mutex_);
    if (options_.dies_after >= 0 && taken_++ >= options_.dies_after) {
      base::fail(base::ErrorCode::internal, "the device is gone");
    }
    constexpr size_t kMost = 6;
    changed_.wait(lock, [&] { return is_given_up_ || waiting_.size() < kMost; });
    if (is_given_up_) {
      lock.unlock();
      return sink(answer(*piece));
    }
    waiting_.push_back({std::move(piece), std::move(sink)});
    changed_.notify_all();
  }
  void give_up() override {
    const std::lock_guard lock(mutex_);
    is_given_up_ = true;
    changed_.notify_all();
  }
  ModelUse use() const override {
    return {.busy_ns = busy_ns_,
            .instances = options_.threads,
            .rows = rows_,
            .elements = 2 * rows_,
            .padded = rows_};
  }
  base::Json identity() const override {
    return base::Json::object({{"model", "arithmetic"}, {"version", options_.version}});
  }

 private:
  struct Asked {
    std::shared_ptr<const data::Rows> piece;
    PieceSink sink;
  };
  void work(uint64_t seed) {
    base::Rng rng(seed);
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const size_t at = rng.below(waiting_.size());
      const Asked asked = std::move(waiting_[at]);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
      changed_.notify_all();
      lock.unlock();
      busy_ns_ += 1000;
      asked.sink(answer(*asked.piece));
      lock.lock();
    }
  }
  PieceAnswer answer(const data::Rows& piece) {
    const std::vector<int64_t> x = piece.find("x")->numbers.to_ints();
    PieceAnswer out;
    std::vector<int64_t> y;
    data::Column said{.field = outputs()[1]};
    out.errors.resize(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      y.push_back(3 * x[i] + 1);
      said.strings.push_back("row " + std::to_string(x[i]));
      if (options_.fails && x[i] % 100 == 13) {
        out.errors[i] = base::Error(base::ErrorCode::invalid_argument, "13 brings bad luck");
      } else if (x[i] % 100 == 17 && fails_for_now(x[i])) {
        out.errors[i] = base::Error(base::ErrorCode::unavailable, "not now");
      }
    }
    rows_ += static_cast<int64_t>(x.size());
    out.outputs.count = piece.count;
    out.outputs.columns.push_back(
        {.field = outputs()[0],
         .numbers = tensor::Tensor::from<int64_t>({piece.count}, std::span<const int64_t>(y))});
    out.outputs.columns.push_back(std::move(said));
    if (options_.divides) {
      std::vector<double> inverse;
      for (const int64_t value : x) inverse.push_back(1 / static_cast<double>(value % 100 - 19));
      out.outputs.columns.push_back(
          {.field = outputs()[2],
           .numbers = tensor::Tensor::from<double>({piece.count}, std::span<const double>(inverse))});
    }
    return out;
  }
  bool fails_for_now(int64_t x) {
    const std::lock_guard lock(mutex_);
    return failed_[x]++ < options_.passing_failures;
  }

  Options options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Asked> waiting_;
  std::map<int64_t, int> failed_;
  int64_t taken_ = 0;
  bool ends_ = false, is_given_up_ = false;
  std::atomic<int64_t> busy_ns_{0}, rows_{0};
  std::vector<std::thread> threads_;
};

}  // namespace trireme::batch
