// Which callers may use which routes: a header and its secret for each category of the protocol and each
// model.
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

/// Calls that change what all clients see, or name the machine's memory and files.
bool is_control(Category category);

class ApiKeys;

/// Who calls: what a call shows, and whether it comes from this machine.
struct Caller {
  /// Value of a header by its name in lower case, empty if absent.
  std::function<std::string_view(const std::string& header)> header;
  bool is_local = false;    ///< looked at for control calls only
  bool is_counted = false;  ///< what the call takes of its key's quota is counted
};

/// True where a proxy says that it passes the call on for somebody else.
bool is_forwarded(const std::function<std::string_view(const std::string& header)>& header);

enum class Access { allowed, needs_key, only_here, is_not_counted };

/// The rules of a server. A category without a rule is open, but for control calls from other machines, which
/// need a key.
class AccessRules {
 public:
  /// Each rule is `category[,category][@model[,model]]:header=secret` or `category[,category]:anyone`; `all`
  /// names every category that no other rule names, a model may end with `*`. `${NAME}` in a secret stands
  /// for that variable of the environment. Throws invalid_argument for what is no rule and for a variable
  /// that is not set or empty.
  /// `keys` outlive this; null, or without a file: there are none. With them a call for inference needs one
  /// of them, or what a rule for it says.
  explicit AccessRules(const std::vector<std::string>& rules, const ApiKeys* keys = nullptr);

  /// Whether the caller may make a call of the category on a model (empty: on none, or on all). Rules that
  /// name the model stand in the place of the category's others. Takes as long for a wrong secret as for the
  /// right one.
  Access judge(Category category, std::string_view model, const Caller& caller) const;
  /// The same before it is known which model the call is on: `allowed` if it may be on any.
  Access judge_before_reading(Category category, const Caller& caller) const;
  static std::string_view name(Category category);
  /// What a caller is told who is not allowed.
  static std::string refusal(Category category, Access why);

 private:
  struct Rule {
    std::string header, secret;
    std::vector<std::string> models;  ///< empty: all
  };
  struct Rules {
    std::vector<Rule> list;
    bool is_open = false;
  };
  void add(const std::string& text, Rules& rest);
  Access judge_key(std::string_view model, const Caller& caller) const;
  static Access verdict(Category category, const Rules& rules, const std::vector<const Rule*>& asked,
                        const Caller& caller);

  std::array<Rules, kCategories> rules_;
  const ApiKeys* keys_ = nullptr;  ///< null: there are none
};

/// `rules`, then those of a file (empty: none): one a line, without blank lines and those that begin with #.
/// So secrets need not be on a command line, which every user of the machine can read.
std::vector<std::string> access_rules(std::vector<std::string> rules, const std::string& file);

/// The category of an HTTP path below /v2, or of /metrics.
Category category_of_path(std::string_view path);
/// The model that such a path names, decoded; empty: none. Throws invalid_argument for a broken escape.
std::string model_of_path(std::string_view path);
/// The category of a call of GRPCInferenceService.
Category category_of_call(std::string_view call);

}  // namespace trireme::serve
