// Times single operators, which run as small programs on a device with random operands too large for its
// caches.
#include "runtime/device_speed.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "compile/program.h"
#include "ops/table.h"
#include "tensor/half.h"

namespace trireme::runtime {
namespace {

using compile::SlotId;
using compile::SlotKind;
using tensor::Dims;
using tensor::DType;
using Clock = std::chrono::steady_clock;

struct Operand {
  DType dtype = DType::f32;
  Dims dims;
  int64_t below = 0;      ///< range of integers, [0, below)
  bool is_state = false;  ///< written in place
};

struct Case {
  std::string op;
  std::vector<Operand> in;
  ir::Attrs attrs = {};
  size_t results = 1;
};

/// Random content: normally distributed floats, integers below the bound, otherwise zeros. Repeats a block.
std::vector<std::byte> content(const Operand& o) {
  constexpr int64_t kBlock = 1 << 20;
  const int64_t count = tensor::element_count(o.dims);
  std::vector<std::byte> bytes(static_cast<size_t>(tensor::bytes_of(o.dtype, count)));
  const int64_t width = tensor::bytes_of(o.dtype, 1);
  const int64_t drawn = std::min(count, kBlock);
  for (int64_t i = 0; i < drawn; ++i) {
    const float u = base::uniform_f32(base::philox_block(7, 0, static_cast<uint64_t>(i))[0]);
    std::byte* at = bytes.data() + i * width;
    const auto put = [&](auto value) { std::memcpy(at, &value, sizeof(value)); };
    const float number = 2 * u - 1;
    switch (o.dtype) {
      case DType::f32: put(number); break;
      case DType::f16: put(tensor::Half(number)); break;
      case DType::bf16: put(tensor::BFloat16(number)); break;
      case DType::i64:
        put(static_cast<int64_t>(static_cast<double>(u) * static_cast<double>(o.below)));
        break;
      // Codes from 2^-3 to 15 with both signs.
      case DType::f8e4m3fn:
        put(static_cast<uint8_t>((i % 2 << 7) + 0x20 + static_cast<int>(63 * u) % 0x38));
        break;
      default: put(uint8_t{0}); break;
    }
  }
  for (int64_t i = drawn; i < count; i += drawn) {
    const int64_t run = std::min(drawn, count - i);
    std::memcpy(bytes.data() + i * width, bytes.data(), static_cast<size_t>(run * width));
  }
  return bytes;
}

ir::Graph graph_of(const Case& c) {
  ir::Graph graph;
  graph.name = c.op;
  std::vector<ir::ValueId> in;
  for (size_t i = 0; i < c.in.size(); ++i) {
    const tensor::TensorType type{c.in[i].dtype, tensor::Shape::of(c.in[i].dims)};
    const std::string name = base::concat("x", i);
    in.push_back(c.in[i].is_state ? graph.add_state(name, type) : graph.add_input(name, type));
  }
  const auto out = graph.add(ops::table().need(c.op), in, c.attrs, c.results, c.op);
  const bool updates = ops::table().need(c.op).schema.updates_state();
  for (size_t i = 0; i < out.size() && !updates; ++i) graph.add_output(out[i], base::concat("y", i));
  return graph;
}

/// A program with separate memory for everything, so that nothing is staged.
class Trial {
 public:
  Trial(tensor::Device& device, tensor::Stream& stream, const Case& c, int threads) : stream_(stream) {
    compile::CompileOptions options{.on = device.kind(), .threads = threads};
    options.device = &device;
    options.host_fallback = false;
    program_ = compile::compile(graph_of(c), options, packs_);
    at_.resize(program_.slots.size(), nullptr);
    arena_ = device.allocate(program_.memory.arena_bytes);
    size_t input = 0;
    for (size_t s = 0; s < program_.slots.size(); ++s) {
      const compile::Slot& slot = program_.slots[s];
      if (compile::index(slot.root) != s) continue;
      if (slot.kind == SlotKind::arena) {
        at_[s] = static_cast<std::byte*>(arena_.get()) + slot.offset;
        continue;
      }
      memory_.push_back(device.allocate(slot.bytes));
      at_[s] = memory_.back().get();
      if (slot.kind == SlotKind::input || slot.kind == SlotKind::state) upload(s, content(c.in[input++]));
      if (slot.kind == SlotKind::constant)
        upload(s, {slot.constant.raw(), slot.constant.raw() + slot.constant.bytes()});
    }
    if (stream.can_record()) {
      launch();  // allocations of the first launch are not recorded
      stream.synchronize();
      stream.begin_recording();
      launch();
      recording_ = stream.end_recording();
    }
  }

