// Raw binary requests: a body that is nothing but the one input's bytes.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "serve/infer/infer_request.h"
#include "serve/config/model_config.h"

namespace trireme::serve {

/// Makes the request that `body` stands for: one row of the only input, all outputs binary. The extent of one
/// open dimension follows from the size; BYTES takes the whole body as its one element. `owner` keeps the
/// bytes alive. Throws invalid_argument where the body leaves something open.
InferRequest raw_infer_request(const std::string& model, const std::vector<TensorConfig>& inputs,
                               bool is_batched, std::string_view body,
                               const std::shared_ptr<const void>& owner);

}  // namespace trireme::serve
