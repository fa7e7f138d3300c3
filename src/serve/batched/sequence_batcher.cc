// Keeps the requests of a sequence in order, and its state between them.
#include "serve/batched/sequence_batcher.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/files/file.h"
#include "sched/current_error.h"
#include "serve/config/regular_file.h"

namespace trireme::serve {
namespace {

using tensor::Tensor;
using Control = SequenceConfig::Control;

constexpr const char* kClosing = "the model is being unloaded, or the server is shutting down";
constexpr int64_t kSequencePatienceNs = base::kNsPerSecond;  // for sequences to end by themselves
constexpr int64_t kMostToldNs = 60 * base::kNsPerSecond;     // for which a lost slot is remembered
constexpr const char* kRevoked =
    "the sequence has lost its slot to a tenant that had less than its share of them";

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

/// Extents for one row, with 1 for open ones.
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
      read_regular_file(base::safe_join(root, "initial_state/" + state.initial_file), size_t{1} << 30);
  base::require(static_cast<int64_t>(bytes.size()) == out.bytes(), "initial state '", state.initial_file,
                "' has ", bytes.size(), " bytes, the state has ", out.bytes());
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(out.mutable_raw()));
  return out;
}

/// The state must fit the model's input, because a wrong one would fail at every request.
void check_state(const SequenceConfig::State& state, const tensor::TensorType& type, bool is_batched) {
  tensor::Dims dims = state.dims;
  if (is_batched) dims.insert(dims.begin(), -1);
  bool fits = state.type == type.dtype && (!type.shape.has_rank() || type.shape.rank() == dims.size());
  for (size_t d = 0; fits && type.shape.has_rank() && d < dims.size(); ++d)
    fits = dims[d] == -1 || !type.shape[d].is_static() || type.shape[d].value() == dims[d];
  base::require(fits, "state '", state.input, "' is ", config_type_name(state.type), " ",
                tensor::to_string(state.dims), is_batched ? " behind the batch" : "",
                ", the model's input is ", config_type_name(type.dtype), " ", type.shape.to_string());
}

/// True if a control of the type can hold the number, a uint64, or an int64 if `is_signed`.
bool holds(tensor::DType type, uint64_t number, bool is_signed) {
  bool fits = true;
  tensor::visit_dtype(type, [&]<class T>(T) {
    if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>)
      fits = is_signed ? std::in_range<T>(static_cast<int64_t>(number)) : std::in_range<T>(number);
  });
  return fits;
}

std::string id_of(const SequenceWish& wish) {
  return wish.text.empty() ? std::to_string(wish.number) : wish.text;
}

/// Contains the tenant with its length and the ID, so that no other tenant can form the same key.
std::string key_of(const SequenceWish& wish) {
  return base::concat(wish.tenant.size(), ' ', wish.tenant, wish.text.empty() ? '#' : '$', id_of(wish));
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
      base::require(!config.is_batched() || input.dims.empty() || input.dims[0] == 1, "control '", name,
                    "' has ", input.dims.empty() ? 0 : input.dims[0], " rows whatever the batch has");
      if (is_id) id_types_.push_back(input.type);
      has_number_ = has_number_ || (is_id && !is_text);
      has_text_ = has_text_ || is_text;
    } else if (state < config_.states.size()) {
      input.from = Input::From::state;
      input.index = state;
      check_state(config_.states[state], graph.type(id), config.is_batched());
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
  const bool is_spelt = !wish.text.empty() && has_text_;
  uint64_t number = wish.number;
  if (is_spelt) {
    int64_t spelt = 0;
    parse_number(wish.text, tensor::DType::i64, "sequence_id", &spelt);
    number = static_cast<uint64_t>(spelt);
  }
  for (const tensor::DType type : id_types_) {
    base::require(holds(type, number, is_spelt), "correlation ID of model '", model, "' is ",
                  is_spelt ? wish.text : std::to_string(number), ", which its input of ",
                  config_type_name(type), " does not hold");
  }
  return number;
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
  // Cloned, because a view of a row would keep the whole batch in memory as long as the sequence lives.
  for (size_t output : state_outputs_) states.push_back(outputs.at(output).clone());
  size_t index = 0;
  std::erase_if(outputs, [&](const Tensor&) { return is_hidden_output_[index++]; });
  return states;
}

