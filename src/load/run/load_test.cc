// The load generator against our own server: counts, schedules, stalls that must show, goals, payloads,
// reports.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/text/json.h"
#include "load/run/generator.h"
#include "load/run/load_command.h"
#include "load/run/schedule.h"
#include "load/run/search.h"
#include "load/requests/payload.h"
#include "http/server.h"

namespace trireme::load {
namespace {

using namespace std::chrono_literals;
using http::Reply;
using http::Request;
using http::Server;

http::ServerOptions local() {
  http::ServerOptions o;
  o.host = "127.0.0.1";
  o.threads = 1;
  return o;
}

void ok(http::Request&&, http::Reply reply) { reply.send(http::text_response(200, "ok")); }

LoadOptions options_for(const http::Server& server, const std::vector<std::string>& flags) {
  std::vector<std::string> words = {"http://127.0.0.1:" + std::to_string(server.port()) + "/", "--warmup",
                                    "0s"};
  words.insert(words.end(), flags.begin(), flags.end());
  LoadOptions options;
  EXPECT_TRUE(base::OptionList(options).parse_flags(words));
  return options;
}

Report run(const http::Server& server, const std::vector<std::string>& flags) {
  return measure(options_for(server, flags), [](const std::string&) {});
}

TEST(Load, ClosedLoopCountsEveryRequest) {
  http::Server server(local(), ok);
  const Report report = run(server, {"--concurrency", "4", "--requests", "500", "--threads", "2"});
  const LoadResult& r = report.runs.at(0).result;
  EXPECT_EQ(r.scheduled, 500);
  EXPECT_EQ(r.succeeded, 500);
  EXPECT_EQ(r.error_count(), 0);
  EXPECT_EQ(r.latency.count(), 500);
  EXPECT_EQ(r.received_bytes, 1000);
  EXPECT_EQ(server.counts().requests, 500u);
  EXPECT_EQ(server.counts().connections_accepted, 5u);  // one more: the probe
}

TEST(Load, FixedRateIsKept) {
  http::Server server(local(), ok);
  const Report report =
      run(server, {"--rate", "400", "--arrivals", "fixed", "--duration", "500ms", "--threads", "2"});
  const LoadResult& r = report.runs.at(0).result;
  EXPECT_EQ(r.scheduled, 200);
  EXPECT_EQ(r.succeeded, 200);
  EXPECT_NEAR(r.window_s, 0.5, 0.02);
}

TEST(Load, PoissonGapsAreExponential) {
  LoadPlan plan;
  plan.rate = 1000;
  plan.threads = 2;
  plan.arrivals = Arrivals::poisson;
  constexpr int kCount = 100'000;
  for (int thread = 0; thread < 2; ++thread) {
    ArrivalTimes times(plan, thread);
    double sum = 0, squares = 0;
    int64_t last = 0;
    for (int i = 0; i < kCount; ++i) {
      const int64_t at = times.next_ns();
      const double gap = static_cast<double>(at - last);
      last = at;
      sum += gap;
      squares += gap * gap;
    }
    const double mean = sum / kCount;
    EXPECT_NEAR(mean, 2e6, 2e4);  // 1000/s over two threads: 2 ms each
    EXPECT_NEAR(std::sqrt(squares / kCount - mean * mean) / mean, 1.0, 0.02);
  }
}

TEST(Load, WhatWaitsIsBoundedAndKeepsItsTimes) {
  const std::vector<std::string> requests{"request"};
  LoadPlan plan;
  plan.requests = &requests;
  plan.rate = kMostRate;
  plan.arrivals = Arrivals::fixed;
  const Window window{0, 0, 10 * base::kNsPerSecond, base::kNsPerSecond};
  Tally tally(plan, window);
  Schedule schedule(plan, window, 0);
  schedule.queue_due(5 * base::kNsPerSecond, tally);
  const size_t room = schedule.backlog.size();
  EXPECT_LE(room, size_t{1} << 23);  // of 50 million that are due
  EXPECT_TRUE(schedule.is_behind(tally.end_ns()));
  const int64_t last = schedule.backlog.back().scheduled_ns;
  EXPECT_LT(last, base::kNsPerSecond);
  schedule.backlog.resize(room - 10);
  schedule.queue_due(5 * base::kNsPerSecond, tally);
  EXPECT_EQ(schedule.backlog.size(), room);
  EXPECT_EQ(schedule.backlog[room - 10].scheduled_ns, last + 100);  // 10 million a second
  EXPECT_EQ(tally.result.scheduled, static_cast<int64_t>(room) + 10);
  schedule.stop();
  schedule.backlog.clear();
  schedule.queue_due(5 * base::kNsPerSecond, tally);
  EXPECT_TRUE(schedule.backlog.empty());
  EXPECT_FALSE(schedule.is_behind(tally.end_ns()));
}

TEST(Load, ArrivalsThatNeverComeLieInTheFuture) {
  LoadPlan plan;
  plan.rate = 1e-300;
  for (const Arrivals arrivals : {Arrivals::fixed, Arrivals::poisson}) {
    plan.arrivals = arrivals;
    ArrivalTimes times(plan, 0);
    times.next_ns();  // fixed: the first is at the start
    EXPECT_GT(times.next_ns(), int64_t{1} << 60);
  }
}

TEST(Load, NumbersWithoutBoundsAreRefused) {
  const auto problem = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words{"http://127.0.0.1:1/"};
    words.insert(words.end(), flags.begin(), flags.end());
    LoadOptions options;
    try {
      base::OptionList(options).parse_flags(words);
      measure(options, [](const std::string&) {});
    } catch (const base::Error& e) {
      return e.message();
    }
    return std::string();
  };
  for (const char* rate : {"1e308", "inf", "nan", "2147483648", "1e-320"})
    EXPECT_NE(problem({"--rate", rate}).find("--rate"), std::string::npos) << rate;
  for (const char* name : {"--min-queries", "--samples-per-query", "--requests"})
    EXPECT_NE(problem({name, "2000000000000"}).find(name), std::string::npos) << name;
}

// A server that stops for 300 ms: a generator that waits for answers would see one slow request, the schedule
// sees all that should have been sent meanwhile. A machine that is busy makes requests later, never earlier.
TEST(Load, StallsAreChargedToEveryScheduledRequest) {
  constexpr int64_t kLateNs = 100 * base::kNsPerMs;
  std::atomic<int> seen{0};
  http::Server server(local(), [&](http::Request&&, http::Reply reply) {
    if (seen.fetch_add(1) == 20) std::this_thread::sleep_for(300ms);
    reply.send(http::text_response(200, "ok"));
  });
  const Report report = run(server, {"--rate", "200", "--arrivals", "fixed", "--duration", "1s",
                                     "--connections", "1", "--record", "kept", "--timeout", "1h"});
  const LoadResult& r = report.runs.at(0).result;
  EXPECT_EQ(r.succeeded, 200);
  ASSERT_EQ(r.records.size(), 200u);
  // 300 ms at 200/s: at least 39 requests waited behind the stall for more than 100 ms.
  int64_t late = 0, slow = 0;
  for (size_t i = 0; i < 200; ++i) {
    const Record& one = r.records[i];
    EXPECT_EQ(one.scheduled_ns, static_cast<int64_t>(i) * 5 * base::kNsPerMs) << "the schedule does not move";
    EXPECT_GE(one.sent_ns, one.scheduled_ns);
    EXPECT_GE(one.sent_ns, i == 0 ? 0 : r.records[i - 1].ended_ns) << "one connection";
    late += one.ended_ns - one.scheduled_ns > kLateNs ? 1 : 0;
    slow += one.ended_ns - one.sent_ns > kLateNs ? 1 : 0;
  }
  EXPECT_GE(late, 39);
  // The histograms have the same, to the width of a bucket.
  EXPECT_GE(r.latency.count() - r.latency.count_at_most(kLateNs), 37);
  EXPECT_GE(slow, 1);
  EXPECT_LT(slow, late) << "the time of the server itself is told apart";
}

TEST(Load, ErrorsAreClassedAndMissGoals) {
  std::atomic<int> seen{0};
  http::Server server(local(), [&](http::Request&&, http::Reply reply) {
    const int n = seen.fetch_add(1) % 4;
    reply.send(n == 0   ? http::error_response(503, "full")
               : n == 1 ? http::error_response(400, "bad")
                        : http::text_response(200, "ok"));
  });
  const Report report = run(server, {"--requests", "400", "--slo", "p40=1s", "--slo", "p60=1s", "--slo",
                                     "errors=50%", "--slo", "max=9s"});
  const LoadResult& r = report.runs.at(0).result;
  EXPECT_EQ(r.succeeded, 200);
  EXPECT_EQ(r.errors.at("status 503"), 100);
  EXPECT_EQ(r.errors.at("status 400"), 100);
  const std::vector<SloOutcome>& slos = report.runs[0].slos;
  EXPECT_TRUE(slos[0].met);
  EXPECT_FALSE(slos[1].met);  // every second request failed: p60 is a failure
  EXPECT_TRUE(slos[2].met);
  EXPECT_FALSE(slos[3].met);
  EXPECT_FALSE(goals_met(report));
}

TEST(Load, TimeoutsAndClosedConnectionsAreErrors) {
  std::vector<http::Reply> held;
  http::Server silent(local(), [&](http::Request&&, http::Reply reply) { held.push_back(std::move(reply)); });
  const Report late = run(silent, {"--requests", "3", "--concurrency", "3", "--timeout", "100ms"});
  EXPECT_EQ(late.runs[0].result.errors.at("timeout"), 3);
  silent.stop();
  held.clear();
  EXPECT_THROW(run(silent, {"--requests", "1"}), base::Error);  // nobody listens
}

// Which rate it is depends on the machine; search_test has the search itself.
TEST(Load, TheHighestRateIsOneThatWasSustained) {
  http::Server server(local(), ok);
  const Report report = run(server, {"--find-rate", "--rate", "25", "--arrivals", "fixed", "--duration",
                                     "100ms", "--slo", "p90=1h", "--requests", "20", "--timeout", "1h"});
  ASSERT_FALSE(report.runs.empty());
  double highest = 0;
  for (const Measured& m : report.runs) {
    EXPECT_EQ(m.result.error_count(), 0);
    if (sustained(m)) highest = std::max(highest, m.result.offered_rate);
  }
  EXPECT_EQ(report.found_rate, highest);
  EXPECT_EQ(goals_met(report), highest > 0);
}

TEST(Load, SweepReportsEveryConcurrency) {
  http::Server server(local(), ok);
  Report report =
      run(server, {"--sweep", "1,2,8", "--duration", "100ms", "--slo", "p99=10s", "--title", "a <b>"});
  ASSERT_EQ(report.runs.size(), 3u);
  const std::string text = text_report(report);
  EXPECT_NE(text.find("c=8"), std::string::npos) << text;
  EXPECT_NE(text.find("p99=10s"), std::string::npos) << text;
  const base::Json json = base::parse_json(json_report(report).dump());
  EXPECT_EQ(json.at("runs").size(), 3u);
  EXPECT_EQ(json.at("runs").at(1).at("concurrency").as_int(), 2);
  EXPECT_GT(json.at("runs").at(2).at("latency_ns").at("p99").as_int(), 0);
  const std::string html = html_report(report);
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_NE(html.find("a &lt;b&gt;"), std::string::npos);
  EXPECT_NE(html.find("<polyline"), std::string::npos);
  EXPECT_EQ(html.find("nan"), std::string::npos);
  EXPECT_EQ(html.find("http://www"), std::string::npos);
}

TEST(Load, ModelRequestsFollowTheMetadata) {
  std::atomic<int> wrong{0}, good{0};
  http::Server server(local(), [&](http::Request&& request, http::Reply reply) {
    if (request.path == "/v2/models/m") {
      reply.send(
          http::json_response(200, R"({"name":"m","inputs":[{"name":"x","datatype":"FP32","shape":[-1,3,-1]},
        {"name":"ids","datatype":"INT64","shape":[-1,2]}],"outputs":[]})"));
      return;
    }
    const size_t head = std::stoul(std::string(request.header("Inference-Header-Content-Length")));
    const base::Json json = base::parse_json(request.body.view().substr(0, head));
    const std::string_view blob = request.body.view().substr(head);
    // x: 2*3*4 floats in [0,1); ids: 2*2 integers from 5 to 7.
    bool fits = request.path == "/v2/models/m/infer" && blob.size() == 2 * 3 * 4 * 4 + 2 * 2 * 8;
    fits = fits && json.at("inputs").at(0).at("shape").dump() == "[2,3,4]";
    for (size_t i = 0; fits && i < 24; ++i) {
      float v;
      std::memcpy(&v, blob.data() + 4 * i, 4);
      fits = v >= 0 && v < 1;
    }
    for (size_t i = 0; fits && i < 4; ++i) {
      int64_t v;
      std::memcpy(&v, blob.data() + 96 + 8 * i, 8);
      fits = v >= 5 && v <= 7;
    }
    (fits ? good : wrong)++;
    reply.send(http::json_response(200, "{}"));
  });
  const Report report = run(server, {"--model", "m", "--batch", "2", "--shape", "x:2,3,4", "--range",
                                     "ids:5,7", "--requests", "40"});
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(good.load(), 40);
  EXPECT_EQ(report.items_per_request, 2);
  EXPECT_THROW(run(server, {"--model", "m", "--requests", "1"}), base::Error);  // x has an open dimension
  EXPECT_THROW(run(server, {"--model", "m", "--shape", "y:1", "--requests", "1"}), base::Error);
}

