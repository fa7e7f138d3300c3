// A model whose requests are batched: passes requests as tensors through the scheduler and answers them.
#include "serve/batched/batched_model.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "engine/device_notice.h"
#include "base/machine/cpu_info.h"
#include "sched/current_error.h"
#include "serve/config/run_config.h"
#include "serve/batched/row_answers.h"
#include "serve/seeing/price.h"

namespace trireme::serve {
namespace {

using tensor::Tensor;

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

/// What is told in place of an answer, of the exception in hand.
sched::Outcome failed_now() {
  return {.outputs = {}, .error = sched::current_error(), .ending = sched::Ending::failed, .timing = {}};
}

void show_cost(ModelMetrics& metrics, const MetricLabels& labels, const ModelHost& host, int threads) {
  const ServeOptions& o = host.options;
  const Prices prices = Prices::read(o.price_per_hour, o.prices, base::read_cpu_info().threads());
  if (prices.is_known()) metrics.show_cost(host.metrics, labels, prices.per_busy_second(o.device, threads));
}

}  // namespace

/// A client's request while its parts are in the scheduler. The thread that completes the last part answers.
struct BatchedModel::Work final : Call {
  using Call::Call;
  struct Part {
    sched::Outcome outcome;
    std::optional<ResponseCache::Key> key = std::nullopt;  ///< under which the outputs are cached
    SequenceBatcher::Turn turn = {};
  };
  std::vector<AnswerWish> wishes;
  int64_t rows = 0, tokens = 0;
  StringTable strings;                            ///< what handles of this request name
  std::shared_ptr<const base::MemoryLease> room;  ///< of these
  std::vector<std::vector<int64_t>> places;       ///< rows of each part in the request
  std::vector<Part> parts;
  std::atomic<size_t> left{0};
};

BatchedModel::BatchedModel(const ModelSource& source, const ModelHost& host, const ModelMetrics* earlier)
    : BatchedModel(load_batched_parts(source, host), source, host, earlier) {}

BatchedModel::BatchedModel(BatchedParts parts, const ModelSource& source, const ModelHost& host,
                           const ModelMetrics* earlier)
    : ServedModel(source, parts.config, host, earlier, parts.config.instances),
      parts_(std::move(parts)),
      border_(config()),
      form_(config(), std::move(parts_.labels)),
      queue_rules_(config(), host.options),
      streams_rows_(RunConfig::of(config().parameters).streams_rows),
      watch_(name(), version(), env()) {
  const ServeOptions& options = host.options;
  if (config().caches && options.cache_size.bytes > 0) cache_ = &host.cache;
  sched::SchedulerOptions own = scheduler_options(source, parts_, host);
  // The scheduler's order would not know of answers that are kept.
  if (cache_ != nullptr && std::exchange(own.preserves_order, false))
    order_ = std::make_unique<sched::OrderedRelease>();
  watch_.attach(own, host.metrics);
  show_cost(*metrics(), metric_labels(), host, own.session.threads);
  make_scheduler(std::move(own));
  if (config().sequence) {
    sequences_ = std::make_unique<SequenceBatcher>(
        parts_.layout, sequence_options(config(), options), env(),
        [this](sched::Request request) { scheduler_->submit(std::move(request)); });
  }
  if (RunConfig::of(config().parameters).image_input == data::PixelValues::off) return;
  constexpr int kMostThreads = 4;  // each may hold a decoded picture of ImageLimits::max_pixels
  const int threads = config().sequence ? 1 : std::clamp(base::read_cpu_info().threads(), 1, kMostThreads);
  preparing_ = std::make_unique<PreparingThreads>(threads, static_cast<size_t>(options.max_queue));
}

void BatchedModel::make_scheduler(sched::SchedulerOptions options) {
  const std::shared_ptr<const engine::PreparedModel> prepared = std::move(parts_.prepared);
  try {
    scheduler_ = std::make_unique<sched::Scheduler>(
        prepared, std::move(options), env().clock,
        [counts = metrics().get()](const sched::Timing& t) { counts->count_batch(t); });
  } catch (const base::Error& e) {
    const std::vector<std::string> devices = config().devices();
    const bool wants_gpus = std::any_of(devices.begin(), devices.end(),
                                        [](const std::string& d) { return d.starts_with("cuda"); });
    if (!wants_gpus) throw;
    throw e.with("instance_group.kind KIND_GPU");
  }
  const std::string on_host = scheduler_->host_operators();
  if (!on_host.empty())
    env().log.warning("serve", "host_fallback", {{"model", name()}, {"operators", on_host}});
  if (const std::string problem = scheduler_->warm_up_problem(); !problem.empty())
    env().log.warning("serve", "warm_up_failed", {{"model", name()}, {"reason", problem}});
  if (const std::string notice = engine::take_device_notice(*prepared); !notice.empty())
    env().log.warning("serve", "device_cache", {{"model", name()}, {"problem", notice}});
}

BatchedModel::~BatchedModel() {
  BatchedModel::stop();
  preparing_.reset();
  // A run that cannot be stopped uses the scheduler as long as it lasts, so the scheduler's memory is leaked.
  if (is_abandoned_) static_cast<void>(scheduler_.release());
  scheduler_.reset();  // no run hangs or comes back from here on
  if (cache_ != nullptr) cache_->forget(parts_.load_number);
}

void BatchedModel::stop() {
  constexpr int64_t kPatienceNs = 2 * base::kNsPerSecond;
  if (preparing_) preparing_->stop();
  if (sequences_) sequences_->stop();
  if (!scheduler_ || scheduler_->stop(scheduler_->stats().hung > 0 ? kPatienceNs : INT64_MAX)) return;
  is_abandoned_ = true;
  env().log.error("serve", "instance_abandoned", {{"model", name()}, {"version", version()}});
}

void BatchedModel::drain() {
  if (preparing_) preparing_->drain();
  if (sequences_) sequences_->drain();
  scheduler_->drain();
}

size_t BatchedModel::waiting() const {
  return scheduler_->stats().waiting + (sequences_ ? sequences_->waiting() : 0) +
         (preparing_ ? preparing_->waiting() : 0);
}

ServedModel::MemoryUse BatchedModel::memory() const {
  return {parts_.weight_bytes, scheduler_->stats().scratch_bytes};
}

/// For an encoder, only the text input; the configuration lists all alternatives as optional.
std::vector<TensorConfig> BatchedModel::offered_inputs() const {
  std::vector<TensorConfig> inputs = config().inputs;
  if (parts_.text) inputs.resize(parts_.text->text_inputs());
  return inputs;
}

/// The version before this one if the request continues a sequence that lives there, else null.
std::shared_ptr<BatchedModel> BatchedModel::home_of(const SequenceWish& wish) const {
  if (!sequences_ || wish.is_start || sequences_->knows(wish)) return nullptr;
  std::shared_ptr<BatchedModel> earlier = earlier_.copy();
  if (!earlier) return nullptr;
  return earlier->sequences_->knows(wish) || earlier->home_of(wish) ? earlier : nullptr;
}

bool BatchedModel::follow(const std::shared_ptr<ServedModel>& earlier) {
  auto same_kind = std::dynamic_pointer_cast<BatchedModel>(earlier);
  if (!sequences_ || !same_kind || !same_kind->sequences_ || earlier_.copy()) return false;
  earlier_.with([&](auto& now) { now = std::move(same_kind); });
  return true;
}

void BatchedModel::let_go_of_earlier() {
  const auto gone = earlier_.with([](auto& now) { return std::exchange(now, nullptr); });  // freed unlocked
}

bool BatchedModel::is_needed() const {
  const std::shared_ptr<BatchedModel> earlier = earlier_.copy();
  return (sequences_ && sequences_->has_sequences()) || (earlier && earlier->is_needed());
}

void BatchedModel::infer(InferRequest request, InferSink sink) {
  if (!tenants().is_on()) request.tenant.clear();  // fair sharing is off: the parameter has no meaning
  request.sequence.tenant = request.tenant;
  if (const auto earlier = home_of(request.sequence))
    return earlier->infer(std::move(request), std::move(sink));
  const auto work = std::make_shared<Work>(*this, request, std::move(sink));
  preparing_ ? prepare(work, std::move(request)) : start(work, std::move(request));
}

/// Decoding a small file may take long, so it is never done on the caller's thread, which serves connections.
void BatchedModel::prepare(const std::shared_ptr<Work>& work, InferRequest request) {
  try {
    preparing_->submit([this, work, given = std::make_shared<InferRequest>(std::move(request))] {
      try {
        if (work->is_cancelled()) {
          return work->fail(base::Error(base::ErrorCode::unavailable, "the client left"),
                            sched::Ending::cancelled);
        }
        start(work, std::move(*given));
      } catch (const std::exception&) {
        work->drop(sched::current_error());
      }
    });
  } catch (const base::Error&) {
    work->count_refusal();
    throw;
  }
}

void BatchedModel::start(const std::shared_ptr<Work>& work, InferRequest request) {
  std::vector<sched::Request> parts;
  try {
    parts = parts_of(request, *work);
  } catch (const base::Error&) {
    work->count_refusal();
    throw;
  }
  work->set_tenant(tenants().find(request.tenant));
  work->parts.resize(parts.size());
  work->left = parts.size();
  for (size_t i = 0; i < parts.size(); ++i) {
    sched::Request& part = parts[i];
    queue_rules_.apply(request, env().clock.now_ns(), part);
    part.tenant = work->tenant().number;
    part.weight = work->tenant().weight;
    part.cancelled = [work] { return work->is_cancelled(); };
    part.sink = [this, work, i](sched::Outcome&& outcome) { end_part(*work, i, std::move(outcome)); };
    if (!sequences_) {
      if (order_) order_->place(part.priority, part.sink);
      const sched::Sink sink = order_ ? part.sink : sched::Sink();
      try {
        const bool is_kept = cache_ != nullptr && answer_from_cache(*work, i, part, request.tenant);
        if (!is_kept) scheduler_->submit(std::move(part));
      } catch (const std::exception&) {
        if (!order_) throw;
        sink(failed_now());  // others may wait behind its place
      }
      continue;
    }
    try {
      sequences_->submit(std::move(part), request.sequence, work->parts[i].turn);
    } catch (const base::Error&) {
      work->count_refusal();
      throw;
    }
  }
}

/// Validates the request: whatever passes has the types and shapes for which the graph, the scheduler and the
/// batches are made.
std::vector<sched::Request> BatchedModel::parts_of(InferRequest& request, Work& work) const {
  base::require(sequences_ != nullptr || !request.sequence.is_any(), "sequence_id: model '", name(),
                "' has no sequence_batching");
  if (config().is_decoupled && !work.takes_parts())
    base::fail_unsupported("this call doesn't support models with decoupled transaction policy: ask '",
                           name(), "' by ModelStreamInfer or generate_stream");
  work.wishes = border_.wishes(request);
  std::vector<sched::Request> parts;
  const size_t text_inputs = parts_.text ? parts_.text->text_inputs() : 0;  // the others are the alternative
  if (parts_.text && parts_.text->is_for(request)) {
    const CheckedInputs texts =
        text_inputs == 1 ? border_.take_alone(request) : border_.take(request, 0, text_inputs);
    work.rows = texts.rows;
    for (TextFront::Group& g : parts_.text->encode(texts, config())) {
      const auto rows = static_cast<int64_t>(g.rows.size());
      work.tokens += g.tokens;
      work.places.push_back(std::move(g.rows));
      parts.push_back({.inputs = std::move(g.inputs), .rows = rows});
    }
    return parts;
  }
  if (parts_.text) parts_.text->complete(request);
  CheckedInputs inputs = border_.take(request, text_inputs);
  work.rows = inputs.rows;
  parts.push_back({.inputs = enter(std::move(inputs), work), .rows = work.rows});
  return parts;
}

/// Converts a client's tensors to the graph's tensors.
std::vector<Tensor> BatchedModel::enter(CheckedInputs inputs, Work& work) const {
  std::vector<Tensor> entered;
  const size_t first = parts_.text ? parts_.text->text_inputs() : 0;
  for (size_t i = 0; i < inputs.tensors.size(); ++i) {
    const TensorConfig& want = config().inputs[first + i];
    WireTensor& given = inputs.tensors[i];
    const tensor::Dims dims =
        want.reshape ? model_shape(want, config().is_batched(), given.dims) : tensor::Dims();
    entered.push_back(want.type ? std::move(given.values)
                                : parts_.strings.enter(std::move(given), work.strings));
    if (want.reshape) entered.back() = entered.back().reshaped(dims);
  }
  if (!work.strings.empty()) {
    int64_t bytes = 0;
    for (const std::string& s : work.strings) bytes += static_cast<int64_t>(s.size());
    work.room = room_for_strings(static_cast<int64_t>(work.strings.size()), bytes);
  }
  if (parts_.text) parts_.text->check_tokens(entered, config());
  return entered;
}

/// Returns true if the answer was cached; otherwise it will be cached when it is computed.
bool BatchedModel::answer_from_cache(Work& work, size_t index, const sched::Request& part,
                                     const std::string& tenant) {
  const int64_t start_ns = env().clock.now_ns();
  const ResponseCache::Key key = cache_->key_of(parts_.load_number, part.inputs, work.strings, tenant);
  std::optional<ResponseCache::Outputs> outputs = cache_->find(key);
  const int64_t now_ns = env().clock.now_ns();
  metrics()->count_lookup(outputs.has_value(), now_ns - start_ns);
  if (!outputs) {
    work.parts[index].key = key;
    return false;
  }
  sched::Outcome outcome{.outputs = std::move(*outputs), .error = std::nullopt};
  outcome.timing = {
      .enqueued_ns = start_ns, .started_ns = start_ns, .computed_ns = now_ns, .finished_ns = now_ns};
  part.sink(std::move(outcome));
  return true;
}

/// Ends a part after the scheduler's result, in this order: its sequence advances, the outputs are cached,
/// the client is answered.
void BatchedModel::end_part(Work& work, size_t index, sched::Outcome&& outcome) const {
  Work::Part& part = work.parts[index];
  SequenceBatcher::Freed freed;
  if (sequences_) freed = sequences_->end(part.turn, outcome);
  try {
    if (part.key && !outcome.error) cache_->insert(*part.key, outcome.outputs, parts_.load_number);
  } catch (const std::exception&) {
    // No memory for caching: the client is answered all the same.
  }
  part.outcome = std::move(outcome);
  if (work.left.fetch_sub(1) == 1) finish(work);
  if (sequences_) sequences_->go_on(std::move(freed));
}

/// Answers on a thread that others need: whatever goes wrong with one answer, the thread must go on.
void BatchedModel::finish(Work& work) const {
  try {
    for (const Work::Part& part : work.parts) {
      if (part.outcome.error) return fail(work, part.outcome);
    }
    work.answer([&] {
      if (config().is_decoupled) give_rows(work);
      InferResponse response = config().is_decoupled ? work.head() : response_of(work);
      response.is_decoupled = config().is_decoupled;
      response.timing = work.parts.back().outcome.timing;
      return response;
    });
  } catch (const std::exception&) {
    // There is no memory even for the error; the reply then reports that it was dropped.
  }
}

void BatchedModel::fail(Work& work, const sched::Outcome& outcome) const {
  if (config().is_decoupled) {
    const int64_t took_ns = env().clock.now_ns() - work.received_ns();
    ResponseStats& stats = metrics()->responses();
    outcome.ending == sched::Ending::cancelled ? stats.count_cancel(0, took_ns)
                                               : stats.count_failure(0, took_ns);
  }
  work.fail(*outcome.error, outcome.ending, outcome.timing);
}

/// Sends all answers of a decoupled model except the final one.
void BatchedModel::give_rows(Work& work) const {
  const std::vector<Tensor>& outputs = work.parts[0].outcome.outputs;
  const size_t axis = config().is_batched() ? 1 : 0;
  const int64_t count = streams_rows_ ? answer_count(outputs, axis) : 1;
  const sched::Timing& timing = work.parts[0].outcome.timing;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin_ns = env().clock.now_ns();
    // All answers are computed at once, so the first is charged with the time.
    const int64_t infer_ns = i == 0 ? timing.finished_ns - timing.computed_ns : 0;
    if (work.is_cancelled()) return metrics()->responses().count_cancel(i, infer_ns);
    InferResponse part = work.head();
    part.is_decoupled = true;
    part.is_final = false;
    for (const AnswerWish& wish : work.wishes) {
      const Tensor& all = outputs.at(wish.output);
      form_.add(part, wish, leave(wish.output, streams_rows_ ? answer_at(all, axis, i) : all, work.strings));
    }
    work.give_part(std::move(part), infer_ns, begin_ns);
  }
  metrics()->responses().count_empty(count, 0);  // the end is a response of its own
}

InferResponse BatchedModel::response_of(Work& work) const {
  InferResponse response = work.head();
  response.tokens = work.tokens;
  for (const AnswerWish& wish : work.wishes) {
    Tensor values = work.parts[0].outcome.outputs.at(wish.output);
    if (work.places.size() > 1) {
      std::vector<const Tensor*> groups;
      for (const Work::Part& part : work.parts) groups.push_back(&part.outcome.outputs.at(wish.output));
      values = merge_rows(groups, work.places, work.rows);
    }
    form_.add(response, wish, leave(wish.output, std::move(values), work.strings));
  }
  return response;
}

/// Converts a tensor of the graph to the client's tensor.
WireTensor BatchedModel::leave(size_t output, Tensor values, const StringTable& strings) const {
  const TensorConfig& config_of = config().outputs[output];
  if (config_of.reshape)
    values = values.reshaped(client_shape(config_of, config().is_batched(), values.dims()));
  if (parts_.strings.gives(config_of.name)) return parts_.strings.leave(config_of.name, values, strings);
  return {.name = config_of.name, .type = config_of.type, .dims = values.dims(), .values = std::move(values)};
}

}  // namespace trireme::serve
