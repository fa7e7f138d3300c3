// The log for people: formats a line and hands it to the sink in one piece.
#include "base/report/log.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/text/json.h"
#include "base/text/shortened.h"

namespace trireme::base {
namespace {

constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};

void write_stderr(std::string_view line) {
  while (!line.empty()) {
    const ssize_t put = ::write(STDERR_FILENO, line.data(), line.size());
    if (put <= 0) return;  // there is nowhere to report it
    line.remove_prefix(static_cast<size_t>(put));
  }
}

bool is_plain(std::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
    return c > ' ' && c != 0x7F && c != '"' && c != '\\' && c != '=';
  });
}

}  // namespace

std::string_view to_string(LogLevel level) { return kNames[static_cast<size_t>(level)]; }

LogLevel parse_log_level(std::string_view name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  require(found != std::end(kNames), "log level must be debug, info, warning, error or off, not '", name,
          "'");
  return static_cast<LogLevel>(found - std::begin(kNames));
}

Log::Log(LogLevel level, int rank, Sink sink)
    : level_(level),
      prefix_(rank < 0 ? "" : concat("r", rank, " ")),
      sink_(sink ? std::move(sink) : write_stderr) {}

void Log::write(LogLevel level, std::string_view folder, std::string_view event, Fields fields) {
  if (!enabled(level)) return;
  std::string line = concat(prefix_, to_string(level), ' ', folder, ' ', event);
  for (const LogField& field : fields) {
    constexpr size_t kMostValueBytes = 4096;
    const std::string value = shortened(field.value, kMostValueBytes);
    line += concat(' ', field.key, '=');
    if (is_plain(value))
      line += value;
    else
      append_json(line, value);
  }
  line.push_back('\n');
  const std::lock_guard lock(mutex_);
  sink_(line);
}

}  // namespace trireme::base