  const compile::Program& program() const { return program_; }
  void run() {
    if (recording_ != nullptr) {
      recording_->replay(stream_);
    } else {
      launch();
    }
  }

 private:
  void upload(size_t slot, const std::vector<std::byte>& bytes) {
    stream_.upload(at_[slot], bytes.data(), static_cast<int64_t>(bytes.size()));
    stream_.synchronize();
  }
  void* address(SlotId id) const {
    return id == compile::kNoSlot ? nullptr : at_[compile::index(program_.slot(id).root)];
  }
  void launch() {
    for (const compile::Step& step : program_.steps) {
      in_.clear();
      out_.clear();
      for (SlotId id : step.in) in_.push_back(address(id));
      for (SlotId id : step.out) out_.push_back(address(id));
      void* workspace = static_cast<std::byte*>(arena_.get()) + step.workspace_offset;
      step.bound.run({.in = in_.data(), .out = out_.data(), .workspace = workspace, .stream = stream_});
    }
  }

  tensor::Stream& stream_;
  base::SharedCache packs_;
  compile::Program program_;
  std::vector<std::shared_ptr<void>> memory_;
  std::shared_ptr<void> arena_;
  std::vector<void*> at_;
  std::vector<const void*> in_;
  std::vector<void*> out_;
  std::unique_ptr<tensor::Recording> recording_;
};

/// The median of the seconds per call of `run`, over rounds of several calls that together take about
/// `budget` seconds.
template <class Run>
double median_seconds(tensor::Stream& stream, double budget, const Run& run) {
  const auto timed = [&](int calls) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) run();
    stream.synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  };
  constexpr int kRounds = 7;
  timed(1);
  const double first = timed(1);
  const int calls = std::clamp(static_cast<int>(budget / kRounds / std::max(first, 1e-6)), 1, 1000);
  std::vector<double> rounds;
  for (int i = 0; i < (first > budget ? 1 : kRounds); ++i) rounds.push_back(timed(calls));
  std::nth_element(rounds.begin(), rounds.begin() + rounds.size() / 2, rounds.end());
  return rounds[rounds.size() / 2];
}

std::string shape_text(const Case& c) {
  std::string text;
  for (const Operand& o : c.in) {
    if (!text.empty()) text += " ";
    text += base::concat(tensor::to_string(o.dims), tensor::name_of(o.dtype));
  }
  if (c.results > 1) text += base::concat(", ", c.results, " results");
  return text;
}

OpSpeed measure(tensor::Device& device, base::ThreadPool& pool, const Case& c, double seconds) {
  OpSpeed speed{.op = c.op, .kernel = {}, .shape = shape_text(c)};
  try {
    const std::unique_ptr<tensor::Stream> stream = device.open_stream(pool);
    Trial trial(device, *stream, c, pool.size());
    for (const compile::Step& step : trial.program().steps) {
      if (!speed.kernel.empty()) speed.kernel += " ";
      speed.kernel += step.kernel;
    }
    speed.seconds = median_seconds(*stream, seconds, [&] { trial.run(); });
    const ir::Graph graph = graph_of(c);
    const ir::Node& node = graph.nodes()[0];
    const ir::Cost cost = ir::cost_of(node.op->schema, graph.view(node));
    speed.gbytes_s = cost.bytes / speed.seconds / 1e9;
    speed.tflop_s = cost.flop / speed.seconds / 1e12;
  } catch (const base::Error& e) {
    speed.refused = e.message();
  }
  return speed;
}

