// Cross-encoders: classifiers of one label that score how two texts fit, and what becomes of their logit.
#pragma once

#include <string>

#include "model/model.h"

namespace trireme::model::hf {

/// The outputs of a network that scores pairs: the classifier's, and what the activation makes of it.
inline constexpr const char* kPairLogits = "logits";
inline constexpr const char* kPairScore = "score";

/// True for a directory whose config.json names a `...ForSequenceClassification` with one label and which has
/// the files of a tokenizer. False where there is no config.json, and for a sentence-transformers encoder.
bool scores_pairs(const std::string& directory);

/// Adds the output `score` f32 [batch, 1] to a Hugging Face or ONNX model of such a directory, whose graph
/// makes `logits` f32 [batch, 1] of input_ids, attention_mask and, if it has them, token_type_ids i64
/// [batch, seq] with open extents. The score is activation_fn(logits) as sentence-transformers and vLLM have
/// it: what config.json names below sentence_transformers.activation_fn or as
/// sbert_ce_default_activation_function, or config_sentence_transformers.json as activation_fn; else the
/// sigmoid. False for other models. Throws unsupported for an activation that is neither the sigmoid nor the
/// identity.
bool add_pair_score(Model& model);

}  // namespace trireme::model::hf
