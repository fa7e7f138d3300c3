// Identifies the tenant of a request, for fair shares.
#include "serve/access/tenants.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "base/error.h"

namespace trireme::serve {
namespace {

struct Listed {
  std::string name, word;
  double weight = 1;
};

Listed parse(const std::string& text) {
  const size_t equals = text.find('='), colon = text.find(':', equals + 1);
  Listed out{.name = text.substr(0, equals)};
  const std::string number = equals == std::string::npos ? "" : text.substr(equals + 1, colon - equals - 1);
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), out.weight);
  const bool is_weight =
      error == std::errc() && end == number.data() + number.size() && out.weight > 0 && out.weight <= 1e6;
  base::require(!out.name.empty() && is_weight,
                "a tenant is NAME=WEIGHT or NAME=WEIGHT:SECRET with a weight above 0, got '",
                text.substr(0, colon), "'");
  out.word = colon == std::string::npos ? out.name : text.substr(colon + 1);
  return out;
}

// It begins with a character that no value of a header can have: nobody can show a hash in place of the
// secret.
constexpr std::string_view kHash = "\x01sha256:";
constexpr size_t kHashBytes = 32;

/// The mark and 64 hexadecimal digits.
std::string hash_of_secret(std::string_view word) {
  std::array<unsigned char, kHashBytes> hash{};
  const int done = EVP_Digest(word.data(), word.size(), hash.data(), nullptr, EVP_sha256(), nullptr);
  base::check(done == 1, "SHA-256 is not to be had");
  std::string text(kHash);
  for (const unsigned char byte : hash) {
    for (const int digit : {byte >> 4, byte & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

bool is_hash(std::string_view word) {
  return word.starts_with(kHash) && word.size() == kHash.size() + 2 * kHashBytes;
}

/// A word that is no secret, cut to a length that a label may have.
std::string label_of(std::string_view word) {
  if (word.empty()) return "none";
  size_t length = std::min<size_t>(64, word.size());
  // Does not cut inside a character.
  while (length > 0 && length < word.size() && (static_cast<unsigned char>(word[length]) & 0xC0) == 0x80)
    --length;
  return std::string(word.substr(0, length));
}

}  // namespace

Tenants::Tenants(const std::string& by, const std::vector<std::string>& listed, int64_t most_unlisted,
                 MetricRegistry& registry, const ApiKeys* keys)
    : registry_(registry), is_on_(!by.empty()), most_unlisted_(most_unlisted) {
  constexpr std::string_view kHeader = "header:";
  const bool has_keys = keys != nullptr && keys->is_on();
  base::require(by != "key" || has_keys, "tenants are told apart by keys, but there are none: --api-keys");
  if (has_keys && (by.empty() || by == "key")) {
    keys_ = keys;
    is_on_ = true;
    header_ = "authorization";
  }
  if (by.substr(0, kHeader.size()) == kHeader) {
    header_ = by.substr(kHeader.size());
    for (char& c : header_) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  base::require(!is_on_ || by == "parameter" || !header_.empty(),
                "tenants are told apart by 'parameter', 'header:NAME' or 'key', got '", by, "'");
  base::require(is_on_ || listed.empty(), "tenants have weights, but nothing tells them apart: --tenant-by");
  table_.with([&](Table& table) {
    table.counts.push_back(nullptr);  // 0 stands for no tenant
    for (const std::string& text : listed) {
      const Listed tenant = parse(text);
      base::require(table.by_word.find(tenant.word) == table.by_word.end(), "tenant '", tenant.name,
                    "' is listed twice, or its secret is another's");
      const Tenant one{.number = add(table, tenant.name), .weight = tenant.weight};
      table.by_word[tenant.word] = one;
      if (!header_.empty()) table.by_word[hash_of_secret(tenant.word)] = one;
    }
  });
}

std::shared_ptr<const ApiKey> Tenants::key_of(std::string_view word) const {
  return keys_ != nullptr ? keys_->find(word) : nullptr;
}

std::string Tenants::name_of(std::string_view word) const {
  const auto key = key_of(word);
  return key != nullptr ? key->tenant : std::string(word);
}

std::string Tenants::owner_of(std::string_view word) const {
  const auto key = key_of(word);
  if (key != nullptr) return key->tenant;
  return word.empty() || header_.empty() ? std::string(word) : hash_of_secret(word);
}

bool Tenants::is_owner(std::string_view owner, std::string_view stored) {
  return stored == owner || (is_hash(owner) && !is_hash(stored) && hash_of_secret(stored) == owner);
}

Tenant Tenants::find(std::string_view shown) {
  if (!is_on_) return {};
  const auto key = key_of(shown);
  const std::string_view word = key != nullptr ? std::string_view(key->tenant) : shown;
  // A header without a key of the file may hold another secret: that of a rule which admitted the request.
  const bool is_secret = !header_.empty() && key == nullptr && !word.empty();
  return table_.with([&](Table& table) {
    const auto at = table.by_word.find(word);
    if (at != table.by_word.end()) return at->second;
    return is_secret ? find_secret(table, std::string(word)) : add_unlisted(table, word, label_of(word));
  });
}

/// A secret and its hash are one tenant, whichever comes first; the label is of the hash.
Tenant Tenants::find_secret(Table& table, const std::string& word) {
  constexpr size_t kShown = 8;  // digits
  const std::string hash = is_hash(word) ? word : hash_of_secret(word);
  const auto at = table.by_word.find(hash);
  const Tenant tenant = at != table.by_word.end()
                            ? at->second
                            : add_unlisted(table, hash, "key-" + hash.substr(kHash.size(), kShown));
  if (tenant.number != table.others) table.by_word[word] = tenant;
  return tenant;
}

Tenant Tenants::add_unlisted(Table& table, std::string_view word, const std::string& label) {
  if (table.unlisted >= most_unlisted_) {
    if (table.others == 0) table.others = add(table, "others");
    return {.number = table.others};
  }
  ++table.unlisted;
  const Tenant tenant{.number = add(table, label)};
  table.by_word[std::string(word)] = tenant;
  return tenant;
}

uint32_t Tenants::add(Table& table, const std::string& name) {
  const auto number = static_cast<uint32_t>(table.counts.size());
  std::shared_ptr<Counts>& counts = table.by_label[name];
  const bool is_known = counts != nullptr;
  if (!is_known) counts = std::make_shared<Counts>();
  table.counts.push_back(counts);
  if (is_known) return number;
  const MetricLabels labels{{"tenant", name}};
  const auto results = [&](const char* result, std::atomic<uint64_t> Counts::*member) {
    MetricLabels with_result = labels;
    with_result.emplace_back("result", result);
    registry_.counter_from(
        "trireme_tenant_requests_total", "Requests by tenant and how they ended", with_result,
        [counts = counts, member] { return static_cast<double>((*counts.*member).load()); });
  };
  results("done", &Counts::done);
  results("refused", &Counts::refused);
  results("failed", &Counts::failed);
  const auto seconds = [&](const char* name_of, const char* help, std::atomic<uint64_t> Counts::*member) {
    registry_.counter_from(name_of, help, labels, [counts = counts, member] {
      return static_cast<double>((*counts.*member).load()) * 1e-9;
    });
  };
  seconds("trireme_tenant_queue_seconds_total", "Time that a tenant's requests waited", &Counts::queue_ns);
  seconds("trireme_tenant_compute_seconds_total", "Time of batches, by each tenant's rows in them",
          &Counts::compute_ns);
  // 1 ms to 16 s in steps of 2.15, three buckets per decade: coarse, as each tenant has a series.
  counts->latency_s = &registry_.histogram("trireme_tenant_request_duration_seconds",
                                           "From a request's last byte to its answer, by tenant",
                                           metric_buckets(1e-3, 2.1544347, 14), labels);
  return number;
}

void Tenants::count(uint32_t number, const sched::Timing& t, sched::Ending ending, int64_t took_ns) {
  if (number == 0) return;
  const auto counts = table_.with([&](Table& table) { return table.counts.at(number); });
  switch (ending) {
    case sched::Ending::done: ++counts->done; break;
    case sched::Ending::refused:
    case sched::Ending::expired:
    case sched::Ending::cancelled: ++counts->refused; return;
    case sched::Ending::failed: ++counts->failed; return;
  }
  counts->latency_s->observe(static_cast<double>(took_ns) * 1e-9);
  counts->queue_ns += static_cast<uint64_t>(std::max<int64_t>(0, t.started_ns - t.enqueued_ns));
  if (t.batch_rows <= 0) return;
  const double share = static_cast<double>(t.own_rows) / static_cast<double>(t.batch_rows);
  counts->compute_ns +=
      static_cast<uint64_t>(share * static_cast<double>(std::max<int64_t>(0, t.finished_ns - t.started_ns)));
}

}  // namespace trireme::serve
