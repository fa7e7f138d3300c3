// How far from a copy the cases of bench_cliffs may lie, operator by operator, with the reasons.
#pragma once

#include <algorithm>
#include <string>

namespace trireme::runtime {

/// Operators whose cases may lie below what the command asks for: the least share of some case, and why.
struct Low {
  const char* op;
  double share;
  const char* why;
};
inline constexpr const char* kPerElement =
    "a library call or a division for each element, not bytes, is what takes time";
inline constexpr const char* kManyReads = "several elements are read, or compared, for each byte that counts";
inline constexpr const char* kShortRows =
    "rows of three elements or bytes, where steps and not bytes take time";
inline constexpr const char* kRare = "reference loops: published networks spend no time in these forms";
inline constexpr Low kLow[] = {
    {"acos", 0.01, kPerElement},
    {"acosh", 0.006, kPerElement},
    {"asin", 0.01, kPerElement},
    {"asinh", 0.005, kPerElement},
    {"atan", 0.008, kPerElement},
    {"atanh", 0.005, kPerElement},
    {"cosh", 0.01, kPerElement},
    {"sinh", 0.005, kPerElement},
    {"tan", 0.006, kPerElement},
    {"mod", 0.01, kPerElement},
    {"pow", 0.02, kPerElement},
    {"div", 0.02, kPerElement},
    {"lrn", 0.02, kPerElement},
    {"reduce_log_sum_exp", 0.003, kPerElement},
    {"reduce_log_sum", 0.01, kPerElement},
    {"top_k", 0.003, "sorting takes n log n comparisons"},
    {"grid_sample", 0.005, kManyReads},
    {"roi_align", 0.008, kManyReads},
    {"max_roi_pool", 0.008, kManyReads},
    {"max_unpool", 0.02, kManyReads},
    {"resize", 0.015, kManyReads},
    {"arg_max", 0.012, kManyReads},
    {"arg_min", 0.012, kManyReads},
    {"gather", 0.02, kManyReads},
    {"gather_elements", 0.02, kManyReads},
    {"average_pool", 0.02, kManyReads},
    {"lp_pool", 0.02, kManyReads},
    {"max_pool", 0.006, "27 reads for each result of a volume"},
    {"and", 0.006, kShortRows},
    {"or", 0.01, kShortRows},
    {"xor", 0.01, kShortRows},
    {"equal", 0.01, kShortRows},
    {"less", 0.015, kShortRows},
    {"less_or_equal", 0.015, kShortRows},
    {"greater", 0.008, kShortRows},
    {"greater_or_equal", 0.012, kShortRows},
    {"where", 0.015, kShortRows},
    {"expand", 0.008, kShortRows},
    {"concat", 0.01, kShortRows},
    {"tile", 0.02, kShortRows},
    {"pad", 0.02, kShortRows},
    {"reduce_sum", 0.012, kShortRows},
    {"reduce_l1", 0.008, kShortRows},
    {"reduce_l2", 0.015, kShortRows},
    {"reduce_max", 0.007, kShortRows},
    {"reduce_min", 0.007, kShortRows},
    {"reduce_prod", 0.02, kShortRows},
    {"reduce_sum_square", 0.015, kShortRows},
    {"reduce_mean", 0.02, kShortRows},
    {"slice", 0.015, "a few bytes of each line: whole lines are read"},
    {"transpose", 0.015, "bytes between three strides"},
    {"cast", 0.01, "pairs with f64 and wide integers to 16-bit floats, which round once"},
    {"quantize_linear", 0.004, "scales along the last axis: of weights, which are constants"},
    {"dequantize_linear", 0.006, "scales along the last axis: of weights, which are constants"},
    {"einsum", 0.003, kRare},
    {"im2col", 0.005, kRare},
    {"col2im", 0.005, kRare},
    {"affine_grid", 0.008, kRare},
    {"mean", 0.01, kRare},
    {"compress", 0.015, kRare},
    {"hardmax", 0.02, kRare},
    {"mean_variance_norm", 0.02, kRare},
    {"lp_norm", 0.02, kRare}};

/// Operators of ONNX that need no case here.
inline constexpr const char* kElsewhere[] = {
    // products and what contains them: other benchmarks, and floating-point rates, are theirs
    "attention", "conv", "conv_integer", "conv_transpose", "deform_conv", "det", "dft", "gemm", "gru", "lstm",
    "matmul", "matmul_integer", "qlinear_conv", "qlinear_matmul", "rnn", "stft",
    // views, control flow, random draws and losses: no bytes of inference, or no kernel
    "bernoulli", "bit_cast", "flatten", "identity", "if", "loop", "multinomial", "nll_loss", "random_normal",
    "random_normal_like", "random_uniform", "random_uniform_like", "reshape", "scan", "shape", "size",
    "softmax_cross_entropy_loss", "squeeze", "unsqueeze",
    // small results, and selections that are made where types are inferred
    "blackman_window", "hamming_window", "hann_window", "mel_weight_matrix", "non_max_suppression", "unique"};

inline double least_of(const std::string& op, double least) {
  for (const Low& low : kLow) {
    if (op == low.op) return std::min(least, low.share);
  }
  return least;
}

}  // namespace trireme::runtime
