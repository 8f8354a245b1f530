"""The package in IPython and Jupyter: the cell magic, what notebooks show, the notebooks of docs/, and the wheel.

    ATTNC=build/attnc ATTNRT_LIBRARY=build/libattnrt.so WHEEL=build/dist/*.whl python3 -m unittest tests/python/test_notebook.py

Needs IPython, ipykernel, nbclient and NumPy, and cc. WHEEL names the wheel to try; without it, that test is left out.
"""

import glob
import os
import subprocess
import sys
import tempfile
import unittest
import warnings
import xml.etree.ElementTree

import nbclient
import nbformat
import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "python"))

import attn  # noqa: E402

PLAIN = "attention {} {{\n    dim D = 16;\n    score(q, k)  = dot(q, k);\n    normalize(s) = s;\n}}\n"
DOCUMENT = """
import std.normalization;
attention packed {
    dim D = 16;
    input doc: i32[B, Sk];
    score(q, k)      = dot(q, k);
    mask(b, h, i, j) = doc[b, i] == doc[b, j];
    normalize(s)     = softmax(s);
}
"""
CENTERED = "attention centered { dim D = 16; score(q, k) = dot(q, k);\n normalize(s) = s - rowsum(s) / rowsum(1.0); }\n"


def well_formed(text):
    return xml.etree.ElementTree.fromstring(text)


