// One version of a model, ready to serve: requests in, tensors through the scheduler, responses out.
#include "serve/models/batched_model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "sched/current_error.h"
#include "serve/infer/classify.h"

namespace trireme::serve {
namespace {

using tensor::Tensor;

constexpr const char* kText = "text";
constexpr uint32_t kDefaultPriority = 1u << 31;

std::string list_names(const std::vector<std::string>& names) {
  std::string out = "[";
  for (const std::string& n : names) out += (out.size() > 1 ? "," : "") + std::string("'") + n + "'";
  return out + "]";
}

/// Scatters the rows of groups into one tensor [rows, ...].
Tensor merge_rows(const std::vector<const Tensor*>& parts, const std::vector<std::vector<int64_t>>& places,
                  int64_t rows) {
  tensor::Dims dims = parts[0]->dims();
  dims[0] = rows;
  Tensor whole = Tensor::empty(parts[0]->dtype(), dims);
  const auto row_bytes = static_cast<size_t>(rows == 0 ? 0 : whole.bytes() / rows);
  for (size_t p = 0; p < parts.size(); ++p) {
    const std::byte* from = parts[p]->raw();
    for (int64_t row : places[p]) {
      std::memcpy(whole.mutable_raw() + static_cast<size_t>(row) * row_bytes, from, row_bytes);
      from += row_bytes;
    }
  }
  return whole;
}

}  // namespace

/// A client's request while its parts are in the scheduler. The thread that finishes the last part answers.
struct ServedModel::Call {
  std::string id;
  bool has_id = false;
  std::vector<Wish> wishes;
  InferSink sink;
  int64_t rows = 0;
  Tenant tenant;
  StringTable strings;                            ///< what handles of this request name
  std::shared_ptr<const base::MemoryLease> room;  ///< of these
  std::vector<std::vector<int64_t>> places;       ///< rows of each part in the request
  std::vector<sched::Outcome> outcomes;           ///< by part
  std::atomic<size_t> left{0};
};

std::vector<TokenGroup> ServedModel::groups_of(InferRequest& request, int64_t& rows) const {
  const WireTensor& text = request.inputs[0];
  base::require(request.inputs.size() == 1, "expected 1 inputs but got ", request.inputs.size(),
                " inputs for model '", name(), "': '", kText, "' stands alone");
  check_tensor(text, config_.inputs[0]);
  rows = text.dims[0];
  return text_->encode(text.strings, length_buckets_);
}

void ServedModel::check_tensor(const WireTensor& got, const TensorConfig& want) const {
  base::require(got.type == want.type, "inference input '", got.name, "' data-type is '", wire_name(got.type),
                "', but model '", name(), "' expects '", wire_name(want.type), "'");
  const size_t first = config_.is_batched() ? 1 : 0;
  bool fits = got.dims.size() == want.dims.size() + first;
  for (size_t d = 0; fits && d < want.dims.size(); ++d)
    fits = want.dims[d] == -1 || want.dims[d] == got.dims[first + d];
  if (!fits) {  // the words are made here alone: this is on the way of every request
    tensor::Dims expected = want.dims;
    if (first == 1) expected.insert(expected.begin(), -1);
    base::fail_invalid("unexpected shape for input '", got.name, "' for model '", name(), "'. Expected ",
                       tensor::to_string(expected), ", got ", tensor::to_string(got.dims));
  }
  base::require(!config_.is_batched() || got.dims[0] >= 1, "inference request batch-size must be >= 1 for '",
                name(), "', got ", got.dims.empty() ? 0 : got.dims[0]);
  base::require(!config_.is_batched() || got.dims[0] <= *config_.max_batch_size,
                "inference request batch-size must be <= ", config_.max_batch_size.value_or(0), " for '",
                name(), "', got ", got.dims.empty() ? 0 : got.dims[0]);
}

std::vector<Tensor> ServedModel::checked_inputs(InferRequest& request, Call& call) const {
  std::vector<std::string> missing;
  std::vector<Tensor> inputs;          // an ensemble's are its models' to check and convert
  std::vector<int64_t> extents;        // of the batch, by input
  const size_t first = text_ ? 1 : 0;  // a text model's first input is the alternative to its tensors
  for (size_t i = first; i < config_.inputs.size(); ++i) {
    const TensorConfig& want = config_.inputs[i];
    const auto at = std::find_if(request.inputs.begin(), request.inputs.end(),
                                 [&](const WireTensor& t) { return t.name == want.name; });
    if (at == request.inputs.end()) {
      missing.push_back(want.name);
      continue;
    }
    check_tensor(*at, want);
    extents.push_back(config_.is_batched() ? at->dims[0] : 1);
    const bool is_text = !want.type && !ensemble_;
    inputs.push_back(is_text ? strings_.enter(*at, call.strings) : std::move(at->values));
    if (want.reshape && !ensemble_) inputs.back() = inputs.back().reshaped(model_shape(want, at->dims));
  }
  const size_t wanted = config_.inputs.size() - first;
  if (!missing.empty() || request.inputs.size() != wanted) {
    std::vector<std::string> given;
    for (const WireTensor& t : request.inputs) given.push_back(t.name);
    base::fail_invalid("expected ", wanted, " inputs but got ", request.inputs.size(), " inputs for model '",
                       name(), "'. Got input(s) ", list_names(given), ", but missing required input(s) ",
                       list_names(missing), ". Please provide all required input(s).");
  }
  if (!call.strings.empty()) {
    int64_t bytes = 0;
    for (const std::string& s : call.strings) bytes += static_cast<int64_t>(s.size());
    call.room = room_for_strings(static_cast<int64_t>(call.strings.size()), bytes);
  }
  call.rows = extents.at(0);
  for (int64_t rows : extents) {
    base::require(rows == call.rows, "inputs of model '", name(), "' differ in their batch-size: ", call.rows,
                  " and ", rows);
  }
  if (text_) check_tokens(inputs);
  return inputs;
}

/// The extents that the model sees for those that a client sent: open ones in their order.
tensor::Dims ServedModel::model_shape(const TensorConfig& config, const tensor::Dims& sent) const {
  const size_t first = config_.is_batched() ? 1 : 0;
  std::vector<int64_t> open;
  for (size_t d = 0; d < config.dims.size(); ++d) {
    if (config.dims[d] == -1) open.push_back(sent[first + d]);
  }
  tensor::Dims dims;
  if (first == 1) dims.push_back(sent[0]);
  size_t next = 0;
  for (int64_t d : *config.reshape) dims.push_back(d == -1 ? open[next++] : d);
  return dims;
}

/// The reverse, for an output.
tensor::Dims ServedModel::client_shape(const TensorConfig& config, const tensor::Dims& made) const {
  const size_t first = config_.is_batched() ? 1 : 0;
  std::vector<int64_t> open;
  for (size_t d = 0; d < config.reshape->size() && first + d < made.size(); ++d) {
    if ((*config.reshape)[d] == -1) open.push_back(made[first + d]);
  }
  tensor::Dims dims;
  if (first == 1) dims.push_back(made[0]);
  size_t next = 0;
  for (int64_t d : config.dims) dims.push_back(d == -1 ? open.at(next++) : d);
  return dims;
}

void ServedModel::check_tokens(const std::vector<Tensor>& inputs) const {
  const Tensor& ids = inputs[0];  // [rows, length]
  base::require(ids.dims() == inputs[1].dims(), "unexpected shape for input '", config_.inputs[2].name,
                "' for model '", name(), "'. Expected ", tensor::to_string(ids.dims()), ", got ",
                tensor::to_string(inputs[1].dims()));
  base::require(ids.dims()[1] >= 1 && ids.dims()[1] <= length_buckets_.back(), "unexpected shape for input '",
                config_.inputs[1].name, "' for model '", name(), "': ", ids.dims()[1], " tokens, at most ",
                length_buckets_.back());
  for (int64_t id : ids.data<int64_t>()) {
    base::require(id >= 0 && id < vocab_, "token id ", id, " is outside of the vocabulary of ", vocab_);
  }
}

std::vector<ServedModel::Wish> ServedModel::wishes_of(const InferRequest& request) const {
  std::vector<Wish> wishes;
  if (request.outputs.empty()) {
    for (size_t i = 0; i < config_.outputs.size(); ++i) wishes.push_back({i, request.binary_output});
    return wishes;
  }
  for (const OutputWish& w : request.outputs) {
    const auto at = std::find_if(config_.outputs.begin(), config_.outputs.end(),
                                 [&](const TensorConfig& t) { return t.name == w.name; });
    base::require(at != config_.outputs.end(), "unexpected inference output '", w.name, "' for model '",
                  name(), "'");
    wishes.push_back({static_cast<size_t>(at - config_.outputs.begin()),
                      w.is_binary.value_or(request.binary_output), w.classification, w.span});
  }
  return wishes;
}

/// How long a request may wait and until when its answer is of use.
void ServedModel::set_times(const InferRequest& request, sched::Request& part) const {
  const QueuePolicy& queue = config_.queue_of(config_.priority_levels > 0 ? part.priority : 0);
  int64_t timeout_ns =
      queue.default_timeout_us > 0 ? queue.default_timeout_us * base::kNsPerUs : server_timeout_ns_;
  const bool may_override = queue.allow_timeout_override.value_or(true);
  if (may_override && request.timeout_us > 0 && request.timeout_us < INT64_MAX / 2 / base::kNsPerUs) {
    const int64_t asked_ns = static_cast<int64_t>(request.timeout_us) * base::kNsPerUs;
    timeout_ns = timeout_ns == 0 ? asked_ns : std::min(timeout_ns, asked_ns);
  }
  const int64_t until_ns = timeout_ns == 0 ? 0 : env_.clock.now_ns() + timeout_ns;
  part.finish_ns = request.deadline_ns;  // the caller's own: nobody listens after it
  part.runs_late = queue.runs_late;
  if (!is_deadline_aware_) {
    part.deadline_ns = until_ns;
  } else if (until_ns != 0) {
    part.finish_ns = part.finish_ns == 0 ? until_ns : std::min(part.finish_ns, until_ns);
  }
}

uint32_t ServedModel::priority_of(const InferRequest& request) const {
  const uint64_t levels = config_.priority_levels;
  if (levels > 0) {
    const bool is_level = request.priority >= 1 && request.priority <= levels;
    return static_cast<uint32_t>(is_level ? request.priority : config_.default_priority_level);
  }
  if (request.priority == 0) return kDefaultPriority;
  return static_cast<uint32_t>(std::min<uint64_t>(request.priority, kDefaultPriority));
}

/// The version before this one, if the request goes on with a sequence that lives there.
std::shared_ptr<ServedModel> ServedModel::home_of(const SequenceWish& wish) const {
  if (!sequences_ || wish.is_start || sequences_->knows(wish)) return nullptr;
  std::shared_ptr<ServedModel> earlier = earlier_.copy();
  if (!earlier) return nullptr;
  return earlier->sequences_->knows(wish) || earlier->home_of(wish) ? earlier : nullptr;
}

bool ServedModel::follow(const std::shared_ptr<ServedModel>& earlier) {
  if (!sequences_ || !earlier->sequences_ || earlier_.copy()) return false;
  earlier_.with([&](auto& now) { now = earlier; });
  return true;
}

void ServedModel::let_go_of_earlier() {
  const auto gone = earlier_.with([](auto& now) { return std::exchange(now, nullptr); });  // outside the lock
}

bool ServedModel::has_sequences() const {
  const std::shared_ptr<ServedModel> earlier = earlier_.copy();
  return (sequences_ && sequences_->has_sequences()) || (earlier && earlier->has_sequences());
}

void ServedModel::infer(InferRequest request, InferSink sink) {
  if (ensemble_) return infer_ensemble(std::move(request), std::move(sink));
  if (!tenants_.is_on()) request.tenant.clear();  // a parameter that says nothing here
  request.sequence.tenant = request.tenant;
  if (const auto earlier = home_of(request.sequence))
    return earlier->infer(std::move(request), std::move(sink));
  preparing_ ? infer_prepared(std::move(request), std::move(sink))
             : infer_now(std::move(request), std::move(sink));
}

/// A small file may take long to decode: never on the caller's thread, which has other connections.
void ServedModel::infer_prepared(InferRequest request, InferSink sink) {
  struct Given {
    InferRequest request;
    InferSink sink;
  };
  const auto given = std::make_shared<Given>(Given{std::move(request), std::move(sink)});
  try {
    preparing_->submit([this, given] {
      const std::function<void(const base::Error&)> failed = given->sink.failed;
      try {
        if (given->sink.cancelled && given->sink.cancelled()) {
          metrics_->count_failure(sched::Ending::cancelled, given->sink.received_ns, env_.clock.now_ns());
          return failed(base::Error(base::ErrorCode::unavailable, "the client left"));
        }
        infer_now(std::move(given->request), std::move(given->sink));
      } catch (const std::exception&) {
        failed(sched::current_error());
      }
    });
  } catch (const base::Error&) {
    metrics_->count_failure(sched::Ending::done, given->sink.received_ns, env_.clock.now_ns());
    throw;
  }
}

void ServedModel::infer_now(InferRequest request, InferSink sink) {
  auto call = std::make_shared<Call>();
  std::vector<sched::Request> parts;
  try {
    base::require(sequences_ != nullptr || !request.sequence.is_any(), "sequence_id: model '", name(),
                  "' has no sequence_batching");
    if (config_.is_decoupled && !sink.part)
      base::fail_unsupported("this call doesn't support models with decoupled transaction policy: ask '",
                             name(), "' by ModelStreamInfer or generate_stream");
    call->wishes = wishes_of(request);
    if (text_ && !request.inputs.empty() && request.inputs[0].name == kText) {
      for (TokenGroup& g : groups_of(request, call->rows)) {
        const int64_t rows = static_cast<int64_t>(g.rows.size());
        call->places.push_back(std::move(g.rows));
        parts.push_back({.inputs = {std::move(g.ids), std::move(g.mask)}, .rows = rows});
      }
      base::require(!parts.empty(), "unexpected shape for input '", kText, "' for model '", name(),
                    "'. Expected at least one text");
    } else {
      parts.emplace_back();
      parts[0].inputs = checked_inputs(request, *call);
      parts[0].rows = call->rows;
    }
  } catch (const base::Error&) {
    metrics_->count_failure(sched::Ending::done, sink.received_ns, env_.clock.now_ns());
    throw;
  }
  call->id = std::move(request.id);
  call->has_id = request.has_id;
  call->tenant = tenants_.find(request.tenant);
  call->sink = std::move(sink);
  call->outcomes.resize(parts.size());
  call->left = parts.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].priority = priority_of(request);
    parts[i].tenant = call->tenant.number;
    parts[i].weight = call->tenant.weight;
    set_times(request, parts[i]);
    parts[i].cancelled = [call] { return call->sink.cancelled && call->sink.cancelled(); };
    parts[i].sink = [this, call, i](sched::Outcome&& outcome) {
      call->outcomes[i] = std::move(outcome);
      if (call->left.fetch_sub(1) == 1) finish(*call);
    };
    if (cache_ != nullptr && answer_from_cache(parts[i], call->strings, request.tenant)) continue;
    if (!sequences_) {
      scheduler_->submit(std::move(parts[i]));
      continue;
    }
    try {
      sequences_->submit(std::move(parts[i]), request.sequence);
    } catch (const base::Error&) {
      metrics_->count_failure(sched::Ending::done, call->sink.received_ns, env_.clock.now_ns());
      throw;
    }
  }
}

