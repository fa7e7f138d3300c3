// Implements the classification extension of KServe.
#include "serve/infer/classify.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trireme::serve {
namespace {

/// Appends the `kept` best values of a row as "value:index" or "value:index:label".
template <class T>
void append_classes(const T* row, int64_t width, int64_t kept, const std::vector<std::string>& labels,
                    std::vector<std::string>& out) {
  std::vector<int64_t> order(static_cast<size_t>(width));
  std::iota(order.begin(), order.end(), int64_t{0});
  // Ties are broken by index, so that the answer is the same everywhere; NaN sorts last.
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), [row](int64_t a, int64_t b) {
    const bool a_nan = row[a] != row[a], b_nan = row[b] != row[b];
    if (a_nan != b_nan) return b_nan;
    return row[a] > row[b] || (!(row[a] < row[b]) && a < b);
  });
  for (int64_t k = 0; k < kept; ++k) {
    const auto index = static_cast<size_t>(order[static_cast<size_t>(k)]);
    std::string text = std::to_string(row[index]);
    text += ':' + std::to_string(index);
    if (index < labels.size()) text += ':' + labels[index];
    out.push_back(std::move(text));
  }
}

}  // namespace

WireTensor classify(const WireTensor& scores, int64_t count, bool is_batched,
                    const std::vector<std::string>& labels) {
  base::require(scores.type.has_value(), "classification of output '", scores.name, "' of datatype BYTES");
  const int64_t elements = scores.values.elements();
  base::require(elements <= 1'000'000, "classification of output '", scores.name, "' with ", elements,
                " elements, at most 1000000");
  const int64_t rows = is_batched && !scores.dims.empty() ? scores.dims[0] : 1;
  const int64_t width = rows == 0 ? 0 : elements / rows;
  const int64_t kept = std::min(count, width);
  WireTensor out{.name = scores.name, .type = std::nullopt};
  out.dims = is_batched ? tensor::Dims{rows, kept} : tensor::Dims{kept};
  constexpr int64_t kClassBytes = 32;  // for "value:index"; the model owns its labels
  out.room = room_for_strings(rows * kept, rows * kept * kClassBytes);
  const auto rank_all = [&](const auto& values) {
    for (int64_t r = 0; r < rows; ++r)
      append_classes(values.data() + r * width, width, kept, labels, out.strings);
  };
  if (!tensor::is_float(*scores.type)) {  // integers are compared and printed exactly: doubles hold 53 bits
    tensor::visit_dtype(*scores.type, [&]<class T>(T) {
      if constexpr (std::is_integral_v<T>) rank_all(scores.values.data<T>());
    });
  } else {
    rank_all(scores.values.to_doubles());
  }
  return out;
}

}  // namespace trireme::serve
