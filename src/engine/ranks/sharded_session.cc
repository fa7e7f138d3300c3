// A session whose model is held by several ranks: the first rank leads, and the others follow its commands.
#include "engine/ranks/sharded_session.h"

#include <array>
#include <cstring>

#include "engine/ranks/tensor_lists.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

using tensor::Dims;
using tensor::Tensor;

enum class Command : int64_t { run, prepare, stop };

/// The leader's message before each round: the command, and the types of inputs: {command, inputs, {type,
/// rank, extents}}.
using Message = std::array<int64_t, 128>;

comm::Bytes message_bytes(Message& m) { return comm::as_bytes(std::span<int64_t>(m)); }

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

/// Tensors of the types in the message.
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

/// Follows the leader's messages until the stop command.
void answer(RankRunner& runner, comm::Communicator& world) {
  std::vector<Tensor> nowhere;
  for (Message m{};;) {
    world.broadcast(message_bytes(m), 0, "what to run");
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
SessionOptions options_of(const SessionOptions& all, int rank, int ranks) {
  SessionOptions own = all;
  ThreadShare share = share_of(all.threads, all.cpus, rank, ranks);
  own.threads = share.threads;
  own.cpus = std::move(share.cpus);
  return own;
}

}  // namespace

ShardedSession::ShardedSession(std::shared_ptr<const PreparedModel> model, const SessionOptions& options)
    : model_(std::move(model)), options_(options) {
  RankHome home{.mesh = options.mesh,
                .service = options.service,
                .model_key = options.model_key,
                .graph = &model_->graph()};
  const int here = home.is_in_job() ? 1 : options.strategy.world();
  for (int r = 0; r < here; ++r) {
    const std::string device = home.is_in_job() ? runtime::device_of_rank(options.device)
                                                : runtime::device_of_rank(options.device, {r, here});
    models_.push_back(std::make_unique<RankModel>(model_, options_of(options, r, here), r, device));
  }
  find_indices();
  home.shape = models_[0]->mesh();
  const auto runner = [this, here](int rank, comm::Mesh& mesh) {
    RankModel& part = *models_[static_cast<size_t>(rank)];
    return std::make_unique<RankRunner>(part, mesh, options_of(options_, rank, here));
  };
  RankGroup<RankRunner>::Crew crew{
      .follow = [runner](int rank, comm::Mesh& mesh) { answer(*runner(rank, mesh), mesh.world()); },
      .lead = [runner](comm::Mesh& mesh) { return runner(0, mesh); },
      .say_end =
          [](comm::Communicator& world) {
            Message stop = message_of(Command::stop, {});
            world.broadcast(message_bytes(stop), 0, "the end");
          }};
  ranks_ = std::make_unique<RankGroup<RankRunner>>(std::move(home), std::move(crew));
  ranks_->open();
}

ShardedSession::~ShardedSession() = default;

/// Finds inputs that are indices into a table, so that they can be checked beforehand: ranks would detect bad
/// indices only when other ranks already wait for them.
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
  const std::shared_ptr<const RankProgram> program = models_[0]->program_for(shapes_of(inputs));
  for (const tensor::TensorType& t : program->results)
    outputs.push_back(Tensor::empty(t.dtype, t.shape.to_dims()));
  run_into(inputs, outputs, trace);
  return outputs;
}

void ShardedSession::run_into(const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs,
                              runtime::Trace* trace) {
  check_types(inputs);
  // Wrong shapes are reported here, before other ranks learn of them.
  const std::shared_ptr<const RankProgram> program = models_[0]->program_for(shapes_of(inputs));
  base::require(types_of(outputs) == program->results, "the given memory is not of the results' types");
  Message message = message_of(Command::run, types_of(inputs));
  ranks_->lead([&](RankRunner& leader, comm::Communicator& world) {
    world.broadcast(message_bytes(message), 0, "what to run");
    for (const Tensor& t : inputs) {
      Tensor same = t;
      world.broadcast(bytes_of(same), 0, "inputs");
    }
    leader.run(inputs, outputs, trace);
  });
}

const compile::Program& ShardedSession::prepare(const std::vector<Dims>& shapes) {
  const std::shared_ptr<const RankProgram> program = models_[0]->program_for(shapes);
  std::vector<tensor::TensorType> types;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const ir::Graph& graph = model_->graph();
    types.push_back({graph.type(graph.inputs()[i]).dtype, tensor::Shape::of(shapes[i])});
  }
  Message message = message_of(Command::prepare, types);
  ranks_->lead([&](RankRunner& leader, comm::Communicator& world) {
    world.broadcast(message_bytes(message), 0, "what to run");
    leader.prepare(shapes);
  });
  return *program->program;
}

int64_t ShardedSession::arena_bytes() const {
  return ranks_->leader() == nullptr ? 0 : ranks_->leader()->arena_bytes();
}

void follow(std::shared_ptr<const PreparedModel> model, const SessionOptions& options) {
  base::check(options.mesh != nullptr, "to follow, a rank needs the others");
  const SessionOptions own = options_of(options, 0, 1);
  RankModel part(std::move(model), own, options.mesh->world().rank(),
                 runtime::device_of_rank(options.device));
  RankRunner runner(part, *options.mesh, own);
  answer(runner, options.mesh->world());
}

void follow(std::shared_ptr<const PreparedModel> model, const SessionOptions& options,
            comm::Communicator& group) {
  const SessionOptions own = options_of(options, 0, 1);
  RankModel part(model, own, group.rank(), runtime::device_of_rank(options.device));
  require_same_model(group, model->graph());
  comm::Mesh mesh(group, part.mesh());
  RankRunner runner(part, mesh, own);
  answer(runner, group);
}

}  // namespace trireme::engine
