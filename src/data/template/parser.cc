// Parses templates: one function for each level of precedence, as in Jinja's grammar.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "base/error.h"
#include "data/template/lexer.h"
#include "data/template/syntax.h"

namespace trireme::data::jinja {
namespace {

using TokenKind = TemplateToken::Kind;
using Node = Expression::Kind;
constexpr int kDeepestExpression = 200;

ExpressionPtr node(Node kind, int line, std::string text = {}) {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = line;
  made->text = std::move(text);
  return made;
}

template <class... Parts>
ExpressionPtr node_of(Node kind, int line, std::string text, Parts... parts) {
  ExpressionPtr made = node(kind, line, std::move(text));
  (made->parts.push_back(std::move(parts)), ...);
  return made;
}

class Parser {
 public:
  explicit Parser(std::vector<TemplateToken> tokens) : tokens_(std::move(tokens)) {}

  Body run() {
    Body body = statements({});
    if (peek().kind != TokenKind::end) fail("a block that was not opened");
    return body;
  }

 private:
  /// Counts the nesting depth of the grammar's rules.
  class Level {
   public:
    explicit Level(Parser& parser) : parser_(parser) {
      if (++parser_.depth_ > kDeepestExpression) parser_.fail("nested too deeply");
    }
    ~Level() { --parser_.depth_; }

   private:
    Parser& parser_;
  };

  const TemplateToken& peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  TemplateToken take() { return tokens_[std::min(at_++, tokens_.size() - 1)]; }
  [[noreturn]] void fail(std::string_view what) const {
    base::fail_invalid("template line ", peek().line, ": ", what,
                       peek().text.empty() ? "" : base::concat(" at '", peek().text.substr(0, 40), "'"));
  }
  bool accept(std::string_view text) {
    if (!peek().is(text)) return false;
    ++at_;
    return true;
  }
  void expect(std::string_view text) {
    if (!accept(text)) fail(base::concat("'", text, "' expected"));
  }
  void expect(TokenKind kind) {
    if (peek().kind != kind) fail("the end of the tag expected");
    ++at_;
  }
  std::string name() {
    if (peek().kind != TokenKind::name) fail("a name expected");
    return take().text;
  }

  /// Statements up to a block that begins with one of `ends`; the block's name is not consumed.
  Body statements(std::initializer_list<std::string_view> ends);
  std::unique_ptr<Statement> block();
  void branch(Statement& s);
  void loop(Statement& s);
  void set(Statement& s);
  void macro(Statement& s);
  std::vector<std::string> targets();
  void end_block(std::string_view end) {
    expect(TokenKind::block_begin);
    expect(end);
    expect(TokenKind::block_end);
  }

  ExpressionPtr expression();
  ExpressionPtr tuple();
  ExpressionPtr disjunction();
  ExpressionPtr conjunction();
  ExpressionPtr negation();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concatenation();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filters);
  ExpressionPtr primary();
  ExpressionPtr string();
  ExpressionPtr dict();
  ExpressionPtr postfix(ExpressionPtr of);
  ExpressionPtr subscript(ExpressionPtr of);
  ExpressionPtr filters(ExpressionPtr of);
  ExpressionPtr test(ExpressionPtr of);
  std::vector<Argument> arguments();
  ExpressionPtr items(std::string_view close, ExpressionPtr list);
  ExpressionPtr chain(ExpressionPtr (Parser::*next)(), std::initializer_list<std::string_view> operators);

