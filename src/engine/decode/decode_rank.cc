// The part of a decoding session that owns a device: pages, programs by size, and results that are being
// copied.
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

/// Offsets of the parts of a result in bytes; tokens come first, so that 64-bit numbers are aligned.
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

/// The pipeline stage of this rank.
int stage_of(const comm::Mesh* mesh) {
  return mesh == nullptr ? 0 : mesh->coordinates()[mesh->shape().index_of("pp")];
}

/// This rank's part within its stage; ranks of a stage are numbered consecutively.
std::optional<lower::RankPart> part_of(const passes::Strategy& strategy, comm::Mesh* mesh) {
  if (strategy.tp == 1) return std::nullopt;
  passes::Strategy stage = strategy;
  stage.pp = 1;
  return lower::RankPart(std::move(stage), mesh->world().rank() % strategy.tp);
}

/// The number of places for counts of seen tokens: one for each sequence and, if draws after guesses are
/// counted, one for each row of the steps that may be running.
int64_t seen_places(const DecodeOptions& options) {
  const auto each = static_cast<int64_t>(options.counts_ahead ? 1 + SeenCounts::kSlots : 1);
  const int64_t sequences = rounded_size(options.max_sequences);
  return sequences > INT64_MAX / each ? INT64_MAX : sequences * each;
}

/// This rank's part of its stage's graph. Stages exchange which crossing values are partial sums.
ir::Graph split(ir::Graph bound, const DecodeModel& model, const passes::DecodeGraph& form,
                lower::RankPart& part, StageLinks* links) {
  if (links == nullptr) return part.of(std::move(bound), &model.placed()).graph;
  std::map<std::string, tensor::Shard> placed = model.placed();
  const tensor::MeshShape& mesh = part.place().mesh;
  const size_t axes[] = {mesh.index_of("tpr"), mesh.index_of("tp")};
  for (const std::string& name : form.arrives) placed[name] = {};  // until the previous stage says otherwise
  const std::vector<int64_t> heard = links->hear(form.arrives.size() * std::size(axes));
  for (size_t i = 0; i < heard.size(); ++i) {
    if (heard[i] != 0)
      placed[form.arrives[i / std::size(axes)]].set(axes[i % std::size(axes)],
                                                    tensor::Placement::partial_sum());
  }
  ir::Graph made = part.of(std::move(bound), &placed).graph;
  std::vector<int64_t> said;
  for (size_t i = 0; i < form.leaves.size(); ++i) {
    for (const size_t axis : axes) said.push_back(part.outputs()[i].on(axis).is_partial() ? 1 : 0);
  }
  links->tell(std::move(said));
  return made;
}

}  // namespace