SequenceBatcher::SequenceBatcher(std::shared_ptr<const SequenceLayout> layout, Options options,
                                 const base::Env& env, Submit submit)
    : layout_(std::move(layout)), options_(std::move(options)), env_(env), submit_(std::move(submit)) {
  sweeper_ = std::thread([this] { run_sweeps(); });
}

SequenceBatcher::~SequenceBatcher() { stop(); }

void SequenceBatcher::stop() {
  stop_.close();
  if (sweeper_.joinable()) sweeper_.join();
}

void SequenceBatcher::submit(sched::Request request, const SequenceWish& wish, Turn& turn) {
  base::require(wish.is_any(), "inference request to model '", options_.model,
                "' must specify a non-zero or non-empty correlation ID");
  const uint64_t number = layout_->number_of(wish, options_.model);
  base::require(request.rows == 1, "inference request to model '", options_.model,
                "' must specify batch-size 1 due to requirements of sequence batcher");
  const std::string key = key_of(wish);
  Items own(1);
  Item& item = own.front();
  turn = {.key = key, .is_start = wish.is_start, .is_end = wish.is_end};
  item.turn = &turn;
  item.request = std::move(request);
  Items ready;
  const char* refusal = table_.with([&](Table& table) -> const char* {
    auto at = table.sequences.find(key);
    if (at != table.sequences.end() && at->second.is_revoked) {
      const bool begins_anew = wish.is_start && !at->second.is_running;
      if (!begins_anew)
        base::fail(base::ErrorCode::unavailable, kRevoked, ": start ", id_of(wish), " of model '",
                   options_.model, "' again");
      table.sequences.erase(std::exchange(at, table.sequences.end()));
    }
    const bool is_live = at != table.sequences.end() && !at->second.has_ended;
    base::require(wish.is_start || is_live, "inference request for sequence ", id_of(wish), " to model '",
                  options_.model, "' must specify the START flag on the first request of the sequence");
    if (table.is_closing) return kClosing;
    const sched::Request& asked = item.request;
    if (!table.slots.may_wait(asked.tenant, asked.weight, table.waiting, options_.max_waiting))
      return "Exceeds maximum queue size";
    Sequence& sequence = find_or_add(table, key, number, item);
    sequence.items.splice(sequence.items.end(), own);
    sequence.has_ended = wish.is_end;
    sequence.last_ns = env_.clock.now_ns();
    ++table.waiting;
    table.slots.count(*sequence.claim, 1);
    give_slots(table, ready);
    take_next(table, sequence, ready);
    return nullptr;
  });
  if (refusal != nullptr) {
    item.reason = refusal;
    return refuse(item);
  }
  submit_all(std::move(ready));
}

SequenceBatcher::Sequence& SequenceBatcher::find_or_add(Table& table, const std::string& key, uint64_t number,
                                                        const Item& item) const {
  if (const auto at = table.sequences.find(key); at != table.sequences.end()) return at->second;
  Sequences own;
  Sequence& sequence = own[key];
  sequence.number = number;
  sequence.claim = table.slots.join(key, item.request.tenant, item.request.weight,
                                    env_.clock.now_ns());  // the last call that may throw
  table.sequences.merge(own);
  return sequence;
}

/// Moves the sequence's next request to `ready` if it may run.
void SequenceBatcher::take_next(Table& table, Sequence& s, Items& ready) const {
  if (!s.has_slot() || s.is_running || s.items.empty()) return;
  Item& item = s.items.front();
  const bool is_start = item.turn->is_start;
  sched::Request& request = item.request;
  s.is_running = true;
  item.turn->has_begun = true;
  --table.waiting;
  table.slots.count(*s.claim, -1);
  ready.splice(ready.end(), s.items, s.items.begin());
  if (options_.instances > 0) {  // first rows of all instances are used first
    const size_t slot = s.claim->slot();
    request.instance = static_cast<int>(slot % options_.instances);
    request.row = options_.has_rows ? static_cast<int64_t>(slot / options_.instances) : -1;
  }
  try {
    if (is_start) s.states = layout_->initial_states();
    request.inputs =
        layout_->assemble(std::move(request.inputs),
                          {.is_start = is_start, .is_end = item.turn->is_end, .number = s.number}, s.states);
  } catch (const std::exception&) {
    item.error = sched::current_error();
  }
}

