// Records traces of single requests.
#include "serve/seeing/tracer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <random>

#include "http/client.h"

namespace trireme::serve {
namespace {

using base::Json;

constexpr size_t kMostAtOnce = 256;

std::string hex(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, value >>= 4) out[static_cast<size_t>(i)] = kDigits[value & 15];
  return out;
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }) &&
         text.find_first_not_of('0') != std::string_view::npos;
}

/// splitmix64 (Steele, Lea & Flood 2014): spreads counters over all bits.
uint64_t spread(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

int64_t number_of(const std::string& key, const Json& value) {
  if (value.is_integer()) return value.as_int();
  base::require(value.is_string(), "Invalid value for '", key, "': expected a number in a string");
  const std::string& text = value.as_string();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  base::require(error == std::errc() && end == text.data() + text.size(), "Invalid value for '", key, "': '",
                text, "'");
  return number;
}

bool level_of(const Json& value) {
  bool is_on = false;
  const base::JsonArray levels = value.is_array() ? value.as_array() : base::JsonArray{value};
  for (const Json& level : levels) {
    const std::string& text = level.as_string();
    if (text == "TENSORS") base::fail_unsupported("trace_level TENSORS is not served");
    base::require(text == "OFF" || text == "TIMESTAMPS", "unknown trace_level '", text, "'");
    is_on = is_on || text == "TIMESTAMPS";
  }
  return is_on;
}

template <class T>
T pick(const std::optional<T>& own, const std::optional<T>& server, T otherwise) {
  return own ? *own : server.value_or(otherwise);
}

int64_t time_of(const Trace& trace, std::string_view name) {
  for (const auto& [key, ns] : trace.times) {
    if (key == name) return ns;
  }
  return 0;
}

}  // namespace

std::optional<TraceContext> TraceContext::parse(std::string_view h) {
  // version "-" trace-id "-" parent-id "-" flags
  const bool has_form = h.size() >= 55 && h[2] == '-' && h[35] == '-' && h[52] == '-';
  if (!has_form || h.substr(0, 2) == "ff" || (h.substr(0, 2) == "00" && h.size() != 55)) return std::nullopt;
  TraceContext out{std::string(h.substr(3, 32)), std::string(h.substr(36, 16)), false};
  unsigned flags = 0;
  const auto [end, error] = std::from_chars(h.data() + 53, h.data() + 55, flags, 16);
  if (!is_hex(out.trace_id) || !is_hex(out.span_id) || error != std::errc() || end != h.data() + 55)
    return std::nullopt;
  out.is_sampled = (flags & 1) != 0;
  return out;
}

std::string TraceContext::header() const {
  return "00-" + trace_id + "-" + span_id + (is_sampled ? "-01" : "-00");
}

void Trace::add(const sched::Timing& t, int64_t answered_ns) {
  if (t.enqueued_ns != 0) times.emplace_back("QUEUE_START", t.enqueued_ns);
  if (t.started_ns != 0) times.emplace_back("COMPUTE_START", t.started_ns);
  if (t.computed_ns != 0) times.emplace_back("COMPUTE_INPUT_END", t.computed_ns);
  if (t.finished_ns != 0) {
    times.emplace_back("COMPUTE_OUTPUT_START", t.finished_ns);
    times.emplace_back("COMPUTE_END", answered_ns);
  }
  times.emplace_back("INFER_RESPONSE_COMPLETE", answered_ns);
  times.emplace_back("REQUEST_END", answered_ns);
}

Tracer::Tracer(const TracerOptions& options, const base::Env& env) : options_(options), env_(env) {
  const bool has_sink = !options_.file.empty() || !options_.otlp_url.empty();
  base::require(has_sink || !options_.is_on, "tracing needs --trace-file or --trace-otlp");
  if (!options_.otlp_url.empty()) http::Url::parse(options_.otlp_url);
  if (!options_.file.empty()) whole_.open(options_.file);
  std::random_device random;
  for (uint64_t& half : seed_) half = static_cast<uint64_t>(random()) << 32 | random();
  table_.with([&](Table& table) {
    table.server.is_on = options_.is_on;
    table.server.rate = options_.rate;
  });
  may_be_on_ = options_.is_on;
  if (has_sink) writer_ = std::thread([this] { write_all(); });
}