int64_t rounded_size(int64_t n) {
  constexpr int64_t kLargestPower = int64_t{1} << 62;
  if (n > kLargestPower) return INT64_MAX;
  int64_t power = 1;
  while (power < n) power *= 2;
  return power >= 4 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

/// The program for one size, with the addresses of its operands.
struct DecodeRank::Compiled {
  std::shared_ptr<const compile::Program> program;
  std::unique_ptr<runtime::Executor> executor;
  void* arena = nullptr;
  /// By input: the number of a DecodeInput or DrawInput, or kDrawInputs + i for arriving value i.
  std::vector<size_t> operands;
  CrossingPlaces arriving, leaving;
  std::vector<const void*> in;  ///< addresses for a run, in the program's order
  std::vector<void*> out;
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
      steps_(model_->stage(stage_of(mesh)).form, pages, rounded_size(options.max_sequences),
             seen_places(options)),
      compiled_(options.max_programs) {
  group_.part = part_of(model_->strategy(), mesh);
  if (model_->stages() > 1) group_.links = std::make_unique<StageLinks>(*mesh, *device_, on_);
  pool_ = std::make_unique<KvPool>(*device_, model_->kv_layout(stage_of(mesh)), pages);
  if (form().adapters.slots > 0)
    adapters_ = std::make_unique<AdapterStates>(*device_, *model_, mesh == nullptr ? 0 : mesh->world().rank(),
                                                *stream_);
  seen_ = std::make_unique<SeenCounts>(*device_, *stream_, form().draws() ? steps_.seen_places() : 0,
                                       form().vocabulary);
  drawn_ = std::make_unique<runtime::LateResults>(*device_, threads_,
                                                  DrawnPlaces(steps_.most_sequences(), form()).bytes);
}

DecodeRank::~DecodeRank() {
  try {
    finish();
  } catch (const base::Error&) {
    // The caller who collects the step gets the error; here only nothing may remain running.
  }
}

void DecodeRank::write_adapter(size_t module, int64_t slot, const AdapterFactors& factors) {
  base::check(adapters_ != nullptr, "an adapter for a model without room");
  adapters_->write(model_->form().adapters.modules.at(module), slot, factors, *stream_);
}

std::vector<void*> DecodeRank::states_of(const compile::Program& program) {
  std::vector<void*> states;
  for (const compile::SlotId id : program.states) {
    const std::string& name = program.slot(id).name;
    if (name == passes::kSeenTokens) states.push_back(seen_->memory());
    if (void* adapters = adapters_ ? adapters_->find(name) : nullptr) states.push_back(adapters);
    for (size_t i = 0; i < form().layers.size(); ++i) {
      if (name == passes::key_pages(form().layers[i].number)) states.push_back(pool_->keys(i));
      if (name == passes::value_pages(form().layers[i].number)) states.push_back(pool_->values(i));
    }
  }
  base::check(states.size() == program.states.size(), "a decoding program has states of its own");
  return states;
}

std::shared_ptr<DecodeRank::Compiled> DecodeRank::build(const Key& key) {
  const ir::Graph& graph = steps_.graph(key.result);
  auto made = std::make_shared<Compiled>();
  made->operands = steps_.operands(graph);
  ir::Graph bound = passes::bind_shapes(
      graph, steps_.input_shapes(key.result, {key.bucket.tokens, key.bucket.sequences}, graph));
  if (group_.part) {
    bound = split(std::move(bound), *model_, form(), *group_.part, group_.links.get());
    const bool is_cpu = device_->kind() == tensor::DeviceKind::cpu;
    const bool is_first = is_cpu && group_.part->hold_packed(bound, model_->packs(), threads_.size());
    // Originals of split or packed weights are not read again; pages still needed are paged in again.
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
  made->program =
      lower::bind_weights(lower::lower_inference(std::move(bound), target, model_->packs(), graph).program,
                          {model_->packs(), &threads_});
  const compile::Program& p = *made->program;
  runtime::DeviceBinding on = on_;
  base::check(p.inputs.size() == made->operands.size(), "a decoding program has inputs of its own");
  const bool is_there = key.result != DecodeResult::logits || !form().draws();
  for (size_t i = 0; i < p.inputs.size(); ++i) {
    const bool arrives = made->operands[i] >= passes::kDrawInputs;
    if (arrives) made->arriving.add(p.slot(p.inputs[i]).bytes);
    on.inputs_there.push_back(arrives || made->operands[i] == passes::kDrawChosen);
  }
  for (size_t i = 0; i < p.outputs.size() && !form().draws(); ++i)
    made->leaving.add(p.slot(p.outputs[i]).bytes);
  on.outputs_there.assign(p.outputs.size(), is_there);
  made->in.resize(p.inputs.size());
  made->out.resize(p.outputs.size());
  made->executor = std::make_unique<runtime::Executor>(made->program, states_of(p), mesh_, on);
  return made;
}

std::shared_ptr<DecodeRank::Compiled> DecodeRank::compiled(const Key& key) {
  std::shared_ptr<Compiled> found = compiled_.find(key, [&] {
    finish();  // making a program moves memory that running steps may read
    return std::make_unique<std::shared_ptr<Compiled>>(build(key));
  });
  const int64_t bytes = found->executor->arena_bytes();
  if (bytes > arena_.bytes()) finish();
  void* arena = arena_.reserve(bytes);
  if (found->arena != arena) found->executor->bind_arena(arena);
  found->arena = arena;
  return found;
}

/// A rank may not make a program alone: its collectives would wait for the other ranks.
std::shared_ptr<DecodeRank::Compiled> DecodeRank::prepared(const Key& key) {
  base::check(compiled_.peek(key) != nullptr, "a step of ", key.bucket.tokens, " tokens in ",
              key.bucket.sequences, " sequences was not prepared on this rank");
  return compiled(key);
}

const compile::Program* DecodeRank::program(DecodeResult result, const DecodeBucket& bucket) const {
  const std::shared_ptr<Compiled>* found = compiled_.peek({result, bucket});
  return found == nullptr ? nullptr : (*found)->program.get();
}

/// Waits for values of the previous stage. Tokens drawn by the previous step are in the other slot.
void DecodeRank::take_inputs(Compiled& program, const std::vector<Tensor>& inputs, size_t slot) {
  const std::byte* arrived = group_.links == nullptr ? nullptr : group_.links->arrive(program.arriving.bytes);
  for (size_t i = 0; i < program.operands.size(); ++i) {
    const size_t operand = program.operands[i];
    if (operand >= passes::kDrawInputs) {
      program.in[i] = arrived + program.arriving.begins[operand - passes::kDrawInputs];
    } else {
      program.in[i] = operand == passes::kDrawChosen ? drawn_->there(1 - slot) : inputs[operand].raw();
    }
  }
  if (form().draws()) return;
  std::byte* to = group_.links->leaving(program.leaving.bytes);
  for (size_t i = 0; i < program.out.size(); ++i) program.out[i] = to + program.leaving.begins[i];
}

/// Sends the values that the next stage waits for.
void DecodeRank::leave(Compiled& program) {
  if (form().draws()) return;
  group_.links->leave(program.leaving.bytes, *stream_);
  program.executor->check();
}

void DecodeRank::run(const DecodeBucket& bucket, const std::vector<Tensor>& inputs, Tensor* logits,
                     runtime::Trace* trace) {
  const std::shared_ptr<Compiled> program = prepared({DecodeResult::logits, bucket});
  finish();
  take_inputs(*program, inputs, 0);
  const bool is_wanted_here = logits != nullptr && group_.links == nullptr;
  if (form().draws() && !is_wanted_here && !group_.unread.defined())
    group_.unread = Tensor::empty(tensor::DType::f32, {steps_.most_sequences(), form().vocabulary});
  if (form().draws()) program->out[0] = is_wanted_here ? logits->mutable_raw() : group_.unread.mutable_raw();
  program->executor->run(program->in, program->out, *stream_, trace);
  leave(*program);
  // Only the first rank of each stage exchanges results: the caller is on the first rank.
  if (group_.links == nullptr || mesh_->world().rank() % model_->strategy().tp != 0) return;
  const int64_t bytes = bucket.sequences * form().vocabulary * static_cast<int64_t>(sizeof(float));
  Tensor& at = logits != nullptr ? *logits : group_.unread;
  if (group_.links->is_first() || group_.links->is_last())
    group_.links->return_results({at.mutable_raw(), static_cast<size_t>(bytes)}, "logits");
}

void DecodeRank::launch(DecodeResult result, const DecodeBucket& bucket, const std::vector<Tensor>& inputs,
                        size_t slot) {
  const std::shared_ptr<Compiled> program = prepared({result, bucket});
  take_inputs(*program, inputs, slot);
  if (form().draws()) {
    const DrawnPlaces at(steps_.most_sequences(), form());
    std::byte* to = drawn_->there(slot);
    std::byte* const places[] = {to, to + at.log_probabilities, to + at.likeliest,
                                 to + at.likeliest_logarithms, to + at.wanted_logarithms};
    std::copy_n(places, program->out.size(), program->out.begin());
  }
  program->executor->launch(program->in, program->out, *stream_, slot);
  leave(*program);
  drawn_->mark(slot, *stream_);
  launched_[slot] = program;
  if (group_.links == nullptr) return;
  if (form().draws()) {
    finish();
    program->executor->check();
  }
  group_.links->return_drawn(*drawn_, slot, DrawnPlaces(steps_.most_sequences(), form()).bytes, *stream_);
}

DecodeRank::Drawn DecodeRank::collect(size_t slot) {
  const std::byte* from = drawn_->fetch(slot);
  if (launched_[slot] != nullptr) launched_[slot]->executor->check();
  const DrawnPlaces at(steps_.most_sequences(), form());
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
