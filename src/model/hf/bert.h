// BERT-family encoders from Hugging Face directories: config.json, model.safetensors, pooling modules.
#pragma once

#include <string>

#include "model/model.h"

namespace trireme::model::hf {

struct BertOptions {
  /// Adds the input token_type_ids, where there are several types; else every token is of type 0.
  bool has_token_types = false;
  bool has_embedding = true;        ///< adds the output sentence_embedding to an encoder
  bool is_encoder = false;          ///< leaves out the head that the checkpoint was saved with
  bool is_without_content = false;  ///< see LoadOptions
};

/// Loads a directory whose config.json says model_type "bert" (MiniLM checkpoints do). The graph:
///   inputs   input_ids i64 [batch, seq], attention_mask i64 [batch, seq] (1 keeps, 0 is padding)
///   outputs  last_hidden_state f32 [batch, seq, width], sentence_embedding f32 [batch, width]; a checkpoint
///            saved with a head for masked tokens or classes has logits instead (zoo/bert.h)
/// The embedding follows modules.json: mean, max or first-token pooling, then normalisation if it is listed;
/// without modules.json it is the plain mean over the kept tokens. Weights view the file; 16-bit ones become
/// f32. Dropout follows hidden_dropout_prob; probabilities of attention are never dropped. Throws unsupported
/// for other architectures and options, invalid_argument for weights that do not fit the config.
Model load_bert(const std::string& directory, const BertOptions& options = {});

}  // namespace trireme::model::hf
