// Answers in pieces of every size, streams, errors inside them, and what is written of a run.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/error.h"
#include "load/requests/exchange.h"
#include "load/requests/kserve_grpc.h"
#include "load/report/report.h"

namespace trireme::load {
namespace {

Answer answer_to(const std::string& bytes, size_t piece, bool streams, int64_t* parts = nullptr) {
  const std::unique_ptr<Exchange> e = make_exchange({.host = "h", .streams = streams});
  const std::string request = "GET / HTTP/1.1\r\n\r\n";
  e->open();
  e->begin(request);
  EXPECT_EQ(e->unsent(), request);
  e->sent(request.size());
  for (size_t at = 0; at < bytes.size(); at += piece) {
    EXPECT_FALSE(e->is_done());
    e->receive(std::string_view(bytes).substr(at, piece));
  }
  EXPECT_TRUE(e->is_done());
  if (parts != nullptr) *parts = e->parts();
  return e->answer();
}

TEST(Exchange, AnswersMayComeInAnyPieces) {
  const std::string whole = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: y\r\n\r\nhello";
  const std::string chunked =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
  for (size_t piece = 1; piece <= chunked.size(); ++piece) {
    const Answer a = answer_to(whole, piece, false), b = answer_to(chunked, piece, false);
    EXPECT_EQ(a.error, "") << piece;
    EXPECT_EQ(a.body_bytes, 5) << piece;
    EXPECT_TRUE(a.can_go_on);
    EXPECT_EQ(b.error, "") << piece;
    EXPECT_EQ(b.body_bytes, 11) << piece;
  }
  EXPECT_EQ(answer_to("HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", 3, false).error, "status 503");
  EXPECT_FALSE(
      answer_to("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", 9, false).can_go_on);
  EXPECT_THROW(answer_to("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore", 100, false), base::Error);
  EXPECT_THROW(answer_to("SMTP ready\r\n\r\n", 100, false), base::Error);
}

TEST(Exchange, EventsAreCountedOnceWhereverTheyAreCut) {
  const auto stream = [](const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  };
  const std::string events =
      ": hello\n\ndata: {\"a\": \"data: x\"}\n\ndata:2\n\nevent: e\ndata: 3\n\ndata: [DONE]\n\n";
  for (size_t piece = 1; piece < 40; ++piece) {
    int64_t parts = 0;
    EXPECT_EQ(answer_to(stream(events), piece, true, &parts).error, "") << piece;
    EXPECT_EQ(parts, 3) << piece;
  }
  EXPECT_EQ(answer_to(stream("data: 1\n\ndata: {\"error\":\"no\"}\n\n"), 7, true).error,
            "error in the stream");
  EXPECT_EQ(answer_to(stream("nothing\n"), 7, true).error, "no event in the stream");
}

TEST(Exchange, WhatBringsNothingOfAnAnswerIsNoPart) {
  const auto parts_of = [](const std::string& events) {
    const std::string body = events + "data: [DONE]\n\n";
    int64_t parts = 0;
    const std::string head = "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n";
    EXPECT_EQ(answer_to(head + body, 9, true, &parts).error, "");
    return parts;
  };
  const auto text = [](const std::string& added, const std::string& reason) {
    return R"(data: {"id":"a","choices":[{"index":0,"text":")" + added +
           R"(","logprobs":null,"finish_reason":)" + reason + "}]}\n\n";
  };
  const auto chat = [](const std::string& delta, const std::string& reason) {
    return R"(data: {"id": "a", "choices": [{"index": 0, "delta": )" + delta + R"(, "finish_reason": )" +
           reason + "}]}\n\n";
  };
  const std::string used = "data: {\"id\":\"a\",\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\n";
  EXPECT_EQ(parts_of(text("a", "null") + text("b", "null") + text("", "\"length\"") + used), 2);
  EXPECT_EQ(parts_of(text("a", "null") + text("b", "\"stop\"")), 2) << "the last piece says the reason too";
  EXPECT_EQ(parts_of(text(R"(\"finish_reason\":1)", "null")), 1);
  EXPECT_EQ(parts_of(text("", "\"stop\"")), 0) << "an empty answer";
  EXPECT_EQ(parts_of(chat(R"({"role":"assistant","content":"a"})", "null") + chat("{}", "\"stop\"")), 1);
  EXPECT_EQ(parts_of(chat(R"({"content":"a"})", "null") + chat(R"({"content":""})", "\"stop\"")), 1);
  EXPECT_EQ(parts_of(chat(R"({"content":"a"})", "\"stop\"")), 1);
  EXPECT_EQ(parts_of(chat(R"({"tool_calls":[{"index":0}]})", "\"tool_calls\"")), 1);
  EXPECT_EQ(parts_of("data: {\"choices\":[],\n\ndata: {\"choices\":[ ]}\n\n"), 1) << "no JSON counts";
}

