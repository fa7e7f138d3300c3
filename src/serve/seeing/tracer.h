// Traces of single requests: which are traced, when what happened to them, and where that is written.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/threads/bounded_queue.h"
#include "base/report/env.h"
#include "base/guarded.h"
#include "base/text/json.h"
#include "sched/request.h"

namespace trireme::serve {

/// W3C trace context: which trace a request belongs to, and which span called it.
struct TraceContext {
  std::string trace_id, span_id;  ///< 32 and 16 hex digits
  bool is_sampled = false;

  /// Reads a traceparent header; none for one that is malformed, as the specification wants.
  static std::optional<TraceContext> parse(std::string_view header);
  std::string header() const;
};

/// One request under way. Its own thread of the moment writes it.
struct Trace {
  uint64_t id = 0;
  std::string model, version, request_id;
  TraceContext own;         ///< of our span
  std::string parent_span;  ///< the caller's, or empty
  bool has_failed = false;
  std::vector<std::pair<const char*, int64_t>> times;  ///< Triton's name of the moment, steady clock

  bool has_ended() const { return !times.empty() && times.back().first == std::string_view("REQUEST_END"); }
  /// When the scheduler had it, and when the answer was made.
  void add(const sched::Timing& timing, int64_t answered_ns);
};

enum class TraceForm { triton, perfetto };

struct TracerOptions {
  std::string file, otlp_url;  ///< empty: not there
  TraceForm form = TraceForm::triton;
  bool is_on = false;
  int64_t rate = 1000;
};

/// Any thread. Traces are written by a thread of its own; where it does not keep up they are counted and
/// dropped.
class Tracer {
 public:
  /// Throws where the file cannot be written or the URL makes no sense.
  Tracer(const TracerOptions& options, const base::Env& env);
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// Of the server or, if named, of a model: `{"trace_level":["OFF"],"trace_rate":"1000",...}`.
  base::Json settings(const std::string& model) const;
  /// Applies an object; null clears a model's own setting, and sets one of the server as the start had it.
  /// Throws for what is not served.
  void update(const std::string& model, const base::Json& changes);

  /// A trace to be filled and given to finish(), or null: not this one. A caller that samples is followed.
  std::shared_ptr<Trace> begin(const std::string& model, const std::string& traceparent, int64_t received_ns);
  void finish(std::shared_ptr<Trace> trace);
  uint64_t dropped() const { return dropped_.load(); }

 private:
  struct Settings {
    std::optional<bool> is_on;
    std::optional<int64_t> rate, count, log_frequency;
  };
  struct Table {
    Settings server;
    std::map<std::string, Settings> models;
    std::map<std::string, uint64_t> seen;
  };
  using Batch = std::vector<std::shared_ptr<Trace>>;
  static bool is_on(const Table& table, const std::string& model);
  /// A file of traces under way: whole JSON whenever somebody looks.
  struct File {
    int fd = -1;
    int64_t end = 0;    ///< where the closing bracket stands; 0: nothing stands in it yet
    int64_t count = 0;  ///< traces in it
    void open(const std::string& path);
    void close();
    void write_at(int64_t offset, std::string_view bytes) const;
  };
  void write_all();
  void write_files(const Batch& batch);
  void append(File& file, const Batch& batch);
  void lose(size_t count, const char* reason);
  void send(const Batch& batch);
  std::string triton_text(const Trace& trace) const;
  std::string perfetto_text(const Trace& trace) const;
  base::Json otlp(const Batch& batch) const;

  const TracerOptions options_;
  base::Env env_;
  base::Guarded<Table> table_;
  std::atomic<bool> may_be_on_{false};  ///< spares untraced servers the lock
  std::atomic<uint64_t> next_id_{1}, dropped_{0};
  std::array<uint64_t, 2> seed_{};
  base::BoundedQueue<std::shared_ptr<Trace>> queue_{4096};
  std::atomic<bool> is_closing_{false};
  // Of the writer's thread:
  File whole_, part_;  ///< all traces; so many of them, where log_frequency says so
  int64_t part_number_ = 0;
  uint64_t unreported_ = 0;
  int64_t next_warning_ns_ = 0;
  std::thread writer_;
};

}  // namespace trireme::serve
