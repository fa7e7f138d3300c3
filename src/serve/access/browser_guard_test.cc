// Tests which requests a browser may send for a page: those with own names and origins only.
#include "serve/access/browser_guard.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace trireme::serve {
namespace {

int status_of(const BrowserGuard& guard, std::string_view method, std::vector<http::Header> headers,
              Category category = Category::logging) {
  http::Request request;
  request.method = method;
  request.headers = std::move(headers);
  if (method == "POST") request.body.append("{}");
  const auto refusal = guard.refusal(request, category);
  return refusal ? refusal->status : 200;
}

TEST(BrowserGuard, KnowsItsNames) {
  const BrowserGuard guard({"Models.Example.com", "*.svc.cluster.local"});
  for (const char* name :
       {"127.0.0.1", "127.0.0.1:8000", "10.1.2.3:80", "[::1]:8000", "[fe80::1]", "localhost",
        "LOCALHOST:8000", "trireme", "trireme:8000", "a.localhost", "models.example.com",
        "MODELS.example.com:8000", "models.example.com.", "trireme.default.svc.cluster.local:8000"})
    EXPECT_TRUE(guard.is_own_name(name)) << name;
  for (const char* name :
       {"", "evil.example", "evil.example:8000", "models.example.com.evil.example", "xmodels.example.com",
        "svc.cluster.local", "1.2.3.4.evil.example", "127.0.0.1.nip.io", "[::1", "[evil.example]",
        "localhost:x", "127.0.0.1:8000:1", "notlocalhost.evil", "127.0.0.1@evil.example", "256.1.1.1"})
    EXPECT_FALSE(guard.is_own_name(name)) << name;
  EXPECT_TRUE(BrowserGuard({"*"}).is_own_name("evil.example"));
  for (const char* bad : {"", "*.", "http://a.b", "a.b:80", "a*.b", "a/b"})
    EXPECT_THROW(BrowserGuard({bad}), base::Error) << bad;
}

TEST(BrowserGuard, ForeignPagesChangeNothing) {
  const BrowserGuard guard({});
  const http::Header host{"Host", "127.0.0.1:8000"}, json{"Content-Type", "application/json"},
      own{"Origin", "http://127.0.0.1:8000"};
  EXPECT_EQ(status_of(guard, "POST", {host}), 200);  // not from a browser
  EXPECT_EQ(status_of(guard, "POST", {host, {"Content-Type", "text/plain"}}), 200);
  EXPECT_EQ(status_of(guard, "POST", {host, own, json}), 200);  // the server's own page
  EXPECT_EQ(status_of(guard, "POST", {host, own, {"Content-Type", "Application/JSON; charset=utf-8"}}), 200);
  EXPECT_EQ(status_of(guard, "POST", {host, own, {"Content-Type", "text/plain"}}), 415);
  EXPECT_EQ(status_of(guard, "POST", {host, own, {"Content-Type", "text/plain"}}, Category::inference), 200);
  for (const char* origin :
       {"http://evil.example", "null", "", "http://127.0.0.1", "http://127.0.0.1:8001",
        "http://localhost:8000", "127.0.0.1:8000", "http://127.0.0.1:8000.evil.example"}) {
    for (const Category category : {Category::logging, Category::inference, Category::health})
      EXPECT_EQ(status_of(guard, "POST", {host, {"Origin", origin}, json}, category), 403) << origin;
  }
  EXPECT_EQ(status_of(guard, "POST", {host, json, {"Sec-Fetch-Site", "cross-site"}}), 403);
  EXPECT_EQ(status_of(guard, "POST", {host, json, {"Sec-Fetch-Site", "same-site"}}), 403);
  EXPECT_EQ(status_of(guard, "POST", {host, json, {"Sec-Fetch-Site", "same-origin"}}), 200);
  EXPECT_EQ(status_of(guard, "GET", {host, {"Origin", "http://evil.example"}}),
            200);  // the page cannot read the answer
}

TEST(BrowserGuard, ReboundNamesAreRefused) {
  const BrowserGuard guard({});
  const http::Header host{"Host", "rebound.example:8000"}, own{"Origin", "http://rebound.example:8000"};
  EXPECT_EQ(status_of(guard, "GET", {host}, Category::model_config), 403);
  EXPECT_EQ(status_of(guard, "POST", {host, own}, Category::inference), 403);
  EXPECT_EQ(status_of(guard, "GET", {host}, Category::health), 200);  // probes may use any host name
  EXPECT_EQ(status_of(guard, "GET", {}, Category::model_config), 200);
}

}  // namespace
}  // namespace trireme::serve
