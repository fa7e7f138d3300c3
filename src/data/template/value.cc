// Values of templates: truth, comparison, and their texts in Python's notation.
#include "data/template/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"
#include "data/template/text_methods.h"

namespace trireme::data::jinja {
namespace {

constexpr int kDeepestValue = 100;

[[noreturn]] void wrong_type(const char* wanted, const Value& value) {
  base::fail_invalid("template: ", wanted, " expected, not ", value.type_name());
}

void append_escape(std::string& out, char32_t code, const char* digits) {
  char text[16];
  std::snprintf(text, sizeof(text), digits, static_cast<unsigned>(code));
  out += text;
}

void append_quoted(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out.push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const char32_t code = base::next_code_point(text, at);
    if (code == static_cast<char32_t>(quote) || code == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(code));
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0xAD) {
      append_escape(out, code, "\\x%02x");
    } else {
      base::append_utf8(out, code);
    }
  }
  out.push_back(quote);
}

void append_json_text(std::string& out, std::string_view text, bool ensure_ascii) {
  out.push_back('"');
  for (size_t at = 0; at < text.size();) {
    const char32_t code = base::next_code_point(text, at);
    switch (code) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (code < 0x20 || (ensure_ascii && code > 0x7E && code < 0x10000)) {
          append_escape(out, code, "\\u%04x");
        } else if (ensure_ascii && code >= 0x10000) {
          append_escape(out, 0xD800 + ((code - 0x10000) >> 10), "\\u%04x");
          append_escape(out, 0xDC00 + ((code - 0x10000) & 0x3FF), "\\u%04x");
        } else {
          base::append_utf8(out, code);
        }
    }
  }
  out.push_back('"');
}

struct Layout {
  const JsonStyle& style;
  int depth;  ///< of the brackets
};

/// Writes items between brackets, one per line if the style indents.
template <class Items, class Write>
void append_items(std::string& out, const char* brackets, const Items& items, Layout layout, Write write) {
  const auto& [style, depth] = layout;
  out.push_back(brackets[0]);
  const auto new_line = [&, indent = style.indent](int level) {
    if (indent >= 0) out.append("\n").append(static_cast<size_t>(indent * level), ' ');
  };
  bool is_first = true;
  for (const auto& item : items) {
    if (!is_first) out += style.item_separator;
    is_first = false;
    new_line(depth + 1);
    write(item);
  }
  if (!is_first) new_line(depth);
  out.push_back(brackets[1]);
}

}  // namespace

void Budget::step(uint64_t count) {
  if (count > steps_) base::fail(base::ErrorCode::exhausted, "template: it takes too many steps");
  steps_ -= count;
}

void Budget::take(uint64_t bytes) {
  if (bytes > bytes_) base::fail(base::ErrorCode::exhausted, "template: its texts are too long");
  bytes_ -= bytes;
}

Value::Value(List list) {
  for (const Value& item : list) depth_ = std::max(depth_, item.depth_ + 1);
  base::require(depth_ <= kDeepestValue, "template: lists of more than ", kDeepestValue, " levels");
  data_ = std::make_shared<const List>(std::move(list));
}

Value::Value(Dict dict) {
  for (const auto& [key, value] : dict.members()) depth_ = std::max(depth_, value.depth_ + 1);
  base::require(depth_ <= kDeepestValue, "template: dictionaries of more than ", kDeepestValue, " levels");
  data_ = std::make_shared<const Dict>(std::move(dict));
}

Value::Value(Callable callable) : data_(std::make_shared<const Callable>(std::move(callable))) {}

Value::Value(const base::Json& json) : Value() {
  if (json.is_bool()) {
    *this = json.as_bool();
  } else if (const auto* large = std::get_if<uint64_t>(&json.value())) {
    data_ = *large;
  } else if (json.is_integer()) {
    *this = json.as_int();
  } else if (json.is_number()) {
    *this = json.as_double();
  } else if (json.is_string()) {
    *this = json.as_string();
  } else if (json.is_array()) {
    List list;
    list.reserve(json.size());
    for (const base::Json& item : json.as_array()) list.push_back(Value(item));
    *this = std::move(list);
  } else if (json.is_object()) {
    Dict dict;
    for (const auto& [key, value] : json.as_object()) dict.set(key, Value(value));
    *this = std::move(dict);
  }
}

