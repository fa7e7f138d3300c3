// The memory that a rank's training state takes.
#include "engine/train/rank_memory.h"

#include <algorithm>
#include <set>

namespace trireme::engine {
namespace {

/// Adds the bytes of states by category.
class Sorter {
 public:
  explicit Sorter(const TrainSession& session) {
    for (const lower::TrainedParam& p : session.params()) params_.insert(p.name);
    for (const auto& [copy, master] : session.copies()) copies_.insert(copy), masters_.insert(master);
  }

  void add(const std::string& name, int64_t bytes, RankBytes& to) const {
    int64_t& place = masters_.contains(name)                             ? to.optimizer
                     : params_.contains(name) || copies_.contains(name)  ? to.weights
                     : params_.contains(sum_of(name))                    ? to.gradients
                     : params_.contains(name.substr(0, name.rfind('.'))) ? to.optimizer
                                                                         : to.statistics;
    place += bytes;
  }

 private:
  /// "p" for "p.sum0"; empty for other states.
  static std::string sum_of(const std::string& name) {
    const size_t at = name.rfind(".sum");
    return at == std::string::npos ? "" : name.substr(0, at);
  }

  std::set<std::string> params_, copies_, masters_;
};

/// Bytes of the gradients that the norm reads, if they are in the arena.
int64_t arena_gradients(const compile::Program& program) {
  std::set<compile::SlotId> roots;
  for (const compile::Step& step : program.steps) {
    if (step.op == nullptr || step.op->schema.name != "block_squares") continue;
    for (compile::SlotId id : step.in) {
      if (program.root(id).kind == compile::SlotKind::arena) roots.insert(program.slot(id).root);
    }
  }
  int64_t bytes = 0;
  for (compile::SlotId id : roots) bytes += program.slot(id).bytes;
  return bytes;
}

}  // namespace

std::string RankBytes::text() const {
  return base::concat("weights ", weights, ", gradients ", gradients, ", optimizer ", optimizer,
                      ", statistics ", statistics, ", arena ", arena, " bytes");
}

RankBytes bytes_per_rank(TrainSession& session, const std::vector<tensor::Dims>& shapes,
                         size_t micro_batches) {
  RankBytes bytes;
  std::set<std::string> seen;
  const auto programs = session.programs(shapes, micro_batches);
  const Sorter sorter(session);
  for (const compile::Program* program : programs) {
    for (compile::SlotId id : program->states) {
      const compile::Slot& slot = program->slot(id);
      if (seen.insert(slot.name).second) sorter.add(slot.name, slot.bytes, bytes);
    }
    bytes.arena = std::max(bytes.arena, program->memory.arena_bytes);
  }
  if (micro_batches == 1) bytes.gradients = arena_gradients(*programs.back());
  return bytes;
}

RankBytes held_bytes(const TrainSession& session) {
  RankBytes bytes;
  const Sorter sorter(session);
  for (const StateStore* store : {&session.states(), &session.scratch()}) {
    for (const std::string& name : store->names()) sorter.add(name, store->at(name).bytes(), bytes);
  }
  return bytes;
}

RankBytes zero_bytes(const ZeroElements& elements, int stage, int ranks) {
  RankBytes bytes;
  const auto add = [&](int64_t count, bool is_shared, bool has_copy) {
    const int64_t part = is_shared ? count / ranks : count;
    bytes.weights += (has_copy ? 2 : 4) * (stage == 3 ? part : count);
    bytes.gradients += 4 * (stage >= 2 ? part : count);
    bytes.optimizer += (has_copy ? 12 : 8) * (stage >= 1 ? part : count);
  };
  add(elements.full, true, false);
  add(elements.low, true, true);
  add(elements.both, true, stage == 0);
  add(elements.whole, false, false);
  return bytes;
}

}  // namespace trireme::engine