TEST(Load, SentencesBecomeBytesElements) {
  const auto path =
      std::filesystem::temp_directory_path() / ("trireme_load_" + std::to_string(::getpid()) + ".txt");
  std::ofstream(path) << "first line\r\nsecond \"line\"\n\nthird\n";
  std::vector<std::string> bodies;
  http::Server server(local(), [&](http::Request&& request, http::Reply reply) {
    const bool metadata = request.method == "GET";
    if (!metadata) bodies.emplace_back(request.body.view());
    reply.send(http::json_response(
        200, metadata ? R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[-1]}]})" : "{}"));
  });
  run(server, {"--model", "m", "--text-file", path.string(), "--format", "json", "--requests", "3"});
  run(server, {"--model", "m", "--text-file", path.string(), "--batch", "2", "--requests", "1"});
  std::filesystem::remove(path);
  ASSERT_EQ(bodies.size(), 4u);
  EXPECT_EQ(bodies[1],
            R"({"inputs":[{"name":"text","datatype":"BYTES","shape":[1],"data":["second \"line\""]}]})");
  EXPECT_EQ(bodies[2].find("second"), std::string::npos);
  const std::string blob("\x0a\0\0\0first line\x0d\0\0\0second \"line\"", 4 + 10 + 4 + 13);
  EXPECT_TRUE(bodies[3].ends_with(blob));
}

