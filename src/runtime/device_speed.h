// Measures what a device can do at most, and how near to that its kernels come.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace trireme::runtime {

/// One measured call of an operator.
struct OpSpeed {
  std::string op, kernel;
  std::string shape;    ///< "[16,1024]bf16 [1024,1024]bf16"
  double seconds = 0;   ///< median of the rounds, for one call
  double gbytes_s = 0;  ///< least bytes of the operation over its time
  double tflop_s = 0;
  /// The larger share of the two ceilings, in percent: the roofline. 0 before ceilings are known.
  double percent = 0;
  std::string refused = {};  ///< why nothing was measured; else empty
};

/// What the largest copy and product reach here.
struct Ceilings {
  double copy_gbytes_s = 0;  ///< bytes read plus bytes written
  std::vector<std::pair<tensor::DType, double>> product_tflop_s;
  double tflop_s(tensor::DType dtype) const;  ///< 0: not measured
};

struct SpeedOptions {
  double scale = 1;       ///< of the sizes: 1 fills a data-center GPU, small ones suit tests
  double seconds = 0.2;   ///< for each measurement, about
  std::string only = {};  ///< operators whose name contains it
  std::function<void(const OpSpeed&)> each = {};  ///< called with every result as it comes
};

/// Copy within the device, and square products in f32, bf16 and f16.
Ceilings measure_ceilings(tensor::Device& device, base::ThreadPool& pool, const SpeedOptions& options);

/// A list of operators in shapes that training and serving of GPT, Llama and ResNet meet. Operators that have
/// no kernel for the device are listed with the reason.
std::vector<OpSpeed> measure_ops(tensor::Device& device, base::ThreadPool& pool, const Ceilings& ceilings,
                                 const SpeedOptions& options);

}  // namespace trireme::runtime