void SequenceBatcher::end_sequence(Table& table, Sequences::iterator at, Items& ready) const {
  if (at->second.claim) table.slots.leave(*at->second.claim);
  table.sequences.erase(at);
  give_slots(table, ready);
}

void SequenceBatcher::give_slots(Table& table, Items& ready) const {
  while (const std::string* key = table.slots.next()) {
    Sequence& sequence = table.sequences.at(*key);
    table.slots.give(*sequence.claim);
    take_next(table, sequence, ready);
  }
}

/// Ends a turn. A sequence whose first request failed has no state to continue from: its waiting requests, up
/// to a new start, are refused, and later ones are told that a start is missing.
SequenceBatcher::Freed SequenceBatcher::end(Turn& turn, sched::Outcome& outcome) {
  Freed freed;
  if (!turn.has_begun) return freed;  // refused while it waited here
  std::vector<Tensor> states;
  try {
    if (!outcome.error) states = layout_->take_states(outcome.outputs);
  } catch (const std::exception&) {
    outcome = {.outputs = {},
               .error = sched::current_error(),
               .ending = sched::Ending::failed,
               .timing = outcome.timing};
  }
  table_.with([&](Table& table) {
    const auto at = table.sequences.find(turn.key);  // exists: a running sequence is never removed
    Sequence& s = at->second;
    s.is_running = false;
    s.last_ns = env_.clock.now_ns();
    if (s.is_revoked) return lose_slot(table, s, freed.ready);
    if (!outcome.error) s.states = std::move(states);
    const bool has_failed = outcome.error && turn.is_start;
    if (has_failed) drop_items(table, s, "the START request of the sequence failed", freed.refused);
    if ((turn.is_end || has_failed) && s.items.empty()) return end_sequence(table, at, freed.ready);
    take_next(table, s, freed.ready);
  });
  return freed;
}

void SequenceBatcher::go_on(Freed freed) {
  refuse_all(freed.refused);
  submit_all(std::move(freed.ready));
}

void SequenceBatcher::refuse_first(Table& table, Sequence& sequence, const char* reason, sched::Ending ending,
                                   Items& refused) {
  sequence.items.front().reason = reason;
  sequence.items.front().ending = ending;
  refused.splice(refused.end(), sequence.items, sequence.items.begin());
  --table.waiting;
  table.slots.count(*sequence.claim, -1);
}

/// Refuses what waits in a sequence, up to a request that starts it anew.
void SequenceBatcher::drop_items(Table& table, Sequence& sequence, const char* reason, Items& refused) {
  while (!sequence.items.empty() && !sequence.items.front().turn->is_start)
    refuse_first(table, sequence, reason, sched::Ending::refused, refused);
}

void SequenceBatcher::refuse(const Item& item) {
  sched::Outcome outcome{
      .outputs = {}, .error = std::nullopt, .ending = item.ending, .timing = item.request.timing};
  try {
    outcome.error.emplace(base::ErrorCode::unavailable, item.reason);
  } catch (const std::bad_alloc&) {
    outcome.error = sched::current_error();
  }
  item.request.sink(std::move(outcome));
}

void SequenceBatcher::refuse_all(const Items& items) {
  for (const Item& item : items) refuse(item);
}

void SequenceBatcher::submit_all(Items ready) {
  for (Item& item : ready) {
    const sched::Sink sink = item.request.sink;
    const sched::Timing timing = item.request.timing;
    try {
      if (!item.error) submit_(std::move(item.request));
    } catch (const std::exception&) {
      item.error = sched::current_error();
    }
    if (item.error)
      sink(
          {.outputs = {}, .error = std::move(item.error), .ending = sched::Ending::failed, .timing = timing});
  }
}