TEST(Load, TextsFitWhatLlamaCppSays) {
  std::vector<std::string> bodies;
  http::Server server(local(), [&](http::Request&& request, http::Reply reply) {
    if (request.path == "/tokenize") {
      EXPECT_TRUE(base::parse_json(request.body.view()).find("content") != nullptr);
      return reply.send(http::json_response(200, R"({"tokens":[4,5,6,7,8,9]})"));
    }
    if (request.path == "/props")
      return reply.send(http::json_response(200, R"({"default_generation_settings":{"n_ctx":60}})"));
    bodies.emplace_back(request.body.view());
    reply.send(http::json_response(200, "{}"));
  });
  const Report report = run(server, {"--model", "m", "--completions", "--prompt-tokens", "200",
                                     "--answer-tokens", "20", "--sweep", "1,2", "--requests", "10"});
  ASSERT_EQ(report.runs.size(), 2u);
  ASSERT_EQ(bodies.size(), 20u);
  const base::Json first = base::parse_json(bodies[0]);
  EXPECT_EQ(first.at("prompt").as_array().size(), 40u);
  EXPECT_EQ(first.at("max_tokens").as_int(), 20);
}

/// Answers one request a connection and closes it a moment later, without having said so.
class Closer {
 public:
  Closer() : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listener_, 64), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] {
      for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0; ::close(fd)) {
        char buffer[4096];
        if (::read(fd, buffer, sizeof buffer) <= 0) continue;
        constexpr std::string_view kAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        ++answered_;  // before whoever reads the answer can look
        if (::write(fd, kAnswer.data(), kAnswer.size()) <= 0) --answered_;
        std::this_thread::sleep_for(2ms);  // the next request comes meanwhile
      }
    });
  }
  ~Closer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/"; }
  int answered() const { return answered_; }

 private:
  int listener_, port_ = 0;
  std::atomic<int> answered_{0};
  std::thread thread_;
};

