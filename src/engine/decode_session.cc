// A language model that keeps its sequences: buckets, pages and the operands of a step.
#include "engine/decode_session.h"

#include <algorithm>

#include "base/cpu_info.h"
#include "base/memory.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using tensor::DType;
using tensor::Tensor;

passes::DecodeGraph decode_form(const ir::Graph& graph, const DecodeOptions& options) {
  passes::DecodeOptions o{.page_type = options.cache_type, .page_tokens = options.page_tokens};
  o.most_pages = (options.max_length + o.page_tokens - 1) / o.page_tokens;
  passes::DecodeGraph form = passes::decode_form(graph, o);
  passes::run_passes(passes::prepare_passes(), form.graph);
  return form;
}

KvLayout layout_of(const passes::DecodeGraph& form) {
  KvLayout layout{.layers = {}, .type = form.options.page_type, .page_tokens = form.options.page_tokens};
  for (const passes::DecodeLayer& l : form.layers) layout.layers.push_back({l.kv_heads, l.dim});
  return layout;
}

/// Pages for all sequences at their longest, or as many as the budget allows.
int64_t pages_of(const DecodeOptions& options, const KvLayout& layout, int64_t most_pages,
                 const tensor::Device& device) {
  const int64_t wanted = options.max_sequences * most_pages;
  const int64_t memory = device.memory_bytes() > 0 ? device.memory_bytes() : base::memory_limit_bytes();
  const int64_t budget = options.cache_bytes > 0
                             ? options.cache_bytes
                             : static_cast<int64_t>(static_cast<double>(memory) * options.cache_share);
  const int64_t fit = budget / layout.page_bytes();
  if (fit < 1) {
    base::fail(base::ErrorCode::exhausted, "keys and values have ", budget, " bytes, one page of ",
               layout.page_tokens, " tokens takes ", layout.page_bytes());
  }
  return std::min(wanted, fit);
}

/// The next of 1, 2, 3, 4, 6, 8, 12, 16, 24, ...: at most a third of a step is padding.
int64_t round_up(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power >= 4 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

}  // namespace

DecodeModel::DecodeModel(const ir::Graph& graph, const DecodeOptions& options)
    : form_(decode_form(graph, options)) {}

/// One bucket's program with the addresses of its operands.
struct DecodeSession::Compiled {
  std::shared_ptr<const compile::Program> program;
  std::unique_ptr<runtime::Executor> executor;
  void* arena = nullptr;
  uint64_t last_used = 0;
};

DecodeSession::DecodeSession(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options)
    : model_(std::move(model)),
      options_(options),
      threads_(options.threads > 0 ? options.threads : base::read_cpu_info().threads(), options.cpus),
      device_(runtime::open_device(options.device)),
      stream_(device_->open_stream(threads_)),
      on_(runtime::bind_device(*device_, threads_, model_->packs(), options.graphs)),
      arena_(*device_) {
  const passes::DecodeGraph& form = model_->form();
  base::require(options.max_sequences > 0 && options.max_tokens > 0, "a session of ", options.max_sequences,
                " sequences and ", options.max_tokens, " tokens a step");
  const int64_t most_pages = form.options.most_pages;
  max_length_ = most_pages * form.options.page_tokens;
  if (form.positions > 0) max_length_ = std::min(max_length_, form.positions);
  if (options.max_length > 0) max_length_ = std::min(max_length_, options.max_length);
  KvLayout layout = layout_of(form);
  const int64_t pages = pages_of(options, layout, most_pages, *device_);
  pool_ = std::make_unique<KvPool>(*device_, std::move(layout), pages);
  passes::DecodeGraph own = form;
  passes::set_pages(own, pages);
  graph_ = std::move(own.graph);
  sequences_.resize(static_cast<size_t>(options.max_sequences));
  for (Sequence& s : sequences_) s.pages.reserve(static_cast<size_t>(most_pages));
  const Bucket most = bucket(options.max_tokens, options.max_sequences);
  inputs_.resize(passes::kDecodeInputs);
  inputs_[passes::kDecodeIds] = Tensor::zeros(DType::i64, {most.tokens});
  inputs_[passes::kDecodePositions] = Tensor::zeros(DType::i64, {most.tokens});
  inputs_[passes::kDecodeSlots] = Tensor::zeros(DType::i32, {most.tokens});
  inputs_[passes::kDecodeTable] = Tensor::zeros(DType::i32, {most.sequences, most_pages});
  inputs_[passes::kDecodeLengths] = Tensor::zeros(DType::i32, {most.sequences});
  inputs_[passes::kDecodeStarts] = Tensor::zeros(DType::i32, {most.sequences + 1});
  inputs_[passes::kDecodeLast] = Tensor::zeros(DType::i64, {most.sequences});
  logits_ = Tensor::empty(DType::f32, {most.sequences, form.vocabulary});
}

