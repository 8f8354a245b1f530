#!/usr/bin/env python3
"""docs.py BUILD [--update] [FILE.md...]: keeps what the documents show true.

In: README.md, docs/*.md and docs/course/*.md. Out: one line for each thing that is not as shown, and `N passed, N failed` at the end.
Tables of figures must be what tests/bench/tables.py makes of docs/bench.
Every document gets an empty folder of its own, in which, from top to bottom,

    <!-- file: NAME -->      the fenced block after it is written to NAME
    ```attn                  is as `attnc fmt` lays it out. Without such a comment it is compiled by itself; what holds no variant is
                             given one
    ```console               each line `$ COMMAND` is run, and must print what follows it (stderr too) and succeed
    [NAME.attn@PANE SIZE=N]: URL    opens the file NAME.attn in the playground, in this pane, with these sizes; both may be left out

Where check.py stands beside a document, it is in the document's folder, with the solutions. A file whose name is an exercise (`3a.attn`)
is its starting point: check.py must not find it right, and must find the solution of this name right. A lesson (`3-...md`) has two.

A line `...` stands for any lines, `...` inside a line for any text. Numbers with a point may differ by 0.1%, those with an exponent
or on a line that tells an error by a factor of 30, and times in ms as they like. --update writes what was printed into
the documents. Commands find attnc, its headers and libraries as if they were installed, and `python3` is the one that runs this script.
Those that load a library of attnc into a program are left out, and counted so, where the build is under a sanitizer.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile

sys.path[:0] = ["tests/bench", "tools/playground"]
import link as playground  # noqa: E402
import tables  # noqa: E402

NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?(?: ms)?|-?\d+e[+-]?\d+|\.\.\.")
FENCE = re.compile(r"^```(\w*)\s*$")
MARK = re.compile(r"^<!-- file: (\S+) -->$")
LINK = re.compile(r"^\[(\w+\.attn)(?:@(\w+))?((?: [\w.]+=\w+)*)\]:\s*(\S*)$")
EXERCISE = re.compile(r"^(\d+[a-z])\.(attn|py)$")
LESSON = re.compile(r"^\d+-.*\.md$")
PLAIN = "\nattention plain_ { dim D = 1; score(q, k) = dot(q, k); normalize(s) = s; }\n"


def prefix(build, top):
    """A folder like that of an installation, made of links into the build."""
    links = {"bin/attnc": f"{build}/attnc", "include/attn.h": "runtime/attn.h", "include/attnc.h": "tools/libattnc.h",
             "lib/libattnrt.so": f"{build}/libattnrt.so", "lib/libattnrt.so.0": f"{build}/libattnrt.so",
             "lib/libattnc.a": f"{build}/libattnc.a"}  # fmt: skip
    for link, target in links.items():
        path = os.path.join(top, link)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(os.path.abspath(target), path)
    with open(os.path.join(top, "bin/python3"), "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    os.chmod(os.path.join(top, "bin/python3"), 0o755)
    variables = {"C_INCLUDE_PATH": "include", "LIBRARY_PATH": "lib", "LD_LIBRARY_PATH": "lib"}
    env = dict(os.environ, **{k: os.path.join(top, v) for k, v in variables.items()})
    env["PATH"] = os.path.join(top, "bin") + ":" + env["PATH"]
    env["ATTNC"] = os.path.join(top, "bin/attnc")
    env["ATTNRT_LIBRARY"] = os.path.join(top, "lib/libattnrt.so")
    env["PYTHONPATH"] = os.path.abspath("python")
    return env


def missing(build):
    """The words that begin commands which cannot run here, and why."""
    shared = build + "/libattnrt.so"
    if not os.path.exists(shared) or b"__asan_init" in open(shared, "rb").read():
        return {"cc": "no plain libattnrt.so", "./": "no plain libattnrt.so", "python3": "no plain libattnrt.so"}
    return {}


def numbers_fit(shown, printed, rough):
    if shown == "..." or (shown.endswith(" ms") and printed.endswith(" ms")):
        return True
    if shown.endswith(" ms") or printed.endswith(" ms"):
        return False
    a, b = float(shown), float(printed)
    if rough or "e" in shown + printed:
        return a == b or (a * b > 0 and 1 / 30 < a / b < 30)
    return abs(a - b) <= 1e-3 * max(abs(a), abs(b))


def line_fits(shown, printed):
    """`...` as a pattern, numbers nearly."""
    pattern, values, at = "", [], 0
    for m in NUMBER.finditer(shown):
        any_text = m.group() == "..."
        pattern += re.escape(shown[at : m.start()]) + (".*" if any_text else r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?: ms)?)")
        values += [] if any_text else [m.group()]
        at = m.end()
    m = re.fullmatch(pattern + re.escape(shown[at:]), printed)
    return bool(m) and all(numbers_fit(v, g, "error " in shown) for v, g in zip(values, m.groups()))


def fits(shown, printed):
    """Lists of lines. `...` alone stands for any number of them."""
    if not shown:
        return not printed
    if shown[0].strip() == "...":
        return any(fits(shown[1:], printed[i:]) for i in range(len(printed) + 1))
    return bool(printed) and line_fits(shown[0], printed[0]) and fits(shown[1:], printed[1:])


class Document:
    def __init__(self, path, env, gone, update):
        self.path, self.env, self.gone, self.update = path, env, gone, update
        self.passed, self.failed, self.out, self.left_out = 0, 0, [], {}

    def count(self, good, line, what, text=""):
        self.passed += good
        self.failed += not good
        if not good:
            print(f"FAILED: {self.path}:{line}: {what}")
            print("".join(f"    {t}\n" for t in text.splitlines()[:20]), end="")

    def shell(self, command):
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)  # fmt: skip
        return done.returncode, done.stdout.decode(errors="replace")

    def reason(self, command):
        """Why a command cannot run here, if it cannot. A Python file that does not load the library runs everywhere."""
        if command.startswith("python3"):
            path = os.path.join(self.folder, command.split()[1])
            if os.path.exists(path) and "import attn" not in open(path, encoding="utf-8").read():
                return None
        return next((why for word, why in self.gone.items() if command.startswith(word)), None)

    def console(self, block, line):
        at = 0
        while at < len(block):
            command, end = block[at], at + 1
            while end < len(block) and not block[end].startswith("$ "):
                end += 1
            shown = block[at + 1 : end]
            self.out.append(command)
            reason = self.reason(command[2:])
            if reason:
                self.left_out[reason] = self.left_out.get(reason, 0) + 1
                self.out += shown
            else:
                status, text = self.shell(command[2:])
                printed = [t.rstrip() for t in text.splitlines()]
                good = status == 0 and fits(shown, printed)
                self.out += printed if self.update and not good and status == 0 else shown
                self.count(good, line + at, f"{command[2:]} (status {status}) prints", text)
            at = end

    def source(self, block, line):
        text = "\n".join(block) + "\n"
        if not re.search(r"^(attention|recurrence)\b", text, re.M):
            text += PLAIN
        with open(os.path.join(self.folder, "block_.attn"), "w", encoding="utf-8") as f:
            f.write(text)
        status, printed = self.shell("attnc block_.attn --emit=ast")
        self.count(status == 0, line, "does not compile", printed)

    def link(self, line, name, pane, sizes, shown):
        pairs = (x.split("=") for x in sizes.split())
        with open(os.path.join(self.folder, name), encoding="utf-8") as f:
            wanted = playground.link(f.read(), pane, {n: int(x) if x.isdigit() else x for n, x in pairs})
        good = "#s=" in shown and playground.same(shown, wanted)
        self.count(good or self.update, line, f"the link does not open {name} as it stands here")
        return shown if good else wanted

    def exercises(self):
        """Of a lesson: solutions are right, and starting points are not."""
        names = sorted(n for n in os.listdir(self.folder) if EXERCISE.match(n))
        if LESSON.match(os.path.basename(self.path)):
            self.count(len(names) == 2, 1, f"has the exercises {names}, and a lesson has two")
        for name in names:
            exercise = name.partition(".")[0]
            for path, wanted in ((name, "not yet"), (f"solutions/{name}", "right")):
                _, text = self.shell(f"python3 check.py {exercise} {path}")
                self.count(text.startswith(f"{exercise}: {wanted}"), 1, f"{exercise}: {path} is expected to be {wanted}", text)

    def formatted(self, block, line):
        """The listing in its canonical form; what does not parse has none."""
        done = subprocess.run(["attnc", "fmt", "-"], input="\n".join(block) + "\n", env=self.env, check=False, text=True, capture_output=True)
        form = done.stdout.splitlines()
        if done.returncode or form == block:
            return block
        self.count(self.update, line, "attnc fmt would change it to", done.stdout)
        return form if self.update else block

    def block(self, kind, block, line, name):
        if kind == "attn":
            block = self.formatted(block, line)
        if name:
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as f:
                f.write("\n".join(block) + "\n")
        if kind == "console":
            self.console(block, line)
            return
        if kind == "attn" and not name:
            self.source(block, line)
        self.out += block

    def check(self):
        lines = open(self.path, encoding="utf-8").read().split("\n")
        beside = os.path.dirname(os.path.abspath(self.path))
        with tempfile.TemporaryDirectory(prefix="docs-") as self.folder:
            if os.path.exists(os.path.join(beside, "check.py")):
                for part in ("check.py", "solutions"):
                    os.symlink(os.path.join(beside, part), os.path.join(self.folder, part))
            at, name = 0, None
            while at < len(lines):
                self.out.append(lines[at])
                fence, mark = FENCE.match(lines[at]), MARK.match(lines[at])
                at += 1
                if not fence:
                    name = mark.group(1) if mark else None
                    opens = LINK.match(lines[at - 1])
                    if opens:
                        self.out[-1] = lines[at - 1][: opens.start(4)].rstrip() + " " + self.link(at, *opens.groups())
                    continue
                end = lines.index("```", at)
                self.block(fence.group(1), lines[at:end], at + 1, name)
                self.out.append("```")
                at, name = end + 1, None
            self.exercises()
        if self.update and self.out != lines:
            with open(self.path, "w", encoding="utf-8") as f:
                f.write("\n".join(self.out))
            print(f"updated {self.path}")


def main():
    args = [a for a in sys.argv[1:] if a != "--update"]
    build = args[0] if args else "build"
    paths = args[1:] or ["README.md", *sorted(glob.glob("docs/*.md") + glob.glob("docs/course/*.md"))]
    passed, failed, gone = 0, 0, missing(build)
    with tempfile.TemporaryDirectory(prefix="docs-") as top:
        env = prefix(build, top)
        for path in paths:
            d = Document(path, env, gone, "--update" in sys.argv)
            d.check()
            passed, failed = passed + d.passed, failed + d.failed
            for why, n in d.left_out.items():
                print(f"{path}: {n} commands left out: {why}")
    if not args[1:]:
        differ = list(tables.differing())
        print("".join(f"FAILED: {path} has other figures than docs/bench: run tests/bench/tables.py --update\n" for path in differ), end="")
        passed, failed = passed + (not differ), failed + len(differ)
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