TEST(Load, ARequestOnAConnectionThatWasJustClosedGoesOutAgain) {
  Closer server;
  LoadOptions options;
  const std::vector<std::string> words{server.url(), "--warmup", "0s", "--requests", "30"};
  EXPECT_TRUE(base::OptionList(options).parse_flags(words));
  const LoadResult r = measure(options, [](const std::string&) {}).runs.at(0).result;
  EXPECT_EQ(r.succeeded, 30);
  EXPECT_EQ(r.error_count(), 0);
  EXPECT_EQ(server.answered(), 30) << "none was answered twice";
}

TEST(Load, ASecondRunGoesOnBehindTheFirst) {
  std::vector<std::string> bodies;
  http::Server server(local(), [&](http::Request&& request, http::Reply reply) {
    if (request.path == "/tokenize")
      return reply.send(http::json_response(200, R"({"tokens":[4,5,6,7,8,9],"max_model_len":99})"));
    bodies.emplace_back(request.body.view());
    reply.send(http::json_response(200, "{}"));
  });
  run(server, {"--model", "m", "--completions", "--sweep", "1,2", "--duration", "50ms"});
  std::sort(bodies.begin(), bodies.end());
  const size_t different = static_cast<size_t>(std::unique(bodies.begin(), bodies.end()) - bodies.begin());
  EXPECT_EQ(different, std::min<size_t>(bodies.size(), 2000));  // so many prompts there are
}

