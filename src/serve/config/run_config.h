// How a model runs, as the `parameters` of its config.pbtxt say where they differ from the server's options.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/image/picture_input.h"
#include "engine/decode/speculation_options.h"
#include "passes/strategy.h"

namespace trireme::serve {

struct ServeOptions;

/// `precision` f32, bf16, f16 or fp8; `weights` f32, int8 or int4 with `weight_group` and `weight_zeros`;
/// `threads` of an instance; `buckets` "1,2,4,8"; `batch_window` "2ms", which ends when as many wait as
/// usual, unlike max_queue_delay_microseconds; `whole_batches` true: a batch takes all that fits, whatever
/// its rows cost; `deadline_aware` true or false; `loop_timeout` "30s" for the loops of a request;
/// `pad_buckets` "16,32,64", `pad_value` "0" and `pad_inputs` "ids=0,labels=-100": the open extent of inputs
/// is filled up, and outputs are cut to what the request had; `slo_p99` "50ms", the goal that batching is
/// tuned for while the model serves. `stream_rows` true: of a decoupled model, each place along the outputs'
/// first dimension (behind the batch) is an answer of its own. `image_input` none, unit, inception or
/// imagenet: the model's one input takes JPEG, PNG or BMP files instead of pixels, and resizes them.
/// `speculate` off, lookup or draft, with `draft`, `draft_tokens`, `lookup_tokens` and `draft_cache_bytes`:
/// how the next tokens of a language model's texts are guessed. `prefill_instances` and `prefill_threads`:
/// instances of a language model that read prompts. Others are the model's own and mean nothing here.
struct RunConfig {
  passes::Precision precision = passes::Precision::f32;
  std::optional<passes::WeightOptions> weights;  ///< absent: the server's
  int threads = 0;                               ///< 0: the server's
  std::vector<int64_t> buckets;                  ///< empty: the server's
  std::optional<int64_t> window_ns;              ///< absent: the server's
  std::optional<bool> is_deadline_aware;         ///< absent: the server's
  std::optional<int64_t> p99_ns;                 ///< absent: the server's
  std::optional<bool> runs_whole;                ///< absent: the server's
  std::optional<int64_t> loop_ns;                ///< absent: the server's
  std::vector<int64_t> pad_buckets;  ///< lengths that open extents are filled up to; empty: none is
  double pad_value = 0;
  std::map<std::string, double> pad_inputs;  ///< only these are filled, each with its value; empty: all
  bool streams_rows = false;
  data::PixelValues image_input = data::PixelValues::off;
  std::optional<engine::SpeculationOptions> speculation;  ///< absent: the server's
  std::optional<int> prefill_instances;                   ///< absent: the server's
  int prefill_threads = 0;                                ///< 0: the server's

  /// True for the parameters that mean something here.
  static bool knows(const std::string& key);
  /// Throws invalid_argument for a value that is not one of these.
  static RunConfig of(const std::vector<std::pair<std::string, std::string>>& parameters);
};

/// How a model's graph becomes programs: its own parameters, else the server's options.
passes::Strategy strategy_of(const RunConfig& run, const ServeOptions& options);

}  // namespace trireme::serve
