// Filters of templates, as Jinja and Transformers define them.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "data/template/calls.h"
#include "data/template/printf_text.h"
#include "data/template/text_methods.h"

namespace trireme::data::jinja {
namespace {

struct Filter {
  Value (*run)(Budget&, const Value& in, const CallArguments&);
  std::string_view names = {};  ///< of its arguments, see check_arguments()
};

const Value& argument(const CallArguments& a, size_t place, std::string_view name) {
  const Value* found = a.find(place, name);
  if (found == nullptr) base::fail_invalid("template: a filter lacks '", name, "'");
  return *found;
}

bool flag(const CallArguments& a, size_t place, std::string_view name, bool otherwise = false) {
  const Value* found = a.find(place, name);
  return found == nullptr ? otherwise : found->truth();
}

/// A member given by a path: "function.name", or the number of an item.
Value member(const Value& of, const Value& path, Budget& budget) {
  if (path.is_integer()) return item_of(of, path);
  budget.read(path.as_text().size());
  Value value = of;
  static const std::string kDot = ".";
  for (const Value& part : split_text(path.as_text(), {.separator = &kDot}, budget)) {
    const std::string& name = part.as_text();
    const bool is_number =
        !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = is_number && name.size() < 10 ? item_of(value, Value(std::stoi(name))) : item_of(value, part);
  }
  return value;
}

/// What texts are compared by: without case, unless it counts.
Value compared(const Value& value, bool keeps_case) {
  return value.is_text() && !keeps_case ? Value(lower_text(*value.text())) : value;
}

/// The positional arguments from `first` on, and the named ones.
CallArguments rest_of(const CallArguments& a, size_t first) {
  CallArguments rest;
  rest.named = a.named;
  for (size_t i = first; i < a.positional.size(); ++i) rest.positional.push_back(a.positional[i]);
  return rest;
}

template <bool by_member, bool keeps>
Value select(Budget& budget, const Value& in, const CallArguments& a) {
  const size_t first = by_member ? 1 : 0;
  const Value* test = a.find(first, "");
  const CallArguments rest = rest_of(a, first + 1);
  Value::List out;
  for (const Value& item : elements_of(in, budget)) {
    const Value subject = by_member ? member(item, argument(a, 0, "attribute"), budget) : item;
    const bool holds = test == nullptr ? subject.truth() : apply_test(budget, test->as_text(), subject, rest);
    if (holds == keeps) out.push_back(item);
  }
  return out;
}

Value map(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* path = a.positional.empty() ? a.find(0, "attribute") : nullptr;
  const Value* otherwise = path == nullptr ? nullptr : a.find(1, "default");
  Value::List out;
  for (const Value& item : elements_of(in, budget)) {
    if (path != nullptr) {
      const Value value = member(item, *path, budget);
      out.push_back(value.is_undefined() && otherwise != nullptr ? *otherwise : value);
    } else {
      out.push_back(apply_filter(budget, argument(a, 0, "filter").as_text(), item, rest_of(a, 1)));
    }
  }
  return out;
}

Value join_elements(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* mark = a.find(0, "d");
  const Value* path = a.find(1, "attribute");
  const std::string between = mark == nullptr ? "" : mark->to_text(budget);
  std::string out;
  bool is_first = true;
  for (const Value& item : elements_of(in, budget)) {
    const std::string text = (path == nullptr ? item : member(item, *path, budget)).to_text(budget);
    budget.take(text.size() + between.size());
    if (!is_first) out += between;
    is_first = false;
    out += text;
  }
  return out;
}

Value default_value(Budget&, const Value& in, const CallArguments& a) {
  const Value* otherwise = a.find(0, "default_value");
  const bool missing = in.is_undefined() || (flag(a, 1, "boolean") && !in.truth());
  return !missing ? in : otherwise == nullptr ? Value("") : *otherwise;
}

Value to_json(Budget& budget, const Value& in, const CallArguments& a) {
  JsonStyle style;
  if (const Value* indent = a.find(1, "indent"); indent != nullptr && !indent->is_none()) {
    const int64_t width = indent->as_integer();
    base::require(width >= 0 && width <= 64, "template: tojson with an indent of ", width);
    style.indent = static_cast<int>(width);
    style.item_separator = ",";
  }
  style.ensure_ascii = flag(a, 0, "ensure_ascii");
  style.sort_keys = flag(a, 3, "sort_keys");
  if (const Value* marks = a.find(2, "separators"); marks != nullptr && !marks->is_none()) {
    const Value::List& two = marks->as_list();
    base::require(two.size() == 2, "template: tojson with ", two.size(), " separators");
    style.item_separator = two[0].as_text();
    style.key_separator = two[1].as_text();
  }
  std::string out;
  append_json(out, in, style, budget);
  budget.take(out.size());
  return out;
}

Value indent(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* width = a.find(0, "width");
  const bool is_text = width != nullptr && width->is_text();
  const int64_t count = width == nullptr || is_text ? 4 : width->as_integer();
  base::require(count >= 0 && count <= 1024, "template: an indent of ", count);
  const std::string space = is_text ? width->as_text() : std::string(static_cast<size_t>(count), ' ');
  const bool indents_first = flag(a, 1, "first"), indents_blank = flag(a, 2, "blank");
  const std::string text = in.to_text(budget) + "\n";
  std::string out;
  bool is_first = true;
  for (const Value& line : text_lines(text, false, budget)) {
    const std::string& words = line.as_text();
    if (!is_first) out += "\n";
    budget.take(space.size() + words.size() + 1);
    if ((is_first && indents_first) || (!is_first && (!words.empty() || indents_blank))) out += space;
    is_first = false;
    out += words;
  }
  return out;
}

Value sort(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* path = a.find(2, "attribute");
  const bool keeps_case = flag(a, 1, "case_sensitive");
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : elements_of(in, budget)) {
    const Value key = path == nullptr ? item : member(item, *path, budget);
    keyed.emplace_back(compared(key, keeps_case), item);
  }
  const bool reversed = flag(a, 0, "reverse");
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& x, const auto& y) {
    return reversed ? less(y.first, x.first, budget) : less(x.first, y.first, budget);
  });
  Value::List out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value dict_sort(Budget& budget, const Value& in, const CallArguments& a) {
  if (!in.is_dict()) base::fail_invalid("template: dictsort of ", in.type_name());
  const Value* by = a.find(1, "by");
  const size_t place = by != nullptr && by->as_text() == "value" ? 1 : 0;
  Value::List pairs = call_method(budget, "items", in, {}).as_list();
  const bool keeps_case = flag(a, 0, "case_sensitive"), reversed = flag(a, 2, "reverse");
  const auto key = [&](const Value& pair) { return compared((*pair.list())[place], keeps_case); };
  std::stable_sort(pairs.begin(), pairs.end(), [&](const Value& x, const Value& y) {
    return reversed ? less(key(y), key(x), budget) : less(key(x), key(y), budget);
  });
  return pairs;
}

