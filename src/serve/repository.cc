// The model repository: loads models, keeps going past broken ones, swaps them under load.
#include "serve/repository.h"

#include <malloc.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "serve/repository_files.h"

namespace trireme::serve {
namespace {

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

}  // namespace

Repository::Repository(const ServeOptions& options, const base::Env& env, MetricRegistry& metrics)
    : options_(options),
      env_(env),
      metrics_(metrics),
      cache_(static_cast<size_t>(options.cache_size.bytes)),
      limiter_(totals_of(options)),
      tenants_(options.tenant_by, options.tenant, options.tenants_unlisted, metrics),
      catalog_(std::make_shared<const Catalog>()) {}

Repository::~Repository() { stop_changes(); }

void Repository::load() {
  std::vector<std::string> names = model_names(options_.model_repository);
  if (options_.model_control == ModelControl::explicitly) {
    const auto& wanted = options_.load_model;
    if (std::find(wanted.begin(), wanted.end(), "*") == wanted.end()) names = wanted;
  }
  // Ensembles last: their members must be there.
  std::stable_partition(names.begin(), names.end(),
                        [this](const std::string& n) { return members(n).empty(); });
  for (const std::string& name : names) {
    try {
      loaded_files_[name] = fingerprint(name);
      load_now(name);
    } catch (const std::exception& e) {
      env_.log.error("serve", "model_failed", {{"model", name}, {"reason", e.what()}});
    }
  }
  thread_ = std::thread([this] { run_changes(); });
}

std::string Repository::fingerprint(const std::string& name) const {
  std::string all;
  for (const std::string& home : model_homes(options_.model_repository, name))
    all += files_fingerprint(home, options_.others) + "\n";
  return all;
}

void Repository::run_changes() {
  const bool polls = options_.model_control == ModelControl::poll;
  int64_t next_ns = env_.clock.now_ns() + options_.poll_interval.ns;
  while (true) {
    const auto change = polls ? changes_.pop_until(next_ns) : changes_.pop();
    if (change) (*change)();
    if (!change && changes_.closed()) return;
    if (!polls || env_.clock.now_ns() < next_ns) continue;
    try {
      poll();
    } catch (const std::exception& e) {
      env_.log.error("serve", "poll_failed", {{"reason", e.what()}});
    }
    next_ns = env_.clock.now_ns() + options_.poll_interval.ns;
  }
}

void Repository::stop_changes() {
  stopping_ = true;
  changes_.close();
  if (thread_.joinable()) thread_.join();
}

/// A model is loaded when its files have changed and then were the same at two looks: half a copy stays out.
void Repository::poll() {
  const std::vector<std::string> names = model_names(options_.model_repository);
  for (const std::string& name : names) {
    std::string files = fingerprint(name);
    if (stopping_) return;
    if (loaded_files_[name] == files) continue;
    if (std::exchange(seen_files_[name], files) != files) continue;
    loaded_files_[name] = std::move(files);
    try {
      load_now(name);
    } catch (const std::exception& e) {
      env_.log.error("serve", "model_failed", {{"model", name}, {"reason", e.what()}});
    }
  }
  // Known by their entry here: a catalog held across unload_now would keep the models in use.
  std::vector<std::string> gone;
  for (const auto& [name, files] : loaded_files_) {
    if (!std::binary_search(names.begin(), names.end(), name)) gone.push_back(name);
  }
  for (const std::string& name : gone) {
    unload_now(name);
    loaded_files_.erase(name);
    seen_files_.erase(name);
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
      if (stopping_) base::fail(base::ErrorCode::unavailable, "the server is shutting down");
      change();
    } catch (const base::Error& e) {
      error = e;
    } catch (const std::exception& e) {
      error = base::Error(base::ErrorCode::internal, e.what());
    }
    done(error);
  };
  if (changes_.try_push(std::move(task)) != base::PushResult::ok) {
    base::fail(base::ErrorCode::unavailable, "too many loads and unloads wait already, or the server stops");
  }
}

void Repository::request_load(const std::string& name, LoadOverride given, Done done) {
  check_model_name(name);
  base::require(given.files.empty() || given.config, "failed to load '", name,
                "', override model directory requires a config");
  submit([this, name, given = std::move(given)] { load_now(name, given); }, done);
}

