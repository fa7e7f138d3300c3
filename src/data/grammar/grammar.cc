// Builds grammars from rows of symbols.
#include "data/grammar/grammar.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data {
namespace {

using Row = Grammar::Row;

/// A set of byte strings of one length: each place has its own range of bytes.
struct ByteRanges {
  std::vector<std::pair<uint8_t, uint8_t>> places;
};

std::string utf8(char32_t code) {
  std::string out;
  base::append_utf8(out, code);
  return out;
}

/// Appends the code points first..last, encoded in the same length, as ranges of bytes. Between two different
/// first bytes, the following bytes take all values, except at both ends of the range.
void append_ranges(std::string_view first, std::string_view last, ByteRanges prefix,
                   std::vector<ByteRanges>& out) {
  const auto byte = [](char c) { return static_cast<uint8_t>(c); };
  if (first.empty()) {
    out.push_back(std::move(prefix));
    return;
  }
  const std::string lowest(first.size() - 1, '\x80'), highest(first.size() - 1, '\xBF');
  const auto with = [&](uint8_t low, uint8_t high, std::string_view from, std::string_view to) {
    ByteRanges next = prefix;
    next.places.emplace_back(low, high);
    append_ranges(from, to, std::move(next), out);
  };
  uint8_t low = byte(first[0]), high = byte(last[0]);
  if (low == high) return with(low, high, first.substr(1), last.substr(1));
  if (first.substr(1) != lowest) with(low++, byte(first[0]), first.substr(1), highest);
  if (last.substr(1) != highest) --high;
  if (low <= high) {
    // First bytes strictly inside the range may be followed by any continuation bytes.
    ByteRanges next = prefix;
    next.places.emplace_back(low, high);
    for (size_t i = 1; i < first.size(); ++i) next.places.emplace_back(0x80, 0xBF);
    out.push_back(std::move(next));
  }
  if (last.substr(1) != highest) with(byte(last[0]), byte(last[0]), lowest, last.substr(1));
}

std::vector<ByteRanges> utf8_ranges(char32_t first, char32_t last) {
  std::vector<ByteRanges> out;
  constexpr GrammarBuilder::Range kLengths[] = {
      {0, 0x7F}, {0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
  for (const auto& length : kLengths) {
    const char32_t from = std::max(first, length.first), to = std::min(last, length.last);
    if (from <= to) append_ranges(utf8(from), utf8(to), {}, out);
  }
  return out;
}

/// Sorted and merged ranges; for a negated class, the ranges between them.
std::vector<GrammarBuilder::Range> sorted(std::vector<GrammarBuilder::Range> ranges, bool negated) {
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<GrammarBuilder::Range> joined, others;
  for (const auto& r : ranges) {
    base::require(r.first <= r.last && r.last <= 0x10FFFF,
                  "a range of characters that ends before it begins");
    if (!joined.empty() && r.first <= joined.back().last + 1)
      joined.back().last = std::max(joined.back().last, r.last);
    else
      joined.push_back(r);
  }
  if (!negated) return joined;
  char32_t next = 0;
  for (const auto& r : joined) {
    if (r.first > next) others.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= 0x10FFFF) others.push_back({next, 0x10FFFF});
  return others;
}

/// Marks with 1 the rules that may be empty. Each row counts its symbols not known to be empty. At zero, its
/// rule may be empty, and all rows that use the rule are updated. Linear in the grammar.
std::vector<int8_t> empty_rules(const Grammar& grammar) {
  struct Place {
    uint32_t rule;
    size_t row;  // number among all rows
  };
  const auto& rules = grammar.rules;
  std::vector<int8_t> is_empty(rules.size(), 0);
  std::vector<std::vector<Place>> users(rules.size());
  std::vector<size_t> needed;  // by row: its symbols not known to be empty
  std::vector<uint32_t> empty;
  const auto mark = [&](uint32_t rule) {
    if (std::exchange(is_empty[rule], int8_t{1}) == 0) empty.push_back(rule);
  };
  for (uint32_t rule = 0; rule < rules.size(); ++rule) {
    for (const Row& row : rules[rule].rows) {
      for (const auto& s : row) {
        if (s.is_rule) users[s.index].push_back({rule, needed.size()});
      }
      needed.push_back(row.size());
      if (row.empty()) mark(rule);
    }
  }
  while (!empty.empty()) {
    const uint32_t rule = empty.back();
    empty.pop_back();
    for (const Place& at : users[rule]) {
      if (--needed[at.row] == 0) mark(at.rule);
    }
  }
  return is_empty;
}

/// Finds rules that begin with themselves: expanding them would never end.
class LeftRecursion {
 public:
  explicit LeftRecursion(const Grammar& grammar)
      : g_(grammar), empty_(empty_rules(grammar)), seen_(g_.rules.size(), 0) {}

  void check() {
    for (uint32_t rule = 0; rule < g_.rules.size(); ++rule) walk(rule);
  }

 private:
  /// The rules with which `rule` may begin.
  std::vector<uint32_t> beginnings(uint32_t rule) const {
    std::vector<uint32_t> out;
    for (const Row& row : g_.rules[rule].rows) {
      for (const auto& s : row) {
        if (!s.is_rule) break;
        out.push_back(s.index);
        if (empty_[s.index] == 0) break;
      }
    }
    return out;
  }

  /// Depth first, with an explicit stack, because rules may be nested to any depth.
  void walk(uint32_t start) {
    struct Open {
      uint32_t rule;
      std::vector<uint32_t> next;
    };
    if (seen_[start] != 0) return;
    std::vector<Open> open;
    const auto enter = [&](uint32_t rule) {
      seen_[rule] = 1;
      open.push_back({rule, beginnings(rule)});
    };
    enter(start);
    while (!open.empty()) {
      if (open.back().next.empty()) {
        seen_[open.back().rule] = 2;
        open.pop_back();
        continue;
      }
      const uint32_t rule = open.back().next.back();
      open.back().next.pop_back();
      if (seen_[rule] == 1)
        base::fail_unsupported("grammar: the rule '", g_.rules[rule].name, "' begins with itself");
      if (seen_[rule] == 0) enter(rule);
    }
  }

  const Grammar& g_;
  std::vector<int8_t> empty_;  // 1: may be empty
  std::vector<int8_t> seen_;   // 1: being visited, 2: done
};

}  // namespace

void GrammarBuilder::count(size_t symbols) {
  symbols_ += symbols;
  if (symbols_ > kMostSymbols)
    base::fail(base::ErrorCode::exhausted, "grammar of more than ", kMostSymbols, " symbols");
}

uint32_t GrammarBuilder::add_rule(std::string name) {
  count(1);
  grammar_.rules.push_back({std::move(name), {}});
  return static_cast<uint32_t>(grammar_.rules.size() - 1);
}

void GrammarBuilder::set_rows(uint32_t rule, std::vector<Row> rows) {
  for (const Row& row : rows) count(row.size() + 1);
  grammar_.rules[rule].rows = std::move(rows);
}

uint32_t GrammarBuilder::set_of(const ByteSet& set) {
  // There are few different sets, and the most recent ones are the likeliest to recur.
  const size_t from = grammar_.sets.size() > 64 ? grammar_.sets.size() - 64 : 0;
  for (size_t i = grammar_.sets.size(); i-- > from;) {
    if (grammar_.sets[i] == set) return static_cast<uint32_t>(i);
  }
  grammar_.sets.push_back(set);
  return static_cast<uint32_t>(grammar_.sets.size() - 1);
}

Row GrammarBuilder::bytes(const ByteSet& set) {
  count(1);
  return {{false, set_of(set)}};
}

Row GrammarBuilder::text(std::string_view text) {
  Row row;
  for (const char c : text) {
    ByteSet set;
    set.set(static_cast<uint8_t>(c));
    row.push_back(bytes(set)[0]);
  }
  return row;
}

Row GrammarBuilder::characters(std::vector<Range> ranges, bool negated) {
  ByteSet ascii;
  std::vector<Row> rows;
  for (const Range& range : sorted(std::move(ranges), negated)) {
    for (const ByteRanges& one : utf8_ranges(range.first, range.last)) {
      Row row;
      for (const auto& [low, high] : one.places) {
        ByteSet set;
        for (int b = low; b <= high; ++b) set.set(static_cast<size_t>(b));
        if (one.places.size() == 1)
          ascii |= set;
        else
          row.push_back(bytes(set)[0]);
      }
      if (!row.empty()) rows.push_back(std::move(row));
    }
  }
  if (ascii.any()) rows.insert(rows.begin(), bytes(ascii));
  base::require(!rows.empty(), "grammar: a class without characters");
  return rows.size() == 1 ? rows[0] : any_of(std::move(rows));
}

Row GrammarBuilder::json_characters(std::vector<Range> ranges, bool negated) {
  constexpr std::string_view kShort = "\b\f\n\r\t\"\\", kLetters = "bfnrt\"\\", kHex = "0123456789abcdef";
  constexpr Range kEscaped[] = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
  std::vector<Range> plain;
  std::vector<Row> rows;
  for (Range range : sorted(std::move(ranges), negated)) {
    for (const Range& escaped : kEscaped) {
      for (char32_t c = std::max(range.first, escaped.first); c <= std::min(range.last, escaped.last); ++c) {
        const size_t known = kShort.find(static_cast<char>(c));
        rows.push_back(known != std::string_view::npos
                           ? text(std::string{'\\', kLetters[known]})
                           : text(std::string("\\u00") + kHex[c >> 4] + kHex[c & 15]));
      }
      if (range.first < escaped.first && range.first <= range.last)
        plain.push_back({range.first, std::min<char32_t>(range.last, escaped.first - 1)});
      range.first = std::max<char32_t>(range.first, escaped.last + 1);
    }
    if (range.first <= range.last) plain.push_back(range);
  }
  if (!plain.empty()) rows.insert(rows.begin(), characters(std::move(plain)));
  base::require(!rows.empty(), "grammar: a class without characters");
  return any_of(std::move(rows));
}

Row GrammarBuilder::any_of(std::vector<Row> rows) {
  if (rows.size() == 1) return rows[0];
  const uint32_t rule = add_rule("choice");
  set_rows(rule, std::move(rows));
  return this->rule(rule);
}

Row GrammarBuilder::repeated(const Row& row, int64_t least, int64_t most) {
  base::require(least >= 0 && (most < 0 || most >= least), "grammar: from ", least, " to ", most, " times");
  if (row.empty()) return {};
  Row one = row;
  if (row.size() > 1) {
    const uint32_t group = add_rule("group");
    set_rows(group, {row});
    one = rule(group);
  }
  Row out;
  const auto append_once = [&] {
    count(one.size());
    out.insert(out.end(), one.begin(), one.end());
  };
  for (int64_t i = 0; i < least; ++i) append_once();
  if (most < 0) {
    const uint32_t more = add_rule("repetition");
    set_rows(more, {joined({one, rule(more)}), {}});
    if (one[0].is_rule) repetitions_.push_back(more);
    out.push_back({true, more});
    return out;
  }
  // Optional repetitions are nested, because each may occur only if the one before it does.
  Row rest;
  for (int64_t i = least; i < most; ++i) rest = optional(joined({one, rest}));
  return joined({out, rest});
}

Row GrammarBuilder::joined(std::initializer_list<Row> rows) {
  Row out;
  for (const Row& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

Row GrammarBuilder::append(const Grammar& part) {
  const auto rules = static_cast<uint32_t>(grammar_.rules.size());
  std::vector<uint32_t> sets;
  for (const ByteSet& set : part.sets) sets.push_back(set_of(set));
  for (const Grammar::Rule& rule : part.rules) add_rule(rule.name);
  for (size_t i = 0; i < part.rules.size(); ++i) {
    std::vector<Row> rows = part.rules[i].rows;
    for (Row& row : rows) {
      for (Grammar::Symbol& s : row) s.index = s.is_rule ? s.index + rules : sets[s.index];
    }
    set_rows(rules + static_cast<uint32_t>(i), std::move(rows));
  }
  return rule(rules + part.root);
}

void GrammarBuilder::repeat_no_empty() {
  if (repetitions_.empty()) return;
  const std::vector<int8_t> empty = empty_rules(grammar_);
  const auto may_be_empty = [&](Grammar::Symbol s) {
    return s.is_rule && s.index < empty.size() && empty[s.index] != 0;
  };
  std::unordered_map<uint32_t, uint32_t> without;  // by rule: the rule of its texts that are not empty
  std::vector<uint32_t> open;
  const auto without_empty = [&](Grammar::Symbol s) -> Grammar::Symbol {
    if (!may_be_empty(s)) return s;
    const auto known = without.find(s.index);
    if (known != without.end()) return {true, known->second};
    open.push_back(s.index);
    const uint32_t made = add_rule(grammar_.rules[s.index].name);
    without.emplace(s.index, made);
    return {true, made};
  };
  for (const uint32_t more : repetitions_) {
    const Grammar::Symbol one = without_empty(grammar_.rules[more].rows[0][0]);
    grammar_.rules[more].rows[0][0] = one;
  }
  while (!open.empty()) {
    const uint32_t rule = open.back();
    open.pop_back();
    const std::vector<Row> given = grammar_.rules[rule].rows;
    std::vector<Row> rows;
    for (const Row& row : given) {
      // A symbol is the first that is not empty, and all before it are.
      for (size_t i = 0; i < row.size(); ++i) {
        count(row.size() - i + 1);
        rows.emplace_back(row.begin() + static_cast<std::ptrdiff_t>(i), row.end());
        rows.back()[0] = without_empty(row[i]);
        if (!may_be_empty(row[i])) break;
      }
    }
    grammar_.rules[without.at(rule)].rows = std::move(rows);
  }
}

Grammar GrammarBuilder::build(uint32_t root) {
  grammar_.root = root;
  repeat_no_empty();
  LeftRecursion(grammar_).check();
  return std::move(grammar_);
}

Grammar grammar_of_choices(const std::vector<std::string>& choices) {
  base::require(!choices.empty(), "grammar: nothing to choose from");
  GrammarBuilder builder;
  std::vector<Row> rows;
  for (const std::string& choice : choices) rows.push_back(builder.text(choice));
  const uint32_t root = builder.add_rule("root");
  builder.set_rows(root, std::move(rows));
  return builder.build(root);
}

Grammar grammar_of_either(const Grammar& one, const Grammar& other) {
  GrammarBuilder builder;
  const Row first = builder.append(one), second = builder.append(other);
  const uint32_t root = builder.add_rule("root");
  builder.set_rows(root, {first, second});
  return builder.build(root);
}

}  // namespace trireme::data
