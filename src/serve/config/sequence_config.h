// sequence_batching of a model's configuration: which inputs the server makes, and what it keeps between
// requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "serve/infer/wire_tensor.h"
#include "serve/config/pbtxt.h"

namespace trireme::serve {

struct SequenceConfig {
  /// An input that the server fills in.
  struct Control {
    enum class Kind { start, ready, end, corrid } kind = Kind::start;
    std::string name;
    WireType type;                         ///< of a corrid; of the others by the field of their values
    double when_false = 0, when_true = 1;  ///< not of a corrid
  };
  /// An output that is the next request's input.
  struct State {
    std::string input, output;
    WireType type;
    tensor::Dims dims;
    std::string initial_file;  ///< below initial_state/; empty: zeros
  };
  int64_t idle_us = 1'000'000;
  std::vector<Control> controls;
  std::vector<State> states;
  bool is_oldest = false;
  int64_t max_candidates = 0;             ///< of oldest; 0: as many as a full batch for each instance
  std::vector<int64_t> preferred;         ///< of oldest
  std::optional<int64_t> queue_delay_us;  ///< absent: the server's window

  /// True for the names that clients do not send.
  bool makes_input(const std::string& name) const;
  bool keeps_output(const std::string& name) const;
};

/// Throws invalid_argument or unsupported with the line.
SequenceConfig read_sequence_config(const std::vector<TextField>& fields);
base::Json sequence_config_json(const SequenceConfig& config);

}  // namespace trireme::serve
