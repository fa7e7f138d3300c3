# The checks of tools/ catch what they are for: each is fed a small wrong source and must complain, then a right one.
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
import onnx_report  # noqa: E402
from checks import empty_tests, files, folders, includes, layers, leaks, module_names, op_names, sizes  # noqa: E402
from checks.source_scan import scan  # noqa: E402

passed = 0
failed = 0


def expect(what, got, wanted=True):
    global passed, failed
    if got == wanted:
        passed += 1
    else:
        failed += 1
        print(f"{what}: got {got!r}, wanted {wanted!r}")


def functions(source):
    return [(one.name, one.line, one.lines, one.parameters) for one in scan(source)]


SOURCE = '''// A file.
#include <map>
namespace a {
struct S {
  S(int a, std::map<int, int> b) : a_{a}, b_(b) {
    use("}{ // not a comment");
  }
  int get() const { return a_; }
  int a_ = 0;
  std::array<int, 2> pair{1, 2};
};
const int kTable[] = {1, 2, 3};
template <class T, class U = std::pair<T, T>>
[[nodiscard]] auto both(const T& x, std::function<void(int, int)> f) -> U {
  auto inner = [&](int q, int r, int s) {
    if (q) { return r; }
    return s;
  };
#if A
  while (x) {
#else
  for (;;) {
#endif
    f(1, 2);
  }
}
void declared(int a, int b, int c, int d, int e, int f);
}  // namespace a
'''


def scanning():
    expect("functions", functions(SOURCE),
           [("S", 5, 3, 2), ("get", 8, 1, 0), ("both", 13, 14, 2), ("declared", 27, 0, 6)])
    expect("raw string", functions('auto k = R"x({{{)x";\nvoid f() {\n}\n'), [("f", 2, 2, 0)])
    expect("digit separator", functions("int f() { return 1'000'000; }\nint g() { return 2; }\n"),
           [("f", 1, 1, 0), ("g", 2, 1, 0)])
    expect("operator", functions("bool operator()(int a) const { return a; }\n"), [("operator()", 1, 1, 1)])


def with_text(name, source, check):
    """Runs a check on one invented file."""
    original_text, original_cxx, original_tracked = files.text, files.cxx, files.tracked
    known = {name: source}
    text = lambda path: known[path] if path in known else original_text(path)  # noqa: E731
    for module in (empty_tests, files, includes, layers, leaks, module_names, sizes):
        for attribute, value in (("text", text), ("cxx", lambda: [name]), ("tracked", lambda: [name])):
            if hasattr(module, attribute):
                setattr(module, attribute, value)
    try:
        return check()
    finally:
        for module in (empty_tests, files, includes, layers, leaks, module_names, sizes):
            for attribute, value in (("text", original_text), ("cxx", original_cxx), ("tracked", original_tracked)):
                if hasattr(module, attribute):
                    setattr(module, attribute, value)


def complaints(name, source, check):
    return [message for message in with_text(name, source, check) if message.startswith(name)]


def checking():
    up = '#include "ops/table.h"\n'
    expect("layer up", len(complaints("src/base/x.cc", up, layers.run)), 1)
    expect("layer down", complaints("src/engine/x.cc", up, layers.run), [])
    kernel = '#include "backend/cpu/device/cpu_stream.h"\n'
    expect("kernel file", complaints("src/ops/dense/x_cpu.cc", kernel, layers.run), [])
    expect("no kernel file", len(complaints("src/ops/dense/x.cc", kernel, layers.run)), 1)
    expect("no row", len(complaints("src/newfolder/x.cc", up, layers.run)), 1)
    expect("included text", len(complaints("src/base/x.inc", up, layers.run)), 1)
    expect("a standard module's name", len(complaints("bench/tokenize.py", "", module_names.run)), 1)
    expect("a name of its own", complaints("bench/tokenizer_speed.py", "", module_names.run), [])
    once = "#pragma once\n"
    expect("third party", len(complaints("src/base/x.h", once + "#include <openssl/ssl.h>\n", includes.run)), 1)
    expect("standard", complaints("src/base/x.h", once + "#include <vector>\n", includes.run), [])
    expect("pragma once", len(complaints("src/base/x.h", "// x\n", includes.run)), 1)
    expect("long line", len(complaints("src/base/x.cc", "// " + "x" * 108 + "\n", sizes.run)), 1)
    expect("long function", len(complaints("src/base/x.cc", "void f() {\n" + "g();\n" * 79 + "}\n", sizes.run)), 1)
    expect("not too long", complaints("src/base/x.cc", "void f() {\n" + "g();\n" * 78 + "}\n", sizes.run), [])
    expect("long header", len(complaints("src/base/x.h", "// x\n" * 201, sizes.run)), 1)
    expect("parameters", len(complaints("src/base/x.h", "void f(int, int, int, int, int, int);\n", sizes.run)), 1)
    members = "".join(f"  int get{i}() const {{ return a{i}; }}\n  std::map<int, int> a{i}{{}};\n" for i in range(20))
    large = "class A : public B {\n public:\n  using T = int;\n  friend class C;\n  struct D { int x, y; };\n" + members
    expect("forty members", complaints("src/base/x.h", large + "};\n", sizes.run), [])
    expect("one member more", len(complaints("src/base/x.h", large + "  D d;\n};\n", sizes.run)), 1)
    expect("fields in one line", len(complaints("src/base/x.h", large + "  int p = 0, q;\n};\n", sizes.run)), 1)
    names = [f"src/base/x{i}.h" for i in range(40)] + ["src/base/more/x.h"]
    expect("forty files", list(sizes.crowded(names)), [])
    expect("one file more", list(sizes.crowded([*names, "src/base/y.cc"])), [("src/base", 1, "folder", 41)])
    private = "/" + "home/someone/model"
    expect("private path", len(complaints("docs/x.md", f"see {private}\n", leaks.run)), 1)
    expect("relative path", complaints("docs/x.md", "see ../shared/home/model\n", leaks.run), [])


