// Translates Oniguruma's syntax from left to right. What PCRE2 reads otherwise is written in another way;
// what it has no counterpart for is refused by name.
#include "data/tokenizer/regex_dialect.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/regex_reader.h"
#include "data/tokenizer/regex_sets.h"

namespace trireme::data {
namespace {

constexpr int kDeepestClass = 16;
constexpr size_t kNothing = std::string_view::npos;
constexpr char32_t kLongS = 0x17F;  // two of them may be one letter, as two s may
/// What people see as one character. PCRE2's \X, to which the rest is left, takes neighbouring pictographs
/// for one.
constexpr std::string_view kSeenCharacter =
    "(?>\\p{ExtPict}(?:[\\p{Gr_Ext}\\p{EMod}]*\\x{200d}\\p{ExtPict})*"
    "[\\p{Gr_Ext}\\p{EMod}\\p{Mc}\\x{200d}]*|\\X)";
constexpr std::string_view kAnyCharacter = "(?s:.)";

bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }
bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

class Translator : private PatternReader {
 public:
  explicit Translator(std::string_view in) : PatternReader(in), groups_(1) {}

  std::string run() {
    while (at_ < in_.size()) step();
    if (groups_.size() > 1) fail_regex("a group has no end");
    out_.append(groups_[0].options, ')');
    if (has_names_ && has_numbers_) fail_regex("a reference by number beside groups with names");
    return std::move(out_);
  }

 private:
  struct Flags {
    bool ignores_case = false, is_extended = false;
  };
  struct Group {
    size_t begin = 0;    ///< in the result
    size_t options = 0;  ///< groups opened by options without one of their own, which end with this one
    Flags flags = {};    ///< before it
    bool looks = false;  ///< ahead or behind, which cannot be repeated
  };

  void step() {
    const char c = in_[at_];
    if (flags_.is_extended && skip_space()) return;
    if (c == '(') return open_group();
    if (c == ')') return close_group();
    if (c == '[') return add_item(character_class(0));
    if (c == '\\') return escape();
    if (c == '*' || c == '+' || c == '?') return quantifier(std::string(1, c), true);
    if (c == '{') {
      if (const auto interval = read_interval()) return quantifier(interval->text, !interval->is_fixed);
    }
    if (c == '.') return ++at_, add_item(".");
    if (c == '|' || c == '^' || c == '$') return ++at_, add_border(std::string(1, c));
    literal();
  }

  bool skip_space() {
    const char c = in_[at_];
    if (c == '#') {
      at_ = std::min(in_.find('\n', at_), in_.size());
      return true;
    }
    if (c != ' ' && (c < '\t' || c > '\r')) return false;
    ++at_;
    return true;
  }

  /// Adds what a quantifier may repeat.
  void add_item(const std::string& item) {
    item_ = out_.size();
    is_repeated_ = false;
    out_ += item;
  }
  void add_border(std::string_view text) {
    item_ = kNothing;
    out_ += text;
  }

  // Characters

  void literal() {
    if (flags_.ignores_case && add_ligature()) return;
    add_code(base::next_code_point(in_, at_));
  }

  void add_code(char32_t code) {
    if (flags_.ignores_case && code == kLongS) refuse_regex("\u017f where case is ignored");
    const std::string several = flags_.ignores_case ? letters_of(code) : std::string();
    add_item(several.empty() ? quoted(code) : base::concat("(?:", quoted(code), "|", several, ")"));
  }

  /// Letters that may be one: ß of "ss". Those of which a quantifier repeats the last stay several.
  bool add_ligature() {
    const auto found = ligature_at(in_.substr(at_));
    if (!found) return false;
    const char next = peek(found->letters.size());
    if (next == '*' || next == '+' || next == '?' || next == '{') return false;
    add_item(base::concat("(?:", found->letters, "|", found->written, ")"));
    at_ += found->letters.size();
    return true;
  }

  // Escapes outside classes

