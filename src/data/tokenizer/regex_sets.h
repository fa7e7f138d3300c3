// Sets of characters by their names in Oniguruma's expressions, as what stands in a class of PCRE2.
#pragma once

#include <string>
#include <string_view>

namespace trireme::data {

/// What stands between the brackets of a class, and whether all other characters are meant.
struct CharacterSet {
  std::string items;
  bool is_negated = false;
  bool has_case = false;  ///< only letters of some case: PCRE2 does not fold those in classes
};

/// \s, \w, \d or \h, by the letter; upper case is the complement. Outside classes Oniguruma counts a few more
/// characters of Latin-1 as words.
CharacterSet escaped_set(char kind, bool in_class);
bool is_escaped_set(char kind);
/// [:name:], as in [[:alpha:]]. Throws invalid_argument for a name that there is not.
CharacterSet posix_set(std::string_view name);
/// \p{name}: a category, script or property of Unicode, or a name of POSIX. Case, spaces, '-' and '_' do not
/// count; '^' before the name negates. Throws unsupported for one that PCRE2 does not know.
CharacterSet property_set(std::string_view name);

}  // namespace trireme::data