Value unique(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* path = a.find(1, "attribute");
  Value::List out, seen;
  for (const Value& item : elements_of(in, budget)) {
    const Value key =
        compared(path == nullptr ? item : member(item, *path, budget), flag(a, 0, "case_sensitive"));
    if (contains(seen, key, budget)) continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return out;
}

/// A number of another base, which may begin as 0x, 0o or 0b of that base does.
std::optional<int64_t> integer_of(std::string_view text, int64_t base) {
  if (base != 2 && base != 8 && base != 16) base::fail_unsupported("template: int of base ", base);
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  const char mark = base == 16 ? 'x' : base == 8 ? 'o' : 'b';
  if (text.size() > 2 && text[0] == '0' && (text[1] | 32) == mark) text.remove_prefix(2);
  int64_t value = 0;
  const auto [at, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, static_cast<int>(base));
  const bool is_whole = error == std::errc() && at == text.data() + text.size() && !text.starts_with('-');
  return is_whole ? std::optional(is_negative ? -value : value) : std::nullopt;
}

Value to_integer(Budget& budget, const Value& in, const CallArguments& a) {
  if (in.is_float()) return static_cast<int64_t>(std::clamp(in.as_number(), -9e18, 9e18));
  if (in.is_number()) return in.as_integer();
  const Value* otherwise = a.find(0, "default");
  const std::string text(stripped(in.to_text(budget), nullptr, true, true));
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const Value* base = a.find(1, "base");
  if (in.is_text() && base != nullptr && base->as_integer() != 10) {
    const std::optional<int64_t> number = integer_of(text, base->as_integer());
    return number ? Value(*number) : otherwise == nullptr ? Value(0) : *otherwise;
  }
  const size_t sign = text.starts_with('+') ? 1 : 0;
  if (const auto [at, error] = std::from_chars(text.data() + sign, end, value);
      error == std::errc() && at == end && !text.empty())
    return value;
  char* stop = nullptr;
  const double number = std::strtod(text.c_str(), &stop);
  if (!text.empty() && *stop == '\0' && std::fabs(number) < 9e18) return static_cast<int64_t>(number);
  return otherwise == nullptr ? Value(0) : *otherwise;
}

Value to_float(Budget& budget, const Value& in, const CallArguments& a) {
  if (in.is_number()) return in.as_number();
  const Value* otherwise = a.find(0, "default");
  const std::string text(stripped(in.to_text(budget), nullptr, true, true));
  char* stop = nullptr;
  const double number = std::strtod(text.c_str(), &stop);
  return !text.empty() && *stop == '\0' ? Value(number) : otherwise == nullptr ? Value(0.0) : *otherwise;
}

Value round(Budget&, const Value& in, const CallArguments& a) {
  const Value* digits = a.find(0, "precision");
  const Value* method = a.find(1, "method");
  const double scale = std::pow(10.0, digits == nullptr ? 0.0 : digits->as_number());
  const double scaled = in.as_number() * scale;
  const std::string how = method == nullptr ? "common" : method->as_text();
  return (how == "ceil"    ? std::ceil(scaled)
          : how == "floor" ? std::floor(scaled)
                           : std::nearbyint(scaled)) /
         scale;
}

template <bool largest>
Value extreme(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* path = a.find(1, "attribute");
  const auto key = [&](const Value& v) {
    return compared(path == nullptr ? v : member(v, *path, budget), flag(a, 0, "case_sensitive"));
  };
  Value::List items = elements_of(in, budget);
  if (items.empty()) return Undefined{"the extreme of nothing"};
  Value best = items[0];
  for (const Value& item : items) {
    if (largest ? less(key(best), key(item), budget) : less(key(item), key(best), budget)) best = item;
  }
  return best;
}

Value sum(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* path = a.find(0, "attribute");
  const Value* start = a.find(1, "start");
  double total = start == nullptr ? 0 : start->as_number();
  bool is_float = start != nullptr && start->is_float();
  for (const Value& item : elements_of(in, budget)) {
    const Value number = path == nullptr ? item : member(item, *path, budget);
    is_float = is_float || number.is_float();
    total += number.as_number();
  }
  return is_float ? Value(total) : Value(static_cast<int64_t>(total));
}

Value escape(Budget& budget, const Value& in, const CallArguments&) {
  std::string out;
  for (const char c : in.to_text(budget)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&#34;";
    else if (c == '\'')
      out += "&#39;";
    else
      out.push_back(c);
  }
  return out;
}

Value last(Budget& budget, const Value& in, const CallArguments&) {
  const Value::List items = elements_of(in, budget);
  return items.empty() ? Value(Undefined{"the last of nothing"}) : items.back();
}

Value first(Budget& budget, const Value& in, const CallArguments&) {
  const Value::List items = elements_of(in, budget);
  return items.empty() ? Value(Undefined{"the first of nothing"}) : items.front();
}

Value reverse(Budget& budget, const Value& in, const CallArguments&) {
  Value::List items = elements_of(in, budget);
  std::reverse(items.begin(), items.end());
  if (!in.is_text()) return items;
  std::string text;
  for (const Value& item : items) text += *item.text();
  return text;
}

Value format(Budget& budget, const Value& in, const CallArguments& a) {
  base::require(a.positional.empty() || a.named.empty(), "template: format with values of both kinds");
  Dict names;
  for (const auto& [name, value] : a.named) names.set(name, value);
  return printf_text(in.to_text(budget), a.positional, a.named.empty() ? nullptr : &names, budget);
}

/// Lists of `count` items each; the last one is filled up if there is something to fill it with.
Value batch(Budget& budget, const Value& in, const CallArguments& a) {
  const int64_t count = argument(a, 0, "linecount").as_integer();
  base::require(count > 0, "template: batches of ", count);
  const Value* fill = a.find(1, "fill_with");
  Value::List out, part;
  for (const Value& item : elements_of(in, budget)) {
    if (static_cast<int64_t>(part.size()) == count) out.push_back(std::exchange(part, {}));
    part.push_back(item);
  }
  if (part.empty()) return out;
  while (fill != nullptr && !fill->is_none() && static_cast<int64_t>(part.size()) < count) {
    budget.take(sizeof(Value));
    part.push_back(*fill);
  }
  out.push_back(std::move(part));
  return out;
}

/// So many lists, whose lengths differ by one at most.
Value slices(Budget& budget, const Value& in, const CallArguments& a) {
  const int64_t count = argument(a, 0, "slices").as_integer();
  base::require(count > 0, "template: ", count, " slices");
  constexpr int64_t kMostCounted = int64_t{1} << 40;  // more than any budget, and no product overflows
  budget.take(static_cast<uint64_t>(std::min(count, kMostCounted)) * sizeof(Value) * 2);
  const Value* fill = a.find(1, "fill_with");
  const Value::List items = elements_of(in, budget);
  const auto size = static_cast<int64_t>(items.size()), each = size / count, longer = size % count;
  Value::List out;
  for (int64_t i = 0, at = 0; i < count; ++i) {
    const int64_t end = at + each + (i < longer ? 1 : 0);
    Value::List part(items.begin() + at, items.begin() + end);
    if (fill != nullptr && !fill->is_none() && i >= longer) part.push_back(*fill);
    out.push_back(std::move(part));
    at = end;
  }
  return out;
}

/// Pairs of a member's value and the items that have it.
Value group_by(Budget& budget, const Value& in, const CallArguments& a) {
  const Value& path = argument(a, 0, "attribute");
  const Value* otherwise = a.find(1, "default");
  const bool keeps_case = flag(a, 2, "case_sensitive");
  struct Keyed {
    Value key, shown, item;
  };
  std::vector<Keyed> keyed;
  for (const Value& item : elements_of(in, budget)) {
    Value found = member(item, path, budget);
    if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
    keyed.push_back({compared(found, keeps_case), found, item});
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [&](const Keyed& x, const Keyed& y) { return less(x.key, y.key, budget); });
  Value::List out;
  for (size_t i = 0; i < keyed.size();) {
    const size_t first = i;
    Value::List items;
    for (; i < keyed.size() && equal(keyed[i].key, keyed[first].key, budget); ++i)
      items.push_back(keyed[i].item);
    out.push_back(Value::List{keyed[first].shown, std::move(items)});
  }
  return out;
}

Value truncate(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* const length = a.find(0, "length");
  const Value* const ending = a.find(2, "end");
  const Value* const leeway = a.find(3, "leeway");
  const int64_t most = length == nullptr ? 255 : length->as_integer();
  const std::string end = ending == nullptr ? "..." : ending->as_text();
  const int64_t over = leeway == nullptr || leeway->is_none() ? 5 : leeway->as_integer();
  base::require(most >= length_of(end) && over >= 0, "template: truncate to ", most, " characters");
  const std::string text = in.to_text(budget);
  if (length_of(text) <= most + std::min(over, INT64_MAX - most)) return text;
  const std::string kept(range_of(text, 0, most - length_of(end)).text);
  const size_t space = flag(a, 1, "killwords") ? std::string::npos : kept.rfind(' ');
  return kept.substr(0, space) + end;
}

/// A filter that transforms a text and takes no arguments.
template <std::string (*change)(std::string_view)>
Value text_filter(Budget& budget, const Value& in, const CallArguments&) {
  return change(in.to_text(budget));
}

std::string capitalized(std::string_view text) { return capital_text(text, false); }

Value center(Budget& budget, const Value& in, const CallArguments& a) {
  const Value* width = a.find(0, "width");
  const int64_t columns = width == nullptr ? 80 : width->as_integer();
  return padded_text(in.to_text(budget), columns, " ", Side::both, budget);
}

Value attribute(Budget& budget, const Value& in, const CallArguments& a) {
  const std::string& name = argument(a, 0, "name").as_text();
  budget.read(name.size());
  return attribute_of(in, name);
}

const std::unordered_map<std::string_view, Filter>& filters() {
  static const std::unordered_map<std::string_view, Filter> kFilters = {
      {"select", {select<false, true>, "*"}},
      {"reject", {select<false, false>, "*"}},
      {"selectattr", {select<true, true>, "*"}},
      {"rejectattr", {select<true, false>, "*"}},
      {"map", {map, "*"}},
      {"join", {join_elements, "d attribute"}},
      {"default", {default_value, "default_value boolean"}},
      {"d", {default_value, "default_value boolean"}},
      {"tojson", {to_json, "ensure_ascii indent separators sort_keys"}},
      {"indent", {indent, "width first blank"}},
      {"sort", {sort, "reverse case_sensitive attribute"}},
      {"dictsort", {dict_sort, "case_sensitive by reverse"}},
      {"unique", {unique, "case_sensitive attribute"}},
      {"int", {to_integer, "default base"}},
      {"float", {to_float, "default"}},
      {"round", {round, "precision method"}},
      {"min", {extreme<false>, "case_sensitive attribute"}},
      {"max", {extreme<true>, "case_sensitive attribute"}},
      {"sum", {sum, "attribute start"}},
      {"format", {format, "*"}},
      {"batch", {batch, "linecount fill_with"}},
      {"slice", {slices, "slices fill_with"}},
      {"groupby", {group_by, "attribute default case_sensitive"}},
      {"truncate", {truncate, "length killwords end leeway"}},
      {"center", {center, "width"}},
      {"forceescape", {escape}},
      {"escape", {escape}},
      {"e", {escape}},
      {"first", {first}},
      {"last", {last}},
      {"reverse", {reverse}},
      {"upper", {text_filter<upper_text>}},
      {"lower", {text_filter<lower_text>}},
      {"capitalize", {text_filter<capitalized>}},
      {"title", {text_filter<title_text>}},
      {"length", {[](Budget&, const Value& in, const CallArguments&) -> Value { return length_of(in); }}},
      {"count", {[](Budget&, const Value& in, const CallArguments&) -> Value { return length_of(in); }}},
      {"list",
       {[](Budget& b, const Value& in, const CallArguments&) -> Value { return elements_of(in, b); }}},
      {"string", {[](Budget& b, const Value& in, const CallArguments&) -> Value { return in.to_text(b); }}},
      {"safe", {[](Budget&, const Value& in, const CallArguments&) -> Value { return in; }}},
      {"items", {[](Budget& b, const Value& in, const CallArguments&) -> Value {
         return in.is_undefined() ? Value(Value::List()) : call_method(b, "items", in, {});
       }}},
      {"abs", {[](Budget&, const Value& in, const CallArguments&) -> Value {
         if (in.is_float()) return std::fabs(in.as_number());
         base::require(in.as_integer() > INT64_MIN, "template: a number out of range");
         return in.as_integer() < 0 ? -in.as_integer() : in.as_integer();
       }}},
      {"attr", {attribute, "name"}},
      {"trim",
       {[](Budget& b, const Value& in, const CallArguments& a) -> Value {
          const Value* chars = a.find(0, "chars");
          const std::string text = in.to_text(b);
          return stripped(text, chars == nullptr || chars->is_none() ? nullptr : &chars->as_text(), true,
                          true);
        },
        "chars"}},
      {"replace",
       {[](Budget& b, const Value& in, const CallArguments& a) -> Value {
          const Value* count = a.find(2, "count");
          return replaced_text(in.to_text(b), argument(a, 0, "old").as_text(),
                               argument(a, 1, "new").as_text(),
                               count == nullptr || count->is_none() ? -1 : count->as_integer(), b);
        },
        "old new count"}},
      {"wordcount", {[](Budget& b, const Value& in, const CallArguments&) -> Value {
         return split_text(in.to_text(b), {}, b).size();
       }}},
  };
  return kFilters;
}

}  // namespace

Value apply_filter(Budget& budget, std::string_view name, const Value& in, const CallArguments& arguments) {
  const auto found = filters().find(name);
  if (found == filters().end()) base::fail_unsupported("template: the filter '", name, "'");
  budget.step();
  if (in.is_text()) budget.take(in.text()->size());
  check_arguments(name, found->second.names, arguments);
  return found->second.run(budget, in, arguments);
}

}  // namespace trireme::data::jinja
