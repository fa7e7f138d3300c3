// Times the steps of a decode session on random prompts and compares them with what the machine can reach.
#include "cli/generate_timing.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/rng.h"
#include "base/report/svg_plot.h"
#include "base/threads/team_meetings.h"
#include "cli/rates.h"
#include "cli/model_input.h"
#include "ops/blocks/block_attention.h"
#include "sched/text/token_scheduler.h"

namespace trireme::cli {
namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The least cost of a decoding step, without its keys and values, and the least cost of a prompt's token.
struct StepCost {
  double bytes = 0, token_flop = 0;
  size_t launches = 0;
  bool meets_codes = false;  ///< products take weights in codes, and may compute in 8 bits
};

/// Whether a step multiplies by constants of fewer bits than a half.
bool meets_codes(const compile::Program& program, const compile::Step& step) {
  if (!ir::has_products(step.op->schema) && step.op->schema.name != "block_attention") return false;
  return std::any_of(step.in.begin(), step.in.end(), [&](compile::SlotId id) {
    if (id == compile::kNoSlot) return false;
    const compile::Slot& slot = program.slot(id);
    return slot.kind == compile::SlotKind::constant && tensor::bits_of(slot.dtype) < 16;
  });
}

/// What the matrix products of a block_attention read and compute.
StepCost products_of(const compile::Program& program, const compile::Step& step, int64_t tokens) {
  StepCost cost;
  for (const size_t i : {ops::kBaQuery, ops::kBaKey, ops::kBaValue}) {
    const compile::Slot &x = program.slot(step.in[ops::kBaX]), &w = program.slot(step.in[i]);
    cost.bytes += static_cast<double>(w.bytes);
    cost.token_flop += 2 * static_cast<double>(tensor::element_count(x.dims)) *
                       static_cast<double>(w.dims[0]) / static_cast<double>(tokens);
  }
  return cost;
}

StepCost cost_of(const compile::Program& program, int64_t tokens) {
  StepCost cost{.launches = program.steps.size()};
  for (const compile::Step& step : program.steps) {
    if (step.op == nullptr || step.op->schema.name == "paged_attention" ||
        step.op->schema.name == "decode_attention")
      continue;
    cost.meets_codes = cost.meets_codes || meets_codes(program, step);
    if (step.op->schema.name == "block_attention") {
      const StepCost products = products_of(program, step, tokens);
      cost.bytes += products.bytes;
      cost.token_flop += products.token_flop;
      continue;
    }
    cost.bytes += step.cost.bytes;
    const bool is_head = step.from.find("lm_head") != std::string::npos;  // for a prompt's last token only
    if (!is_head) cost.token_flop += step.cost.flop / static_cast<double>(tokens);
  }
  return cost;
}

std::string fixed(double value, int digits) { return base::format_number(value, digits); }

/// Medians over `runs` of the program's steps, summed by operator, kernel and shape of the result.
std::vector<KernelTime> kernel_times(const compile::Program& program,
                                     const std::vector<runtime::Trace>& runs) {
  std::vector<KernelTime> all;
  for (size_t s = 0; s < program.steps.size(); ++s) {
    const compile::Step& step = program.steps[s];
    std::vector<double> us;
    for (const runtime::Trace& run : runs) us.push_back(static_cast<double>(run.step_ns.at(s)) / 1e3);
    KernelTime one{.op = step.op == nullptr ? "copy" : step.op->schema.name, .kernel = step.kernel};
    if (!step.out.empty() && step.out[0] != compile::kNoSlot)
      one.shape = tensor::to_string(program.slot(step.out[0]).dims);
    const auto same = std::find_if(all.begin(), all.end(), [&](const KernelTime& k) {
      return k.op == one.op && k.kernel == one.kernel && k.shape == one.shape;
    });
    KernelTime& sum = same == all.end() ? all.emplace_back(std::move(one)) : *same;
    ++sum.count;
    sum.us += median(std::move(us));
    sum.bytes += step.cost.bytes;
  }
  std::sort(all.begin(), all.end(), [](const KernelTime& a, const KernelTime& b) { return a.us > b.us; });
  return all;
}

double total_us(const std::vector<KernelTime>& kernels) {
  double total = 0;
  for (const KernelTime& k : kernels) total += k.us;
  return total;
}

std::string kernel_table(const char* title, const std::vector<KernelTime>& kernels) {
  if (kernels.empty()) return {};
  const double total = total_us(kernels);
  std::string text = base::concat(title, ": ", fixed(total / 1e3, 3), " ms in its steps\n");
  for (const KernelTime& k : kernels) {
    char line[96];
    std::snprintf(line, sizeof line, "%9.1f us %5.1f %% %4lld x %7.1f GB/s  ", k.us, 100 * k.us / total,
                  static_cast<long long>(k.count), k.us > 0 ? k.bytes / k.us / 1e3 : 0.0);
    text += base::concat(line, k.op, " ", k.kernel, " ", k.shape, "\n");
  }
  return text;
}

base::Json kernel_json(const std::vector<KernelTime>& kernels) {
  base::Json all = base::Json::array({});
  for (const KernelTime& k : kernels) {
    all.push_back(base::Json::object({{"op", k.op},
                                      {"kernel", k.kernel},
                                      {"shape", k.shape},
                                      {"count", k.count},
                                      {"us", k.us},
                                      {"bytes", static_cast<int64_t>(k.bytes)}}));
  }
  return all;
}

}  // namespace

