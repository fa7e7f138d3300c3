// A model that is composed of other models.
#include "serve/models/ensemble_model.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "base/guarded.h"
#include "sched/current_error.h"
#include "serve/models/call.h"

namespace trireme::serve {
namespace {

using Step = EnsembleConfig::Step;
using Tensors = std::map<std::string, WireTensor>;

/// A tensor's type and extents as clients see them, including the batch.
struct Outline {
  std::string model;
  WireType type;
  tensor::Dims dims;
};

Outline outline_of(const std::string& model, const TensorConfig& tensor, bool is_batched) {
  Outline out{model, tensor.type, tensor.dims};
  if (is_batched) out.dims.insert(out.dims.begin(), -1);
  return out;
}

bool agree(const Outline& a, const Outline& b) {
  if (a.type != b.type || a.dims.size() != b.dims.size()) return false;
  for (size_t d = 0; d < a.dims.size(); ++d) {
    if (a.dims[d] != b.dims[d] && a.dims[d] != -1 && b.dims[d] != -1) return false;
  }
  return true;
}

const TensorConfig& need(const std::vector<TensorConfig>& list, const std::string& name,
                         const std::string& model) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const auto& t) { return t.name == name; });
  base::require(at != list.end(), "in ensemble, model '", model, "' has no tensor '", name, "'");
  return *at;
}

/// Checks that a step's model can take every request that the ensemble accepts.
void check_step(const ModelConfig& config, const Step& step, const ModelConfig& member) {
  base::require(!member.is_decoupled, "ensemble '", config.name, "': step '", step.model,
                "' is decoupled, and a step has one answer");
  base::require(
      !config.is_batched() || !member.is_batched() || *config.max_batch_size <= *member.max_batch_size,
      "ensemble '", config.name, "' allows max_batch_size ", config.max_batch_size.value_or(0),
      ", its step '", step.model, "' only ", member.max_batch_size.value_or(0));
  for (const TensorConfig& t : member.inputs) {
    const bool is_given = std::any_of(step.inputs.begin(), step.inputs.end(),
                                      [&](const auto& in) { return in.first == t.name; });
    base::require(is_given || t.is_optional, "ensemble '", config.name, "': step '", step.model,
                  "' has no input_map for the model's input '", t.name, "'");
  }
}

/// Refuses an ensemble that an ensemble among its steps leads back to: a request would never end. A model
/// that serves as another kind becomes such an ensemble when it is loaded again. `seen`: what was looked at.
void check_circle(const std::string& own, const EnsembleConfig& member, const FindModel& find,
                  std::set<std::pair<std::string, int64_t>>& seen) {
  for (const Step& step : member.steps) {
    base::require(step.model != own, "ensemble '", own, "' is a step of an ensemble among its steps");
    if (!seen.emplace(step.model, step.version).second) continue;
    std::shared_ptr<ServedModel> model;
    try {
      model = find(step.model, step.version_text());
    } catch (const base::Error&) {
      continue;  // leads nowhere until it is loaded, which looks for a circle again
    }
    if (model->config().ensemble) check_circle(own, *model->config().ensemble, find, seen);
  }
}

/// Checks that the ensemble and its members agree on each tensor. Returns true if a member keeps sequences.
bool check_members(const ModelConfig& config, const FindModel& find) {
  std::map<std::string, Outline> outlines;
  std::set<std::pair<std::string, int64_t>> seen;
  bool takes_sequences = false;
  const auto meet = [&](const std::string& name, const Outline& outline) {
    const auto [at, is_new] = outlines.try_emplace(name, outline);
    base::require(is_new || agree(at->second, outline), "in ensemble '", config.name, "', tensor '", name,
                  "' is ", wire_name(at->second.type), " ", tensor::to_string(at->second.dims), " of '",
                  at->second.model, "' and ", wire_name(outline.type), " ", tensor::to_string(outline.dims),
                  " of '", outline.model, "'");
  };
  for (const TensorConfig& t : config.inputs) meet(t.name, outline_of(config.name, t, config.is_batched()));
  for (const TensorConfig& t : config.outputs) meet(t.name, outline_of(config.name, t, config.is_batched()));
  for (const Step& step : config.ensemble->steps) {
    base::require(step.model != config.name, "ensemble '", config.name, "' is a step of itself");
    std::shared_ptr<ServedModel> model;
    try {
      model = find(step.model, step.version_text());
    } catch (const base::Error& e) {
      base::fail_invalid("ensemble '", config.name, "' depends on '", step.model,
                         "' which has no loaded version: ", e.message());
    }
    const ModelConfig& member = model->config();
    if (member.ensemble) check_circle(config.name, *member.ensemble, find, seen);
    check_step(config, step, member);
    takes_sequences = takes_sequences || model->takes_sequences();
    for (const auto& [own, name] : step.inputs)
      meet(name, outline_of(step.model, need(member.inputs, own, step.model), member.is_batched()));
    for (const auto& [own, name] : step.outputs)
      meet(name, outline_of(step.model, need(member.outputs, own, step.model), member.is_batched()));
  }
  return takes_sequences;
}

