// The ranks of one decoding session.
#include "engine/decode/decode_ranks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>

#include "base/files/file.h"
#include "base/machine/memory.h"
#include "runtime/open_device.h"

namespace trireme::engine {

/// What the first rank tells the others to do.
enum class DecodeCommand : int64_t {
  end,
  prepare,
  run,
  launch,
  write_adapter,
  copy_page,
  set_seen,
  copy_seen,
  see_ahead,
  read_page,
  write_page
};

namespace {

using passes::DecodeResult;
using tensor::DType;
using tensor::Tensor;

/// The options of one of several ranks on this machine: its device and its share of the threads.
DecodeOptions options_of(const DecodeOptions& all, int rank, int ranks) {
  DecodeOptions own = all;
  ThreadShare share = share_of(all.threads, all.cpus, rank, ranks);
  own.threads = share.threads;
  own.cpus = std::move(share.cpus);
  own.device = all.mesh != nullptr || all.service != nullptr
                   ? runtime::device_of_rank(all.device)
                   : runtime::device_of_rank(all.device, {rank, ranks});
  return own;
}

/// The number of pages for all sequences at full length, or as many as this stage's ranks have memory for.
/// `ranks`: the number of ranks that share this machine's memory.
int64_t pages_of(const DecodeOptions& options, const DecodeModel& model, int stage, int ranks) {
  const KvLayout layout = model.kv_layout(stage);
  const int64_t most = options.max_sequences * model.form().options.most_pages;
  if (layout.layers.empty()) return most;
  const int64_t of_device = runtime::open_device(options.device)->memory_bytes();
  const int64_t memory = of_device > 0 ? of_device : base::memory_limit_bytes() / ranks;
  const int64_t budget = options.cache_bytes > 0
                             ? options.cache_bytes
                             : static_cast<int64_t>(static_cast<double>(memory) * options.cache_share);
  const int64_t fit = budget / layout.page_bytes();
  if (fit < 1) {
    base::fail(base::ErrorCode::exhausted, "keys and values have ", budget, " bytes, one page of ",
               layout.page_tokens, " tokens takes ", layout.page_bytes());
  }
  return std::min(most, fit);
}

/// This rank's part, with as many pages as all ranks can hold. Collective. `here`: ranks that live in this
/// process, 1 of a job.
std::unique_ptr<DecodeRank> open_rank(const std::shared_ptr<const DecodeModel>& model,
                                      const DecodeOptions& own, comm::Mesh& mesh, int here) {
  if (here < mesh.world().size()) {
    // All of it was read to be compared; of other stages nothing is read again.
    for (const auto& file : model->files()) file->release_pages();
  }
  const int stage = mesh.coordinates()[mesh.shape().index_of("pp")];
  std::array<int64_t, 1> fewest{0};
  std::optional<base::Error> failure;
  try {
    fewest[0] = -pages_of(own, *model, stage, here);
  } catch (const base::Error& e) {
    failure = e;
  }
  require_all_well(mesh.world(), failure);
  mesh.world().all_reduce(comm::as_bytes(std::span<int64_t>(fewest)), {DType::i64, comm::ReduceOp::max},
                          "pages");
  return std::make_unique<DecodeRank>(model, own, -fewest[0], &mesh);
}

/// The operands of a step that other ranks need, concatenated.
struct StepOperands {
  std::vector<size_t> inputs;  // numbers of passes::DecodeInput and DrawInput
  std::vector<tensor::Dims> shapes;
  std::vector<DType> types;
  std::vector<size_t> begins;
  size_t bytes = 0;

  StepOperands(const DecodeRank& rank, DecodeResult result, const DecodeBucket& bucket)
      : inputs(passes::inputs_of(result, rank.steps().form().adapters.slots > 0)),
        shapes(rank.steps().operand_shapes(result, {bucket.tokens, bucket.sequences})) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      types.push_back(type_of(inputs[i]));
      begins.push_back(bytes);
      constexpr size_t kAlign = 16;
      bytes += is_there(i) ? 0 : (bytes_of(i) + kAlign - 1) / kAlign * kAlign;
    }
  }

  void pack(const std::vector<Tensor>& from, std::vector<std::byte>& to) const {
    to.resize(bytes);
    for (size_t i = 0; i < shapes.size(); ++i) {
      if (!is_there(i)) std::memcpy(to.data() + begins[i], from[inputs[i]].raw(), bytes_of(i));
    }
  }

