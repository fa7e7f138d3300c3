// Runs the statements and calls of templates.
#include "data/template/interpreter.h"

#include <algorithm>
#include <ctime>

#include "base/error.h"

namespace trireme::data::jinja {
namespace {

constexpr int kMostCalls = 64;    // nesting depth of macro calls
constexpr size_t kTimeBytes = 4;  // room for each byte of a format

/// Functions that are available in every template.
bool is_function(const std::string& name) {
  return name == "raise_exception" || name == "strftime_now" || name == "namespace" || name == "range" ||
         name == "dict";
}

std::string time_text(const std::string& format, int64_t now_s) {
  const auto seconds = static_cast<std::time_t>(now_s);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::string text(format.size() * kTimeBytes + 256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
  return text;
}

}  // namespace

std::string Interpreter::render() {
  std::string out;
  out_ = &out;
  run(template_.body);
  return out;
}

Value Interpreter::find(const std::string& name) const {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->outer) {
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return found->second;
  }
  if (const Value* global = globals_.find(name)) return *global;
  if (is_function(name)) return Callable{name, nullptr, nullptr};
  return Undefined{name};
}

void Interpreter::write(const Value& value) {
  const std::string text = value.to_text(budget_);
  budget_.take(text.size());
  *out_ += text;
}

Interpreter::Flow Interpreter::run(const Body& body) {
  for (const auto& statement : body) {
    try {
      if (const Flow flow = run(*statement); flow != Flow::next) return flow;
    } catch (const base::Error& e) {
      // The innermost statement has already given its line; outer ones add nothing.
      if (e.message().starts_with("line ")) throw;
      throw e.with(base::concat("line ", statement->line));
    }
  }
  return Flow::next;
}

Interpreter::Flow Interpreter::run(const Statement& s) {
  using Kind = Statement::Kind;
  budget_.step();
  switch (s.kind) {
    case Kind::text:
      budget_.take(s.text.size());
      *out_ += s.text;
      break;
    case Kind::output: write(evaluate(*s.expression)); break;
    case Kind::branch: return run(evaluate(*s.expression).truth() ? s.body : s.otherwise);
    case Kind::loop: return loop(s);
    case Kind::set:
    case Kind::set_block: set(s); break;
    case Kind::filter: {
      const Value inner = captured(s.body);
      write(filtered(*s.expression, &inner));
      break;
    }
    case Kind::macro: scope_->names[s.macro.name] = Callable{s.macro.name, nullptr, &s.macro}; break;
    case Kind::generation: return run(s.body);
    case Kind::stop: return Flow::stop;
    case Kind::skip: return Flow::skip;
  }
  return Flow::next;
}

std::string Interpreter::captured(const Body& body) {
  std::string text;
  std::string* before = std::exchange(out_, &text);
  run(body);
  out_ = before;
  return text;
}

void Interpreter::set(const Statement& s) {
  Value value;
  if (s.kind == Statement::Kind::set) {
    value = evaluate(*s.expression);
  } else {
    const Value inner = captured(s.body);
    value = s.expression == nullptr ? inner : filtered(*s.expression, &inner);
  }
  if (s.text.empty()) return assign(s.targets, value);
  const Value object = find(s.targets[0]);
  if (object.space() == nullptr)
    base::fail_invalid("'", s.targets[0], "' is ", object.type_name(),
                       ": only members of a namespace can be set");
  object.space()->members.set(s.text, value);
}

void Interpreter::assign(const std::vector<std::string>& targets, const Value& value) {
  if (targets.size() == 1) {
    scope_->names[targets[0]] = value;
    return;
  }
  const Value::List parts = elements_of(value, budget_);
  if (parts.size() != targets.size())
    base::fail_invalid(parts.size(), " values for ", targets.size(), " names");
  for (size_t i = 0; i < targets.size(); ++i) scope_->names[targets[i]] = parts[i];
}

bool Interpreter::keeps(const Statement& s, const Value& item) {
  if (s.condition == nullptr) return true;
  Scope inner{scope_, {}};
  scope_ = &inner;
  assign(s.targets, item);
  const bool keeps = evaluate(*s.condition).truth();
  scope_ = inner.outer;
  return keeps;
}

Interpreter::Flow Interpreter::loop(const Statement& s) {
  Value::List items;
  for (Value& item : elements_of(evaluate(*s.expression), budget_)) {
    if (keeps(s, item)) items.push_back(std::move(item));
  }
  if (items.empty()) return run(s.otherwise);
  budget_.take(sizeof(LoopState) + 64);
  LoopState& state = loops_.emplace_back(LoopState{.items = std::move(items)});
  Scope* outer = scope_;
  Flow flow = Flow::next;
  for (; state.index < state.items.size() && flow != Flow::stop; ++state.index) {
    budget_.step();
    Scope body{outer, {}};
    scope_ = &body;
    body.names.emplace("loop", &state);
    assign(s.targets, state.items[state.index]);
    flow = run(s.body);
    scope_ = outer;
  }
  state.items.clear();
  return Flow::next;
}

CallArguments Interpreter::arguments_of(const std::vector<Argument>& arguments) {
  CallArguments out;
  for (const Argument& argument : arguments) {
    if (argument.name.empty())
      out.positional.push_back(evaluate(*argument.value));
    else
      out.named.emplace_back(argument.name, evaluate(*argument.value));
  }
  return out;
}

Value Interpreter::filtered(const Expression& e, const Value* innermost) {
  const Expression* inner = e.parts[0].get();
  if (inner == nullptr) return apply_filter(budget_, e.text, *innermost, arguments_of(e.arguments));
  const bool is_chain = innermost != nullptr && inner->kind == Expression::Kind::filter;
  const Value in = is_chain ? filtered(*inner, innermost) : evaluate(*inner);
  return apply_filter(budget_, e.text, in, arguments_of(e.arguments));
}

Value Interpreter::call(const Expression& e) {
  const Value function = evaluate(*e.parts[0]);
  const CallArguments arguments = arguments_of(e.arguments);
  budget_.step();
  const Callable* callable = function.callable();
  if (callable == nullptr) {
    if (const Undefined* missing = function.undefined())
      base::fail_invalid("'", missing->name,
                         "' is undefined, or no method that is known here; it cannot be called");
    base::fail_invalid(function.type_name(), " cannot be called");
  }
  if (callable->macro != nullptr) return call_macro(*callable->macro, arguments);
  if (callable->self == nullptr) return call_function(callable->name, arguments);
  if (LoopState* loop = callable->self->loop()) return call_loop(*loop, callable->name, arguments);
  return call_method(budget_, callable->name, *callable->self, arguments);
}

Value Interpreter::call_loop(LoopState& loop, const std::string& name, const CallArguments& arguments) {
  if (name == "cycle") {
    base::require(!arguments.positional.empty(), "loop.cycle of nothing");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value now(arguments.positional);
  const bool has_changed = !loop.has_changed || !equal(loop.changed, now, budget_);
  loop.changed = now;
  loop.has_changed = true;
  return has_changed;
}

Value Interpreter::call_macro(const MacroStatement& macro, const CallArguments& arguments) {
  if (++calls_ > kMostCalls) base::fail(base::ErrorCode::exhausted, "macros call one another too deeply");
  const size_t count = macro.parameters.size();
  const Value::List& given = arguments.positional;
  if (given.size() > count && !macro.takes_more)
    base::fail_invalid("the macro ", macro.name, " takes ", count, " arguments at most");
  Dict others;
  for (const auto& [name, value] : arguments.named) {
    const bool is_known = std::any_of(macro.parameters.begin(), macro.parameters.end(),
                                      [&](const Argument& parameter) { return parameter.name == name; });
    if (!is_known && !macro.takes_names)
      base::fail_invalid("the macro ", macro.name, " has no parameter '", name, "'");
    if (!is_known) others.set(name, value);
  }
  Scope inner{&root_, {}};
  Scope* before = std::exchange(scope_, &inner);
  for (size_t i = 0; i < count; ++i) {
    const Argument& parameter = macro.parameters[i];
    const Value* found = arguments.find(i, parameter.name);
    inner.names[parameter.name] = found != nullptr             ? *found
                                  : parameter.value != nullptr ? evaluate(*parameter.value)
                                                               : Value(Undefined{parameter.name});
  }
  if (macro.takes_more) {
    const auto more = given.begin() + static_cast<ptrdiff_t>(std::min(count, given.size()));
    inner.names["varargs"] = Value::List(more, given.end());
  }
  if (macro.takes_names) inner.names["kwargs"] = std::move(others);
  const std::string text = captured(macro.body);
  scope_ = before;
  --calls_;
  return text;
}

Value Interpreter::call_function(const std::string& name, const CallArguments& arguments) {
  const Value::List& given = arguments.positional;
  if (name == "namespace" || name == "dict") {
    Dict members;
    if (!given.empty()) {
      if (!given[0].is_dict()) base::fail_invalid(name, " of ", given[0].type_name());
      members = *given[0].dict();
    }
    base::require(given.size() <= 1, name, " takes one dictionary at most");
    for (const auto& [key, value] : arguments.named) members.set(key, value);
    if (name == "dict") return members;
    budget_.take(sizeof(Namespace));
    return &spaces_.emplace_back(Namespace{std::move(members)});
  }
  base::require(!given.empty(), name, " lacks an argument");
  check_arguments(name, name == "range" ? "- - -" : "-", arguments);
  if (name == "raise_exception") base::fail_invalid("the template refuses: ", given[0].to_text(budget_));
  if (name == "strftime_now") {
    budget_.take(given[0].as_text().size() * kTimeBytes);
    return time_text(given[0].as_text(), now_s_);
  }
  const int64_t start = given.size() > 1 ? given[0].as_integer() : 0;
  const int64_t stop = given[given.size() > 1 ? 1 : 0].as_integer();
  const int64_t step = given.size() > 2 ? given[2].as_integer() : 1;
  base::require(step != 0, "a range with steps of 0");
  Value::List numbers;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    budget_.take(sizeof(Value));
    numbers.push_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return numbers;
}

}  // namespace trireme::data::jinja
