// Keeps the requests of a sequence in order.
#include "serve/sequence_batcher.h"

#include <algorithm>
#include <chrono>

#include "base/file.h"

namespace trireme::serve {
namespace {

using tensor::Tensor;
using Control = SequenceConfig::Control;

template <class T>
size_t index_of(const std::vector<T>& list, const std::string& name, std::string T::*member) {
  const auto at = std::find_if(list.begin(), list.end(), [&](const T& item) { return item.*member == name; });
  return static_cast<size_t>(at - list.begin());
}

Tensor filled(tensor::DType type, const tensor::Dims& dims, auto value) {
  Tensor out = Tensor::empty(type, dims);
  tensor::visit_dtype(type, [&]<class T>(T) {
    if constexpr (std::is_arithmetic_v<T>) {
      for (T& v : out.template mutable_data<T>()) v = static_cast<T>(value);
    } else {
      base::fail_unsupported("a control of type ", tensor::name_of(type));
    }
  });
  return out;
}

/// Extents for one row: open ones are 1.
tensor::Dims row_dims(const tensor::TensorType& type) {
  tensor::Dims dims;
  for (const tensor::Dim& d : type.shape.dims()) dims.push_back(d.is_static() ? d.value() : 1);
  return dims;
}

Tensor initial_state(const SequenceConfig::State& state, bool is_batched, const std::string& root) {
  tensor::Dims dims = state.dims;
  if (is_batched) dims.insert(dims.begin(), 1);
  Tensor out = Tensor::zeros(*state.type, dims);
  if (state.initial_file.empty()) return out;
  const std::string bytes =
      base::read_file(base::safe_join(root, "initial_state/" + state.initial_file), size_t{1} << 30);
  base::require(static_cast<int64_t>(bytes.size()) == out.bytes(), "initial state '", state.initial_file,
                "' has ", bytes.size(), " bytes, the state has ", out.bytes());
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(out.mutable_raw()));
  return out;
}

std::string key_of(const SequenceWish& wish) {
  return wish.text.empty() ? "#" + std::to_string(wish.number) : "$" + wish.text;
}

void refuse(sched::Request& request, const char* message) {
  request.sink({.outputs = {},
                .error = base::Error(base::ErrorCode::unavailable, message),
                .ending = sched::Ending::refused,
                .timing = request.timing});
}

}  // namespace

SequenceLayout::SequenceLayout(const ModelConfig& config, const ir::Graph& graph, const StringPorts& strings,
                               const std::string& root)
    : config_(*config.sequence) {
  size_t made = 0;
  for (ir::ValueId id : graph.inputs()) {
    const std::string& name = graph.value(id).name;
    Input input{.type = graph.type(id).dtype, .dims = row_dims(graph.type(id))};
    const size_t control = index_of(config_.controls, name, &SequenceConfig::Control::name);
    const size_t state = index_of(config_.states, name, &SequenceConfig::State::input);
    if (control < config_.controls.size()) {
      input.from = Input::From::control;
      input.index = control;
      const WireType type = config_.controls[control].type;
      const bool is_text = strings.takes(name),
                 is_id = config_.controls[control].kind == Control::Kind::corrid;
      base::require(is_text ? !type && is_id : type == input.type, "control '", name, "' is ",
                    config_type_name(type), ", the model has ",
                    config_type_name(is_text ? WireType() : input.type));
      if (is_text && strings.is_handle(name)) {
        base::fail_unsupported("control '", name,
                               "': a correlation ID of TYPE_STRING must be cast to a number");
      }
      has_number_ = has_number_ || (is_id && !is_text);
      has_text_ = has_text_ || is_text;
    } else if (state < config_.states.size()) {
      input.from = Input::From::state;
      input.index = state;
      base::require(config_.states[state].type == input.type, "state '", name, "' is of another type");
    } else {
      input.index = inputs_.size() - made;
    }
    made += input.from != Input::From::client;
    inputs_.push_back(std::move(input));
  }
  base::require(made == config_.controls.size() + config_.states.size(),
                "sequence_batching names an input that the model does not have");
  const auto& names = graph.output_names();
  for (const SequenceConfig::State& s : config_.states) {
    const auto at = std::find(names.begin(), names.end(), s.output);
    base::require(at != names.end(), "the model has no output '", s.output, "' for its state");
    state_outputs_.push_back(static_cast<size_t>(at - names.begin()));
    initial_.push_back(initial_state(s, config.is_batched(), root));
  }
  for (const std::string& name : names) {
    is_hidden_output_.push_back(index_of(config.outputs, name, &TensorConfig::name) == config.outputs.size());
  }
}