std::vector<std::string> names_of(const std::vector<TensorConfig>& tensors) {
  std::vector<std::string> names;
  for (const TensorConfig& t : tensors) names.push_back(t.name);
  return names;
}

/// Completes the configuration of an ensemble, and checks its steps one by one.
ModelConfig complete_ensemble(const ModelSource& source) {
  ModelConfig config = source.config;
  config.name = source.name;
  config.platform = "ensemble";
  config.max_batch_size = config.max_batch_size.value_or(0);
  const std::vector<std::string> inputs = names_of(config.inputs), outputs = names_of(config.outputs);
  base::require(!inputs.empty() && !outputs.empty(), "an ensemble's config names its inputs and outputs");
  check_ensemble(*config.ensemble, inputs, outputs);
  return config;
}

}  // namespace

/// One run. Steps that finish at the same time meet at the lock; what they start is submitted outside it. It
/// lives as long as its last step, which may hang; the model may be gone once the run is over.
struct EnsembleModel::Flow {
  struct State {
    Tensors tensors;
    std::vector<bool> started;  ///< or never to start
    bool is_over = false;
  };
  Flow(const EnsembleModel& own, const InferRequest& given, InferSink sink)
      : model(own), call(own, given, std::move(sink)) {}
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;
  /// Also counts a run whose steps were dropped without an error, for lack of memory for one.
  ~Flow() { let_go(); }

  const EnsembleModel& model;
  std::shared_ptr<UnderWay> under_way;  ///< counts this one, from when it is set until it is over
  Call call;
  std::vector<AnswerWish> wishes;
  int64_t rows = 0, start_ns = 0;
  InferRequest request;  ///< deadline, timeout, priority
  base::Guarded<State> state;

  const std::vector<Step>& steps() const { return model.config().ensemble->steps; }
  /// True for the caller that may answer, which is the first.
  bool end() {
    return state.with([](State& s) { return !std::exchange(s.is_over, true); });
  }
  void fail(const base::Error& error, sched::Ending ending) {
    if (end()) leave([&] { call.fail(error, ending); });
  }
  void answer(Tensors&& results);
  /// Gives the last answer. If creating it throws (for lack of memory), the run ends nevertheless.
  template <class Last>
  void leave(const Last& last) {
    try {
      last();
    } catch (const std::exception&) {
      // Without its sink, the call reports that it was dropped.
    }
    let_go();
  }
  /// The model may go from now on.
  void let_go() {
    if (const auto counted = std::exchange(under_way, nullptr)) counted->runs.fetch_sub(1);
  }
  /// Keeps the model while a step is told; null where the run is over.
  std::shared_ptr<UnderWay> hold_model() {
    return state.with([&](const State& s) -> std::shared_ptr<UnderWay> {
      if (s.is_over) return nullptr;
      under_way->steps_told.fetch_add(1);
      const auto release = [owner = under_way](UnderWay*) { owner->steps_told.fetch_sub(1); };
      return std::shared_ptr<UnderWay>(under_way.get(), release);
    });
  }
};

EnsembleModel::EnsembleModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier)
    : EnsembleModel(source, complete_ensemble(source), host, earlier) {}

EnsembleModel::EnsembleModel(const ModelSource& source, const ModelConfig& complete, const ModelHost& host,
                             const ModelMetrics* earlier)
    : ServedModel(source, complete, host, earlier, 0),
      find_(host.find),
      border_(config()),
      form_(config(), read_output_labels(config(), source.root)),
      takes_sequences_(check_members(config(), host.find)),
      unread_(unread_steps(*config().ensemble, names_of(config().outputs))) {
  for (size_t i = 0; i < unread_.size(); ++i) {
    if (!unread_[i]) continue;
    env().log.warning("serve", "ensemble_step_unused",
                      {{"ensemble", name()},
                       {"model", config().ensemble->steps[i].model},
                       {"reason", "no output of the ensemble depends on the step: it does not run"}});
  }
}

void EnsembleModel::Flow::answer(Tensors&& results) {
  call.answer([&] {
    const sched::Timing timing{.enqueued_ns = start_ns,
                               .started_ns = start_ns,
                               .computed_ns = start_ns,
                               .finished_ns = model.clock().now_ns(),
                               .batch_rows = rows,
                               .padded_rows = rows};
    InferResponse response = call.head();
    for (const AnswerWish& wish : wishes)
      model.form_.add(response, wish, std::move(results.at(model.config().outputs[wish.output].name)));
    response.timing = timing;
    model.metrics()->count_batch(timing);
    return response;
  });
}