Tracer::~Tracer() {
  is_closing_ = true;
  queue_.close();
  if (writer_.joinable()) writer_.join();
  whole_.close();
  part_.close();
}

bool Tracer::is_on(const Table& table, const std::string& model) {
  const auto at = table.models.find(model);
  return pick(at == table.models.end() ? std::nullopt : at->second.is_on, table.server.is_on, false);
}

Json Tracer::settings(const std::string& model) const {
  return table_.with([&](const Table& table) {
    const auto at = table.models.find(model);
    const Settings* own = at == table.models.end() ? nullptr : &at->second;
    const auto text = [&](std::optional<int64_t> Settings::*member, int64_t otherwise) {
      const bool is_own = own != nullptr && (own->*member).has_value();
      return Json(std::to_string(is_own ? *(own->*member) : (table.server.*member).value_or(otherwise)));
    };
    return Json::object({{"trace_level", Json::array({is_on(table, model) ? "TIMESTAMPS" : "OFF"})},
                         {"trace_rate", text(&Settings::rate, 1000)},
                         {"trace_count", text(&Settings::count, -1)},
                         {"log_frequency", text(&Settings::log_frequency, 0)},
                         {"trace_file", options_.file},
                         {"trace_mode", options_.otlp_url.empty() ? "triton" : "opentelemetry"}});
  });
}

void Tracer::update(const std::string& model, const Json& changes) {
  base::require(changes.is_object(), "failed to parse the settings: expected a JSON object");
  const Json now = settings(model);
  Settings next = table_.with([&](const Table& table) {
    if (model.empty()) return table.server;
    const auto at = table.models.find(model);
    return at == table.models.end() ? Settings() : at->second;
  });
  Settings started;  // what a cleared setting becomes: of a model the server's
  if (model.empty()) started = {.is_on = options_.is_on, .rate = options_.rate};
  for (const auto& [key, value] : changes.as_object()) {
    const Json* is = now.find(key);
    base::require(is != nullptr, "unknown trace setting '", key, "'");
    const auto number = [&, name = key, given = &value](int64_t least) -> std::optional<int64_t> {
      if (given->is_null()) return std::nullopt;
      const int64_t n = number_of(name, *given);
      base::require(n >= least, "Invalid value for '", name, "': ", n);
      return n;
    };
    if (key == "trace_level") {
      next.is_on = value.is_null() ? started.is_on : std::optional<bool>(level_of(value));
    } else if (key == "trace_rate") {
      next.rate = value.is_null() ? started.rate : number(1);
    } else if (key == "trace_count") {
      next.count = number(-1);
    } else if (key == "log_frequency") {
      next.log_frequency = number(0);
      if (!model.empty() && next.log_frequency.value_or(0) > 0)
        base::fail_unsupported("log_frequency is of the server: the models' traces stand in one file");
    } else if (!value.is_null() && value.dump() != is->dump()) {
      base::fail_unsupported("'", key, "' can not be updated through network protocol");
    }
  }
  const bool has_sink = !options_.file.empty() || !options_.otlp_url.empty();
  if (next.is_on.value_or(false) && !has_sink)
    base::fail_unsupported("tracing needs a place to write to: start with --trace-file or --trace-otlp");
  table_.with([&](Table& table) { (model.empty() ? table.server : table.models[model]) = next; });
  if (next.is_on.value_or(false)) may_be_on_ = true;
}

std::shared_ptr<Trace> Tracer::begin(const std::string& model, const std::string& traceparent,
                                     int64_t received_ns) {
  if (!may_be_on_.load(std::memory_order_relaxed)) return nullptr;
  const std::optional<TraceContext> caller =
      traceparent.empty() ? std::nullopt : TraceContext::parse(traceparent);
  const bool is_wanted = table_.with([&](Table& table) {
    if (!is_on(table, model)) return false;
    const auto at = table.models.find(model);
    Settings* own = at == table.models.end() ? nullptr : &at->second;
    std::optional<int64_t>& count = own != nullptr && own->count ? own->count : table.server.count;
    const int64_t rate = pick<int64_t>(own == nullptr ? std::nullopt : own->rate, table.server.rate, 1000);
    const bool is_turn = table.seen[model]++ % static_cast<uint64_t>(rate) == 0 && count != 0;
    if (is_turn && count > 0) --*count;
    return is_turn || (caller && caller->is_sampled);  // whom we follow is not counted
  });
  if (!is_wanted) return nullptr;
  auto trace = std::make_shared<Trace>();
  trace->id = next_id_.fetch_add(1);
  trace->model = model;
  const uint64_t a = spread(seed_[0] + trace->id), b = spread(seed_[1] ^ trace->id);
  trace->own = {caller ? caller->trace_id : hex(a) + hex(b), hex(spread(a ^ b)), true};
  if (caller) trace->parent_span = caller->span_id;
  trace->times.emplace_back("REQUEST_START", received_ns);
  return trace;
}

