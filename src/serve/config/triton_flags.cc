// Translates Triton's command line to this server's: a table of what each option becomes.
#include "serve/config/triton_flags.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace trireme::serve {
namespace {

using base::concat;
using Words = std::vector<std::string>;

/// How a value is translated.
enum class Form {
  same,        // --ours VALUE
  seconds,     // --ours VALUEs
  toggle,      // --ours or --no-ours
  needs_true,  // true happens anyway; `text` says why false is not possible
  needs_false,
  noted,  // no effect; `text` says why
  refused,
  log,    // a log setting, as in /v2/logging
  tls,    // true needs the certificates that `text` names, false their absence
  cache,  // local,size=N
  trace,  // triton,file=F ...
  grpc    // false: no gRPC listener
};

struct Row {
  std::string_view triton;
  Form form;
  std::string_view text;  // this server's option, or the reason
};

constexpr std::string_view kLoads = "models are loaded one after another, each once";
constexpr std::string_view kThreads =
    "gRPC's own threads serve its calls; --threads and --instances run models";
constexpr std::string_view kHost = "host memory is used in place";
constexpr std::string_view kBackends = "there is one engine, inside the program";
constexpr std::string_view kKeepAlive = "gRPC's keep-alive has Triton's defaults";

constexpr Row kRows[] = {
    {"model-store", Form::same, "model-repository"},
    {"model-control-mode", Form::same, "model-control"},
    {"repository-poll-secs", Form::seconds, "poll-interval"},
    {"exit-timeout-secs", Form::seconds, "exit-timeout"},
    {"strict-readiness", Form::toggle, "strict-readiness"},
    {"id", Form::same, "server-name"},
    {"http-address", Form::same, "host"},
    {"http-thread-count", Form::same, "http-threads"},
    {"http-max-input-size", Form::same, "max-request-bytes"},
    {"http-restricted-api", Form::same, "restrict"},
    {"grpc-restricted-protocol", Form::same, "restrict"},
    {"grpc-server-cert", Form::same, "tls-certificate"},
    {"grpc-server-key", Form::same, "tls-key"},
    {"grpc-root-cert", Form::same, "tls-client-ca"},
    {"response-cache-byte-size", Form::same, "cache-size"},
    {"cache-config", Form::cache, ""},
    {"trace-config", Form::trace, ""},
    {"trace-file", Form::same, "trace-file"},
    {"allow-grpc", Form::grpc, ""},
    {"allow-http", Form::needs_true, "health and metrics come over HTTP"},
    {"allow-metrics", Form::needs_true, "close /metrics with --restrict statistics"},
    {"allow-cpu-metrics", Form::noted, "the process's own use is always measured"},
    {"allow-gpu-metrics", Form::noted, "devices are measured where there are any"},
    {"exit-on-error", Form::noted,
     "a model that fails to load does not end the server; see --strict-readiness"},
    {"grpc-address", Form::same, "grpc-host"},
    {"grpc-use-ssl", Form::tls, "server"},
    {"grpc-use-ssl-mutual", Form::tls, "client"},
    {"grpc-infer-thread-count", Form::noted, kThreads},
    {"grpc-infer-allocation-pool-size", Form::noted, kThreads},
    {"grpc-infer-response-compression-level", Form::noted, "answers are compressed as the call asks"},
    {"grpc-keepalive-time", Form::noted, kKeepAlive},
    {"grpc-keepalive-timeout", Form::noted, kKeepAlive},
    {"grpc-keepalive-permit-without-calls", Form::noted, kKeepAlive},
    {"grpc-http2-max-pings-without-data", Form::noted, kKeepAlive},
    {"grpc-http2-min-recv-ping-interval-without-data", Form::noted, kKeepAlive},
    {"grpc-http2-max-ping-strikes", Form::noted, kKeepAlive},
    {"model-load-thread-count", Form::noted, kLoads},
    {"model-load-retry-count", Form::noted, kLoads},
    {"metrics-interval-ms", Form::noted, "gauges are read at each scrape"},
    {"metrics-address", Form::same, "metrics-host"},
    {"log-verbose", Form::log, "log_verbose_level"},
    {"log-info", Form::log, "log_info"},
    {"log-warning", Form::log, "log_warning"},
    {"log-error", Form::log, "log_error"},
    {"log-format", Form::log, "log_format"},
    {"pinned-memory-pool-byte-size", Form::noted, kHost},
    {"cuda-memory-pool-byte-size", Form::noted, kHost},
    {"buffer-manager-thread-count", Form::noted, kHost},
    {"backend-directory", Form::noted, kBackends},
    {"backend-config", Form::noted, kBackends},
    {"repoagent-directory", Form::noted, kBackends},
    {"cache-directory", Form::noted, "the response cache is inside the program"},
    {"min-supported-compute-capability", Form::noted, kBackends},
    {"strict-model-config", Form::noted, "what a config leaves out is read from the model"},
    {"disable-auto-complete-config", Form::noted, "what a config leaves out is read from the model"},
    {"log-file", Form::refused, "the log goes to standard error"},
    {"model-namespacing", Form::needs_false, "a name is unique among the repositories"},
    {"enable-peer-access", Form::noted, kHost},
    {"reuse-http-port", Form::needs_false, "a taken port is an error"},
    {"reuse-grpc-port", Form::needs_false, "a taken port is an error"},
    {"allow-sagemaker", Form::needs_false, "there is no such listener"},
    {"allow-vertex-ai", Form::needs_false, "there is no such listener"},
    {"model-config-name", Form::refused, "config.pbtxt is the configuration"},
    {"http-header-forward-pattern", Form::refused, "no model here reads headers"},
    {"grpc-header-forward-pattern", Form::refused, "no model here reads headers"},
    {"host-policy", Form::refused, "--pin and --threads place the threads"},
};

/// Triton's options that take no value.
bool stands_alone(std::string_view name) { return name == "disable-auto-complete-config"; }

std::optional<bool> truth(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(), [](unsigned char c) { return std::tolower(c); });
  if (value == "true" || value == "1") return true;
  if (value == "false" || value == "0") return false;
  return std::nullopt;
}