  void escape() {
    if (at_ + 1 >= in_.size()) fail_regex("a backslash at the end");
    const char kind = in_[at_ + 1];
    at_ += 2;
    if (is_escaped_set(kind)) return add_item(item_of(escaped_set(kind, false)));
    if ((kind == 'p' || kind == 'P') && peek() == '{') return add_item(item_of(property(kind == 'P')));
    switch (kind) {
      case 'A':
      case 'Z':
      case 'z':
      case 'G':
      case 'K': return add_border(in_.substr(at_ - 2, 2));
      case 'b':
      case 'B': return add_border(word_border(kind == 'B'));
      case 'N':
      case 'R': return add_item(base::concat("\\", kind));
      case 'X': return add_item(std::string(kSeenCharacter));
      case 'O': return add_item(std::string(kAnyCharacter));
      case 'y':
      case 'Y': refuse_regex("\\y and \\Y");
      case 'k':
      case 'g':
        if (peek() == '<' || peek() == '\'') return reference(kind);
        break;
      default: break;
    }
    if (kind >= '1' && kind <= '9' && numbered(kind)) return;
    add_code(code_of(kind));
  }

  /// A border of a word, or where there is none.
  static std::string word_border(bool negates) {
    const std::string word = item_of(escaped_set('w', false));
    const char* const behind = negates ? "(?=" : "(?!";
    const char* const before = negates ? "(?!" : "(?=";
    return base::concat("(?:(?<=", word, ")", behind, word, ")|(?<!", word, ")", before, word, "))");
  }

  /// \1: the group of that number. Nothing for an octal number.
  bool numbered(char first) {
    const size_t begin = at_;
    int64_t value = first - '0';
    while (is_ascii_digit(peek()) && value < 1000) value = value * 10 + (in_[at_++] - '0');
    if (value > 9 && value > groups_seen_) {
      at_ = begin;
      if (first >= '8') fail_regex("a reference to a group that there is not");
      return false;
    }
    has_numbers_ = true;
    add_item(base::concat("\\g{", value, "}"));
    return true;
  }

  /// \k<name> and \g<name>, by name or number.
  void reference(char kind) {
    const char end = in_[at_] == '<' ? '>' : '\'';
    const size_t stop = in_.find(end, at_ + 1);
    if (stop == kNothing) fail_regex("a reference has no end");
    const std::string_view name = in_.substr(at_ + 1, stop - at_ - 1);
    at_ = stop + 1;
    const bool has_sign = name.starts_with('-') || name.starts_with('+');
    const bool is_number = has_sign || (!name.empty() && is_ascii_digit(name[0]));
    if (name.empty() || name.find_first_of("+-", has_sign ? 1 : 0) != kNothing)
      refuse_regex("a reference to a level of a group");
    has_numbers_ = has_numbers_ || is_number;
    add_item(kind == 'k' && is_number ? base::concat("\\g{", name, "}")
                                      : base::concat("\\", kind, "<", name, ">"));
  }

