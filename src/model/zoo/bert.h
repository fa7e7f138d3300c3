// BERT encoders (Devlin et al. 2018): post-norm, learned positions; bare, or with a head for masked tokens or
// classes.
#pragma once

#include "base/text/options.h"
#include "model/model.h"
#include "model/params.h"

namespace trireme::model::zoo {

enum class BertHead { none, masked_lm, classification };

struct BertConfig {
  int64_t vocabulary = 30522, positions = 512, token_types = 2;
  int64_t width = 768, layers = 12, heads = 12;
  int64_t inner = 0;
  std::string activation = "gelu";
  double epsilon = 1e-12, dropout = 0;
  BertHead head = BertHead::masked_lm;
  bool is_tied = true;  // the head for masked tokens shares the embedding's weights
  int64_t classes = 2;
  int64_t padding = 0;           // id of the padding token, whose embedding is not trained; -1: none
  bool has_token_types = false;  // as an input; else every token is of type 0

  void fields(base::OptionList& f);
  int64_t inner_width() const { return inner == 0 ? 4 * width : inner; }
};

/// input_ids, attention_mask (1 keeps, 0 is padding) and, if chosen, token_type_ids i64 [batch, seq] ->
///   none             last_hidden_state f32 [batch, seq, width]
///   masked_lm        logits f32 [batch, seq, vocabulary]
///   classification   logits f32 [batch, classes], from the first token
/// Weights are named as in Transformers, but the three projections of attention are one weight `self.qkv`,
/// stacked by rows. Throws invalid_argument unless the heads divide the width.
Model bert(const BertConfig& config, ParamSource& params);

/// config.json of the same network for Transformers.
base::Json bert_json(const BertConfig& config);

}  // namespace trireme::model::zoo
