// What templates call: filters, tests, methods of values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/template/value.h"

namespace trireme::data::jinja {

struct CallArguments {
  Value::List positional;
  std::vector<std::pair<std::string, Value>> named;

  /// The argument at `place` or of this name; null if it was not given.
  const Value* find(size_t place, std::string_view name) const;
};

/// Refuses arguments that are left over: invalid_argument. `names`: what the callee takes, in this order,
/// with spaces between; an ending "*" stands for any more.
void check_arguments(std::string_view callee, std::string_view names, const CallArguments& arguments);

/// `in | name(arguments)`. Throws unsupported for a filter that is not known, by name; invalid_argument for
/// values it does not take; exhausted when the budget is.
Value apply_filter(Budget& budget, std::string_view name, const Value& in, const CallArguments& arguments);
/// `in is name(arguments)`.
bool apply_test(Budget& budget, std::string_view name, const Value& in, const CallArguments& arguments);
/// A method of a text, list or dictionary: self.name(arguments).
Value call_method(Budget& budget, std::string_view name, const Value& self, const CallArguments& arguments);

/// value.name: a method or a member; undefined if there is neither. Throws for members of what is undefined.
Value attribute_of(const Value& value, const std::string& name);
/// value[key]: the same by index or key.
Value item_of(const Value& value, const Value& key);
/// The elements that a loop sees: of a list, keys of a dictionary, characters of a text.
Value::List elements_of(const Value& value, Budget& budget);

}  // namespace trireme::data::jinja
