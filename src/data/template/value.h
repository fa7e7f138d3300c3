// Values of templates: Python's, as far as chat templates use them.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/text/json.h"

namespace trireme::data::jinja {

class Value;
class Dict;
struct MacroStatement;
struct LoopState;

/// A name that was never set, or a member that is not there; holds what was asked for.
struct Undefined {
  std::string name;
};

/// The one kind of object that changes: namespace().
struct Namespace;

/// A macro, a global function, or a method with its object.
struct Callable {
  std::string name;
  std::shared_ptr<const Value> self;      // of a method
  const MacroStatement* macro = nullptr;  // of a macro
};

/// What one rendering may still use. Every loop, call and copied byte is counted, so that time and memory
/// have a bound.
class Budget {
 public:
  Budget(uint64_t steps, uint64_t bytes) : steps_(steps), bytes_(bytes) {}
  /// Both throw exhausted when there is nothing left.
  void step(uint64_t count = 1);
  void take(uint64_t bytes);
  /// For a look at each byte of a text that stays: values share texts, so that few bytes can name many.
  void read(uint64_t bytes) { step(bytes / 64); }

 private:
  uint64_t steps_, bytes_;
};

/// Cheap to copy: texts, lists and dictionaries are shared and never change.
class Value {
 public:
  using List = std::vector<Value>;

  Value() : data_(nullptr) {}  // None
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(bool value) : data_(value) {}
  template <std::integral T>
  requires(!std::same_as<T, bool>) Value(T value) : data_(static_cast<int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string text) : data_(std::make_shared<const std::string>(std::move(text))) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(List list);
  Value(Dict dict);
  template <class T>
  requires(std::same_as<T, Namespace> || std::same_as<T, LoopState>) Value(T* object) : data_(object) {}
  Value(Callable callable);
  explicit Value(const base::Json& json);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<std::nullptr_t>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const {
    return std::holds_alternative<int64_t>(data_) || std::holds_alternative<uint64_t>(data_);
  }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  /// As Python counts: booleans are numbers.
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_text() const { return text() != nullptr; }
  bool is_list() const { return list() != nullptr; }
  bool is_dict() const { return dict() != nullptr; }

  /// The content, or null if this is something else.
  const std::string* text() const { return shared<std::string>(); }
  const List* list() const { return shared<List>(); }
  const Dict* dict() const { return shared<Dict>(); }
  const Callable* callable() const { return shared<Callable>(); }
  Namespace* space() const { return pointer<Namespace>(); }
  LoopState* loop() const { return pointer<LoopState>(); }
  const Undefined* undefined() const { return std::get_if<Undefined>(&data_); }

  bool truth() const;
  /// Throws invalid_argument naming what was found instead.
  int64_t as_integer() const;
  double as_number() const;
  const std::string& as_text() const;
  const List& as_list() const;
  std::string_view type_name() const;
  /// As Python's str().
  std::string to_text(Budget& budget) const;

 private:
  template <class T>
  const T* shared() const {
    const auto* held = std::get_if<std::shared_ptr<const T>>(&data_);
    return held == nullptr ? nullptr : held->get();
  }
  template <class T>
  T* pointer() const {
    T* const* held = std::get_if<T*>(&data_);
    return held == nullptr ? nullptr : *held;
  }

  friend std::string integer_text(const Value& value);

  // A uint64_t is stored only above the range of int64_t: such numbers are shown, not computed with.
  std::variant<std::nullptr_t, Undefined, bool, int64_t, uint64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<const Callable>,
               Namespace*, LoopState*>
      data_;
  int depth_ = 0;  // of lists and dictionaries inside; bounded, since they are walked and freed by recursion
};

/// Members in the order of their insertion.
class Dict {
 public:
  const Value* find(std::string_view key) const {
    const auto found = places_.find(std::string(key));
    return found == places_.end() ? nullptr : &members_[found->second].second;
  }
  void set(std::string key, Value value);
  const std::vector<std::pair<std::string, Value>>& members() const { return members_; }
  size_t size() const { return members_.size(); }

 private:
  std::vector<std::pair<std::string, Value>> members_;
  std::unordered_map<std::string, size_t> places_;
};

struct Namespace {
  Dict members;
};

/// What `loop` says inside a for.
struct LoopState {
  Value::List items;
  size_t index = 0;
  Value changed;  // of loop.changed()
  bool has_changed = false;
};

/// Elements, members or characters; throws for what has none.
int64_t length_of(const Value& value);
/// As Python's repr().
void append_repr(std::string& out, const Value& value, Budget& budget);
/// Python's == and <. Values of different kinds are not equal; ordering them throws.
bool equal(const Value& a, const Value& b, Budget& budget);
bool less(const Value& a, const Value& b, Budget& budget);
/// `item in whole`.
bool contains(const Value& whole, const Value& item, Budget& budget);
std::string integer_text(const Value& value);
/// Python's repr of a float: the shortest digits that read back.
std::string float_text(double value);
/// A UTF-8 text in characters, for indices.
std::vector<std::string_view> characters_of(std::string_view text);

struct JsonStyle {
  int indent = -1;  ///< below 0: one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ensure_ascii = false, sort_keys = false;
};
/// As Python's json.dumps. Throws for what JSON does not have.
void append_json(std::string& out, const Value& value, const JsonStyle& style, Budget& budget, int depth = 0);

}  // namespace trireme::data::jinja