/// Checks the clients' tensors; the models of the steps check theirs.
void EnsembleModel::infer(InferRequest request, InferSink sink) {
  const auto flow = std::make_shared<Flow>(*this, request, std::move(sink));
  CheckedInputs inputs;
  try {
    base::require(takes_sequences() || !request.sequence.is_any(), "sequence_id: model '", name(),
                  "' has no step with sequence_batching");
    flow->wishes = border_.wishes(request);
    inputs = border_.take(request);
  } catch (const base::Error&) {
    flow->call.count_refusal();
    throw;
  }
  flow->rows = inputs.rows;
  flow->start_ns = clock().now_ns();
  const auto limit = static_cast<size_t>(config().ensemble->max_inflight);
  const size_t others = under_way_->runs.fetch_add(1);
  flow->under_way = under_way_;
  if (others >= limit && limit > 0) {
    base::fail(base::ErrorCode::unavailable, "Exceeds maximum queue size: ", limit,
               " requests of the ensemble are under way");
  }
  try {
    flow->state.with([&](Flow::State& s) {
      s.started = unread_;
      for (WireTensor& t : inputs.tensors) s.tensors[t.name] = std::move(t);
    });
    request.inputs.clear();
    request.outputs.clear();
    flow->request = std::move(request);
    advance(flow);
  } catch (const std::exception&) {
    flow->fail(sched::current_error(), sched::Ending::failed);
  }
}

/// Starts every step whose inputs are present; answers when all outputs are.
void EnsembleModel::advance(const std::shared_ptr<Flow>& flow) {
  std::vector<std::pair<size_t, InferRequest>> ready;
  Tensors results;
  const bool is_done = flow->state.with([&](Flow::State& s) {
    if (s.is_over) return false;
    const std::vector<TensorConfig>& outputs = flow->model.config().outputs;
    const bool has_all = std::all_of(outputs.begin(), outputs.end(),
                                     [&](const TensorConfig& t) { return s.tensors.count(t.name) > 0; });
    if (has_all) {
      for (const TensorConfig& t : outputs) results[t.name] = std::move(s.tensors.at(t.name));
      s.is_over = true;
      return true;
    }
    for (size_t i = 0; i < flow->steps().size(); ++i) {
      const Step& step = flow->steps()[i];
      const bool can_start =
          !s.started[i] && std::all_of(step.inputs.begin(), step.inputs.end(),
                                       [&](const auto& in) { return s.tensors.count(in.second) > 0; });
      if (!can_start) continue;
      s.started[i] = true;
      InferRequest request = flow->request;
      for (const auto& [own, name] : step.inputs) {
        request.inputs.push_back(s.tensors.at(name));  // shares the memory
        request.inputs.back().name = own;
      }
      for (const auto& [own, name] : step.outputs)
        request.outputs.push_back({.name = own, .is_binary = true});
      ready.emplace_back(i, std::move(request));
    }
    return false;
  });
  if (is_done) return flow->leave([&] { flow->answer(std::move(results)); });
  for (auto& [index, request] : ready) start_step(flow, index, std::move(request));
}

void EnsembleModel::start_step(const std::shared_ptr<Flow>& flow, size_t index, InferRequest request) {
  const Step& step = flow->steps()[index];
  InferSink sink;
  sink.received_ns = flow->call.received_ns();
  sink.cancelled = [flow] {
    const bool is_over = flow->state.with([](const Flow::State& s) { return s.is_over; });
    return is_over || flow->call.is_cancelled();
  };
  sink.failed = [flow, name = step.model](const base::Error& e) {
    const bool is_gone = flow->call.is_cancelled();
    const bool is_refused = e.code() == base::ErrorCode::unavailable;
    flow->fail(e.with("in ensemble, step '" + name + "'"), is_gone      ? sched::Ending::cancelled
                                                           : is_refused ? sched::Ending::refused
                                                                        : sched::Ending::failed);
  };
  sink.done = [flow, index](InferResponse&& response) {
    try {
      const std::shared_ptr<UnderWay> model = flow->hold_model();
      if (model == nullptr) return;
      const Step& own = flow->steps()[index];
      flow->state.with([&](Flow::State& s) {
        for (InferOutput& o : response.outputs) {
          for (const auto& [key, name] : own.outputs) {
            if (key == o.tensor.name) s.tensors[name] = o.tensor;
          }
        }
        for (auto& [name, tensor] : s.tensors) tensor.name = name;
      });
      advance(flow);
    } catch (const std::exception&) {
      flow->fail(sched::current_error(), sched::Ending::failed);
    }
  };
  try {
    const std::shared_ptr<ServedModel> model = flow->model.find_(step.model, step.version_text());
    if (!model->takes_sequences()) request.sequence = {};
    model->infer(std::move(request), std::move(sink));
  } catch (const std::exception&) {
    flow->fail(sched::current_error().with("in ensemble, step '" + step.model + "'"), sched::Ending::failed);
  }
}

void EnsembleModel::drain() {
  const auto is_idle = [this] { return under_way_->runs.load() == 0 && under_way_->steps_told.load() == 0; };
  while (!is_idle()) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace trireme::serve
