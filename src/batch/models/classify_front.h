// Logits turned into the likeliest class, behind another front.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "batch/models/row_front.h"

namespace trireme::batch {

/// A row gives "label" i64, the class of the largest logit (the first of equals), its "name" where classes
/// have names, and "score" f32, its share of the softmax over all.
class ClassifyFront final : public RowFront {
 public:
  /// `names` by class; empty: there are none. Throws unsupported unless the front's only output is one row of
  /// floating-point numbers, and invalid_argument for another number of names than of logits.
  ClassifyFront(std::unique_ptr<RowFront> front, std::vector<std::string> names);

  std::vector<std::string> columns() const override { return front_->columns(); }
  std::vector<data::Field> outputs() const override;
  void prepare(const data::Rows& piece, const Take& take) const override { front_->prepare(piece, take); }
  std::vector<OutputValue> finish(const std::vector<tensor::Tensor>& inputs,
                                  std::vector<tensor::Tensor> outputs) const override;
  void pad(sched::Padding& padding) const override { front_->pad(padding); }

 private:
  void check_names(int64_t logits) const;

  const std::unique_ptr<RowFront> front_;
  const std::vector<std::string> names_;
};

}  // namespace trireme::batch
