// The part of a decoding session that owns a device: pages, programs by size, results on their way.
#include "engine/decode_rank.h"

#include <algorithm>

#include "base/machine/cpu_info.h"
#include "engine/rounded_weights.h"
#include "passes/lists/lists.h"
#include "passes/partition/collective_types.h"
#include "passes/partition/partition.h"
#include "passes/train/train.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using passes::DecodeResult;
using tensor::Tensor;

/// Shapes of a step's inputs, in their order.
std::vector<tensor::Dims> shapes_of(DecodeResult result, const DecodeBucket& b, int64_t most_pages,
                                    int64_t most_sequences) {
  const int64_t n = b.tokens, s = b.sequences;
  std::vector<tensor::Dims> shapes{{1, n}, {1, n}, {n}, {s, most_pages}, {s}, {s + 1}, {s}};
  if (result == DecodeResult::logits) return shapes;
  const bool has_penalties = result == DecodeResult::penalized;
  shapes.insert(shapes.end(), {{most_sequences}, {n}, {s, has_penalties ? 7 : 4}, {s, 2}});
  if (has_penalties) shapes.push_back({s});
  return shapes;
}

}  // namespace

KvLayout kv_layout(const DecodeModel& model) {
  const passes::DecodeGraph& form = model.form();
  const int64_t parts = model.strategy().mesh().extent("tp");
  KvLayout layout{.layers = {}, .type = form.options.page_type, .page_tokens = form.options.page_tokens};
  for (const passes::DecodeLayer& l : form.layers) layout.layers.push_back({l.kv_heads / parts, l.dim});
  return layout;
}