void Tracer::finish(std::shared_ptr<Trace> trace) {
  if (queue_.try_push(std::move(trace)) != base::PushResult::ok) ++dropped_;
}

void Tracer::write_all() {
  bool has_failed = false;
  while (true) {
    std::optional<std::shared_ptr<Trace>> first = queue_.pop();
    if (!first) return;
    Batch batch{std::move(*first)};
    while (batch.size() < kMostAtOnce) {
      auto more = queue_.try_pop();
      if (!more) break;
      batch.push_back(std::move(*more));
    }
    try {
      if (!options_.file.empty()) write_files(batch);
      // When the server stops, it must not wait for an unresponsive collector again for each batch.
      base::require(!is_closing_ || !has_failed, "the server stopped before the collector answered");
      if (!options_.otlp_url.empty()) send(batch);
      has_failed = false;
    } catch (const std::exception& e) {
      has_failed = !options_.otlp_url.empty();
      lose(batch.size(), e.what());
    }
  }
}

/// Like Triton: all traces go to one file or, with log_frequency, that many each to FILE.0, FILE.1 and so on.
void Tracer::write_files(const Batch& batch) {
  const int64_t each = table_.with([](const Table& table) { return table.server.log_frequency.value_or(0); });
  if (each == 0) return append(whole_, batch);
  for (size_t at = 0; at < batch.size();) {
    if (part_.fd < 0 || part_.count >= each) {
      part_.close();
      part_.open(base::concat(options_.file, ".", part_number_++));
    }
    const auto count = std::min<int64_t>(each - part_.count, static_cast<int64_t>(batch.size() - at));
    const auto from = batch.begin() + static_cast<ptrdiff_t>(at);
    append(part_, Batch(from, from + static_cast<ptrdiff_t>(count)));
    at += static_cast<size_t>(count);
  }
}

/// Appends records and the closing bracket, which the next batch overwrites. If the disk is full, the file
/// keeps its previous end.
void Tracer::append(File& file, const Batch& batch) {
  constexpr std::string_view kEnd = "\n]\n";
  std::string text;
  for (const auto& trace : batch) {
    text += file.end == 0 && text.empty() ? "[\n" : ",\n";
    text += options_.form == TraceForm::triton ? triton_text(*trace) : perfetto_text(*trace);
  }
  try {
    file.write_at(file.end, text + std::string(kEnd));
  } catch (const base::Error&) {
    // The place of the bracket has just become free.
    if (ftruncate(file.fd, file.end) == 0 && file.end > 0) file.write_at(file.end, kEnd);
    throw;
  }
  file.end += static_cast<int64_t>(text.size());
  file.count += static_cast<int64_t>(batch.size());
}

void Tracer::File::open(const std::string& path) {
  *this = {.fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)};
  base::require(fd >= 0, "cannot write the trace file '", path, "': ", std::strerror(errno));
}

