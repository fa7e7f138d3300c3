// A session runs a prepared model.
#include "engine/session/session.h"

#include <algorithm>
#include <utility>

#include "base/machine/cpu_info.h"
#include "base/machine/memory.h"
#include "base/memory/memory_budget.h"
#include "engine/ranks/sharded_session.h"
#include "passes/lists/lists.h"
#include "runtime/open_device.h"

namespace trireme::engine {
namespace {

/// The most memory that programs may use.
int64_t memory_of(const SessionOptions& options, const tensor::Device& device) {
  if (options.memory_bytes > 0) return options.memory_bytes;
  if (options.plan_only && runtime::kind_of_device(options.device) != tensor::DeviceKind::cpu)
    return INT64_MAX;  // of a device that is not present
  if (device.memory_bytes() > 0) return device.memory_bytes();
  return std::min(base::memory_limit_bytes(), base::process_memory().limit_bytes());
}

}  // namespace

Session::Session(std::shared_ptr<const PreparedModel> model, const SessionOptions& options)
    : model_(std::move(model)),
      pool_(options.strategy.world() > 1 ? 1
            : options.threads > 0        ? options.threads
                                         : base::read_cpu_info().threads(),
            options.strategy.world() > 1 ? std::vector<int>() : options.cpus),
      device_(runtime::open_device(options.plan_only ? "cpu" : options.device)),
      stream_(device_->open_stream(pool_)),
      arena_(*device_),
      context_{.device = *device_,
               .stream = *stream_,
               .pool = pool_,
               .packs = model_->packs(),
               .arena = arena_,
               .compile = {.on = runtime::kind_of_device(options.device),
                           .device = options.plan_only ? nullptr : device_.get(),
                           .host_fallback = options.host_fallback,
                           .threads = pool_.size(),
                           .only_kernel = options.only_kernel,
                           .memory_bytes = memory_of(options, *device_)},
               .passes = options.passes,
               .strategy = options.strategy,
               .max_programs = options.max_programs,
               .on = runtime::bind_device(*device_, pool_, model_->packs(), options.graphs),
               .plan_only = options.plan_only,
               .stop = options.stop},
      runner_(model_->graph(), context_) {
  options.strategy.check(passes::Purpose::inference);
  base::check(options.strategy.world() == 1 || model_->weights().stored() == 0,
              "weights of a model that several ranks hold are stored by the ranks");
  base::check(options.strategy.world() == 1 || !options.plan_only,
              "a rank's programs are planned by lower::RankPart, without a session");
  if (options.strategy.world() > 1) sharded_ = std::make_unique<ShardedSession>(model_, options);
}

Session::~Session() = default;

std::vector<tensor::Tensor> Session::run(const std::vector<tensor::Tensor>& inputs, runtime::Trace* trace) {
  if (sharded_ != nullptr) return sharded_->run(inputs, trace);
  struct Trim {  // also after failures
    Session& session;
    ~Trim() { session.trim(); }
  } trim{*this};
  return runner_.run(inputs, trace);
}

void Session::trim() {
  constexpr int64_t kFoldedPart = 16;  // a sixteenth of what the process may use
  arena_.trim();
  if (std::exchange(trimmed_at_, context_.compiles) == context_.compiles) return;
  runner_.trim(base::process_memory().limit_bytes() / kFoldedPart);
}

void Session::run_into(const std::vector<tensor::Tensor>& inputs, std::vector<tensor::Tensor>& outputs,
                       runtime::Trace* trace) {
  if (sharded_ != nullptr) return sharded_->run_into(inputs, outputs, trace);
  runner_.run_into(inputs, outputs, trace);
}

const compile::Program& Session::prepare(const std::vector<tensor::Dims>& shapes) {
  return sharded_ != nullptr ? sharded_->prepare(shapes) : runner_.program_for(shapes);
}

int64_t Session::slices(const std::vector<tensor::Dims>& shapes) {
  return sharded_ != nullptr ? 1 : runner_.slices(shapes);
}

bool Session::keeps_rows_apart(const std::vector<tensor::Dims>& shapes) {
  return runner_.keeps_rows_apart(shapes);
}

bool Session::is_static(const std::vector<tensor::Dims>& shapes) {
  return sharded_ != nullptr || runner_.is_static(shapes);
}

bool Session::last_was_static() const { return sharded_ != nullptr || runner_.last_was_static(); }

std::string Session::host_operators() const { return runner_.host_operators(); }

int64_t Session::arena_bytes() const {
  return sharded_ != nullptr ? sharded_->arena_bytes() : arena_.bytes();
}

}  // namespace trireme::engine