Tensor SequenceLayout::control(const Input& input, const Step& step) const {
  using Kind = Control::Kind;
  const Control& c = config_.controls[input.index];
  if (c.kind == Kind::corrid) return filled(input.type, input.dims, step.number);
  const bool is_true = c.kind == Kind::start ? step.is_start
                       : c.kind == Kind::end ? step.is_end
                                             : step.is_ready;
  return filled(input.type, input.dims, is_true ? c.when_true : c.when_false);
}

uint64_t SequenceLayout::number_of(const SequenceWish& wish, const std::string& model) const {
  base::require(wish.text.empty() || !has_number_, "correlation ID of model '", model,
                "' must be a number, got '", wish.text, "'");
  if (wish.text.empty() || !has_text_) return wish.number;
  int64_t number = 0;
  parse_number(wish.text, tensor::DType::i64, "sequence_id", &number);
  return static_cast<uint64_t>(number);
}

std::vector<Tensor> SequenceLayout::assemble(std::vector<Tensor> client, const Step& step,
                                             const std::vector<Tensor>& states) const {
  std::vector<Tensor> all;
  for (const Input& input : inputs_) {
    switch (input.from) {
      case Input::From::client: all.push_back(std::move(client.at(input.index))); break;
      case Input::From::control: all.push_back(control(input, step)); break;
      case Input::From::state: all.push_back(states.at(input.index)); break;
    }
  }
  return all;
}

std::vector<Tensor> SequenceLayout::take_states(std::vector<Tensor>& outputs) const {
  std::vector<Tensor> states;
  // Copies: a row's view would keep the whole batch in memory for as long as the sequence lives.
  for (size_t output : state_outputs_) states.push_back(outputs.at(output).clone());
  size_t index = 0;
  std::erase_if(outputs, [&](const Tensor&) { return is_hidden_output_[index++]; });
  return states;
}

SequenceBatcher::SequenceBatcher(std::shared_ptr<const SequenceLayout> layout, Options options,
                                 const base::Env& env, Submit submit)
    : layout_(std::move(layout)), options_(std::move(options)), env_(env), submit_(std::move(submit)) {
  table_.with([&](Table& table) {
    for (size_t slot = 0; slot < options_.slots; ++slot) table.free.insert(table.free.end(), slot);
  });
  sweeper_ = std::thread([this] { run_sweeps(); });
}

SequenceBatcher::~SequenceBatcher() { stop(); }

void SequenceBatcher::stop() {
  stop_.close();
  if (sweeper_.joinable()) sweeper_.join();
}

void SequenceBatcher::submit(sched::Request request, const SequenceWish& wish) {
  base::require(wish.is_any(), "inference request to model '", options_.model,
                "' must specify a non-zero or non-empty correlation ID");
  const uint64_t number = layout_->number_of(wish, options_.model);
  base::require(request.rows == 1, "inference request to model '", options_.model,
                "' must specify batch-size 1 due to requirements of sequence batcher");
  const std::string key = key_of(wish);
  Ready ready;
  const char* refusal = table_.with([&](Table& table) -> const char* {
    const auto at = table.sequences.find(key);
    const bool is_live = at != table.sequences.end() && !at->second.has_ended;
    base::require(wish.is_start || is_live, "inference request for sequence ", key.substr(1), " to model '",
                  options_.model, "' must specify the START flag on the first request of the sequence");
    if (table.is_closing) return "the server is shutting down";
    if (table.waiting >= options_.max_waiting) return "Exceeds maximum queue size";
    Sequence& sequence = table.sequences[key];
    if (at == table.sequences.end()) {
      sequence.number = number;
      table.backlog.push_back(key);
    }
    sequence.items.push_back({std::move(request), wish.is_start, wish.is_end});
    sequence.has_ended = wish.is_end;
    sequence.last_ns = env_.clock.now_ns();
    ++table.waiting;
    release_slot(table, "", ready);
    take_next(table, key, ready);
    return nullptr;
  });
  if (refusal != nullptr) return refuse(request, refusal);
  submit_all(std::move(ready));
}

