// Pages asked of other servers: right ones are delivered, and whatever else comes, or does not, is a reason
// to compute.
#include "serve/generative/remote_pages.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "engine/pages/handed_pages.h"
#include "http/server.h"
#include "serve/models/pages_request.h"

namespace trireme::serve {
namespace {

constexpr int64_t kTokens = 4, kPageBytes = 40;
constexpr engine::PageId kModel{11, 12};

std::string content_of(int64_t page) { return std::string(kPageBytes, static_cast<char>('a' + page)); }

/// The answer of a server that has the pages.
std::string right_answer(const PagesRequest& asked, const engine::PageId& model = kModel) {
  const engine::PageNames names(asked.key, model);
  const auto ids = names.of(names.root({}, asked.salt), asked.tokens, kTokens);
  std::string body;
  for (auto i = static_cast<size_t>(asked.first); i < ids.size(); ++i) {
    const std::string content = content_of(static_cast<int64_t>(i));
    body += engine::page_record(ids[i], std::as_bytes(std::span(content)));
  }
  return body;
}

struct RemotePagesTest : testing::Test {
  using Answer = std::function<void(const PagesRequest&, const http::Request&, http::Reply)>;

  static http::Response with_body(std::string body) {
    http::Response response;
    response.body.emplace_back(std::move(body));
    return response;
  }
  void serve(Answer answer) {
    http::ServerOptions listens;
    listens.port = port;
    server = std::make_unique<http::Server>(
        listens, [this, answer = std::move(answer)](http::Request&& request, http::Reply reply) {
          ++requests;
          answer(pages_request(request.body.view()), request, std::move(reply));
        });
    port = server->port();
    options.prefill_from = {base::concat("http://127.0.0.1:", port)};
  }
  void serve_body(std::function<std::string(const PagesRequest&)> body) {
    serve([body = std::move(body)](const PagesRequest& asked, const http::Request&, http::Reply reply) {
      reply.send(with_body(body(asked)));
    });
  }
  RemotePages& remote() {
    if (!made) {
      made.emplace(RemotePages::Model{.name = "a model/1",
                                      .id = kModel,
                                      .adapter_name = [](const engine::LoadedAdapter&) { return ""; }},
                   options, metrics);
    }
    return *made;
  }
  /// The pages that came, in their order; nothing where nobody was asked.
  std::optional<std::string> ask(int64_t prompt_tokens = 20, int64_t first = 1) {
    engine::GenerateRequest request;
    for (int64_t i = 0; i <= prompt_tokens; ++i) request.prompt.push_back(i);
    request.salt = "salt";
    const auto done = std::make_shared<std::promise<std::string>>();
    const auto wish = std::make_shared<sched::PageWish>(
        request, 0, sched::PageWish::Form{.first = first, .page_tokens = kTokens, .page_bytes = kPageBytes},
        [done, first](const std::shared_ptr<const engine::HandedPages>& handed) {
          std::string found;
          if (handed != nullptr) {
            EXPECT_EQ(handed->first, first);
            for (const std::byte* page : handed->pages)
              found.append(reinterpret_cast<const char*>(page), kPageBytes);
          }
          done->set_value(std::move(found));
        });
    if (!remote().ask(wish)) return std::nullopt;
    return done->get_future().get();
  }
  static std::string contents(int64_t first, int64_t end) {
    std::string all;
    for (int64_t i = first; i < end; ++i) all += content_of(i);
    return all;
  }
  uint64_t fallbacks(const char* reason) {
    return registry
        .counter("trireme_text_hand_over_fallbacks_total", "",
                 {{"model_name", "m"}, {"engine", "0"}, {"reason", reason}})
        .value();
  }

  PrefillOptions options{.prefill_least = 1};
  MetricRegistry registry;
  HandOverMetrics metrics{registry, "m"};
  std::atomic<int> requests{0};
  uint16_t port = 0;
  std::unique_ptr<http::Server> server;
  std::optional<RemotePages> made;
};

TEST_F(RemotePagesTest, RightPagesAreDelivered) {
  options.prefill_header = "x-key=secret";
  serve([](const PagesRequest& asked, const http::Request& request, http::Reply reply) {
    EXPECT_EQ(request.path, "/v2/models/a%20model%2F1/pages");
    EXPECT_EQ(request.header("x-key"), "secret");
    EXPECT_EQ(asked.salt, "salt");
    reply.send(with_body(right_answer(asked)));
  });
  EXPECT_EQ(ask(), contents(1, 5));
  EXPECT_EQ(ask(400, 0)->size(), 100u * kPageBytes);
  for (const char* reason : {"busy", "unreachable", "refused", "mismatch", "partial", "failed", "late"})
    EXPECT_EQ(fallbacks(reason), 0u) << reason;
  options.prefill_least = 21;
  made.reset();
  EXPECT_EQ(ask(20, 0), std::nullopt);  // too short to ask anybody
  EXPECT_EQ(requests, 2);
}

/// Another model, request, order or a damaged byte: nothing behind it is taken.
TEST_F(RemotePagesTest, OtherPagesAreRefused) {
  serve_body([](const PagesRequest& asked) { return right_answer(asked, {11, 13}); });
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("mismatch"), 1u);
  std::string earlier;
  server.reset();
  serve_body([&](const PagesRequest& asked) {
    std::string now = right_answer(asked);
    earlier.swap(now);
    return now;  // of the request before
  });
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("mismatch"), 2u);
  EXPECT_EQ(fallbacks("partial"), 1u);  // the first answer was empty
  server.reset();
  serve_body([](const PagesRequest& asked) {
    std::string body = right_answer(asked);
    body[2 * (engine::kPageHeadBytes + kPageBytes) + 70] ^= 1;
    return body;
  });
  EXPECT_EQ(ask(), contents(1, 3));
  EXPECT_EQ(fallbacks("mismatch"), 3u);
}

