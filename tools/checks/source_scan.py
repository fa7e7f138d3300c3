# Finds functions, their lengths and parameter counts, and members of classes in C++ by matching braces: no parser, but
# robust on our style.
#
# Comments, literals and preprocessor lines are blanked first (of #if/#else only the first branch stays, so braces
# balance). A brace opens a scope (namespace, class, extern "C"), an initialiser, or a function, judged by the text
# before it. Lambdas and control flow inside a function belong to that function.
import re
from dataclasses import dataclass

BLANK = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s"]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\'', re.S)
SCOPE = re.compile(r"^(?:inline\s+|export\s+)?(?:namespace|class|struct|union|enum|extern)\b")
NOT_FUNCTIONS = {"if", "for", "while", "switch", "catch", "return", "static_assert", "alignas", "decltype", "requires",
                 "sizeof", "typedef", "using", "friend", "define", "defined"}


@dataclass
class Function:
    name: str
    line: int
    lines: int
    parameters: int


def blank(text):
    """The same text, the same lines, with comments, literals and preprocessor lines made of spaces."""
    def spaces(match):
        return "".join("\n" if char == "\n" else " " for char in match[0])

    def literal(match):
        return spaces(match) if match[0].startswith("/") else '"' + spaces(match)[2:] + '"'

    return drop_preprocessor(BLANK.sub(literal, text))


def drop_preprocessor(text):
    lines = []
    skipping = [False]  # one entry per open #if: are we past its first branch?
    continued = False
    for line in text.split("\n"):
        directive = re.match(r"\s*#\s*(\w+)", line)
        if directive and not continued:
            word = directive[1]
            if word in ("if", "ifdef", "ifndef"):
                skipping.append(skipping[-1])
            elif word in ("else", "elif") and len(skipping) > 1:
                skipping[-1] = True
            elif word == "endif" and len(skipping) > 1:
                skipping.pop()
        drop = bool(directive) or continued or skipping[-1]
        continued = (bool(directive) or continued) and line.rstrip().endswith("\\")
        lines.append("" if drop else line)
    return "\n".join(lines)


def strip_template(head):
    """Drops `template <...>` and attributes at the front."""
    head = re.sub(r"\[\[.*?\]\]|__attribute__\s*\(\(.*?\)\)", " ", head, flags=re.S).strip()
    while head.startswith("template"):
        depth = 0
        for place, char in enumerate(head):
            depth += (char == "<") - (char == ">")
            if char == ">" and depth == 0:
                head = head[place + 1:].strip()
                break
        else:
            return head
    return re.sub(r"^(public|private|protected)\s*:\s*", "", head).strip()


def matching(text, start):
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    return len(text)


def signature(head):
    """(name, parameter count) when the text before a brace or semicolon declares a function, else None."""
    head = strip_template(head)
    call = re.search(r"(operator\s*(?:\(\s*\)|[^\s\w(]+|\s\w+)|~?[A-Za-z_]\w*)\s*\(", head)
    if not call or call[1] in NOT_FUNCTIONS or SCOPE.match(head):
        return None
    before = head[:call.start()]
    if "=" in before or "return" in before.split() or before.rstrip().endswith((".", "->")):
        return None
    open_place = call.end() - 1
    return call[1], count_parameters(head[open_place + 1:matching(head, open_place)])


def count_parameters(inside):
    if not inside.strip() or inside.strip() == "void":
        return 0
    depth, count = 0, 1
    for char in inside.replace("->", "  "):
        depth += (char in "([{<") - (char in ")]}>")
        count += char == "," and depth == 0
    return count


def kind_of_brace(head):
    """scope, function, or inside (initialiser, table, member initialiser)."""
    head = strip_template(head)
    if SCOPE.match(head) and not re.search(r"\)\s*(const|noexcept)?\s*$", head):
        return "scope"
    found = signature(head)
    if not found:
        return "scope" if not head else "inside"
    ending = head.rstrip()
    initialisers = re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", ending)
    if initialisers and re.search(r"[\w>]$", ending):
        return "inside"  # `Foo(int a) : a_{a}`: the brace of a member
    return "function"


def walk(code):
    """Yields (kind, start of its first words, these words, its end, start of the scope around it) of every function with
    a body, every statement and every scope at namespace or class level, each when it ends."""
    stack, head_start, place = [], 0, 0

    def around():
        return stack[-1][1] if stack else None

    while place < len(code):
        char = code[place]
        head = code[head_start:place]
        if char == "{":
            kind = "inside" if any(entry[0] != "scope" for entry in stack) else kind_of_brace(head)
            stack.append((kind, head_start, head))
            if kind != "inside":
                head_start = place + 1
        elif char == "}" and stack:
            kind, start, head = stack.pop()
            if kind != "inside":
                yield kind, start, head, place, around()
                head_start = place + 1
        elif char == ";" and all(entry[0] == "scope" for entry in stack):
            yield "statement", head_start, head, place, around()
            head_start = place + 1
        place += 1


def scan(text):
    """Yields every function defined or declared (lines 0) at namespace or class level."""
    code = blank(text)
    for kind, start, head, end, _ in walk(code):
        if kind == "function":
            yield make(code, start, head, end)
        elif kind == "statement" and signature(head) and not re.match(r"\s*[A-Z][A-Z0-9_]*\s*\(", head):
            yield make(code, start, head, None)


NOT_MEMBERS = re.compile(r"(using|typedef|friend|static_assert|enum)\b|(class|struct|union)\s+\w+$")
CLASS = re.compile(r"^(?:class|struct)\s+(?:\[\[.*?\]\]\s*|alignas\([^)]*\)\s*)*((?:\w+::)*\w+)")


def classes(text):
    """Yields (name, line, members) of every class: its fields and functions; types, friends and bases do not count."""
    code = blank(text)
    members = {}
    for kind, start, head, _, scope in walk(code):
        words = strip_template(head)
        if kind == "scope":
            found = CLASS.match(words)
            if found:
                line = code.count("\n", 0, start + len(head) - len(head.lstrip())) + 1
                yield found[1], line, members.get(start, 0)
        elif words and not NOT_MEMBERS.match(words):
            one = kind == "function" or signature(head) is not None
            members[scope] = members.get(scope, 0) + (1 if one else count_parameters(words))


def make(code, start, head, end):
    skipped = len(head) - len(head.lstrip())
    first = code.count("\n", 0, start + skipped) + 1
    name, parameters = signature(head)
    lines = code.count("\n", start + skipped, end) + 1 if end is not None else 0
    return Function(name, first, lines, parameters)
