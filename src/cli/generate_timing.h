// What `trireme generate --bench` measures: reading prompts and making tokens, each beside its ceiling.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/report/rate.h"
#include "engine/decode/decode_session.h"
#include "engine/decode/sampling.h"
#include "passes/strategy_options.h"

namespace trireme::cli {

/// How many sequences of which length.
struct BenchShape {
  int64_t prompt = 512, fresh = 128, batch = 1;
};
/// Of "prompt=512,new=128,batch=8"; throws invalid_argument for other names and sizes below 1.
BenchShape parse_bench(const std::string& text);

/// Steps that read prompts (and may decode beside it), and those in which every sequence decodes.
struct StepTimes {
  double prefill_s = 0;
  int64_t prefill_tokens = 0;  ///< that were computed: a text known from before is not
  std::vector<double> decode_s;
  int64_t meetings = 0;  ///< of the team in the last step that decoded
};

/// What the steps of a program on one kernel with results of one shape take in a run.
struct KernelTime {
  std::string op, kernel, shape;
  int64_t count = 0;  ///< steps
  double us = 0, bytes = 0;
};

struct BenchResult {
  BenchShape shape;
  size_t threads = 0;
  StepTimes times;
  double decode_step_s = 0, decode_bytes = 0;
  size_t decode_launches = 0;   ///< steps of the program
  int64_t decode_meetings = 0;  ///< of the CPU's team in a step, each a wait for its slowest member
  base::Rate prefill_flop, decode_read;
  /// Where the time of a step goes that reads a chunk of a prompt, and of one in which every sequence
  /// decodes, the longest first; empty unless it was asked for.
  std::vector<KernelTime> chunk_kernels, decode_kernels;

  double prefill_tokens_s() const;
  double decode_tokens_s() const;
  base::Json to_json() const;
  std::string text() const;
};

/// What a session was opened with, as far as its ceilings and prompts depend on it.
struct BenchSetup {
  engine::SamplingOptions sampling;
  std::string device = "cpu";
  passes::Precision precision = passes::Precision::f32;
  int64_t page_tokens = 16;
  int ranks = 1;  ///< that share the work; programs and caches are one rank's
  /// Sequence i has number i of these, and so on from the first; none: the model alone.
  std::vector<std::shared_ptr<const engine::LoadedAdapter>> adapters;
};

class GenerateBench {
 public:
  GenerateBench(engine::DecodeSession& session, BenchSetup setup);

  /// Runs the shape twice, with prompts of its own each time, and reports the second. `by_kernel`: then times
  /// the steps of the programs, too, of the first rank.
  BenchResult run(const BenchShape& shape, bool by_kernel);

 private:
  StepTimes time_steps(const BenchShape& shape);
  std::vector<int64_t> random_tokens(int64_t count);
  std::vector<KernelTime> time_chunk(const BenchShape& shape);
  std::vector<KernelTime> time_decoding(const BenchShape& shape);

  engine::DecodeSession& session_;
  BenchSetup setup_;
  int threads_;  ///< of all ranks
  base::Ceiling products_;
  uint64_t prompts_ = 0;  ///< drawn so far: no two begin alike, or the later would find its tokens computed
};

}  // namespace trireme::cli