/// One option of the command line, and its translation.
struct Given {
  const Row& row;
  std::string value;

  bool is_true() const {
    const std::optional<bool> value_given = truth(value);
    base::require(value_given.has_value(), "--", row.triton, " takes true or false, got '", value, "'");
    return *value_given;
  }
  [[noreturn]] void refuse() const { base::fail_unsupported("--", row.triton, " ", value, ": ", row.text); }
};

void put(TritonFlags& out, std::string_view ours, std::string_view value) {
  out.words.push_back(concat("--", ours, "=", value));
}

/// mode=triton|opentelemetry; level=OFF|TIMESTAMPS; rate=N; triton,file=F; opentelemetry,url=U.
void put_trace(const Given& given, TritonFlags& out) {
  const std::string& v = given.value;
  const auto after = [&v](std::string_view prefix) -> std::optional<std::string> {
    if (v.rfind(prefix, 0) != 0) return std::nullopt;
    return v.substr(prefix.size());
  };
  if (v == "mode=triton" || v == "mode=opentelemetry" || v == "level=OFF") return;
  if (v == "level=TIMESTAMPS") return out.words.emplace_back("--trace"), void();
  if (const auto rate = after("rate=")) return put(out, "trace-rate", *rate);
  if (const auto file = after("triton,file=")) return put(out, "trace-file", *file);
  if (const auto url = after("opentelemetry,url=")) return put(out, "trace-otlp", *url);
  base::fail_unsupported("--trace-config ", v,
                         " is not among mode, level=TIMESTAMPS, rate, triton,file and "
                         "opentelemetry,url");
}

