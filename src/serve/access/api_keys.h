// Who may ask for inference, by keys in a file: a tenant, models and a quota for each.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/guarded.h"
#include "base/keyed_hash.h"
#include "serve/access/quota.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {

struct ApiKey {
  std::string tenant;
  std::vector<std::string> models;  ///< names, or beginnings and a star; empty: all
  bool has_quota = false;
  std::shared_ptr<QuotaAccount> account;  ///< the tenant's; keys of one tenant share it

  bool may_use(std::string_view model) const;
};

/// The keys of a YAML file, found in the time of a hash under a random key, so that the time tells nothing of
/// a secret:
///
///     keys:
///       - tenant: gold
///         key: ${GOLD_KEY}              # of the environment; or as it is
///         requests_per_minute: 600      # of the tenant; without: no bound
///         tokens_per_minute: 100000
///         models: [talk, "small*"]      # without: all
///
/// Any thread.
class ApiKeys {
 public:
  /// `file` empty: nobody is asked for a key. Throws invalid_argument with the line of what is wrong.
  ApiKeys(std::string file, const base::Clock& clock, MetricRegistry& registry);

  bool is_on() const { return !file_.empty(); }
  /// Of the value of a header `authorization`, "Bearer KEY"; null: none.
  std::shared_ptr<const ApiKey> find(std::string_view authorization) const;
  /// Reads the file again where it has changed since the last look: true where it did. What tenants have left
  /// of their quotas stays. Throws what is wrong with the new file; the keys are then as before.
  bool follow();
  size_t size() const;

 private:
  using Hash = std::array<uint64_t, 2>;
  struct Stored {
    std::string secret;
    std::shared_ptr<const ApiKey> key;
  };
  using Table = std::map<Hash, Stored>;
  struct Accounts {
    std::map<std::string, std::shared_ptr<QuotaAccount>> by_tenant;
  };
  Hash hash_of(std::string_view secret) const;
  Table read();
  std::shared_ptr<QuotaAccount> account_of(const std::string& tenant, const Quota& quota);

  const std::string file_;
  const base::Clock& clock_;
  MetricRegistry& registry_;
  const base::KeyedHash::Key hash_key_;
  std::string fingerprint_;  // of the file that was read last; of whoever follows
  Accounts accounts_;        // likewise
  base::Guarded<std::shared_ptr<const Table>> table_;
};

/// A secret with every ${NAME} replaced by that variable of the environment. Throws invalid_argument where it
/// is not set; `where` says what needs it.
std::string with_environment(std::string_view text, std::string_view where);
/// Looks at every byte of the secret whatever was given.
bool same_secret(std::string_view given, std::string_view secret);
/// A pattern is a name, or the beginning of one and a star.
bool matches_model(std::string_view pattern, std::string_view model);

}  // namespace trireme::serve
