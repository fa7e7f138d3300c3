// A session whose model several ranks hold together: the first rank leads, the others follow what it is
// asked.
#include "engine/sharded_session.h"

#include <array>
#include <cstring>

#include "base/machine/cpu_info.h"
#include "base/machine/memory.h"
#include "engine/rank_service.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using tensor::Dims;
using tensor::Tensor;

enum class Command : int64_t { run, prepare, stop };

/// What the leader says before each round: the command and the inputs' types: {command, inputs, {type, rank,
/// extents}}.
using Message = std::array<int64_t, 128>;

comm::Bytes bytes_of(Message& m) { return comm::as_bytes(std::span<int64_t>(m)); }
comm::Bytes bytes_of(Tensor& t) { return {t.mutable_raw(), static_cast<size_t>(t.bytes())}; }

Message message_of(Command command, const std::vector<tensor::TensorType>& types) {
  Message m{};
  size_t at = 0;
  m[at++] = static_cast<int64_t>(command);
  m[at++] = static_cast<int64_t>(types.size());
  for (const tensor::TensorType& t : types) {
    const Dims dims = t.shape.to_dims();
    base::require(at + 2 + dims.size() <= m.size(), "a model with so many inputs runs on one rank");
    m[at++] = static_cast<int64_t>(t.dtype);
    m[at++] = static_cast<int64_t>(dims.size());
    for (const int64_t d : dims) m[at++] = d;
  }
  return m;
}

/// Tensors of the types that the message names.
std::vector<Tensor> tensors_of(const Message& m) {
  std::vector<Tensor> tensors;
  size_t at = 2;
  for (int64_t i = 0; i < m[1]; ++i) {
    const auto dtype = static_cast<tensor::DType>(m[at]);
    const auto rank = static_cast<size_t>(m[at + 1]);
    at += 2;
    tensors.push_back(Tensor::empty(
        dtype, Dims(m.begin() + static_cast<int64_t>(at), m.begin() + static_cast<int64_t>(at + rank))));
    at += rank;
  }
  return tensors;
}

std::vector<tensor::TensorType> types_of(const std::vector<Tensor>& tensors) {
  std::vector<tensor::TensorType> types;
  for (const Tensor& t : tensors) types.push_back(t.type());
  return types;
}

std::vector<Dims> shapes_of(const std::vector<Tensor>& tensors) {
  std::vector<Dims> shapes;
  for (const Tensor& t : tensors) shapes.push_back(t.dims());
  return shapes;
}

/// Follows the leader's messages until it says stop.
void answer(RankRunner& runner, comm::Communicator& world) {
  std::vector<Tensor> nowhere;
  for (Message m{};;) {
    world.broadcast(bytes_of(m), 0, "what to run");
    if (static_cast<Command>(m[0]) == Command::stop) return;
    std::vector<Tensor> inputs = tensors_of(m);
    if (static_cast<Command>(m[0]) == Command::prepare) {
      runner.prepare(shapes_of(inputs));
      continue;
    }
    for (Tensor& t : inputs) world.broadcast(bytes_of(t), 0, "inputs");
    runner.run(inputs, nowhere);
  }
}

/// The options of one of several ranks on this machine: its share of the threads.
SessionOptions share_of(const SessionOptions& all, int rank, int ranks) {
  SessionOptions own = all;
  const int threads = all.threads > 0 ? all.threads : base::read_cpu_info().threads();
  own.threads = std::max(1, threads / ranks);
  own.cpus.clear();
  for (int t = 0; t < own.threads && !all.cpus.empty(); ++t) {
    own.cpus.push_back(all.cpus[static_cast<size_t>(rank * own.threads + t) % all.cpus.size()]);
  }
  return own;
}

/// Processes load a model each for themselves: weights that differ would answer without a word.
void require_same_model(comm::Communicator& ranks, const ir::Graph& graph) {
  uint64_t mine = 14695981039346656037u;
  for (const char c : ir::print(graph)) mine = (mine ^ static_cast<unsigned char>(c)) * 1099511628211u;
  std::vector<uint64_t> all(static_cast<size_t>(ranks.size()));
  ranks.all_gather(comm::as_bytes(std::span<uint64_t>(&mine, 1)), comm::as_bytes(std::span<uint64_t>(all)),
                   "what was loaded");
  for (size_t r = 1; r < all.size(); ++r)
    base::require(all[r] == all[0], "ranks 0 and ", r, " loaded different graphs or weights");
}

