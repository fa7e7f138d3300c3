// Floating-point work of a training step, and what the machine could do: the two sides of MFU.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace trireme::train {

/// Work of the products, convolutions and attentions of one forward pass over these input shapes, by the
/// schemas' costs. A multiplication with its addition counts 2.
double forward_flop(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);

/// The best rate, flop/s, of f32 products of 1024 x 1024 matrices with so many threads; takes about 0.1 s.
double measure_product_rate(int threads);

/// What MFU means here, for reports: model flop = 3 x forward (one forward, two backward: recomputation and
/// frozen parts do not count), over time x the measured product rate.
std::string mfu_definition(double product_rate, int threads);

}  // namespace trireme::train