/// n times scale, rounded to steps of 64, at least 64.
int64_t scaled(int64_t n, double scale) {
  return std::max<int64_t>(64, static_cast<int64_t>(static_cast<double>(n) * scale) / 64 * 64);
}

/// Rows of activations for 16 Ki tokens with width 2048, as in a GPT with 1.3 billion parameters.
std::vector<Case> memory_cases(double scale, DType t) {
  const int64_t rows = scaled(16384, scale), width = 2048, vocabulary = 50304;
  const Operand x{t, {rows, width}}, row{t, {width}}, weight{DType::f32, {width}};
  const int64_t some = scaled(4096, scale);
  std::vector<Case> cases = {
      {"add", {x, x}},
      {"gelu", {x}},
      {"softmax", {{t, {rows, width}}}},
      {"layer_norm", {x, row, row}},
      {"rms_norm", {x, row}},
      {"transpose", {x}, {{"perm", std::vector<int64_t>{1, 0}}}},
      {"reduce_sum", {x}},
      {"gather", {{t, {vocabulary, width}}, {DType::i64, {rows}, vocabulary}}},
      {"cross_entropy", {{t, {some, vocabulary}}, {DType::i64, {some}, vocabulary}}, {}, 4},
      {"rotary_embedding", {{t, {8, 16, rows / 8, 128}}, {t, {8, rows / 8, 64}}, {t, {8, rows / 8, 64}}}},
  };
  return cases;
}

std::vector<Case> math_cases(double scale, DType t) {
  const int64_t tokens = scaled(16384, scale), width = 2048, head = 128;
  const int64_t images = std::max<int64_t>(1, scaled(64, scale) / (scale < 1 ? 64 : 1));
  return {
      {"linear", {{t, {tokens, width}}, {t, {width, 3 * width}}, {t, {3 * width}}}},
      {"linear",
       {{t, {tokens, width}}, {t, {width, 4 * width}}, {t, {4 * width}}},
       {{"activation", std::string("gelu_tanh")}}},
      {"matmul", {{t, {tokens, 4 * width}}, {t, {4 * width, width}}}},
      {"attention_qkv",
       {{t, {std::max<int64_t>(1, tokens / 2048), std::min<int64_t>(tokens, 2048), 3 * width}}},
       {{"heads", width / head}, {"is_causal", int64_t{1}}},
       2},
      {"conv_nhwc",
       {{t, {images, 56, 56, 64}}, {t, {64, 64, 3, 3}}},
       {{"pads", std::vector<int64_t>{1, 1, 1, 1}}}},
  };
}

/// Training forms of a product and its GELU on a device: the argument is kept, the gradient of GELU is fused
/// into a product, and gradients of weight and bias are f32.
std::vector<Case> training_cases(double scale, DType t) {
  const int64_t tokens = scaled(16384, scale), width = 2048;
  const ir::Attrs gelu{{"activation", std::string("gelu_tanh")}};
  const Operand x{t, {tokens, width}}, wide{t, {tokens, 4 * width}}, bias{t, {4 * width}};
  return {{"linear", {x, {t, {width, 4 * width}}, bias}, gelu, 2},
          {"linear_grad_x", {x, {t, {4 * width, width}}, wide}, gelu},
          {"linear_grad_w", {x, wide}, {{"wide", int64_t{1}}}, 2}};
}

/// Operators that precision fp8 adds: quantizers of activations, and a product whose speed is given relative
/// to the 16-bit peak.
std::vector<Case> float8_cases(double scale, DType t) {
  const int64_t tokens = scaled(16384, scale), width = 2048, wide = 4 * width;
  const Operand x{t, {tokens, width}}, bias{t, {wide}};
  const auto codes = [](int64_t rows, int64_t k) { return Operand{DType::f8e4m3fn, {rows, k}}; };
  const auto scales = [](int64_t rows) { return Operand{DType::f32, {rows}}; };
  return {{"float8_rows", {x}, {}, 2},
          {"float8_both", {x}, {}, 4},
          {"float8_product",
           {codes(tokens, width), scales(tokens), codes(wide, width), scales(wide), bias},
           {{"type", std::string(tensor::name_of(t))}}}};
}

