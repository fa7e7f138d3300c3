// The log for people: one line per event on stderr, `level folder event key=value ...`.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trireme::base {

enum class LogLevel { debug, info, warning, error, off };

std::string_view to_string(LogLevel level);
/// Throws invalid_argument for a name that is not a level.
LogLevel parse_log_level(std::string_view name);

struct LogField {
  template <class T>
  LogField(std::string_view name, const T& v) : key(name), value(concat(v)) {}
  std::string_view key;
  std::string value;
};

/// Writes lines; safe to use from any thread. Lines never mix. Values with spaces or control characters are
/// quoted.
class Log {
 public:
  using Fields = std::initializer_list<LogField>;
  using Sink = std::function<void(std::string_view line)>;  // gets one line with its newline

  /// `rank` < 0: no prefix; else every line starts with "r<rank> ". An empty sink means stderr.
  explicit Log(LogLevel level = LogLevel::info, int rank = -1, Sink sink = {});

  bool enabled(LogLevel level) const { return level >= level_.load(std::memory_order_relaxed); }
  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }

  void debug(std::string_view folder, std::string_view event, Fields fields = {}) {
    write(LogLevel::debug, folder, event, fields);
  }
  void info(std::string_view folder, std::string_view event, Fields fields = {}) {
    write(LogLevel::info, folder, event, fields);
  }
  void warning(std::string_view folder, std::string_view event, Fields fields = {}) {
    write(LogLevel::warning, folder, event, fields);
  }
  void error(std::string_view folder, std::string_view event, Fields fields = {}) {
    write(LogLevel::error, folder, event, fields);
  }
  void write(LogLevel level, std::string_view folder, std::string_view event, Fields fields);

 private:
  std::atomic<LogLevel> level_;
  std::string prefix_;
  Sink sink_;
  std::mutex mutex_;
};

}  // namespace trireme::base