/// A language model that keeps what it was asked.
struct KeptTexts {
  std::vector<std::string> bodies;
  http::Server server{
      local(), [this](http::Request&& request, http::Reply reply) {
        if (request.path == "/tokenize")
          return reply.send(http::json_response(200, R"({"tokens":[4,5,6,7,8,9],"max_model_len":9999})"));
        bodies.emplace_back(request.body.view());
        reply.send(http::json_response(200, "{}"));
      }};
  size_t different() const { return std::set<std::string>(bodies.begin(), bodies.end()).size(); }
};

TEST(Load, ThreadsSendDifferentPrompts) {
  KeptTexts model;
  run(model.server,
      {"--model", "m", "--completions", "--threads", "4", "--sweep", "4,8", "--requests", "800"});
  EXPECT_EQ(model.bodies.size(), 1600u);
  EXPECT_EQ(model.different(), 1600u) << "also more than are counted in one run";
}

/// A file of arrivals, removed at the end.
class TraceFile {
 public:
  explicit TraceFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("trireme_trace_" + std::to_string(::getpid()) + ".csv")) {
    std::ofstream(path_) << text;
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Load, TheWarmUpOfATraceSendsNoneOfItsPrompts) {
  KeptTexts model;
  const TraceFile trace("timestamp,length\n0,30\n0.01,40\n0.02,50\n");
  LoadOptions options = options_for(model.server, {"--model", "m", "--completions", "--trace", trace.path()});
  options.warmup.ns = 200 * base::kNsPerMs;
  const Report report = measure(options, [](const std::string&) {});
  EXPECT_EQ(report.runs.at(0).result.succeeded, 3);
  ASSERT_GT(model.bodies.size(), 3u);
  for (size_t i = model.bodies.size() - 3; i < model.bodies.size(); ++i)
    EXPECT_EQ(std::count(model.bodies.begin(), model.bodies.end(), model.bodies[i]), 1) << i;
}

TEST(Load, ATraceWithoutDurationHasFewIntervals) {
  http::Server server(local(), ok);
  const TraceFile trace("timestamp\n7\n7\n7\n");
  const LoadResult r = run(server, {"--trace", trace.path()}).runs.at(0).result;
  EXPECT_EQ(r.succeeded, 3);
  EXPECT_LE(r.intervals.size(), 121u);
  EXPECT_GE(static_cast<double>(r.intervals.size()) * static_cast<double>(r.interval_ns), r.window_s * 0.9e9);
  int64_t completed = 0, latencies = 0;
  for (const Interval& i : r.intervals) {
    completed += i.completed;
    latencies += i.latency.count();
  }
  EXPECT_EQ(completed, 3);
  EXPECT_EQ(latencies, 3);
}

TEST(LoadResult, WiderIntervalsKeepWhatWasCounted) {
  LoadResult r;
  r.interval_ns = 1;
  r.intervals.resize(5);
  for (size_t i = 0; i < 5; ++i) {
    r.intervals[i].completed = static_cast<int64_t>(i);
    r.intervals[i].latency.record(static_cast<int64_t>(10 * i));
  }
  r.widen_intervals(119);
  EXPECT_EQ(r.interval_ns, 1);
  r.widen_intervals(240);
  EXPECT_EQ(r.interval_ns, 4);
  ASSERT_EQ(r.intervals.size(), 2u);
  EXPECT_EQ(r.intervals[0].completed, 0 + 1 + 2 + 3);
  EXPECT_EQ(r.intervals[0].latency.max(), 30);
  EXPECT_EQ(r.intervals[1].completed, 4);
  EXPECT_EQ(r.intervals[1].latency.count(), 1);
}

