// Data-parallel training steps on local ranks, for bench/scale.py: `bench_scale NETWORK RANKS THREADS ROWS
// ZERO`, where THREADS and ROWS (samples of a step) are those of each rank. Prints in one JSON line what it
// trains, then answers each line "milliseconds" of standard input with a JSON line of step times and of the
// time spent in collectives.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <vector>

#include "base/text/json.h"
#include "base/rng.h"
#include "comm/mesh.h"
#include "comm/world.h"
#include "engine/train/train_session.h"
#include "model/loss.h"
#include "model/zoo/zoo.h"

namespace trireme {
namespace {

using tensor::DType;
using tensor::Tensor;

/// Networks, as scale_peer.py builds them.
struct Network {
  std::string name, source;
  std::vector<std::string> options;
  tensor::Dims sample;
  int64_t classes;
  bool is_image() const { return sample.size() == 3; }
};

const Network& need_network(const std::string& name) {
  static const std::vector<Network> list{
      {"resnet18", "resnet18", {"small_images=true", "classes=10", "size=32"}, {3, 32, 32}, 10},
      {"gpt", "gpt2", {"layers=4", "width=256", "heads=8", "vocabulary=8192", "positions=128"}, {128}, 8192},
  };
  for (const Network& n : list) {
    if (n.name == name) return n;
  }
  base::fail_invalid("no network '", name, "'");
}

/// Random samples and targets, different on each rank.
engine::Feeds feeds_of(const Network& network, const ir::Graph& graph, int64_t rows, int rank) {
  engine::Feeds feeds;
  base::Rng rng(3, static_cast<uint64_t>(rank));
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& v = graph.value(id);
    tensor::Dims dims{rows};
    if (!network.is_image() || v.name == "image") {
      dims.insert(dims.end(), network.sample.begin(), network.sample.end());
    }
    Tensor t = Tensor::empty(v.type.dtype, dims);
    if (v.type.dtype == DType::f32) {
      for (float& x : t.mutable_data<float>()) x = static_cast<float>(rng.normal());
    } else {
      for (int64_t& x : t.mutable_data<int64_t>()) {
        x = static_cast<int64_t>(rng.below(static_cast<uint64_t>(network.classes)));
      }
    }
    feeds.push_back(std::move(t));
  }
  return feeds;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

struct Setup {
  const Network& network;
  int ranks, threads;
  int64_t rows;
  int zero;
};

class Rank {
 public:
  Rank(const Setup& setup, const ir::Graph& loss, comm::Mesh& mesh)
      : mesh_(mesh),
        session_(loss, options_of(setup, mesh)),
        feeds_(feeds_of(setup.network, loss, setup.rows, mesh.world().rank())) {
    const int64_t targets =
        setup.rows * setup.ranks * (setup.network.is_image() ? 1 : setup.network.sample[0]);
    inputs_.lr = 1e-4f;
    inputs_.loss_weight = 1.0f / static_cast<float>(targets);
  }

  engine::StepResult step() {
    const engine::StepResult result = session_.step(feeds_, inputs_);
    ++inputs_.step;
    return result;
  }

  int64_t parameters() const {
    int64_t sum = 0;
    for (const lower::TrainedParam& p : session_.params()) sum += tensor::element_count(p.dims);
    return sum;
  }

  /// Runs steps for about this many milliseconds, the same number on every rank.
  base::Json run(double milliseconds) {
    int64_t steps = std::max<int64_t>(1, static_cast<int64_t>(milliseconds * 1e3 / last_us_));
    mesh_.world().broadcast(comm::as_bytes(std::span(&steps, 1)), 0, "bench");
    std::vector<double> us, communication, exposed;
    for (int64_t i = 0; i < steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const engine::StepResult result = step();
      us.push_back(
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
      communication.push_back(static_cast<double>(result.communication_ns) / 1e3);
      exposed.push_back(static_cast<double>(result.exposed_ns) / 1e3);
    }
    last_us_ = median(us);
    return base::Json::object({{"runs", steps},
                               {"median_us", last_us_},
                               {"min_us", *std::min_element(us.begin(), us.end())},
                               {"communication_us", median(communication)},
                               {"exposed_us", median(exposed)}});
  }

 private:
  static engine::TrainOptions options_of(const Setup& setup, comm::Mesh& mesh) {
    engine::TrainOptions options;
    options.threads = setup.threads;
    options.optimizer.kind =
        setup.network.is_image() ? passes::OptimizerKind::sgd : passes::OptimizerKind::adamw;
    options.strategy.dp = setup.ranks;
    options.strategy.zero = setup.zero;
    options.mesh = &mesh;
    return options;
  }

  comm::Mesh& mesh_;
  engine::TrainSession session_;
  engine::Feeds feeds_;
  engine::StepInputs inputs_;
  double last_us_ = 1e6;
};

void serve(const Setup& setup, const ir::Graph& loss, comm::Communicator& world) {
  passes::Strategy strategy;
  strategy.dp = setup.ranks;
  comm::Mesh mesh(world, strategy.mesh());
  Rank rank(setup, loss, mesh);
  const engine::StepResult first = rank.step();
  rank.step();
  rank.run(1);
  const bool leads = world.rank() == 0;
  if (leads) {
    std::cout << base::Json::object(
                     {{"parameters", rank.parameters()}, {"first_loss", first.loss_sum / first.count}})
                     .dump()
              << std::endl;
  }
  for (;;) {
    double milliseconds = -1;  // ends the loop
    std::string line;
    if (leads && std::getline(std::cin, line)) milliseconds = std::stod(line);
    world.broadcast(comm::as_bytes(std::span(&milliseconds, 1)), 0, "bench");
    if (milliseconds < 0) return;
    const base::Json answer = rank.run(milliseconds);
    if (leads) std::cout << answer.dump() << std::endl;
  }
}

void run(const Setup& setup) {
  model::Model model = model::zoo::build(setup.network.source, setup.network.options);
  model::add_loss(model.graph, {});
  comm::run_ranks({.kind = comm::RankKind::local, .ranks = setup.ranks},
                  [&](comm::Communicator& world) { serve(setup, model.graph, world); });
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  try {
    trireme::base::require(argc == 6, "usage: bench_scale NETWORK RANKS THREADS ROWS ZERO");
    trireme::run({trireme::need_network(argv[1]), std::stoi(argv[2]), std::stoi(argv[3]), std::stol(argv[4]),
                  std::stoi(argv[5])});
    return 0;
  } catch (const std::exception& e) {
    std::cerr << e.what() << "\n";
    return 1;
  }
}
