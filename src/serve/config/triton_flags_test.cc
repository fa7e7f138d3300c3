// Tests that Triton's command lines are translated, or refused with a reason.
#include "serve/config/triton_flags.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "serve/config/options.h"

namespace trireme::serve {
namespace {

using Words = std::vector<std::string>;

TEST(TritonFlags, OwnWordsStay) {
  const Words own{
      "--model-repository", "/m", "--threads=3", "--strict-readiness", "--allow-client-shm", "--", "x"};
  EXPECT_EQ(translate_triton_flags(own).words, own);
  EXPECT_TRUE(translate_triton_flags(own).notes.empty());
}

TEST(TritonFlags, AStartScriptOfTritonIsParsed) {
  const Words script{"--model-repository=/a",
                     "--model-store",
                     "/b",
                     "--model-control-mode",
                     "explicit",
                     "--load-model=*",
                     "--repository-poll-secs",
                     "5",
                     "--exit-timeout-secs=7",
                     "--strict-readiness",
                     "true",
                     "--http-address",
                     "127.0.0.1",
                     "--http-thread-count",
                     "4",
                     "--http-max-input-size",
                     "1000",
                     "--allow-grpc",
                     "false",
                     "--allow-metrics=true",
                     "--cache-config",
                     "local,size=4096",
                     "--trace-config",
                     "triton,file=/t",
                     "--trace-config",
                     "rate=9",
                     "--trace-config",
                     "level=TIMESTAMPS",
                     "--allow-client-shm",
                     "true",
                     "--grpc-infer-thread-count",
                     "16",
                     "--disable-auto-complete-config",
                     "--exit-on-error",
                     "false"};
  const TritonFlags flags = translate_triton_flags(script);
  ServeOptions options;
  base::OptionList list(options);
  ASSERT_TRUE(list.parse_flags(flags.words));
  EXPECT_EQ(options.model_repository, (Words{"/a", "/b"}));
  EXPECT_EQ(options.model_control, ModelControl::explicitly);
  EXPECT_EQ(options.poll_interval.ns, 5 * base::kNsPerSecond);
  EXPECT_EQ(options.exit_timeout.ns, 7 * base::kNsPerSecond);
  EXPECT_TRUE(options.strict_readiness && options.trace.is_on && options.allow_client_shm);
  EXPECT_EQ(options.access.host, "127.0.0.1");
  EXPECT_EQ(options.http_threads, 4);
  EXPECT_EQ(options.max_request_bytes.bytes, 1000);
  EXPECT_EQ(options.grpc_port, -1);
  EXPECT_EQ(options.cache_size.bytes, 4096);
  EXPECT_EQ(options.trace.file, "/t");
  EXPECT_EQ(options.trace.rate, 9);
  EXPECT_EQ(flags.notes.size(), 3u);
  EXPECT_EQ(flags.notes[0].find("--grpc-infer-thread-count: "), 0u);
}

TEST(TritonFlags, ListenersHaveTheirAddresses) {
  const TritonFlags flags =
      translate_triton_flags(Words{"--model-store=/a", "--http-address", "0.0.0.0", "--grpc-address",
                                   "127.0.0.2", "--metrics-address=127.0.0.3"});
  ServeOptions options;
  base::OptionList list(options);
  ASSERT_TRUE(list.parse_flags(flags.words));
  EXPECT_EQ(options.access.host, "0.0.0.0");
  EXPECT_EQ(options.access.grpc_host, "127.0.0.2");
  EXPECT_EQ(options.access.metrics_host, "127.0.0.3");
  EXPECT_TRUE(flags.notes.empty());
  EXPECT_EQ(ServeOptions().access.host, "127.0.0.1");  // unless stated otherwise
}

/// Whoever asks for TLS never gets plain text.
TEST(TritonFlags, TlsIsThereOrTheStartFails) {
  AccessOptions none, server, both;
  server.tls_certificate = server.tls_key = "file";
  both = server;
  both.tls_client_ca = "file";
  const auto check = [](const Words& words, const AccessOptions& access) {
    check_tls(translate_triton_flags(words), access);
  };
  EXPECT_THROW(check({"--grpc-use-ssl", "true"}, none), base::Error);
  EXPECT_THROW(check({"--grpc-use-ssl=1", "--grpc-use-ssl-mutual=false"}, none), base::Error);
  EXPECT_THROW(check({"--grpc-use-ssl-mutual=true"}, server), base::Error);
  EXPECT_THROW(check({"--grpc-use-ssl=false"}, server), base::Error);
  EXPECT_THROW(check({"--grpc-use-ssl=perhaps"}, server), base::Error);
  check({"--grpc-use-ssl", "true"}, server);
  check({"--grpc-use-ssl", "true", "--grpc-use-ssl-mutual", "true"}, both);
  check({"--grpc-use-ssl", "false", "--grpc-use-ssl-mutual", "false"}, none);
}

TEST(TritonFlags, LogSettingsAreThoseOfTheProtocol) {
  const TritonFlags flags = translate_triton_flags(
      Words{"--log-verbose=2", "--log-info", "true", "--log-error=1", "--log-format=default"});
  EXPECT_EQ(flags.log_settings.dump(),
            R"({"log_verbose_level":2,"log_info":true,"log_error":true,"log_format":"default"})");
  EXPECT_TRUE(flags.notes.empty());
  EXPECT_TRUE(translate_triton_flags(Words{"--threads=1"}).log_settings.is_null());
  EXPECT_THROW(translate_triton_flags(Words{"--log-verbose=much"}), base::Error);
}

TEST(TritonFlags, RefusesWhatCannotBeHad) {
  const auto refusal = [](const Words& words) -> std::string {
    try {
      translate_triton_flags(words);
    } catch (const base::Error& e) {
      return e.message();
    }
    return "";
  };
  EXPECT_EQ(refusal({"--allow-http", "false"}), "--allow-http false: health and metrics come over HTTP");
  EXPECT_NE(refusal({"--model-namespacing=true"}).find("unique"), std::string::npos);
  EXPECT_NE(refusal({"--cache-config", "redis,host=h"}).find("local,size"), std::string::npos);
  EXPECT_NE(refusal({"--trace-config", "level=TENSORS"}).find("level=TIMESTAMPS"), std::string::npos);
  EXPECT_NE(refusal({"--log-file", "x"}).find("standard error"), std::string::npos);
  EXPECT_NE(refusal({"--allow-grpc", "perhaps"}).find("true or false"), std::string::npos);
  EXPECT_NE(refusal({"--model-store"}).find("needs a value"), std::string::npos);
}

}  // namespace
}  // namespace trireme::serve
