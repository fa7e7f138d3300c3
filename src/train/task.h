// From a configuration to what is trained: the model with its loss, the data sets, their changes.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/loss.h"
#include "model/model.h"
#include "model/params.h"
#include "train/loop.h"
#include "train/config/train_config.h"

namespace trireme::train {

/// The model that `model.source` names, with weights from `model.weights`. A zoo network whose options give
/// no seed takes `seed`, or its weights from `params`; large weights of files then have no content. Throws
/// what the builders and readers throw.
model::Model open_trained_model(const ModelOptions& options, int64_t seed, std::string& text,
                                model::ParamSource* params = nullptr);
/// The loss of a model as the configuration says: the graph that is trained.
ir::Graph loss_graph(const model::Model& model, model::LossOptions options);

struct PreparedTask {
  model::Model model;  ///< as it will be served: no loss
  TrainTask task;
  std::string text;  ///< what was found, a line each, for people
};

/// Opens everything a run needs. `sections` is what the config was read with.
PreparedTask prepare_task(const TrainConfig& config, const ConfigSections& sections);

/// Which of its weights a checkpoint gives, and where the model that it was trained from may lie.
struct CheckpointModel {
  bool average = false;  ///< the averaged weights
  /// Directories; the checkpoint's own is always one of them. A path inside a checkpoint is its author's
  /// word, not the user's: whatever leads elsewhere, links followed, is refused.
  std::vector<std::string> places;
};

/// The model of a checkpoint, rebuilt from the configuration inside, with the checkpoint's weights. `path`:
/// as for find_checkpoint(). Throws invalid_argument for a model.source outside of the places.
model::Model model_of_checkpoint(const std::string& path, const CheckpointModel& options);

/// Writes DIRECTORY/model/NAME/1/model.onnx, or the Hugging Face directory DIRECTORY/model/NAME with the
/// tokenizer's files of the model's own: model/ is a repository for `trireme serve` then. Gives the path.
std::string save_model(const model::Model& model, const std::string& directory, const std::string& name,
                       ExportFormat format);

}  // namespace trireme::train
