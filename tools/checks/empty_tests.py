# Tests that can pass empty: a TEST without an assertion, or one that returns before its first.
#
# An assertion is a macro of GoogleTest, or a call of a function of the test sources whose body has one, however deep.
import re

from checks.files import cxx, text
from checks.source_scan import blank

MACRO = re.compile(r"\b(?:EXPECT_\w+|ASSERT_\w+|GTEST_SKIP|ADD_FAILURE\w*|FAIL|TYPED_EXPECT\w*)\s*\(")
TEST = re.compile(r"^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\s*\(\s*(\w+)\s*,\s*(\w+)\s*\)\s*\{", re.M)
FUNCTION = re.compile(r"\b([A-Za-z_]\w*)\s*\([^;{}]*\)\s*(?:const\s*)?(?:noexcept\s*)?(?:override\s*)?\{")
CALL = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[\w:, ]*>)?\s*\(")
LAMBDA = re.compile(r"\]\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*(?:mutable\s*)?(?:->\s*[\w:<>*& ]+)?\s*\{")
WORDS = {"if", "for", "while", "switch", "catch", "return", "sizeof", "TEST", "TEST_F", "TEST_P", "TYPED_TEST"}


def body(code, opening):
    """The text between a brace and its partner."""
    depth = 0
    for place in range(opening, len(code)):
        depth += (code[place] == "{") - (code[place] == "}")
        if depth == 0:
            return code[opening + 1:place]
    return code[opening + 1:]


def functions(code):
    """(name, body) of everything that looks like a function of test sources."""
    for found in FUNCTION.finditer(code):
        if found[1] not in WORDS:
            yield found[1], body(code, found.end() - 1)


def asserting(codes):
    """Names of functions that assert, themselves or through others."""
    bodies = {}
    for code in codes:
        for name, inside in functions(code):
            bodies.setdefault(name, []).append(inside)
    names = {name for name, all_of in bodies.items() if any(MACRO.search(inside) for inside in all_of)}
    calls = {name: set().union(*(set(CALL.findall(inside)) for inside in all_of)) for name, all_of in bodies.items()}
    while True:
        more = {name for name, called in calls.items() if name not in names and called & names}
        if not more:
            return names
        names |= more


def first_assertion(inside, helpers):
    places = [found.start() for found in MACRO.finditer(inside)]
    places += [found.start() for found in CALL.finditer(inside) if found[1] in helpers]
    return min(places, default=None)


def without_lambdas(inside):
    """The same with the bodies of lambdas blank: what returns there does not end the test."""
    for found in reversed(list(LAMBDA.finditer(inside))):
        length = len(body(inside, found.end() - 1))
        inside = inside[:found.end()] + " " * length + inside[found.end() + length:]
    return inside


def empty_tests(code, helpers):
    """(line, message) of the tests of one source whose assertions may not be reached."""
    for found in TEST.finditer(code):
        inside, line = body(code, found.end() - 1), code.count("\n", 0, found.start()) + 1
        name, first = f"{found[1]}.{found[2]}", first_assertion(inside, helpers)
        leaves = re.search(r"\breturn\s*;", without_lambdas(inside))
        if first is None:
            yield line, f"{name} asserts nothing"
        elif leaves and leaves.start() < first:
            yield line, f"{name} returns before its first assertion: GTEST_SKIP() says why"


def run():
    names = [name for name in cxx() if name.endswith("_test.cc") or name.startswith("tests/") or "/test_" in name]
    codes = {name: blank(text(name)) for name in names}
    helpers = asserting(codes.values())
    return [f"{name}:{line}: {message}" for name, code in codes.items() for line, message in empty_tests(code, helpers)]
