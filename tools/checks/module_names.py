# Module names: a script's folder is searched before the standard library, so no file of ours may have its names.
import pathlib
import sys

from checks.files import tracked


def run():
    wrong = []
    for name in tracked():
        module = pathlib.Path(name).stem
        if name.endswith(".py") and module in sys.stdlib_module_names:
            wrong.append(f"{name}:1: a standard module is called '{module}', and scripts here would get this one")
    return wrong