class Magic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The shell takes the place of __main__, which processes that other tests start read again.
        cls.addClassCleanup(sys.modules.__setitem__, "__main__", sys.modules["__main__"])
        cls.shell = InteractiveShell.instance()
        cls.shell.run_line_magic("load_ext", "attn")

    def setUp(self):
        self.shell.reset()

    def cell(self, text):
        """What the cell displays, and the exception with which it ends."""
        with capture_output() as captured, warnings.catch_warnings():
            warnings.simplefilter("error", attn.CompileWarning)  # the magic shows them
            result = self.shell.run_cell(text)
        self.stdout = captured.stdout
        return [o.data for o in captured.outputs], result.error_before_exec or result.error_in_exec

    def good(self, text):
        shown, error = self.cell(text)
        self.assertIsNone(error)
        return shown

    def names(self):
        return {n for n, x in self.shell.user_ns.items() if isinstance(x, (attn.Kernel, attn.Artifact))}

    def test_a_kernel_is_a_function(self):
        self.assertEqual(self.good("%%attn\n" + PLAIN.format("plain")), [])
        self.assertEqual(self.names(), {"plain"})
        q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 30, 16), dtype=np.float32)
        self.shell.push({"q": q, "k": k, "v": v})
        self.good("o = plain(q, k, v)")
        np.testing.assert_allclose(self.shell.user_ns["o"], q @ k.swapaxes(-1, -2) @ v, rtol=1e-4, atol=1e-3)
        import torch

        np.testing.assert_allclose(self.shell.user_ns["plain"](*map(torch.tensor, (q, k, v))), self.shell.user_ns["o"], rtol=1e-6)

    def test_names(self):
        two = PLAIN.format("one") + PLAIN.format("two")
        self.good("%%attn\n" + two)
        self.assertEqual(self.names(), {"one", "two"})
        self.good("%%attn both\n" + two)
        self.assertEqual({k.name for k in self.shell.user_ns["both"]}, {"one", "two"})
        self.good("%%attn other\n" + PLAIN.format("one"))
        self.assertEqual(self.shell.user_ns["other"].name, "one")
        shown, error = self.cell("%%attn\n" + PLAIN.format("lambda"))
        self.assertIn("a word of Python", str(error))
        self.good("%%attn lamb\n" + PLAIN.format("lambda"))

    def test_options(self):
        self.good("%%attn -D D=32 --target sm_80 --dtype f16 k\n" + PLAIN.format("plain"))
        k = self.shell.user_ns["k"]
        self.assertEqual((k.D, k.artifact.target, k.artifact.dtype), (32, "sm_80", "f16"))
        self.good("%%attn -t sm_80 k\n" + PLAIN.format("plain"))
        self.assertEqual(self.shell.user_ns["k"].artifact.dtype, "bf16")
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "mine.attn"), "w", encoding="utf-8") as f:
                f.write("const SIZE = 16;\n")
            self.good(f"%%attn -I {folder}\nimport mine;\n" + PLAIN.format("plain").replace("16", "SIZE"))
        for line in ("--mask Sq", "--mask Sq=many", "-D D=", "-D 3", "--nope", "name=foo", "?", "for"):
            shown, error = self.cell(f"%%attn {line}\n" + PLAIN.format("plain"))
            self.assertEqual(type(error).__name__, "UsageError", line)

    def test_an_error(self):
        shown, error = self.cell("%%attn\n" + PLAIN.format("plain").replace("dot(q, k)", "dot(q, <j)"))
        self.assertIsInstance(error, attn.CompileError)
        self.assertEqual(self.names(), set())
        self.assertEqual(len(shown), 1)
        text, html = shown[0]["text/plain"], shown[0]["text/html"]
        # the magic's line is the first of the cell, so the score stands in the fourth
        self.assertRegex(text, r"^cell:4:\d+: error: ")
        self.assertIn("\n    " + "    score(q, k)  = dot(q, <j);\n", text)
        self.assertRegex(text, r"\n +\^")
        self.assertIn("score(q, k)  = dot(q, &lt;j);", html)
        self.assertRegex(html, r'<b class="error">error</b>: ')
        self.assertRegex(html, r'<b class="error"> +\^~*</b>')
        well_formed(html.partition("</style>")[2])
        self.assertIn("CompileError: the compiler's message stands above", self.stdout)
        self.assertNotIn("Traceback", self.stdout)

    def test_an_old_kernel_stays_after_an_error(self):
        self.good("%%attn\n" + PLAIN.format("plain"))
        before = self.shell.user_ns["plain"]
        self.cell("%%attn\nattention plain { }\n")
        self.assertIs(self.shell.user_ns["plain"], before)

    def test_notes_and_warnings(self):
        shown = self.good("%%attn\n" + CENTERED)
        self.assertIn("cell:3:21: note: ", shown[0]["text/plain"])
        self.assertIn('<b class="note">note</b>', shown[0]["text/html"])
        shown = self.good("%%attn\n" + PLAIN.format("half").replace("= s;", "= s * (1 / 2);"))
        self.assertIn('<b class="warning">warning</b>', shown[0]["text/html"])
        self.assertEqual(self.names(), {"centered", "half"})

    def test_explain_and_mask(self):
        masked = PLAIN.format("masked").replace("    normalize", "    mask(b, h, i, j) = j <= i;\n    normalize")
        shown = self.good("%%attn --explain --mask Sq=200,H=2\n" + masked)
        self.assertEqual([{*data} for data in shown], [{"text/plain", "text/html"}, {"text/plain", "image/svg+xml"}])
        self.assertIn("o = sum over keys of w * v", shown[0]["text/plain"])
        page = well_formed(shown[0]["text/html"].partition("</style>")[2])
        self.assertGreater(len(list(page.iter("math"))), 3)
        self.assertRegex(shown[1]["text/plain"], "masked, the CPU's tiles of .* skipped, .* 50.25% of the pairs")
        self.assertEqual(well_formed(shown[1]["image/svg+xml"]).tag, "{http://www.w3.org/2000/svg}svg")


