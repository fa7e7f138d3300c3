// What tests of the loop share: a small task, and runs of it.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rng.h"
#include "model/zoo/zoo.h"
#include "train/loop.h"

namespace trireme::train {

/// 120 points on two noisy circles; the class says which. `bad` holds indices whose features are not finite.
class Circles : public data::Dataset {
 public:
  explicit Circles(std::vector<int64_t> bad = {}) : bad_(std::move(bad)) {
    info_.format = "circles";
    info_.fields = {{"features", data::FieldKind::tensor, tensor::DType::f32, {2}, false},
                    {"label", data::FieldKind::tensor, tensor::DType::i64, {}, true}};
  }
  int64_t size() const override { return 120; }
  const data::DatasetInfo& info() const override { return info_; }
  data::Sample read(int64_t i) const override {
    base::Rng rng(5, static_cast<uint64_t>(i));
    const double angle = 6.28318 * rng.uniform(), radius = (i % 2 == 0 ? 1.0 : 2.0) + 0.1 * rng.normal();
    auto x = static_cast<float>(radius * std::cos(angle));
    if (std::find(bad_.begin(), bad_.end(), i) != bad_.end()) x = INFINITY;
    data::Sample sample;
    sample.set("features",
               tensor::Tensor::from<float>({2}, {x, static_cast<float>(radius * std::sin(angle))}));
    sample.set("label", tensor::Tensor::scalar<int64_t>(i % 7 == 3 ? -100 : i % 2));
    return sample;
  }

 private:
  std::vector<int64_t> bad_;
  data::DatasetInfo info_;
};

struct TestRun {
  TrainConfig config;
  base::Log log{base::LogLevel::off};
  base::SystemClock clock;
  data::DatasetPtr dataset = std::make_shared<const Circles>();
  data::DatasetPtr validation;  ///< null: the data set itself

  explicit TestRun(const std::string& name, bool keep = false) {
    config.run.name = name;
    config.run.directory =
        base::concat(std::filesystem::temp_directory_path().string(), "/loop_", ::getpid(), "_", name);
    if (!keep) std::filesystem::remove_all(config.run.directory);
    config.run.steps = 30;
    config.run.threads = 2;
    if (const char* device = std::getenv("TRIREME_TEST_DEVICE")) config.run.device = device;
    config.batch.global = 16;
    config.optimizer.kind = passes::OptimizerKind::adamw;
    config.optimizer.ema_keep = 0.9;
    config.schedule.lr = 0.02;
    config.schedule.warmup = 64;
    config.checkpoint.every = 7;
    config.log.progress = {0};
    config.loader.workers = 1;
  }

  /// The config outlives the trainer.
  std::unique_ptr<Trainer> trainer(Ranks ranks = {}) {
    TrainTask task;
    const std::vector<std::string> options{"features=2", "hidden=[24,16]", "classes=2", "seed=3",
                                           "dropout=0.1"};
    task.loss = model::zoo::build("mlp", options).graph;
    model::add_loss(task.loss, config.loss);
    task.data = dataset;
    task.validation = validation != nullptr ? validation : dataset;
    task.config = base::Json::object();
    return std::make_unique<Trainer>(config, std::move(task), base::Env{log, clock}, ranks);
  }
};

inline bool never() { return false; }

}  // namespace trireme::train
