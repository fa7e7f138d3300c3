// What tests of training over several ranks share: a network with its feeds and options, and how far tensors
// lie apart.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/train/train_session.h"

namespace trireme::engine {

struct TrainCase {
  std::string name;
  ir::Graph graph;
  Feeds (*feeds)(uint64_t);
  TrainOptions options;
};

/// The largest difference relative to the largest element of `a`.
inline double relative_distance(const tensor::Tensor& a, const tensor::Tensor& b) {
  double most = 1e-30, apart = 0;
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  for (size_t i = 0; i < x.size(); ++i) {
    most = std::max(most, std::abs(x[i]));
    apart = std::max(apart, std::abs(x[i] - y[i]));
  }
  return apart / most;
}

}  // namespace trireme::engine
