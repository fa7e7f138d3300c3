# Leaks: no absolute path of somebody's machine and no registry host in what is committed.
import re

from checks.files import text, tracked

PATHS = re.compile(r"(?<![\w.$}])/(?:work|root|home|Users|farm|mnt)/[\w.-]+")
HOSTS = re.compile(r"(?:pypi|pythonhosted|npmjs|deb[.]debian)[.](?:org|com)")


def run():
    wrong = []
    for name in tracked():
        if name.endswith((".png", ".npz", ".bin", ".safetensors", ".onnx", ".pb")):
            continue
        for number, line in enumerate(text(name).splitlines(), 1):
            found = PATHS.search(line) or HOSTS.search(line)
            if found:
                wrong.append(f"{name}:{number}: {found[0]} belongs to one machine; it must not be committed")
    return wrong