DecodeSession::~DecodeSession() = default;

const DecodeSession::Sequence& DecodeSession::sequence(SequenceId id) const {
  base::check(
      id >= 0 && static_cast<size_t>(id) < sequences_.size() && sequences_[static_cast<size_t>(id)].is_open,
      "there is no open sequence ", id);
  return sequences_[static_cast<size_t>(id)];
}

SequenceId DecodeSession::open() {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].is_open) continue;
    sequences_[i].is_open = true;
    sequences_[i].length = 0;
    return static_cast<SequenceId>(i);
  }
  base::fail(base::ErrorCode::exhausted, "no more sequences can be open at a time than ", sequences_.size());
}

SequenceId DecodeSession::fork(SequenceId from) {
  const SequenceId id = open();
  const Sequence& old = sequence(from);
  Sequence& made = sequence(id);
  const size_t full = static_cast<size_t>(old.length / options_.page_tokens);
  try {
    for (size_t i = 0; i < old.pages.size(); ++i) {
      made.pages.push_back(i < full ? old.pages[i] : pool_->take());
      if (i < full) pool_->share(old.pages[i]);
      if (i >= full) pool_->copy_page(old.pages[i], made.pages[i], *stream_);
    }
  } catch (const base::Error&) {
    close(id);
    throw;
  }
  made.length = old.length;
  return id;
}

void DecodeSession::close(SequenceId id) {
  Sequence& s = sequence(id);
  for (int32_t page : s.pages) pool_->release(page);
  s.pages.clear();
  s.is_open = false;
}

int64_t DecodeSession::pages_for(SequenceId id, int64_t tokens) const {
  const Sequence& s = sequence(id);
  const int64_t page = options_.page_tokens;
  return (s.length + tokens + page - 1) / page - static_cast<int64_t>(s.pages.size());
}

DecodeSession::Bucket DecodeSession::bucket(int64_t tokens, int64_t sequences) const {
  return {round_up(tokens), round_up(sequences)};
}

void DecodeSession::check(std::span<const DecodePiece> pieces) const {
  int64_t tokens = 0, pages = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const DecodePiece& piece = pieces[i];
    const auto fresh = static_cast<int64_t>(piece.tokens.size());
    const Sequence& s = sequence(piece.sequence);
    if (fresh == 0) base::fail_invalid("a piece of no tokens of sequence ", piece.sequence);
    for (size_t j = 0; j < i; ++j) {
      if (pieces[j].sequence == piece.sequence)
        base::fail_invalid("two pieces of one step are of sequence ", piece.sequence);
    }
    if (s.length + fresh > max_length_) {
      base::fail_invalid("a sequence becomes longer than the model and the session allow; tokens: ",
                         s.length + fresh, ", at most ", max_length_);
    }
    for (int64_t id : piece.tokens) {
      if (id < 0 || id >= vocabulary())
        base::fail_invalid("token ", id, " is not in the vocabulary of ", vocabulary());
    }
    tokens += fresh;
    pages += pages_for(piece.sequence, fresh);
  }
  if (pieces.empty() || tokens > options_.max_tokens)
    base::fail_invalid("a step takes 1 to ", options_.max_tokens, " tokens, not ", tokens);
  if (pages > pool_->free_pages()) {
    base::fail(base::ErrorCode::exhausted, "keys and values of this step need ", pages, " pages, free are ",
               pool_->free_pages(), " of ", pool_->pages());
  }
}

void DecodeSession::take_pages(std::span<const DecodePiece> pieces) {
  for (const DecodePiece& piece : pieces) {
    const int64_t more = pages_for(piece.sequence, static_cast<int64_t>(piece.tokens.size()));
    for (int64_t i = 0; i < more; ++i) sequence(piece.sequence).pages.push_back(pool_->take());
  }
}