/// True if the answer was there; else it will be kept when it comes.
bool ServedModel::answer_from_cache(sched::Request& part, const StringTable& strings,
                                    const std::string& tenant) {
  const int64_t start_ns = env_.clock.now_ns();
  const ResponseCache::Key key = cache_->key_of(load_number_, part.inputs, strings, tenant);
  std::optional<ResponseCache::Outputs> outputs = cache_->find(key);
  const int64_t now_ns = env_.clock.now_ns();
  metrics_->count_lookup(outputs.has_value(), now_ns - start_ns);
  if (outputs) {
    sched::Outcome outcome{.outputs = std::move(*outputs), .error = std::nullopt};
    outcome.timing = {
        .enqueued_ns = start_ns, .started_ns = start_ns, .computed_ns = now_ns, .finished_ns = now_ns};
    part.sink(std::move(outcome));
    return true;
  }
  part.sink = [cache = cache_, key, load = load_number_,
               sink = std::move(part.sink)](sched::Outcome&& outcome) {
    try {
      if (!outcome.error) cache->insert(key, outcome.outputs, load);
    } catch (const std::exception&) {
      // No memory to keep it: it is answered all the same.
    }
    sink(std::move(outcome));
  };
  return false;
}

ServedModel::~ServedModel() {
  stop();
  preparing_.reset();
  // A run that cannot be ended uses the scheduler as long as it goes on: better its memory is lost.
  if (is_abandoned_) static_cast<void>(scheduler_.release());
  scheduler_.reset();  // nothing hangs or comes back any more
  if (cache_ != nullptr) cache_->forget(load_number_);
  if (hung_) hung_->gauge->add(-hung_->instances.load());
}

