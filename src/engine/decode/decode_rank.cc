// The part of a decoding session that owns a device: pages, programs by size, results on their way.
#include "engine/decode/decode_rank.h"

#include <algorithm>

#include "base/files/file.h"
#include "base/machine/cpu_info.h"
#include "passes/lists/lists.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using passes::DecodeResult;
using tensor::Tensor;

/// Where in a result's memory, in bytes, stands what: tokens first, so that numbers of 64 bits are aligned.
struct DrawnPlaces {
  int64_t likeliest, log_probabilities, likeliest_logarithms, wanted_logarithms, bytes;

  DrawnPlaces(int64_t sequences, const passes::DecodeGraph& form) {
    constexpr auto kIdBytes = static_cast<int64_t>(sizeof(int64_t));
    constexpr auto kLogBytes = static_cast<int64_t>(sizeof(float));
    likeliest = sequences * kIdBytes;
    log_probabilities = likeliest + sequences * passes::listed_tokens(form) * kIdBytes;
    likeliest_logarithms = log_probabilities + sequences * kLogBytes;
    wanted_logarithms = likeliest_logarithms + sequences * passes::listed_tokens(form) * kLogBytes;
    bytes = wanted_logarithms + sequences * kLogBytes;
  }
};

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
      most_sequences_(rounded_size(options.max_sequences)),
      compiled_(options.max_programs) {
  if (mesh != nullptr) part_.emplace(model_->strategy(), mesh->world().rank());
  pool_ = std::make_unique<KvPool>(*device_, kv_layout(*model_), pages);
  if (form_.adapters.slots > 0)
    adapters_ = std::make_unique<AdapterStates>(*device_, form_.adapters, *stream_);
  seen_ = std::make_unique<SeenCounts>(*device_, *stream_,
                                       most_sequences_ * (options.counts_ahead ? 1 + SeenCounts::kSlots : 1),
                                       form_.vocabulary);
  passes::set_pages(form_, pages);
  drawn_ =
      std::make_unique<runtime::LateResults>(*device_, threads_, DrawnPlaces(most_sequences_, form_).bytes);
}

DecodeRank::~DecodeRank() {
  try {
    finish();
  } catch (const base::Error&) {
    // whoever collects the step is told; here nothing may stay under way
  }
}

void DecodeRank::use_adapter(const LoadedAdapter& adapter) {
  base::check(adapters_ != nullptr, "an adapter for a model without room");
  adapters_->use(adapter, *stream_);
}

std::vector<void*> DecodeRank::states_of(const compile::Program& program) {
  std::vector<void*> states;
  for (const compile::SlotId id : program.states) {
    const std::string& name = program.slot(id).name;
    if (name == passes::kSeenTokens) states.push_back(seen_->memory());
    if (void* adapters = adapters_ ? adapters_->find(name) : nullptr) states.push_back(adapters);
    for (size_t i = 0; i < form_.layers.size(); ++i) {
      if (name == passes::key_pages(i)) states.push_back(pool_->keys(i));
      if (name == passes::value_pages(i)) states.push_back(pool_->values(i));
    }
  }
  base::check(states.size() == program.states.size(), "a decoding program has states of its own");
  return states;
}

std::vector<tensor::Dims> DecodeRank::operand_shapes(DecodeResult result, const DecodeBucket& b) const {
  const int64_t n = b.tokens, s = b.sequences;
  std::vector<tensor::Dims> shapes{{1, n}, {1, n}, {n}, {s, form_.options.most_pages}, {s}, {s + 1}, {s}};
  if (form_.adapters.slots > 0) shapes.push_back({n});
  if (result == DecodeResult::logits) return shapes;
  const bool has_penalties = passes::includes(result, DecodeResult::penalized);
  shapes.insert(shapes.end(), {{most_sequences_}, {n}, {s, has_penalties ? 7 : 4}, {s, 2}});
  if (has_penalties) shapes.push_back({s});
  if (passes::includes(result, DecodeResult::edited)) {
    const int64_t words = (form_.vocabulary + 31) / 32;
    shapes.insert(shapes.end(), {{s, words}, {s, passes::kMostBiases}, {s, passes::kMostBiases}});
  }
  if (passes::includes(result, DecodeResult::listed)) shapes.push_back({s, 1});
  return shapes;
}