  CharacterSet property(bool negates) {
    const size_t end = in_.find('}', at_);
    if (end == kNothing) fail_regex("\\p{ has no end");
    CharacterSet set = property_set(in_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    set.is_negated = set.is_negated != negates;
    return set;
  }

  static std::string item_of(const CharacterSet& set) {
    return base::concat(set.is_negated ? "[^" : "[", set.items, "]");
  }

  // Quantifiers

  /// `has_kinds`: '?' behind it makes it lazy, and '+' behind one character possessive. Behind {n} both are
  /// quantifiers of their own, as '+' is behind {n,m}.
  void quantifier(const std::string& text, bool has_kinds) {
    if (item_ == kNothing) fail_regex("nothing to repeat");
    ++at_;
    if (is_repeated_) {
      out_.insert(item_, "(?:");
      out_ += ")";
    }
    out_ += text;
    is_repeated_ = true;
    const bool is_kind = has_kinds && (peek() == '?' || (peek() == '+' && text.size() == 1));
    if (is_kind) out_.push_back(in_[at_++]);
  }

  // Groups

  void open(std::string_view text, bool looks = false) {
    groups_.push_back({.begin = out_.size(), .flags = flags_, .looks = looks});
    add_border(text);
  }

  void open_group() {
    ++at_;
    if (peek() == '*') refuse_regex("(*, a callout");
    if (!skip("?")) {
      ++groups_seen_;
      return open("(");
    }
    for (const std::string_view kind : {":", ">", "=", "!", "<=", "<!"}) {
      if (skip(kind)) return open(base::concat("(?", kind), kind != ":" && kind != ">");
    }
    if (skip("#")) return skip_comment();
    if (peek() == '<' || peek() == '\'') return open_named();
    if (peek() == '(') return open_conditional();
    if (peek() == '~') refuse_regex("(?~, an absent operator");
    open_options();
  }

  void skip_comment() {
    while (at_ < in_.size() && in_[at_] != ')') at_ += in_[at_] == '\\' ? 2 : 1;
    if (at_ >= in_.size()) fail_regex("a comment has no end");
    ++at_;
  }

  void open_named() {
    const size_t end = in_.find(in_[at_] == '<' ? '>' : '\'', at_ + 1);
    if (end == kNothing) fail_regex("a group's name has no end");
    has_names_ = true;
    ++groups_seen_;
    open(base::concat("(?<", in_.substr(at_ + 1, end - at_ - 1), ">"));
    at_ = end + 1;
  }

  /// (?(1)yes|no)
  void open_conditional() {
    const size_t end = in_.find(')', at_);
    if (end == kNothing) fail_regex("a condition has no end");
    std::string_view name = in_.substr(at_ + 1, end - at_ - 1);
    if (name.size() > 1 && (name[0] == '<' || name[0] == '\'')) name = name.substr(1, name.size() - 2);
    const bool is_number = !name.empty() && std::all_of(name.begin(), name.end(), is_ascii_digit);
    if (name.empty() || name.find_first_of("+-=!?<") != kNothing)
      refuse_regex("a condition that is no group's name");
    has_numbers_ = has_numbers_ || is_number;
    at_ = end + 1;
    open(is_number ? base::concat("(?(", name, ")") : base::concat("(?(<", name, ">)"));
  }

  /// (?imx-imx) and (?imx-imx:...). PCRE2's s is Oniguruma's m; x is done here. Without a group of their own,
  /// options hold, and bind alternatives together, up to the end of the group around them.
  void open_options() {
    Flags flags = flags_;
    std::string on, off;
    bool is_on = true;
    for (; peek() != ')' && peek() != ':'; ++at_) {
      const char c = peek();
      if (c == '\0') fail_regex("a group has no end");
      if (c == '-') {
        is_on = false;
        continue;
      }
      if (c == 'i') flags.ignores_case = is_on;
      if (c == 'x') flags.is_extended = is_on;
      if (c == 'i' || c == 'm') (is_on ? on : off).push_back(c == 'm' ? 's' : c);
      if (c != 'i' && c != 'm' && c != 'x') refuse_regex(base::concat("a group that begins (?", c));
    }
    const std::string begin = base::concat("(?", on, off.empty() ? "" : "-", off, ":");
    if (in_[at_++] == ':') {
      open(begin);
    } else {
      ++groups_.back().options;
      add_border(begin);
    }
    flags_ = flags;
  }

  void close_group() {
    if (groups_.size() == 1) fail_regex("a ) that closes nothing");
    ++at_;
    const Group group = groups_.back();
    groups_.pop_back();
    out_.append(group.options + 1, ')');
    flags_ = group.flags;
    item_ = group.looks ? kNothing : group.begin;
    is_repeated_ = false;
  }

  // Classes

  /// What a class holds: items of one class, and others that are matched beside it.
  struct ClassPart {
    std::string items;
    std::vector<std::string> others;

    bool is_empty() const { return items.empty() && others.empty(); }
    void add(const CharacterSet& set) {
      if (!set.is_negated)
        items += set.items;
      else
        others.push_back(item_of(set));
    }
    std::string text(bool negates) const {
      if (is_empty()) return negates ? std::string(kAnyCharacter) : "(?!)";
      if (others.empty()) return base::concat(negates ? "[^" : "[", items, "]");
      std::string any = items.empty() ? std::string() : "[" + items + "]";
      for (const std::string& other : others) any += (any.empty() ? "" : "|") + other;
      return negates ? base::concat("(?:(?!", any, ")", kAnyCharacter, ")") : "(?:" + any + ")";
    }
  };

  /// A class, starting at its bracket; `A&&B` becomes (?=[A])[B].
  std::string character_class(int depth) {
    if (depth > kDeepestClass) refuse_regex("classes nested too deeply");
    ++at_;
    const bool negates = skip("^");
    std::string sides;
    bool has_sides = false;
    ClassPart part;
    for (bool is_first = true; is_first || peek() != ']'; is_first = false) {
      if (at_ >= in_.size()) fail_regex("a class has no end");
      if (skip("&&")) {
        sides += base::concat("(?=", part.text(false), ")");
        has_sides = true;
        part = {};
      } else {
        add_member(part, depth);
      }
    }
    ++at_;
    if (!has_sides) return part.text(negates);
    sides += part.text(false);
    return negates ? base::concat("(?:(?!", sides, ")", kAnyCharacter, ")") : "(?:" + sides + ")";
  }

  void add_member(ClassPart& part, int depth) {
    if (peek() == '[') {
      if (const auto name = posix_name()) return add_set(part, posix_set(*name));
      part.others.push_back(character_class(depth + 1));
      return;
    }
    if (const auto set = class_escape()) return add_set(part, *set);
    const char32_t first = class_code();
    if (!is_range()) {
      if (flags_.ignores_case && !letters_of(first).empty())
        refuse_regex("a letter that stands for several, in a class where case is ignored");
      part.items += quoted(first);
      return;
    }
    ++at_;
    if (peek() == '[') refuse_regex("a range that ends in a class");
    if (class_escape()) fail_regex("a range that ends in a set of characters");
    const char32_t last = class_code();
    if (last < first) fail_regex("a range that ends before it begins");
    part.items += base::concat(quoted(first), "-", quoted(last));
  }

  /// Whether a '-' follows that is not the last character.
  bool is_range() const {
    return peek() == '-' && at_ + 1 < in_.size() && peek(1) != ']' && !in_.substr(at_ + 1).starts_with("&&");
  }

  void add_set(ClassPart& part, const CharacterSet& set) const {
    if (is_range()) fail_regex("a range that begins with a set of characters");
    if (flags_.ignores_case && set.has_case)
      refuse_regex("letters of one case, in a class where case is ignored");
    part.add(set);
  }

  /// The name of [:name:] at this place, which is read then.
  std::optional<std::string_view> posix_name() {
    const std::string_view rest = in_.substr(at_);
    const size_t end = rest.find(":]");
    if (!rest.starts_with("[:") || end == kNothing || end < 3) return std::nullopt;
    const std::string_view name = rest.substr(2, end - 2), letters = name.substr(name[0] == '^' ? 1 : 0);
    if (letters.empty() || !std::all_of(letters.begin(), letters.end(), is_ascii_letter)) return std::nullopt;
    at_ += end + 2;
    return name;
  }

  /// A set of characters at this place, which is read then.
  std::optional<CharacterSet> class_escape() {
    if (peek() != '\\') return std::nullopt;
    const char kind = peek(1);
    const bool is_property = (kind == 'p' || kind == 'P') && peek(2) == '{';
    if (!is_property && !is_escaped_set(kind)) return std::nullopt;
    at_ += 2;
    return is_property ? property(kind == 'P') : escaped_set(kind, true);
  }

  char32_t class_code() {
    if (peek() != '\\') return base::next_code_point(in_, at_);
    if (at_ + 1 >= in_.size()) fail_regex("a backslash at the end");
    const char kind = in_[at_ + 1];
    at_ += 2;
    return kind == 'b' ? 8 : code_of(kind);
  }

  std::string out_;
  std::vector<Group> groups_;  ///< open ones; the first is the whole expression
  Flags flags_;
  size_t item_ = kNothing;    ///< where in the result begins what a quantifier would repeat
  bool is_repeated_ = false;  ///< it is already
  int64_t groups_seen_ = 0;
  bool has_names_ = false, has_numbers_ = false;
};

}  // namespace

std::string pcre_dialect(std::string_view pattern) { return Translator(pattern).run(); }

}  // namespace trireme::data
