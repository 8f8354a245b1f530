#!/usr/bin/env python3
"""test_editors.py: the editors' grammars against the compiler, on every .attn source of the tree. BUILD names the build, NVIM a Neovim.

In: tools/editors, python/attn, and build/tests/editors/tokens. Out: `N passed, N failed`. What each grammar says of a token is
what the compiler's lexer says of it, and each list of names is that of frontend/*.def.
"""

import ctypes
import glob
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from xml.etree import ElementTree

import oracle
from oracle import BUILD, TOP

EDITORS = os.path.join(TOP, "tools/editors")
TREE_SITTER = os.path.join(EDITORS, "tree-sitter-attn")
sys.path.insert(0, EDITORS)
import lists  # noqa: E402

NVIM = os.environ.get("NVIM", "nvim")
LISTS = lists.lists()
SOURCES = [(name, text) for name, text in oracle.sources() if b"\0" not in text]
SAID = oracle.ask([text for _, text in SOURCES])


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tool(name):
    """What tests/tools.sh finds, None where it finds nothing."""
    done = subprocess.run(["tests/tools.sh", name], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return done.stdout.decode().strip() if done.returncode == 0 else None


class Spans:
    """What a grammar says of each byte; kind_at() of a token is one kind that begins and ends with it."""

    def __init__(self, spans):
        self.spans = sorted(spans)
        self.by_start = {start: (end, kind) for start, end, kind in self.spans}

    def kind_at(self, start, end):
        exact = self.by_start.get(start)
        if exact and exact[0] == end:
            return exact[1]
        over = {kind for a, b, kind in self.spans if a < end and b > start}
        return over.pop() if len(over) == 1 and over <= {"comment", "error"} else None


class Grammar(unittest.TestCase):
    def agrees(self, spans_of):
        """spans_of(text): (start, end, kind) for what the grammar gives a meaning."""
        for (name, text), said in zip(SOURCES, SAID):
            if said.limited:
                continue
            with self.subTest(name):
                found = list(oracle.differences(text, said, Spans(spans_of(text)).kind_at, LISTS))
                self.assertFalse(found, f"{name}: {'; '.join(found[:5])}")


class Lists(unittest.TestCase):
    def test_files_hold_them(self):
        for path in lists.FILES:
            text = lists.read(path)
            self.assertIn("list: ", text)
            self.assertEqual(text, lists.filled(path, text, LISTS), f"{path} lacks a name: make editors")

    def test_they_are_what_the_compiler_knows(self):
        def compiles(source):
            return subprocess.run([os.path.join(BUILD, "attnc"), "-", "--emit=ast"], input=source.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0  # fmt: skip

        kinds = {name: "attention a { dim D = 1, Dv = D; score(q, k) = dot(q, k); normalize(s) = s; modify(s) = s + %s; }" for name in ("B", "H", "Hkv", "Sq", "Sk", "D", "Dv", "q_offset")}  # fmt: skip
        for size in LISTS["sizes"]:
            source = kinds.get(size, "recurrence a { dim D = 1; decay(b, h, t) = f32(%s) * 0.0; }")
            self.assertTrue(compiles(source % size), size)
        for keyword in LISTS["keywords"]:
            self.assertFalse(compiles(f"const {keyword} = 1; attention a {{ dim D = 1; score(q, k) = dot(q, k); normalize(s) = s; }}"), keyword)
        for name in LISTS["types"]:
            self.assertTrue(compiles(f"attention a {{ dim D = 1; input _x: {name}; score(q, k) = dot(q, k); normalize(s) = s; }}"), name)


class TreeSitter(Grammar):
    @classmethod
    def setUpClass(cls):
        import tree_sitter

        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        library = os.path.join(cls.folder.name, "attn.so")
        subprocess.run([os.environ.get("CC", "cc").split()[-1], "-O1", "-shared", "-fPIC", "-I", f"{TREE_SITTER}/src", f"{TREE_SITTER}/src/parser.c", "-o", library], check=True)  # fmt: skip
        function = ctypes.CDLL(library).tree_sitter_attn
        function.restype = ctypes.c_void_p
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        cls.language = tree_sitter.Language(capsule(function(), b"tree_sitter.Language", None))
        cls.parser = tree_sitter.Parser(cls.language)
        cls.queries = {name: tree_sitter.Query(cls.language, oracle.read(f"{TREE_SITTER}/queries/{name}.scm").decode())
                       for name in ("highlights", "locals", "folds", "indents")}  # fmt: skip
        cls.cursor = tree_sitter.QueryCursor

    def same(self, name, text, said):
        wrong = self.parser.parse(text).root_node.has_error
        self.assertEqual(wrong, bool(said.error), f"{name}: {said.error or 'no error'}\n{text.decode(errors='replace')[:2000]}")

    def test_an_error_is_one_of_the_compiler(self):
        for (name, text), said in zip(SOURCES, SAID):
            if not said.limited:
                self.same(name, text, said)

    def test_mutated_sources(self):
        texts = list(oracle.mutants(2000))
        said = oracle.ask(texts)
        self.assertGreater(sum(not s.error for s in said), 100)
        for i, (text, s) in enumerate(zip(texts, said)):
            if not s.limited:
                self.same(f"mutant {i}", text, s)

    # Of several captures of a node the last in the query is taken, as Neovim does.
    KINDS = {"comment": "comment", "number": "integer", "number.float": "float", "keyword": "keyword", "operator": "operator",
             "keyword.conditional.ternary": "operator", "punctuation.bracket": "operator", "punctuation.delimiter": "operator",
             "function.method": "clause", "function.builtin": "builtin", "type.builtin": "type", "constant.builtin": "constant"}  # fmt: skip

    def spans(self, text):
        root, spans = self.parser.parse(text).root_node, {}
        for leaf in leaves(root):
            if leaf.type in ("identifier", "attribute", "type", "share"):
                spans[leaf.start_byte, leaf.end_byte] = "name"
        for _, captures in self.cursor(self.queries["highlights"]).matches(root):
            for capture, nodes in captures.items():
                for node in nodes:
                    word = text[node.start_byte : node.end_byte].decode()
                    kind = "size" if capture == "constant" and word in LISTS["sizes"] else self.KINDS.get(capture, "name")
                    spans[node.start_byte, node.end_byte] = kind
        return [(start, end, kind) for (start, end), kind in spans.items()]

    def test_highlights(self):
        right = [(n, t, s) for (n, t), s in zip(SOURCES, SAID) if not s.error]
        for name, text, said in right:
            found = list(oracle.differences(text, said, Spans(self.spans(text)).kind_at, LISTS))
            self.assertFalse(found, f"{name}: {'; '.join(found[:5])}")

    def test_other_queries_capture_something(self):
        text = b"attention a { dim D = 1; normalize(s) { let m = s; return m; } }"
        root = self.parser.parse(text).root_node
        for name, least in (("locals", 4), ("folds", 2), ("indents", 3)):
            self.assertGreaterEqual(sum(len(n) for _, c in self.cursor(self.queries[name]).matches(root) for n in c.values()), least, name)

    def test_generated_files_are_those_of_the_grammar(self):
        command = tool("tree-sitter")
        self.assertTrue(command, "tree-sitter's command is not there (tests/deps.sh): src/ is not compared with grammar.js")
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "tree-sitter-attn")
            subprocess.run(["cp", "-r", TREE_SITTER, copy], check=True)
            subprocess.run(["rm", "-r", f"{copy}/src"], check=True)
            env = dict(os.environ, HOME=folder)
            subprocess.run([command, "generate", "--no-bindings"], cwd=copy, env=env, check=True)
            done = subprocess.run(["diff", "-r", "-q", f"{TREE_SITTER}/src", f"{copy}/src"], stdout=subprocess.PIPE, check=False)
            self.assertFalse(done.stdout, "tools/editors/tree-sitter-attn/src is not what grammar.js gives: make editors")
            done = subprocess.run([command, "test"], cwd=copy, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.assertEqual(done.returncode, 0, done.stdout.decode())

    def test_queries_in_neovim(self):
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(f"{folder}/parser")
            os.link(os.path.join(self.folder.name, "attn.so"), f"{folder}/parser/attn.so")
            program = """lua
                local parser = vim.treesitter.get_parser(0, 'attn')
                local seen = {}
                for _, name in ipairs { 'highlights', 'locals', 'folds', 'indents' } do
                  local get = vim.treesitter.query and vim.treesitter.query.get or vim.treesitter.get_query
                  local query = get('attn', name)
                  seen[name] = 0
                  for _ in query:iter_captures(parser:parse()[1]:root(), 0) do seen[name] = seen[name] + 1 end
                end
                io.write(vim.fn.json_encode(seen))"""
            command = [NVIM, "-u", "NONE", "--headless", "-i", "NONE", "--cmd", f"set runtimepath^={EDITORS}/vim,{folder}", f"{TOP}/stdlib/alibi.attn"]
            done = subprocess.run([*command, "-c", " ".join(program.split()), "-c", "qall!"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)  # fmt: skip
            try:
                seen = json.loads(done.stdout)
            except ValueError:
                self.fail(done.stderr.decode())
            self.assertTrue(all(seen.values()), seen)


def leaves(node):
    if not node.children:
        yield node
    for child in node.children:
        yield from leaves(child)


class TextMate(Grammar):
    KINDS = {"comment": "comment", "keyword.control": "keyword", "keyword.operator": "operator", "punctuation": "operator",
             "constant.numeric.float": "float", "constant.numeric.integer": "integer", "constant.language": "constant",
             "support.function": "builtin", "support.type": "type", "variable.language": "size", "entity.name.function.clause": "clause",
             "entity.name": "name", "variable.other": "name", "storage.modifier": "name", "invalid.illegal": "error"}  # fmt: skip

    @classmethod
    def setUpClass(cls):
        from babi import highlight

        with open(f"{EDITORS}/vscode/syntaxes/attn.tmLanguage.json", encoding="utf-8") as f:
            grammar = highlight.Grammar.make(json.load(f))
        cls.compiler, cls.line = highlight.Compiler(grammar, highlight.Grammars()), staticmethod(highlight.highlight_line)

    def kind(self, scope):
        name = scope[-1]
        return next((kind for prefix, kind in self.KINDS.items() if name.startswith(prefix + ".")), None)

    def spans(self, text):
        state, at, spans = self.compiler.root_state, 0, []
        for i, line in enumerate(text.decode().split("\n")):
            state, regions = self.line(self.compiler, state, line + "\n", first_line=i == 0)
            for r in regions:
                kind = self.kind(r.scope) if len(r.scope) > 1 else None
                if kind and line[r.start : r.end].strip():
                    start = at + len(line[: r.start].encode())
                    spans.append((start, start + len(line[r.start : r.end].encode()), kind))
            at += len(line.encode()) + 1
        return spans

    def test_tokens(self):
        self.agrees(self.spans)


class Pygments(Grammar):
    @classmethod
    def setUpClass(cls):
        cls.lexer = load("_pygments", os.path.join(TOP, "python/attn/_pygments.py")).AttnLexer()

    def kind(self, token):
        from pygments.token import Comment, Error, Keyword, Name, Number, Operator, Punctuation

        for of, kind in ((Comment, "comment"), (Keyword.Type, "type"), (Keyword, "keyword"), (Number.Float, "float"), (Number.Integer, "integer"),
                         (Operator, "operator"), (Punctuation, "operator"), (Error, "error"), (Name.Function.Magic, "clause"), (Name.Builtin.Pseudo, "constant"),
                         (Name.Builtin, "builtin"), (Name.Variable.Magic, "size"), (Name, "name")):  # fmt: skip
            if token in of:
                return kind
        return None

    def spans(self, text):
        text, spans = text.decode(), []
        bytes_at = [0]
        for c in text:
            bytes_at.append(bytes_at[-1] + len(c.encode()))
        for at, token, value in self.lexer.get_tokens_unprocessed(text):
            kind = self.kind(token)
            if kind:
                spans.append((bytes_at[at], bytes_at[at + len(value)], kind))
        return spans

    def test_tokens(self):
        self.agrees(self.spans)


    def test_an_installed_package_gives_it_to_pygments(self):
        with tempfile.TemporaryDirectory() as folder:
            pip = ["/usr/bin/python3", "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--root-user-action=ignore"]
            subprocess.run([*pip, "--target", f"{folder}/site", TOP], check=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
            env = dict(os.environ, PYTHONPATH=f"{folder}/site:{os.environ.get('PYTHONPATH', '')}")
            program = "from pygments.lexers import get_lexer_for_filename as g; print(g('a.attn').__class__.__module__)"
            done = subprocess.run([sys.executable, "-c", program], env=env, cwd=folder, stdout=subprocess.PIPE, check=True)
            self.assertEqual(done.stdout.strip(), b"attn._pygments")


class VsCode(unittest.TestCase):
    FOLDER = os.path.join(EDITORS, "vscode")

    def setUp(self):
        self.about = json.loads(oracle.read(f"{self.FOLDER}/package.json"))

    def test_package(self):
        with tempfile.TemporaryDirectory() as folder:
            for out in ("a", "b"):
                subprocess.run([sys.executable, f"{self.FOLDER}/package.py", f"{folder}/{out}.vsix"], check=True, stdout=subprocess.DEVNULL)
            self.assertEqual(oracle.read(f"{folder}/a.vsix"), oracle.read(f"{folder}/b.vsix"))
            with zipfile.ZipFile(f"{folder}/a.vsix") as z:
                names, parts = z.namelist(), {name: z.read(name) for name in z.namelist()}
        self.assertEqual(names[0], "[Content_Types].xml")
        identity = ElementTree.fromstring(parts["extension.vsixmanifest"]).find(".//{*}Identity").attrib
        self.assertEqual((identity["Id"], identity["Version"], identity["Publisher"]), (self.about["name"], self.about["version"], self.about["publisher"]))
        extensions = {e.attrib["Extension"] for e in ElementTree.fromstring(parts["[Content_Types].xml"])}
        self.assertLessEqual({os.path.splitext(name)[1] for name in names[1:]}, extensions)
        self.assertIn(b"Microsoft", parts["extension/LICENSES-THIRD-PARTY.txt"])
        self.assertNotIn(TOP.encode(), parts["extension/extension.js"])
        contributes = self.about["contributes"]
        for path in [self.about["main"], *(x.get("path") or x["configuration"] for key in ("languages", "grammars", "snippets") for x in contributes[key])]:
            self.assertIn(os.path.normpath(f"extension/{path}"), names)

    def test_snippets_compile(self):
        for name, snippet in json.loads(oracle.read(f"{self.FOLDER}/snippets/attn.json")).items():
            body = snippet["body"] if isinstance(snippet["body"], str) else "\n".join(snippet["body"])
            text = re.sub(r"\$\{\d+\|(\w+)[^}]*\}", r"\1", re.sub(r"\$\{\d+:([^}]*)\}", r"\1", body))
            plain = "attention plain_ { dim D = 1; %s score(q, k) = dot(q, k); normalize(s) = s; }"
            text = plain % text if name == "input" else text if name in ("attention", "recurrence") else text + plain % ""
            done = subprocess.run([os.path.join(BUILD, "attnc"), "-", "--emit=ast"], input=text.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)  # fmt: skip
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr.decode()}\n{text}")

    # extension.js says what it tries.
    def test_extension_runs_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, f"{self.FOLDER}/package.py", f"{folder}/attn.vsix"], check=True, stdout=subprocess.DEVNULL)
            with zipfile.ZipFile(f"{folder}/attn.vsix") as z:
                for part in z.infolist():
                    os.chmod(z.extract(part, folder), part.external_attr >> 16)
            main = os.path.normpath(f"{folder}/extension/{self.about['main']}")
            done = subprocess.run(["node", f"{TOP}/tests/editors/extension.js", main, os.path.join(BUILD, "attnc")], cwd=folder,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stdout.decode()[-3000:])


class Vim(unittest.TestCase):
    KINDS = {"attnName": "name", "attnFunction": "name", "attnSize": "size", "attnConstant": "constant", "attnBuiltin": "builtin", "attnType": "type",
             "attnClause": "clause", "attnAttribute": "name", "attnKeyword": "keyword", "attnPath": "name", "attnPathDot": "operator",
             "attnOperator": "operator", "attnDelimiter": "operator", "attnNumber": "integer", "attnFloat": "float", "attnComment": "comment",
             "attnError": "error"}  # fmt: skip

    def groups(self, command, sources):
        """Per source: (start, end) of each token and of each word between tokens -> its kind."""
        with tempfile.TemporaryDirectory() as folder:
            asked, lines = [], []
            for i, (_, text, said) in enumerate(sources):
                path = os.path.join(folder, f"{i}.attn")
                with open(path, "wb") as f:
                    f.write(text)
                spans = oracle.spans(text, said)
                asked.append(spans)
                lines.append(json.dumps([path, [place(text, a, b) for a, b in spans]]))
            with open(os.path.join(folder, "spans"), "w", encoding="utf-8") as f:
                f.write("\n".join(lines))
            env = dict(os.environ, SPANS=os.path.join(folder, "spans"), GROUPS=os.path.join(folder, "groups"), HOME=folder)
            runtime = ["--cmd", f"set runtimepath^={EDITORS}/vim", "-S", os.path.join(TOP, "tests/editors/syntax.vim")]
            done = subprocess.run([*command, *runtime], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False)  # fmt: skip
            self.assertEqual(done.returncode, 0, done.stdout.decode(errors="replace")[-2000:])
            answers = [json.loads(line) for line in oracle.read(env["GROUPS"]).decode().splitlines()]
        self.assertEqual(len(answers), len(sources))
        return [dict(zip(spans, answer)) for spans, answer in zip(asked, answers)]

    def agrees(self, command):
        sources = [(n, t, s) for (n, t), s in zip(SOURCES, SAID) if not s.limited and b"\r" not in t and not t.startswith(b"\xef\xbb\xbf")]
        wrong = []
        for (name, text, said), groups in zip(sources, self.groups(command, sources)):
            found = oracle.differences(text, said, lambda a, b: self.KINDS.get(groups[a, b]), LISTS)  # noqa: B023
            wrong += [f"{name}: {w}" for w in found]
        self.assertFalse(wrong, "\n".join(wrong[:20]))

    def test_vim(self):
        self.agrees(["vim", "-u", "NONE", "-N", "-es", "-i", "NONE"])

    def test_neovim(self):
        self.agrees([NVIM, "-u", "NONE", "--headless", "-i", "NONE"])


    def neovim(self, program, text, name="a.attn"):
        """What a Lua program prints in Neovim with the plugin and this text in the buffer."""
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                f.write(text)
            env = dict(os.environ, PATH=f"{BUILD}:{os.environ['PATH']}", HOME=folder, XDG_STATE_HOME=folder, XDG_CACHE_HOME=folder)
            with open(os.path.join(folder, "init.lua"), "w", encoding="utf-8") as f:
                f.write("vim.cmd('filetype plugin indent on')\nrequire('attnc').setup()\n")
            with open(os.path.join(folder, "test.lua"), "w", encoding="utf-8") as f:
                f.write(program)
            command = [NVIM, "--headless", "-i", "NONE", "--cmd", f"set runtimepath^={EDITORS}/vim", "-u", f"{folder}/init.lua", name]
            done = subprocess.run([*command, "-c", f"luafile {folder}/test.lua", "-c", "qall!"], cwd=folder, env=env, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False)  # fmt: skip
            log = glob.glob(f"{folder}/**/lsp.log", recursive=True)
            return done.stdout.decode() or done.stderr.decode() + "".join(oracle.read(path).decode(errors="replace") for path in log)

    WRONG = "attention a {\n    dim D = 8;\n    score(q, k) = dot(q, k);\n    normalize(s) = softmaxx(s);\n}\n"

    def test_neovim_starts_the_server(self):
        said = self.neovim("""
            local function found() return #vim.diagnostic.get(0) > 0 end
            vim.wait(30000, found, 10)
            for _, d in ipairs(vim.diagnostic.get(0)) do io.stdout:write(d.lnum .. ':' .. d.message .. '\\n') end
        """, self.WRONG)  # fmt: skip
        self.assertRegex(said, r"(?m)^3:.*softmaxx")

    def test_the_lines_of_the_document_install_it(self):
        document = oracle.read(f"{TOP}/docs/editors.md").decode()
        blocks = {title: re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for title, text in re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", document, re.M | re.S)}
        self.assertEqual((len(blocks["Vim"]), len(blocks["Neovim"])), (1, 2))
        with tempfile.TemporaryDirectory() as folder:
            env = {k: v for k, v in os.environ.items() if not k.startswith("XDG_")}
            env.update(HOME=folder, PATH=f"{BUILD}:{env['PATH']}")
            for lines in (*blocks["Vim"], f"mkdir -p {folder}/.config/nvim", *blocks["Neovim"]):
                subprocess.run(["sh", "-e", "-c", lines], cwd=TOP, env=env, check=True)
            with open(f"{folder}/.vimrc", "w", encoding="utf-8") as f:
                f.write("filetype plugin indent on\nsyntax on\n")
            say = "call writefile([&filetype, &formatprg], 'said')"
            for command in (["vim", "-N", "-es", "-u", f"{folder}/.vimrc"], [NVIM, "--headless"]):
                subprocess.run([*command, "-i", "NONE", f"{TOP}/stdlib/softmax.attn", "-c", say, "-c", "qall!"], cwd=folder, env=env,
                               stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60, check=True)  # fmt: skip
                self.assertEqual(oracle.read(f"{folder}/said").split(b"\n")[:2], [b"attn", b"attnc fmt -"], command[0])
                os.unlink(f"{folder}/said")
            self.assertTrue(os.path.exists(f"{folder}/.config/nvim/parser/attn.so"))

    def test_gq_formats(self):
        loose = "attention a{dim D=8;score(q,k)=dot(q,k);\n\n\nnormalize(s)=s;}\n"
        wanted = subprocess.run([f"{BUILD}/attnc", "fmt", "-"], input=loose.encode(), stdout=subprocess.PIPE, check=True).stdout.decode()
        self.assertNotEqual(wanted, loose)
        shown = "io.stdout:write(table.concat(vim.api.nvim_buf_get_lines(0, 0, -1, true), '\\n') .. '\\n')"
        self.assertEqual(self.neovim(f"vim.cmd('normal! gggqG')\n{shown}", loose), wanted)


def place(text, start, end):
    """Line and column of Vim, from 1, and the bytes."""
    return text.count(b"\n", 0, start) + 1, start - (text.rfind(b"\n", 0, start) + 1) + 1, end - start


if __name__ == "__main__":
    result = unittest.main(exit=False, argv=sys.argv).result
    bad = len({getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors})
    print(f"{result.testsRun - bad} passed, {bad} failed")
    sys.exit(bad != 0)