  std::vector<TemplateToken> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
  MacroStatement* macro_ = nullptr;  ///< whose body is read
};

Body Parser::statements(std::initializer_list<std::string_view> ends) {
  const Level level(*this);
  Body body;
  while (peek().kind != TokenKind::end) {
    auto made = std::make_unique<Statement>();
    made->line = peek().line;
    if (peek().kind == TokenKind::text) {
      made->text = take().text;
    } else if (peek().kind == TokenKind::output_begin) {
      ++at_;
      made->kind = Statement::Kind::output;
      made->expression = tuple();
      expect(TokenKind::output_end);
    } else {
      if (std::any_of(ends.begin(), ends.end(), [&](auto end) { return peek(1).is(end); })) return body;
      if (peek(1).text.starts_with("end") || peek(1).is("else") || peek(1).is("elif"))
        fail("no block to end");
      expect(TokenKind::block_begin);
      made = block();
    }
    body.push_back(std::move(made));
  }
  if (ends.size() > 0) fail(base::concat("'", *ends.begin(), "' expected before the end of the template"));
  return body;
}

std::unique_ptr<Statement> Parser::block() {
  using Is = Statement::Kind;
  auto made = std::make_unique<Statement>();
  Statement& s = *made;
  s.line = peek().line;
  const std::string kind = name();
  if (kind == "if") {
    branch(s);
  } else if (kind == "for") {
    loop(s);
  } else if (kind == "set") {
    set(s);
  } else if (kind == "macro") {
    macro(s);
  } else if (kind == "break" || kind == "continue") {
    if (loops_ == 0) fail("a break or continue outside of a loop");
    s.kind = kind == "break" ? Is::stop : Is::skip;
    expect(TokenKind::block_end);
  } else if (kind == "generation") {
    s.kind = Is::generation;
    expect(TokenKind::block_end);
    s.body = statements({"endgeneration"});
    end_block("endgeneration");
  } else if (kind == "filter") {
    s.kind = Is::filter;
    ExpressionPtr first = node_of(Node::filter, s.line, name(), ExpressionPtr());
    if (accept("(")) first->arguments = arguments();
    s.expression = filters(std::move(first));
    expect(TokenKind::block_end);
    s.body = statements({"endfilter"});
    end_block("endfilter");
  } else {
    base::fail_unsupported("template line ", s.line, ": the statement '", kind, "'");
  }
  return made;
}

void Parser::branch(Statement& s) {
  const Level level(*this);
  s.kind = Statement::Kind::branch;
  s.expression = tuple();
  expect(TokenKind::block_end);
  s.body = statements({"elif", "else", "endif"});
  expect(TokenKind::block_begin);
  const std::string next = name();
  if (next == "elif") {
    s.otherwise.push_back(std::make_unique<Statement>());
    s.otherwise.back()->line = peek().line;
    return branch(*s.otherwise.back());
  }
  expect(TokenKind::block_end);
  if (next != "else") return;
  s.otherwise = statements({"endif"});
  end_block("endif");
}

void Parser::loop(Statement& s) {
  s.kind = Statement::Kind::loop;
  s.targets = targets();
  expect("in");
  s.expression = disjunction();
  if (peek().is(",")) fail("a list of several values needs brackets");
  if (accept("if")) s.condition = expression();
  if (accept("recursive")) base::fail_unsupported("template line ", s.line, ": a recursive loop");
  expect(TokenKind::block_end);
  ++loops_;
  s.body = statements({"else", "endfor"});
  --loops_;
  expect(TokenKind::block_begin);
  const std::string next = name();
  expect(TokenKind::block_end);
  if (next != "else") return;
  s.otherwise = statements({"endfor"});
  end_block("endfor");
}

void Parser::set(Statement& s) {
  s.kind = Statement::Kind::set;
  s.targets = targets();
  if (accept(".")) {
    if (s.targets.size() != 1) fail("one member of one object expected");
    s.text = name();
  }
  if (accept("=")) {
    s.expression = tuple();
    return expect(TokenKind::block_end);
  }
  s.kind = Statement::Kind::set_block;
  s.expression = filters(nullptr);
  expect(TokenKind::block_end);
  s.body = statements({"endset"});
  end_block("endset");
}

void Parser::macro(Statement& s) {
  if (loops_ > 0 || macro_ != nullptr)
    base::fail_unsupported("template line ", s.line, ": a macro inside a loop or a macro");
  s.kind = Statement::Kind::macro;
  s.macro.name = name();
  expect("(");
  while (!accept(")")) {
    Argument parameter{name(), nullptr};
    if (accept("=")) parameter.value = expression();
    s.macro.parameters.push_back(std::move(parameter));
    if (!peek().is(")")) expect(",");
  }
  expect(TokenKind::block_end);
  macro_ = &s.macro;
  s.macro.body = statements({"endmacro"});
  macro_ = nullptr;
  expect(TokenKind::block_begin);
  expect("endmacro");
  if (peek().kind == TokenKind::name) ++at_;
  expect(TokenKind::block_end);
}

std::vector<std::string> Parser::targets() {
  std::vector<std::string> names;
  const bool has_brackets = accept("(");
  do {
    if (!names.empty() && peek().kind != TokenKind::name) break;
    names.push_back(name());
  } while (accept(","));
  if (has_brackets) expect(")");
  return names;
}

ExpressionPtr Parser::tuple() {
  ExpressionPtr first = expression();
  if (!peek().is(",")) return first;
  const int line = first->line;
  ExpressionPtr list = node_of(Node::list, line, "tuple", std::move(first));
  while (accept(",")) {
    const TokenKind kind = peek().kind;
    if (kind == TokenKind::block_end || kind == TokenKind::output_end || peek().is(")")) break;
    list->parts.push_back(expression());
  }
  return list;
}

ExpressionPtr Parser::expression() {
  const Level level(*this);
  ExpressionPtr value = disjunction();
  while (accept("if")) {
    ExpressionPtr condition = disjunction(), otherwise;
    if (accept("else")) otherwise = expression();
    const int line = value->line;
    value =
        node_of(Node::conditional, line, "", std::move(value), std::move(condition), std::move(otherwise));
  }
  return value;
}

/// Left-associative operators of one level.
ExpressionPtr Parser::chain(ExpressionPtr (Parser::*next)(),
                            std::initializer_list<std::string_view> operators) {
  ExpressionPtr left = (this->*next)();
  int links = 0;
  for (;;) {
    const auto found =
        std::find_if(operators.begin(), operators.end(), [&](auto op) { return peek().is(op); });
    if (found == operators.end()) return left;
    // A chain becomes a tree that is as deep as the chain is long.
    if (++links > kDeepestExpression) fail("too many operators in a row");
    const int line = take().line;
    ExpressionPtr right = (this->*next)();
    left = node_of(Node::binary, line, std::string(*found), std::move(left), std::move(right));
  }
}

ExpressionPtr Parser::disjunction() { return chain(&Parser::conjunction, {"or"}); }
ExpressionPtr Parser::conjunction() { return chain(&Parser::negation, {"and"}); }

ExpressionPtr Parser::negation() {
  const Level level(*this);
  if (!peek().is("not")) return comparison();
  const int line = take().line;
  return node_of(Node::unary, line, "not", negation());
}

ExpressionPtr Parser::comparison() {
  ExpressionPtr first = sum();
  ExpressionPtr whole;
  for (;;) {
    std::string op;
    for (const std::string_view known : {"==", "!=", "<=", ">=", "<", ">", "in"}) {
      if (peek().is(known)) op = known;
    }
    if (op.empty() && peek().is("not") && peek(1).is("in")) op = "not in";
    if (op.empty()) return whole != nullptr ? std::move(whole) : std::move(first);
    at_ += op == "not in" ? 2 : 1;
    if (whole == nullptr) {
      const int line = first->line;
      whole = node_of(Node::compare, line, "", std::move(first));
    }
    whole->operators.push_back(op);
    whole->parts.push_back(sum());
  }
}

ExpressionPtr Parser::sum() { return chain(&Parser::concatenation, {"+", "-"}); }
ExpressionPtr Parser::concatenation() { return chain(&Parser::product, {"~"}); }
ExpressionPtr Parser::product() { return chain(&Parser::power, {"*", "/", "//", "%"}); }

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary(true);
  while (peek().is("**")) {
    const int line = take().line;
    left = node_of(Node::binary, line, "**", std::move(left), unary(true));
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filters) {
  const Level level(*this);
  ExpressionPtr value;
  if (peek().is("-") || peek().is("+")) {
    const TemplateToken sign = take();
    value = node_of(Node::unary, sign.line, sign.text, unary(false));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::string() {
  ExpressionPtr made = node(Node::constant, peek().line);
  std::string text;
  while (peek().kind == TokenKind::string) text += take().text;
  made->value = text;
  return made;
}

ExpressionPtr Parser::primary() {
  const TemplateToken& token = peek();
  if (token.kind == TokenKind::string) return string();
  ExpressionPtr made = node(Node::constant, token.line);
  if (token.kind == TokenKind::name) {
    const std::string word = take().text;
    if (word == "true" || word == "True") {
      made->value = true;
    } else if (word == "false" || word == "False") {
      made->value = false;
    } else if (word != "none" && word != "None") {
      made->kind = Node::name;
      made->text = word;
      if (macro_ != nullptr && word == "varargs") macro_->takes_more = true;
      if (macro_ != nullptr && word == "kwargs") macro_->takes_names = true;
    }
    return made;
  }
  if (token.kind == TokenKind::integer) {
    int64_t number = 0;
    const auto [end, error] =
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), number);
    if (error != std::errc()) fail("a number out of range");
    ++at_;
    made->value = number;
    return made;
  }
  if (token.kind == TokenKind::real) {
    made->value = std::strtod(take().text.c_str(), nullptr);
    return made;
  }
  made->kind = Node::list;
  if (accept("(")) {
    made->text = "tuple";
    if (accept(")")) return made;
    ExpressionPtr inner = tuple();
    expect(")");
    return inner;
  }
  if (accept("[")) return items("]", std::move(made));
  if (accept("{")) return dict();
  fail("an expression expected");
}

ExpressionPtr Parser::items(std::string_view close, ExpressionPtr list) {
  while (!accept(close)) {
    list->parts.push_back(expression());
    if (!peek().is(close)) expect(",");
  }
  return list;
}

ExpressionPtr Parser::dict() {
  ExpressionPtr made = node(Node::dict, peek().line);
  while (!accept("}")) {
    made->parts.push_back(expression());
    expect(":");
    made->parts.push_back(expression());
    if (!peek().is("}")) expect(",");
  }
  return made;
}

ExpressionPtr Parser::postfix(ExpressionPtr of) {
  for (int links = 0;; ++links) {
    if (links > kDeepestExpression) fail("too many members in a row");
    const int line = peek().line;
    if (accept(".")) {
      if (peek().kind == TokenKind::integer) {
        of = node_of(Node::item, line, "", std::move(of), primary());
      } else {
        of = node_of(Node::attribute, line, name(), std::move(of));
      }
    } else if (accept("[")) {
      of = subscript(std::move(of));
    } else if (accept("(")) {
      of = node_of(Node::call, line, "", std::move(of));
      of->arguments = arguments();
    } else {
      return of;
    }
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr of) {
  const int line = peek().line;
  ExpressionPtr parts[3];
  int colons = 0;
  while (!accept("]")) {
    if (accept(":")) {
      if (++colons > 2) fail("a slice has three parts at most");
    } else {
      if (parts[colons] != nullptr) fail("']' expected");
      parts[colons] = expression();
    }
  }
  if (colons == 0) {
    if (parts[0] == nullptr) fail("an index expected");
    return node_of(Node::item, line, "", std::move(of), std::move(parts[0]));
  }
  return node_of(Node::slice, line, "", std::move(of), std::move(parts[0]), std::move(parts[1]),
                 std::move(parts[2]));
}

ExpressionPtr Parser::filters(ExpressionPtr of) {
  for (int links = 0;; ++links) {
    if (links > kDeepestExpression) fail("too many filters in a row");
    const int line = peek().line;
    if (accept("|")) {
      of = node_of(Node::filter, line, name(), std::move(of));
      if (accept("(")) of->arguments = arguments();
    } else if (of != nullptr && accept("is")) {
      of = test(std::move(of));
    } else if (of != nullptr && peek().is("(")) {
      of = postfix(std::move(of));
    } else {
      return of;
    }
  }
}

ExpressionPtr Parser::test(ExpressionPtr of) {
  const int line = peek().line;
  const bool is_negated = accept("not");
  ExpressionPtr made = node_of(Node::test, line, name(), std::move(of));
  const TokenKind next = peek().kind;
  const bool is_value = next == TokenKind::string || next == TokenKind::integer || next == TokenKind::real ||
                        peek().is("[") || peek().is("{");
  const bool is_name = next == TokenKind::name && !peek().is("else") && !peek().is("or") &&
                       !peek().is("and") && !peek().is("is") && !peek().is("if") && !peek().is("in") &&
                       !peek().is("not") && !peek().is("recursive");
  if (accept("(")) {
    made->arguments = arguments();
  } else if (is_value || is_name) {
    made->arguments.push_back({"", postfix(primary())});
  }
  return is_negated ? node_of(Node::unary, line, "not", std::move(made)) : std::move(made);
}

std::vector<Argument> Parser::arguments() {
  const Level level(*this);
  std::vector<Argument> list;
  while (!accept(")")) {
    Argument argument;
    if (peek().is("*") || peek().is("**"))
      base::fail_unsupported("template line ", peek().line, ": * before an argument");
    if (peek().kind == TokenKind::name && peek(1).is("=")) {
      argument.name = name();
      ++at_;
    } else if (!list.empty() && !list.back().name.empty()) {
      fail("an argument without a name behind one with a name");
    }
    argument.value = expression();
    list.push_back(std::move(argument));
    if (!peek().is(")")) expect(",");
  }
  return list;
}

}  // namespace

Template parse_template(std::string_view source) { return {Parser(tokens_of_template(source)).run()}; }

}  // namespace trireme::data::jinja
