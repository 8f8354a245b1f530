#!/usr/bin/env python3
"""gallery.py BUILD [--update]: holds docs/gallery to the sources, and runs each listing of it.

In: the pages that tools/gallery.py makes now, and docs/gallery. Out: `N passed, N failed`. A page may differ from docs/gallery only in what its
commands print (tests/docs.py runs them and compares that), in how a link is packed and in what page it opens. --update writes docs/gallery.
A listing for PyTorch runs in a copy of this process that has PyTorch already: loading it takes longer than all the rest.
"""

import contextlib
import glob
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(TOP, "tests"), os.path.join(TOP, "tools/playground")]
import docs  # noqa: E402
import link  # noqa: E402

GALLERY = "docs/gallery"
CONSOLE = re.compile(r"(?ms)^```console\n(.*?)^```$")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def bare(text):
    """A page without what its commands print, and its links as what they open."""
    text = re.sub(r"\S+#s=[\w-]+", lambda m: repr(link.state(m.group())), text)
    return CONSOLE.sub(lambda m: "".join(line for line in m.group(1).splitlines(True) if line.startswith("$ ")), text)


def answered(text, old):
    """A page with what the commands of an older one print."""
    answers = {command: answer for block in CONSOLE.findall(old) for command, answer in re.findall(r"(?m)^(\$ .*\n)((?:(?!\$ ).*\n)*)", block)}
    return CONSOLE.sub(lambda m: "```console\n" + "".join(line + answers.get(line, "") for line in m.group(1).splitlines(True)) + "```", text)


def differing(made):
    """Files of the gallery that are not what the sources give."""
    names = {os.path.basename(p) for folder in (made, GALLERY) for p in glob.glob(f"{folder}/*")}
    for name in sorted(names):
        a, b = os.path.join(made, name), os.path.join(GALLERY, name)
        if not os.path.exists(a) or not os.path.exists(b):
            yield f"{b} is {'missing' if os.path.exists(a) else 'of no variant'}"
        elif (bare if name.endswith(".md") else str)(read(a)) != (bare if name.endswith(".md") else str)(read(b)):
            yield f"{b} is not what the sources give"


def update(made):
    for path in glob.glob(f"{made}/*.md"):
        old = os.path.join(GALLERY, os.path.basename(path))
        text = answered(read(path), read(old) if os.path.exists(old) else "")
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    shutil.rmtree(GALLERY, ignore_errors=True)
    shutil.copytree(made, GALLERY)


class Document(docs.Document):
    """A page whose Python programs run in a fork of this process."""

    def shell(self, command):
        program = re.fullmatch(r"python3 (\w+\.py)", command)
        return self.fork(program.group(1)) if program else super().shell(command)

    def fork(self, program):
        import torch  # noqa: F401

        printed = os.path.join(self.folder, "printed_")
        with open(printed, "wb") as out:
            pid = os.fork()
            if not pid:
                with contextlib.suppress(BaseException):
                    os.dup2(out.fileno(), 1)
                    os.dup2(out.fileno(), 2)
                    self.run(program)
                os._exit(1)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return status, read(printed)

    def run(self, program):
        import traceback

        os.environ.update(self.env)
        os.chdir(self.folder)
        sys.path.insert(0, self.env["PYTHONPATH"])
        try:
            runpy.run_path(program, run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()


def main(build, changes):
    os.chdir(TOP)
    passed, failed, gone = 0, 0, docs.missing(build)
    with tempfile.TemporaryDirectory(prefix="gallery-") as made:
        subprocess.run([sys.executable, "tools/gallery.py", f"{build}/attnc", made], check=True)
        if changes:
            update(made)
        wrong = list(differing(made))
        print("".join(f"FAILED: {w}: make gallery\n" for w in wrong), end="")
        passed, failed = passed + (not wrong), failed + len(wrong)
    with tempfile.TemporaryDirectory(prefix="docs-") as top:
        env = docs.prefix(build, top)
        for path in sorted(glob.glob(f"{GALLERY}/*.md")):
            name = os.path.splitext(os.path.basename(path))[0]
            d = Document(path, env, {word if word != "python3" else f"python3 {name}.py": why for word, why in gone.items()}, changes)
            d.check()
            passed, failed = passed + d.passed, failed + d.failed
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "--update"]
    sys.exit(main(arguments[0] if arguments else "build", "--update" in sys.argv))
