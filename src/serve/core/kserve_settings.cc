// Reads and changes log settings over the network.
#include "serve/core/kserve_settings.h"

namespace trireme::serve {
namespace {

using base::Json;
using base::LogLevel;

void require_object(const Json& changes) {
  base::require(changes.is_object(), "failed to parse the settings: expected a JSON object");
}

struct Switches {
  bool info = false, warning = false, error = false;
  int64_t verbose = 0;
};

Switches switches_of(LogLevel level) {
  return {.info = level <= LogLevel::info,
          .warning = level <= LogLevel::warning,
          .error = level <= LogLevel::error,
          .verbose = level == LogLevel::debug ? 1 : 0};
}

bool flag(const std::string& key, const Json& value) {
  base::require(value.is_bool(), "Invalid value for '", key, "': expected a boolean");
  return value.as_bool();
}

LogLevel level_of(const Switches& s) {
  const bool is_threshold = (!s.info || s.warning) && (!s.warning || s.error) && (s.verbose == 0 || s.info);
  if (!is_threshold) {
    base::fail_unsupported(
        "the log has one threshold: log_verbose_level needs log_info, log_info needs log_warning, "
        "log_warning "
        "needs log_error");
  }
  if (s.verbose > 0) return LogLevel::debug;
  if (s.info) return LogLevel::info;
  if (s.warning) return LogLevel::warning;
  return s.error ? LogLevel::error : LogLevel::off;
}

}  // namespace

Json log_settings(const base::Log& log) {
  const Switches s = switches_of(log.level());
  return Json::object({{"log_file", ""},
                       {"log_info", s.info},
                       {"log_warning", s.warning},
                       {"log_error", s.error},
                       {"log_verbose_level", s.verbose},
                       {"log_format", "default"}});
}

void update_log_settings(base::Log& log, const Json& changes) {
  require_object(changes);
  Switches s = switches_of(log.level());
  for (const auto& [key, value] : changes.as_object()) {
    if (key == "log_info") {
      s.info = flag(key, value);
    } else if (key == "log_warning") {
      s.warning = flag(key, value);
    } else if (key == "log_error") {
      s.error = flag(key, value);
    } else if (key == "log_verbose_level") {
      base::require(value.is_integer() && value.as_int() >= 0, "Invalid value for '", key,
                    "': expected an unsigned integer");
      s.verbose = value.as_int();
    } else if (key == "log_format") {
      base::require(value.is_string(), "Invalid value for '", key, "': expected a string");
      if (value.as_string() != "default")
        base::fail_unsupported("log_format '", value.as_string(), "' is not served: default is");
    } else if (key == "log_file") {
      base::fail_unsupported("log file location can not be updated through network protocol");
    } else {
      base::fail_invalid("unknown log setting '", key, "'");
    }
  }
  log.set_level(level_of(s));
}

}  // namespace trireme::serve
