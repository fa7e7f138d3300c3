// Options of `trireme load`: what to send, how fast, for how long, and what must hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/text/options.h"
#include "load/scenario.h"

namespace trireme::load {

enum class Arrivals { poisson, fixed };
enum class Format { binary, json };

/// Requests a second between which loads lie: far below the slowest use, far above what a machine sends.
inline constexpr double kLeastRate = 1e-6, kMostRate = 1e7;

/// What is asked of language models.
struct TextLoad {
  bool completions = false;
  int64_t prompt_tokens = 128, answer_tokens = 64, shared_tokens = 0;
  std::string lengths, members;

  void fields(base::OptionList& f) {
    f.add(
        "completions", &completions,
        "texts of --model over /v1/completions, with random prompts, each another; with --stream a part is a "
        "token; --trace gives lengths and what prompts share where it has them");
    f.add("prompt_tokens", &prompt_tokens, "completions: tokens of a prompt").at_least(1).at_most(1 << 24);
    f.add("answer_tokens", &answer_tokens, "completions: tokens of an answer").at_least(1).at_most(1 << 24);
    f.add("shared_tokens", &shared_tokens, "completions: so many first tokens are those of all prompts")
        .at_least(0)
        .at_most(1 << 24);
    f.add("lengths", &lengths,
          "completions: lengths of prompts and answers, and what prompts share, are those of this file's "
          "requests in turn, whose form is that of --trace; when they are sent say --rate, --find-rate, "
          "--concurrency");
    f.add("members", &members,
          "completions: JSON object whose members every request has beside its own: {\"response_format\": "
          "...}");
  }
};

/// Files of secured connections.
struct TlsLoad {
  std::string ca, certificate, key;
  bool is_insecure = false;

  void fields(base::OptionList& f) {
    f.add("tls_ca", &ca, "PEM file of who signs the server's certificate; default: the system's");
    f.add("tls_certificate", &certificate, "PEM file that the client shows; with --tls-key");
    f.add("tls_key", &key, "PEM file of the certificate's key");
    f.add("tls_insecure", &is_insecure, "take any certificate of the server");
  }
};

struct LoadOptions {
  std::string url;
  int concurrency = 1;
  std::string sweep;
  double stability = 0;
  double rate = 0;
  Arrivals arrivals = Arrivals::poisson;
  bool find_rate = false;
  bool find_concurrency = false;
  std::string trace;
  double speed = 1;
  std::string mix;
  Scenario scenario = Scenario::none;
  int64_t min_queries = 0;
  int samples_per_query = 8;
  double percentile = 0;
  base::Duration target_latency{100 * base::kNsPerMs};
  base::Duration think{0};
  base::Duration duration{10 * base::kNsPerSecond};
  base::Duration warmup{base::kNsPerSecond};
  int64_t requests = 0;
  base::Duration timeout{30 * base::kNsPerSecond};
  int connections = 256;
  int threads = 0;
  int64_t seed = 1;
  std::string method;
  std::vector<std::string> header;
  std::string body;
  std::string text_file;
  std::string model;
  std::vector<std::string> shape;
  std::vector<std::string> range;
  int batch = 1;
  Format format = Format::binary;
  int variants = 16;
  bool stream = false;
  TextLoad text;
  TlsLoad tls;
  std::vector<std::string> slo;
  std::string json;
  std::string csv;
  std::string record;
  std::string html;
  std::string title;