/// The largest product in a layer of a Llama with 8 billion parameters, for the next tokens of a few
/// sequences: limited by reading its weight.
std::vector<Case> decode_cases(double scale, DType t) {
  std::vector<Case> cases;
  for (const int64_t batch : {1, 8, 64})
    cases.push_back({"matmul", {{t, {batch, scaled(4096, scale)}}, {t, {scaled(4096, scale), 14336}}}});
  return cases;
}

std::vector<Case> update_cases(double scale) {
  const Operand state{DType::f32, {scaled(8192, scale), 8192}, 0, true};
  Operand grad = state;
  grad.is_state = false;
  const Operand lr{DType::f32, {}}, step{DType::i64, {}, 10}, skip{DType::boolean, {}};
  return {{"adam_update", {lr, step, lr, skip, state, grad, state, state}, {}, 3}};
}

}  // namespace

double Ceilings::tflop_s(DType dtype) const {
  for (const auto& [type, rate] : product_tflop_s) {
    if (type == dtype) return rate;
  }
  return 0;
}

Ceilings measure_ceilings(tensor::Device& device, base::ThreadPool& pool, const SpeedOptions& options) {
  Ceilings ceilings;
  const std::unique_ptr<tensor::Stream> stream = device.open_stream(pool);
  const int64_t bytes = scaled(int64_t{1} << 30, options.scale);
  const auto from = device.allocate(bytes), to = device.allocate(bytes);
  const std::vector<std::byte> image = content({DType::f32, {bytes / 4}});
  stream->upload(from.get(), image.data(), bytes);
  const double copy =
      median_seconds(*stream, options.seconds, [&] { stream->copy(to.get(), from.get(), bytes); });
  ceilings.copy_gbytes_s = 2.0 * static_cast<double>(bytes) / copy / 1e9;
  const int64_t n = scaled(8192, options.scale);
  for (const DType t : {DType::f32, DType::bf16, DType::f16}) {
    const OpSpeed speed = measure(device, pool, {"matmul", {{t, {n, n}}, {t, {n, n}}}}, options.seconds);
    if (speed.refused.empty()) ceilings.product_tflop_s.emplace_back(t, speed.tflop_s);
  }
  return ceilings;
}

std::vector<OpSpeed> measure_ops(tensor::Device& device, base::ThreadPool& pool, const Ceilings& ceilings,
                                 const SpeedOptions& options) {
  const DType t = device.kind() == tensor::DeviceKind::cpu ? DType::f32 : DType::bf16;
  std::vector<Case> cases = memory_cases(options.scale, t);
  for (Case& c : math_cases(options.scale, t)) cases.push_back(std::move(c));
  for (Case& c : decode_cases(options.scale, t)) cases.push_back(std::move(c));
  if (device.kind() != tensor::DeviceKind::cpu) {
    for (Case& c : training_cases(options.scale, t)) cases.push_back(std::move(c));
    for (Case& c : float8_cases(options.scale, t)) cases.push_back(std::move(c));
  }
  for (Case& c : update_cases(options.scale)) cases.push_back(std::move(c));
  std::vector<OpSpeed> speeds;
  for (const Case& c : cases) {
    if (c.op.find(options.only) == std::string::npos) continue;
    OpSpeed speed = measure(device, pool, c, options.seconds);
    const double rate = ceilings.tflop_s(c.in.back().dtype == DType::f32 ? DType::f32 : t);
    if (ceilings.copy_gbytes_s > 0) speed.percent = 100 * speed.gbytes_s / ceilings.copy_gbytes_s;
    if (rate > 0) speed.percent = std::max(speed.percent, 100 * speed.tflop_s / rate);
    if (options.each) options.each(speed);
    speeds.push_back(std::move(speed));
  }
  return speeds;
}

}  // namespace trireme::runtime