class Shown(unittest.TestCase):
    """The same outside of the magic."""

    def test_objects(self):
        made = attn.compile(PLAIN.format("one") + PLAIN.format("two"), target="sm_80")
        self.assertIn("attention two, for one query", repr(made["two"].explain()))
        self.assertIn("<math", made["two"].explain()._repr_html_())
        self.assertIn("sm_80's tiles", repr(made["one"].mask(Sq=100, Sk=300)))
        with self.assertRaisesRegex(TypeError, "several variants"):
            made.explain()
        self.assertIn("<svg", attn.compile(PLAIN.format("one")).mask(Sq=100)._repr_svg_())
        with self.assertRaisesRegex(ValueError, "Nope"):
            made["one"].mask(Nope=3)

    def test_a_mask_that_reads_an_array(self):
        packed = attn.compile(DOCUMENT)
        doc = np.repeat(np.arange(4, dtype=np.int32), 50)[None]
        self.assertIn("25.00% of the pairs", repr(packed.mask(doc=doc)))
        self.assertIn("100.00% of the pairs", repr(packed.mask(doc=0 * doc)))

    def test_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "plain.attn")
            with open(path, "w", encoding="utf-8") as f:
                f.write(PLAIN.format("plain"))
            kernel = attn.compile(path)
            self.assertIn("o = sum over keys", repr(kernel.explain()))
            with open(path, "w", encoding="utf-8") as f:
                f.write("attention plain {")
            with self.assertRaisesRegex(attn.CompileError, "plain.attn:1:"):
                attn.compile(path)

    def test_what_was_loaded_has_no_source(self):
        with self.assertRaisesRegex(TypeError, "does not hold its source"):
            attn.load(attn.compile(PLAIN.format("plain"))._source).explain()

    def test_the_name_of_a_text(self):
        with self.assertRaisesRegex(attn.CompileError, "^source:1:11: error: "):
            attn.compile("attention plain { dim D = 4; score(q, k) = dot(q, k); }")


class Whole(unittest.TestCase):
    def python(self, code, **env):
        env = {n: x for n, x in {**os.environ, **env}.items() if x is not None}
        return subprocess.run([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    def test_attn_needs_no_ipython(self):
        code = "import sys; sys.modules['IPython'] = None; import attn; print(attn.version())"
        done = self.python(code, PYTHONPATH=os.path.join(ROOT, "python"))
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_notebooks(self):
        paths = glob.glob(os.path.join(ROOT, "docs/notebooks/*.ipynb"))
        self.assertTrue(paths)
        for path in paths:
            with self.subTest(path), tempfile.TemporaryDirectory() as folder:
                self.notebook(nbformat.read(path, as_version=4), folder)

    def notebook(self, book, folder):
        code = [c for c in book.cells if c.cell_type == "code"]
        self.assertFalse([c for c in code if c.outputs or c.execution_count], "outputs are not to be committed")
        env = {**os.environ, "PYTHONPATH": os.path.join(ROOT, "python")}
        for name in ("ATTNC", "ATTNRT_LIBRARY"):
            env[name] = os.path.abspath(os.environ[name])
        env.update(IPYTHONDIR=folder, JUPYTER_RUNTIME_DIR=folder, PYDEVD_DISABLE_FILE_VALIDATION="1")
        nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": folder}}).execute(env=env)
        kinds = {kind for c in code for o in c.outputs for kind in o.get("data", ())}
        self.assertGreaterEqual(kinds, {"text/html", "image/svg+xml"})
        wrong = [c for c in code if any(o.output_type == "error" for o in c.outputs)]
        self.assertEqual([c for c in code if "raises-exception" in c.metadata.get("tags", ())], wrong)

    @unittest.skipUnless(os.environ.get("WHEEL"), "WHEEL names none")
    def test_the_wheel(self):
        code = f"""
import attn, numpy as np
from IPython.core.interactiveshell import InteractiveShell
assert attn.__file__.startswith(FOLDER), attn.__file__
assert attn._compiler._command() == FOLDER + "/attn/attnc"
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "attn")
shell.run_cell('%%attn\\n' + {PLAIN.format("plain")!r}).raise_error()
x = np.ones((1, 1, 4, 16), np.float32)
print(shell.user_ns["plain"](x, x, x)[0, 0, 0, 0])
"""
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--root-user-action=ignore", "--target", folder]
            subprocess.check_call([*pip, *glob.glob(os.environ["WHEEL"])])
            code = f"FOLDER = {folder!r}\n" + code
            done = self.python(code, PYTHONPATH=folder, ATTNC=None, ATTNRT_LIBRARY=None, IPYTHONDIR=folder)
        self.assertEqual((done.returncode, done.stdout.split()[-1:]), (0, ["64.0"]), done.stdout)


if __name__ == "__main__":
    unittest.main()