TEST_F(RemotePagesTest, WhatIsCutOffIsTakenAsFarAsItGoes) {
  serve([](const PagesRequest& asked, const http::Request&, http::Reply reply) {
    http::Stream stream = reply.stream({});
    stream.write(right_answer(asked).substr(0, 2 * (engine::kPageHeadBytes + kPageBytes) + 30));
    // Dropped without an end: the connection breaks.
  });
  EXPECT_EQ(ask(), contents(1, 3));
  EXPECT_EQ(fallbacks("partial"), 1u);
}

/// More than was asked for is not read, and neither is an error in too many words.
TEST_F(RemotePagesTest, TooLongAnswersAreNotRead) {
  serve([](const PagesRequest& asked, const http::Request&, http::Reply reply) {
    http::Response response = with_body(right_answer(asked) + std::string(size_t{1} << 20, 'x'));
    response.compressible = false;
    reply.send(std::move(response));
  });
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("unreachable") + fallbacks("partial"), 1u);
}

TEST_F(RemotePagesTest, ErrorsAreRefusals) {
  serve([](const PagesRequest&, const http::Request&, http::Reply reply) {
    reply.send(http::error_response(404, "no such model"));
  });
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("refused"), 2u);
  EXPECT_EQ(requests, 2);
}

/// A server that is gone is not asked for a while, and then again.
TEST_F(RemotePagesTest, AServerThatIsGoneComesBack) {
  serve_body([](const PagesRequest& asked) { return right_answer(asked); });
  EXPECT_EQ(ask(), contents(1, 5));
  server.reset();
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("unreachable"), 2u);
  const int before = requests;
  serve_body([](const PagesRequest& asked) { return right_answer(asked); });
  while (requests == before) {
    const auto found = ask();
    EXPECT_TRUE(found == "" || found == contents(1, 5));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

/// Of several, those that are there take over.
TEST_F(RemotePagesTest, OthersTakeOver) {
  serve_body([](const PagesRequest& asked) { return right_answer(asked); });
  options.prefill_from.insert(options.prefill_from.begin(), "http://127.0.0.1:1");
  options.prefill_from.push_back("http://127.0.0.1:1");
  int right = 0;
  for (int i = 0; i < 4; ++i) right += ask(20 + 4 * i) != "" ? 1 : 0;
  EXPECT_GE(right, 2);
}

/// A silent server costs the time that it has once, and whoever withdraws is told nothing.
TEST_F(RemotePagesTest, ASilentServerIsLeftAlone) {
  options.prefill_timeout.ns = 50 * base::kNsPerMs;
  std::vector<http::Reply> held;
  serve([&](const PagesRequest&, const http::Request&, http::Reply reply) {
    held.push_back(std::move(reply));
  });
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("late"), 1u);
  EXPECT_EQ(ask(), "");
  EXPECT_EQ(fallbacks("unreachable"), 1u);
  EXPECT_EQ(requests, 1);
  made->stop();
  server.reset();
}

TEST_F(RemotePagesTest, RoomIsBounded) {
  const int64_t record = kPageBytes + static_cast<int64_t>(engine::kPageHeadBytes);
  options.prefill_room.bytes = 3 * record;
  serve_body([](const PagesRequest& asked) { return right_answer(asked); });
  EXPECT_EQ(ask(), contents(1, 4));  // as many as fit
  EXPECT_EQ(ask(), contents(1, 4));  // their room came back
  options.prefill_room.bytes = record - 1;
  made.reset();
  EXPECT_EQ(ask(), std::nullopt);
  EXPECT_EQ(fallbacks("busy"), 1u);
}

TEST(PagesRequestTest, WhatIsNoneIsRefused) {
  const PagesRequest asked{.tokens = {1, 2, 3},
                           .first = 2,
                           .key = {5, 6},
                           .salt = std::string("\0\xff", 2),
                           .adapter = "po\"lite",
                           .priority = 7};
  const PagesRequest again = pages_request(to_json(asked));
  EXPECT_EQ(again.tokens, asked.tokens);
  EXPECT_EQ(again.first, 2);
  EXPECT_EQ(again.key, asked.key);
  EXPECT_EQ(again.salt, asked.salt);
  EXPECT_EQ(again.adapter, asked.adapter);
  EXPECT_EQ(again.priority, 7);
  const std::string key = R"(,"key":"00000000000000000000000000000000")";
  for (const std::string& wrong :
       {std::string("[]"), std::string("{}"), "{\"tokens\":[]" + key + "}", "{\"tokens\":[1.5]" + key + "}",
        std::string("{\"tokens\":[1]}"), "{\"tokens\":[1],\"first\":-1" + key + "}",
        "{\"tokens\":[1],\"first\":2" + key + "}", "{\"tokens\":[1],\"salt\":\"abc\"" + key + "}",
        "{\"tokens\":[1],\"salt\":\"zz\"" + key + "}", "{\"tokens\":[1],\"salt\":1" + key + "}",
        "{\"tokens\":[1],\"salt\":\"" + std::string(2050, '0') + "\"" + key + "}",
        std::string("{\"tokens\":[1],\"key\":\"0123\"}")}) {
    EXPECT_THROW(pages_request(wrong), base::Error) << wrong.substr(0, 60);
  }
}

}  // namespace
}  // namespace trireme::serve
