// Formats values as Python's % does.
#include "data/template/printf_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/error.h"
#include "base/utf8.h"

namespace trireme::data::jinja {
namespace {

constexpr int64_t kMostWidth = 100000, kMostPrecision = 500;

class Printer {
 public:
  Printer(std::string_view format, const Value::List& values, const Dict* names, Budget& budget)
      : format_(format), values_(values), names_(names), budget_(budget) {}

  std::string run() {
    std::string out;
    while (at_ < format_.size()) {
      const size_t end = std::min(format_.find('%', at_), format_.size());
      out += format_.substr(at_, end - at_);
      at_ = end + 1;
      if (end < format_.size()) out += conversion();
    }
    base::require(used_ == values_.size() || names_ != nullptr, "'%': more values than the text has places");
    budget_.take(out.size());
    return out;
  }

 private:
  struct Rules {
    bool is_left = false, has_zeros = false;
    char sign = '\0';  // '+' or ' '
    int64_t width = 0, precision = -1;
  };

  char peek() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  int64_t number(int64_t most) {
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min(value * 10 + (peek() - '0'), most + 1);
    base::require(value <= most, "'%': a width above ", most);
    return value;
  }

  std::string conversion() {
    const Value* named = name();
    Rules rules;
    for (;; ++at_) {
      const char c = peek();
      if (c == '-')
        rules.is_left = true;
      else if (c == '0')
        rules.has_zeros = true;
      else if (c == '+' || (c == ' ' && rules.sign == '\0'))
        rules.sign = c;
      else if (c != ' ')
        break;
    }
    rules.width = number(kMostWidth);
    if (peek() == '.') {
      ++at_;
      rules.precision = number(kMostPrecision);
    }
    const char kind = peek();
    ++at_;
    if (kind == '%') return "%";
    if (kind == '*' || kind == '#') base::fail_unsupported("'%", std::string(1, kind), "' in a format");
    if (named == nullptr) {
      base::require(used_ < values_.size(), "'%': fewer values than the text has places");
      named = &values_[used_++];
    }
    budget_.step();
    budget_.take(static_cast<uint64_t>(rules.width));
    return padded(converted(*named, kind, rules), rules,
                  std::string_view("sr").find(kind) != std::string::npos);
  }

  /// The value that %(name) asks for; null without a name.
  const Value* name() {
    if (peek() != '(') return nullptr;
    const size_t end = format_.find(')', at_);
    base::require(end != std::string_view::npos, "'%(' has no end");
    base::require(names_ != nullptr, "'%(' needs a dictionary");
    const std::string_view key = format_.substr(at_ + 1, end - at_ - 1);
    const Value* found = names_->find(key);
    base::require(found != nullptr, "'%(", key, ")' is not in the dictionary");
    at_ = end + 1;
    return found;
  }

  std::string converted(const Value& value, char kind, const Rules& rules) {
    switch (kind) {
      case 's':
      case 'r': return shown(value, kind, rules);
      case 'c':
        if (value.is_text()) {
          base::require(length_of(value) == 1, "'%c' of a text that is not one character");
          return *value.text();
        } else {
          std::string text;
          base::append_utf8(text,
                            static_cast<char32_t>(std::clamp<int64_t>(value.as_integer(), 0, 0x110000)));
          return text;
        }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o': return integer(value, kind, rules);
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G': return real(value.as_number(), kind, rules);
      default: base::fail_invalid("'%", std::string(1, kind), "' is no format");
    }
  }

  std::string shown(const Value& value, char kind, const Rules& rules) {
    std::string text;
    if (kind == 's')
      text = value.to_text(budget_);
    else
      append_repr(text, value, budget_);
    if (rules.precision < 0) return text;
    size_t end = 0;
    for (int64_t i = 0; i < rules.precision && end < text.size(); ++i) base::next_code_point(text, end);
    return text.substr(0, end);
  }

  static std::string integer(const Value& value, char kind, const Rules& rules) {
    base::require(
        value.is_number() && (!value.is_float() || std::string_view("diu").find(kind) != std::string::npos),
        "'%", std::string(1, kind), "' of ", value.type_name());
    base::require(!value.is_float() || std::fabs(value.as_number()) < 9e18, "'%': a number out of range");
    const int64_t number = value.is_float() ? static_cast<int64_t>(value.as_number()) : value.as_integer();
    const uint64_t size =
        number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    char digits[32];
    const char* const format = kind == 'x' ? "%llx" : kind == 'X' ? "%llX" : kind == 'o' ? "%llo" : "%llu";
    std::snprintf(digits, sizeof digits, format, static_cast<unsigned long long>(size));
    std::string text = digits;
    if (static_cast<int64_t>(text.size()) < rules.precision)
      text.insert(0, static_cast<size_t>(rules.precision) - text.size(), '0');
    return sign_of(number < 0, rules) + text;
  }

  static std::string real(double number, char kind, const Rules& rules) {
    char text[1024];
    const char format[] = {'%', '.', '*', kind, '\0'};
    std::snprintf(text, sizeof text, format, static_cast<int>(rules.precision < 0 ? 6 : rules.precision),
                  std::fabs(number));
    return sign_of(std::signbit(number) && !std::isnan(number), rules) + text;
  }

  static std::string sign_of(bool is_negative, const Rules& rules) {
    return is_negative ? "-" : rules.sign == '\0' ? "" : std::string(1, rules.sign);
  }

  static std::string padded(std::string text, const Rules& rules, bool is_text) {
    const int64_t missing = rules.width - length_of(Value(text));
    if (missing <= 0) return text;
    const auto count = static_cast<size_t>(missing);
    if (rules.is_left) return text + std::string(count, ' ');
    if (!rules.has_zeros || is_text) return std::string(count, ' ') + text;
    const bool has_sign = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ');
    return text.insert(has_sign ? 1 : 0, count, '0');
  }

  std::string_view format_;
  const Value::List& values_;
  const Dict* names_;
  Budget& budget_;
  size_t at_ = 0, used_ = 0;
};

}  // namespace

std::string printf_text(std::string_view format, const Value::List& values, const Dict* names,
                        Budget& budget) {
  return Printer(format, values, names, budget).run();
}

}  // namespace trireme::data::jinja
