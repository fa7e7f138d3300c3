// The model repository: loads models, tolerates broken ones, and replaces them under load.
#include "serve/repository/repository.h"

#include <algorithm>
#include <filesystem>

#include "base/machine/cpu_info.h"
#include "base/files/file.h"
#include "base/files/inside_path.h"
#include "sched/current_error.h"
#include "serve/models/kept_pages.h"
#include "serve/models/text_model.h"
#include "serve/repository/load_served_model.h"
#include "serve/repository/repository_files.h"

namespace trireme::serve {
namespace {

constexpr const char* kUnloaded = "unloaded";

std::string failures_of(const CatalogModel& model) {
  std::string text = model.versions.empty() ? model.reason : "";
  for (const auto& [number, version] : model.versions) {
    if (version.model) continue;
    text += "version " + std::to_string(number) + " is at UNAVAILABLE state: " + version.reason + ";";
  }
  return text;
}

std::vector<sched::RateTotal> totals_of(const ServeOptions& options) {
  std::vector<sched::RateTotal> totals;
  for (const std::string& text : options.rate_limit_resource) totals.push_back(sched::RateTotal::parse(text));
  return totals;
}

/// Polling threads use up the processor time that a control group allows, which would delay the batches.
std::shared_ptr<base::HaltPolling> halt_polling(const ServeOptions& options, base::Log& log) {
  if (options.halt_poll.ns == 0) return nullptr;
  const base::CpuInfo cpu = base::read_cpu_info();
  if (cpu.quota > 0 && cpu.quota < static_cast<double>(cpu.allowed.size())) {
    log.warning("serve", "halt_poll_left_out",
                {{"reason", "a control group limits processor time"}, {"processors", cpu.quota}});
    return nullptr;
  }
  return std::make_shared<base::HaltPolling>(options.halt_poll.ns, cpu.allowed);
}

/// The models that an ensemble's steps name, by `given` or its directory; empty for other models.
std::vector<std::string> members(const std::vector<std::string>& roots, const std::string& name,
                                 const LoadOverride& given = {}) {
  std::vector<std::string> list;
  try {
    const std::vector<std::string> homes = model_homes(roots, name);
    if (!given.config && homes.empty()) return list;
    const ModelConfig config =
        given.config ? parse_model_config_json(*given.config) : read_config(homes[0], name);
    if (!config.ensemble) return list;
    for (const EnsembleConfig::Step& step : config.ensemble->steps) list.push_back(step.model);
  } catch (const base::Error&) {
    list.clear();  // loading it will report the error
  }
  return list;
}

/// The same for an ensemble that is being served.
std::vector<std::string> served_members(const Catalog& now, const std::vector<std::string>& roots,
                                        const std::string& name) {
  std::vector<std::string> list;
  const auto at = now.models.find(name);
  if (at == now.models.end() || !at->second.serves()) return members(roots, name);
  for (const auto& [number, version] : at->second.versions) {
    if (!version.model || !version.model->config().ensemble) continue;
    for (const EnsembleConfig::Step& step : version.model->config().ensemble->steps)
      list.push_back(step.model);
  }
  return list;
}

/// Shows metrics of the serving versions only, so that a scrape does not grow with every version ever served.
/// Those of a language model's texts are of the model, whichever version serves.
void show_metrics(MetricRegistry& metrics, const Catalog& catalog, const std::string& model) {
  metrics.show_only({"model", model}, "version", catalog.versions(model));
  const auto at = catalog.models.find(model);
  const bool has_texts =
      at != catalog.models.end() &&
      std::any_of(at->second.versions.begin(), at->second.versions.end(), [](const auto& numbered) {
        const std::shared_ptr<ServedModel>& version = numbered.second.model;
        return version != nullptr && version->texts() != nullptr;
      });
  metrics.show_only({"model_name", model}, "engine",
                    has_texts ? std::vector<std::string>{"0"} : std::vector<std::string>{});
}

/// Changes an adapter of a serving model; its directory must be in one of the repositories.
void change_adapter(const AdapterChange& change, const std::shared_ptr<ServedModel>& model,
                    const std::vector<std::string>& roots) {
  TextModel* texts = model->texts();
  if (texts == nullptr) base::fail_unsupported("adapters of '", change.model, "', which continues no texts");
  if (change.path.empty()) return texts->unload_adapter(change.adapter);
  const std::vector<std::string> homes = model_homes(roots, change.model);
  const std::filesystem::path given(change.path);
  const std::string path =
      given.is_absolute() || homes.empty() ? change.path : (std::filesystem::path(homes[0]) / given).string();
  for (const std::string& root : roots) {
    if (const auto inside = base::path_inside(root, path))
      return texts->load_adapter(change.adapter, *inside);
  }
  base::fail(base::ErrorCode::not_found, "no directory '", change.path, "' in a model repository");
}

}  // namespace

/// What models share with their server, except what the server itself is given.
struct Repository::Shared {
  Shared(const ServeOptions& options, base::Log& log, const base::Clock& clock, MetricRegistry& metrics)
      : cache(static_cast<size_t>(options.cache_size.bytes)),
        limiter(totals_of(options)),
        polling(halt_polling(options, log)),
        keys(options.access.api_keys, clock, metrics),
        tenants(options.tenant_by, options.tenant, options.tenants_unlisted, metrics, &keys),
        pages(open_page_store(options, metrics)) {}

