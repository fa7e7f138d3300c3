// A language model in the form for decoding, and the options of sessions over it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/memory/shared_cache.h"
#include "engine/pages/page_names.h"
#include "passes/decode/decode.h"
#include "passes/precision/weights.h"
#include "passes/strategy.h"

namespace trireme::base {
class MappedFile;
}
namespace trireme::comm {
class Mesh;
}

namespace trireme::engine {

class PageStore;

struct DecodeOptions {
  std::string device = "cpu";  ///< as runtime::open_device() takes it
  bool host_fallback = true;   ///< nodes that the device has no kernel for run on the CPU
  bool graphs = true;          ///< a device's launches are recorded once and replayed
  bool run_ahead = true;       ///< a device is given its next step before the last one's tokens are here
  int threads = 0;             ///< 0: all cores this process may use
  std::vector<int> cpus = {};
  tensor::DType cache_type = tensor::DType::f32;  ///< of keys and values: f32, bf16 or f16
  int64_t page_tokens = 16;
  /// Precision of products, how weights are stored, and the ranks that hold the model together, by tp:
  /// threads of this process, which share its cores.
  passes::Strategy strategy = {};
  /// The ranks of a job of that shape instead: this is rank 0 of it, the others run follow_decoding().
  /// Outlives the session.
  comm::Mesh* mesh = nullptr;
  int64_t cache_bytes =
      0;  ///< of all pages of a rank; 0: cache_share of what is free, at most what can be used
  double cache_share = 0.5;  ///< of the device's memory, or of what this process may use
  /// Texts with penalties may draw behind guesses: takes the memory of their counts three times.
  bool counts_ahead = false;
  bool share_prefixes = true;  ///< texts that begin alike share the pages of that beginning
  /// Where the pages of known beginnings go, and come back from; null: those that are given up are gone.
  std::shared_ptr<PageStore> store = nullptr;
  PageId store_model{};        ///< what tells this model's pages from others in the store: page_model()
  int64_t max_sequences = 64;  ///< open at a time, and in one step
  int64_t max_tokens = 512;    ///< new tokens of one step
  int64_t max_length = 0;      ///< tokens of a sequence; 0: as many as the model's positions allow
  size_t max_programs = 64;    ///< compiled sizes kept
  int64_t max_adapters = 0;    ///< loaded at a time, of rank max_adapter_rank at most; 0: there is no room
  int64_t max_adapter_rank = 16;
};

using MappedFiles = std::vector<std::shared_ptr<const base::MappedFile>>;

/// A model in the form for decoding, after the passes that do not depend on sizes. Immutable but for the
/// cache of packed weights; sessions of one model share it.
class DecodeModel {
 public:
  /// `graph`: input_ids [batch, seq] -> logits, see passes::decode_form(). Throws unsupported for others
  /// and what Strategy::check() refuses. Of several ranks each stores its part of the weights.
  /// `files`: mapped ones that weights look into; what is packed here in another form gives their pages back.
  explicit DecodeModel(const ir::Graph& graph, const DecodeOptions& options = {},
                       const MappedFiles& files = {});
  const passes::DecodeGraph& form() const { return form_; }
  const passes::WeightReport& weights() const { return weights_; }
  /// Key heads over as many of its ranks as there are.
  const passes::Strategy& strategy() const { return strategy_; }
  /// What they split: weights, keys and values, by name.
  const std::map<std::string, tensor::Shard>& placed() const { return placed_; }
  base::SharedCache& packs() const { return packs_; }
  /// Of several ranks: the files that weights look into.
  const MappedFiles& files() const { return files_; }

 private:
  /// Weights in blocks that products alone read stay in packed form: what they were packed from is let go.
  void hold_blocks(const MappedFiles& files);
  passes::DecodeGraph form_;
  passes::WeightReport weights_;
  passes::Strategy strategy_;
  std::map<std::string, tensor::Shard> placed_;
  mutable base::SharedCache packs_;
  MappedFiles files_;
  std::vector<std::shared_ptr<const void>> held_;  ///< packed matrices whose originals are gone
};

}  // namespace trireme::engine
