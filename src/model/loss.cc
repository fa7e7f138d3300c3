// Losses: sums over valid rows, so that micro-batches and ranks add up without weights.
#include "model/loss.h"

#include <algorithm>

#include "model/builder.h"

namespace trireme::model {
namespace {

using ir::ValueId;
using tensor::Dim;
using tensor::DType;

constexpr int64_t kOnnxFloat = 1;  // element type f32 in the op `cast`

ValueId find_output(const ir::Graph& g, const std::string& name) {
  const auto& names = g.output_names();
  const auto at = std::find(names.begin(), names.end(), name);
  return at == names.end() ? ir::kNoValue : g.outputs()[static_cast<size_t>(at - names.begin())];
}

ValueId need_output(const ir::Graph& g, const std::string& name) {
  const ValueId id = find_output(g, name);
  if (id != ir::kNoValue) return id;
  std::string known;
  for (const std::string& n : g.output_names()) known += " " + n;
  base::fail(base::ErrorCode::not_found, "the model has no output '", name,
             "' to learn from; it has:", known);
}

/// The output to learn from: the requested one, else the usual one, else the first.
ValueId learned_output(const ir::Graph& g, const LossOptions& o, const std::string& usual) {
  if (!o.output.empty()) return need_output(g, o.output);
  const ValueId id = find_output(g, usual);
  if (id != ir::kNoValue) return id;
  base::require(!g.outputs().empty(), "the model has no output to learn from");
  return g.outputs()[0];
}

/// Number of elements as f32 [].
ValueId count_of(Builder& b, ValueId x) { return b.op("cast", {b.op("size", {x})}, {{"to", kOnnxFloat}}); }

/// Sum over all elements as f32 [].
ValueId sum_of(Builder& b, ValueId x) { return b.op("reduce_sum", {x}, {{"keepdims", int64_t{0}}}); }

ValueId squared_error(Builder& b, ValueId got, ValueId want) {
  const ValueId error = b.op("sub", {got, want});
  return sum_of(b, b.op("mul", {error, error}));
}

/// The operand of a softmax over the last axis, if any: imported classifiers often end in probabilities.
ValueId before_softmax(const ir::Graph& g, ValueId scores) {
  const ir::Node* node = g.producer(scores);
  if (node == nullptr || node->op_name() != "softmax" || !g.type(scores).shape.has_rank()) return scores;
  const size_t rank = g.type(scores).shape.rank();
  return ir::normal_axis(node->attrs.get_int("axis", -1), rank) + 1 == rank ? node->in[0] : scores;
}

Loss cross_entropy(Builder& b, const LossOptions& o, ValueId scores) {
  const ValueId logits = before_softmax(b.graph(), scores);
  const tensor::TensorType type = b.graph().type(logits);
  base::require(tensor::is_float(type.dtype) && type.shape.has_rank() && type.shape.rank() >= 1,
                "cross entropy takes logits [..., classes], the output is ", type.to_string());
  std::vector<Dim> rows = type.shape.dims();
  rows.pop_back();
  const ValueId labels = b.graph().add_input("labels", {DType::i64, tensor::Shape(std::move(rows))});
  const auto results =
      b.ops("cross_entropy", {logits, labels},
            {{"ignore_index", o.ignored}, {"label_smoothing", o.label_smoothing}, {"z_loss", o.z_loss}},
            4);  // sum, log-sum-exp of each row, count, correct
  return {.sum = results[0], .count = results[2], .correct = results[3]};
}

Loss mean_squared_error(Builder& b, ValueId predicted) {
  const ValueId labels = b.graph().add_input("labels", b.graph().type(predicted));
  return {.sum = squared_error(b, predicted, labels), .count = count_of(b, labels)};
}

/// embedding [2 pairs, width] -> cosine of rows 2 i and 2 i + 1.
Loss cosine_error(Builder& b, const LossOptions& o, ValueId embedding) {
  const tensor::TensorType type = b.graph().type(embedding);  // a copy: the graph grows
  base::require(type.shape.has_rank() && type.shape.rank() == 2,
                "cosine takes embeddings [2 pairs, width], the "
                "output is ",
                type.to_string());
  const ValueId labels = b.graph().add_input("labels", {DType::f32, {Dim::symbol("pairs")}});
  const ValueId unit = b.op("l2_normalize", {embedding});
  const ValueId pairs = b.reshape(unit, {-1, 2, type.shape[1].value()});  // [pairs, 2, width]
  const auto sides = b.ops("split", {pairs}, {{"axis", int64_t{1}}, {"num_outputs", int64_t{2}}}, 2);
  const ValueId cosine = b.op("reduce_sum", {b.op("mul", {sides[0], sides[1]}), b.ints({1, 2})},
                              {{"keepdims", int64_t{0}}});  // [pairs]
  if (o.keeps_outputs) b.graph().add_output(cosine, "similarity");
  return {.sum = squared_error(b, cosine, labels), .count = count_of(b, labels)};
}

/// f32 [batch, cells]: 1 for the cells that hold an object, which are those of a class above 0 that counts.
ValueId holds_object(Builder& b, const LossOptions& o, ValueId labels) {
  const auto constant = [&](int64_t value) {
    return b.graph().add_constant(tensor::Tensor::scalar<int64_t>(value));
  };
  ValueId held = b.op("greater", {labels, constant(0)});
  if (o.ignored > 0) {
    const ValueId ignored = b.op("equal", {labels, constant(o.ignored)});
    held = b.op("and", {held, b.op("not", {ignored})});
  }
  return b.op("cast", {held}, {{"to", kOnnxFloat}});
}

/// Class error of every cell plus the box error of the cells that hold an object.
Loss detection_error(Builder& b, const LossOptions& o) {
  Loss loss = cross_entropy(b, o, need_output(b.graph(), "class_logits"));
  const ValueId boxes = need_output(b.graph(), "boxes"), labels = b.graph().inputs().back();
  const ValueId wanted = b.graph().add_input("box_labels", b.graph().type(boxes));
  const ValueId error = b.op("reduce_mean", {b.op("abs", {b.op("sub", {boxes, wanted})}), b.ints({-1})},
                             {{"keepdims", int64_t{0}}});  // [batch, cells]
  const ValueId box_sum = sum_of(b, b.op("mul", {error, holds_object(b, o, labels)}));
  loss.sum = b.op("add", {loss.sum, b.op("mul", {box_sum, b.scalar(static_cast<float>(o.box_weight))})});
  return loss;
}

Loss build(Builder& b, const LossOptions& o) {
  switch (o.kind) {
    case LossKind::cross_entropy: return cross_entropy(b, o, learned_output(b.graph(), o, "logits"));
    case LossKind::mse: return mean_squared_error(b, learned_output(b.graph(), o, "predictions"));
    case LossKind::cosine: return cosine_error(b, o, learned_output(b.graph(), o, "sentence_embedding"));
    case LossKind::detection: return detection_error(b, o);
  }
  base::fail(base::ErrorCode::internal, "unknown loss");
}

}  // namespace

void LossOptions::fields(base::OptionList& f) {
  f.add_choice(
      "kind", &kind, {"cross_entropy", "mse", "cosine", "detection"},
      "cross_entropy: classes, next or masked tokens; mse: regression; cosine: similarity of sentence "
      "pairs; detection: class and box of each cell");
  f.add("output", &output, "the model's output to learn from; empty: the usual one of the loss");
  f.add("ignored", &ignored, "rows with this label count nothing");
  f.add("label_smoothing", &label_smoothing, "share of the probability spread over all classes")
      .at_least(0)
      .at_most(0.99);
  f.add("z_loss", &z_loss, "weight of the squared logarithm of the softmax's denominator").at_least(0);
  f.add("box_weight", &box_weight, "detection: weight of the box error beside the class error").at_least(0);
}

Loss add_loss(ir::Graph& graph, const LossOptions& options) {
  Builder b = Builder(graph).within("loss");
  const Loss loss = build(b, options);
  if (!options.keeps_outputs) graph.set_outputs({}, {});
  graph.add_output(loss.sum, "loss_sum");
  graph.add_output(loss.count, "count");
  if (loss.correct != ir::kNoValue) graph.add_output(loss.correct, "correct");
  return loss;
}

}  // namespace trireme::model
