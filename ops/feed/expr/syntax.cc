#include "feed/expr/syntax.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

namespace pbx::expr {
namespace {

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

enum class Token { kEnd, kNumber, kText, kName, kQuotedName, kMark, kWrong };

// Cuts the text into tokens; the current one is in the members.
class Tokens {
 public:
  explicit Tokens(const std::string& text) : text_(text) { Next(); }

  Token token = Token::kEnd;
  size_t at = 0;      // where it begins
  std::string value;  // the mark, name or content of the text; kWrong: what is wrong
  double number = 0;

  bool Is(const char* mark) const { return token == Token::kMark && value == mark; }
  bool IsWord(const char* word) const { return token == Token::kName && value == word; }
  std::string Found() const {
    if (token == Token::kEnd) return "the end of the expression";
    if (token == Token::kText) return "the text '" + value + "'";
    return "'" + text_.substr(at, end_ - at) + "'";
  }

  void Next() {
    while (end_ < text_.size() && std::strchr(" \t\r\n", text_[end_]) != nullptr) ++end_;
    at = end_;
    value.clear();
    if (at == text_.size()) {
      token = Token::kEnd;
    } else if (IsDigit(text_[at]) || (text_[at] == '.' && IsDigit(At(at + 1)))) {
      Number();
    } else if (IsNameStart(text_[at])) {
      while (IsNameStart(At(end_)) || IsDigit(At(end_))) ++end_;
      token = Token::kName;
      value = text_.substr(at, end_ - at);
    } else if (std::strchr("'\"`", text_[at]) != nullptr) {
      Quoted();
    } else {
      Mark();
    }
  }

 private:
  char At(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  void Wrong(const std::string& why) {
    token = Token::kWrong;
    value = why;
  }

  void Number() {
    const char* const first = text_.data() + at;
    const auto [last, error] = std::from_chars(first, text_.data() + text_.size(), number);
    end_ = static_cast<size_t>(last - text_.data());
    token = Token::kNumber;
    if (error != std::errc() || !std::isfinite(number)) return Wrong("a number out of range");
    if (IsNameStart(At(end_)) || At(end_) == '.') return Wrong("a malformed number");
    value = text_.substr(at, end_ - at);
  }

  // Two quotes stand for one.
  void Quoted() {
    const char quote = text_[at];
    for (++end_;; ++end_) {
      if (end_ >= text_.size()) return Wrong("a quote that is not closed");
      if (text_[end_] == quote) {
        if (At(end_ + 1) != quote) break;
        ++end_;
      }
      value.push_back(text_[end_]);
    }
    ++end_;
    token = quote == '`' ? Token::kQuotedName : Token::kText;
  }

  void Mark() {
    static constexpr const char* kMarks[] = {"==", "!=", "<=", ">=", "<", ">", "+",
                                             "-",  "*",  "/",  "(",  ")", ","};
    for (const char* mark : kMarks) {
      if (text_.compare(at, std::strlen(mark), mark) != 0) continue;
      token = Token::kMark;
      value = mark;
      end_ = at + std::strlen(mark);
      return;
    }
    end_ = at + 1;
    Wrong(text_[at] == '=' ? "'=': equality is written =="
                           : "'" + text_.substr(at, 1) + "', which is no part of the language");
  }

  const std::string& text_;
  size_t end_ = 0;
};

// Recursive descent. A method returns false after the first mistake, which is in status().
class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text), tokens_(text) {}

  Status Parse(Node* out) {
    if (!Or(out)) return status_;
    if (tokens_.token != Token::kEnd) Expected("an operator or the end");
    return status_;
  }

 private:
  bool Expected(const std::string& what) {
    if (status_.ok()) {
      const bool wrong = tokens_.token == Token::kWrong;
      status_ =
          ErrorAt(text_, tokens_.at,
                  "expected " + what + ", found " + (wrong ? tokens_.value : tokens_.Found()));
    }
    return false;
  }

  static Node Call(std::string name, size_t at, Node first) {
    Node node;
    node.kind = NodeKind::kCall;
    node.at = at;
    node.text = std::move(name);
    node.args.push_back(std::move(first));
    return node;
  }

  // A chain of operators of one precedence, from left to right.
  template <typename IsOne>
  bool Chain(Node* out, bool (Parser::*operand)(Node*), IsOne is_one) {
    if (!(this->*operand)(out)) return false;
    while (is_one()) {
      Node call = Call(tokens_.value, tokens_.at, std::move(*out));
      tokens_.Next();
      call.args.emplace_back();
      if (!(this->*operand)(&call.args.back())) return false;
      if (!Finish(std::move(call), out)) return false;
    }
    return true;
  }

  // Takes a call with all of its arguments.
  bool Finish(Node call, Node* out) {
    for (const Node& arg : call.args) call.height = std::max(call.height, arg.height + 1);
    if (call.height > kMostDepth) return TooDeep();
    *out = std::move(call);
    return true;
  }

  bool TooDeep() {
    if (status_.ok()) {
      status_ = ErrorAt(text_, tokens_.at,
                        "expected at most " + std::to_string(kMostDepth) +
                            " levels or operators in a row: divide the expression");
    }
    return false;
  }

