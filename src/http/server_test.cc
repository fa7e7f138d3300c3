// Tests the HTTP server with its own client and with raw bytes: framing, order, limits, timeouts, leaving
// clients, drain.
#include "http/server.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "http/client.h"
#include "http/coding.h"
#include "tests/work_growth.h"

namespace trireme::http {
namespace {

using namespace std::chrono_literals;

ServerOptions local_options() {
  ServerOptions o;
  o.host = "127.0.0.1";
  return o;
}

// Answers with method, path and body.
void echo(Request&& request, Reply reply) {
  Response response = text_response(200, std::string(request.method) + " " + std::string(request.path) + " ");
  response.body.emplace_back(std::string(request.body.view()));
  reply.send(std::move(response));
}

Client client_of(const Server& server, std::chrono::milliseconds timeout = 10s) {
  return Client("127.0.0.1", server.port(), timeout);
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 1000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

std::string post_head(size_t length) {
  return "POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n";
}

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  for (int i = 0; i < 3; ++i) {
    const Received got = client.post("/a/b?q=1", "body");
    EXPECT_EQ(got.status, 200);
    EXPECT_EQ(got.body, "POST /a/b body");
    EXPECT_TRUE(got.keep_alive);
  }
  EXPECT_EQ(server.counts().connections_accepted, 1u);
  EXPECT_EQ(server.counts().requests, 3u);
}

int64_t process_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

// A loop that spins before it sleeps must see answers from other threads, and must sleep when idle.
TEST(HttpServer, SpinsWhileRequestsFollowAnswersAndSleepsThen) {
  ServerOptions options = local_options();
  options.spin = 20ms;  // long, so that endless spinning would show
  std::vector<std::thread> others;
  Server server(options, [&](Request&& request, Reply reply) {
    if (request.path != "/other") return reply.send(text_response(200, "here"));
    others.emplace_back([reply = std::move(reply)]() mutable { reply.send(text_response(200, "there")); });
  });
  Client client = client_of(server);
  for (int i = 0; i < 200; ++i) {
    EXPECT_EQ(client.get("/").body, "here");
    EXPECT_EQ(client.get("/other").body, "there");
  }
  for (std::thread& other : others) other.join();
  std::this_thread::sleep_for(100ms);
  const int64_t begin_ns = process_cpu_ns();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(process_cpu_ns() - begin_ns, 100'000'000);
  // Between requests of a client that comes every 60 ms, the loop sleeps instead of spinning.
  const int64_t slow_ns = process_cpu_ns();
  for (int i = 0; i < 10; ++i) {
    std::this_thread::sleep_for(60ms);
    EXPECT_EQ(client.get("/").status, 200);
  }
  EXPECT_LT(process_cpu_ns() - slow_ns, 120'000'000);
}

/// Limits the memory of the process to `more_bytes` beyond its current use, until destroyed.
struct MemoryLimit {
  explicit MemoryLimit(int64_t more_bytes) {
    base::process_memory().set_limit(base::process_memory().used_bytes() + more_bytes);
  }
  ~MemoryLimit() { base::process_memory().set_limit(INT64_MAX); }
};

TEST(HttpServer, BodiesBeyondTheMemoryAreRefusedAndOthersServed) {
  Server server(local_options(), [](Request&& request, Reply reply) {
    reply.send(text_response(200, std::to_string(request.body.size())));
  });
  const int64_t before = base::process_memory().used_bytes();
  std::string plain(60 << 20, ' ');
  const HeaderList gzip = {{"Content-Encoding", "gzip"}};
  EXPECT_EQ(client_of(server).post("/", deflate_body(plain, Coding::gzip), gzip).status, 413);
  {
    const MemoryLimit limit(int64_t{24} << 20);
    Client large = client_of(server), small = client_of(server), coded = client_of(server);
    EXPECT_EQ(large.post("/", std::string(8 << 20, 'x')).body, "8388608");
    large.send_raw(post_head(60'000'000));
    const std::string piece(1 << 20, 'x');
    for (int i = 0; i < 20; ++i) large.send_raw(piece);  // the first part fits
    Received got;
    try {
      for (int i = 0; i < 37; ++i) large.send_raw(piece);
      got = large.receive();
      EXPECT_EQ(got.status, 429);
      EXPECT_FALSE(got.header("retry-after").empty());
    } catch (const base::Error&) {
      // The server refused the request while it was still being sent.
    }
    EXPECT_EQ(small.post("/", "abc").body, "3");
    std::mt19937 random(7);
    for (size_t i = 0; i < plain.size(); i += 64) plain[i] = static_cast<char>(random());
    EXPECT_EQ(coded.post("/", deflate_body(plain, Coding::gzip), gzip).status, 429);
    EXPECT_EQ(small.post("/", "abcd").body, "4");
  }
  EXPECT_TRUE(eventually([&] { return base::process_memory().used_bytes() <= before + (1 << 20); }))
      << base::process_memory().used_bytes() - before;
}

// Headers that announce large bodies do not use up the remaining memory: while it is tight, memory is
// allocated only as bytes arrive.
TEST(HttpServer, PromisesOfBodiesTakeLittleWhereMemoryIsTight) {
  Server server(local_options(), [](Request&& request, Reply reply) {
    reply.send(text_response(200, std::to_string(request.body.size())));
  });
  const MemoryLimit limit(int64_t{60} << 20);
  std::vector<Client> clients;
  for (int i = 0; i < 60; ++i) {
    clients.push_back(client_of(server));
    clients.back().send_raw(post_head(60'000'000) + "x");
  }
  EXPECT_TRUE(eventually([&] { return server.counts().connections_open == 60; }));
  Client other = client_of(server);
  EXPECT_EQ(other.post("/", std::string(100'000, 'x')).body, "100000");
  EXPECT_EQ(server.counts().connections_open, 61);  // a refusal would have closed one
  EXPECT_TRUE(base::process_memory().is_tight());
}

// Bytes after a stream that broke off, or that only the end of the connection can end, would be taken for its
// body.
TEST(HttpServer, NothingFollowsAStreamWhoseEndIsTheConnections) {
  for (const bool is_old : {false, true}) {
    Reply first;
    Server server(local_options(), [&](Request&& request, Reply reply) {
      if (request.path == "/stream") return void(first = std::move(reply));
      reply.send(text_response(200, "the next answer"));
      Stream stream = first.stream(text_response(200, "a part"));
      if (is_old) stream.finish();  // else it breaks off
    });
    Client client = client_of(server);
    const std::string version = is_old ? "HTTP/1.0\r\nConnection: keep-alive" : "HTTP/1.1";
    client.send_raw("GET /stream " + version + "\r\nHost: h\r\n\r\nGET /next " + version +
                    "\r\nHost: h\r\n\r\n");
    if (is_old) {
      EXPECT_EQ(client.receive().body, "a part");
    } else {
      EXPECT_THROW(client.receive(), base::Error);
    }
    EXPECT_TRUE(eventually([&] { return server.counts().connections_open == 0; }));
  }
}

TEST(HttpServer, PipelinedRequestsInWorkCountForTheirAnswers) {
  ServerOptions options = local_options();
  options.max_held_bytes = 8 << 20;
  std::atomic<int> working{0}, most{0};
  std::vector<std::thread> workers;
  Server server(options, [&](Request&&, Reply reply) {
    workers.emplace_back([&, reply = std::move(reply)]() mutable {
      const int now = ++working;
      for (int seen = most.load(); now > seen && !most.compare_exchange_weak(seen, now);) {
      }
      std::this_thread::sleep_for(5ms);
      --working;
      reply.send(text_response(200, std::string(4 << 20, 'y')));
    });
  });
  Client client = client_of(server);
  const std::string request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
  client.send_raw(request);
  client.receive();
  most = 0;
  std::string requests;
  for (int i = 0; i < 60; ++i) requests += request;
  client.send_raw(requests);
  for (int i = 0; i < 60; ++i) ASSERT_EQ(client.receive().body.size(), size_t{4} << 20);
  for (std::thread& worker : workers) worker.join();
  EXPECT_LE(most.load(), 3);
}

// Reading a little now and then does not suffice: readers must keep the pace that is demanded of senders.
TEST(HttpServer, AReaderThatTricklesIsCutOff) {
  ServerOptions options = local_options();
  options.write_timeout = 1500ms;
  options.min_body_rate = 100'000'000;
  Server server(options,
                [](Request&&, Reply reply) { reply.send(text_response(200, std::string(64 << 20, 'y'))); });
  const Descriptor socket(connect_to("127.0.0.1", server.port(), false));
  const std::string_view request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
  ASSERT_EQ(::send(socket.get(), request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
  std::string piece(20'000, '\0');
  bool is_cut = false;
  for (const auto end = std::chrono::steady_clock::now() + 8s;
       !is_cut && std::chrono::steady_clock::now() < end;) {
    if (::recv(socket.get(), piece.data(), piece.size(), 0) <= 0) break;
    std::this_thread::sleep_for(5ms);  // 4 MB/s: too slow, though bytes move all the time
    is_cut = server.counts().connections_open == 0;
  }
  EXPECT_TRUE(is_cut);
}

TEST(HttpServer, HeadHasNoBodyButItsLength) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  const Received got = client.request("HEAD", "/h");
  EXPECT_EQ(got.header("content-length"), "8");
  EXPECT_TRUE(got.body.empty());
  EXPECT_EQ(client.get("/").status, 200);
}

TEST(HttpServer, BodiesOfEverySizeComeBack) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  for (const size_t bytes : {0, 1, 4095, 16384, 16385, 100'000, 3'000'000, 20'000'000}) {
    std::string body(bytes, 'x');
    for (size_t i = 0; i < bytes; i += 97) body[i] = static_cast<char>(i);
    EXPECT_EQ(client.post("/", body).body, "POST / " + body) << bytes;
  }
}

// A request pipelined after a large body is read in the same call and answered in turn.
TEST(HttpServer, LargeBodiesAndWhatFollowsThem) {
  Server server(local_options(), [](Request&& request, Reply reply) {
    reply.send(text_response(200, std::to_string(request.body.size())));
  });
  Client client = client_of(server);
  for (size_t bytes : {size_t{70'000}, size_t{602'424}, size_t{3'000'001}, size_t{20'000'000}}) {
    const std::string body(bytes, 'b');
    client.send_raw(post_head(bytes) + body + "GET /next HTTP/1.1\r\nHost: h\r\n\r\n" + post_head(3) + "abc");
    EXPECT_EQ(client.receive().body, std::to_string(bytes));
    EXPECT_EQ(client.receive().body, "0");
    EXPECT_EQ(client.receive().body, "3");
  }
}

// The server sleeps until much of a large body has arrived; the bytes still count as they trickle in.
TEST(HttpServer, SlowLargeBodiesKeepTheirPace) {
  ServerOptions options = local_options();
  options.body_timeout = 1500ms;
  options.min_body_rate = 100'000;
  Server server(options, [](Request&& request, Reply reply) {
    reply.send(text_response(200, std::to_string(request.body.size())));
  });
  Client client = client_of(server), stuck = client_of(server);
  stuck.send_raw(post_head(1'000'000) + std::string(1'000, 's'));
  client.send_raw(post_head(600'000));
  for (int i = 0; i < 12; ++i) {
    std::this_thread::sleep_for(200ms);
    client.send_raw(std::string(50'000, 'p'));
  }
  EXPECT_EQ(client.receive().body, "600000");
  EXPECT_EQ(stuck.receive().status, 408);
}

TEST(HttpServer, BinaryDataBeginsOnACacheLine) {
  Server server(local_options(), [](Request&& request, Reply reply) {
    const size_t offset = std::stoul(std::string(request.header("Inference-Header-Content-Length")));
    const auto at = reinterpret_cast<uintptr_t>(request.body.data()) + offset;
    reply.send(text_response(200, std::to_string(at % 64)));
  });
  Client client = client_of(server);
  for (size_t offset : {0u, 1u, 63u, 64u, 311u, 5'000u}) {
    for (size_t bytes : {size_t{6'000}, size_t{100'000}, size_t{20'000'000}}) {
      const Received got = client.request("POST", "/", std::string(bytes, 'x'),
                                          {{"Inference-Header-Content-Length", std::to_string(offset)}});
      EXPECT_EQ(got.body, "0") << offset << " of " << bytes;
    }
  }
}

TEST(HttpServer, ChunkedBodyInTinyPieces) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  const std::string bytes =
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\nTrailer: t\r\n\r\n";
  for (const char c : bytes) client.send_raw({&c, 1});
  EXPECT_EQ(client.receive().body, "POST /c hello world");
  client.send_raw(bytes + bytes);
  EXPECT_EQ(client.receive().body, "POST /c hello world");
  EXPECT_EQ(client.receive().body, "POST /c hello world");
}

TEST(HttpServer, ExpectContinueIsAnswered) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  client.send_raw("POST /e HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  std::this_thread::sleep_for(20ms);
  client.send_raw("ok");
  EXPECT_EQ(client.receive().body, "POST /e ok");  // the parser skips the interim response
}

TEST(HttpServer, TenThousandPipelinedRequestsInOrder) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  client.connect();
  constexpr int kRequests = 10'000;
  std::thread sender([&] {
    std::string bytes;
    for (int i = 0; i < kRequests; ++i) bytes += "GET /" + std::to_string(i) + " HTTP/1.1\r\nHost: h\r\n\r\n";
    client.send_raw(bytes);
  });
  int in_order = 0;
  for (int i = 0; i < kRequests; ++i) {
    Received got = client.receive();
    in_order += got.body == "GET /" + std::to_string(i) + " ";
  }
  sender.join();
  EXPECT_EQ(in_order, kRequests);
}

TEST(HttpServer, PipelinedAnswersKeepOrderWhenTheyFinishOutOfOrder) {
  std::vector<std::thread> threads;
  Server server(local_options(), [&](Request&& request, Reply reply) {
    const int delay_ms = request.path == "/slow" ? 60 : 1;
    threads.emplace_back([delay_ms, r = std::move(request), reply = std::move(reply)]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      reply.send(text_response(200, std::string(r.path)));
    });
  });
  Client client = client_of(server);
  client.send_raw("GET /slow HTTP/1.1\r\nHost: h\r\n\r\nGET /fast HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(client.receive().body, "/slow");
  EXPECT_EQ(client.receive().body, "/fast");
  server.stop();
  for (std::thread& t : threads) t.join();
}

/// One chunk more than a body may have, and no last chunk, so that the server has read everything when it
/// refuses.
std::string chunk_flood() {
  std::string bytes;
  for (int i = 0; i <= 65536; ++i) bytes += "1\r\na\r\n";
  return bytes;
}

TEST(HttpServer, TakesAsManyChunksAsABodyMayHaveAndNoMore) {
  Server server(local_options(), echo);
  Client client = client_of(server);
  const std::string head = "POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string flood = chunk_flood();
  client.send_raw(head + flood.substr(6) + "0\r\n\r\n");
  EXPECT_EQ(client.receive().body.size(), 65536 + std::string("POST /x ").size());
  client.send_raw(head + flood);
  const Received refused = client.receive();
  EXPECT_EQ(refused.status, 400);
  EXPECT_NE(refused.body.find("exceeds maximum of 65536 non-empty chunks"), std::string::npos)
      << refused.body;
}

// Proxy clients send such targets; access rules for a path must not depend on how the target is written.
TEST(HttpServer, TakesTargetsWithSchemeAndHost) {
  Server server(local_options(), [](Request&& request, Reply reply) {
    reply.send(
        text_response(200, base::concat(request.path, "|", request.query, "|", request.header("Host"))));
  });
  Client client = client_of(server);
  const auto got = [&](const std::string& target) {
    client.send_raw("GET " + target + " HTTP/1.1\r\nHost: own\r\n\r\n");
    return client.receive().body;
  };
  EXPECT_EQ(got("http://h:1/v2/x?a=b"), "/v2/x|a=b|h:1");
  EXPECT_EQ(got("HTTPS://h/"), "/||h");
  EXPECT_EQ(got("http://h"), "/||h");
  EXPECT_EQ(got("/http://h/"), "/http://h/||own");
}

TEST(HttpServer, ErrorsAreJsonWhateverBytesTheyQuote) {
  const Response response = error_response(404, "unknown \xff\x01 \xc3\xa9 \"q\"");
  EXPECT_EQ(response.body.at(0).bytes(), "{\"error\":\"unknown \xef\xbf\xbd\\u0001 \xc3\xa9 \\\"q\\\"\"}");
}

struct BadCase {
  const char* name;
  std::string bytes;
  int status;
};

TEST(HttpServer, RefusesMalformedRequestsAndCloses) {
  ServerOptions options = local_options();
  options.limits.max_header_bytes = 4096;
  options.limits.max_body_bytes = 1000;
  Server server(options, echo);
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::vector<BadCase> cases = {
      {"no request line", "hello\r\n\r\n", 400},
      {"bad version", "GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
      {"header without colon", "GET / HTTP/1.1\r\nHost: h\r\nnocolon\r\n\r\n", 400},
      {"space before colon", "GET / HTTP/1.1\r\nHost: h\r\nA : b\r\n\r\n", 400},
      {"folded header", "GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n", 400},
      {"bare line feed", "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"no host in Host", "GET / HTTP/1.1\r\nHost: a b/c@d\r\n\r\n", 400},
      {"no host in the target", "GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"a user in the target", "GET http://u@h/x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
      {"length and chunked",
       "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"chunked and length",
       "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", 400},
      {"two lengths", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
      {"negative length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -5\r\n\r\n", 400},
      {"signed length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +5\r\n\r\n", 400},
      {"overflowing length", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n",
       400},
      {"unknown coding", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {"coding trick", "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", 501},
      {"chunked in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {"bad chunk size", chunked + "zz\r\nhello\r\n", 400},
      {"chunk size overflow", chunked + "fffffffffffffffff\r\nhello\r\n", 400},
      {"chunk longer than its size", chunked + "2\r\nhello\r\n0\r\n\r\n", 400},
      {"chunk over the limit", chunked + "fff\r\n", 413},
      {"body over the limit", post_head(1001), 413},
      {"header over the limit", "GET / HTTP/1.1\r\nHost: h\r\nA: " + std::string(5000, 'a') + "\r\n\r\n",
       431},
      {"endless header", "GET / HTTP/1.1\r\nHost: h\r\nA: " + std::string(9000, 'a'), 431},
      {"endless chunk extension", chunked + "1;" + std::string(9000, 'a'), 400},
      {"unknown expectation", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: magic\r\n\r\na",
       417},
      {"where binary data begins, twice",
       "POST / HTTP/1.1\r\nHost: h\r\nInference-Header-Content-Length: 1\r\n"
       "inference-header-content-length: 2\r\n\r\n",
       400},
      {"connect", "CONNECT a:1 HTTP/1.1\r\nHost: h\r\n\r\n", 501},
  };
  for (const BadCase& c : cases) {
    Client client = client_of(server, 3s);
    client.send_raw(c.bytes);
    const Received got = client.receive();
    EXPECT_EQ(got.status, c.status) << c.name << ": " << got.body;
    EXPECT_EQ(got.body.rfind("{\"error\":\"", 0), 0u) << c.name << ": " << got.body;
    EXPECT_FALSE(got.keep_alive) << c.name;
    EXPECT_TRUE(client.wait_closed()) << c.name;
  }
  EXPECT_EQ(server.counts().requests, 0u);
  EXPECT_EQ(server.counts().requests_malformed, cases.size());
}

TEST(HttpServer, TruncatedRequestsAreForgotten) {
  Server server(local_options(), echo);
  for (const std::string& bytes : {std::string("GET / HT"), std::string("\r\n"), post_head(10) + "abc"}) {
    Client client = client_of(server);
    client.send_raw(bytes);
    client.shutdown_send();
    EXPECT_TRUE(client.wait_closed());
  }
  EXPECT_EQ(server.counts().requests, 0u);
  EXPECT_TRUE(eventually([&] { return server.counts().connections_open == 0; }));
}

TEST(HttpServer, SlowClientsAreTimedOut) {
  ServerOptions options = local_options();
  options.header_timeout = 100ms;
  options.body_timeout = 100ms;
  options.idle_timeout = 150ms;
  Server server(options, echo);
  Client head = client_of(server), body = client_of(server), idle = client_of(server);
  idle.connect();
  body.send_raw(post_head(100));
  head.send_raw("GET / HTTP/1.1\r\n");
  std::atomic<bool> over{false};
  std::thread trickle([&] {  // single bytes do not extend the deadline
    try {
      while (!over.load()) {
        head.send_raw("A");
        std::this_thread::sleep_for(20ms);
      }
    } catch (const base::Error&) {
    }
  });
  EXPECT_EQ(body.receive().status, 408);
  EXPECT_TRUE(idle.wait_closed());
  EXPECT_TRUE(eventually([&] { return server.counts().timeouts == 3; }));
  over.store(true);
  trickle.join();
  EXPECT_EQ(head.receive().status, 408);
}

TEST(HttpServer, TellsTheHandlerThatTheClientLeft) {
  std::atomic<bool> called{false};
  std::latch taken(1);
  Reply held;
  Server server(local_options(), [&](Request&&, Reply reply) {
    reply.on_client_gone([&] { called.store(true); });
    held = std::move(reply);
    taken.count_down();
  });
  {
    Client client = client_of(server);
    client.send_raw("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    taken.wait();
    EXPECT_FALSE(held.client_gone());
  }
  EXPECT_TRUE(eventually([&] { return called.load(); }));
  EXPECT_TRUE(held.client_gone());
  bool at_once = false;
  held.on_client_gone([&] { at_once = true; });
  EXPECT_TRUE(at_once);
  held.send(text_response(200, "too late"));
  EXPECT_EQ(server.counts().clients_gone, 1u);
}

TEST(HttpServer, DroppedAndThrowingHandlersAnswer) {
  Server server(local_options(), [](Request&& request, Reply) {
    if (request.path == "/missing") base::fail(base::ErrorCode::not_found, "no \"model\"");
    if (request.path == "/full") base::fail(base::ErrorCode::unavailable, "queue is full");
    if (request.path == "/std") throw std::runtime_error("broken");
  });
  Client client = client_of(server);
  EXPECT_EQ(client.get("/dropped").status, 500);
  const Received missing = client.get("/missing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.body, "{\"error\":\"no \\\"model\\\"\"}");
  const Received full = client.get("/full");
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.header("retry-after"), "1");
  EXPECT_EQ(client.get("/std").body, "{\"error\":\"broken\"}");
}

TEST(HttpServer, StreamsPiecesFromAnotherThread) {
  std::vector<std::thread> threads;
  Server server(local_options(), [&](Request&& request, Reply reply) {
    const bool abort = request.path == "/abort";
    threads.emplace_back([abort, reply = std::move(reply)]() mutable {
      Stream stream = reply.stream(text_response(200, "", "text/event-stream"));
      for (int i = 0; i < 100; ++i) stream.write("data: " + std::to_string(i) + "\n\n");
      if (!abort) stream.finish();
    });
  });
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  Client client = client_of(server);
  for (int i = 0; i < 3; ++i) {
    const Received got = client.get("/");
    EXPECT_EQ(got.header("transfer-encoding"), "chunked");
    EXPECT_EQ(got.body, expected);
  }
  EXPECT_THROW(client.get("/abort"), base::Error);
  client.send_raw("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.receive().body, expected);
  server.stop();
  for (std::thread& t : threads) t.join();
}

TEST(HttpServer, LargeStreamWaitsForASlowReader) {
  std::thread writer;
  std::atomic<size_t> most{0};
  constexpr int kPieces = 2000;
  Server server(local_options(), [&](Request&&, Reply reply) {
    writer = std::thread([&, reply = std::move(reply)]() mutable {
      Stream stream = reply.stream(text_response(200, ""));
      for (int i = 0; i < kPieces; ++i) {
        while (stream.backlog_bytes() > 200'000) std::this_thread::sleep_for(1ms);
        stream.write(std::string(10'000, static_cast<char>('a' + i % 26)));
        most.store(std::max(most.load(), stream.backlog_bytes()));
      }
      stream.finish();
    });
  });
  Client client = client_of(server);
  client.send_raw("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  std::this_thread::sleep_for(100ms);
  const Received got = client.receive();
  EXPECT_EQ(got.body.size(), size_t{kPieces} * 10'000);
  EXPECT_LE(most.load(), 220'000u);
  server.stop();
  writer.join();
}

TEST(HttpServer, CodesBodiesBothWays) {
  ServerOptions options = local_options();
  options.limits.max_body_bytes = 200'000;
  Server server(options, echo);
  Client client = client_of(server);
  const std::string plain(150'000, 'z');
  for (const Coding coding : {Coding::gzip, Coding::deflate}) {
    const std::string name = coding == Coding::gzip ? "gzip" : "deflate";
    const Received got = client.post("/", deflate_body(plain, coding),
                                     {{"Content-Encoding", name}, {"Accept-Encoding", name + ";q=0.5, br"}});
    EXPECT_EQ(got.header("content-encoding"), name);
    EXPECT_LT(got.body.size(), 5000u);
    EXPECT_EQ(inflate_body(got.body, 1 << 20).view(), "POST / " + plain);
  }
  const std::string bomb = deflate_body(std::string(10'000'000, '0'), Coding::gzip);
  EXPECT_EQ(client.post("/", bomb, {{"Content-Encoding", "gzip"}}).status, 413);
  EXPECT_EQ(client.post("/", "not gzip", {{"Content-Encoding", "gzip"}}).status, 400);
  const std::string cut = deflate_body(plain, Coding::gzip);
  EXPECT_EQ(client.post("/", cut.substr(0, cut.size() / 2), {{"Content-Encoding", "gzip"}}).status, 400);
  const Received unknown = client.post("/", "x", {{"Content-Encoding", "br"}});
  EXPECT_EQ(unknown.status, 501);
  EXPECT_EQ(unknown.header("accept-encoding"), "gzip, deflate");
  const Received refused = client.post("/", plain, {{"Accept-Encoding", "gzip;q=0, identity"}});
  EXPECT_TRUE(refused.header("content-encoding").empty());
}

TEST(HttpServer, WeighsAcceptedCodings) {
  const std::pair<const char*, Coding> cases[] = {
      {"", Coding::identity},
      {"gzip", Coding::gzip},
      {"GZIP, br", Coding::gzip},
      {"deflate, gzip", Coding::gzip},
      {"deflate;q=0.5, gzip;q=0.1", Coding::deflate},
      {"gzip;q=0.2, identity;q=0.8", Coding::identity},
      {"gzip;q=0.2, identity;q=0", Coding::gzip},
      {"identity;q=0", Coding::identity},
      {"gzip;Q=0", Coding::identity},
      {"gzip ; q=0.000", Coding::identity},
      {"gzip;q=x", Coding::identity},
      {"gzip;a=b;q=0, deflate", Coding::deflate},
      {"*", Coding::gzip},
      {"gzip;q=0, *", Coding::deflate},
      {"*;q=0.5, gzip;q=0", Coding::deflate},
      {"*;q=0", Coding::identity},
      {"br, zstd", Coding::identity},
  };
  for (const auto& [value, wanted] : cases) EXPECT_EQ(accepted_coding(value), wanted) << value;
}

TEST(HttpServer, GzipMembersFollowEachOther) {
  const std::string two = deflate_body("one ", Coding::gzip) + deflate_body("two", Coding::gzip);
  EXPECT_EQ(inflate_body(two, 100).view(), "one two");
  EXPECT_THROW(inflate_body(two, 6), base::Error);
  EXPECT_THROW(inflate_body(two + "x", 100), base::Error);
  EXPECT_THROW(inflate_body(two.substr(0, two.size() - 1), 100), base::Error);
}

// The cost of a body of many gzip members depends on its bytes only, and one limit holds for all of them.
TEST(HttpServer, ManyGzipMembersAreOneBody) {
  const std::string member = deflate_body("a", Coding::gzip) + deflate_body("", Coding::gzip);
  const auto inflate = [&](int64_t members) {
    std::string coded;
    for (int64_t i = 0; i < members / 2; ++i) coded += member;
    const auto count = static_cast<size_t>(members / 2);
    EXPECT_EQ(inflate_body(coded, count).view(), std::string(count, 'a'));
    EXPECT_FALSE(inflate_within(coded, count - 1));
    EXPECT_THROW(inflate_body(coded.substr(0, coded.size() - 12), count), base::Error);
  };
  EXPECT_LT(tests::growth_over_eight(5'000, inflate), tests::kMostLinearGrowth);
  // Each member stays within the limit for a small body, but all together exceed it.
  std::string blanks;
  const std::string large = deflate_body(std::string(1 << 20, ' '), Coding::gzip);
  while (blanks.size() < 16 * large.size()) blanks += large;
  EXPECT_FALSE(inflate_within(blanks, size_t{1} << 30));
}

TEST(HttpServer, SixtyFourConnectionsOfAThousandRequests) {
  Server server(local_options(), echo);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Client> clients;
      for (int c = 0; c < 8; ++c) clients.push_back(client_of(server));
      for (int i = 0; i < 1000; ++i) {
        const std::string body = std::to_string(t * 1000 + i);
        const std::string head = post_head(body.size());
        for (Client& c : clients) c.send_raw(head + body);
        for (Client& c : clients) good += c.receive().body == "POST /x " + body;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(good.load(), 64'000);
  EXPECT_EQ(server.counts().connections_accepted, 64u);
}

TEST(HttpServer, ConnectionsBeyondTheLimitGet503) {
  ServerOptions options = local_options();
  options.max_connections = 2;
  Server server(options, echo);
  Client a = client_of(server), b = client_of(server), c = client_of(server);
  EXPECT_EQ(a.get("/").status, 200);
  EXPECT_EQ(b.get("/").status, 200);
  c.connect();
  EXPECT_EQ(c.receive().status, 503);
  EXPECT_TRUE(c.wait_closed());
  a.close();
  EXPECT_TRUE(eventually([&] { return server.counts().connections_open == 1; }));
  c.close();
  EXPECT_EQ(c.get("/").status, 200);
}

TEST(HttpServer, DrainsUnderLoadWithoutAFailedRequest) {
  std::vector<std::thread> workers;
  Server server(local_options(), [](Request&& request, Reply reply) {
    std::thread([r = std::move(request), reply = std::move(reply)]() mutable {
      std::this_thread::sleep_for(2ms);
      reply.send(text_response(200, std::string(r.body.view())));
    }).detach();
  });
  std::atomic<int> good{0}, bad{0}, turned_away{0};
  std::latch started(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      Client client = client_of(server);
      for (int i = 0;; ++i) {
        if (i == 5) started.count_down();
        try {
          const Received got = client.post("/", "body");
          (got.status == 200 && got.body == "body" ? good : bad)++;
        } catch (const base::Error& error) {
          const bool refused = error.message().find("cannot connect") != std::string::npos;
          (refused ? turned_away : bad)++;
          return;
        }
      }
    });
  }
  started.wait();
  EXPECT_TRUE(server.drain(5s));
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(bad.load(), 0);
  EXPECT_EQ(turned_away.load(), 8);  // each after its last answer, because the listener is closed
  EXPECT_GE(good.load(), 40);
  EXPECT_EQ(server.counts().connections_open, 0u);
}

TEST(HttpServer, RepliesThatOutliveTheServerAreHarmless) {
  Reply held;
  std::latch taken(1);
  {
    Server server(local_options(), [&](Request&&, Reply reply) {
      held = std::move(reply);
      taken.count_down();
    });
    Client client = client_of(server);
    client.send_raw("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    taken.wait();
    server.stop();
  }
  EXPECT_TRUE(held.client_gone());
  held.send(text_response(200, "nobody listens"));
}

TEST(HttpServer, BadOptionsAndTakenPortsAreRefused) {
  Server server(local_options(), echo);
  ServerOptions options = local_options();
  options.port = server.port();
  EXPECT_THROW(Server(options, echo), base::Error);
  options = local_options();
  options.threads = 0;
  EXPECT_THROW(Server(options, echo), base::Error);
  options = local_options();
  options.tls_certificate_file = "missing.pem";
  options.tls_key_file = "missing.key";
  EXPECT_THROW(Server(options, echo), base::Error);
}

}  // namespace
}  // namespace trireme::http
