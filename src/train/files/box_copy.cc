// Divides boxes into contiguous runs of bytes.
#include "train/files/box_copy.h"

#include <algorithm>

#include "base/error.h"

namespace trireme::train {

using tensor::Box;
using tensor::Dims;

void for_runs(const Dims& size, const BoxPlace& from, const BoxPlace& to, int64_t element_bytes,
              const std::function<void(int64_t, int64_t, int64_t)>& run) {
  const size_t rank = size.size();
  if (tensor::element_count(size) == 0) return;
  // Dimensions from `inner` on form one run: all of them except the first are complete on both sides.
  size_t inner = rank;
  int64_t run_elements = 1;
  while (inner > 0) {
    --inner;
    run_elements *= size[inner];
    if (size[inner] != from.dims[inner] || size[inner] != to.dims[inner]) break;
  }
  const int64_t runs = tensor::element_count(size) / run_elements;
  const auto first = [&](const BoxPlace& place, const Dims& at) {
    int64_t element = 0;
    for (size_t d = 0; d < rank; ++d) element = element * place.dims[d] + place.offset[d] + at[d];
    return element * element_bytes;
  };
  Dims at(rank, 0);
  for (int64_t r = 0; r < runs; ++r) {
    run(first(from, at), first(to, at), run_elements * element_bytes);
    for (size_t d = inner; d-- > 0;) {
      if (++at[d] < size[d]) break;
      at[d] = 0;
    }
  }
}

Box intersection(const Box& a, const Box& b) {
  Box common;
  for (size_t d = 0; d < a.size.size(); ++d) {
    const int64_t begin = std::max(a.offset[d], b.offset[d]);
    const int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    common.offset.push_back(begin);
    common.size.push_back(std::max<int64_t>(0, end - begin));
  }
  return common;
}

std::vector<Dims> local_offsets(const std::vector<Box>& boxes) {
  std::vector<Dims> offsets(boxes.size());
  const size_t rank = boxes.empty() ? 0 : boxes[0].size.size();
  for (size_t d = 0; d < rank; ++d) {
    std::vector<std::pair<int64_t, int64_t>> parts;  // begin and extent of each part of this dimension
    for (const Box& b : boxes) parts.emplace_back(b.offset[d], b.size[d]);
    std::sort(parts.begin(), parts.end());
    parts.erase(std::unique(parts.begin(), parts.end()), parts.end());
    for (size_t i = 0; i < boxes.size(); ++i) {
      int64_t before = 0;
      for (const auto& [begin, extent] : parts) before += begin < boxes[i].offset[d] ? extent : 0;
      offsets[i].push_back(before);
    }
  }
  return offsets;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.size.size(); ++d) {
    text += base::concat(d == 0 ? "" : ", ", box.offset[d], ":", box.offset[d] + box.size[d]);
  }
  return text + "]";
}

}  // namespace trireme::train