  bool Or(Node* out) {
    return Chain(out, &Parser::And, [this] { return tokens_.IsWord("or"); });
  }
  bool And(Node* out) {
    return Chain(out, &Parser::Not, [this] { return tokens_.IsWord("and"); });
  }
  bool Not(Node* out) {
    return tokens_.IsWord("not") ? Prefixed("not", out, &Parser::Not) : Comparison(out);
  }
  bool Prefixed(const char* name, Node* out, bool (Parser::*operand)(Node*)) {
    if (++depth_ > kMostDepth) return TooDeep();
    const size_t at = tokens_.at;
    tokens_.Next();
    Node inner;
    if (!(this->*operand)(&inner)) return false;
    --depth_;
    return Finish(Call(name, at, std::move(inner)), out);
  }
  bool IsComparison() const {
    for (const char* mark : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (tokens_.Is(mark)) return true;
    }
    return false;
  }
  bool Comparison(Node* out) {
    if (!Sum(out) || !IsComparison()) return status_.ok();
    Node call = Call(tokens_.value, tokens_.at, std::move(*out));
    tokens_.Next();
    call.args.emplace_back();
    if (!Sum(&call.args.back()) || !Finish(std::move(call), out)) return false;
    return !IsComparison() || Expected("'and' or 'or' between two comparisons");
  }
  bool Sum(Node* out) {
    return Chain(out, &Parser::Product, [this] { return tokens_.Is("+") || tokens_.Is("-"); });
  }
  bool Product(Node* out) {
    return Chain(out, &Parser::Signed, [this] { return tokens_.Is("*") || tokens_.Is("/"); });
  }
  bool Signed(Node* out) {
    if (!tokens_.Is("-")) return Primary(out);
    const size_t at = tokens_.at;
    if (!Prefixed("negative", out, &Parser::Signed)) return false;
    Node& inner = out->args[0];
    if (inner.kind == NodeKind::kNumber) {  // a literal
      Node literal = std::move(inner);
      literal.number = -literal.number;
      literal.integer = -literal.integer;
      literal.at = at;
      *out = std::move(literal);
    }
    return true;
  }

  bool Primary(Node* out) {
    if (++depth_ > kMostDepth) return TooDeep();
    const bool taken = Value(out);
    --depth_;
    return taken;
  }

  bool Value(Node* out) {
    out->at = tokens_.at;
    switch (tokens_.token) {
      case Token::kNumber: return Number(out);
      case Token::kText:
        out->kind = NodeKind::kText;
        out->text = tokens_.value;
        tokens_.Next();
        return true;
      case Token::kName:
      case Token::kQuotedName: return Named(out);
      default: break;
    }
    if (!tokens_.Is("(")) return Expected("a value");
    tokens_.Next();
    return Or(out) && Take(")");
  }

  bool Take(const char* mark) {
    if (!tokens_.Is(mark)) return Expected(std::string("'") + mark + "'");
    tokens_.Next();
    return true;
  }

  bool Number(Node* out) {
    const std::string& digits = tokens_.value;
    out->kind = NodeKind::kNumber;
    out->number = tokens_.number;
    const char* const end = digits.data() + digits.size();
    const auto [last, error] = std::from_chars(digits.data(), end, out->integer);
    out->whole = error == std::errc() && last == end;
    if (!out->whole) out->integer = 0;
    tokens_.Next();
    return true;
  }

  bool Named(Node* out) {
    const bool quoted = tokens_.token == Token::kQuotedName;
    out->text = tokens_.value;
    if (!quoted && (tokens_.IsWord("and") || tokens_.IsWord("or") || tokens_.IsWord("not"))) {
      return Expected("a value");
    }
    tokens_.Next();
    if (!quoted && tokens_.Is("(")) return Arguments(out);
    const bool truth = out->text == "true";
    if (!quoted && (truth || out->text == "false")) {
      out->kind = NodeKind::kBool;
      out->number = truth ? 1 : 0;
    } else {
      out->kind = !quoted && out->text == "null" ? NodeKind::kNull : NodeKind::kColumn;
    }
    return true;
  }

  bool Arguments(Node* out) {
    out->kind = NodeKind::kCall;
    tokens_.Next();
    while (!tokens_.Is(")")) {
      if (!out->args.empty()) {
        if (!tokens_.Is(",")) return Expected("',' or ')'");
        tokens_.Next();
      }
      out->args.emplace_back();
      if (!Or(&out->args.back())) return false;
    }
    return Take(")") && Finish(std::move(*out), out);
  }

  const std::string& text_;
  Tokens tokens_;
  Status status_;
  int depth_ = 0;
};

}  // namespace

Status ErrorAt(const std::string& text, size_t at, const std::string& what) {
  size_t column = 1;  // in characters
  for (size_t i = 0; i < at; ++i) column += (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
  const std::string shown = text.size() <= 200 ? text : text.substr(0, 200) + "...";
  return Error(Code::kInvalidArgument, "column %zu of expr: %s: %s", column, shown.c_str(),
               what.c_str());
}

Result<Node> ParseExpression(const std::string& text) {
  if (text.size() > kMostText) {
    return Error(Code::kInvalidArgument, "expr has %zu bytes, expected at most %zu: divide it",
                 text.size(), kMostText);
  }
  Node node;
  PBX_RETURN_IF_ERROR(Parser(text).Parse(&node));
  return node;
}

}  // namespace pbx::expr