  void fields(base::OptionList& f) {
    f.add(
         "url", &url,
         "server: http, https, grpc or grpcs://host:port[/path]; with --model, which gRPC needs, the path is "
         "made")
        .positional()
        .required();
    f.add("concurrency", &concurrency, "closed loop: requests kept in flight").at_least(1).at_most(65536);
    f.add("sweep", &sweep,
          "one table of 1,2,8, or concurrency=1:64:2x (doubling), or rate=100:500:100 (steps)");
    f.add("stability", &stability,
          "measure in windows of --duration until three in a row agree within so many percent in throughput "
          "and mean latency, ten at most; 0: one window")
        .at_least(0)
        .at_most(100);
    f.add("rate", &rate, "open loop: requests a second, sent on time whatever the server does")
        .at_least(0)
        .at_most(kMostRate);
    f.add_choice("arrivals", &arrivals, {"poisson", "fixed"}, "open loop: gaps between requests");
    f.add("find_rate", &find_rate, "search the highest rate that meets every --slo, starting at --rate");
    f.add("find_concurrency", &find_concurrency,
          "search the most requests in flight that meet every --slo, starting at --concurrency");
    f.add("trace", &trace,
          "replay the arrival times of this file: CSV with a timestamp column, JSON lines with timestamp in "
          "ms, "
          "or gaps in microseconds");
    f.add("speed", &speed, "trace: so many times faster than recorded").at_least(1e-6).at_most(1e6);
    f.add("mix", &mix, "JSON file of request classes with weights, over one or several models");
    f.add_choice("scenario", &scenario, {"none", "single_stream", "multi_stream", "server", "offline"},
                 "MLPerf LoadGen scenario: --duration is the least one, --rate the server's target or the "
                 "expected offline rate, --variants the loaded samples");
    f.add("min_queries", &min_queries, "scenario: least queries; 0: 100, offline 24,576 samples")
        .at_least(0)
        .at_most(1e8);
    f.add("samples_per_query", &samples_per_query, "multi_stream: requests of one query")
        .at_least(1)
        .at_most(1e6);
    f.add("percentile", &percentile, "scenario: judged share of latencies; 0: single_stream 0.9, else 0.99")
        .at_least(0)
        .at_most(0.9999);
    f.add("target_latency", &target_latency, "server scenario: bound of the percentile");
    f.add("think", &think, "closed loop: pause between an answer and the next request");
    f.add("duration", &duration, "measured time, after the warm-up");
    f.add("warmup", &warmup, "time before, sent but not counted");
    f.add("requests", &requests, "end after this many counted requests or queries; 0: by time alone")
        .at_least(0)
        .at_most(1e12);
    f.add("timeout", &timeout, "a request is given up so long after its scheduled time");
    f.add("connections", &connections, "open loop: most connections").at_least(1).at_most(65536);
    f.add("threads", &threads, "generator threads; 0: one for four processors").at_least(0).at_most(64);
    f.add("seed", &seed, "seed of arrival times and random inputs");
    f.add("method", &method, "HTTP method; default GET, or POST with a body");
    f.add("header", &header, "extra header, 'Name: value'; may be repeated");
    f.add("body", &body, "file sent as request body");
    f.add("text_file", &text_file, "one sentence a line, sent in turn to the text input of --model");
    f.add("model", &model, "KServe v2 model: reads its metadata, makes random inputs");
    f.add("shape", &shape, "input shape, name:1,3,224,224; may be repeated");
    f.add("range", &range, "random values of an input, name:low,high; default 0 to 1; may be repeated");
    f.add("batch", &batch, "items a request: the first dimension where the model leaves it open").at_least(1);
    f.add_choice("format", &format, {"binary", "json"}, "tensor encoding of --model requests");
    f.add("variants", &variants, "different random requests, sent in turn").at_least(1).at_most(10000);
    f.add("stream", &stream,
          "answers come in parts, whose times are reported: server-sent events over HTTP (with --model from "
          "generate_stream), ModelStreamInfer over gRPC");
    text.fields(f);
    tls.fields(f);
    f.add("slo", &slo,
          "goal: p99=50ms, p99.9=1s, mean=5ms, max=1s, first_p99=200ms and part_p99=20ms of --stream, "
          "errors=0.1%, throughput=100; may be repeated; missed: exit 1");
    f.add("json", &json, "write the results to this file");
    f.add("csv", &csv, "write a line for each load to this file, in perf_analyzer's columns");
    f.add("record", &record, "write every counted request to this file: when it was due, sent, answered");
    f.add("html", &html, "write a self-contained page with plots to this file");
    f.add("title", &title, "title of the page");
  }
};

}  // namespace trireme::load
