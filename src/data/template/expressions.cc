// Evaluates the expressions of templates.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/template/interpreter.h"
#include "data/template/printf_text.h"

namespace trireme::data::jinja {
namespace {

using Kind = Expression::Kind;

[[noreturn]] void out_of_range() { base::fail_invalid("a number out of range"); }

/// Python's // and %: towards minus infinity, with the sign of the divisor.
int64_t floor_divided(int64_t a, int64_t b) {
  if (b == 0) base::fail_invalid("a division by zero");
  if (b == -1) {
    if (a == INT64_MIN) out_of_range();
    return -a;
  }
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

Value integers(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflows = false;
  if (op == "+") {
    overflows = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflows = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflows = __builtin_mul_overflow(a, b, &result);
  } else if (op == "//") {
    result = floor_divided(a, b);
  } else if (op == "%") {
    result = b == -1 ? 0 : a - floor_divided(a, b) * b;
  } else if (b < 0) {
    return std::pow(static_cast<double>(a), static_cast<double>(b));
  } else {
    result = 1;
    for (int64_t i = 0; i < b && !overflows && result != 0; ++i) {
      overflows = __builtin_mul_overflow(result, a, &result) || i > 64;
      if (a == 1 || (a == -1 && i > 1)) return a == 1 ? 1 : b % 2 == 0 ? 1 : -1;
    }
  }
  if (overflows) out_of_range();
  return result;
}

/// The quotient or the rest of the same for reals, as CPython computes them (float_divmod).
double floor_divided(bool wants_quotient, double a, double b) {
  double rest = std::fmod(a, b), quotient = (a - rest) / b;
  if (rest == 0) {
    rest = std::copysign(0.0, b);
  } else if ((b < 0) != (rest < 0)) {
    rest += b;
    quotient -= 1;
  }
  if (!wants_quotient) return rest;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double whole = std::floor(quotient);
  return quotient - whole > 0.5 ? whole + 1 : whole;
}

double reals(const std::string& op, double a, double b) {
  if (op == "+") return a + b;
  if (op == "-") return a - b;
  if (op == "*") return a * b;
  if (op == "**") return std::pow(a, b);
  if (b == 0) base::fail_invalid("a division by zero");
  if (op == "/") return a / b;
  return floor_divided(op == "//", a, b);
}

}  // namespace

Value Interpreter::evaluate(const Expression& e) {
  budget_.step();
  switch (e.kind) {
    case Kind::constant: return e.value;
    case Kind::name: return find(e.text);
    case Kind::list: {
      Value::List items;
      for (const auto& part : e.parts) items.push_back(evaluate(*part));
      return items;
    }
    case Kind::dict: {
      Dict dict;
      for (size_t i = 0; i < e.parts.size(); i += 2) {
        const Value key = evaluate(*e.parts[i]);
        if (!key.is_text() && !key.is_undefined())
          base::fail_unsupported("a dictionary with a key that is ", key.type_name(), "; keys are texts");
        dict.set(key.as_text(), evaluate(*e.parts[i + 1]));
      }
      return dict;
    }
    case Kind::attribute: return attribute_of(evaluate(*e.parts[0]), e.text);
    case Kind::item: {
      const Value of = evaluate(*e.parts[0]);
      if (of.is_text()) budget_.step(of.text()->size());
      const Value key = evaluate(*e.parts[1]);
      if (key.is_text()) budget_.read(key.text()->size());
      return item_of(of, key);
    }
    case Kind::slice: return slice(e);
    case Kind::call: return call(e);
    case Kind::filter: return filtered(e, nullptr);
    case Kind::test: {
      const Value in = evaluate(*e.parts[0]);
      return apply_test(budget_, e.text, in, arguments_of(e.arguments));
    }
    case Kind::unary: return unary(e);
    case Kind::binary: return operate(e);
    case Kind::compare: return compare(e);
    case Kind::conditional:
      if (evaluate(*e.parts[1]).truth()) return evaluate(*e.parts[0]);
      return e.parts[2] == nullptr ? Value(Undefined{"the value of an `if` without `else`"})
                                   : evaluate(*e.parts[2]);
  }
  return {};
}

Value Interpreter::unary(const Expression& e) {
  const Value value = evaluate(*e.parts[0]);
  if (e.text == "not") return !value.truth();
  if (e.text == "+") return value.is_float() ? value : Value(value.as_integer());
  if (value.is_float()) return -value.as_number();
  return integers("-", 0, value.as_integer());
}

Value Interpreter::operate(const Expression& e) {
  const Value left = evaluate(*e.parts[0]);
  if (e.text == "and") return left.truth() ? evaluate(*e.parts[1]) : left;
  if (e.text == "or") return left.truth() ? left : evaluate(*e.parts[1]);
  if (e.text == "%" && left.is_text()) return formatted(*left.text(), *e.parts[1]);
  const Value right = evaluate(*e.parts[1]);
  if (e.text != "~") return arithmetic(e.text, left, right);
  const std::string a = left.to_text(budget_), b = right.to_text(budget_);
  budget_.take(a.size() + b.size());
  return a + b;
}

/// Python's % of a text: a tuple holds the values, anything else is one.
Value Interpreter::formatted(const std::string& format, const Expression& values) {
  const Value given = evaluate(values);
  budget_.read(format.size());
  if (values.kind == Kind::list && values.text == "tuple")
    return printf_text(format, given.as_list(), nullptr, budget_);
  if (given.is_list()) base::fail_unsupported("'%' of a text and a list that is not written as (a, b)");
  if (given.is_dict() && format.find("%(") != std::string::npos)
    return printf_text(format, {}, given.dict(), budget_);
  return printf_text(format, {given}, nullptr, budget_);
}

Value Interpreter::arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float() || op == "/") return reals(op, a.as_number(), b.as_number());
    return integers(op, a.as_integer(), b.as_integer());
  }
  if (op == "+") return add(a, b);
  if (op == "*" && b.is_integer()) return repeat(a, b.as_integer());
  if (op == "*" && a.is_integer()) return repeat(b, a.as_integer());
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) base::fail_invalid("'", side->undefined()->name, "' is undefined");
  }
  base::fail_invalid("'", op, "' of ", a.type_name(), " and ", b.type_name());
}

