// Floating-point work of a training step, and what the machine could do: the two sides of MFU.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/strategy_options.h"

namespace trireme::train {

/// Work of the products, convolutions and attentions of one forward pass over these input shapes, by the
/// schemas' costs. A multiplication with its addition counts 2.
double forward_flop(const ir::Graph& graph, const std::vector<tensor::Dims>& shapes);

/// The best rate, flop/s, of products of square matrices with so many threads, in f32 or with operands
/// rounded as a run's; takes about 0.15 s.
double measure_product_rate(int threads, passes::Precision precision = passes::Precision::f32);

/// What MFU means here, for reports: model flop = 3 x forward (one forward, two backward: recomputation and
/// frozen parts do not count), over time x the measured product rate.
std::string mfu_definition(double product_rate, int threads, passes::Precision precision);

}  // namespace trireme::train