void ServedModel::stop() {
  constexpr int64_t kPatienceNs = 2 * base::kNsPerSecond;
  if (preparing_) preparing_->stop();
  if (sequences_) sequences_->stop();
  if (!scheduler_ || scheduler_->stop(scheduler_->stats().hung > 0 ? kPatienceNs : INT64_MAX)) return;
  is_abandoned_ = true;
  env_.log.error("serve", "instance_abandoned", {{"model", name()}, {"version", version()}});
}

bool ServedModel::is_well() const { return !scheduler_ || scheduler_->stats().hung == 0; }

size_t ServedModel::waiting() const {
  if (ensemble_) return ensemble_->running();
  return scheduler_->stats().waiting + (sequences_ ? sequences_->waiting() : 0) +
         (preparing_ ? preparing_->waiting() : 0);
}

void ServedModel::drain() {
  if (ensemble_) return ensemble_->drain();
  if (preparing_) preparing_->drain();
  if (sequences_) sequences_->drain();
  scheduler_->drain();
}

InferResponse ServedModel::head_of(const Call& call) const {
  return {.id = call.id,
          .has_id = call.has_id,
          .model_name = name(),
          .model_version = version(),
          .outputs = {},
          .is_decoupled = config_.is_decoupled};
}

/// All answers of a decoupled model but the end.
void ServedModel::answer_parts(Call& call) const {
  const std::vector<Tensor>& outputs = call.outcomes[0].outputs;
  const size_t axis = config_.is_batched() ? 1 : 0;
  const int64_t count = streams_rows_ ? answer_count(outputs, axis) : 1;
  const sched::Timing& timing = call.outcomes[0].timing;
  ResponseStats& stats = metrics_->responses();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin_ns = env_.clock.now_ns();
    // All answers are computed at once, so the first one has the time.
    const int64_t infer_ns = i == 0 ? timing.finished_ns - timing.computed_ns : 0;
    if (call.sink.cancelled && call.sink.cancelled()) return stats.count_cancel(i, infer_ns);
    InferResponse part = head_of(call);
    part.is_final = false;
    for (const Wish& wish : call.wishes) {
      const Tensor& all = outputs.at(wish.output);
      add_output(part, wish, wire_output(wish, streams_rows_ ? answer_at(all, axis, i) : all, call.strings));
    }
    call.sink.part(std::move(part));
    const int64_t end_ns = env_.clock.now_ns();
    stats.count_answer(i, infer_ns, end_ns - begin_ns);
    if (i == 0) metrics_->count_first_response(end_ns - call.sink.received_ns);
  }
  stats.count_empty(count, 0);  // the end is an answer of its own
}

