// Tests of templates: the words that may follow `is`.
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "data/template/calls.h"
#include "data/template/text_methods.h"

namespace trireme::data::jinja {
namespace {

using Test = bool (*)(Budget&, const Value& in, const CallArguments&);

const Value& other(const CallArguments& a) {
  if (a.positional.empty()) base::fail_invalid("template: a test lacks its value");
  return a.positional[0];
}

bool is_equal(Budget& b, const Value& in, const CallArguments& a) { return equal(in, other(a), b); }
bool is_not_equal(Budget& b, const Value& in, const CallArguments& a) { return !equal(in, other(a), b); }
bool is_less(Budget& b, const Value& in, const CallArguments& a) { return less(in, other(a), b); }
bool is_greater(Budget& b, const Value& in, const CallArguments& a) { return less(other(a), in, b); }
bool is_at_most(Budget& b, const Value& in, const CallArguments& a) { return !less(other(a), in, b); }
bool is_at_least(Budget& b, const Value& in, const CallArguments& a) { return !less(in, other(a), b); }

bool divides(const Value& in, int64_t by) {
  base::require(by != 0, "template: divisible by 0");
  return by == -1 || in.as_integer() % by == 0;
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> kTests = {
      {"defined", [](Budget&, const Value& in, const CallArguments&) { return !in.is_undefined(); }},
      {"undefined", [](Budget&, const Value& in, const CallArguments&) { return in.is_undefined(); }},
      {"none", [](Budget&, const Value& in, const CallArguments&) { return in.is_none(); }},
      {"string", [](Budget&, const Value& in, const CallArguments&) { return in.is_text(); }},
      {"boolean", [](Budget&, const Value& in, const CallArguments&) { return in.is_bool(); }},
      {"true", [](Budget&, const Value& in, const CallArguments&) { return in.is_bool() && in.truth(); }},
      {"false", [](Budget&, const Value& in, const CallArguments&) { return in.is_bool() && !in.truth(); }},
      {"integer", [](Budget&, const Value& in, const CallArguments&) { return in.is_integer(); }},
      {"float", [](Budget&, const Value& in, const CallArguments&) { return in.is_float(); }},
      {"number", [](Budget&, const Value& in, const CallArguments&) { return in.is_number(); }},
      {"mapping", [](Budget&, const Value& in, const CallArguments&) { return in.is_dict(); }},
      {"sequence",
       [](Budget&, const Value& in, const CallArguments&) {
         return in.is_list() || in.is_text() || in.is_dict() || in.is_undefined();
       }},
      {"iterable",
       [](Budget&, const Value& in, const CallArguments&) {
         return in.is_list() || in.is_text() || in.is_dict() || in.is_undefined();
       }},
      {"callable", [](Budget&, const Value& in, const CallArguments&) { return in.callable() != nullptr; }},
      {"odd", [](Budget&, const Value& in, const CallArguments&) { return !divides(in, 2); }},
      {"even", [](Budget&, const Value& in, const CallArguments&) { return divides(in, 2); }},
      {"divisibleby",
       [](Budget&, const Value& in, const CallArguments& a) { return divides(in, other(a).as_integer()); }},
      {"in", [](Budget& b, const Value& in, const CallArguments& a) { return contains(other(a), in, b); }},
      {"sameas",
       [](Budget& b, const Value& in, const CallArguments& a) {
         return in.type_name() == other(a).type_name() && equal(in, other(a), b);
       }},
      {"lower", [](Budget& b, const Value& in,
                   const CallArguments&) { return call_method(b, "islower", in, {}).truth(); }},
      {"upper", [](Budget& b, const Value& in,
                   const CallArguments&) { return call_method(b, "isupper", in, {}).truth(); }},
      {"equalto", is_equal},
      {"eq", is_equal},
      {"==", is_equal},
      {"ne", is_not_equal},
      {"!=", is_not_equal},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<", is_less},
      {"gt", is_greater},
      {"greaterthan", is_greater},
      {">", is_greater},
      {"le", is_at_most},
      {"<=", is_at_most},
      {"ge", is_at_least},
      {">=", is_at_least},
  };
  return kTests;
}

/// Tests that compare with a value; the others take none.
bool takes_value(std::string_view name) {
  constexpr std::string_view kNone[] = {"defined",  "undefined", "none",  "string", "boolean", "true",
                                        "false",    "integer",   "float", "number", "mapping", "sequence",
                                        "iterable", "callable",  "odd",   "even",   "lower",   "upper"};
  return std::find(std::begin(kNone), std::end(kNone), name) == std::end(kNone);
}

}  // namespace

bool apply_test(Budget& budget, std::string_view name, const Value& in, const CallArguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) base::fail_unsupported("template: the test '", name, "'");
  budget.step();
  check_arguments(name, takes_value(name) ? "-" : "", arguments);
  return found->second(budget, in, arguments);
}

}  // namespace trireme::data::jinja
