// Renders a parsed template.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/template/calls.h"
#include "data/template/syntax.h"

namespace trireme::data::jinja {

/// One rendering. One thread.
class Interpreter {
 public:
  /// `now_s`: seconds since 1970 for strftime_now, in local time.
  Interpreter(const Template& source, Dict globals, Budget budget, int64_t now_s)
      : template_(source), globals_(std::move(globals)), budget_(budget), now_s_(now_s) {}

  /// Throws invalid_argument for what the template refuses (raise_exception) or cannot do, with the line;
  /// exhausted when the budget is; unsupported, by name, for what is not done here.
  std::string render();

 private:
  enum class Flow { next, stop, skip };
  /// Names of a loop's body or a macro; the template's own are the outermost.
  struct Scope {
    Scope* outer = nullptr;
    std::unordered_map<std::string, Value> names;
  };

  Flow run(const Body& body);
  Flow run(const Statement& s);
  Flow loop(const Statement& s);
  void set(const Statement& s);
  std::string captured(const Body& body);
  void write(const Value& value);
  void assign(const std::vector<std::string>& targets, const Value& value);
  bool keeps(const Statement& s, const Value& item);

  Value evaluate(const Expression& e);
  Value operate(const Expression& e);
  Value unary(const Expression& e);
  Value formatted(const std::string& format, const Expression& values);
  Value arithmetic(const std::string& op, const Value& a, const Value& b);
  Value add(const Value& a, const Value& b);
  Value repeat(const Value& what, int64_t times);
  bool compare(const Expression& e);
  Value slice(const Expression& e);
  Value filtered(const Expression& e, const Value* innermost);
  Value call(const Expression& e);
  Value call_macro(const MacroStatement& macro, const CallArguments& arguments);
  Value call_function(const std::string& name, const CallArguments& arguments);
  Value call_loop(LoopState& loop, const std::string& name, const CallArguments& arguments);
  CallArguments arguments_of(const std::vector<Argument>& arguments);
  Value find(const std::string& name) const;

  const Template& template_;
  Dict globals_;
  Budget budget_;
  int64_t now_s_;
  Scope root_;
  Scope* scope_ = &root_;
  // All that this rendering made: they may hold one another, and loops may be asked when they are over.
  std::deque<Namespace> spaces_;
  std::deque<LoopState> loops_;
  std::string* out_ = nullptr;
  int calls_ = 0;
};

}  // namespace trireme::data::jinja
