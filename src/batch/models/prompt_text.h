// The text that a row gives a model: a column, or a sentence around several.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/rows/rows.h"

namespace trireme::batch {

/// Immutable; any thread.
class PromptText {
 public:
  /// `pattern`: "{name}" stands for the value of column `name`, "{{" and "}}" for braces; empty: `column`
  /// alone. Throws invalid_argument for a brace without its other, or an empty name.
  PromptText(std::string_view pattern, const std::string& column);

  const std::vector<std::string>& columns() const { return columns_; }
  /// Numbers are written in their shortest exact form. Throws invalid_argument for a row without the value,
  /// and for columns that hold bytes or tensors of several numbers.
  std::string of(const data::Rows& rows, int64_t row) const;

 private:
  struct Part {
    std::string text;    ///< as it is,
    std::string column;  ///< then the value of this; empty: none
  };
  std::vector<Part> parts_;
  std::vector<std::string> columns_;
};

}  // namespace trireme::batch