std::shared_ptr<DecodeRank::Compiled> DecodeRank::build(const Key& key) {
  if (key.result != DecodeResult::logits && !draws_.contains(key.result))
    draws_.emplace(key.result, passes::draw_form(form_, key.result, most_sequences_, seen_->places()));
  const ir::Graph& graph = key.result == DecodeResult::logits ? form_.graph : draws_.at(key.result);
  const auto shapes = operand_shapes(key.result, key.bucket);
  ir::Graph bound = passes::bind_shapes(graph, shapes);
  if (part_) {
    bound = part_->of(std::move(bound), &model_->placed()).graph;
    const bool is_cpu = device_->kind() == tensor::DeviceKind::cpu;
    const bool is_first = is_cpu && part_->hold_packed(bound, model_->packs(), threads_.size());
    // What was cut or packed is not read again; what is read where it lies comes back.
    for (const auto& file : model_->files()) {
      if (is_first) file->release_pages();
    }
  }
  const lower::InferenceTarget target{.compile = {.on = device_->kind(),
                                                  .device = device_.get(),
                                                  .host_fallback = options_.host_fallback,
                                                  .threads = threads_.size()},
                                      .passes = {.off = {"projections"}},
                                      .strategy = model_->strategy()};
  auto made = std::make_shared<Compiled>();
  made->program = lower::bind_weights(
      lower::lower_inference(std::move(bound), target, model_->packs(), graph).program, model_->packs());
  runtime::DeviceBinding on = on_;
  if (on.device != nullptr && key.result != DecodeResult::logits) {
    for (const size_t input : passes::inputs_of(key.result, form_.adapters.slots > 0))
      on.inputs_there.push_back(input == passes::kDrawChosen);
    on.outputs_there.assign(graph.outputs().size(), true);
  }
  made->executor = std::make_unique<runtime::Executor>(made->program, states_of(*made->program), mesh_, on);
  return made;
}

std::shared_ptr<DecodeRank::Compiled> DecodeRank::compiled(const Key& key) {
  std::shared_ptr<Compiled> found = compiled_.find(key, [&] {
    finish();  // making a program moves memory that what is under way may read
    return std::make_unique<std::shared_ptr<Compiled>>(build(key));
  });
  const int64_t bytes = found->executor->arena_bytes();
  if (bytes > arena_.bytes()) finish();
  void* arena = arena_.reserve(bytes);
  if (found->arena != arena) found->executor->bind_arena(arena);
  found->arena = arena;
  return found;
}

/// A rank that made a program by itself would wait for others that do not come.
std::shared_ptr<DecodeRank::Compiled> DecodeRank::prepared(const Key& key) {
  base::check(compiled_.peek(key) != nullptr, "a step of ", key.bucket.tokens, " tokens in ",
              key.bucket.sequences, " sequences was not prepared on this rank");
  return compiled(key);
}

const compile::Program* DecodeRank::program(DecodeResult result, const DecodeBucket& bucket) const {
  const std::shared_ptr<Compiled>* found = compiled_.peek({result, bucket});
  return found == nullptr ? nullptr : (*found)->program.get();
}

void DecodeRank::run(const DecodeBucket& bucket, const std::vector<Tensor>& inputs, Tensor* logits,
                     runtime::Trace* trace) {
  const std::shared_ptr<Compiled> program = prepared({DecodeResult::logits, bucket});
  finish();
  const void* in[passes::kDecodeInputs];
  size_t count = 0;
  for (size_t i = 0; i < passes::kDecodeInputs; ++i) {
    if (i != passes::kDecodeAdapters || form_.adapters.slots > 0) in[count++] = inputs[i].raw();
  }
  if (logits == nullptr && !unread_.defined())
    unread_ = Tensor::empty(tensor::DType::f32, {most_sequences_, form_.vocabulary});
  void* out[] = {logits != nullptr ? logits->mutable_raw() : unread_.mutable_raw()};
  program->executor->run(in, out, *stream_, trace);
}

void DecodeRank::launch(DecodeResult result, const DecodeBucket& bucket, const std::vector<Tensor>& inputs,
                        size_t slot) {
  const std::shared_ptr<Compiled> program = prepared({result, bucket});
  const void* in[passes::kDrawInputs];
  size_t count = 0;
  for (size_t i : passes::inputs_of(result, form_.adapters.slots > 0))
    in[count++] = i == passes::kDrawChosen ? drawn_->there(1 - slot) : inputs[i].raw();
  const DrawnPlaces at(most_sequences_, form_);
  std::byte* to = drawn_->there(slot);
  void* out[] = {to, to + at.log_probabilities, to + at.likeliest, to + at.likeliest_logarithms,
                 to + at.wanted_logarithms};
  program->executor->launch(in, out, *stream_, slot);
  drawn_->mark(slot, *stream_);
  launched_[slot] = program;
}

DecodeRank::Drawn DecodeRank::collect(size_t slot) {
  const std::byte* from = drawn_->fetch(slot);
  if (launched_[slot] != nullptr) launched_[slot]->executor->check();
  const DrawnPlaces at(most_sequences_, form_);
  return {reinterpret_cast<const int64_t*>(from), reinterpret_cast<const float*>(from + at.log_probabilities),
          reinterpret_cast<const int64_t*>(from + at.likeliest),
          reinterpret_cast<const float*>(from + at.likeliest_logarithms),
          reinterpret_cast<const float*>(from + at.wanted_logarithms)};
}

std::string DecodeRank::host_operators() const {
  std::string names;
  compiled_.for_each([&](const Key&, const std::shared_ptr<Compiled>& program) {
    if (names.empty()) names = program->program->host_operators();
  });
  return names;
}

}  // namespace trireme::engine
