# Operator names in literals exist: a rule for an operator that nobody defined is wrong silently.
#
# A literal is taken for an operator's name where the source compares it with one (`op_name() == "conv"`), where it is
# given to a function that looks for nodes by it, and in a list in braces most of whose literals are operators' names.
import re

from checks.files import cxx, text
from checks.program import ask, has_verb

NAME = r'"([a-z][a-z0-9_]*)"'
COMPARED = re.compile(r'(?:op_name\(\)|op->schema\.name|schema\.name)\s*[=!]=\s*' + NAME)
ARGUMENTS = r'(?:[^();"]*(?:\([^()]*\))?[^();"]*,)?'  # before the name
LOOKED_UP = re.compile(r'\b(?:for_each|producer|is_op|find_op|made_by|need)\s*\(' + ARGUMENTS + r'\s*' + NAME)
LITERAL = re.compile(r'"(?:\\.|[^"\\\n])*"')
COMMENT = re.compile(r'//[^\n]*')
# Operators are defined in src/ops from functions of src/tensor and src/backend, which have names of their own, like the
# verbs and options of src/cli.
APART = ("src/ops/", "src/backend/", "src/tensor/", "src/cli/")
SHARE, LEAST = 0.6, 4  # of the literals of a list; so many that it is no accident


class Body(list):
    """What braces hold that have a semicolon in them: statements, no list."""

    def append(self, item):
        pass


def line_of(source, place):
    return source.count("\n", 0, place) + 1


def lists(source):
    """Yields [(place, literal)] of each pair of braces; literals of braces inside belong to the outer list too if they
    stand first there, as in {{"conv", rule}, {"lrn", rule}}."""
    open_lists = []
    place = 0
    while place < len(source):
        char = source[place]
        if char == '"':
            match = LITERAL.match(source, place)
            if match:
                if open_lists:
                    found = open_lists[-1]
                    found.append((place, match[0][1:-1]))
                    if len(found) == 1 and len(open_lists) > 1:
                        open_lists[-2].append(found[0])
                place = match.end()
                continue
        elif char == "{":
            open_lists.append([])
        elif char == ";" and open_lists:
            open_lists[-1] = Body()
        elif char == "}" and open_lists:
            closed = open_lists.pop()
            if not isinstance(closed, Body):
                yield closed
        place += 1


def operators():
    rows = re.findall(r"^\| ([a-z][a-z0-9_]*) \|", ask("ops", "--markdown").stdout, re.M)
    return set(rows) - {"operator"}


def unknown(source, known):
    """(place, name) of every literal that stands for an operator which does not exist."""
    for pattern in (COMPARED, LOOKED_UP):
        for match in pattern.finditer(source):
            if match[1] not in known:
                yield match.start(1), match[1]
    for found in lists(source):
        names = [(place, name) for place, name in found if re.fullmatch(r"[a-z][a-z0-9_]*", name)]
        hits = sum(name in known for _, name in names)
        if hits >= LEAST and hits >= SHARE * len(found):
            yield from ((place, name) for place, name in names if name not in known)


def run():
    if not has_verb("ops"):
        return "the program is not built"
    known = operators()
    wrong = set()
    for name in cxx():
        if not name.startswith("src/") or name.startswith(APART) or name.endswith(("_test.cc", "_bench.cc")):
            continue
        source = COMMENT.sub(lambda match: " " * len(match[0]), text(name))
        for place, literal in unknown(source, known):
            wrong.add(f"{name}:{line_of(source, place)}: no operator is called '{literal}'")
    return sorted(wrong)
