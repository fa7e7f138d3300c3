// Tables of the sets that Oniguruma names.
#include "data/tokenizer/regex_sets.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace trireme::data {
namespace {

/// Unicode's White_Space, which PCRE2's \s exceeds by U+180E.
constexpr std::string_view kSpaces =
    "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
/// Outside classes, Oniguruma also counts Latin-1's superscripts and fractions as word characters.
constexpr std::string_view kLoneWord =
    "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";
constexpr std::string_view kHex = "0-9A-Fa-f";

struct Named {
  std::string_view name, items;
  bool is_negated = false;
};
/// PCRE2's own sets of these names differ, as it counts letters and numbers of other kinds.
constexpr Named kPosix[] = {{"alnum", "\\p{Alphabetic}\\p{Nd}"},
                            {"alpha", "\\p{Alphabetic}"},
                            {"ascii", "\\x00-\\x7f"},
                            {"blank", "\\p{Zs}\\x09"},
                            {"cntrl", "\\p{Cc}"},
                            {"digit", "\\p{Nd}"},
                            {"graph", "\\p{Z}\\p{Cc}\\p{Cn}\\p{Cs}", true},
                            {"lower", "\\p{Lowercase}"},
                            {"print", "\\p{Zl}\\p{Zp}\\p{Cc}\\p{Cn}\\p{Cs}", true},
                            {"punct", "\\p{P}\\p{S}"},
                            {"space", kSpaces},
                            {"upper", "\\p{Uppercase}"},
                            {"word", kWord},
                            {"xdigit", kHex}};

/// Names that PCRE2 does not know or that it means otherwise.
constexpr Named kProperties[] = {{"any", "\\x00-\\x{10ffff}"},
                                 {"assigned", "\\p{Cn}", true},
                                 {"punct", "\\p{P}"},
                                 {"word", kLoneWord},
                                 {"casedletter", "\\p{L&}"},
                                 {"closepunctuation", "\\p{Pe}"},
                                 {"combiningmark", "\\p{M}"},
                                 {"connectorpunctuation", "\\p{Pc}"},
                                 {"control", "\\p{Cc}"},
                                 {"currencysymbol", "\\p{Sc}"},
                                 {"dashpunctuation", "\\p{Pd}"},
                                 {"decimalnumber", "\\p{Nd}"},
                                 {"enclosingmark", "\\p{Me}"},
                                 {"finalpunctuation", "\\p{Pf}"},
                                 {"format", "\\p{Cf}"},
                                 {"initialpunctuation", "\\p{Pi}"},
                                 {"lc", "\\p{L&}"},
                                 {"letter", "\\p{L}"},
                                 {"letternumber", "\\p{Nl}"},
                                 {"lineseparator", "\\p{Zl}"},
                                 {"lowercaseletter", "\\p{Ll}"},
                                 {"mark", "\\p{M}"},
                                 {"mathsymbol", "\\p{Sm}"},
                                 {"modifierletter", "\\p{Lm}"},
                                 {"modifiersymbol", "\\p{Sk}"},
                                 {"nonspacingmark", "\\p{Mn}"},
                                 {"number", "\\p{N}"},
                                 {"openpunctuation", "\\p{Ps}"},
                                 {"other", "\\p{C}"},
                                 {"otherletter", "\\p{Lo}"},
                                 {"othernumber", "\\p{No}"},
                                 {"otherpunctuation", "\\p{Po}"},
                                 {"othersymbol", "\\p{So}"},
                                 {"paragraphseparator", "\\p{Zp}"},
                                 {"privateuse", "\\p{Co}"},
                                 {"punctuation", "\\p{P}"},
                                 {"separator", "\\p{Z}"},
                                 {"spaceseparator", "\\p{Zs}"},
                                 {"spacingmark", "\\p{Mc}"},
                                 {"surrogate", "\\p{Cs}"},
                                 {"symbol", "\\p{S}"},
                                 {"titlecaseletter", "\\p{Lt}"},
                                 {"unassigned", "\\p{Cn}"},
                                 {"uppercaseletter", "\\p{Lu}"}};

/// Items that are letters of some case.
constexpr std::string_view kCased[] = {"\\p{L&}",        "\\p{ll}",        "\\p{Ll}",        "\\p{lt}",
                                       "\\p{Lt}",        "\\p{lu}",        "\\p{Lu}",        "\\p{Lowercase}",
                                       "\\p{lowercase}", "\\p{Uppercase}", "\\p{uppercase}", "\\p{lower}",
                                       "\\p{upper}",     "\\p{cased}"};

CharacterSet set_of(std::string items, bool is_negated = false) {
  const bool has_case = std::find(std::begin(kCased), std::end(kCased), items) != std::end(kCased);
  return {std::move(items), is_negated, has_case};
}

template <size_t kSize>
const Named* find(const Named (&table)[kSize], std::string_view name) {
  const auto found =
      std::find_if(std::begin(table), std::end(table), [&](const Named& n) { return n.name == name; });
  return found == std::end(table) ? nullptr : found;
}

/// Whether PCRE2 knows what an item of a class names.
bool is_known(const std::string& item) {
  int error = 0;
  size_t at = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(item.data()), item.size(), PCRE2_UTF, &error, &at, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

/// Lower case, without what does not count; empty where there is something that no name has.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ' || c == '-' || c == '_') continue;
    if (std::isalnum(byte) == 0) return {};
    plain.push_back(static_cast<char>(std::tolower(byte)));
  }
  return plain;
}

}  // namespace

bool is_escaped_set(char kind) {
  return kind != '\0' && std::string_view("sSwWdDhH").find(kind) != std::string_view::npos;
}

CharacterSet escaped_set(char kind, bool in_class) {
  const bool is_negated = kind < 'a';
  const char lower = is_negated ? static_cast<char>(kind + 32) : kind;
  return {std::string(lower == 's'   ? kSpaces
                      : lower == 'd' ? "\\p{Nd}"
                      : lower == 'h' ? kHex
                      : in_class     ? kWord
                                     : kLoneWord),
          is_negated};
}

CharacterSet posix_set(std::string_view name) {
  const bool negates = name.starts_with('^');
  if (negates) name.remove_prefix(1);
  const Named* found = find(kPosix, name);
  if (found == nullptr) base::fail_invalid("regular expression: a set of characters named [:", name, ":]");
  return set_of(std::string(found->items), found->is_negated != negates);
}

CharacterSet property_set(std::string_view name) {
  const std::string_view given = name;
  const bool negates = name.starts_with('^');
  if (negates) name.remove_prefix(1);
  const std::string plain = plain_name(name);
  for (const Named* found : {find(kProperties, plain), find(kPosix, plain)}) {
    if (found != nullptr) return set_of(std::string(found->items), found->is_negated != negates);
  }
  // A script means the script itself, PCRE2's bare name its extensions as well.
  for (const std::string& item : {"\\p{sc:" + plain + "}", "\\p{" + plain + "}"}) {
    if (!plain.empty() && is_known(item)) return set_of(item, negates);
  }
  base::fail_unsupported("regular expression: the property \\p{", given, "} of characters");
}

}  // namespace trireme::data