/// Whether nobody waits for the start of a sequence without a slot any more. For sequences with a slot, the
/// scheduler checks their requests one by one.
bool SequenceBatcher::is_dead(Table& table, Sequence& s, Items& refused) const {
  const int64_t now_ns = env_.clock.now_ns();
  while (!s.items.empty()) {
    const sched::Request& first = s.items.front().request;
    const bool is_gone = first.cancelled && first.cancelled();
    const bool is_late = (first.deadline_ns != 0 && !first.runs_late && now_ns > first.deadline_ns) ||
                         (first.finish_ns != 0 && now_ns > first.finish_ns);
    if (!is_gone && !is_late) return false;
    refuse_first(table, s, is_gone ? "the client left" : "Request timeout expired",
                 is_gone ? sched::Ending::cancelled : sched::Ending::expired, refused);
    drop_items(table, s, "the START request of the sequence was not run", refused);
  }
  return true;
}

/// Gives its slot to another tenant. Its key is kept for as long as it could have been idle, so that its
/// client is told the reason.
void SequenceBatcher::lose_slot(Table& table, Sequence& s, Items& ready) const {
  table.slots.leave(*s.claim);
  s.claim.reset();
  s.states.clear();
  give_slots(table, ready);
}

/// Moves slots from tenants above their share to those that wait. The tenant's most recent sequence loses its
/// slot, because it loses least. If its request is running, it goes when that ends, and no other goes before.
void SequenceBatcher::share_slots(Table& table, Items& ready, Items& refused) const {
  const auto is_going = [](const auto& entry) { return entry.second.is_revoked && entry.second.is_running; };
  if (std::any_of(table.sequences.begin(), table.sequences.end(), is_going)) return;
  const int64_t patience_ns = std::min(options_.idle_ns, kSequencePatienceNs);
  while (const auto debtor = table.slots.debtor(env_.clock.now_ns(), patience_ns)) {
    Sequence* last = nullptr;
    for (auto& [key, s] : table.sequences) {
      if (!s.has_slot() || s.claim->tenant() != *debtor) continue;
      if (last == nullptr || s.claim->order() > last->claim->order()) last = &s;
    }
    last->is_revoked = true;
    last->last_ns = env_.clock.now_ns();
    while (!last->items.empty()) refuse_first(table, *last, kRevoked, sched::Ending::refused, refused);
    if (last->is_running) return;
    lose_slot(table, *last, ready);
  }
}

void SequenceBatcher::sweep() {
  Items ready, refused;
  table_.with([&](Table& table) {
    const int64_t now_ns = env_.clock.now_ns();
    for (auto next = table.sequences.begin(); next != table.sequences.end();) {
      const auto at = next++;
      Sequence& s = at->second;
      const int64_t kept_ns = s.is_revoked ? std::min(options_.idle_ns, kMostToldNs) : options_.idle_ns;
      const bool is_quiet = !s.is_running && s.items.empty() && now_ns - s.last_ns > kept_ns;
      const bool waits = !s.has_slot() && !s.is_revoked;
      if (waits ? is_dead(table, s, refused) : is_quiet) end_sequence(table, at, ready);
    }
    share_slots(table, ready, refused);
  });
  refuse_all(refused);
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
  Items left;
  table_.with([&](Table& table) { table.is_closing = true; });
  const auto is_busy = [&] {
    return table_.with([](const Table& table) {
      return std::any_of(table.sequences.begin(), table.sequences.end(), [](const auto& entry) {
        const Sequence& s = entry.second;
        return s.is_running || (s.has_slot() && !s.items.empty());
      });
    });
  };
  while (is_busy()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  table_.with([&](Table& table) {
    for (auto& [key, s] : table.sequences) left.splice(left.end(), s.items);
    table.sequences.clear();
    table.slots = SequenceSlots(options_.slots);
    table.waiting = 0;
  });
  for (Item& item : left) item.reason = kClosing;
  refuse_all(left);
}

size_t SequenceBatcher::waiting() const {
  return table_.with([](const Table& table) { return table.waiting; });
}

bool SequenceBatcher::knows(const SequenceWish& wish) const {
  return table_.with([key = key_of(wish)](const Table& table) {
    const auto at = table.sequences.find(key);
    return at != table.sequences.end() && !at->second.has_ended && !at->second.is_revoked;
  });
}

bool SequenceBatcher::has_sequences() const {
  return table_.with([](const Table& table) {
    return std::any_of(table.sequences.begin(), table.sequences.end(),
                       [](const auto& entry) { return !entry.second.is_revoked; });
  });
}

}  // namespace trireme::serve