InferResponse ServedModel::response_of(Call& call) const {
  InferResponse response = head_of(call);
  for (const Wish& wish : call.wishes) {
    Tensor values = call.outcomes[0].outputs.at(wish.output);
    if (call.places.size() > 1) {
      std::vector<const Tensor*> parts;
      for (const sched::Outcome& o : call.outcomes) parts.push_back(&o.outputs.at(wish.output));
      values = merge_rows(parts, call.places, call.rows);
    }
    const TensorConfig& config = config_.outputs[wish.output];
    if (config.reshape) values = values.reshaped(client_shape(config, values.dims()));
    add_output(response, wish, wire_output(wish, std::move(values), call.strings));
  }
  return response;
}

WireTensor ServedModel::wire_output(const Wish& wish, Tensor values, const StringTable& strings) const {
  const TensorConfig& config = config_.outputs[wish.output];
  if (strings_.gives(config.name)) return strings_.leave(config.name, values, strings);
  return {.name = config.name, .type = config.type, .dims = values.dims(), .values = std::move(values)};
}

void ServedModel::add_output(InferResponse& response, const Wish& wish, WireTensor t) const {
  if (wish.classification > 0)
    t = classify(t, wish.classification, config_.is_batched(), labels_[wish.output]);
  response.outputs.push_back({std::move(t), wish.is_binary, wish.span});
}