void Dict::set(std::string key, Value value) {
  const auto [place, is_new] = places_.emplace(key, members_.size());
  if (is_new)
    members_.emplace_back(std::move(key), std::move(value));
  else
    members_[place->second].second = std::move(value);
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "undefined";
  if (is_none()) return "None";
  if (is_bool()) return "a boolean";
  if (is_integer()) return "an integer";
  if (is_float()) return "a float";
  if (is_text()) return "a string";
  if (is_list()) return "a list";
  if (is_dict()) return "a mapping";
  return callable() != nullptr ? "a function" : "an object";
}

bool Value::truth() const {
  if (const auto* b = std::get_if<bool>(&data_)) return *b;
  if (const auto* i = std::get_if<int64_t>(&data_)) return *i != 0;
  if (const auto* d = std::get_if<double>(&data_)) return *d != 0;
  if (std::holds_alternative<uint64_t>(data_)) return true;
  if (text() != nullptr) return !text()->empty();
  if (list() != nullptr) return !list()->empty();
  if (dict() != nullptr) return dict()->size() > 0;
  return !is_none() && !is_undefined();
}

int64_t Value::as_integer() const {
  if (const auto* b = std::get_if<bool>(&data_)) return *b ? 1 : 0;
  base::require(!std::holds_alternative<uint64_t>(data_), "template: a number out of range");
  const auto* i = std::get_if<int64_t>(&data_);
  if (i == nullptr) wrong_type("an integer", *this);
  return *i;
}

double Value::as_number() const {
  if (const auto* d = std::get_if<double>(&data_)) return *d;
  if (const auto* large = std::get_if<uint64_t>(&data_)) return static_cast<double>(*large);
  if (!is_number()) wrong_type("a number", *this);
  return static_cast<double>(as_integer());
}

const std::string& Value::as_text() const {
  if (!is_text()) wrong_type("a string", *this);
  return *text();
}

const Value::List& Value::as_list() const {
  if (!is_list()) wrong_type("a list", *this);
  return *list();
}

