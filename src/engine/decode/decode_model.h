// A language model in the form for decoding, and the options of sessions over it.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/memory/shared_cache.h"
#include "engine/pages/kv_pool.h"
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
class RankService;

struct DecodeOptions {
  std::string device = "cpu";  ///< as runtime::open_device() takes it
  bool host_fallback = true;   ///< nodes that the device has no kernel for run on the CPU
  bool graphs = true;          ///< a device's launches are recorded once and replayed
  bool run_ahead = true;       ///< a device is given its next step before the last one's tokens are here
  int threads = 0;             ///< 0: all cores this process may use
  std::vector<int> cpus = {};
  tensor::DType cache_type = tensor::DType::f32;  ///< of keys and values: f32, bf16, f16, i8 or f8e4m3fn
  int64_t page_tokens = 16;
  /// Precision of products, how weights are stored, and the ranks that hold the model together, by tp and pp:
  /// threads of this process, which share its cores.
  passes::Strategy strategy = {};
  /// The ranks of a job of that shape instead: this is rank 0 of it, the others run follow_decoding().
  /// Outlives the session.
  comm::Mesh* mesh = nullptr;
  /// Or: where a group of them is opened, on the first rank of a job, and the name by which the others load
  /// the model.
  RankService* service = nullptr;
  std::string model_key = {};
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

/// What the ranks of one pipeline stage compute, after the passes that do not depend on sizes; of a model
/// without stages all of it.
struct DecodeStage {
  passes::DecodeGraph form;
  passes::WeightReport weights;                        ///< of one rank a stage: how matrices are stored
  std::vector<std::shared_ptr<const void>> held = {};  ///< packed matrices whose originals are gone
};

/// A model in the form for decoding. Immutable but for the cache of packed weights, and for stages, which are
/// made when they are asked for; sessions of one model share it.
class DecodeModel {
 public:
  /// `graph`: input_ids [batch, seq] -> logits, see passes::decode_form(). Throws unsupported for others,
  /// what Strategy::check() refuses, and invalid_argument for more stages than the model has places between
  /// layers. Of several ranks each stores its part of the weights.
  /// `files`: mapped ones that weights look into; what is packed here in another form gives their pages back.
  explicit DecodeModel(const ir::Graph& graph, const DecodeOptions& options = {},
                       const MappedFiles& files = {});
  /// The whole model; where it has stages, as it was loaded: they store weights, pack and fold.
  const passes::DecodeGraph& form() const { return stages() == 1 ? stage().form : form_; }
  const passes::WeightReport& weights() const { return stage().weights; }
  /// How many ranks hold it, key heads over as many of them as there are.
  const passes::Strategy& strategy() const { return strategy_; }
  int stages() const { return strategy_.pp; }
  /// The part of a stage, with no weights but its own: widened, stored and packed when it is first asked for,
  /// and kept as long as this. From any thread.
  const DecodeStage& stage(int number = 0) const;
  /// Room for adapters beside the products of a stage.
  const passes::AdapterRoom& adapters(int stage) const { return part(stage).adapters; }
  /// Keys and values of one token on each rank of a stage.
  KvLayout kv_layout(int stage) const;
  /// Bytes of the weights of all stages as they are stored, on as many ranks as hold them.
  int64_t weight_bytes() const;
  /// Of one stage, whose ranks share them.
  int64_t weight_bytes(int stage) const;
  /// What ranks of a stage split: weights, keys and values, factors of adapters, and what leaves, as far as
  /// it is made as sums, by name.
  const std::map<std::string, tensor::Shard>& placed() const { return placed_; }
  base::SharedCache& packs() const { return packs_; }
  /// Of several ranks: the files that weights look into.
  const MappedFiles& files() const { return files_; }

 private:
  std::shared_ptr<const DecodeStage> prepare(passes::DecodeGraph form, const MappedFiles& files) const;
  void hold_blocks(DecodeStage& stage, const MappedFiles& files) const;
  void place_crossings();
  /// A stage; of several as it was cut, before its weights are stored.
  const passes::DecodeGraph& part(int number) const;

  passes::Strategy strategy_;
  std::string device_;
  passes::DecodeGraph form_;               ///< of several stages: the whole
  std::vector<passes::DecodeGraph> cuts_;  ///< and its parts
  std::map<std::string, tensor::Shard> placed_;
  mutable base::SharedCache packs_, making_;  ///< `making_` is the lock of stages_
  mutable std::vector<std::shared_ptr<const DecodeStage>> stages_;
  MappedFiles files_;
};

}  // namespace trireme::engine