/// An ensemble's request: its tensors are checked here, its steps' by the models.
void ServedModel::infer_ensemble(InferRequest request, InferSink sink) {
  const auto call = std::make_shared<Call>();
  try {
    base::require(takes_sequences() || !request.sequence.is_any(), "sequence_id: model '", name(),
                  "' has no step with sequence_batching");
    call->wishes = wishes_of(request);
    InferRequest checked = request;
    checked_inputs(checked, *call);
  } catch (const base::Error&) {
    metrics_->count_failure(sched::Ending::done, sink.received_ns, env_.clock.now_ns());
    throw;
  }
  call->id = request.id;
  call->has_id = request.has_id;
  call->sink = std::move(sink);
  Ensemble::Sink steps;
  steps.received_ns = call->sink.received_ns;
  steps.cancelled = call->sink.cancelled;
  const int64_t start_ns = env_.clock.now_ns();
  steps.failed = [this, call](const base::Error& e, sched::Ending ending) {
    metrics_->count_failure(ending, call->sink.received_ns, env_.clock.now_ns());
    call->sink.failed(e);
  };
  steps.done = [this, call, start_ns](Ensemble::Tensors&& tensors) {
    const int64_t now_ns = env_.clock.now_ns();
    const sched::Timing timing{.enqueued_ns = start_ns,
                               .started_ns = start_ns,
                               .computed_ns = start_ns,
                               .finished_ns = now_ns,
                               .batch_rows = call->rows,
                               .padded_rows = call->rows};
    try {
      InferResponse response{
          .id = call->id, .has_id = call->has_id, .model_name = name(), .model_version = version()};
      for (const Wish& wish : call->wishes)
        add_output(response, wish, std::move(tensors.at(config_.outputs[wish.output].name)));
      response.timing = timing;
      metrics_->count_batch(timing);
      hand_over(*call, std::move(response));
    } catch (const std::exception&) {
      metrics_->count_failure(sched::Ending::done, call->sink.received_ns, now_ns);
      call->sink.failed(sched::current_error());
    }
  };
  ensemble_->run(std::move(request), std::move(steps));
}