void Repository::request_unload(const std::string& name, bool with_members, Done done) {
  check_model_name(name);
  submit(
      [this, name, with_members] {
        const std::vector<std::string> also = with_members ? members(name) : std::vector<std::string>();
        unload_now(name);
        for (const std::string& member : also) unload_now(member);
      },
      done);
}

std::vector<std::string> Repository::members(const std::string& name) const {
  std::vector<std::string> list;
  try {
    const std::vector<std::string> homes = model_homes(options_.model_repository, name);
    if (homes.empty()) return list;
    const ModelConfig config = read_config(homes[0], name);
    if (!config.ensemble) return list;
    for (const EnsembleConfig::Step& step : config.ensemble->steps) list.push_back(step.model);
  } catch (const base::Error&) {
    list.clear();  // whoever loads it hears why
  }
  return list;
}

ModelHost Repository::host() const {
  return {
      options_,
      env_,
      metrics_,
      [this](const std::string& name, const std::string& version) { return catalog()->find(name, version); },
      cache_,
      tenants_,
      options_.rate_limit == RateLimit::off ? nullptr : &limiter_};
}

void Repository::load_now(const std::string& name, const LoadOverride& given) {
  check_model_name(name);
  if (given.files.empty() && model_homes(options_.model_repository, name).empty()) {
    base::fail(base::ErrorCode::not_found, "failed to load '", name,
               "', failed to poll from model repository: it holds no such directory");
  }
  load_members(name);
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
    // The old versions go on; what did load of the new ones goes again.
    base::fail(code, "load failed for model '", name, "', which serves on as it was: ", failures);
  }
  replace(name, std::move(next));
  metrics_.set_hidden("model", name, false);
  if (!failures.empty()) base::fail(code, "load failed for model '", name, "': ", failures);
}

/// What an ensemble needs and is not there. Why a member does not load, the ensemble's own load will say.
void Repository::load_members(const std::string& name) {
  if (!loading_.insert(name).second) return;  // ensembles that contain each other
  for (const std::string& member : members(name)) {
    if (loading_.count(member) > 0 || !catalog()->versions(member).empty()) continue;
    try {
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
  std::shared_ptr<const std::string> written;  // removed after the load: what is mapped stays
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
    version.model = std::make_shared<ServedModel>(source, host(), counts.get());
    counts = version.model->metrics();
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
  } catch (const std::exception& e) {
    version.state = "UNAVAILABLE";
    version.reason = e.what();
    env_.log.error("serve", "model_failed",
                   {{"model", source.name}, {"version", source.version}, {"reason", e.what()}});
  }
  return version;
}

/// Gauges of a version look it up when they are scraped: they stay when it is replaced or unloaded.
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
  CatalogModel gone{.versions = {}, .state = "UNAVAILABLE", .reason = "unloaded", .is_unloaded = true};
  {
    const auto before = catalog();
    const auto at = before->models.find(name);
    if (at == before->models.end() || at->second.is_unloaded) return;
    for (const auto& [number, version] : at->second.versions)
      gone.versions[number] = {.model = nullptr, .state = "UNLOADING", .reason = ""};
  }
  replace(name, gone);
  for (auto& [number, version] : gone.versions)
    version = {.model = nullptr, .state = "UNAVAILABLE", .reason = "unloaded"};
  replace(name, std::move(gone));
  metrics_.set_hidden("model", name, true);
  env_.log.info("serve", "model_unloaded", {{"model", name}});
}

void Repository::replace(const std::string& name, CatalogModel next) {
  std::vector<std::shared_ptr<ServedModel>> old;
  {
    const auto before = catalog();
    auto after = std::make_shared<Catalog>(*before);
    for (const auto& [number, version] : after->models[name].versions) {
      if (version.model) old.push_back(version.model);
    }
    after->models[name] = std::move(next);
    catalog_.with([&](auto& now) { now = std::move(after); });
  }
  if (!old.empty()) retire(std::move(old));
}

/// Whoever found an old model may still hand it a request, so drain comes after the last of them has let go:
/// no request is refused because of a change.
void Repository::retire(std::vector<std::shared_ptr<ServedModel>> old) const {
  for (std::shared_ptr<ServedModel>& model : old) {
    while (model.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
    std::atomic_thread_fence(std::memory_order_acquire);
    model->drain();
    model.reset();
  }
  malloc_trim(0);  // the allocator keeps what was freed; the machine's other programs want it
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
  stop_changes();
  for (const auto& model : catalog()->serving()) model->drain();
}

}  // namespace trireme::serve