  /// Tensors by input number; inputs that the step does not have are undefined.
  std::vector<Tensor> unpack(std::span<const std::byte> from) const {
    std::vector<Tensor> all(passes::kDrawInputs);
    for (size_t i = 0; i < shapes.size(); ++i) {
      all[inputs[i]] = is_there(i)
                           ? Tensor::empty(types[i], shapes[i])
                           : Tensor::view(types[i], shapes[i], from.subspan(begins[i], bytes_of(i)), nullptr);
    }
    return all;
  }

 private:
  static DType type_of(size_t input) {
    switch (input) {
      case passes::kDrawSettings:
      case passes::kDrawBiases: return DType::f32;
      case passes::kDecodeIds:
      case passes::kDecodePositions:
      case passes::kDecodeLast:
      case passes::kDrawChosen:
      case passes::kDrawCounters:
      case passes::kDrawWanted: return DType::i64;
      default: return DType::i32;
    }
  }
  /// Every rank has drawn these tokens on its own device.
  bool is_there(size_t i) const { return inputs[i] == passes::kDrawChosen; }
  size_t bytes_of(size_t i) const {
    return static_cast<size_t>(tensor::bytes_of(types[i], tensor::element_count(shapes[i])));
  }
};

}  // namespace

/// A command of the first rank for the others, with numbers; bytes may follow.
struct DecodeRanks::Order {
  DecodeCommand command = DecodeCommand::end;
  int64_t result = 0, tokens = 0, sequences = 0, slot = 0, from = 0, to = 0, bytes = 0;

  static Order step(DecodeCommand command, DecodeResult result, const DecodeBucket& bucket, size_t slot = 0) {
    return {.command = command,
            .result = static_cast<int64_t>(result),
            .tokens = bucket.tokens,
            .sequences = bucket.sequences,
            .slot = static_cast<int64_t>(slot)};
  }
  DecodeResult wanted() const { return static_cast<DecodeResult>(result); }
  DecodeBucket bucket() const { return {tokens, sequences}; }

  /// Collective: broadcasts the first rank's order and bytes.
  void share(comm::Communicator& world, std::span<std::byte> with) {
    world.broadcast({reinterpret_cast<std::byte*>(this), sizeof *this}, 0, "what to decode");
    if (bytes > 0 && world.rank() == 0) world.broadcast(with, 0, "operands");
  }

  /// Executes orders on another rank until DecodeCommand::end.
  static void follow(DecodeRank& rank, comm::Communicator& world) {
    std::vector<std::byte> bytes;
    for (Order order;;) {
      order.share(world, {});
      bytes.resize(static_cast<size_t>(order.bytes));
      if (order.bytes > 0) world.broadcast(bytes, 0, "operands");
      if (order.command == DecodeCommand::end) return;
      if (order.command == DecodeCommand::read_page) {
        order.gather_page(rank, world, {});
        continue;
      }
      if (order.command == DecodeCommand::write_page) {
        order.write_part(rank, world, bytes);
        continue;
      }
      order.act(rank, bytes);
    }
  }

  /// Collective: gathers all ranks' parts of page `from`, `to` bytes each, in `all` on the first rank.
  void gather_page(DecodeRank& rank, comm::Communicator& world, std::span<std::byte> all) const {
    std::vector<std::byte> own(static_cast<size_t>(to));
    std::vector<std::byte> others(all.empty() ? own.size() * static_cast<size_t>(world.size()) : 0);
    rank.pool().read_page(static_cast<int32_t>(from), own.data(), rank.stream());
    rank.finish();
    world.all_gather(own, all.empty() ? std::span(others) : all, "a page");
  }

  /// Writes this rank's part of a page from the parts of all ranks.
  void write_part(DecodeRank& rank, const comm::Communicator& world, std::span<const std::byte> all) const {
    const auto page = static_cast<int32_t>(to);
    const size_t part = all.size() / static_cast<size_t>(world.size());
    rank.pool().write_page(page, all.data() + static_cast<size_t>(world.rank()) * part, rank.stream());
    rank.finish();
  }

