// Times the steps of a decode session on random prompts and compares them with what the machine can reach.
#include "cli/generate_timing.h"

#include <algorithm>
#include <chrono>
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
  return json;
}

std::string BenchResult::text() const {
  return base::concat(
      "prefill  ", shape.batch, " x ", shape.prompt, " tokens, ", times.prefill_tokens, " computed in ",
      fixed(times.prefill_s, 3), " s: ", fixed(prefill_tokens_s(), 0), " tokens/s, ",
      prefill_flop.text(1e12, "TFLOP"), "\ndecode   ", fixed(decode_step_s * 1e3, 3), " ms a step of ",
      shape.batch, ": ", fixed(decode_tokens_s(), 1), " tokens/s, ", fixed(decode_bytes / 1e6, 1),
      " MB a step, ", decode_read.text(1e9, "GB"), ", ", decode_meetings, " meetings of the team\n");
}

GenerateBench::GenerateBench(engine::DecodeSession& session, BenchSetup setup)
    : session_(session),
      setup_(std::move(setup)),
      threads_(static_cast<int>(session.ranks().first().threads().size()) * setup_.ranks) {}

StepTimes GenerateBench::time_steps(const BenchShape& shape) {
  sched::TokenScheduler generator(session_);
  for (int64_t i = 0; i < shape.batch; ++i) {
    engine::GenerateRequest r{.max_tokens = shape.fresh, .sampling = setup_.sampling};
    if (!setup_.adapters.empty())
      r.adapter = setup_.adapters[static_cast<size_t>(i) % setup_.adapters.size()];
    base::Rng rng(static_cast<uint64_t>(setup_.sampling.seed), prompts_++);
    for (int64_t t = 0; t < shape.prompt; ++t)
      r.prompt.push_back(static_cast<int64_t>(rng.below(static_cast<uint64_t>(session_.vocabulary()))));
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

BenchResult GenerateBench::run(const BenchShape& shape) {
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
  return result;
}

}  // namespace trireme::cli