// Answers that come after the last request was due are not part of the throughput, and neither is the time
// until then. The end is that of the schedule: a machine that is busy does not move it.
TEST(Load, TheWindowOfCountedRequestsEndsWithTheirSchedule) {
  constexpr size_t kRequests = 50;
  std::vector<http::Reply> held;
  http::Server server(local(), [&](http::Request&&, http::Reply reply) {
    held.push_back(std::move(reply));
    if (held.size() < kRequests) return;
    std::this_thread::sleep_for(300ms);
    for (http::Reply& one : held) one.send(http::text_response(200, "ok"));
  });
  const LoadResult r = run(server, {"--rate", "200", "--arrivals", "fixed", "--requests", "50", "--threads",
                                    "1", "--timeout", "1h"})
                           .runs.at(0)
                           .result;
  EXPECT_EQ(r.succeeded, 50);
  EXPECT_NEAR(r.window_s, 50 / 200.0, 1e-6);
}

TEST(Load, JsonTensorsOfEveryDatatype) {
  size_t json_bytes = 0;
  const InputTensor ints{"i", "INT16", {2}, std::string("\xff\xff\x02\x00", 4)};
  const InputTensor bools{"b", "BOOL", {2}, std::string("\x00\x01", 2)};
  const InputTensor big{"u", "UINT64", {1}, std::string(8, '\xff')};
  EXPECT_EQ(encode_infer({ints, bools, big}, Format::json, &json_bytes),
            R"({"inputs":[{"name":"i","datatype":"INT16","shape":[2],"data":[-1,2]},)"
            R"({"name":"b","datatype":"BOOL","shape":[2],"data":[false,true]},)"
            R"({"name":"u","datatype":"UINT64","shape":[1],"data":[18446744073709551615]}]})");
  for (const char* type : {"BOOL", "UINT8", "INT8", "INT32", "FP16", "BF16", "FP32", "FP64"}) {
    EXPECT_FALSE(random_elements(type, 10, 0, 1, 1).empty());
  }
  EXPECT_THROW(random_elements("FP8", 1, 0, 1, 1), base::Error);
  EXPECT_THROW(encode_infer({{"h", "FP16", {1}, "ab"}}, Format::json, &json_bytes), base::Error);
}

TEST(Load, GoalsAreParsedStrictly) {
  EXPECT_DOUBLE_EQ(Slo::parse("p99.9=1.5ms").quantile, 0.999);
  EXPECT_DOUBLE_EQ(Slo::parse("p99.9=1.5ms").bound, 1.5e6);
  EXPECT_DOUBLE_EQ(Slo::parse("errors=0.1%").bound, 0.001);
  for (const char* bad : {"p99", "p99=", "p0=1s", "p100=1s", "q=1s", "errors=x", "p99=5"}) {
    EXPECT_THROW(Slo::parse(bad), base::Error) << bad;
  }
}

TEST(Load, ConfidenceWidensWhenNeighboursAreAlike) {
  LoadResult independent, alike;
  independent.window_s = alike.window_s = 10;
  independent.interval_ns = alike.interval_ns = base::kNsPerSecond;
  independent.intervals.resize(10);
  alike.intervals.resize(10);
  for (int i = 0; i < 1000; ++i) {
    // The same thousand values, once shuffled over the intervals, once sorted into them.
    const int64_t value = 1000 + i;
    independent.latency.record(value);
    independent.intervals[static_cast<size_t>(i % 10)].latency.record(value);
    alike.latency.record(value);
    alike.intervals[static_cast<size_t>(i / 100)].latency.record(value);
  }
  EXPECT_EQ(effective_samples(independent), 1000);
  EXPECT_LT(effective_samples(alike), 20);
  const Bounds narrow = quantile_bounds(independent, 0.5), wide = quantile_bounds(alike, 0.5);
  EXPECT_LT(narrow.low, 1500);
  EXPECT_GT(narrow.high, 1500);
  EXPECT_NEAR(narrow.high - narrow.low, 62, 8);  // 1000 ranks, +-1.96 sqrt(250) = +-31
  EXPECT_GT(wide.high - wide.low, 3 * (narrow.high - narrow.low));
}

TEST(Load, TicksAreRound) {
  EXPECT_EQ(base::round_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(base::round_ticks(0, 0.9, 5).back(), 1.0);
}

}  // namespace
}  // namespace trireme::load
