// Prevents foreign web pages from using a server that the browser can reach.
#include "serve/access/browser_guard.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "base/error.h"

namespace trireme::serve {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return out;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

bool is_port(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port <= 65535;
}

/// A Host field without its port and without the final dot of a name; empty if it is malformed.
std::string host_without_port(std::string_view field) {
  std::string_view host = field;
  if (!field.empty() && field.front() == '[') {
    const size_t end = std::min(field.find(']'), field.size());
    if (end == field.size()) return {};
    host = field.substr(1, end - 1);
    field.remove_prefix(end + 1);
  } else {
    host = field.substr(0, field.find(':'));
    field.remove_prefix(host.size());
  }
  if (!field.empty() && (field.front() != ':' || (field.size() > 1 && !is_port(field.substr(1))))) return {};
  if (!host.empty() && host.back() == '.') host.remove_suffix(1);
  return lower(host);
}

bool is_address(const std::string& host) {
  std::array<unsigned char, 16> bytes{};
  return inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
}

/// The part of an origin after its scheme: `https://a.example:8443` -> `a.example:8443`.
std::string_view authority_of(std::string_view origin) {
  const size_t at = origin.find("://");
  return at == std::string_view::npos ? std::string_view() : origin.substr(at + 3);
}

http::Response refuse(int status, std::string_view reason) { return http::error_response(status, reason); }

bool is_json(std::string_view content_type) {
  const std::string type = lower(content_type.substr(0, content_type.find(';')));
  const size_t end = type.find_last_not_of(" \t");
  return end != std::string::npos && type.substr(0, end + 1) == "application/json";
}

}  // namespace

BrowserGuard::BrowserGuard(std::vector<std::string> names) : names_(std::move(names)) {
  for (std::string& name : names_) {
    name = lower(name);
    const std::string_view rest = std::string_view(name).substr(name.rfind("*.", 0) == 0 ? 2 : 0);
    const bool is_name = !rest.empty() && rest.find_first_of("*/: \t") == std::string_view::npos;
    base::require(name == "*" || is_name,
                  "--host-name takes names without scheme and port, *.NAME or *, got '", name, "'");
  }
  std::array<char, 256> own{};
  if (gethostname(own.data(), own.size() - 1) == 0 && own[0] != '\0') names_.push_back(lower(own.data()));
}

bool BrowserGuard::is_own_name(std::string_view field) const {
  const std::string host = host_without_port(field);
  if (host.empty()) return false;
  // Nobody can register a name without a dot, or below localhost, and point it to this machine's address.
  if (host.find('.') == std::string::npos || is_address(host) || ends_with(host, ".localhost")) return true;
  return std::any_of(names_.begin(), names_.end(), [&](const std::string& name) {
    return name == "*" || name == host || (name.rfind("*.", 0) == 0 && ends_with(host, name.substr(1)));
  });
}

std::optional<http::Response> BrowserGuard::refusal(const http::Request& request, Category category) const {
  // DNS rebinding: a page of rebound.example, whose name now resolves to this machine, has no foreign origin
  // in the browser's view.
  const std::string_view host = request.header("Host");
  if (category != Category::health && !host.empty() && !is_own_name(host))
    return refuse(403, base::concat("this server has no name '", host.substr(0, 200), "': see --host-name"));
  if (request.method == "GET" || request.method == "HEAD") return {};
  const std::string_view origin = request.header("Origin"), site = request.header("Sec-Fetch-Site");
  const bool is_foreign = (request.has_header("Origin") && lower(authority_of(origin)) != lower(host)) ||
                          site == "cross-site" || site == "same-site";
  if (is_foreign) return refuse(403, "requests of pages from another origin are refused");
  // A page may send what forms can send without asking the server first, but not JSON.
  const bool is_page = request.has_header("Origin") || !site.empty();
  if (is_control(category) && is_page && !request.body.empty() && !is_json(request.header("Content-Type")))
    return refuse(415, "a control call of a page has the content type application/json");
  return {};
}

}  // namespace trireme::serve