int64_t rounded_size(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power >= 4 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

/// One size's program with the addresses of its operands.
struct DecodeRank::Compiled {
  std::shared_ptr<const compile::Program> program;
  std::unique_ptr<runtime::Executor> executor;
  void* arena = nullptr;
  uint64_t last_used = 0;
};

DecodeRank::DecodeRank(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options, int64_t pages,
                       comm::Mesh* mesh)
    : model_(std::move(model)),
      options_(options),
      mesh_(mesh),
      threads_(options.threads > 0 ? options.threads : base::read_cpu_info().threads(), options.cpus),
      device_(runtime::open_device(options.device)),
      stream_(device_->open_stream(threads_)),
      on_(runtime::bind_device(*device_, threads_, model_->packs(), options.graphs, mesh)),
      arena_(*device_),
      form_(model_->form()),
      most_sequences_(rounded_size(options.max_sequences)) {
  pool_ = std::make_unique<KvPool>(*device_, kv_layout(*model_), pages);
  passes::set_pages(form_, pages);
  constexpr int64_t kDrawnBytes = sizeof(int64_t) + sizeof(float);
  drawn_ = std::make_unique<runtime::LateResults>(*device_, threads_, most_sequences_ * kDrawnBytes);
}

DecodeRank::~DecodeRank() {
  try {
    finish();
  } catch (const base::Error&) {
    // whoever collects the step is told; here nothing may stay under way
  }
}

int32_t* DecodeRank::seen() {
  if (seen_ == nullptr) {
    finish();
    seen_ = device_->allocate(most_sequences_ * form_.vocabulary * static_cast<int64_t>(sizeof(int32_t)));
  }
  return static_cast<int32_t*>(seen_.get());
}

void DecodeRank::set_seen(int64_t place, const std::vector<int32_t>& counts) {
  stream_->upload(seen() + place * form_.vocabulary, counts.data(),
                  form_.vocabulary * static_cast<int64_t>(sizeof(int32_t)));
  finish();
}

void DecodeRank::copy_seen(int64_t from, int64_t to) {
  if (seen_ == nullptr) return;
  stream_->copy(seen() + to * form_.vocabulary, seen() + from * form_.vocabulary,
                form_.vocabulary * static_cast<int64_t>(sizeof(int32_t)));
}

std::vector<void*> DecodeRank::states_of(const compile::Program& program) {
  std::vector<void*> states;
  for (const compile::SlotId id : program.states) {
    const std::string& name = program.slot(id).name;
    if (name == passes::kSeenTokens) states.push_back(seen());
    for (size_t i = 0; i < form_.layers.size(); ++i) {
      if (name == passes::key_pages(i)) states.push_back(pool_->keys(i));
      if (name == passes::value_pages(i)) states.push_back(pool_->values(i));
    }
  }
  base::check(states.size() == program.states.size(), "a decoding program has states of its own");
  return states;
}

/// This rank's part of a step. Weights are the same tensors in all programs: one copy, packed once.
ir::Graph DecodeRank::part_of(const ir::Graph& bound) {
  ir::Graph whole = bound;
  passes::run_passes(passes::forward_passes(), whole);
  whole.sort();
  ir::Graph local = passes::partition(
      whole, {.mesh = mesh_->shape(), .coordinates = mesh_->coordinates(), .placed = model_->placed()});
  passes::infer_shards(local);
  passes::fix_collective_order(local);
  for (size_t i = 0; i < local.values().size(); ++i) {
    ir::Value& v = local.value(ir::ValueId(static_cast<uint32_t>(i)));
    if (v.kind != ir::ValueKind::param || v.name.empty()) continue;
    const auto [at, is_new] = parts_.emplace(v.name, v.data);
    if (!is_new && at->second.type() == v.data.type()) v.data = at->second;
  }
  return local;
}

std::unique_ptr<DecodeRank::Compiled> DecodeRank::build(const Key& key) {
  if (key.result != DecodeResult::logits && !draws_.contains(key.result))
    draws_.emplace(key.result, passes::draw_form(form_, key.result, most_sequences_));
  const ir::Graph& graph = key.result == DecodeResult::logits ? form_.graph : draws_.at(key.result);
  const auto shapes = shapes_of(key.result, key.bucket, form_.options.most_pages, most_sequences_);
  ir::Graph bound = passes::bind_shapes(graph, shapes);
  if (mesh_ != nullptr) bound = part_of(bound);
  passes::run_passes(passes::bucket_passes(), bound, {.off = {"projections"}});
  const tensor::DeviceKind kind = device_->kind();
  lower_for_inference(bound, options_.precision, kind, model_->packs());
  const compile::CompileOptions how{.on = kind,
                                    .device = device_.get(),
                                    .host_fallback = options_.host_fallback,
                                    .threads = threads_.size()};
  auto made = std::make_unique<Compiled>();
  made->program = std::make_shared<compile::Program>(compile::compile(bound, how, model_->packs()));
  fill_read_weights(*made->program, model_->packs());
  runtime::DeviceBinding on = on_;
  if (on.device != nullptr && key.result != DecodeResult::logits) {
    on.inputs_there.assign(shapes.size(), false);
    on.inputs_there[passes::kDrawChosen] = true;
    on.outputs_there = {true, true};
  }
  made->executor = std::make_unique<runtime::Executor>(made->program, states_of(*made->program), mesh_, on);
  return made;
}

DecodeRank::Compiled& DecodeRank::compiled(const Key& key) {
  auto at = compiled_.find(key);
  if (at == compiled_.end()) {
    finish();  // making a program moves memory that what is under way may read
    auto made = build(key);
    if (compiled_.size() >= options_.max_programs) {
      const auto oldest = std::min_element(
          compiled_.begin(), compiled_.end(),
          [](const auto& a, const auto& b) { return a.second->last_used < b.second->last_used; });
      for (Compiled*& launched : launched_) launched = launched == oldest->second.get() ? nullptr : launched;
      compiled_.erase(oldest);
    }
    at = compiled_.emplace(key, std::move(made)).first;
  }
  Compiled& found = *at->second;
  found.last_used = ++clock_;
  const int64_t bytes = found.executor->arena_bytes();
  if (bytes > arena_.bytes()) finish();
  void* arena = arena_.reserve(bytes);
  if (found.arena != arena) found.executor->bind_arena(arena);
  found.arena = arena;
  return found;
}

const compile::Program& DecodeRank::prepare(DecodeResult result, const DecodeBucket& bucket) {
  return *compiled({result, bucket}).program;
}

void DecodeRank::run(const DecodeBucket& bucket, const std::vector<Tensor>& inputs, Tensor& logits,
                     runtime::Trace* trace) {
  Compiled& program = compiled({DecodeResult::logits, bucket});
  finish();
  const void* in[passes::kDecodeInputs];
  for (size_t i = 0; i < passes::kDecodeInputs; ++i) in[i] = inputs[i].raw();
  if (!is_first() && !unread_.defined()) unread_ = Tensor::empty(logits.dtype(), logits.dims());
  void* out[] = {is_first() ? logits.mutable_raw() : unread_.mutable_raw()};
  program.executor->run(in, out, *stream_, trace);
}

void DecodeRank::launch(DecodeResult result, const DecodeBucket& bucket, const std::vector<Tensor>& inputs,
                        size_t slot) {
  Compiled& program = compiled({result, bucket});
  const void* in[passes::kDrawInputs];
  for (size_t i = 0; i < passes::kDrawInputs; ++i) in[i] = inputs[i].raw();
  in[passes::kDrawChosen] = drawn_->there(1 - slot);
  std::byte* to = drawn_->there(slot);
  void* out[] = {to, to + most_sequences_ * static_cast<int64_t>(sizeof(int64_t))};
  program.executor->launch(in, out, *stream_, slot);
  drawn_->mark(slot, *stream_);
  launched_[slot] = &program;
}

DecodeRank::Drawn DecodeRank::collect(size_t slot) {
  const std::byte* from = drawn_->fetch(slot);
  if (launched_[slot] != nullptr) launched_[slot]->executor->check();
  const auto* tokens = reinterpret_cast<const int64_t*>(from);
  return {tokens, reinterpret_cast<const float*>(tokens + most_sequences_)};
}

std::string DecodeRank::host_operators() const {
  for (const auto& [key, program] : compiled_) {
    std::string names = program->program->host_operators();
    if (!names.empty()) return names;
  }
  return {};
}

}  // namespace trireme::engine
