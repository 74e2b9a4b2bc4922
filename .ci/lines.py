"""Lines of Rust and of its tests, folder by folder: those that are neither blank nor a comment. Benches count as neither.

usage: python3 .ci/lines.py
"""

import collections
import re
import subprocess

# Tests, what only tests use, and the simulation that the server's tests run in.
TEST = re.compile(r"(^|/)tests?(/|\.rs$)|tests\.rs$|/testing\.rs$|server/src/simulation/|/fake|/played\.rs$")


def inline_tests(lines: list[str]) -> int:
    """Lines of the file's own `#[cfg(test)] mod NAME { ... }`."""
    count = at = 0
    while at < len(lines):
        if lines[at].strip() != "#[cfg(test)]" or not re.match(r"\s*mod \w+ \{", "".join(lines[at + 1 : at + 2])):
            at += 1
            continue
        begin, depth, at = at, 0, at + 1
        while at < len(lines):
            depth += lines[at].count("{") - lines[at].count("}")
            at += 1
            if depth <= 0:
                break
        count += at - begin
    return count


def main() -> None:
    listed = subprocess.run(["git", "ls-files", "*.rs"], capture_output=True, text=True, check=True)
    code: collections.Counter[str] = collections.Counter()
    tests: collections.Counter[str] = collections.Counter()
    for path in listed.stdout.split():
        folder = "/".join(path.split("/")[:2])
        if folder.startswith("benches/"):
            continue
        with open(path, encoding="utf-8") as file:
            lines = [line for line in file.read().split("\n") if line.strip() and not line.strip().startswith("//")]
        of_tests = len(lines) if TEST.search(path) else inline_tests(lines)
        code[folder] += len(lines) - of_tests
        tests[folder] += of_tests
    for folder in sorted(code):
        print(f"{folder:24}{code[folder]:8}{tests[folder]:8}")
    print(f"{'all':24}{code.total():8}{tests.total():8}  {tests.total() / code.total():.3f} lines of tests a line of code")


if __name__ == "__main__":
    main()