/// Puts the sequence's next request into `ready`, if it may run.
void SequenceBatcher::take_next(Table& table, const std::string& key, Ready& ready) {
  const auto at = table.sequences.find(key);
  if (at == table.sequences.end()) return;
  Sequence& s = at->second;
  if (!s.has_slot || s.is_running || s.items.empty()) return;
  Item item = std::move(s.items.front());
  s.items.pop_front();
  --table.waiting;
  s.is_running = true;
  if (item.is_start) s.states = layout_->initial_states();
  sched::Request& request = item.request;
  request.inputs =
      layout_->assemble(std::move(request.inputs),
                        {.is_start = item.is_start, .is_end = item.is_end, .number = s.number}, s.states);
  if (options_.instances > 0) {  // first rows of all instances first
    request.instance = static_cast<int>(s.slot % options_.instances);
    request.row = options_.has_rows ? static_cast<int64_t>(s.slot / options_.instances) : -1;
  }
  request.sink = [this, key, is_end = item.is_end, sink = std::move(request.sink)](sched::Outcome&& outcome) {
    finish(key, is_end, std::move(outcome), sink);
  };
  ready.push_back(std::move(request));
}

/// Ends a sequence (if named) and gives free slots to those who wait longest.
void SequenceBatcher::release_slot(Table& table, const std::string& key, Ready& ready) {
  const auto at = table.sequences.find(key);
  if (at != table.sequences.end()) {
    if (at->second.has_slot) table.free.insert(at->second.slot);
    table.sequences.erase(at);
  }
  while (!table.free.empty() && !table.backlog.empty()) {
    const std::string next = std::move(table.backlog.front());
    table.backlog.pop_front();
    Sequence& sequence = table.sequences.at(next);
    sequence.has_slot = true;
    sequence.slot = *table.free.begin();
    table.free.erase(table.free.begin());
    take_next(table, next, ready);
  }
}

void SequenceBatcher::finish(const std::string& key, bool is_end, sched::Outcome&& outcome,
                             const std::function<void(sched::Outcome&&)>& sink) {
  std::vector<Tensor> states;
  if (!outcome.error) states = layout_->take_states(outcome.outputs);
  Ready ready;
  table_.with([&](Table& table) {
    Sequence& s = table.sequences.at(key);  // a running one is never taken away
    s.is_running = false;
    s.last_ns = env_.clock.now_ns();
    if (!outcome.error) s.states = std::move(states);
    if (is_end && s.items.empty()) return release_slot(table, key, ready);
    take_next(table, key, ready);
  });
  sink(std::move(outcome));
  submit_all(std::move(ready));
}

void SequenceBatcher::submit_all(Ready ready) {
  for (sched::Request& request : ready) submit_(std::move(request));
}

void SequenceBatcher::sweep() {
  Ready ready;
  table_.with([&](Table& table) {
    const int64_t now_ns = env_.clock.now_ns();
    std::vector<std::string> idle;
    for (const auto& [key, s] : table.sequences) {
      const bool is_quiet = !s.is_running && s.items.empty();
      if (is_quiet && s.has_slot && now_ns - s.last_ns > options_.idle_ns) idle.push_back(key);
    }
    for (const std::string& key : idle) release_slot(table, key, ready);
  });
  submit_all(std::move(ready));
}

void SequenceBatcher::run_sweeps() {
  const int64_t step_ns = std::clamp(options_.idle_ns / 4, 5 * base::kNsPerMs, 250 * base::kNsPerMs);
  while (!stop_.closed()) {
    stop_.pop_until(env_.clock.now_ns() + step_ns);
    sweep();
  }
}

void SequenceBatcher::drain() {
  Ready never;
  std::vector<Item> left;
  table_.with([&](Table& table) { table.is_closing = true; });
  const auto is_busy = [&] {
    return table_.with([](const Table& table) {
      return std::any_of(table.sequences.begin(), table.sequences.end(), [](const auto& entry) {
        const Sequence& s = entry.second;
        return s.is_running || (s.has_slot && !s.items.empty());
      });
    });
  };
  while (is_busy()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  table_.with([&](Table& table) {
    for (auto& [key, s] : table.sequences) {
      for (Item& item : s.items) left.push_back(std::move(item));
    }
    table.sequences.clear();
    table.backlog.clear();
    table.waiting = 0;
  });
  for (Item& item : left) refuse(item.request, "the server is shutting down");
}

size_t SequenceBatcher::waiting() const {
  return table_.with([](const Table& table) { return table.waiting; });
}

}  // namespace trireme::serve