std::unique_ptr<RankModel> rank_model(std::shared_ptr<const PreparedModel> model, const SessionOptions& own,
                                      int rank, const std::string& device) {
  return std::make_unique<RankModel>(
      std::move(model), own.strategy, rank,
      compile::CompileOptions{
          .host_fallback = own.host_fallback,
          .threads = own.threads,
          .only_kernel = own.only_kernel,
          .memory_bytes = own.memory_bytes > 0 ? own.memory_bytes : base::memory_limit_bytes()},
      device);
}

}  // namespace

/// Ranks that are up: the world, the followers' threads, the leader's part.
struct ShardedSession::Group {
  explicit Group(int size) : world(size) {}
  ~Group() {
    for (std::thread& t : followers) t.join();
  }

  comm::LocalWorld world;
  std::vector<std::thread> followers;
  std::unique_ptr<comm::Communicator> opened;  ///< by a service
  std::unique_ptr<comm::Mesh> mesh;            ///< the leader's
  std::unique_ptr<RankRunner> leader;
  comm::Communicator* ranks = nullptr;
};

ShardedSession::ShardedSession(std::shared_ptr<const PreparedModel> model, const SessionOptions& options)
    : model_(std::move(model)), options_(options) {
  const int ranks = options.strategy.world();
  base::require(options.mesh == nullptr || options.mesh->world().rank() == 0,
                "the first rank leads, this is rank ",
                options.mesh == nullptr ? 0 : options.mesh->world().rank());
  const int here = is_in_job() ? 1 : ranks;
  for (int r = 0; r < here; ++r) {
    const std::string device = is_in_job() ? runtime::device_of_rank(options.device)
                                           : runtime::device_of_rank(options.device, {r, here});
    models_.push_back(rank_model(model_, share_of(options, r, here), r, device));
  }
  find_indices();
  ensure_group();
}

ShardedSession::~ShardedSession() { end_group(); }

void ShardedSession::ensure_group() {
  if (group_ != nullptr) return;
  if ((options_.mesh != nullptr && restarts_ >= 0) ||
      (options_.service != nullptr && options_.service->is_lost()))
    base::fail(base::ErrorCode::unavailable, "a rank of the job is gone: the job has to start again");
  const int here = static_cast<int>(models_.size());
  auto group = std::make_unique<Group>(here);
  for (int r = 1; r < here; ++r) {
    group->followers.emplace_back([this, r, here, &world = group->world] {
      try {
        comm::Mesh mesh(world.communicator(r), models_[static_cast<size_t>(r)]->mesh());
        RankRunner runner(*models_[static_cast<size_t>(r)], mesh, share_of(options_, r, here));
        answer(runner, mesh.world());
      } catch (const std::exception& e) {
        world.fail(r, e.what());  // the leader meets this
      }
    });
  }
  try {
    comm::Mesh* mesh = options_.mesh;
    if (mesh == nullptr) {
      if (options_.service != nullptr) group->opened = options_.service->open(options_.model_key);
      comm::Communicator& all = group->opened != nullptr ? *group->opened : group->world.communicator(0);
      if (group->opened != nullptr) require_same_model(all, model_->graph());
      group->mesh = std::make_unique<comm::Mesh>(all, models_[0]->mesh());
      mesh = group->mesh.get();
    }
    group->ranks = &mesh->world();
    group->leader = std::make_unique<RankRunner>(*models_[0], *mesh, share_of(options_, 0, here));
  } catch (const std::exception& e) {
    group->world.fail(0, e.what());  // the followers need not wait
    throw;
  }
  group_ = std::move(group);
  ++restarts_;
}

void ShardedSession::end_group() {
  if (group_ == nullptr) return;
  try {
    Message stop = message_of(Command::stop, {});
    group_->ranks->broadcast(bytes_of(stop), 0, "the end");
  } catch (const base::Error& e) {
    group_->world.fail(0, e.what());
  }
  group_.reset();
}

/// Whatever goes wrong between ranks leaves some of them waiting for others: the group ends with it.
template <class F>
void ShardedSession::with_group(const F& use) {
  ensure_group();
  try {
    use(*group_);
  } catch (const std::exception& e) {
    if (options_.service != nullptr) options_.service->say_lost();
    group_->world.fail(0, e.what());
    group_.reset();
    throw;
  }
}

