// Options: sets fields from text and JSON, and prints them as help, documentation and record.
#include "base/text/options.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "base/error.h"

namespace trireme::base {
namespace {

template <class T>
T parse_number(std::string_view text, std::string_view wanted) {
  T value{};
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  require(result.ec != std::errc::result_out_of_range, "number is out of range: '", text, "'");
  require(result.ec == std::errc() && result.ptr == end, "expected ", wanted, ", found '", text, "'");
  return value;
}

bool parse_switch(std::string_view text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") return true;
  require(text == "false" || text == "0" || text == "no" || text == "off", "expected true or false, found '",
          text, "'");
  return false;
}

size_t choice_index(const std::vector<std::string>& names, std::string_view text) {
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    fail_invalid("expected one of ", all, "; found '", text, "'");
  }
  return static_cast<size_t>(found - names.begin());
}

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <class... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

std::string with_dashes(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

std::string upper(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

/// Escapes a table cell, which a bar would end.
std::string cell(std::string value) {
  for (size_t at = 0; (at = value.find('|', at)) != std::string::npos; at += 2) value.insert(at, 1, '\\');
  return value;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // Levenshtein distances from a prefix of a to each prefix of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replace = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replace, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

Option::Option(std::string name, OptionTarget target, std::string help)
    : name_(std::move(name)), target_(std::move(target)), help_(std::move(help)), default_(json()) {}

Option& Option::positional() { return positional_ = true, *this; }
Option& Option::required() { return required_ = true, *this; }
Option& Option::at_least(double minimum) { return minimum_ = minimum, *this; }
Option& Option::at_most(double maximum) { return maximum_ = maximum, *this; }

std::string Option::flag() const { return "--" + with_dashes(name_); }

void Option::check_bounds(double value) const {
  require(value >= minimum_, "must be at least ", minimum_, ", found ", value);
  require(value <= maximum_, "must be at most ", maximum_, ", found ", value);
}

void Option::set_text(std::string_view text) {
  const bool first = !std::exchange(given_, true);
  const auto number = [&]<class T>(T* target, T value) {
    check_bounds(static_cast<double>(value));
    *target = value;
  };
  std::visit(
      Overloaded{
          [&](bool* v) { *v = parse_switch(text); },
          [&](int* v) { number(v, parse_number<int>(text, "an integer")); },
          [&](int64_t* v) { number(v, parse_number<int64_t>(text, "an integer")); },
          [&](double* v) { number(v, parse_number<double>(text, "a number")); },
          [&](std::string* v) { *v = text; },
          [&](Duration* v) { *v = parse_duration(text); },
          [&](ByteSize* v) { *v = parse_byte_size(text); },
          [&](std::vector<std::string>* v) {
            if (first) v->clear();
            v->emplace_back(text);
          },
          [&](std::vector<int64_t>* v) {
            if (first) v->clear();
            for (size_t begin = 0; begin <= text.size();) {
              const size_t end = std::min(text.find(',', begin), text.size());
              v->push_back(parse_number<int64_t>(text.substr(begin, end - begin), "integers with commas"));
              check_bounds(static_cast<double>(v->back()));
              begin = end + 1;
            }
          },
          [&](ChoiceTarget& v) { v.set(choice_index(v.names, text)); },
      },
      target_);
}

void Option::set_json(const Json& value) {
  given_ = false;  // a list in JSON replaces the list that was given before
  if (const auto* flag = std::get_if<bool*>(&target_)) {
    **flag = value.as_bool();
  } else if (const auto* list = std::get_if<std::vector<std::string>*>(&target_)) {
    (*list)->clear();
    for (const Json& item : value.as_array()) (*list)->push_back(item.as_string());
  } else if (const auto* numbers = std::get_if<std::vector<int64_t>*>(&target_)) {
    (*numbers)->clear();
    for (const Json& item : value.as_array()) {
      check_bounds(item.as_double());
      (*numbers)->push_back(item.as_int());
    }
  } else if (value.is_number() && !std::holds_alternative<std::string*>(target_)) {
    set_text(value.dump());
  } else {
    set_text(value.as_string());
  }
  given_ = true;
}

Json Option::json() const {
  return std::visit(
      Overloaded{
          [](const Duration* v) { return Json(to_string(*v)); },
          [](const ByteSize* v) { return Json(to_string(*v)); },
          [](const std::vector<std::string>* v) { return Json(JsonArray(v->begin(), v->end())); },
          [](const std::vector<int64_t>* v) { return Json(JsonArray(v->begin(), v->end())); },
          [](const ChoiceTarget& v) { return Json(v.names.at(v.get())); },
          [](const auto* v) { return Json(*v); },
      },
      target_);
}

std::string Option::value_word() const {
  return std::visit(Overloaded{
                        [](bool*) { return std::string(); },
                        [](int*) { return std::string("N"); },
                        [](int64_t*) { return std::string("N"); },
                        [](double*) { return std::string("X"); },
                        [](std::string*) { return std::string("TEXT"); },
                        [](Duration*) { return std::string("TIME"); },
                        [](ByteSize*) { return std::string("BYTES"); },
                        [](std::vector<std::string>*) { return std::string("TEXT..."); },
                        [](std::vector<int64_t>*) { return std::string("N,N..."); },
                        [](const ChoiceTarget& v) {
                          std::string all;
                          for (const std::string& name : v.names) all += (all.empty() ? "" : "|") + name;
                          return all;
                        },
                    },
                    target_);
}

std::string Option::default_text() const {
  if (required_) return "required";
  if (std::holds_alternative<bool*>(target_)) return default_.as_bool() ? "on" : "off";
  if (default_.is_string()) return default_.as_string();
  std::string text;
  if (!default_.is_array()) return default_.dump();
  for (const Json& item : default_.as_array()) {
    text += (text.empty() ? "" : ",") + (item.is_string() ? item.as_string() : item.dump());
  }
  return text;
}

std::string Option::meaning() const {
  const std::string value = default_text();
  if (value.empty() || value == "off") return help_;
  return help_ + (required_ ? " (required)" : " (default " + value + ")");
}

Option& OptionList::add(std::string name, OptionTarget target, std::string help) {
  check(find(name) == nullptr, "option is declared twice: ", name);
  return options_.emplace_back(std::move(name), std::move(target), std::move(help));
}

Option* OptionList::find(std::string_view name) {
  for (Option& option : options_) {
    if (option.name_ == name) return &option;
  }
  return nullptr;
}

std::string OptionList::nearest(std::string_view name) const {
  const Option* best = nullptr;
  size_t best_distance = 0;
  for (const Option& option : options_) {
    const size_t distance = edit_distance(name, option.name_);
    if (best != nullptr && distance >= best_distance) continue;
    best = &option;
    best_distance = distance;
  }
  return best == nullptr ? std::string() : best->name_;
}

Option& OptionList::next_positional(std::string_view word) {
  for (Option& option : options_) {
    const bool list = std::holds_alternative<std::vector<std::string>*>(option.target_);
    if (option.positional_ && (list || !option.given_)) return option;
  }
  fail_invalid("unexpected argument: '", word, "'");
}

void OptionList::parse_flag(std::span<const std::string> words, size_t& i) {
  const std::string& word = words[i];
  const size_t equals = word.find('=');
  std::string name = word.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  Option* option = find(name);
  bool on = true;
  if (option == nullptr && name.starts_with("no_") && equals == std::string::npos) {
    option = find(std::string_view(name).substr(3));
    if (option != nullptr && !std::holds_alternative<bool*>(option->target_)) option = nullptr;
    on = false;
  }
  require(option != nullptr, "unknown option '", word.substr(0, equals), "'; the nearest is '--",
          with_dashes(nearest(name)), "'");
  try {
    if (equals != std::string::npos) {
      option->set_text(std::string_view(word).substr(equals + 1));
    } else if (std::holds_alternative<bool*>(option->target_)) {
      option->set_text(on ? "true" : "false");
    } else {
      require(i + 1 < words.size(), "needs a value");
      option->set_text(words[++i]);
    }
  } catch (const Error& e) {
    throw e.with("option " + option->flag());
  }
}

bool OptionList::parse_flags(std::span<const std::string> words) {
  bool flags = true;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (flags && word == "--") {
      flags = false;
    } else if (flags && (word == "--help" || word == "-h")) {
      return false;
    } else if (flags && word.starts_with("--")) {
      parse_flag(words, i);
    } else {
      Option& option = next_positional(word);
      try {
        option.set_text(word);
      } catch (const Error& e) {
        throw e.with("argument " + upper(option.name_));
      }
    }
  }
  check_required();
  return true;
}

void OptionList::parse_json(const Json& object) {
  for (const JsonMember& member : object.as_object()) {
    Option* option = find(member.key);
    require(option != nullptr, "unknown key '", member.key, "'; the nearest is '", nearest(member.key), "'");
    try {
      option->set_json(member.value);
    } catch (const Error& e) {
      throw e.with("key '" + member.key + "'");
    }
  }
}

void OptionList::check_required() const {
  for (const Option& option : options_) {
    require(!option.required_ || option.given_, "missing ",
            option.positional_ ? "argument " + upper(option.name_) : "option " + option.flag());
  }
}

bool OptionList::given(std::string_view name) const {
  const Option* option = const_cast<OptionList*>(this)->find(name);
  check(option != nullptr, "no such option: ", name);
  return option->given_;
}

bool OptionList::is_text(std::string_view name) const {
  const Option* option = const_cast<OptionList*>(this)->find(name);
  return option != nullptr && std::holds_alternative<std::string*>(option->target_);
}

bool OptionList::is_list(std::string_view name) const {
  const Option* option = const_cast<OptionList*>(this)->find(name);
  return option != nullptr && (std::holds_alternative<std::vector<std::string>*>(option->target_) ||
                               std::holds_alternative<std::vector<int64_t>*>(option->target_));
}

Json OptionList::to_json() const {
  Json record = Json::object();
  for (const Option& option : options_) record.set(option.name_, option.json());
  return record;
}

std::string OptionList::help() const {
  std::vector<std::string> left;
  for (const Option& option : options_) {
    const std::string word = option.value_word();
    left.push_back(option.positional_ ? upper(option.name_)
                                      : option.flag() + (word.empty() ? "" : " ") + word);
  }
  // Align the descriptions; an option whose left side is long gets a line of its own.
  size_t width = 0;
  for (const std::string& l : left) width = std::max(width, std::min<size_t>(l.size(), 30));
  std::string text;
  size_t i = 0;
  for (const Option& option : options_) {
    const std::string& l = left[i++];
    text += "  " + l;
    if (l.size() > width)
      text += "\n" + std::string(width + 4, ' ');
    else
      text += std::string(width - l.size() + 2, ' ');
    text += option.meaning() + "\n";
  }
  return text;
}

std::string OptionList::usage() const {
  std::string text;
  bool flags = false;
  for (const Option& option : options_) {
    flags |= !option.positional_;
    if (!option.positional_) continue;
    const bool list = std::holds_alternative<std::vector<std::string>*>(option.target_);
    const std::string word = upper(option.name_) + (list ? "..." : "");
    text += (text.empty() ? "" : " ") + (option.required_ ? word : "[" + word + "]");
  }
  if (flags) text += (text.empty() ? "" : " ") + std::string("[options]");
  return text;
}

std::string OptionList::markdown() const {
  std::string text = "| flag | JSON key | value | default | meaning |\n|---|---|---|---|---|\n";
  for (const Option& option : options_) {
    const std::string word = option.value_word();
    text += "| `" + (option.positional_ ? upper(option.name_) : option.flag()) + "` | `" + option.name_ +
            "` | " + cell(word.empty() ? "switch" : word) + " | " + cell(option.default_text()) + " | " +
            cell(option.help_) + " |\n";
  }
  return text;
}

std::string OptionList::key_markdown() const {
  std::string text = "| key | value | default | meaning |\n|---|---|---|---|\n";
  for (const Option& option : options_) {
    const std::string word = option.value_word();
    text += "| `" + option.name_ + "` | " + cell(word.empty() ? "true or false" : word) + " | " +
            cell(option.default_text()) + " | " + cell(option.help_) + " |\n";
  }
  return text;
}

}  // namespace trireme::base