 private:
  void act(DecodeRank& rank, std::span<const std::byte> with) const {
    const auto operands = [&] { return StepOperands(rank, wanted(), bucket()).unpack(with); };
    switch (command) {
      case DecodeCommand::end:
      case DecodeCommand::read_page:
      case DecodeCommand::write_page: return;  // done in follow()
      case DecodeCommand::prepare: rank.prepare(wanted(), bucket()); return;
      case DecodeCommand::run: return rank.run(bucket(), operands(), nullptr, nullptr);
      case DecodeCommand::launch:
        return rank.launch(wanted(), bucket(), operands(), static_cast<size_t>(slot));
      case DecodeCommand::write_adapter: {
        const auto* values = reinterpret_cast<const float*>(with.data());
        return rank.write_adapter(static_cast<size_t>(from), slot,
                                  {to, {values, values + with.size() / sizeof(float)}});
      }
      case DecodeCommand::copy_page:
        return rank.pool().copy_page(static_cast<int32_t>(from), static_cast<int32_t>(to), rank.stream());
      case DecodeCommand::copy_seen: return rank.seen().copy(from, to);
      case DecodeCommand::see_ahead: {
        const auto* rows = reinterpret_cast<const SeenAhead*>(with.data());
        return rank.seen().see_ahead({rows, with.size() / sizeof(SeenAhead)}, static_cast<size_t>(slot));
      }
      case DecodeCommand::set_seen: {
        const auto* counts = reinterpret_cast<const int32_t*>(with.data());
        return rank.seen().set(to, {counts, counts + with.size() / sizeof(int32_t)});
      }
    }
  }
};

DecodeRanks::DecodeRanks(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options)
    : model_(std::move(model)), options_(options) {
  for (int stage = 0; stage < model_->stages(); ++stage)
    part_bytes_ = std::max(part_bytes_, model_->kv_layout(stage).page_bytes());
  if (size() == 1) {
    alone_ = std::make_unique<DecodeRank>(model_, options_, pages_of(options_, *model_, 0, 1));
    return;
  }
  RankHome home{.shape = model_->strategy().mesh(),
                .mesh = options_.mesh,
                .service = options_.service,
                .model_key = options_.model_key,
                .graph = &model_->form().graph};
  const auto open = [this, here = home.here()](int rank, comm::Mesh& mesh) {
    if (options_.mesh != nullptr) require_same_model(mesh.world(), model_->form().graph);
    return open_rank(model_, options_of(options_, rank, here), mesh, here);
  };
  group_ = std::make_unique<RankGroup<DecodeRank>>(
      std::move(home),
      RankGroup<DecodeRank>::Crew{
          .follow = [open](int rank, comm::Mesh& mesh) { Order::follow(*open(rank, mesh), mesh.world()); },
          .lead = [open](comm::Mesh& mesh) { return open(0, mesh); },
          .say_end = [](comm::Communicator& world) { Order{}.share(world, {}); },
          .is_kept = true});
  group_->open();
}

DecodeRanks::~DecodeRanks() = default;

void DecodeRanks::follow(DecodeRank& rank, comm::Communicator& world) { Order::follow(rank, world); }

DecodeRank& DecodeRanks::first() { return alone_ != nullptr ? *alone_ : *group_->leader(); }

template <class Do>
void DecodeRanks::all(const Order& order, std::span<std::byte> bytes, const Do& act) {
  if (alone_ != nullptr) return act(*alone_);
  group_->lead([&](DecodeRank& leader, comm::Communicator& world) {
    Order said = order;
    said.bytes = static_cast<int64_t>(bytes.size());
    said.share(world, bytes);
    act(leader);
  });
}

const compile::Program& DecodeRanks::prepare(DecodeResult result, const DecodeBucket& bucket) {
  if (const compile::Program* found = first().program(result, bucket)) return *found;
  all(Order::step(DecodeCommand::prepare, result, bucket), {},
      [&](DecodeRank& r) { r.prepare(result, bucket); });
  return *first().program(result, bucket);
}

void DecodeRanks::run(const DecodeBucket& bucket, const std::vector<Tensor>& inputs, Tensor& logits,
                      runtime::Trace* trace) {
  if (size() > 1) StepOperands(first(), DecodeResult::logits, bucket).pack(inputs, packed_);
  all(Order::step(DecodeCommand::run, DecodeResult::logits, bucket), packed_,
      [&](DecodeRank& r) { r.run(bucket, inputs, &logits, trace); });
}

void DecodeRanks::launch(DecodeResult result, const DecodeBucket& bucket, const std::vector<Tensor>& inputs,
                         size_t slot) {
  if (size() > 1) StepOperands(first(), result, bucket).pack(inputs, packed_);
  all(Order::step(DecodeCommand::launch, result, bucket, slot), packed_,
      [&](DecodeRank& r) { r.launch(result, bucket, inputs, slot); });
}