BenchShape parse_bench(const std::string& text) {
  BenchShape shape;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto [name, value] = split_assignment(text.substr(begin, end - begin));
    int64_t* to = name == "prompt"  ? &shape.prompt
                  : name == "new"   ? &shape.fresh
                  : name == "batch" ? &shape.batch
                                    : nullptr;
    base::require(to != nullptr, "--bench takes prompt, new and batch, not '", name, "'");
    *to = std::atoll(value.c_str());
    base::require(*to > 0, "--bench: ", name, "=", value);
    begin = end + 1;
  }
  return shape;
}

double BenchResult::prefill_tokens_s() const {
  return times.prefill_s > 0 ? static_cast<double>(times.prefill_tokens) / times.prefill_s : 0;
}
double BenchResult::decode_tokens_s() const {
  return decode_step_s > 0 ? static_cast<double>(shape.batch) / decode_step_s : 0;
}

base::Json BenchResult::to_json() const {
  base::Json json =
      base::Json::object({{"prompt", shape.prompt}, {"new", shape.fresh}, {"batch", shape.batch}});
  json.set("threads", threads);
  json.set("prefill_s", times.prefill_s);
  json.set("prefill_tokens", times.prefill_tokens);
  json.set("prefill_tokens_s", prefill_tokens_s());
  prefill_flop.write(json, "prefill_tflop_s", 1e12);
  json.set("decode_step_ms", decode_step_s * 1e3);
  json.set("decode_tokens_s", decode_tokens_s());
  json.set("decode_launches", decode_launches);
  json.set("decode_meetings", decode_meetings);
  json.set("decode_step_bytes", static_cast<int64_t>(decode_bytes));
  decode_read.write(json, "decode_gbytes_s", 1e9);
  if (!decode_kernels.empty()) {
    json.set("chunk_kernels", kernel_json(chunk_kernels));
    json.set("decode_kernels", kernel_json(decode_kernels));
  }
  return json;
}

std::string BenchResult::text() const {
  return base::concat(
      "prefill  ", shape.batch, " x ", shape.prompt, " tokens, ", times.prefill_tokens, " computed in ",
      fixed(times.prefill_s, 3), " s: ", fixed(prefill_tokens_s(), 0), " tokens/s, ",
      prefill_flop.text(1e12, "TFLOP"), "\ndecode   ", fixed(decode_step_s * 1e3, 3), " ms a step of ",
      shape.batch, ": ", fixed(decode_tokens_s(), 1), " tokens/s, ", fixed(decode_bytes / 1e6, 1),
      " MB a step, ", decode_read.text(1e9, "GB"), ", ", decode_meetings, " meetings of the team\n",
      kernel_table("a chunk of a prompt", chunk_kernels), kernel_table("a decoding step", decode_kernels));
}

GenerateBench::GenerateBench(engine::DecodeSession& session, BenchSetup setup)
    : session_(session),
      setup_(std::move(setup)),
      threads_(static_cast<int>(session.ranks().first().threads().size()) * setup_.ranks) {}

std::vector<int64_t> GenerateBench::random_tokens(int64_t count) {
  base::Rng rng(static_cast<uint64_t>(setup_.sampling.seed), prompts_++);
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < count; ++t)
    tokens.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(session_.vocabulary()))));
  return tokens;
}

/// The first chunk of a prompt, some times.
std::vector<KernelTime> GenerateBench::time_chunk(const BenchShape& shape) {
  constexpr int kRuns = 3;
  const int64_t chunk = std::min(shape.prompt, session_.options().max_tokens);
  std::vector<runtime::Trace> runs;
  for (int i = 0; i < kRuns + 1; ++i) {
    const std::vector<int64_t> tokens = random_tokens(chunk);
    const engine::SequenceId id = session_.open();
    const engine::DecodePiece piece{.sequence = id, .tokens = tokens};
    session_.step({&piece, 1}, &runs.emplace_back());
    session_.close(id);
  }
  runs.erase(runs.begin());  // which compiled
  return kernel_times(session_.prepare(session_.bucket(chunk, 1)), runs);
}