Value Interpreter::add(const Value& a, const Value& b) {
  if (a.is_text() && b.is_text()) {
    budget_.take(a.text()->size() + b.text()->size());
    return *a.text() + *b.text();
  }
  if (a.is_list() && b.is_list()) {
    budget_.take((a.list()->size() + b.list()->size()) * sizeof(Value));
    Value::List both = *a.list();
    both.insert(both.end(), b.list()->begin(), b.list()->end());
    return both;
  }
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) base::fail_invalid("'", side->undefined()->name, "' is undefined");
  }
  base::fail_invalid("'+' of ", a.type_name(), " and ", b.type_name());
}

Value Interpreter::repeat(const Value& what, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  const uint64_t size = static_cast<uint64_t>(length_of(what));
  if (count > 0 && size > UINT64_MAX / count / 64) out_of_range();
  if (what.is_text()) {
    budget_.take(what.text()->size() * count);
    std::string text;
    for (uint64_t i = 0; i < count && size > 0; ++i) text += *what.text();
    return text;
  }
  budget_.take(size * count * sizeof(Value));
  Value::List items;
  for (uint64_t i = 0; i < count && size > 0; ++i)
    items.insert(items.end(), what.as_list().begin(), what.as_list().end());
  return items;
}

bool Interpreter::compare(const Expression& e) {
  Value left = evaluate(*e.parts[0]);
  for (size_t i = 0; i < e.operators.size(); ++i) {
    const std::string& op = e.operators[i];
    Value right = evaluate(*e.parts[i + 1]);
    if (right.is_text()) budget_.take(right.text()->size());
    bool holds = false;
    if (op == "==")
      holds = equal(left, right, budget_);
    else if (op == "!=")
      holds = !equal(left, right, budget_);
    else if (op == "<")
      holds = less(left, right, budget_);
    else if (op == ">")
      holds = less(right, left, budget_);
    else if (op == "<=")
      holds = !less(right, left, budget_);
    else if (op == ">=")
      holds = !less(left, right, budget_);
    else
      holds = contains(right, left, budget_) == (op == "in");
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

/// Python's slices of lists and texts.
Value Interpreter::slice(const Expression& e) {
  const Value of = evaluate(*e.parts[0]);
  const auto part = [&](size_t i) { return e.parts[i] == nullptr ? Value() : evaluate(*e.parts[i]); };
  const Value first = part(1), last = part(2), by = part(3);
  if (const Undefined* missing = of.undefined())
    base::fail_invalid("'", missing->name, "' is undefined; it has no slices");
  const int64_t step = by.is_none() ? 1 : by.as_integer();
  base::require(step != 0, "a slice with steps of 0");
  const Value::List items = elements_of(of, budget_);
  const auto n = static_cast<int64_t>(items.size());
  const auto place = [&](const Value& given, int64_t otherwise) {
    if (given.is_none()) return otherwise;
    const int64_t at = given.as_integer();
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    return std::clamp(at < 0 ? std::max(at, -n - 1) + n : at, low, high);
  };
  const int64_t begin = place(first, step > 0 ? 0 : n - 1), end = place(last, step > 0 ? n : -1);
  Value::List out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    out.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!of.is_text()) return out;
  std::string text;
  for (const Value& character : out) text += *character.text();
  budget_.take(text.size());
  return text;
}

}  // namespace trireme::data::jinja
