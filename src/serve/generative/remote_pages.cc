// Has prompts read by other servers.
#include "serve/generative/remote_pages.h"

#include <algorithm>
#include <utility>

#include "engine/decode/known_beginnings.h"
#include "engine/pages/handed_pages.h"
#include "serve/access/api_keys.h"
#include "serve/models/pages_request.h"

namespace trireme::serve {
namespace {

using engine::PageId;
using std::chrono::steady_clock;

constexpr size_t kMostWaiting = 256;                      // wishes, besides those under way
constexpr std::chrono::seconds kConnecting{1};            // a machine on the same network answers sooner
constexpr std::chrono::seconds kPause{1}, kLongPause{5};  // of a server that is gone, or silent
constexpr size_t kLeastBody = size_t{64} << 10;           // room for an error in words

std::string percent_encoded(std::string_view name) {
  constexpr char kHexDigits[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : name) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          c == '-' || c == '_' || c == '.';
    if (is_plain) {
      out += c;
    } else {
      out += '%';
      out += kHexDigits[static_cast<unsigned char>(c) >> 4];
      out += kHexDigits[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

http::HeaderList headers_of(const std::string& header) {
  http::HeaderList headers{{"Content-Type", "application/json"}};
  if (header.empty()) return headers;
  const size_t equals = header.find('=');  // PrefillOptions::check() has seen to its form
  headers.emplace_back(header.substr(0, equals),
                       with_environment(header.substr(equals + 1), "--prefill-header"));
  return headers;
}

/// The memory of pages that came in one answer.
struct PageBody {
  std::string bytes;
  std::shared_ptr<const PageRoom::Held> room;
};

}  // namespace

RemotePages::RemotePages(Model model, const PrefillOptions& options, const HandOverMetrics& metrics)
    : model_(std::move(model)),
      target_("/v2/models/" + percent_encoded(model_.name) + "/pages"),
      headers_(headers_of(options.prefill_header)),
      least_tokens_(options.prefill_least),
      patience_(options.prefill_timeout.ns),
      metrics_(metrics),
      room_(options.prefill_room.bytes),
      threads_(static_cast<int>(options.prefill_connections), kMostWaiting) {
  for (const std::string& url : options.prefill_from) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->url = http::Url::parse(url);
  }
}

RemotePages::~RemotePages() { stop(); }

bool RemotePages::ask(const std::shared_ptr<sched::PageWish>& wish) {
  const sched::PageWish::Form& form = wish->form();
  const bool has_name = wish->adapter() == nullptr || !model_.adapter_name(*wish->adapter()).empty();
  if (wish->pages() * form.page_tokens < least_tokens_ || !has_name ||
      wish->salt().size() > PagesRequest::kMostSalt)
    return false;
  const int64_t record = form.page_bytes + static_cast<int64_t>(engine::kPageHeadBytes);
  Task task{.wish = wish, .room = nullptr, .pages = room_.fit(wish->pages(), record)};
  try {
    if (task.pages == 0) base::fail(base::ErrorCode::exhausted, "no room for pages");
    task.room = room_.take(task.pages, record);
    threads_.submit([this, task] { run(task); });
    return true;
  } catch (const base::Error&) {
    metrics_.count(Fallback::busy);
    return false;
  }
}

/// Prompts that begin alike go to the same server, which then knows that beginning. Null: none is there.
RemotePages::Peer* RemotePages::peer_for(const sched::PageWish& wish) {
  base::KeyedHash hash(base::KeyedHash::Key{});
  hash.add(wish.tokens().data(), static_cast<size_t>(wish.form().page_tokens) * sizeof(int64_t));
  const size_t first = hash.finish()[0] % peers_.size();
  const Time now = steady_clock::now();
  for (size_t i = 0; i < peers_.size(); ++i) {
    Peer& peer = *peers_[(first + i) % peers_.size()];
    const std::lock_guard lock(peer.mutex);
    if (now >= peer.paused_until) return &peer;
  }
  return nullptr;
}

/// Sends a request and waits for its answer, or what there is of it where the connection breaks.
http::Received RemotePages::exchange(Peer& peer, const Task& task, const std::string& body,
                                     std::optional<Fallback>& broken) {
  std::unique_ptr<http::Client> client;
  {
    const std::lock_guard lock(peer.mutex);
    if (!peer.idle.empty()) {
      client = std::move(peer.idle.back());
      peer.idle.pop_back();
    }
  }
  const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(patience_);
  if (!client) client = std::make_unique<http::Client>(peer.url.host, peer.url.port, timeout);
  const auto record = static_cast<size_t>(task.wish->form().page_bytes) + engine::kPageHeadBytes;
  client->set_bounds({.until = task.asked + patience_,
                      .connecting = kConnecting,
                      .body_bytes = std::max(static_cast<size_t>(task.pages) * record, kLeastBody),
                      .is_wanted = [wish = task.wish] { return wish->is_wanted(); }});
  try {
    http::Received reply = client->post(target_, body, headers_);
    const std::lock_guard lock(peer.mutex);
    peer.idle.push_back(std::move(client));
    return reply;
  } catch (const base::Error&) {
    broken = steady_clock::now() >= task.asked + patience_ ? Fallback::late : Fallback::unreachable;
  }
  http::Received reply = client->unfinished();
  const Time now = steady_clock::now();
  const bool is_silent = broken == Fallback::late && reply.status == 0;
  const std::lock_guard lock(peer.mutex);
  peer.idle.clear();  // of a process that may be gone
  if (is_silent || task.wish->is_wanted()) peer.paused_until = now + (is_silent ? kLongPause : kPause);
  return reply;
}

/// Delivers what came, as far as it is what was asked for.
void RemotePages::take_in(const Task& task, const std::vector<PageId>& ids, http::Received reply,
                          std::optional<Fallback> broken) {
  sched::PageWish& wish = *task.wish;
  const int64_t page_bytes = wish.form().page_bytes;
  const auto body = std::make_shared<PageBody>(PageBody{std::move(reply.body), task.room});
  auto handed = std::make_shared<engine::HandedPages>();
  handed->first = wish.form().first;
  if (reply.status == 200)
    handed->pages = engine::page_records(std::as_bytes(std::span(body->bytes)), ids, page_bytes);
  handed->owner = body;
  const size_t record = static_cast<size_t>(page_bytes) + engine::kPageHeadBytes;
  const size_t count = handed->pages.size();
  if (count < ids.size()) {
    const bool is_other = reply.status == 200 && body->bytes.size() >= (count + 1) * record;
    const Fallback otherwise = broken.value_or(Fallback::refused);
    metrics_.count(is_other                                        ? Fallback::mismatch
                   : count > 0 || (reply.status == 200 && !broken) ? Fallback::partial
                                                                   : otherwise);
  }
  if (count == 0) return wish.deliver(nullptr);
  const auto ns = std::chrono::nanoseconds(steady_clock::now() - task.asked).count();
  metrics_.count_pages(static_cast<int64_t>(count), page_bytes, ns);
  wish.deliver(std::move(handed));
}

void RemotePages::run(const Task& task) {
  sched::PageWish& wish = *task.wish;
  const auto give_up = [&](Fallback why) {
    metrics_.count(why);
    wish.deliver(nullptr);
  };
  try {
    if (!wish.is_wanted()) return;
    Peer* peer = peer_for(wish);
    if (peer == nullptr) return give_up(Fallback::unreachable);
    const sched::PageWish::Form& form = wish.form();
    PagesRequest asked{.first = form.first,
                       .key = base::KeyedHash::random_key(),
                       .salt = wish.salt(),
                       .priority = int64_t{wish.priority()}};
    asked.tokens.assign(wish.tokens().begin(),
                        wish.tokens().begin() + (form.first + task.pages) * form.page_tokens);
    if (wish.adapter() != nullptr) asked.adapter = model_.adapter_name(*wish.adapter());
    std::optional<Fallback> broken;
    http::Received reply = exchange(*peer, task, to_json(asked), broken);
    if (!wish.is_wanted()) return;
    const engine::PageNames names(asked.key, model_.id);
    const PageId none{};
    const PageId root =
        names.root(wish.adapter() == nullptr ? none : wish.adapter()->fingerprint(), asked.salt);
    std::vector<PageId> ids = names.of(root, asked.tokens, form.page_tokens);
    ids.erase(ids.begin(), ids.begin() + asked.first);
    take_in(task, ids, std::move(reply), broken);
  } catch (const std::exception&) {
    give_up(Fallback::failed);  // memory is short
  }
}

}  // namespace trireme::serve
