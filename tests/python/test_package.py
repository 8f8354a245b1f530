"""The package as pip installs it: the wheel in a fresh environment, the checkout in place, and what a machine without the build's tools is told.

Needs pip, NumPy, make and cc. WHEEL names the wheel to try (a pattern).
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.dirname(os.path.abspath(os.environ.get("ATTNC") or os.path.join(ROOT, "build/attnc")))
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
USE = """
import os, sys, numpy as np, attn
assert os.path.dirname(attn.__file__) == sys.argv[1], attn.__file__
relu = attn.compile("attention relu { dim D = 4; score(q, k) = dot(q, k); modify(s) = max(s, 0); normalize(s) = s; }", dtype="float32")
x = np.ones((1, 1, 3, 4), np.float32)
print(relu(x, x, x)[0, 0, 0, 0], attn.version())
"""


def run(argv, **change):
    """What a program says, in a folder and an environment that know nothing of the checkout."""
    env = {n: x for n, x in os.environ.items() if n not in ("ATTNC", "ATTNRT_LIBRARY", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")}
    env.update(change)
    done = subprocess.run(argv, cwd="/", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


class Package(unittest.TestCase):
    def setUp(self):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.venv = os.path.join(held.name, "venv")
        subprocess.check_call([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", self.venv])
        self.python = os.path.join(self.venv, "bin/python")

    def installed(self, what, **change):
        """The folder of the package in the environment."""
        code, said = run([*PIP, "--python", self.python, "install", "-q", "--no-deps", "--no-index", "--ignore-installed", what], **change)
        self.assertEqual(code, 0, said)

    def works(self, package):
        code, said = run([self.python, "-c", USE, package])
        self.assertEqual((code, said.split()[:1]), (0, ["12.0"]), said)
        version = said.split()[-1]
        code, said = run([os.path.join(self.venv, "bin/attnc"), "--version"])
        self.assertEqual(code, 0, said)
        self.assertIn(version, said)
        code, said = run([os.path.join(self.venv, "bin/attnc"), "no_such.attn", "-o", "x.o"])  # the status is the command's
        self.assertEqual((code, "no_such.attn" in said), (3, True), said)

    @unittest.skipUnless(os.environ.get("WHEEL"), "WHEEL names none")
    def test_wheel(self):
        (wheel,) = map(os.path.abspath, glob.glob(os.environ["WHEEL"]))
        tag = re.search(r"-py3-none-(\w+)\.whl$", wheel)[1]
        if tag.startswith("manylinux"):  # the oldest C library that it was tested with is this one
            self.assertEqual(tag, "manylinux_{}_{}_{}".format(*os.confstr("CS_GNU_LIBC_VERSION").split()[1].split("."), os.uname().machine))
        with zipfile.ZipFile(wheel) as held:
            self.assertIsNone(held.testzip())
            self.assertLessEqual({"attn/py.typed", "attn/attnc", "attn/libattnrt.so"}, set(held.namelist()))
        self.installed(wheel)
        (package,) = glob.glob(os.path.join(self.venv, "lib/python*/site-packages/attn"))
        self.works(package)

    def test_in_place(self):
        if BUILD != os.path.join(ROOT, "build"):
            self.skipTest("the package in the checkout finds what is in build")
        run([*PIP, "--python", self.python, "install", "-q", "--no-deps", "--no-index", "--ignore-installed", "-e", ROOT])
        self.works(os.path.join(ROOT, "python/attn"))

    def test_without_tools(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("sh", "git", "python3"):
                if shutil.which(name):
                    os.symlink(shutil.which(name), os.path.join(folder, name))
            code, said = run([*PIP, "--python", self.python, "install", "--no-deps", "--no-index", ROOT], PATH=folder)
        self.assertEqual(code, 1, said)
        self.assertIn("`tests/deps.sh build` installs what the build needs", said)


if __name__ == "__main__":
    unittest.main()
