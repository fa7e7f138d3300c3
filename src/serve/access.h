// Which callers may use which routes: a header and its secret for each category of the protocol.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::serve {

/// What the protocol's calls are about, in either wire form.
enum class Category {
  health,
  metadata,
  inference,
  shared_memory,
  model_config,
  model_repository,
  statistics,
  trace,
  logging
};
constexpr size_t kCategories = 9;

/// The rules of a server; a category without a rule is open.
class AccessRules {
 public:
  /// Each rule is `category[,category]:header=secret`; `all` names every category that no other rule names.
  /// `${NAME}` in a secret stands for that variable of the environment. Throws invalid_argument for what is
  /// no rule and for a variable that is not set or empty.
  explicit AccessRules(const std::vector<std::string>& rules);

  /// Value of a header by its name, empty if absent.
  using Lookup = std::function<std::string_view(const std::string& header)>;
  /// True if the caller has shown the category's secret. Takes as long for a wrong secret as for the right
  /// one.
  bool allows(Category category, const Lookup& header) const;
  bool has_any() const { return has_any_; }
  static std::string_view name(Category category);

 private:
  struct Rule {
    std::string header, secret;
  };
  std::array<std::vector<Rule>, kCategories> rules_;
  bool has_any_ = false;
};

/// `rules`, then those of a file (empty: none): one a line, without blank lines and those that begin with #.
/// So secrets need not be on a command line, which every user of the machine can read.
std::vector<std::string> access_rules(std::vector<std::string> rules, const std::string& file);

/// The category of an HTTP path below /v2, or of /metrics.
Category category_of_path(std::string_view path);
/// The category of a call of GRPCInferenceService.
Category category_of_call(std::string_view call);

}  // namespace trireme::serve
