// Losses: what is added to the graph of a model so that it can be trained and measured.
#pragma once

#include <string>

#include "base/text/options.h"
#include "ir/graph.h"

namespace trireme::model {

enum class LossKind {
  cross_entropy,  ///< classes, next tokens or masked tokens: logits [..., classes], labels i64 [...]
  mse,            ///< regression: predictions [...], labels f32 of the same shape
  cosine,         ///< sentence pairs: embeddings [2 pairs, width], labels f32 [pairs]
  detection       ///< class and box per cell: labels i64 [batch, cells], boxes f32 [batch, cells, values]
};

struct LossOptions {
  LossKind kind = LossKind::cross_entropy;
  std::string output;  ///< the model's output to learn from; empty: logits, sentence_embedding, or the first
  int64_t ignored = -100;  ///< rows with this label count nothing
  double label_smoothing = 0;
  double z_loss = 0;           ///< weight of the squared logarithm of the softmax's denominator
  double box_weight = 1;       ///< detection: weight of the box error beside the class error
  bool keeps_outputs = false;  ///< the model's own outputs stay, for evaluation

  void fields(base::OptionList& f);
};

/// What add_loss added. All are scalars f32 [] and outputs of the graph.
struct Loss {
  ir::ValueId sum = ir::kNoValue;    ///< output loss_sum: sum of the losses of all valid rows
  ir::ValueId count = ir::kNoValue;  ///< output count: valid rows
  ir::ValueId correct =
      ir::kNoValue;  ///< output correct: rows whose largest logit is the label's, if classes
};

/// Appends the loss to a model's graph with a new input `labels`, whose dimensions are those of the output
/// that is learned from:
///   cross_entropy  logits [rows..., classes], labels i64 [rows...]: log-softmax and negative likelihood. For
///                  next tokens labels[b, t] is the token after position t (nothing is shifted here). Where
///                  the output is a softmax, its operand is taken.
///   mse            squared error; a row is one element.
///   cosine         rows 2 i and 2 i + 1 of the embeddings are a pair: (cosine - label)^2; adds the output
///                  `similarity` f32 [pairs] if outputs are kept.
///   detection      outputs class_logits [batch, cells, classes] and boxes [batch, cells, values]: cross
///                  entropy, plus box_weight times the mean absolute box error of the cells whose label is
///                  above 0, against a further input `box_labels` f32.
/// The mean loss is loss_sum / count. Throws not_found if the graph lacks the output, invalid_argument if it
/// does not fit the loss.
Loss add_loss(ir::Graph& graph, const LossOptions& options = {});

}  // namespace trireme::model
