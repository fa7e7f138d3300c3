// Adds the update of the parameters to a graph that has their gradients.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/text/options.h"
#include "passes/train/train.h"

namespace trireme::passes {

enum class OptimizerKind { sgd, adam, adamw, lamb, lars, adafactor, muon };
enum class MuonIterate { f32, bf16 };
enum class MuonAdjust { match_rms_adamw, original };

/// What the optimizer is, and its numbers. Every field is a key of the run's configuration.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adamw;
  double weight_decay = -1;  ///< -1: the kind's own
  bool decay_vectors = false;
  double clip_norm = 0;
  double momentum = 0.9, dampening = 0;
  bool nesterov = false;
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 0;  ///< 0: the kind's own
  double eta = 0.001;
  double muon_momentum = 0.95;
  MuonIterate muon_iterate = MuonIterate::f32;
  MuonAdjust muon_adjust = MuonAdjust::match_rms_adamw;
  std::vector<std::string> muon_exclude{"embed", "wte", "wpe", "head", "classifier"};
  double ema_keep = 0;
  bool ema_ramp = true;
  std::vector<std::string> groups;
  void fields(base::OptionList& f);
};

/// A state the optimizer keeps.
struct OptimizerState {
  std::string name;  ///< "<param>.adam_m"
  tensor::TensorType type;
  std::string copy_of = {};  ///< begins as a copy of this state (averaged weights); empty: zeros
  tensor::Shard shard = {};  ///< which part of the whole state `type` is
  std::string of = {};       ///< its parameter
};

struct OptimizerPlan {
  std::vector<OptimizerState> states;
  ir::ValueId grad_norm = ir::kNoValue;  ///< f32 []: global norm of the unscaled gradients, before clipping
  ir::ValueId skipped = ir::kNoValue;    ///< bool []: the update left every state as it was
  std::vector<ir::ValueId> updated;      ///< of each gradient: the new content of its param (or target)
  std::string text;                      ///< groups, decays and states, a line each, for people
};

/// Names of the inputs that OptimizerInputs asks for, beside those of train.h.
inline constexpr const char* kNormLimitInput = "norm_limit";  ///< f32 []: skip above it; 0 skips any step
inline constexpr const char* kLossLimitInput = "loss_limit";  ///< f32 []: skip where the loss is above it

/// What else decides about the update of a step.
struct OptimizerInputs {
  bool scaled_loss = false;         ///< gradients carry a loss scale: input `grad_scale` is 1 / scale
  bool has_limits = false;          ///< inputs `norm_limit` and, where there is a loss, `loss_limit`
  ir::ValueId loss = ir::kNoValue;  ///< f32 []: a step whose loss is not finite changes nothing either
  std::vector<std::string> embeddings = {};  ///< of embedding_names(), where the graph holds no forward pass
  std::vector<int> coordinates = {};         ///< of this rank on graph.mesh
};

/// Names of the parameters that a gather reads rows of. Muon leaves them to AdamW, also where they are the
/// head too.
std::vector<std::string> embedding_names(const ir::Graph& graph);

/// The rule that each of `params` (values of the graph) gets.
std::vector<OptimizerKind> optimizer_kinds(ir::Graph& graph, const std::vector<ir::ValueId>& params,
                                           const OptimizerOptions& options,
                                           const std::vector<std::string>& embeddings = {});
/// True for rules that need a parameter whole, however it is split: matrices as such.
bool needs_whole(OptimizerKind kind);
/// True if a rule updates a part of a parameter of the extents `dims`, cut along `dim` over `ranks`: rules
/// that look at one element at a time always, those that need norms of the whole where ranks hold whole
/// blocks of its first dimension. Others need the whole parameter.
bool updates_parts(OptimizerKind kind, const tensor::Dims& dims, int dim, int ranks);

/// Adds inputs `lr` and `step`, the states, the norm, the clip and the update nodes for `gradients`.
/// A step whose gradients (or loss) are not finite, or above a limit, changes no state.
/// States are called after their parameter: p.adam_m, p.adam_v (Adam, AdamW, LAMB), p.momentum (SGD, LARS,
/// Muon), p.adafactor_row, p.adafactor_col (matrices), p.adafactor_v (vectors), p.ema (averages).
/// In a rank's graph gradients are whole or split (Value::shard), never partial; states stand as their
/// gradient does. Throws invalid_argument for a group that names no parameter or an unknown key, unsupported
/// for a split parameter whose rule needs the whole.
OptimizerPlan add_optimizer(ir::Graph& graph, std::span<const ParamGradient> gradients,
                            const OptimizerOptions& options, const OptimizerInputs& inputs = {});

}  // namespace trireme::passes