ROOMS = """
low:
low *_test.cc:  high
net:            low
net:            net/b
net/a:          net
net/b:          net/a
net *_dev.cc:   device
device:         low
high:           net
top:            all
"""


def rooms():
    """The rules for divided folders, on an invented table."""
    def table(text):
        return with_text(layers.TABLE, text, layers.table)

    def may(path, target, room):
        return any(layers.means(name, room, target, known) for name in layers.names_for(room, path, known))

    known = table(ROOMS)
    expect("outer folders are inherited", may("net/a/x.cc", "low/x.h", "net/a"))
    expect("files directly in the folder", may("net/a/x.cc", "net/x.h", "net/a"))
    expect("no other room by the folder's name", may("net/a/x.cc", "net/b/x.h", "net/a"), False)
    expect("a room that is named", may("net/b/x.cc", "net/a/x.h", "net/b"))
    expect("the folder's row opens its rooms to its own files", may("net/x.cc", "net/b/x.h", "net"))
    expect("but not to its rooms", may("net/a/x.cc", "net/b/x.h", "net/a"), False)
    expect("a suffix holds for rooms", may("net/a/x_dev.cc", "device/x.h", "net/a"))
    expect("a suffix holds for no other file", may("net/a/x.cc", "device/x.h", "net/a"), False)
    expect("from outside all rooms", may("high/x.cc", "net/b/x.h", "high"))
    expect("a subfolder without a row", layers.homeless("net/c/x.cc", "net", known) is not None)
    expect("one room with its subfolders", layers.homeless("low/c/x.cc", "low", known), None)

    def cycles(text):
        return [message.split("cycle: ")[1] for message in layers.wrong_table(table(text)) if "cycle: " in message]

    expect("cycle inside a folder", cycles(ROOMS), ["net -> net/b -> net/a -> net"])
    free = ROOMS.replace("net:            net/b\n", "")
    expect("no cycle", cycles(free), [])
    free = free.replace("net *_dev.cc:   device\n", "")
    expect("cycle of folders", cycles(free.replace("low:\n", "low: high\n")), ["low -> high -> net -> low"])
    between = free.replace("device:         low", "device: net/a").replace("net/b:          net/a", "net/b: device")
    expect("a cycle of folders, though not of rooms", cycles(between), ["device -> net -> device"])
    expect("unknown name", len(list(layers.wrong_table(table(free + "more: nothing\n")))), 1)


def operator_names():
    known = {"conv", "relu", "add", "mul", "max_pool"}

    def wrong(source):
        return [name for _, name in op_names.unknown(source, known)]

    expect("compared", wrong('if (node.op_name() == "convolve") {}'), ["convolve"])
    expect("compared well", wrong('if (node.op_name() != "conv") {}'), [])
    expect("looked up", wrong('rw.for_each("silu", f); rw.producer(node.in[0], "relu");'), ["silu"])
    expect("list", wrong('const char* kSome[] = {"conv", "relu", "add", "maximum", "mul"};'), ["maximum"])
    expect("table", wrong('t{{"conv", f}, {"relu", f}, {"add", g}, {"mul", g}, {"pool", g}};'), ["pool"])
    expect("other words", wrong('f({"conv", "dim", "axis"}); g({"a", "b"});'), [])
    expect("statements", wrong('void f() { g("conv"); g("relu"); g("add"); g("mul"); g("perm"); }'), [])