void DecodeRanks::use_adapter(const LoadedAdapter& adapter) {
  const passes::AdapterRoom& room = model_->form().adapters;
  base::check(adapter.slot() < room.slots, "an adapter for a model without room");
  adapters_.resize(static_cast<size_t>(room.slots), -1);
  int32_t& there = adapters_[static_cast<size_t>(adapter.slot())];
  if (there == adapter.number()) return;
  there = -1;  // until all of it is there
  std::map<std::string_view, const model::hf::AdapterPart*> parts;
  for (const model::hf::AdapterPart& part : adapter.weights().parts) parts[part.module] = &part;
  for (size_t m = 0; m < room.modules.size(); ++m) {
    const auto at = parts.find(room.modules[m].name);
    AdapterFactors factors = AdapterFactors::of(at == parts.end() ? nullptr : at->second);
    const Order order{.command = DecodeCommand::write_adapter,
                      .slot = adapter.slot(),
                      .from = static_cast<int64_t>(m),
                      .to = factors.rank};
    all(order, std::as_writable_bytes(std::span(factors.values)),
        [&](DecodeRank& r) { r.write_adapter(m, adapter.slot(), factors); });
  }
  there = adapter.number();
}

void DecodeRanks::copy_page(int32_t from, int32_t to) {
  all({.command = DecodeCommand::copy_page, .from = from, .to = to}, {},
      [&](DecodeRank& r) { r.pool().copy_page(from, to, r.stream()); });
}

void DecodeRanks::set_seen(int64_t place, std::vector<int32_t> counts) {
  all({.command = DecodeCommand::set_seen, .to = place},
      {reinterpret_cast<std::byte*>(counts.data()), counts.size() * sizeof(int32_t)},
      [&](DecodeRank& r) { r.seen().set(place, counts); });
}

void DecodeRanks::copy_seen(int64_t from, int64_t to) {
  all({.command = DecodeCommand::copy_seen, .from = from, .to = to}, {},
      [&](DecodeRank& r) { r.seen().copy(from, to); });
}

void DecodeRanks::see_ahead(std::vector<SeenAhead> rows, size_t slot) {
  all({.command = DecodeCommand::see_ahead, .slot = static_cast<int64_t>(slot)},
      {reinterpret_cast<std::byte*>(rows.data()), rows.size() * sizeof(SeenAhead)},
      [&](DecodeRank& r) { r.seen().see_ahead(rows, slot); });
}

void DecodeRanks::read_page(int32_t page, std::span<std::byte> to) {
  if (alone_ != nullptr) {
    alone_->pool().read_page(page, to.data(), alone_->stream());
    return alone_->finish();
  }
  group_->lead([&](DecodeRank& leader, comm::Communicator& world) {
    Order order{.command = DecodeCommand::read_page, .from = page, .to = part_bytes_};
    order.share(world, {});
    order.gather_page(leader, world, to);
  });
}

void DecodeRanks::write_pages(std::span<const int32_t> pages, std::span<const std::byte* const> from) {
  if (alone_ != nullptr) {
    for (size_t i = 0; i < pages.size(); ++i) alone_->pool().write_page(pages[i], from[i], alone_->stream());
    return alone_->finish();
  }
  std::vector<std::byte> bytes(static_cast<size_t>(page_bytes()));
  for (size_t i = 0; i < pages.size(); ++i) {
    std::memcpy(bytes.data(), from[i], bytes.size());
    group_->lead([&](DecodeRank& leader, comm::Communicator& world) {
      Order order{.command = DecodeCommand::write_page, .to = pages[i], .bytes = page_bytes()};
      order.share(world, bytes);
      order.write_part(leader, world, bytes);
    });
  }
}

namespace {

/// Once all have found that they loaded the same.
void follow_on(const std::shared_ptr<const DecodeModel>& model, const DecodeOptions& options,
               comm::Mesh& mesh) {
  const std::unique_ptr<DecodeRank> own = open_rank(model, options_of(options, 0, 1), mesh, 1);
  DecodeRanks::follow(*own, mesh.world());
}

}  // namespace

void follow_decoding(std::shared_ptr<const DecodeModel> model, const DecodeOptions& options) {
  base::check(options.mesh != nullptr, "to follow, a rank needs the others");
  require_same_model(options.mesh->world(), model->form().graph);
  follow_on(model, options, *options.mesh);
}

void follow_decoding(std::shared_ptr<const DecodeModel> model, DecodeOptions options,
                     comm::Communicator& group) {
  require_same_model(group, model->form().graph);
  comm::Mesh mesh(group, model->strategy().mesh());
  options.mesh = &mesh;
  follow_on(model, options, mesh);
}

}  // namespace trireme::engine
