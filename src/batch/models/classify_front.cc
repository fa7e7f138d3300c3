// Logits turned into the likeliest class.
#include "batch/models/classify_front.h"

#include <algorithm>
#include <cmath>

namespace trireme::batch {

using tensor::DType;
using tensor::Tensor;

ClassifyFront::ClassifyFront(std::unique_ptr<RowFront> front, std::vector<std::string> names)
    : front_(std::move(front)), names_(std::move(names)) {
  const std::vector<data::Field> outputs = front_->outputs();
  const bool fits = outputs.size() == 1 && tensor::is_float(outputs[0].dtype) &&
                    (!outputs[0].shape.has_rank() || outputs[0].shape.rank() == 1);
  if (!fits) base::fail_unsupported("task classify needs a model with one output, a row of logits");
  const tensor::Shape& row = outputs[0].shape;
  if (row.has_rank() && row.is_static()) check_names(row[0].value());
}

void ClassifyFront::check_names(int64_t logits) const {
  base::require(names_.empty() || static_cast<int64_t>(names_.size()) == logits, "the model gives ", logits,
                " logits, and there are ", names_.size(), " names of classes: say by labels which they are");
}

std::vector<data::Field> ClassifyFront::outputs() const {
  std::vector<data::Field> fields{{.name = "label", .dtype = DType::i64}};
  if (!names_.empty()) fields.push_back({.name = "name", .kind = data::FieldKind::text});
  fields.push_back({.name = "score", .dtype = DType::f32});
  return fields;
}

std::vector<OutputValue> ClassifyFront::finish(const std::vector<Tensor>&,
                                               std::vector<Tensor> outputs) const {
  const std::vector<double> logits = outputs[0].to_doubles();
  base::require(!logits.empty(), "a row without logits");
  for (const double v : logits) base::require(!std::isnan(v), "a logit is no number");
  const auto top = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double v : logits) sum += std::exp(v - *top);
  const auto label = static_cast<size_t>(top - logits.begin());
  std::vector<OutputValue> values{Tensor::scalar(static_cast<int64_t>(label))};
  if (!names_.empty()) {
    check_names(static_cast<int64_t>(logits.size()));
    values.emplace_back(names_[label]);
  }
  values.emplace_back(Tensor::scalar(static_cast<float>(1 / sum)));
  return values;
}

}  // namespace trireme::batch
