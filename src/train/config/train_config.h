// All sections of a training run's configuration in one place.
#pragma once

#include <string>
#include <vector>

#include "data/loader/augment.h"
#include "data/loader/loader.h"
#include "data/loader/open_dataset.h"
#include "engine/train/train_session.h"
#include "model/loss.h"
#include "passes/strategy.h"
#include "train/config/config.h"
#include "train/config/feed.h"
#include "train/config/loss_scale.h"
#include "train/config/schedule.h"
#include "train/config/spike_guard.h"
#include "train/config/texts.h"

namespace trireme::train {

/// Section `loader`: how samples become batches.
struct LoaderSection {
  bool shuffle = true;
  data::LastBatch last = data::LastBatch::drop;
  int workers = 2;
  int prefetch = 4;
  std::vector<std::string> feed;
  void fields(base::OptionList& f);
  FeedRules rules() const;
};

/// Section `memory`: trading time for memory.
struct MemoryOptions {
  std::string recompute = "none";
  void fields(base::OptionList& f);
};

/// Everything `trireme train` can be told. The defaults are the members' initial values.
struct TrainConfig {
  RunOptions run;
  ModelOptions model;
  model::LossOptions loss;
  data::DatasetSpec data;
  data::DatasetSpec validation;
  TextOptions texts;
  data::AugmentOptions augment;
  LoaderSection loader;
  BatchOptions batch;
  passes::Strategy parallel;  ///< with the section `precision`
  passes::OptimizerOptions optimizer;
  ScheduleOptions schedule;
  LossScaleOptions loss_scale;
  SpikeOptions spikes;
  MemoryOptions memory;
  EvalOptions eval;
  CheckpointOptions checkpoint;
  LogOptions log;
  ExportOptions save;

  /// Binds every section. The config outlives the sections.
  void bind(ConfigSections& sections);
  /// f16 has too few exponents for gradients: their loss is scaled.
  bool is_scaled() const { return parallel.precision.compute == passes::Precision::f16; }
  /// The sections `parallel`, `precision` and `memory` together. Throws invalid_argument for an unknown form
  /// of memory.recompute.
  passes::Strategy strategy() const;
  /// What the session is built with. Throws as strategy() does.
  engine::TrainOptions session_options() const;
};

/// The data set of the section `validation`: the section's keys over those of `data`. Without a key of its
/// own it is the held-out part of the training data; empty path: there is none.
data::DatasetSpec validation_spec(const TrainConfig& config, const ConfigSections& sections);

/// The augmentation without chance, for validation.
data::AugmentOptions without_chance(data::AugmentOptions options);

/// A Markdown page of all sections with their defaults: docs/config.md.
std::string config_markdown();

}  // namespace trireme::train