/// Answers on a thread that others need: whatever goes wrong with one answer, the thread goes on.
void ServedModel::finish(Call& call) const {
  try {
    answer(call);
  } catch (const std::exception&) {
    // Not even the error found memory; without its call the reply says that it was dropped.
  }
}

void ServedModel::answer(Call& call) const {
  const int64_t received_ns = call.sink.received_ns;
  const sched::Outcome* failed = nullptr;
  for (const sched::Outcome& o : call.outcomes) {
    if (o.error && failed == nullptr) failed = &o;
  }
  if (failed != nullptr) {
    const int64_t now_ns = env_.clock.now_ns();
    metrics_->count_failure(failed->ending, received_ns, now_ns);
    if (config_.is_decoupled && failed->ending == sched::Ending::cancelled)
      metrics_->responses().count_cancel(0, now_ns - received_ns);
    else if (config_.is_decoupled)
      metrics_->responses().count_failure(0, now_ns - received_ns);
    tenants_.count(call.tenant.number, failed->timing, failed->ending, 0);
    return call.sink.failed(*failed->error);
  }
  const sched::Timing timing = call.outcomes.back().timing;
  try {
    if (config_.is_decoupled) answer_parts(call);
    InferResponse response = config_.is_decoupled ? head_of(call) : response_of(call);
    response.timing = timing;
    hand_over(call, std::move(response));
  } catch (const std::exception&) {
    metrics_->count_failure(sched::Ending::done, received_ns, env_.clock.now_ns());
    call.sink.failed(sched::current_error());
  }
}