void DecodeSession::fill(std::span<const DecodePiece> pieces, const Bucket& bucket) {
  auto* ids = inputs_[passes::kDecodeIds].mutable_data<int64_t>().data();
  auto* positions = inputs_[passes::kDecodePositions].mutable_data<int64_t>().data();
  auto* slots = inputs_[passes::kDecodeSlots].mutable_data<int32_t>().data();
  auto* table = inputs_[passes::kDecodeTable].mutable_data<int32_t>().data();
  auto* lengths = inputs_[passes::kDecodeLengths].mutable_data<int32_t>().data();
  auto* starts = inputs_[passes::kDecodeStarts].mutable_data<int32_t>().data();
  auto* last = inputs_[passes::kDecodeLast].mutable_data<int64_t>().data();
  const int64_t most_pages = inputs_[passes::kDecodeTable].dims()[1], page_tokens = options_.page_tokens;
  int64_t token = 0, row = 0;
  starts[0] = 0;
  for (const DecodePiece& piece : pieces) {
    const Sequence& s = sequence(piece.sequence);
    int64_t position = s.length;
    for (int64_t id : piece.tokens) {
      const int32_t page = s.pages[static_cast<size_t>(position / page_tokens)];
      ids[token] = id;
      positions[token] = position;
      slots[token++] = static_cast<int32_t>(page * page_tokens + position % page_tokens);
      ++position;
    }
    std::copy(s.pages.begin(), s.pages.end(), table + row * most_pages);
    lengths[row] = static_cast<int32_t>(position);
    last[row] = token - 1;
    starts[++row] = static_cast<int32_t>(token);
  }
  const auto used = static_cast<int32_t>(token);
  for (; token < bucket.tokens; ++token) ids[token] = positions[token] = 0, slots[token] = -1;
  for (; row < bucket.sequences; ++row) {
    lengths[row] = 0;
    last[row] = 0;
    starts[row + 1] = used;
  }
}

DecodeSession::Compiled& DecodeSession::compiled(const Bucket& bucket) {
  auto at = compiled_.find(bucket);
  if (at == compiled_.end()) {
    const int64_t n = bucket.tokens, s = bucket.sequences;
    const int64_t most_pages = inputs_[passes::kDecodeTable].dims()[1];
    ir::Graph bound = passes::bind_shapes(graph_, {{1, n}, {1, n}, {n}, {s, most_pages}, {s}, {s + 1}, {s}});
    passes::run_passes(passes::bucket_passes(), bound);
    const tensor::DeviceKind kind = runtime::kind_of_device(options_.device);
    lower_for_inference(bound, options_.precision, kind, model_->packs());
    const compile::CompileOptions how{.on = kind,
                                      .device = device_.get(),
                                      .host_fallback = options_.host_fallback,
                                      .threads = threads_.size()};
    auto made = std::make_unique<Compiled>();
    made->program = std::make_shared<compile::Program>(compile::compile(bound, how, model_->packs()));
    std::vector<void*> states;
    for (compile::SlotId id : made->program->states) {
      const std::string& name = made->program->slot(id).name;
      for (size_t i = 0; i < model_->form().layers.size(); ++i) {
        if (name == passes::key_pages(i)) states.push_back(pool_->keys(i));
        if (name == passes::value_pages(i)) states.push_back(pool_->values(i));
      }
    }
    base::check(states.size() == made->program->states.size(), "a decoding program has states of its own");
    made->executor = std::make_unique<runtime::Executor>(made->program, std::move(states), nullptr, on_);
    if (compiled_.size() >= options_.max_programs) {
      compiled_.erase(std::min_element(compiled_.begin(), compiled_.end(), [](const auto& a, const auto& b) {
        return a.second->last_used < b.second->last_used;
      }));
    }
    at = compiled_.emplace(bucket, std::move(made)).first;
  }
  Compiled& found = *at->second;
  found.last_used = ++clock_;
  void* arena = arena_.reserve(found.executor->arena_bytes());
  if (found.arena != arena) found.executor->bind_arena(arena);
  found.arena = arena;
  return found;
}

const compile::Program& DecodeSession::prepare(const Bucket& bucket) { return *compiled(bucket).program; }

std::span<const float> DecodeSession::step(std::span<const DecodePiece> pieces, runtime::Trace* trace) {
  check(pieces);
  int64_t tokens = 0;
  for (const DecodePiece& piece : pieces) tokens += static_cast<int64_t>(piece.tokens.size());
  const Bucket size = bucket(tokens, static_cast<int64_t>(pieces.size()));
  Compiled& program = compiled(size);
  take_pages(pieces);
  fill(pieces, size);
  const void* in[passes::kDecodeInputs];
  for (size_t i = 0; i < passes::kDecodeInputs; ++i) in[i] = inputs_[i].raw();
  void* out[] = {logits_.mutable_raw()};
  program.executor->run(in, out, *stream_, trace);
  for (const DecodePiece& piece : pieces)
    sequence(piece.sequence).length += static_cast<int64_t>(piece.tokens.size());
  return logits_.data<float>().first(pieces.size() * static_cast<size_t>(vocabulary()));
}

std::string DecodeSession::host_operators() const {
  for (const auto& [bucket, program] : compiled_) {
    std::string names = program->program->host_operators();
    if (!names.empty()) return names;
  }
  return {};
}

}  // namespace trireme::engine
