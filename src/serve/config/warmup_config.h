// model_warmup of a model's configuration: requests that run before a model is ready.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "serve/infer/wire_tensor.h"
#include "serve/config/pbtxt.h"

namespace trireme::serve {

struct WarmupConfig {
  struct Input {
    std::string name;
    WireType type;
    tensor::Dims dims;  ///< of one row
    enum class Data { zero, random, file } data = Data::zero;
    std::string file;  ///< below warmup/: the bytes of one row
  };
  std::string name;
  int64_t batch_size = 0;  ///< 0: the model does not batch
  int64_t count = 1;
  std::vector<Input> inputs;
};

/// Throws invalid_argument or unsupported with the line.
WarmupConfig read_warmup_config(const std::vector<TextField>& fields);
base::Json warmup_config_json(const WarmupConfig& config);

/// One row of an input; `root` is the model's directory. The strings that are no file's are all "0", which
/// models that read numbers from them take too.
WireTensor warmup_tensor(const WarmupConfig::Input& input, bool is_batched, const std::string& root);

}  // namespace trireme::serve
