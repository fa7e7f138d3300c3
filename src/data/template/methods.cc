// Members and methods of values, as Jinja finds them: a method first by `.`, a member first by `[]`.
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"
#include "data/template/calls.h"
#include "data/template/character_kinds.h"
#include "data/template/text_methods.h"

namespace trireme::data::jinja {
namespace {

struct Method {
  Value (*run)(Budget&, const Value& self, const CallArguments&);
  std::string_view names = {};  ///< of its arguments, see check_arguments()
};
using Methods = std::unordered_map<std::string_view, Method>;

const std::string* text_argument(const CallArguments& a, size_t place, std::string_view name) {
  const Value* value = a.find(place, name);
  return value == nullptr || value->is_none() ? nullptr : &value->as_text();
}

int64_t count_argument(const CallArguments& a, size_t place, std::string_view name) {
  const Value* value = a.find(place, name);
  return value == nullptr ? -1 : value->as_integer();
}

const Value& argument(const CallArguments& a, size_t place) {
  if (place >= a.positional.size()) base::fail_invalid("template: a method lacks argument ", place + 1);
  return a.positional[place];
}

template <bool left, bool right>
Value strip(Budget&, const Value& self, const CallArguments& a) {
  return stripped(self.as_text(), text_argument(a, 0, "chars"), left, right);
}

/// The text between the arguments `start` and `end`.
TextRange range_argument(const Value& self, const CallArguments& a) {
  const auto place = [&](size_t i, int64_t otherwise) {
    const Value* given = a.find(i, "");
    return given == nullptr || given->is_none() ? otherwise : given->as_integer();
  };
  return range_of(self.as_text(), place(1, 0), place(2, INT64_MAX));
}

/// startswith and endswith accept one text or several.
template <bool at_start>
Value borders(Budget& budget, const Value& self, const CallArguments& a) {
  const TextRange range = range_argument(self, a);
  const auto fits = [&](const Value& part) {
    budget.read(part.as_text().size());
    return range.is_there &&
           (at_start ? range.text.starts_with(part.as_text()) : range.text.ends_with(part.as_text()));
  };
  const Value& parts = argument(a, 0);
  return parts.is_list() ? std::any_of(parts.list()->begin(), parts.list()->end(), fits) : fits(parts);
}

template <bool from_right>
Value split(Budget& budget, const Value& self, const CallArguments& a) {
  return split_text(self.as_text(),
                    {.separator = text_argument(a, 0, "sep"),
                     .most = count_argument(a, 1, "maxsplit"),
                     .from_right = from_right},
                    budget);
}

template <bool from_right>
Value find(Budget&, const Value& self, const CallArguments& a) {
  return find_text_at(range_argument(self, a), argument(a, 0).as_text(), from_right);
}

template <bool from_right>
Value index(Budget& budget, const Value& self, const CallArguments& a) {
  const Value found = find<from_right>(budget, self, a);
  base::require(found.as_integer() >= 0, "template: index of what is not in the text");
  return found;
}

template <bool from_right>
Value partition(Budget& budget, const Value& self, const CallArguments& a) {
  Value::List parts = split_text(
      self.as_text(), {.separator = &argument(a, 0).as_text(), .most = 1, .from_right = from_right}, budget);
  if (parts.size() == 1)
    parts = from_right ? Value::List{"", "", parts[0]} : Value::List{parts[0], "", ""};
  else
    parts.insert(parts.begin() + 1, argument(a, 0));
  return parts;
}

Value join_texts(Budget& budget, const Value& self, const CallArguments& a) {
  std::string out;
  bool is_first = true;
  for (const Value& part : elements_of(argument(a, 0), budget)) {
    budget.take(part.as_text().size() + self.as_text().size());
    if (!is_first) out += self.as_text();
    is_first = false;
    out += part.as_text();
  }
  return out;
}

Value count(Budget&, const Value& self, const CallArguments& a) {
  return count_in(range_argument(self, a), argument(a, 0).as_text());
}

Value count_items(Budget& budget, const Value& self, const CallArguments& a) {
  return static_cast<int64_t>(std::count_if(self.list()->begin(), self.list()->end(), [&](const Value& v) {
    return equal(v, argument(a, 0), budget);
  }));
}

Value item_index(Budget& budget, const Value& self, const CallArguments& a) {
  const auto size = static_cast<int64_t>(self.list()->size());
  const auto place = [&](size_t i, int64_t otherwise) {
    const Value* given = a.find(i, "");
    const int64_t at = given == nullptr ? otherwise : given->as_integer();
    return std::clamp<int64_t>(at < 0 ? std::max<int64_t>(at + size, 0) : at, 0, size);
  };
  for (int64_t i = place(1, 0), end = place(2, size); i < end; ++i) {
    if (equal((*self.list())[static_cast<size_t>(i)], argument(a, 0), budget)) return i;
  }
  base::fail_invalid("template: index of what is not in the list");
}

template <class Test>
bool every_character(const std::string& text, Test test) {
  for (size_t at = 0; at < text.size();) {
    if (!test(base::next_code_point(text, at))) return false;
  }
  return !text.empty();
}

template <bool (*is_kind)(char32_t)>
Value is_all(Budget&, const Value& self, const CallArguments&) {
  return every_character(self.as_text(), is_kind);
}

template <std::string (*change)(std::string_view)>
Value changed(Budget&, const Value& self, const CallArguments&) {
  return change(self.as_text());
}

template <Side side>
Value padded(Budget& budget, const Value& self, const CallArguments& a) {
  const Value* fill = a.find(1, "");
  return padded_text(self.as_text(), argument(a, 0).as_integer(), fill == nullptr ? " " : fill->as_text(),
                     side, budget);
}

/// Zeros behind the sign.
Value zero_filled(Budget& budget, const Value& self, const CallArguments& a) {
  const std::string& text = self.as_text();
  const size_t sign = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  const int64_t width = std::max<int64_t>(argument(a, 0).as_integer(), 0) - static_cast<int64_t>(sign);
  return text.substr(0, sign) +
         padded_text(std::string_view(text).substr(sign), width, "0", Side::left, budget);
}

Value is_spaces(Budget&, const Value& self, const CallArguments&) {
  return !self.as_text().empty() && stripped(self.as_text(), nullptr, true, false).empty();
}

Value is_upper(Budget&, const Value& self, const CallArguments&) {
  const std::string& text = self.as_text();
  return upper_text(text) == text && lower_text(text) != text;
}

Value is_lower(Budget&, const Value& self, const CallArguments&) {
  const std::string& text = self.as_text();
  return lower_text(text) == text && upper_text(text) != text;
}

Value remove_prefix(Budget&, const Value& self, const CallArguments& a) {
  const std::string& text = self.as_text();
  const std::string& part = argument(a, 0).as_text();
  return text.starts_with(part) ? Value(text.substr(part.size())) : self;
}

Value remove_suffix(Budget&, const Value& self, const CallArguments& a) {
  const std::string& text = self.as_text();
  const std::string& part = argument(a, 0).as_text();
  return text.ends_with(part) ? Value(text.substr(0, text.size() - part.size())) : self;
}

const Methods& text_methods() {
  static const Methods kMethods = {
      {"strip", {strip<true, true>, "chars"}},
      {"lstrip", {strip<true, false>, "chars"}},
      {"rstrip", {strip<false, true>, "chars"}},
      {"startswith", {borders<true>, "- - -"}},
      {"endswith", {borders<false>, "- - -"}},
      {"split", {split<false>, "sep maxsplit"}},
      {"rsplit", {split<true>, "sep maxsplit"}},
      {"index", {index<false>, "- - -"}},
      {"rindex", {index<true>, "- - -"}},
      {"find", {find<false>, "- - -"}},
      {"rfind", {find<true>, "- - -"}},
      {"partition", {partition<false>, "-"}},
      {"rpartition", {partition<true>, "-"}},
      {"join", {join_texts, "-"}},
      {"count", {count, "- - -"}},
      {"isdigit", {is_all<is_digit>}},
      {"isdecimal", {is_all<is_decimal>}},
      {"isnumeric", {is_all<is_numeric>}},
      {"isalpha", {is_all<is_alpha>}},
      {"isalnum", {is_all<is_alnum>}},
      {"istitle",
       {[](Budget&, const Value& s, const CallArguments&) -> Value { return is_title(s.as_text()); }}},
      {"swapcase", {changed<swapped_case>}},
      {"casefold", {changed<folded_case>}},
      {"zfill", {zero_filled, "-"}},
      {"ljust", {padded<Side::right>, "- -"}},
      {"rjust", {padded<Side::left>, "- -"}},
      {"center", {padded<Side::both>, "- -"}},
      {"isspace", {is_spaces}},
      {"isupper", {is_upper}},
      {"islower", {is_lower}},
      {"removeprefix", {remove_prefix, "-"}},
      {"removesuffix", {remove_suffix, "-"}},
      {"upper", {changed<upper_text>}},
      {"lower", {changed<lower_text>}},
      {"title", {[](Budget&, const Value& s, const CallArguments&) -> Value {
         return capital_text(s.as_text(), true);
       }}},
      {"capitalize", {[](Budget&, const Value& s, const CallArguments&) -> Value {
         return capital_text(s.as_text(), false);
       }}},
      {"splitlines",
       {[](Budget& budget, const Value& s, const CallArguments& a) -> Value {
          const Value* keeps = a.find(0, "keepends");
          return text_lines(s.as_text(), keeps != nullptr && keeps->truth(), budget);
        },
        "keepends"}},
      {"replace",
       {[](Budget& budget, const Value& s, const CallArguments& a) -> Value {
          return replaced_text(s.as_text(), argument(a, 0).as_text(), argument(a, 1).as_text(),
                               count_argument(a, 2, "count"), budget);
        },
        "- - count"}},
  };
  return kMethods;
}

const Methods& dict_methods() {
  static const Methods kMethods = {
      {"items", {[](Budget& budget, const Value& s, const CallArguments&) -> Value {
         Value::List pairs;
         budget.take(s.dict()->size() * sizeof(Value) * 4);
         for (const auto& [key, value] : s.dict()->members()) pairs.push_back(Value::List{key, value});
         return pairs;
       }}},
      {"keys", {[](Budget& budget, const Value& s, const CallArguments&) -> Value {
         return elements_of(s, budget);
       }}},
      {"values", {[](Budget& budget, const Value& s, const CallArguments&) -> Value {
         Value::List values;
         budget.take(s.dict()->size() * sizeof(Value));
         for (const auto& [key, value] : s.dict()->members()) values.push_back(value);
         return values;
       }}},
      {"get",
       {[](Budget& budget, const Value& s, const CallArguments& a) -> Value {
          const Value& key = argument(a, 0);
          if (key.is_text()) budget.read(key.text()->size());
          const Value* found = key.is_text() ? s.dict()->find(*key.text()) : nullptr;
          const Value* otherwise = a.find(1, "default");
          return found != nullptr ? *found : otherwise != nullptr ? *otherwise : Value();
        },
        "- default"}},
      {"copy", {[](Budget&, const Value& s, const CallArguments&) -> Value { return s; }}},
  };
  return kMethods;
}

const Methods& list_methods() {
  static const Methods kMethods = {
      {"count", {count_items, "-"}},
      {"index", {item_index, "- - -"}},
      {"copy", {[](Budget&, const Value& s, const CallArguments&) -> Value { return s; }}},
  };
  return kMethods;
}

const Methods& no_methods() {
  static const Methods kNone;
  return kNone;
}

const Methods& methods_of(const Value& value) {
  return value.is_text()   ? text_methods()
         : value.is_dict() ? dict_methods()
         : value.is_list() ? list_methods()
                           : no_methods();
}

Value loop_member(const LoopState& loop, const std::string& name) {
  const size_t n = loop.items.size(), i = loop.index;
  if (name == "index") return i + 1;
  if (name == "index0") return i;
  if (name == "revindex") return n - i;
  if (name == "revindex0") return n - i - 1;
  if (name == "first") return i == 0;
  if (name == "last") return i + 1 == n;
  if (name == "length") return n;
  if (name == "depth") return 1;
  if (name == "depth0") return 0;
  if (name == "previtem")
    return i > 0 && i <= n ? loop.items[i - 1] : Value(Undefined{"there is no previous item"});
  if (name == "nextitem") return i + 1 < n ? loop.items[i + 1] : Value(Undefined{"there is no next item"});
  return Undefined{"loop." + name};
}

}  // namespace

const Value* CallArguments::find(size_t place, std::string_view name) const {
  if (place < positional.size()) return &positional[place];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

void check_arguments(std::string_view callee, std::string_view names, const CallArguments& arguments) {
  std::vector<std::string_view> known;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(' ', at), names.size());
    known.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  if (!known.empty() && known.back() == "*") return;
  if (arguments.positional.size() > known.size())
    base::fail_invalid("template: ", callee, " takes ", known.empty() ? "no" : std::to_string(known.size()),
                       " arguments", known.empty() ? "" : " at most");
  known.erase(known.begin(), known.begin() + static_cast<ptrdiff_t>(arguments.positional.size()));
  for (const auto& [name, value] : arguments.named) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      base::fail_invalid("template: ", callee, " takes no argument '", name, "' here");
  }
}

