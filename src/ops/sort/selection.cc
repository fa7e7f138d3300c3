// The selections of unique and non_max_suppression, whose result sizes depend on the data.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/elementwise/row_kernels.h"
#include "ops/sort/sort_ops.h"

namespace trireme::ops {
namespace {

/// -1, 0 or 1: the order of two elements, in which NaN comes after all numbers and equals itself.
template <class T>
int compare_elements(T a, T b) {
  if (a < b) return -1;
  if (b < a) return 1;
  const bool a_nan = a != a, b_nan = b != b;
  return a_nan == b_nan ? 0 : a_nan ? 1 : -1;
}

/// Slices of a dense tensor along one axis, which compare element by element in row-major order.
template <class T>
struct Slices {
  const T* x;
  int64_t outer, count, inner;

  int compare(int64_t a, int64_t b) const {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        using C = Arithmetic<T>;
        const int order = compare_elements(static_cast<C>(x[(o * count + a) * inner + i]),
                                           static_cast<C>(x[(o * count + b) * inner + i]));
        if (order != 0) return order;
      }
    }
    return 0;
  }
};

template <class T>
UniqueResult unique_slices(const Slices<T>& slices, bool is_sorted) {
  std::vector<int64_t> order(static_cast<size_t>(slices.count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return slices.compare(a, b) < 0; });
  UniqueResult r;
  r.inverse.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || slices.compare(order[i - 1], order[i]) != 0) {
      r.first.push_back(order[i]);
      r.counts.push_back(0);
    }
    ++r.counts.back();
    r.inverse[static_cast<size_t>(order[i])] = static_cast<int64_t>(r.first.size()) - 1;
  }
  if (is_sorted) return r;
  // Renumbers by first occurrence.
  std::vector<int64_t> by_first(r.first.size());
  std::iota(by_first.begin(), by_first.end(), 0);
  std::sort(by_first.begin(), by_first.end(), [&](int64_t a, int64_t b) {
    return r.first[static_cast<size_t>(a)] < r.first[static_cast<size_t>(b)];
  });
  UniqueResult out;
  std::vector<int64_t> place(by_first.size());
  for (size_t i = 0; i < by_first.size(); ++i) {
    const size_t from = static_cast<size_t>(by_first[i]);
    out.first.push_back(r.first[from]);
    out.counts.push_back(r.counts[from]);
    place[from] = static_cast<int64_t>(i);
  }
  for (int64_t i : r.inverse) out.inverse.push_back(place[static_cast<size_t>(i)]);
  return out;
}

/// A box with ordered corners, y1 <= y2 and x1 <= x2.
struct Box {
  float y1, x1, y2, x2;
  Box(const float* b, bool is_center) {
    if (is_center) {  // x, y, width, height
      x1 = b[0] - b[2] / 2;
      x2 = b[0] + b[2] / 2;
      y1 = b[1] - b[3] / 2;
      y2 = b[1] + b[3] / 2;
    } else {
      y1 = std::min(b[0], b[2]);
      y2 = std::max(b[0], b[2]);
      x1 = std::min(b[1], b[3]);
      x2 = std::max(b[1], b[3]);
    }
  }
  float area() const { return (y2 - y1) * (x2 - x1); }
};

float overlap(const Box& a, const Box& b) {
  const float height = std::min(a.y2, b.y2) - std::max(a.y1, b.y1);
  const float width = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (height <= 0 || width <= 0 || a.area() <= 0 || b.area() <= 0) return 0;
  const float shared = height * width;
  return shared / (a.area() + b.area() - shared);
}

struct Limits {
  int64_t most = 0;
  float overlap = 0;
  float score = 0;
  bool has_score = false;
};

/// The indices of the boxes that are kept for one class.
std::vector<int64_t> keep_boxes(const std::vector<Box>& boxes, const float* scores, const Limits& limits) {
  std::vector<int64_t> order;
  for (size_t i = 0; i < boxes.size(); ++i) {
    if (!limits.has_score || scores[i] > limits.score) order.push_back(static_cast<int64_t>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  std::vector<int64_t> kept;
  for (int64_t i : order) {
    if (static_cast<int64_t>(kept.size()) >= limits.most) break;
    const bool is_free = std::all_of(kept.begin(), kept.end(), [&](int64_t k) {
      return overlap(boxes[static_cast<size_t>(k)], boxes[static_cast<size_t>(i)]) <= limits.overlap;
    });
    if (is_free) kept.push_back(i);
  }
  return kept;
}

}  // namespace

UniqueResult unique_of(const tensor::Tensor& x, const ir::Attrs& attrs) {
  const bool has_axis = attrs.has("axis");
  const size_t axis = has_axis ? ir::normal_axis(attrs.need_int("axis"), x.rank()) : 0;
  int64_t outer = 1, count = has_axis ? x.dims()[axis] : x.elements(), inner = 1;
  for (size_t d = 0; has_axis && d < x.rank(); ++d) {
    if (d != axis) (d < axis ? outer : inner) *= x.dims()[d];
  }
  return tensor::visit_dtype(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return unique_slices(Slices<T>{x.data<T>().data(), outer, count, inner}, attrs.get_int("sorted", 1) != 0);
  });
}

std::vector<int64_t> selected_boxes(const ir::NodeView& node) {
  const tensor::Tensor &boxes = *node.value(0), &scores = *node.value(1);
  base::require(boxes.rank() == 3 && boxes.dims()[2] == 4 && scores.rank() == 3 &&
                    scores.dims()[0] == boxes.dims()[0] && scores.dims()[2] == boxes.dims()[1],
                "non_max_suppression takes boxes [batch, n, 4] and scores [batch, classes, n]");
  Limits limits;
  if (node.present(2)) limits.most = node.value(2)->to_ints().at(0);
  if (node.present(3)) limits.overlap = static_cast<float>(node.value(3)->to_doubles().at(0));
  limits.has_score = node.present(4);
  if (limits.has_score) limits.score = static_cast<float>(node.value(4)->to_doubles().at(0));
  const bool is_center = node.attrs.get_int("center_point_box", 0) != 0;
  const int64_t count = boxes.dims()[1], classes = scores.dims()[1];
  std::vector<int64_t> out;
  for (int64_t b = 0; b < boxes.dims()[0]; ++b) {
    std::vector<Box> corners;
    for (int64_t i = 0; i < count; ++i)
      corners.emplace_back(boxes.data<float>().data() + (b * count + i) * 4, is_center);
    for (int64_t c = 0; c < classes; ++c) {
      const float* class_scores = scores.data<float>().data() + (b * classes + c) * count;
      for (int64_t i : keep_boxes(corners, class_scores, limits)) out.insert(out.end(), {b, c, i});
    }
  }
  return out;
}

}  // namespace trireme::ops