/// A number is a level, true and false are switches, and anything else is a name.
void put_log(const Given& given, TritonFlags& out) {
  const bool is_level = given.row.text == "log_verbose_level";
  if (given.row.text == "log_format") {
    out.log_settings.set(given.row.text, given.value);
  } else if (!is_level) {
    out.log_settings.set(given.row.text, given.is_true());
  } else {
    int64_t level = 0;
    const char* end = given.value.data() + given.value.size();
    const auto [at, error] = std::from_chars(given.value.data(), end, level);
    base::require(error == std::errc() && at == end && level >= 0, "--", given.row.triton,
                  " takes a number from 0 on, got '", given.value, "'");
    out.log_settings.set(given.row.text, level);
  }
}

void put_given(const Given& given, TritonFlags& out) {
  const Row& row = given.row;
  switch (row.form) {
    case Form::same: return put(out, row.text, given.value);
    case Form::seconds: return put(out, row.text, given.value + "s");
    case Form::toggle: return put(out, row.text, given.is_true() ? "true" : "false");
    case Form::needs_true:
      if (!given.is_true()) given.refuse();
      return;
    case Form::needs_false:
      if (given.is_true()) given.refuse();
      return;
    case Form::noted: return out.notes.push_back(concat("--", row.triton, ": ", row.text));
    case Form::refused: given.refuse();
    case Form::log: return put_log(given, out);
    case Form::tls:
      (row.text == "server" ? out.wants_tls : out.wants_client_certificates) = given.is_true();
      return;
    case Form::cache: {
      constexpr std::string_view kSize = "local,size=";
      if (given.value.rfind(kSize, 0) != 0)
        base::fail_unsupported("--cache-config ", given.value, ": the cache is local,size=BYTES");
      return put(out, "cache-size", given.value.substr(kSize.size()));
    }
    case Form::trace: return put_trace(given, out);
    case Form::grpc:
      if (!given.is_true()) put(out, "grpc-port", "-1");
  }
}

/// Own switches to which scripts written for Triton append a value after a space.
bool is_own_switch(std::string_view name) { return name == "allow-client-shm"; }

}  // namespace

TritonFlags translate_triton_flags(std::span<const std::string> words) {
  TritonFlags out;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--") {
      out.words.insert(out.words.end(), words.begin() + static_cast<int64_t>(i), words.end());
      break;
    }
    const size_t equals = std::min(word.find('='), word.size());
    std::string name(word.substr(0, equals));
    if (name.rfind("--", 0) == 0) name.erase(0, 2);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto row = std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) {
      return word.substr(0, 2) == "--" && r.triton == name;
    });
    const bool has_next = equals == word.size() && i + 1 < words.size();
    const bool takes_truth = is_own_switch(name) || (row != std::end(kRows) && row->form == Form::toggle);
    if (takes_truth && equals == word.size() && !(has_next && truth(words[i + 1]))) {
      out.words.emplace_back(word);  // the server's own form: the word alone
    } else if (is_own_switch(name)) {
      out.words.push_back(equals == word.size() ? concat(word, "=", words[++i]) : std::string(word));
    } else if (row == std::end(kRows)) {
      out.words.emplace_back(word);
    } else {
      std::string value = equals < word.size() ? std::string(word.substr(equals + 1)) : "";
      if (equals == word.size() && !stands_alone(name)) {
        base::require(has_next, word, " needs a value");
        value = words[++i];
      }
      put_given({*row, std::move(value)}, out);
    }
  }
  return out;
}

void check_tls(const TritonFlags& flags, const AccessOptions& access) {
  const bool has_tls = !access.tls_certificate.empty() && !access.tls_key.empty();
  const auto refuse = [](const auto&... words) { base::fail_invalid(words...); };
  if (flags.wants_tls == true && !has_tls)
    refuse(
        "--grpc-use-ssl true needs --grpc-server-cert and --grpc-server-key: without them the server is in ",
        "plain text");
  if (flags.wants_tls == false && has_tls)
    refuse("--grpc-use-ssl false: a certificate puts TLS on both listeners; leave out either");
  if (flags.wants_client_certificates == true && (!has_tls || access.tls_client_ca.empty()))
    refuse("--grpc-use-ssl-mutual true needs --grpc-server-cert, --grpc-server-key and --grpc-root-cert");
}

}  // namespace trireme::serve