TEST(Exchange, ProtobufOfMetadataAndStatistics) {
  // name "m"; inputs {name "x", datatype "FP32", shape [-1, 300] packed} and {"y", "BYTES", [2] as a varint}.
  const std::string minus(9, '\xff');
  const std::string x = std::string("\x0a\x01x\x12\x04") + "FP32\x1a\x0c" + minus + "\x01\xac\x02";
  const std::string y = std::string("\x0a\x01y\x12\x05") + "BYTES\x18\x02";
  const std::string message = "\x0a\x01m\x22" + std::string(1, static_cast<char>(x.size())) + x + "\x22" +
                              std::string(1, static_cast<char>(y.size())) + y;
  const base::Json inputs = metadata_of_grpc(message).at("inputs");
  EXPECT_EQ(inputs.at(0).at("shape").dump(), "[-1,300]");
  EXPECT_EQ(inputs.at(0).at("datatype").as_string(), "FP32");
  EXPECT_EQ(inputs.at(1).at("shape").dump(), "[2]");
  for (size_t cut = 1; cut < message.size(); ++cut) {
    try {
      metadata_of_grpc(
          message.substr(0, cut));  // whole fields only, or an error; nothing is read behind the end
    } catch (const base::Error& e) {
      EXPECT_EQ(e.code(), base::ErrorCode::unavailable);
    }
  }
  // One model: 7 inferences, 3 executions, queue {count 7, ns 300}.
  const std::string times("\x1a\x05\x08\x07\x10\xac\x02", 7);
  const std::string model = std::string("\x20\x07\x28\x03\x32\x07") + times;
  const base::Json stats =
      statistics_of_grpc("\x0a" + std::string(1, static_cast<char>(model.size())) + model)
          .at("model_stats")
          .at(0);
  EXPECT_EQ(stats.at("inference_count").as_int(), 7);
  EXPECT_EQ(stats.at("execution_count").as_int(), 3);
  EXPECT_EQ(stats.at("inference_stats").at("queue").at("ns").as_int(), 300);
  EXPECT_EQ(stats.at("inference_stats").at("compute_infer").at("ns").as_int(), 0);
  EXPECT_EQ(encode_grpc_infer("m", {{"x", "INT8", {1, 2}, "ab"}}),
            std::string("\x0a\x01m\x2a\x0d\x0a\x01x\x12\x04INT8\x1a\x02\x01\x02\x3a\x02", 20) + "ab");
}

TEST(Exchange, WarningsSayWhoseTheFiguresAre) {
  Measured m;
  m.result.concurrency = 4;
  m.result.succeeded = m.result.scheduled = m.result.completed_in_window = 1000;
  m.result.window_s = 1;
  m.result.latency.record(1'000'000, 1000);
  EXPECT_TRUE(warnings_of(m).empty());
  m.result.effort.busy_share = 0.97;
  ASSERT_EQ(warnings_of(m).size(), 1u);
  EXPECT_NE(warnings_of(m)[0].find("generator may be the limit"), std::string::npos);
  m.result.effort = {.waited_share = 0.3};
  EXPECT_NE(warnings_of(m)[0].find("waited for a processor 30 %"), std::string::npos);
  m.result.effort = {.starved = 400};
  EXPECT_NE(warnings_of(m)[0].find("40.0 %"), std::string::npos);
  m.result.effort = {};
  m.result.concurrency = 0;
  m.result.offered_rate = 2000;
  m.result.scheduled = 2000;
  EXPECT_NE(warnings_of(m)[0].find("did not keep up"), std::string::npos);
  m.result.succeeded = 0;
  EXPECT_EQ(warnings_of(m)[0], "no request succeeded");
}

TEST(Exchange, LinesOfRunsAndRequests) {
  Report report;
  Measured& m = report.runs.emplace_back();
  m.result.concurrency = 2;
  m.result.succeeded = m.result.completed_in_window = 10;
  m.result.window_s = 2;
  m.result.latency.record(100'000, 10);
  m.result.service.record(100'000, 10);
  m.result.send_ns = 50'000;
  m.result.receive_ns = 20'000;
  m.server = {{.model = "m", .requests = 10, .queue_ns = 100'000, .compute_infer_ns = 300'000}};
  m.result.records = {{.scheduled_ns = 0,
                       .sent_ns = 1500,
                       .first_ns = 0,
                       .ended_ns = 9000,
                       .request = 3,
                       .error = "a, \"b\""}};
  const std::string csv = csv_report(report);
  EXPECT_TRUE(csv.starts_with("Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,")) << csv;
  EXPECT_NE(csv.find("\n2,5.00,5.0,53.0,10.0,0.0,30.0,0.0,2.0,100.0,"), std::string::npos) << csv;
  EXPECT_NE(record_csv(report).find("\nc=2,0.000,1.500,,9.000,3,0,\"a, \"\"b\"\"\"\n"), std::string::npos)
      << record_csv(report);
}

}  // namespace
}  // namespace trireme::load