/// Inputs that are read as rows of a table: of what else a client may get wrong, ranks learn only when some
/// of them wait for others already.
void ShardedSession::find_indices() {
  const ir::Graph& graph = model_->graph();
  for (const ir::Node& node : graph.nodes()) {
    if (node.op_name() != "gather") continue;
    const ir::ValueId source = graph.viewed(node.in[1]);
    const tensor::Shape& table = graph.type(node.in[0]).shape;
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      if (graph.inputs()[i] != source || !table.has_rank() || graph.type(source).dtype != tensor::DType::i64)
        continue;
      const tensor::Dim& rows = table[ir::normal_axis(node.attrs.get_int("axis", 0), table.rank())];
      if (rows.is_static()) indices_.push_back({i, rows.value()});
    }
  }
}

void ShardedSession::check_types(const std::vector<Tensor>& inputs) const {
  const ir::Graph& graph = model_->graph();
  base::require(inputs.size() == graph.inputs().size(), "the model takes ", graph.inputs().size(),
                " inputs, got ", inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const ir::Value& v = graph.value(graph.inputs()[i]);
    base::require(inputs[i].defined() && inputs[i].dtype() == v.type.dtype, "input '", v.name, "' is ",
                  v.type.to_string(), ", got ",
                  inputs[i].defined() ? inputs[i].type().to_string() : "nothing");
  }
  for (const Indices& index : indices_) {
    for (const int64_t at : inputs[index.input].data<int64_t>()) {
      if (at >= -index.rows && at < index.rows) continue;
      base::fail_invalid("input '", graph.value(graph.inputs()[index.input]).name, "' holds ", at,
                         ", the table has ", index.rows, " rows");
    }
  }
}

std::vector<Tensor> ShardedSession::run(const std::vector<Tensor>& inputs, runtime::Trace* trace) {
  check_types(inputs);
  std::vector<Tensor> outputs;
  for (const tensor::TensorType& t : models_[0]->program_for(shapes_of(inputs)).results)
    outputs.push_back(Tensor::empty(t.dtype, t.shape.to_dims()));
  run_into(inputs, outputs, trace);
  return outputs;
}

void ShardedSession::run_into(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs,
                              runtime::Trace* trace) {
  check_types(inputs);
  // What is wrong with the shapes shows here, before other ranks hear of them.
  const RankProgram& program = models_[0]->program_for(shapes_of(inputs));
  base::require(types_of(outputs) == program.results, "the given memory is not of the results' types");
  Message message = message_of(Command::run, types_of(inputs));
  with_group([&](Group& group) {
    group.ranks->broadcast(bytes_of(message), 0, "what to run");
    for (const Tensor& t : inputs) {
      Tensor same = t;
      group.ranks->broadcast(bytes_of(same), 0, "inputs");
    }
    group.leader->run(inputs, outputs, trace);
  });
}

const compile::Program& ShardedSession::prepare(const std::vector<Dims>& shapes) {
  const RankProgram& program = models_[0]->program_for(shapes);
  std::vector<tensor::TensorType> types;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const ir::Graph& graph = model_->graph();
    types.push_back({graph.type(graph.inputs()[i]).dtype, tensor::Shape::of(shapes[i])});
  }
  Message message = message_of(Command::prepare, types);
  with_group([&](Group& group) {
    group.ranks->broadcast(bytes_of(message), 0, "what to run");
    group.leader->prepare(shapes);
  });
  return *program.program;
}

int64_t ShardedSession::arena_bytes() const { return group_ == nullptr ? 0 : group_->leader->arena_bytes(); }

void ShardedSession::lose(int rank) {
  if (group_ != nullptr) group_->world.fail(rank, "taken away");
}

void follow(std::shared_ptr<const PreparedModel> model, const SessionOptions& options) {
  base::check(options.mesh != nullptr, "to follow, a rank needs the others");
  const SessionOptions own = share_of(options, 0, 1);
  const std::unique_ptr<RankModel> part = rank_model(std::move(model), own, options.mesh->world().rank(),
                                                     runtime::device_of_rank(options.device));
  RankRunner runner(*part, *options.mesh, own);
  answer(runner, options.mesh->world());
}

void follow(std::shared_ptr<const PreparedModel> model, const SessionOptions& options,
            comm::Communicator& group) {
  const SessionOptions own = share_of(options, 0, 1);
  const std::unique_ptr<RankModel> part =
      rank_model(model, own, group.rank(), runtime::device_of_rank(options.device));
  require_same_model(group, model->graph());
  comm::Mesh mesh(group, part->mesh());
  RankRunner runner(*part, mesh, own);
  answer(runner, group);
}

}  // namespace trireme::engine
