// How sentence-transformers models make one vector of a sentence: modules.json and 1_Pooling/config.json.
#pragma once

#include <string>

#include "model/builder.h"

namespace trireme::model::hf {

enum class PoolingKind { mean, first, max };

struct Pooling {
  PoolingKind kind = PoolingKind::mean;
  bool is_normalized = false;  ///< scaled to length 1
};

/// Reads modules.json of a model directory and the pooling configuration it names; the default without one.
/// Throws unsupported for modules and pooling modes we do not have.
Pooling read_pooling(const std::string& directory);

/// hidden [batch, seq, width], mask i64 [batch, seq] -> [batch, width].
ir::ValueId pool(Builder& b, ir::ValueId hidden, ir::ValueId mask, const Pooling& pooling);

}  // namespace trireme::model::hf
