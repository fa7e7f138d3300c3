// The tree of a parsed template.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/template/value.h"

namespace trireme::data::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

/// An argument of a call, filter or test; a name makes it a keyword.
struct Argument {
  std::string name;
  ExpressionPtr value;
};

struct Expression {
  enum class Kind {
    constant,     // value
    name,         // text
    list,         // parts; text: "tuple", or empty
    dict,         // parts: key, value, key, value
    attribute,    // parts[0].text
    item,         // parts[0][parts[1]]
    slice,        // parts[0][parts[1]:parts[2]:parts[3]]; null where left out
    call,         // parts[0](arguments)
    filter,       // parts[0] | text(arguments)
    test,         // parts[0] is text(arguments)
    unary,        // text parts[0]: - + not
    binary,       // parts[0] text parts[1]: + - * / // % ** ~ and or
    compare,      // parts[0] operators[0] parts[1] operators[1] parts[2] ...
    conditional,  // parts[0] if parts[1] else parts[2]; null without else
  };
  Kind kind = Kind::constant;
  int line = 0;
  std::string text;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<Argument> arguments;
  std::vector<std::string> operators;
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

/// A macro's name, parameters (a default or null) and body.
struct MacroStatement {
  std::string name;
  std::vector<Argument> parameters;
  Body body;
  bool takes_more = false;   ///< its body reads `varargs`
  bool takes_names = false;  ///< its body reads `kwargs`
};

struct Statement {
  enum class Kind {
    text,        // text
    output,      // expression
    branch,      // if expression: body, else otherwise
    loop,        // for targets in expression if condition: body, else otherwise
    set,         // targets = expression; member: targets[0].text = expression
    set_block,   // targets = body, through the filters of `expression` (its innermost part is null)
    filter,      // body through the filters of `expression`
    macro,       // macro
    generation,  // body: what the assistant said
    stop,        // break
    skip,        // continue
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text;
  std::vector<std::string> targets;
  ExpressionPtr expression, condition;
  Body body, otherwise;
  MacroStatement macro;
};

struct Template {
  Body body;
};

/// Parses Jinja as chat templates are written: blocks swallow the line end behind them and the space before
/// them (trim_blocks, lstrip_blocks). Throws invalid_argument with the line; unsupported, by name, for
/// statements of Jinja that chat templates do not use (include, import, extends, block, call, do, with,
/// trans).
Template parse_template(std::string_view source);

}  // namespace trireme::data::jinja
