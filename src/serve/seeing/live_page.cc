// The markup of the page at `/`, and the style and security policy of all pages of the program.
#include "serve/seeing/live_page.h"

#include <random>

#include "base/error.h"
#include "http/reply.h"

namespace trireme::serve {
namespace {

constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--ink:#1d2433;--soft:#566078;--line:#d5dae5;--page:#fff;--card:#f5f7fb;
  --bad:#a81c1c;
 --a:#2060b0;--b:#b06000;--c:#a02060}
@media(prefers-color-scheme:dark){:root{--ink:#e4e8f2;--soft:#a4adc2;--line:#343c50;--page:#151922;
  --card:#1d2330;
 --bad:#ff8d85;--a:#7ab4ff;--b:#ffb860;--c:#ff8fc0}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:76rem;padding:1rem;color:var(--ink);
  background:var(--page)}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.2rem 0 .4rem}h3{font-size:.95rem;margin:0;
  color:var(--soft)}
a{color:var(--a)}.bad,.bad button{color:var(--bad)}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.3rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td.why{text-align:left}td.why{white-space:normal;min-width:20rem}
th:first-child{position:sticky;left:0;background:var(--page)}thead th{color:var(--soft);font-weight:500}
.note{color:var(--soft);margin:0}
tr[aria-current],tr[aria-current] th{background:var(--card)}
tbody button{font:inherit;border:0;background:none;color:var(--a);
  padding:0;
 text-decoration:underline;cursor:pointer}
#server{display:flex;flex-wrap:wrap;gap:.4rem 1.6rem;margin:.4rem 0}#server dt,#facts dt{color:var(--soft)}
#server dd,#facts dd{margin:0;font-variant-numeric:tabular-nums}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:.8rem}
.card{background:var(--card);border:1px solid var(--line);border-radius:.4rem;padding:.6rem .8rem}
#facts{display:grid;grid-template-columns:auto auto;margin:0}#facts dd{text-align:right}
svg{width:100%;display:block}svg text{fill:var(--soft);font-size:10px}.bar{fill:var(--a)}
.line{fill:none;stroke:var(--a);stroke-width:1.5}.line1{stroke:var(--b)}.line2{stroke:var(--c)}
svg .key0{fill:var(--a)}svg .key1{fill:var(--b)}svg .key2{fill:var(--c)}[hidden]{display:none!important}
fieldset{border:1px solid var(--line);border-radius:.4rem;margin:0 0 .6rem}label{display:block;
  color:var(--soft)}
input,textarea{font:13px ui-monospace,monospace;width:100%;color:inherit;background:var(--page);
  border:1px solid var(--line);
 border-radius:.2rem;padding:.3rem}
#form button{font:inherit;padding:.3rem 1.2rem}pre{white-space:pre-wrap;overflow-wrap:anywhere;margin:.4rem 0}
:focus-visible{outline:2px solid var(--a);outline-offset:2px}
)css";

constexpr std::string_view kBody = R"html(
<header><h1>Trireme</h1><p id="state" role="status">asking the server</p><dl id="server"></dl></header>
<main>
<section aria-labelledby="h-models"><h2 id="h-models">Models</h2><p class="note" id="note">Over the last
ten seconds; latencies in milliseconds from a request's last byte to its answer</p><div class="wide"><table
aria-describedby="note">
<thead><tr><th scope="col">model</th><th scope="col">version</th><th scope="col">requests/s</th>
<th scope="col">rows/s</th><th scope="col">p50</th><th scope="col">p95</th><th scope="col">p99</th>
<th scope="col">rows a batch</th><th scope="col">waiting</th><th scope="col">busy</th><th
scope="col">failed/s</th>
<th scope="col">memory</th><th scope="col"><abbr title="cost per million
inferences">cost/M</abbr></th></tr></thead>
<tbody id="models"></tbody></table></div></section>
<section aria-labelledby="chosen"><h2 id="chosen">no model is loaded</h2><p id="why" class="bad"></p>
<div class="cards" id="panel" hidden>
<div class="card"><h3>requests/s, last minute</h3><div id="rate"></div></div>
<div class="card"><h3>latency, last minute</h3><div id="latency"></div></div>
<div class="card"><h3>rows of a batch</h3><div id="batches"></div></div>
<div class="card"><h3>requests waiting when a batch was formed</h3><div id="lengths"></div></div>
<div class="card"><h3>time and memory</h3><dl id="facts"></dl></div></div></section>
<section aria-labelledby="h-try" id="try" hidden><h2 id="h-try">Try it</h2>
<form id="form"><div id="fields"></div>
<button type="submit">Send</button> <span id="took" role="status"></span></form>
<pre id="answer" aria-live="polite" aria-label="answer"></pre></section>
</main>
<footer><details><summary>Access</summary><div id="access"><p>Where the server was started with
<code>--restrict</code>:</p>
<label for="header">header</label><input id="header" autocomplete="off" placeholder="authorization">
<label for="secret">secret</label><input id="secret" type="password" autocomplete="off"></div></details>
<p><a href="/metrics">/metrics</a> <a href="/v2">/v2</a> <a
href="/v2/models/stats">statistics</a></p></footer>
)html";

/// 128 random bits, carried by this page's own script and style and unknown to injected ones.
std::string fresh_nonce() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) {
    for (unsigned bits = random(), n = 0; n < 8; ++n, bits >>= 4) nonce += kDigits[bits & 15];
  }
  return nonce;
}

}  // namespace

http::Response house_page(std::string_view title, std::string_view body, std::string_view script) {
  const std::string nonce = fresh_nonce();
  std::string page = base::concat(
      "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>", title, "</title>",
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><link "
      "rel=\"icon\" href=\"data:,\">",
      "<style nonce=\"", nonce, "\">", kStyle, "</style></head><body>\n", body, "<script nonce=\"", nonce,
      "\">", script, "</script></body></html>\n");
  http::Response response = http::text_response(200, std::move(page), "text/html; charset=utf-8");
  response.headers.emplace_back(
      "Content-Security-Policy",
      base::concat("default-src 'none'; script-src 'nonce-", nonce, "'; style-src 'nonce-", nonce,
                   "'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
                   "frame-ancestors 'none'"));
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  response.headers.emplace_back("Referrer-Policy", "no-referrer");
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

http::Response live_page() {
  return house_page(
      "Trireme", kBody,
      base::concat(live_page_metrics_script(), live_page_view_script(), live_page_form_script()));
}

}  // namespace trireme::serve
