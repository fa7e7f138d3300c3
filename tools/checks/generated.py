# Generated docs: the committed pages are what the program prints today; ./dev docs writes them.
from checks.files import ROOT
from checks.program import ask, has_verb

PAGES = {"docs/ops.md": ("ops", "--markdown"), "docs/cli.md": ("help", "--markdown"),
         "docs/config.md": ("train", "--markdown")}


def run():
    wrong = []
    present = {page: words for page, words in PAGES.items() if has_verb(words[0])}
    for page, words in present.items():
        done = ask(*words)
        if done.returncode:
            wrong.append(f"{page}:1: trireme {' '.join(words)} fails: {done.stdout[:200]}")
        elif not (ROOT / page).exists() or (ROOT / page).read_text() != done.stdout:
            wrong.append(f"{page}:1: differs from `trireme {' '.join(words)}`; run ./dev docs")
    return wrong if present else "the program prints no pages yet"