/// Throws what the sink throws where the answer has no wire form; then it is not counted.
void ServedModel::hand_over(Call& call, InferResponse&& response) const {
  bool is_counted = false;
  const auto count = [&, timing = response.timing] {
    if (std::exchange(is_counted, true)) return;
    const int64_t now_ns = env_.clock.now_ns(), received_ns = call.sink.received_ns;
    metrics_->count_success(timing, received_ns, now_ns, env_.clock.wall_ns() / base::kNsPerMs);
    tenants_.count(call.tenant.number, timing, sched::Ending::done, now_ns - received_ns);
  };
  const std::function<void()> before_send = std::ref(count);
  response.before_send = &before_send;
  call.sink.done(std::move(response));
  count();  // a sink inside the process has nothing to send
}

base::Json ServedModel::metadata(const std::vector<std::string>& versions) const {
  base::Json list = base::Json::array();
  for (const std::string& v : versions) list.push_back(v);
  return base::Json::object({{"name", name()},
                             {"versions", std::move(list)},
                             {"platform", config_.platform},
                             {"inputs", tensors_json(offered_inputs(), config_.is_batched())},
                             {"outputs", tensors_json(config_.outputs, config_.is_batched())}});
}

/// One alternative only, so that what a client reads in the metadata is one valid request; the configuration
/// lists all as optional.
std::vector<TensorConfig> ServedModel::offered_inputs() const {
  std::vector<TensorConfig> inputs = config_.inputs;
  if (text_) inputs.resize(1);
  return inputs;
}

ServedModel::MemoryUse ServedModel::memory() const {
  return {weight_bytes_, scheduler_ ? scheduler_->stats().scratch_bytes : 0};
}

base::Json ServedModel::stats() const {
  base::Json json = base::Json::object({{"name", name()}, {"version", version()}});
  metrics_->append_stats(json);
  const MemoryUse used = memory();
  json.set("memory_usage",
           base::Json::array({base::Json::object(
               {{"type", "CPU"}, {"id", 0}, {"byte_size", used.weight_bytes + used.scratch_bytes}})}));
  return json;
}

}  // namespace trireme::serve
