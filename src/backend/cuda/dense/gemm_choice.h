// Which products share one measured algorithm, and on what shapes it is measured: no part of a library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/dense/gemm.h"

namespace trireme::cuda {

/// What names a product's algorithm in the file of measured choices. `finish`: what the library does behind
/// it, in its own words. With `options.fixed_order` it names neither rows nor batches: products by one weight
/// run one algorithm, however many rows there are.
std::string choice_key(const GemmShape& shape, const GemmOptions& options, std::string_view finish);

/// The shapes on which algorithms are proposed and measured: the product itself, or, with
/// `options.fixed_order`, one product of few rows, one of some and one of many, the same for any rows asked.
std::vector<GemmShape> choice_shapes(const GemmShape& shape, const GemmOptions& options);

/// Bytes up to 16 that all matrices are aligned to. With `options.fixed_order` as far as it does not depend
/// on the number of rows.
int64_t choice_alignment(const GemmShape& shape, const GemmOptions& options);

}  // namespace trireme::cuda
