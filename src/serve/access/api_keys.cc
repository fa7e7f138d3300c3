// Controls access to inference by the keys in a file.
#include "serve/access/api_keys.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/text/yaml.h"

namespace trireme::serve {
namespace {

constexpr size_t kMostBytes = size_t{8} << 20;
constexpr size_t kShortest = 8;  // least length of a key in characters
constexpr int64_t kMostOfQuota = int64_t{1} << 40;

/// Identifies the state of a file, in order to detect changes.
std::string fingerprint_of(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return "none";
  return base::concat(s.st_ino, ":", s.st_size, ":", s.st_mtim.tv_sec, ".", s.st_mtim.tv_nsec);
}

/// One entry of the file.
struct Entry {
  std::string tenant, secret;
  Quota quota;
  std::vector<std::string> models;
};

int64_t bound_of(const base::JsonMember& member) {
  base::require(member.value.is_integer() && member.value.as_double() >= 1 &&
                    member.value.as_double() <= static_cast<double>(kMostOfQuota),
                member.key, " is a whole number above 0");
  return member.value.as_int();
}

Entry entry_of(const base::Json& json) {
  base::require(json.is_object(), "a key is an entry with tenant and key");
  Entry e;
  for (const base::JsonMember& m : json.as_object()) {
    if (m.key == "tenant" || m.key == "key") {
      base::require(m.value.is_string(), m.key, " is a text");
      (m.key == "tenant" ? e.tenant : e.secret) = m.value.as_string();
    } else if (m.key == "requests_per_minute") {
      e.quota.requests = bound_of(m);
    } else if (m.key == "tokens_per_minute") {
      e.quota.tokens = bound_of(m);
    } else if (m.key == "models") {
      base::require(m.value.is_array() && !m.value.as_array().empty(), "models is a list of names");
      for (const base::Json& name : m.value.as_array()) e.models.push_back(name.as_string());
    } else {
      base::fail_invalid("unknown member '", m.key,
                         "': tenant, key, requests_per_minute, tokens_per_minute, models");
    }
  }
  base::require(!e.tenant.empty() && e.tenant.size() <= 64, "a tenant has 1 to 64 characters");
  e.secret = with_environment(e.secret, "a key of --api-keys");
  base::require(e.secret.size() >= kShortest, "the key of tenant '", e.tenant, "' has fewer than ", kShortest,
                " characters");
  return e;
}

}  // namespace

bool same_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0 : 1;
  for (size_t i = 0; i < secret.size(); ++i) {
    const char c = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned char>(c) ^ static_cast<unsigned char>(secret[i]);
  }
  return difference == 0;
}

/// Secrets must never appear in a message, because more people read logs than know secrets.
std::string with_environment(std::string_view text, std::string_view where) {
  std::string out;
  while (!text.empty()) {
    const size_t start = text.find("${"), end = text.find('}', std::min(start, text.size()));
    if (end == std::string_view::npos) break;
    out += text.substr(0, start);
    const std::string name(text.substr(start + 2, end - start - 2));
    const char* value = std::getenv(name.c_str());
    base::require(value != nullptr && *value != '\0', where, " needs the environment variable ", name,
                  ", which is not set");
    out += value;
    text.remove_prefix(end + 1);
  }
  return out.append(text);
}

bool matches_model(std::string_view pattern, std::string_view model) {
  if (!pattern.empty() && pattern.back() == '*')
    return model.starts_with(pattern.substr(0, pattern.size() - 1));
  return pattern == model;
}

bool ApiKey::may_use(std::string_view model) const {
  return models.empty() || std::any_of(models.begin(), models.end(), [&](const std::string& pattern) {
           return matches_model(pattern, model);
         });
}

ApiKeys::ApiKeys(std::string file, const base::Clock& clock, MetricRegistry& registry)
    : file_(std::move(file)),
      clock_(clock),
      registry_(registry),
      hash_key_(base::KeyedHash::random_key()),
      table_(std::make_shared<const Table>()) {
  if (is_on()) follow();
}

ApiKeys::Hash ApiKeys::hash_of(std::string_view secret) const {
  base::KeyedHash hash(hash_key_);
  hash.add(secret);
  return hash.finish();
}

size_t ApiKeys::size() const { return table_.copy()->size(); }

std::shared_ptr<const ApiKey> ApiKeys::find(std::string_view authorization) const {
  constexpr std::string_view kBearer = "Bearer ";
  if (!authorization.starts_with(kBearer)) return nullptr;
  authorization.remove_prefix(kBearer.size());
  const std::shared_ptr<const Table> table = table_.copy();
  const auto at = table->find(hash_of(authorization));
  if (at == table->end() || !same_secret(authorization, at->second.secret)) return nullptr;
  return at->second.key;
}

/// The account of the tenant, created if there is none.
std::shared_ptr<QuotaAccount> ApiKeys::account_of(const std::string& tenant, const Quota& quota) {
  std::shared_ptr<QuotaAccount>& account = accounts_.by_tenant[tenant];
  if (account != nullptr) {
    account->set(quota, clock_.now_ns());
    return account;
  }
  account = std::make_shared<QuotaAccount>(quota);
  const MetricLabels labels{{"tenant", tenant}};
  registry_.counter_from("trireme_tenant_tokens_total", "Tokens of prompts and answers, by tenant", labels,
                         [account] { return static_cast<double>(account->used_tokens()); });
  registry_.counter_from("trireme_tenant_quota_refusals_total", "Requests beyond a tenant's quota", labels,
                         [account] { return static_cast<double>(account->refusals()); });
  return account;
}

ApiKeys::Table ApiKeys::read() {
  const base::YamlDocument document = base::parse_yaml(base::read_file(file_, kMostBytes));
  base::require(document.value.is_object() && document.value.as_object().size() == 1 &&
                    document.value.find("keys") != nullptr && document.value.at("keys").is_array(),
                "'", file_, "' is no list under the name `keys`");
  std::vector<Entry> entries;
  std::map<std::string, Quota> quotas;
  std::set<std::string> secrets;
  for (const base::Json& item : document.value.at("keys").as_array()) {
    const int line = document.line(base::concat("keys[", entries.size(), "]"));
    try {
      Entry e = entry_of(item);
      const auto [at, is_new] = quotas.emplace(e.tenant, e.quota);
      base::require(is_new || at->second == e.quota, "tenant '", e.tenant, "' has two quotas");
      base::require(secrets.insert(e.secret).second, "tenant '", e.tenant,
                    "' has a key that is listed before");
      entries.push_back(std::move(e));
    } catch (const base::Error& error) {
      throw error.with(base::concat("line ", line, " of '", file_, "'"));
    }
  }
  base::require(!entries.empty(), "'", file_, "' has no key");
  // The whole file is valid: accounts are changed only now.
  Table table;
  for (Entry& e : entries) {
    const Hash hash = hash_of(e.secret);
    auto key = std::make_shared<const ApiKey>(ApiKey{.tenant = e.tenant,
                                                     .models = std::move(e.models),
                                                     .has_quota = e.quota.is_bounded(),
                                                     .account = account_of(e.tenant, e.quota)});
    table[hash] = {.secret = std::move(e.secret), .key = std::move(key)};
  }
  return table;
}

bool ApiKeys::follow() {
  if (!is_on()) return false;
  std::string now = fingerprint_of(file_);
  if (std::exchange(fingerprint_, now) == now) return false;
  auto table = std::make_shared<const Table>(read());
  table_.with([&](std::shared_ptr<const Table>& shown) { shown = std::move(table); });
  return true;
}

}  // namespace trireme::serve
