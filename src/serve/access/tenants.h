// Who sends a request, for fair shares: by a header or a request parameter, with weights, and what each got.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/guarded.h"
#include "sched/request.h"
#include "serve/access/api_keys.h"
#include "serve/seeing/metrics.h"

namespace trireme::serve {

struct Tenant {
  uint32_t number = 0;
  double weight = 1;
};

/// The tenants of a server. Listed ones have names and weights; others are tenants of their own, up to a
/// bound, after which they share one. Any thread.
class Tenants {
 public:
  /// `by` is empty (nobody is told apart), `parameter`, `header:NAME` or `key`, by the tenants of `keys`,
  /// which is the default where there are some. `listed` are NAME=WEIGHT or NAME=WEIGHT:SECRET: with a secret
  /// the header holds that instead of the name. `keys` outlive this; null: there are none. Throws
  /// invalid_argument.
  Tenants(const std::string& by, const std::vector<std::string>& listed, int64_t most_unlisted,
          MetricRegistry& registry, const ApiKeys* keys = nullptr);

  bool is_on() const { return is_on_; }
  bool names_by_header() const { return !header_.empty(); }
  /// The header that names the tenant, in lower case; empty: none does.
  const std::string& header() const { return header_; }
  /// `word` is what the header or parameter held, or owner_of() that; empty is a tenant too.
  Tenant find(std::string_view word);
  /// The word without its secret: of a key its tenant.
  std::string name_of(std::string_view word) const;
  /// What may be stored of the word: of a key its tenant, of another header, which may hold the secret of a
  /// rule or of a listed tenant, its SHA-256. No tenant of a key has a name of that form, and no header can
  /// hold it.
  std::string owner_of(std::string_view word) const;
  /// Whether a stored owner is this one. Servers before this one stored the word itself.
  static bool is_owner(std::string_view owner, std::string_view stored);
  /// A request of this tenant ended.
  void count(uint32_t number, const sched::Timing& timing, sched::Ending ending, int64_t took_ns);

 private:
  struct Counts {
    std::atomic<uint64_t> done{0}, refused{0}, failed{0}, queue_ns{0}, compute_ns{0};
    MetricHistogram* latency_s = nullptr;
  };
  struct Table {
    std::map<std::string, Tenant, std::less<>> by_word;
    int64_t unlisted = 0;
    uint32_t others = 0;  ///< the shared one; 0: not made yet
    std::vector<std::shared_ptr<Counts>> counts;
    std::map<std::string, std::shared_ptr<Counts>> by_label;  ///< words may share one: so do their counts
  };
  uint32_t add(Table& table, const std::string& name);
  Tenant find_secret(Table& table, const std::string& word);
  Tenant add_unlisted(Table& table, std::string_view word, const std::string& label);
  /// That the word shows; null: none, or keys tell nobody apart.
  std::shared_ptr<const ApiKey> key_of(std::string_view word) const;

  MetricRegistry& registry_;
  std::string header_;
  const ApiKeys* keys_ = nullptr;  ///< null: they do not tell tenants apart
  bool is_on_ = false;
  int64_t most_unlisted_ = 0;
  base::Guarded<Table> table_;
};

}  // namespace trireme::serve