  ResponseCache cache;
  sched::RateLimiter limiter;
  const std::shared_ptr<base::HaltPolling> polling;  ///< null: not asked for, or somebody else would pay
  ApiKeys keys;
  Tenants tenants;
  const std::shared_ptr<engine::PageStore> pages;  ///< null: nothing is kept of what texts give up
};

Repository::Repository(const ServeOptions& options, const base::Env& env, MetricRegistry& metrics)
    : options_(options),
      env_(env),
      metrics_(metrics),
      shared_(std::make_unique<Shared>(options, env.log, env.clock, metrics)),
      catalog_(std::make_shared<const Catalog>()),
      files_(options.model_repository, options.others),
      changes_(env) {}

Repository::~Repository() { close(); }

const Tenants& Repository::tenants() const { return shared_->tenants; }
ApiKeys& Repository::keys() const { return shared_->keys; }

/// All models stop before the first is destroyed: an ensemble's runs end on the threads of its members.
void Repository::close() {
  changes_.stop();
  auto last = std::make_shared<const Catalog>();
  catalog_.with([&](auto& now) { now.swap(last); });
  old_.stop();
  for (const auto& model : last->serving()) model->stop();
}

void Repository::load() {
  std::vector<std::string> names = model_names(options_.model_repository);
  if (options_.model_control == ModelControl::explicitly) {
    const auto& wanted = options_.load_model;
    if (std::find(wanted.begin(), wanted.end(), "*") == wanted.end()) names = wanted;
  }
  // Ensembles are loaded last, because their members must be present.
  std::stable_partition(names.begin(), names.end(), [this](const std::string& n) {
    return members(options_.model_repository, n).empty();
  });
  for (const std::string& name : names) {
    try {
      files_.note(name);
      load_now(name);
    } catch (const std::exception& e) {
      env_.log.error("serve", "model_failed", {{"model", name}, {"reason", e.what()}});
      list_failure(name, e.what());
    }
  }
  if (options_.model_control == ModelControl::poll && options_.poll_interval.ns > 0)
    next_poll_ns_ = env_.clock.now_ns() + options_.poll_interval.ns;
  changes_.start([this] { return look(); });
}

/// Lists a model that could not be loaded, and of which nothing else is listed, with the reason.
void Repository::list_failure(const std::string& name, const std::string& reason) {
  for (const RepositoryEntry& entry : catalog()->index()) {
    if (entry.name == name && entry.state != "LOADING" && entry.reason != kUnloaded) return;
  }
  replace(name, {.versions = {}, .state = "UNAVAILABLE", .reason = reason, .is_unloaded = false});
}

/// Between changes, checks for ended sequences and for changed files. Returns the time of the next check.
int64_t Repository::look() {
  constexpr int64_t kLookNs = 100 * base::kNsPerMs;
  try {
    if (!old_.empty()) old_.retire_ended("");
    if (env_.clock.now_ns() >= next_poll_ns_) poll();
  } catch (const std::exception& e) {
    env_.log.error("serve", "poll_failed", {{"reason", e.what()}});
  }
  if (env_.clock.now_ns() >= next_poll_ns_) next_poll_ns_ = env_.clock.now_ns() + options_.poll_interval.ns;
  return old_.empty() ? next_poll_ns_ : std::min(next_poll_ns_, env_.clock.now_ns() + kLookNs);
}

void Repository::poll() {
  const std::vector<std::string> names = model_names(options_.model_repository);
  for (const std::string& name : names) {
    if (changes_.is_stopping()) return;
    if (!files_.has_new_files(name)) continue;
    try {
      load_now(name);
    } catch (const std::exception& e) {
      env_.log.error("serve", "model_failed", {{"model", name}, {"reason", e.what()}});
      list_failure(name, e.what());
    }
  }
  // Known by their files: holding a catalog across unload_now would keep the models in use.
  for (const std::string& name : files_.missing(names)) {
    unload_now(name);
    files_.forget(name);
  }
}

void Repository::submit(std::function<void()> change, const Done& done) {
  if (options_.model_control != ModelControl::explicitly) {
    base::fail(base::ErrorCode::unavailable,
               "explicit model load / unload is not allowed: start with --model-control explicit");
  }
  std::function<void()> task = [this, change = std::move(change), done] {
    std::optional<base::Error> error;
    try {
      if (changes_.is_stopping()) base::fail(base::ErrorCode::unavailable, "the server is shutting down");
      change();
    } catch (const base::Error& e) {
      error = e;
    } catch (const std::exception& e) {
      error = base::Error(base::ErrorCode::internal, e.what());
    }
    done(error);
  };
  changes_.submit(std::move(task));
}

void Repository::request_load(const std::string& name, LoadOverride given, Done done) {
  check_model_name(name);
  base::require(given.files.empty() || given.config, "failed to load '", name,
                "', override model directory requires a config");
  submit([this, name, given = std::move(given)] { load_now(name, given); }, done);
}

void Repository::request_unload(const std::string& name, bool with_members, Done done) {
  if (!stays_inside(name)) with_members = false;  // unknown names are no error, but cause no file access
  submit(
      [this, name, with_members] {
        const auto also = with_members ? served_members(*catalog(), options_.model_repository, name)
                                       : std::vector<std::string>();
        unload_now(name);
        for (const std::string& member : also) unload_now(member);
      },
      done);
}

void Repository::request_adapter(AdapterChange change, Done done) {
  check_model_name(change.model);
  submit(
      [this, change = std::move(change)] {
        change_adapter(change, catalog()->find(change.model, ""), options_.model_repository);
      },
      done);
}

ModelHost Repository::host() const {
  return {
      options_,
      env_,
      metrics_,
      [this](const std::string& name, const std::string& version) { return catalog()->find(name, version); },
      shared_->cache,
      shared_->tenants,
      options_.rate_limit == RateLimit::off ? nullptr : &shared_->limiter,
      shared_->polling,
      shared_->pages};
}

void Repository::load_now(const std::string& name, const LoadOverride& given) {
  check_model_name(name);
  if (given.files.empty() && model_homes(options_.model_repository, name).empty()) {
    base::fail(base::ErrorCode::not_found, "failed to load '", name,
               "', failed to poll from model repository: it holds no such directory");
  }
  load_members(name, given);
  const bool serves = !catalog()->versions(name).empty();
  if (!serves) replace(name, {.versions = {}, .state = "LOADING", .reason = "", .is_unloaded = false});
  CatalogModel next;
  auto code = base::ErrorCode::invalid_argument;
  try {
    next = load_versions(name, given);
  } catch (const std::exception& e) {
    const auto* own = dynamic_cast<const base::Error*>(&e);
    if (own != nullptr && own->code() == base::ErrorCode::internal) code = own->code();
    next = {.versions = {}, .state = "UNAVAILABLE", .reason = e.what(), .is_unloaded = false};
  }
  const std::string failures = failures_of(next);
  if (serves && !failures.empty()) {
    // The old versions keep serving; the new versions that were loaded are dropped.
    next = {};
    show_metrics(metrics_, *catalog(), name);
    base::fail(code, "load failed for model '", name, "', which serves on as it was: ", failures);
  }
  replace(name, std::move(next));
  show_metrics(metrics_, *catalog(), name);
  retry_ensembles(name);
  if (!failures.empty()) base::fail(code, "load failed for model '", name, "': ", failures);
}

/// Loads ensembles that failed because of a model that is serving now.
void Repository::retry_ensembles(const std::string& member) {
  std::vector<std::string> failed;
  {
    const auto now = catalog();  // not held while models change, as it would keep them in use
    if (now->versions(member).empty()) return;
    for (const auto& [name, model] : now->models) {
      if (model.serves() || model.is_unloaded || loading_.count(name) > 0) continue;
      const std::vector<std::string> needs = members(options_.model_repository, name);
      if (std::find(needs.begin(), needs.end(), member) != needs.end()) failed.push_back(name);
    }
  }
  for (const std::string& name : failed) {
    try {
      load_now(name);
    } catch (const std::exception& e) {
      env_.log.warning("serve", "ensemble_waits", {{"ensemble", name}, {"reason", e.what()}});
    }
  }
}

/// Loads missing members of an ensemble. If one fails, the ensemble's own load reports why.
void Repository::load_members(const std::string& name, const LoadOverride& given) {
  if (!loading_.insert(name).second) return;  // ensembles that contain each other
  for (const std::string& member : members(options_.model_repository, name, given)) {
    if (loading_.count(member) > 0 || !catalog()->versions(member).empty()) continue;
    try {
      // If it is only half copied, polling will see it change.
      if (options_.model_control == ModelControl::poll) files_.note(member);
      load_now(member);
    } catch (const base::Error& e) {
      env_.log.warning("serve", "member_failed",
                       {{"ensemble", name}, {"model", member}, {"reason", e.what()}});
    }
  }
  loading_.erase(name);
}

CatalogModel Repository::load_versions(const std::string& name, const LoadOverride& given) {
  ModelSource source{.name = name};
  if (given.files.empty()) {
    const std::vector<std::string> homes = model_homes(options_.model_repository, name);
    source.root = homes.at(0);
    base::require(homes.size() == 1, "model '", name, "' is in more than one repository: ", homes[0], ", ",
                  homes.back());
  }
  std::shared_ptr<const std::string> written;  // removed after the load: mapped files stay
  if (!given.files.empty()) {
    written = write_override(given);
    source.root = *written;
  }
  source.config = given.config ? parse_model_config_json(*given.config) : read_config(source.root, name);
  base::require(source.config.name.empty() || source.config.name == name, "name '", source.config.name,
                "' of the config is not that of the model, '", name, "'");
  CatalogModel model;
  for (const auto& [number, path] : served_versions(source.root, source.config, options_.others)) {
    source.version = std::to_string(number);
    source.path = path;
    model.versions[number] = load_version(source);
  }
  return model;
}

CatalogVersion Repository::load_version(const ModelSource& source) {
  const int64_t start = env_.clock.now_ns();
  CatalogVersion version;
  try {
    std::shared_ptr<ModelMetrics>& counts = counts_[{source.name, source.version}];
    ModelHost own = host();
    own.keep_metrics = [&counts](const std::shared_ptr<ModelMetrics>& registered) { counts = registered; };
    version.model = load_served_model(source, own, counts.get());
    version.state = "READY";
    const double seconds = static_cast<double>(env_.clock.now_ns() - start) * 1e-9;
    const MetricLabels labels{{"model", source.name}, {"version", source.version}};
    metrics_.gauge("nv_model_load_duration_secs", "Duration of the last load in seconds", labels)
        .set(seconds);
    register_gauges(labels, version_number(source.version));
    env_.log.info("serve", "model_ready",
                  {{"model", source.name},
                   {"version", source.version},
                   {"max_batch_size", version.model->config().max_batch_size.value_or(0)},
                   {"instances", version.model->config().instances},
                   {"seconds", seconds}});
  } catch (const std::exception&) {
    version.state = "UNAVAILABLE";
    version.reason = sched::current_error().message();
    env_.log.error("serve", "model_failed",
                   {{"model", source.name}, {"version", source.version}, {"reason", version.reason}});
  }
  return version;
}

/// Gauges look up their version at each scrape, so they remain valid when it is replaced or unloaded.
void Repository::register_gauges(const MetricLabels& labels, int64_t number) {
  const auto gauge = [&](const char* name, const char* help, const MetricLabels& own, auto read) {
    metrics_.gauge_from(name, help, own, [this, model = labels[0].second, number, read] {
      const auto now = catalog();
      const auto at = now->models.find(model);
      if (at == now->models.end()) return 0.0;
      const auto v = at->second.versions.find(number);
      const bool serves = v != at->second.versions.end() && v->second.model;
      return serves ? static_cast<double>(read(*v->second.model)) : 0.0;
    });
  };
  gauge("nv_inference_pending_request_count", "Requests waiting for execution", labels,
        [](const ServedModel& m) { return m.waiting(); });
  MetricLabels kind = labels;
  kind.emplace_back("kind", "weights");
  gauge("trireme_model_memory_bytes",
        "Memory of a model: its weights, and the scratch memory of its instances", kind,
        [](const ServedModel& m) { return m.memory().weight_bytes; });
  kind.back().second = "scratch";
  gauge("trireme_model_memory_bytes",
        "Memory of a model: its weights, and the scratch memory of its instances", kind,
        [](const ServedModel& m) { return m.memory().scratch_bytes; });
}

void Repository::unload_now(const std::string& name) {
  CatalogModel gone{.versions = {}, .state = "UNAVAILABLE", .reason = kUnloaded, .is_unloaded = true};
  {
    const auto before = catalog();
    const auto at = before->models.find(name);
    if (at == before->models.end() || at->second.is_unloaded) return;
    for (const auto& [number, version] : at->second.versions)
      gone.versions[number] = {.model = nullptr, .state = "UNLOADING", .reason = ""};
  }
  replace(name, gone);
  for (auto& [number, version] : gone.versions)
    version = {.model = nullptr, .state = "UNAVAILABLE", .reason = kUnloaded};
  replace(name, std::move(gone));
  show_metrics(metrics_, *catalog(), name);
  env_.log.info("serve", "model_unloaded", {{"model", name}});
}

void Repository::replace(const std::string& name, CatalogModel next) {
  OldVersions::Models old;
  {
    const auto before = catalog();
    auto after = std::make_shared<Catalog>(*before);
    const auto& versions = after->models[name].versions;
    std::shared_ptr<ServedModel> highest;
    for (const auto& [number, version] : next.versions) highest = version.model ? version.model : highest;
    for (auto v = versions.rbegin(); v != versions.rend(); ++v) {
      if (!v->second.model) continue;
      const auto same = next.versions.find(v->first);
      const auto& follower = same != next.versions.end() ? same->second.model : highest;
      if (follower && follower->follow(v->second.model)) {
        old_.keep(name, v->second.model, follower);
      } else {
        old.push_back(v->second.model);
      }
    }
    after->models[name] = std::move(next);
    catalog_.with([&](auto& now) { now = std::move(after); });
  }
  if (!old.empty() && !old_.retire(std::move(old)))
    env_.log.warning("serve", "old_version_hangs", {{"model", name}, {"reason", "a step is not through"}});
  old_.retire_ended(catalog()->versions(name).empty() ? name : "");
}

std::vector<RepositoryEntry> Repository::index() const {
  const auto now = catalog();
  std::vector<RepositoryEntry> list = now->index();
  if (options_.model_control != ModelControl::explicitly) return list;
  for (const std::string& name : model_names(options_.model_repository)) {
    if (now->models.find(name) == now->models.end()) list.push_back({name, "", "", ""});
  }
  return list;
}

bool Repository::has_failures() const {
  const auto now = catalog();
  for (const auto& [name, model] : now->models) {
    if (model.is_unloaded) continue;
    if (model.versions.empty() && model.state == "UNAVAILABLE") return true;
    for (const auto& [number, version] : model.versions) {
      if (version.state == "UNAVAILABLE" || (version.model && !version.model->is_well())) return true;
    }
  }
  return false;
}

void Repository::drain() {
  changes_.stop();
  for (const auto& model : catalog()->serving()) model->drain();
  old_.drain();  // the thread that manages them has ended
}

}  // namespace trireme::serve
