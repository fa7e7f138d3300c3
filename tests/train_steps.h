// What tests of training over many ranks share: small losses, their feeds, and a step that takes the same
// micro-batches however many ranks there are.
#pragma once

#include "base/rng.h"
#include "engine/train/train_session.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"

namespace trireme::tests {

/// A network of the zoo with its loss.
inline ir::Graph loss_network(const std::string& name, const std::vector<std::string>& options) {
  ir::Graph g = model::zoo::build(name, options).graph;
  model::add_loss(g);
  g.sort();
  return g;
}

/// 2 rows of 8 tokens whose successor follows a rule; a fifth of them do not count.
template <int64_t kVocabulary>
engine::Feeds ruled_tokens(uint64_t stream) {
  using tensor::DType;
  using tensor::Tensor;
  Tensor ids = Tensor::empty(DType::i64, {2, 8}), labels = Tensor::empty(DType::i64, {2, 8});
  base::Rng rng(3, stream);
  for (size_t i = 0; i < 16; ++i) {
    ids.mutable_data<int64_t>()[i] = static_cast<int64_t>(rng.uniform() * kVocabulary);
    labels.mutable_data<int64_t>()[i] =
        rng.uniform() < 0.2 ? -100 : (3 * ids.data<int64_t>()[i] + 1) % kVocabulary;
  }
  return {ids, labels};
}

/// Noise [kRows, 3, kSize, kSize] of 8 classes.
template <int64_t kRows, int64_t kSize>
engine::Feeds noise_images(uint64_t stream) {
  using tensor::DType;
  using tensor::Tensor;
  Tensor x = Tensor::empty(DType::f32, {kRows, 3, kSize, kSize}), labels = Tensor::empty(DType::i64, {kRows});
  base::Rng rng(5, stream);
  for (float& v : x.mutable_data<float>()) v = static_cast<float>(rng.normal());
  for (int64_t& v : labels.mutable_data<int64_t>()) v = static_cast<int64_t>(rng.uniform() * 8);
  return {x, labels};
}

/// The micro-batches of a step on all ranks and on one.
struct StepShare {
  size_t micro_batches = 1, own = 1;
  float loss_weight = 1;
};

/// Step `step` over this rank's share, of which it takes the micro-batches that it owns.
inline engine::StepResult train_step(engine::TrainSession& session, engine::Feeds (*feeds)(uint64_t),
                                     int step, const StepShare& share) {
  std::vector<engine::Feeds> taken;
  for (size_t i = 0; i < share.own; ++i)
    taken.push_back(
        feeds(static_cast<uint64_t>(step) * share.micro_batches + session.own_micro_batch(i, share.own)));
  engine::StepInputs inputs;
  inputs.lr = 0.01f;
  inputs.step = step + 1;
  inputs.draw = step;
  inputs.seed = 7;
  inputs.loss_weight = share.loss_weight;
  return session.step(taken, inputs);
}

}  // namespace trireme::tests
