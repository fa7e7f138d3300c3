// What the instances of a batched model share: its graph, made ready, and what stands between graph and
// clients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/session/session.h"
#include "sched/batch.h"
#include "serve/batched/sequence_batcher.h"
#include "serve/models/served_model.h"
#include "serve/batched/string_ports.h"
#include "serve/batched/text_front.h"

namespace trireme::serve {

struct BatchedParts {
  ModelConfig config;                            ///< complete
  std::vector<std::vector<std::string>> labels;  ///< by output
  std::unique_ptr<TextFront> text;               ///< null: tensors only
  StringPorts strings;
  sched::Padding padding;                        ///< by pad_buckets; no length buckets: none
  std::shared_ptr<const SequenceLayout> layout;  ///< of a sequence model
  std::shared_ptr<const engine::PreparedModel> prepared;
  int64_t weight_bytes = 0;
  std::string kept_outputs;  ///< places among the graph's; empty: all
  uint64_t load_number = 0;  ///< tells this load from all others
};

/// Opens the version's files, completes its configuration from the graph and checks both against each other.
/// Throws what is wrong with them.
BatchedParts load_batched_parts(const ModelSource& source, const ModelHost& host);

}  // namespace trireme::serve