ASSERTS = """
void expect_it(int x) { ASSERT_EQ(x, 1); }
void deeper() { expect_it(2); }
TEST(A, Asserts) { EXPECT_TRUE(f()); }
TEST(A, ByAHelper) {
  if (none) GTEST_SKIP() << why;
  deeper();
}
TEST(A, LambdasMayReturn) {
  run([&](int x) { if (x) return; g(x); });
  EXPECT_EQ(a, b);
}
TEST(A, ReturnsBehindAnAssertion) {
  EXPECT_EQ(a, b);
  if (a) return;
}
"""


def emptiness():
    name = "src/base/x_test.cc"
    expect("tests that assert", complaints(name, ASSERTS, empty_tests.run), [])
    expect("no assertion", len(complaints(name, "TEST(A, B) {\n  f();\n  // EXPECT_EQ(1, 1)\n}\n", empty_tests.run)), 1)
    leaves = "TEST_P(A, B) {\n  if (!reference.contains(key)) return;\n  EXPECT_EQ(a, b);\n}\n"
    expect("returns first", len(complaints(name, leaves, empty_tests.run)), 1)


def folder_pages():
    good = "# src/base\n\nErrors and time. Threads are in `threads`, see `error.h` and `*_test.cc`.\n"
    expect("a page", folders.complaints("src/base", good), [])
    expect("no page", len(folders.complaints("src/base", None)), 1)
    expect("another folder's title", len(folders.complaints("src/base", good.replace("src/base", "base"))), 1)
    expect("a name that is not there", len(folders.complaints("src/base", good.replace("`threads`", "`helpers`"))), 1)
    expect("nothing said", len(folders.complaints("src/base", "# src/base\n")), 1)
    expect("a long page", len(folders.complaints("src/base", good + "more\n" * 20)), 1)
    expect("folders of sources", {"src/base", "src/serve/proto"} - set(folders.folders()), set())


def moved_trees():
    """./dev builds anew in a tree that was moved or copied with its builds, and in no other."""
    dev = Path(__file__).resolve().parent.parent / "dev"
    with tempfile.TemporaryDirectory() as scratch:
        tree, link = Path(scratch) / "tree", Path(scratch) / "link"
        for preset, home in (("here", tree), ("by_link", link), ("elsewhere", Path("/usr")), ("gone", "/no/such")):
            (tree / "build" / preset).mkdir(parents=True)
            (tree / "build" / preset / "CMakeCache.txt").write_text(
                f"CMAKE_GENERATOR:INTERNAL=Ninja\nCMAKE_HOME_DIRECTORY:INTERNAL={home}\n")
        (tree / "build" / "empty").mkdir()
        link.symlink_to(tree)
        script = f"""set -euo pipefail; root=$PWD; stage() {{ shift; "$@"; }}
                     eval "$(sed -n '/^forget_moved()/,/^}}/p' {dev})"
                     for preset in here by_link elsewhere gone empty none; do forget_moved $preset; done"""
        done = subprocess.run(["bash", "-c", script], cwd=tree, capture_output=True, text=True)
        expect("./dev in a moved tree", (done.returncode, done.stderr), (0, ""))
        expect("builds that are kept", sorted(p.name for p in (tree / "build").iterdir()), ["by_link", "empty", "here"])


def onnx_results():
    def case(name, status, **more):
        return {"case": name, "status": status, "path": "/node/x", "ops": [], "reason": "r", **more}

    known = {"a": ("fail", "r"), "gone": ("fail", "r"), "ok": ("refused", "r"), "both": ("fail", "r")}
    rows = [case("a", "fail"), case("b", "fail"), case("ok", "pass"), case("c", "refused"), case("d", "crash"),
            case("e", "refused", value_kinds=["string"]), case("both", "fail"), case("both", "pass")]
    found = sorted(message.split(":")[0] for message in onnx_report.unexpected(rows, known))
    expect("failures, crashes and refusals that are not listed; listed ones that pass or are gone", found,
           ["b", "c", "d", "gone", "ok"])
    expect("every listed case has a reason", all(reason for _, reason in onnx_report.read_known().values()))


scanning()
emptiness()
folder_pages()
moved_trees()
onnx_results()
checking()
rooms()
operator_names()
print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed > 0)