void Tracer::File::close() {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

void Tracer::File::write_at(int64_t offset, std::string_view bytes) const {
  lseek(fd, offset, SEEK_SET);  // a pipe has no positions: writes are simply appended
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    base::require(n > 0, "cannot write the trace file: ", std::strerror(errno));
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

/// A full disk or an absent collector persists for a while, so this logs at intervals, not each time.
void Tracer::lose(size_t count, const char* reason) {
  constexpr int64_t kBetweenWarningsNs = 10 * base::kNsPerSecond;
  dropped_ += count;
  unreported_ += count;
  if (env_.clock.now_ns() < next_warning_ns_) return;
  env_.log.warning("serve", "traces_lost", {{"count", std::exchange(unreported_, 0)}, {"reason", reason}});
  next_warning_ns_ = env_.clock.now_ns() + kBetweenWarningsNs;
}

std::string Tracer::triton_text(const Trace& t) const {
  Json head = Json::object({{"id", t.id}, {"model_name", t.model}, {"request_id", t.request_id}});
  int64_t version = 0;
  std::from_chars(t.version.data(), t.version.data() + t.version.size(), version);
  head.set("model_version", version);
  Json times = Json::array();
  for (const auto& [name, ns] : t.times) times.push_back(Json::object({{"name", name}, {"ns", ns}}));
  return head.dump() + ",\n" + Json::object({{"id", t.id}, {"timestamps", std::move(times)}}).dump();
}

namespace {

/// The phases of a request: name, and the events at which it begins and ends.
constexpr struct {
  const char* name;
  const char* begin;
  const char* end;
} kSpans[] = {{"request", "REQUEST_START", "REQUEST_END"},
              {"queue", "QUEUE_START", "COMPUTE_START"},
              {"pages", "PAGES_START", "PAGES_END"},
              {"input", "COMPUTE_START", "COMPUTE_INPUT_END"},
              {"infer", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"},
              {"output", "COMPUTE_OUTPUT_START", "COMPUTE_END"}};

}  // namespace

/// Events in the Trace Event Format (Perfetto, Chrome): a process per model, a thread per request.
std::string Tracer::perfetto_text(const Trace& t) const {
  std::string text;
  for (const auto& span : kSpans) {
    const int64_t begin = time_of(t, span.begin), end = time_of(t, span.end);
    if (begin == 0 || end == 0) continue;
    const Json event =
        Json::object({{"name", span.name},
                      {"cat", t.model},
                      {"ph", "X"},
                      {"ts", static_cast<double>(begin) * 1e-3},
                      {"dur", static_cast<double>(end - begin) * 1e-3},
                      {"pid", 1},
                      {"tid", t.id},
                      {"args", Json::object({{"model", t.model}, {"request_id", t.request_id}})}});
    text += (text.empty() ? "" : ",\n") + event.dump();
  }
  return text;
}

Json Tracer::otlp(const Batch& batch) const {
  const int64_t to_wall = env_.clock.wall_ns() - env_.clock.now_ns();
  const auto attribute = [](const char* key, const std::string& value) {
    return Json::object({{"key", key}, {"value", Json::object({{"stringValue", value}})}});
  };
  Json spans = Json::array();
  for (const auto& t : batch) {
    uint64_t child = 0;
    for (const auto& span : kSpans) {
      const int64_t begin = time_of(*t, span.begin), end = time_of(*t, span.end);
      const bool is_root = child++ == 0;
      if (begin == 0 || end == 0) continue;
      Json json =
          Json::object({{"traceId", t->own.trace_id},
                        {"spanId", is_root ? t->own.span_id : hex(spread(seed_[0] ^ (t->id * 8 + child)))},
                        {"name", is_root ? "infer " + t->model : std::string(span.name)},
                        {"kind", is_root ? 2 : 1},
                        {"startTimeUnixNano", std::to_string(begin + to_wall)},
                        {"endTimeUnixNano", std::to_string(end + to_wall)}});
      if (!is_root || !t->parent_span.empty())
        json.set("parentSpanId", is_root ? t->parent_span : t->own.span_id);
      if (is_root) {
        json.set("attributes",
                 Json::array({attribute("model.name", t->model), attribute("model.version", t->version),
                              attribute("request.id", t->request_id)}));
        json.set("status", Json::object({{"code", t->has_failed ? 2 : 1}}));
      }
      spans.push_back(std::move(json));
    }
  }
  const Json service = Json::object({{"attributes", Json::array({attribute("service.name", "trireme")})}});
  const Json scope =
      Json::object({{"scope", Json::object({{"name", "trireme.serve"}})}, {"spans", std::move(spans)}});
  return Json::object(
      {{"resourceSpans",
        Json::array({Json::object({{"resource", service}, {"scopeSpans", Json::array({scope})}})})}});
}

void Tracer::send(const Batch& batch) {
  const http::Url url = http::Url::parse(options_.otlp_url);
  http::Client client(url.host, url.port, std::chrono::seconds(5));
  const http::Received answer =
      client.post(url.target, otlp(batch).dump(), {{"Content-Type", "application/json"}});
  base::require(answer.status / 100 == 2, "the collector answered ", answer.status);
}

}  // namespace trireme::serve