/// Steps of one token for each sequence behind its prompt.
std::vector<KernelTime> GenerateBench::time_decoding(const BenchShape& shape) {
  constexpr int64_t kRuns = 15;
  std::vector<engine::DecodePiece> pieces(static_cast<size_t>(shape.batch));
  for (engine::DecodePiece& piece : pieces) {
    const std::vector<int64_t> prompt = random_tokens(shape.prompt);
    piece.sequence = session_.open();
    for (size_t at = 0; at < prompt.size(); at += piece.tokens.size()) {
      piece.tokens = std::span(prompt).subspan(at);
      piece.tokens = piece.tokens.first(
          std::min(piece.tokens.size(), static_cast<size_t>(session_.options().max_tokens)));
      session_.step({&piece, 1});
    }
  }
  std::vector<runtime::Trace> runs;
  for (int64_t i = 0; i < std::min(kRuns, shape.fresh); ++i) {
    const std::vector<int64_t> tokens = random_tokens(shape.batch);
    for (size_t k = 0; k < pieces.size(); ++k) pieces[k].tokens = std::span(tokens).subspan(k, 1);
    session_.step(pieces, &runs.emplace_back());
  }
  for (const engine::DecodePiece& piece : pieces) session_.close(piece.sequence);
  if (runs.size() > 1) runs.erase(runs.begin());  // which compiled
  return kernel_times(session_.prepare(session_.bucket(shape.batch, shape.batch)), runs);
}

StepTimes GenerateBench::time_steps(const BenchShape& shape) {
  sched::TokenScheduler generator(session_);
  for (int64_t i = 0; i < shape.batch; ++i) {
    engine::GenerateRequest r{.max_tokens = shape.fresh, .sampling = setup_.sampling};
    if (!setup_.adapters.empty())
      r.adapter = setup_.adapters[static_cast<size_t>(i) % setup_.adapters.size()];
    r.prompt = random_tokens(shape.prompt);
    generator.add(std::move(r));
  }
  StepTimes times;
  while (!generator.is_idle()) {
    const auto from = Clock::now();
    const size_t before = generator.running() + generator.waiting();
    const int64_t meetings = base::team_meetings();
    generator.step();
    const double seconds = std::chrono::duration<double>(Clock::now() - from).count();
    if (generator.step_tokens() == static_cast<int64_t>(before)) {
      times.decode_s.push_back(seconds);
      times.meetings = base::team_meetings() - meetings;
    } else {
      times.prefill_s += seconds;
      times.prefill_tokens += generator.step_tokens();
    }
  }
  return times;
}

BenchResult GenerateBench::run(const BenchShape& shape, bool by_kernel) {
  time_steps(shape);  // compiles, packs weights and records
  BenchResult result{.shape = shape,
                     .threads = static_cast<size_t>(threads_),
                     .times = time_steps(shape),
                     .prefill_flop = {0, 0},
                     .decode_read = {0, 0}};
  result.decode_step_s = median(result.times.decode_s);
  const auto sizes = session_.bucket(shape.batch, shape.batch);
  const StepCost cost = cost_of(session_.prepare(sizes, passes::DecodeResult::tokens), sizes.tokens);
  const double ranks = setup_.ranks;
  const double kept = static_cast<double>(session_.pool().layout().page_bytes()) /
                      static_cast<double>(setup_.page_tokens) *
                      static_cast<double>(shape.batch * (shape.prompt + shape.fresh / 2));
  result.decode_bytes = ranks * (cost.bytes + kept);
  result.decode_launches = cost.launches;
  result.decode_meetings = result.times.meetings;
  if (products_.per_s == 0 && !cost.meets_codes)
    products_ = product_ceiling({setup_.device, threads_, setup_.ranks}, setup_.precision);
  result.prefill_flop = {ranks * static_cast<double>(result.times.prefill_tokens) * cost.token_flop,
                         result.times.prefill_s, products_};
  result.decode_read = {
      result.decode_bytes, result.decode_step_s,
      read_ceiling({setup_.device, threads_, setup_.ranks}, static_cast<int64_t>(result.decode_bytes))};
  if (by_kernel) {
    result.chunk_kernels = time_chunk(shape);
    result.decode_kernels = time_decoding(shape);
  }
  return result;
}

}  // namespace trireme::cli