Value call_method(Budget& budget, std::string_view name, const Value& self, const CallArguments& arguments) {
  const auto& methods = methods_of(self);
  const auto found = methods.find(name);
  if (found == methods.end()) base::fail_unsupported("template: the method ", name, " of ", self.type_name());
  budget.step();
  if (self.is_text()) budget.take(self.text()->size());
  check_arguments(name, found->second.names, arguments);
  return found->second.run(budget, self, arguments);
}

Value attribute_of(const Value& value, const std::string& name) {
  if (const Undefined* missing = value.undefined())
    base::fail_invalid("template: '", missing->name, "' is undefined; it has no '", name, "'");
  if (const LoopState* loop = value.loop()) {
    if (name != "cycle" && name != "changed") return loop_member(*loop, name);
    return Callable{name, std::make_shared<const Value>(value), nullptr};
  }
  if (const Namespace* space = value.space()) {
    const Value* found = space->members.find(name);
    return found != nullptr ? *found : Value(Undefined{name});
  }
  if (methods_of(value).contains(name)) return Callable{name, std::make_shared<const Value>(value), nullptr};
  const Value* member = value.is_dict() ? value.dict()->find(name) : nullptr;
  return member != nullptr ? *member : Value(Undefined{name});
}

Value item_of(const Value& value, const Value& key) {
  if (key.is_integer() && (value.is_list() || value.is_text())) {
    const int64_t n = length_of(value), given = key.as_integer(), at = given < 0 ? given + n : given;
    if (at < 0 || at >= n) return Undefined{base::concat("item ", given)};
    if (value.is_list()) return (*value.list())[static_cast<size_t>(at)];
    return characters_of(*value.text())[static_cast<size_t>(at)];
  }
  if (key.is_text()) {
    const Value* member = value.is_dict() ? value.dict()->find(*key.text()) : nullptr;
    return member != nullptr ? *member : attribute_of(value, *key.text());
  }
  if (const Undefined* missing = value.undefined())
    base::fail_invalid("template: '", missing->name, "' is undefined; it has no items");
  return Undefined{"item"};
}

Value::List elements_of(const Value& value, Budget& budget) {
  Value::List out;
  if (value.is_undefined()) return out;
  if (const Value::List* list = value.list()) {
    budget.take(list->size() * sizeof(Value));
    return *list;
  }
  if (const Dict* dict = value.dict()) {
    budget.take(dict->size() * sizeof(Value));
    for (const auto& [key, member] : dict->members()) out.push_back(key);
    return out;
  }
  if (!value.is_text()) base::fail_invalid("template: ", value.type_name(), " has no elements");
  budget.take(value.text()->size() * sizeof(Value) * 2);
  for (const std::string_view character : characters_of(*value.text())) out.push_back(character);
  return out;
}

}  // namespace trireme::data::jinja