int64_t length_of(const Value& value) {
  if (value.is_list()) return static_cast<int64_t>(value.list()->size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict()->size());
  if (value.is_undefined()) return 0;
  const std::string& s = value.as_text();
  return std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

std::string integer_text(const Value& value) {
  const auto* large = std::get_if<uint64_t>(&value.data_);
  return large != nullptr ? std::to_string(*large) : std::to_string(value.as_integer());
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[64];
  const double size = std::fabs(value);
  const bool is_plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto format = is_plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(digits, digits + sizeof(digits), value, format).ptr;
  std::string text(digits, end);
  if (is_plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> out;
  for (size_t at = 0, next = 0; at < text.size(); at = next) {
    base::next_code_point(text, next);
    out.push_back(text.substr(at, next - at));
  }
  return out;
}

std::string Value::to_text(Budget& budget) const {
  if (is_text()) return *text();
  if (is_undefined()) return {};
  std::string out;
  append_repr(out, *this, budget);
  return out;
}

void append_repr(std::string& out, const Value& value, Budget& budget) {
  const JsonStyle style;
  budget.step();
  if (value.is_text()) {
    budget.take(value.text()->size());
    return append_quoted(out, *value.text());
  }
  if (value.is_none()) {
    out += "None";
  } else if (value.is_undefined()) {
    out += "Undefined";
  } else if (value.is_bool()) {
    out += value.truth() ? "True" : "False";
  } else if (value.is_integer()) {
    out += integer_text(value);
  } else if (value.is_float()) {
    out += float_text(value.as_number());
  } else if (value.is_list()) {
    append_items(out, "[]", *value.list(), {style, 0},
                 [&](const Value& item) { append_repr(out, item, budget); });
  } else if (value.is_dict()) {
    append_items(out, "{}", value.dict()->members(), {style, 0}, [&](const auto& member) {
      append_quoted(out, member.first);
      out += ": ";
      append_repr(out, member.second, budget);
    });
  } else {
    base::fail_invalid("template: ", value.type_name(), " has no text");
  }
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  const auto same = [&](const Value& x, const Value& y) { return equal(x, y, budget); };
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.as_number() == b.as_number();
    return integer_text(a) == integer_text(b);
  }
  if (a.is_text() && b.is_text()) {
    budget.read(std::min(a.text()->size(), b.text()->size()));
    return *a.text() == *b.text();
  }
  if (a.is_list() && b.is_list()) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), same);
  }
  if (a.is_dict() && b.is_dict()) {
    const auto& members = a.dict()->members();
    return a.dict()->size() == b.dict()->size() &&
           std::all_of(members.begin(), members.end(), [&](const auto& member) {
             const Value* other = b.dict()->find(member.first);
             return other != nullptr && same(member.second, *other);
           });
  }
  if (a.is_none() || b.is_none()) return a.is_none() && b.is_none();
  if (a.is_undefined() || b.is_undefined()) return a.is_undefined() && b.is_undefined();
  if (a.space() != nullptr) return a.space() == b.space();
  return false;
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_number() && b.is_number()) return a.as_number() < b.as_number();
  if (a.is_text() && b.is_text()) {
    budget.read(std::min(a.text()->size(), b.text()->size()));
    return *a.text() < *b.text();
  }
  if (a.is_list() && b.is_list())
    return std::lexicographical_compare(a.list()->begin(), a.list()->end(), b.list()->begin(),
                                        b.list()->end(),
                                        [&](const Value& x, const Value& y) { return less(x, y, budget); });
  base::fail_invalid("template: ", a.type_name(), " and ", b.type_name(), " have no order");
}

bool contains(const Value& whole, const Value& item, Budget& budget) {
  if (whole.is_text()) budget.read(whole.text()->size());
  if (item.is_text()) budget.read(item.text()->size());
  if (whole.is_text()) return find_part(*whole.text(), item.as_text()) != std::string::npos;
  if (whole.is_list())
    return std::any_of(whole.list()->begin(), whole.list()->end(),
                       [&](const Value& v) { return equal(v, item, budget); });
  if (whole.is_dict()) return item.is_text() && whole.dict()->find(*item.text()) != nullptr;
  if (whole.is_undefined()) return false;
  base::fail_invalid("template: `in` ", whole.type_name());
}

void append_json(std::string& out, const Value& value, const JsonStyle& style, Budget& budget, int depth) {
  budget.step();
  base::require(depth <= kDeepestValue, "template: tojson of more than ", kDeepestValue, " levels");
  if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.truth() ? "true" : "false";
  } else if (value.is_integer()) {
    out += integer_text(value);
  } else if (value.is_float()) {
    const double number = value.as_number();
    out += std::isnan(number)   ? "NaN"
           : std::isinf(number) ? (number < 0 ? "-Infinity" : "Infinity")
                                : float_text(number);
  } else if (value.is_text()) {
    budget.take(value.text()->size());
    append_json_text(out, *value.text(), style.ensure_ascii);
  } else if (value.is_list()) {
    append_items(out, "[]", *value.list(), {style, depth},
                 [&](const Value& item) { append_json(out, item, style, budget, depth + 1); });
  } else if (value.is_dict()) {
    auto members = value.dict()->members();
    budget.step(members.size());
    if (style.sort_keys)
      std::sort(members.begin(), members.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
    append_items(out, "{}", members, {style, depth}, [&](const auto& member) {
      append_json_text(out, member.first, style.ensure_ascii);
      out += style.key_separator;
      append_json(out, member.second, style, budget, depth + 1);
    });
  } else {
    base::fail_invalid("template: tojson of ", value.type_name());
  }
}

}  // namespace trireme::data::jinja
