#!/usr/bin/env python3
"""attnc lsp, asked by real clients: pytest-lsp (pygls) and Neovim, and by a bare one where bytes matter.

    ATTNC=build/attnc PYTHONPATH=build/tools/lsp python3 tests/lsp/test_lsp.py     (tests/deps.sh installs pytest-lsp)
"""
import asyncio as aio
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

import pytest
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient, client_capabilities

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
ATTNC = str(pathlib.Path(os.environ.get("ATTNC", TOP / "build/attnc")).resolve())
SLOW = 10 if os.environ.get("SANITIZED") else 1
BUSY = 3 if os.getloadavg()[0] > 1 else 1  # other tests run beside this one

SOURCE = """\
// Seen by nobody.
import std.mask;
import std.normalization;

// How many keys are seen.
const WINDOW = 8;

// Two of it.
fn twice(x) = x * 2.0;

attention short {
    dim D = 64, Dv = D;
    input bias: f32[H, E] grad;
    score(q, k) = dot(q, k) * rsqrt(D);
    modify(s, b, h, q_idx, kv_idx) = twice(s) + bias[h, q_idx % E];
    mask(b, h, q_idx, kv_idx) = window(q_idx, kv_idx, WINDOW);
    normalize(s) = softmax(s);
}
"""


def spot(text, needle, nth=0, off=0):
    """The position of a piece of a text, in UTF-16."""
    at = -1
    for _ in range(nth + 1):
        at = text.index(needle, at + 1)
    at += off
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return lsp.Position(text.count("\n", 0, at), len(line.encode("utf-16-le")) // 2)


def apply(text, edits):
    """A text after edits of LSP, whose positions are in UTF-16."""

    def offset(p):
        lines = text.split("\n")
        units = lines[p.line].encode("utf-16-le")[: 2 * p.character]
        return sum(len(x) + 1 for x in lines[: p.line]) + len(units.decode("utf-16-le"))

    spans = sorted(((offset(e.range.start), offset(e.range.end), e.new_text) for e in edits), reverse=True)
    for start, end, new in spans:
        text = text[:start] + new + text[end:]
    return text


async def until(holds):
    """Waits for what messages bring."""
    for _ in range(2000 * SLOW):
        if holds():
            return
        await aio.sleep(0.01)
    raise TimeoutError


class Doc:
    """A document that is open in a client."""

    def __init__(self, client, text, uri="untitled:1", version=1):
        self.client, self.text, self.uri, self.version = client, text, uri, version
        item = lsp.TextDocumentItem(uri=uri, language_id="attn", version=version, text=text)
        client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))
        self.id = lsp.TextDocumentIdentifier(uri)

    async def diagnostics(self):
        """Those of the text as it is."""
        await until(lambda: self.client.versions.get(self.uri) == self.version)
        return self.client.diagnostics[self.uri]

    def change(self, text):
        self.text, self.version = text, self.version + 1
        self.client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                lsp.VersionedTextDocumentIdentifier(version=self.version, uri=self.uri),
                [lsp.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    def at(self, needle, nth=0, off=0):
        return {"text_document": self.id, "position": spot(self.text, needle, nth, off)}

    async def hover(self, needle, nth=0, off=0):
        found = await self.client.text_document_hover_async(lsp.HoverParams(**self.at(needle, nth, off)))
        return found.contents.value if found else None

    async def complete(self, needle, nth=0):
        """What may stand behind a piece of the text, by name."""
        found = await self.client.text_document_completion_async(
            lsp.CompletionParams(**self.at(needle, nth, len(needle)))
        )
        return {item.label: item for item in found.items}


async def begin(client, name="visual-studio-code", encodings=None):
    capabilities = client_capabilities(name)
    if encodings:
        capabilities.general = capabilities.general or lsp.GeneralClientCapabilities()
        capabilities.general.position_encodings = encodings
    client.versions = {}
    del client.protocol.fm.features["textDocument/publishDiagnostics"]

    @client.feature("textDocument/publishDiagnostics")
    def _published(params):
        client.diagnostics[params.uri] = list(params.diagnostics)
        client.versions[params.uri] = params.version

    @client.feature("client/registerCapability")
    def _registered(params):
        client.registered = [r.method for r in params.registrations]

    return await client.initialize_session(lsp.InitializeParams(capabilities=capabilities))


CONFIG = ClientServerConfig(server_command=[ATTNC, "lsp"])


@pytest_lsp.fixture(config=CONFIG)
async def client(lsp_client: LanguageClient):
    await begin(lsp_client)
    yield
    await lsp_client.shutdown_session()


@pytest_lsp.fixture(config=CONFIG)
async def plain(lsp_client: LanguageClient):
    """One that can little: no Markdown, no snippets, no related places."""
    yield
    await lsp_client.shutdown_session()


asyncio = pytest.mark.asyncio


# ---- diagnostics


@asyncio
async def test_diagnostics_follow_edits(client):
    doc = Doc(client, SOURCE)
    assert await doc.diagnostics() == []
    doc.change(SOURCE.replace("softmax(s)", "sofmax(s)"))
    (one,) = await doc.diagnostics()
    assert one.severity == lsp.DiagnosticSeverity.Error and "did you mean 'softmax'?" in one.message
    assert one.range.start == spot(doc.text, "sofmax") and one.range.end == spot(doc.text, "sofmax", off=6)
    doc.change(SOURCE)
    assert await doc.diagnostics() == []


@asyncio
async def test_what_the_derivation_says(client):
    text = SOURCE.replace("= softmax(s);", "{\n let m = rowmax(s);\n let z = rowsum(abs(s - m));\n return exp(s / z);\n }")
    doc = Doc(client, text)
    said = [d for d in await doc.diagnostics() if d.severity == lsp.DiagnosticSeverity.Information]
    assert any("sweeps over the keys" in d.message for d in said), said
    doc.change(SOURCE.replace("window(q_idx, kv_idx, WINDOW)", "kv_idx <= q_idx && (q_idx ^ kv_idx) % 7 < 3"))
    (blind,) = await doc.diagnostics()
    assert "it skips none" in blind.message and blind.severity == lsp.DiagnosticSeverity.Information
    assert blind.range.start.line == spot(doc.text, "mask(b").line


@asyncio
async def test_a_program_too_long_to_derive(client):
    twice = "".join(f"fn f{i}(x) = f{i - 1}(f{i - 1}(x) + 1.0);\n" for i in range(1, 14))
    text = "fn f0(x) = x * x + x;\n" + twice + "attention a {\n dim D = 64;\n score(q, k) = dot(q, k);\n normalize(s) = f13(s);\n}\n"
    doc = Doc(client, text)
    (one,) = await doc.diagnostics()
    assert "an editor is not told what is derived" in one.message and one.severity == lsp.DiagnosticSeverity.Information


@asyncio
async def test_warnings_and_places_beside(client):
    doc = Doc(client, SOURCE.replace("twice(s) + bias[h, q_idx % E]", "s"))
    (unused,) = await doc.diagnostics()
    assert unused.severity == lsp.DiagnosticSeverity.Warning and "no clause reads the input 'bias'" in unused.message
    doc.change(SOURCE + "const WINDOW = 9;\n")
    (again,) = await doc.diagnostics()
    assert again.related_information[0].location.range.start == spot(SOURCE, "WINDOW")


@asyncio
async def test_mistakes_of_an_import_stand_there(client, tmp_path):
    (tmp_path / "part.attn").write_text("fn half(x) = x * wrong;\n")
    doc = Doc(client, "import part;\n" + SOURCE, (tmp_path / "main.attn").as_uri())
    (one,) = await doc.diagnostics()
    assert one.range.start == spot(doc.text, "part") and "unknown name 'wrong'" in one.message
    assert one.related_information[0].location.uri == (tmp_path / "part.attn").as_uri()
    # the file changes under it
    (tmp_path / "part.attn").write_text("fn half(x) = x * 0.5;\n")
    assert client.registered == ["workspace/didChangeWatchedFiles"]
    change = lsp.FileEvent((tmp_path / "part.attn").as_uri(), lsp.FileChangeType.Changed)
    client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([change]))
    await until(lambda: client.diagnostics[doc.uri] == [])
    # an open document comes before the file
    part = Doc(client, "fn half(x) = x * wrong;\n", (tmp_path / "part.attn").as_uri())
    assert len(await part.diagnostics()) == 1
    await until(lambda: client.diagnostics[doc.uri] != [])
    client.text_document_did_close(lsp.DidCloseTextDocumentParams(part.id))
    await until(lambda: client.diagnostics[doc.uri] == [])
    assert client.diagnostics[part.uri] == []


# ---- names


@asyncio
async def test_hover(client):
    doc = Doc(client, SOURCE)
    assert "i32 = 8" in await doc.hover("WINDOW", 1) and "How many keys are seen." in await doc.hover("WINDOW", 1)
    assert "twice(x: f32) -> f32" in await doc.hover("twice", 1) and "Two of it." in await doc.hover("twice", 1)
    assert "i32 = 64" in await doc.hover("D)") and "The last `size` keys" in await doc.hover("window(")
    assert "e to the power" in (await doc.hover("rsqrt") or "") or "1 / sqrt(x)" in await doc.hover("rsqrt")
    assert "position" in await doc.hover("kv_idx", 1) and "brings it" in await doc.hover("E]")
    assert "a function" in await doc.hover("fn") and "heads" in await doc.hover("H, E")
    online = await doc.hover("normalize(")
    assert "One sweep over the keys." in online and "(maximum)" in online and "(sum)" in online and "merging two parts" in online
    assert "attention short, for one query" in await doc.hover("short")
    assert await doc.hover("// Seen", off=4) is None
    doc.change(SOURCE.replace("twice(s) + bias", "twice(s) + * bias"))
    assert "A parameter of 'modify'." in await doc.hover("s) + *"), "of the text before"
    doc.change(SOURCE.replace("mask(b,", "mask(b, 1 + ,"))
    assert "i32 = 8" in await doc.hover("WINDOW", 0), "a text that does not parse"


async def definition(doc, *where):
    return await doc.client.text_document_definition_async(lsp.DefinitionParams(**doc.at(*where)))


@asyncio
async def test_definition_references_highlights(client, tmp_path):
    (tmp_path / "part.attn").write_text("fn half(x) = x * 0.5;\n")
    doc = Doc(client, "import part;\n" + SOURCE.replace("twice(s)", "half(twice(s))"), (tmp_path / "main.attn").as_uri())
    assert (await definition(doc, "WINDOW", 1)).range.start == spot(doc.text, "WINDOW")
    half = await definition(doc, "half")
    assert half.uri == (tmp_path / "part.attn").as_uri() and half.range.start == lsp.Position(0, 3)
    module = await definition(doc, "part")
    assert module.uri == half.uri and module.range.start == lsp.Position(0, 0)
    std = await definition(doc, "window(")
    path = pathlib.Path(std.uri.removeprefix("file://"))
    assert path.read_text() == (TOP / "stdlib/mask.attn").read_text() and not os.stat(path).st_mode & 0o222
    assert path.read_text().splitlines()[std.range.start.line].startswith("fn window(")
    assert await definition(doc, "rsqrt") is None
    context = lsp.ReferenceContext(include_declaration=True)
    uses = await client.text_document_references_async(lsp.ReferenceParams(context=context, **doc.at("q_idx", 0)))
    assert [u.range.start for u in uses] == [spot(doc.text, "q_idx", 0), spot(doc.text, "q_idx", 1)]
    marks = await client.text_document_document_highlight_async(lsp.DocumentHighlightParams(**doc.at("WINDOW")))
    assert len(marks) == 2 and marks[0].kind == lsp.DocumentHighlightKind.Write


async def rename(doc, new, *where):
    return await doc.client.text_document_rename_async(lsp.RenameParams(new_name=new, **doc.at(*where)))


@asyncio
async def test_rename(client, tmp_path):
    part = tmp_path / "part.attn"
    part.write_text("// é😀\nfn half(x) = x * 0.5;\nfn quarter(x) = half(half(x));\n")
    doc = Doc(client, "import part;\n" + SOURCE.replace("twice(s)", "half(twice(s))"), (tmp_path / "main.attn").as_uri())
    edit = await rename(doc, "mean", "half")
    assert apply(doc.text, edit.changes[doc.uri]) == doc.text.replace("half", "mean")
    assert apply(part.read_text(), edit.changes[part.as_uri()]) == part.read_text().replace("half", "mean")
    edit = await rename(doc, "i", "kv_idx", 1)
    assert apply(doc.text, edit.changes[doc.uri]).count("kv_idx") == doc.text.count("kv_idx") - 2
    for new, where, why in [
        ("exp", ("WINDOW",), "already defined"),
        ("twice", ("WINDOW",), "already defined"),
        ("let", ("WINDOW",), "not a name"),
        ("1x", ("WINDOW",), "not a name"),
        ("", ("WINDOW",), "not a name"),
        ("fenster", ("window(",), "of the library"),
        ("weights", ("normalize",), "name of a clause"),
        ("e", ("rsqrt",), "built in"),
        ("Heads", ("H, E",), "built in"),
        ("C", ("D =",), "no 'dim D'"),
    ]:
        with pytest.raises(Exception, match=why):
            await rename(doc, new, *where)
    found = await client.text_document_prepare_rename_async(lsp.PrepareRenameParams(**doc.at("WINDOW", 1)))
    assert found.placeholder == "WINDOW" and found.range.start == spot(doc.text, "WINDOW", 1)
    with pytest.raises(Exception, match="of the library"):
        await client.text_document_prepare_rename_async(lsp.PrepareRenameParams(**doc.at("window(")))


# ---- writing


@asyncio
async def test_completion(client):
    doc = Doc(client, SOURCE.replace("twice(s) + bias[h, q_idx % E]", "tw"))
    names = await doc.complete("= tw")
    assert names["twice"].text_edit.new_text == "twice(${1:x})" and "Two of it." in names["twice"].documentation.value
    assert {"s", "b", "h", "q_idx", "kv_idx", "WINDOW", "bias", "D", "Dv", "H", "Sk", "exp", "inf", "window"} <= set(names)
    assert not {"short", "softmax", "rowmax", "let", "mask", "x"} & set(names)
    assert names["tanh_cap"].additional_text_edits[0].new_text == "import std.modify;\n"
    assert "rowmax" in await doc.complete("normalize(s) = ")
    doc.change(SOURCE.replace("    normalize", "    ou\n    normalize"))
    clauses = await doc.complete("\n    ou")
    assert clauses["output"].text_edit.new_text == "output(o, b, h, q_idx, d) = $0;" and "mask" not in clauses
    doc.change(SOURCE.replace("softmax(s)", "{\n let first = rowmax(s);\n let second = f"))
    names = await doc.complete("second = f")
    assert "first" in names and "s" in names and "second" not in names
    doc.change("import std.")
    assert {"std.mask", "std.math", "std.modify", "std.normalization"} == set(await doc.complete("import std."))
    doc.change("")
    items = await doc.complete("")
    assert set(items) == {"import", "const", "fn", "normalization", "attention", "recurrence"}
    template = items["attention"].text_edit.new_text
    assert "score(q, k)" in template and "normalize(s)" in template
    doc.change("// atten")
    assert await doc.complete("// atten") == {}


@asyncio
async def test_completion_of_what_is_no_longer_imported(client):
    doc = Doc(client, SOURCE)
    assert await doc.diagnostics() == []
    doc.change("attention a {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    normalize(s) = softm;\n}\n")
    names = await doc.complete("= softm")
    assert names["softmax"].additional_text_edits[0].new_text == "import std.normalization;\n"


@asyncio
async def test_signature_help(client):
    doc = Doc(client, SOURCE.replace("WINDOW);", "W"))

    async def ask(*where):
        return await client.text_document_signature_help_async(lsp.SignatureHelpParams(**doc.at(*where)))

    help = await ask("kv_idx, W", 0, 8)
    assert help.signatures[0].label.startswith("window(q_idx") and help.active_parameter == 2
    help = await ask("q_idx, kv_idx) =", 1, 8)
    assert help.signatures[0].label.startswith("mask(b: i32") and help.active_parameter == 3
    assert (await ask("bias[h", 0, 6)) is None
    assert (await ask("rsqrt(", 0, 6)).signatures[0].label == "rsqrt(x: f32) -> f32"


@asyncio
async def test_code_actions_mend(client):
    doc = Doc(client, SOURCE.replace("import std.mask;\n", "").replace("softmax(s)", "sofmax(s)"))
    said = await doc.diagnostics()
    for d in said:
        params = lsp.CodeActionParams(doc.id, d.range, lsp.CodeActionContext([d]))
        (action,) = await client.text_document_code_action_async(params)
        assert action.kind == lsp.CodeActionKind.QuickFix and action.diagnostics[0].message == d.message
    text = doc.text
    for _ in said:
        params = lsp.CodeActionParams(doc.id, said[-1].range, lsp.CodeActionContext(said))
        (action,) = await client.text_document_code_action_async(params)
        text = apply(text, action.edit.changes[doc.uri])
        doc.change(text)
        said = await doc.diagnostics()
    assert said == [] and "import std.mask;\n" in text


@asyncio
async def test_formatting_is_that_of_fmt(client):
    doc = Doc(client, SOURCE.replace("= 8", "=8").replace("    ", "\t") + "\n\n\n// é😀 last")
    params = lsp.DocumentFormattingParams(doc.id, lsp.FormattingOptions(tab_size=4, insert_spaces=True))
    edits = await client.text_document_formatting_async(params)
    wanted = subprocess.run([ATTNC, "fmt", "-"], input=doc.text, capture_output=True, text=True, check=True).stdout
    assert apply(doc.text, edits) == wanted != doc.text
    doc.change(wanted)
    assert not await client.text_document_formatting_async(params)
    doc.change("attention {")
    with pytest.raises(Exception, match="does not parse"):
        await client.text_document_formatting_async(params)


# ---- the text as a whole


@asyncio
async def test_outline_and_folding(client):
    doc = Doc(client, SOURCE + "fn broken(x = ;\n")
    symbols = await client.text_document_document_symbol_async(lsp.DocumentSymbolParams(doc.id))
    assert [s.name for s in symbols][:3] == ["WINDOW", "twice", "short"]
    inner = {s.name: s for s in symbols[2].children}
    assert {"D", "Dv", "bias", "score", "modify", "mask", "normalize"} == set(inner)
    assert inner["score"].selection_range.start == spot(SOURCE, "score") and symbols[2].range.end == spot(SOURCE, "}", 0, 1)
    folds = await client.text_document_folding_range_async(lsp.FoldingRangeParams(doc.id))
    assert (spot(SOURCE, "attention").line, spot(SOURCE, "\n}", 0, 1).line) in [(f.start_line, f.end_line) for f in folds]


def decode(data, legend, text):
    lines, line, column, out = text.split("\n"), 0, 0, []
    for i in range(0, len(data), 5):
        down, right, n, kind, bits = data[i : i + 5]
        line, column = line + down, right if down else column + right
        units = lines[line].encode("utf-16-le")[2 * column : 2 * (column + n)]
        marks = {m for k, m in enumerate(legend.token_modifiers) if bits >> k & 1}
        out.append((units.decode("utf-16-le"), legend.token_types[kind], marks))
    return out


@pytest_lsp.fixture(config=CONFIG)
async def begun(lsp_client: LanguageClient):
    lsp_client.answer = await begin(lsp_client)
    yield
    await lsp_client.shutdown_session()


@asyncio
async def test_semantic_tokens(begun):
    text = "/* 😀\n é */ import std.mask; // x\n" + SOURCE
    doc = Doc(begun, text)
    legend = begun.answer.capabilities.semantic_tokens_provider.legend
    found = await begun.text_document_semantic_tokens_full_async(lsp.SemanticTokensParams(doc.id))
    words = decode(found.data, legend, text)
    assert ("/* 😀", "comment", set()) in words and (" é */", "comment", set()) in words
    assert ("std", "namespace", set()) in words and ("f32", "type", set()) in words
    assert ("WINDOW", "variable", {"definition", "readonly"}) in words and ("twice", "function", {"definition"}) in words
    assert ("window", "function", {"defaultLibrary"}) in words and ("rsqrt", "function", {"defaultLibrary"}) in words
    assert ("bias", "property", {"definition"}) in words and ("kv_idx", "parameter", {"definition"}) in words
    assert ("score", "method", {"definition"}) in words and ("short", "class", {"definition"}) in words
    code = "".join(w for w, kind, _ in words if kind != "comment")
    plain = "\n".join(line.split("//")[0] for line in text.split("*/")[1].split("\n"))
    assert code.replace("grad", "") == "".join(plain.split()).replace("grad", "")


@asyncio
async def test_a_client_that_can_little(plain):
    result = await plain.initialize_session(lsp.InitializeParams(capabilities=lsp.ClientCapabilities()))
    assert result.capabilities.rename_provider is True and not result.capabilities.code_action_provider
    doc = Doc(plain, SOURCE)
    assert "```" not in await doc.hover("WINDOW")
    doc.change(SOURCE.replace("twice(s) + bias[h, q_idx % E]", "tw"))
    assert (await doc.complete("= tw"))["twice"].text_edit.new_text == "twice"
    symbols = await plain.text_document_document_symbol_async(lsp.DocumentSymbolParams(doc.id))
    assert ("score", "short") in [(s.name, s.container_name) for s in symbols]


# ---- positions


def odd_text(rng):
    pieces = ["a", "é", "😀", "\n", "\r\n", "\r", " ", "let", "}", "𝛼𝛽", "", "x\ny"]
    return "".join(rng.choice(pieces) for _ in range(rng.randrange(6)))


class Model:
    """A document in units of an encoding; lines end as in LSP."""

    def __init__(self, text, encoding):
        self.text, self.encoding = text, encoding

    def lines(self):
        starts = [0]
        for i, c in enumerate(self.text):
            if c == "\n" or (c == "\r" and self.text[i + 1 : i + 2] != "\n"):
                starts.append(i + 1)
        return starts

    def width(self, s):
        return len(s.encode("utf-8")) if self.encoding == "utf-8" else len(s.encode("utf-16-le")) // 2

    def spot(self, i):
        if self.text[i - 1 : i + 1] == "\r\n":
            i -= 1
        line = max(k for k, s in enumerate(self.lines()) if s <= i)
        return i, lsp.Position(line, self.width(self.text[self.lines()[line] : i]))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8"])
@asyncio
async def test_edits_at_random_places(plain, encoding):
    result = await begin(plain, encodings=["utf-32", "utf-8"] if encoding == "utf-8" else ["utf-16"])
    assert result.capabilities.position_encoding == encoding
    rng = random.Random(7)
    model = Model(SOURCE, encoding)
    doc = Doc(plain, SOURCE)
    for round in range(30):
        changes = []
        for _ in range(rng.randrange(1, 5)):
            i, j = sorted(rng.randrange(len(model.text) + 1) for _ in range(2))
            j = min(j, i + rng.randrange(20))
            (i, start), (j, end) = model.spot(i), model.spot(j)
            new = odd_text(rng)
            changes.append(lsp.TextDocumentContentChangePartial(lsp.Range(start, end), new))
            model.text = model.text[:i] + new + model.text[max(i, j) :]
        doc.version += 1
        id = lsp.VersionedTextDocumentIdentifier(version=doc.version, uri=doc.uri)
        plain.text_document_did_change(lsp.DidChangeTextDocumentParams(id, changes))
        found = await plain.protocol.send_request_async("attn/source", {"uri": doc.uri})
        assert found.text == model.text, round


@asyncio
async def test_columns_behind_wide_characters(client):
    text = SOURCE.replace("mask(b", "/* 😀é */ mask(b").replace("WINDOW);", "WIND);")
    doc = Doc(client, text)
    (one,) = await doc.diagnostics()
    assert one.range.start == spot(text, "WIND);") and one.range.end == spot(text, "WIND);", off=4)


# ---- bytes


class Bare:
    """A client of bytes."""

    def __init__(self, *args):
        self.p = subprocess.Popen([ATTNC, "lsp", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.next = 0

    def message(self, method, params=None, request=False):
        body = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if request:
            self.next += 1
            body["id"] = self.next
        data = json.dumps(body).encode()
        return b"Content-Length: %d\r\n\r\n%s" % (len(data), data)

    def write(self, *messages):
        self.p.stdin.write(b"".join(messages))
        self.p.stdin.flush()

    def read(self):
        length = 0
        while (line := self.p.stdout.readline()) not in (b"\r\n", b""):
            length = int(line.split(b":")[1])
        return json.loads(self.p.stdout.read(length)) if length else None

    def start(self):
        self.write(self.message("initialize", {"capabilities": {}}, True), self.message("initialized"))
        return self.read()

    def open(self, text, uri="untitled:1"):
        return self.message("textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": "attn", "version": 1, "text": text}})

    def edit(self, version, line, column, n, text, uri="untitled:1"):
        change = {"range": {"start": {"line": line, "character": column}, "end": {"line": line, "character": column + n}}, "text": text}
        return self.message("textDocument/didChange", {"textDocument": {"uri": uri, "version": version}, "contentChanges": [change]})

    def end(self):
        self.p.stdin.close()
        status = self.p.wait(timeout=20)
        self.p.stdout.close()
        return status


def test_the_end_of_a_session():
    c = Bare()
    c.start()
    c.write(c.message("shutdown", request=True), c.message("exit"))
    assert c.read()["result"] is None and c.p.wait(timeout=20) == 0 and c.end() == 0
    c = Bare("--stdio")
    c.start()
    c.write(c.message("exit"))
    assert c.p.wait(timeout=20) == 1 and c.end() == 1
    c = Bare()
    c.start()
    assert c.end() == 1, "stdin ends without exit"
    c = Bare()
    c.write(c.message("exit"))
    assert c.p.wait(timeout=20) == 1 and c.end() == 1
    c = Bare()
    c.write(b"hello\r\n\r\n")
    assert c.p.wait(timeout=20) == 1 and c.end() == 1, "no length"


def test_requests_out_of_turn():
    c = Bare()
    c.write(c.message("textDocument/hover", request=True))
    assert c.read()["error"]["code"] == -32002
    c.start()
    c.write(c.message("initialize", request=True), c.message("no/such", request=True), c.message("$/unknown"))
    assert c.read()["error"]["code"] == -32600 and c.read()["error"]["code"] == -32601
    c.write(c.message("textDocument/hover", {"textDocument": {"uri": "untitled:9"}}, True))
    assert c.read()["error"]["code"] == -32602
    for broken in (b"{", b"[]", b"7", b'{"id": {}, "method": "x"}', b'{"jsonrpc": "2.0"}', b"\xff\x00"):
        c.write(b"Content-Length: %d\r\n\r\n%s" % (len(broken), broken))
        assert c.read()["error"]["code"] in (-32700, -32600)
    c.write(c.message("shutdown", request=True), c.message("textDocument/hover", request=True))
    assert c.read()["result"] is None and c.read()["error"]["code"] == -32600
    c.end()


def test_cancelled_and_overtaken():
    c = Bare()
    c.start()
    hover = {"textDocument": {"uri": "untitled:1"}, "position": {"line": 0, "character": 0}}
    first, second = c.message("textDocument/hover", hover, True), c.message("textDocument/hover", hover, True)
    edits = [c.edit(2 + i, 0, 0, 0, "x") for i in range(50)]
    c.write(c.open(SOURCE), first, second, c.message("$/cancelRequest", {"id": c.next}), *edits)
    said = [c.read() for _ in range(3)]
    assert [m.get("error", {}).get("code") for m in said[:2]] == [None, -32800]
    while said[-1]["params"]["version"] != 51:
        said.append(c.read())
    assert len(said) < 20, "of 50 edits in a row not each is computed"
    c.end()


def test_pieces_of_messages():
    c = Bare()
    data = c.message("initialize", {"capabilities": {}}, True).replace(b"Content-Length", b"Content-Type: x\r\ncontent-length")
    for i in range(0, len(data), 7):
        c.write(data[i : i + 7])
    assert c.read()["id"] == 1
    c.write(c.open("attention a {" + "(" * 100000))
    assert c.read()["params"]["diagnostics"]
    c.write(c.open("x" * 3_000_000 + "\u0000", "untitled:2"))
    while c.read()["params"]["uri"] != "untitled:2":
        pass
    c.end()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def test_an_edit_is_answered_in_30_ms():
    body = SOURCE[SOURCE.index("attention") :]
    text = SOURCE + "".join(f"// number {i}\n{body.replace('short', f'short{i}')}" for i in range(30))
    text = "\n".join(text.split("\n")[:200])
    text = text[: text.rindex("}") + 1] + "\n"
    assert 190 <= text.count("\n") <= 200
    c = Bare()
    c.start()
    c.write(c.open(text))
    assert c.read()["params"]["diagnostics"] == []
    line = text[: text.index("twice(s) +")].count("\n")
    column = text.split("\n")[line].index("twice(s)")
    rounds = []
    while len(rounds) < 5 and min(rounds, default=1e9) >= 30 * SLOW * BUSY:  # a machine that is busy gets more tries, not more time
        times = []
        for i in range(100):
            start = time.perf_counter()
            c.write(c.edit(2 + i, line, column, 5, "twice" if i % 2 else "twicf"))
            said = c.read()
            times.append(1000 * (time.perf_counter() - start))
            assert bool(said["params"]["diagnostics"]) == (i % 2 == 0)
        rounds.append(percentile(times, 0.95))
        print(f"edit to diagnostics, 200 lines: median {percentile(times, 0.5):.1f} ms, 95th percentile {rounds[-1]:.1f} ms")
    c.end()
    assert min(rounds) < 30 * SLOW * BUSY


# ---- Neovim


@pytest.mark.skipif(not shutil.which("nvim"), reason="tests/deps.sh installs it")
def test_neovim(tmp_path):
    shutil.copy(TOP / "tests/lsp/neovim.lua", tmp_path)
    (tmp_path / "a.attn").write_text(SOURCE.replace("softmax(s)", "sofmax(s)"))
    env = dict(os.environ, ATTNC=ATTNC, XDG_CACHE_HOME=str(tmp_path / "cache"), XDG_STATE_HOME=str(tmp_path), HOME=str(tmp_path))
    command = ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-c", "luafile neovim.lua", "a.attn"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60 * SLOW, check=False)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert done.returncode == 0, done.stderr
    assert "did you mean 'softmax'?" in seen["before"][0] and seen["after"] == []
    assert "i32 = 8" in seen["hover"] and "twice" in seen["completion"]
    wanted = subprocess.run([ATTNC, "fmt", "-"], input=SOURCE, capture_output=True, text=True, check=True).stdout
    assert (tmp_path / "a.attn").read_text() == wanted.replace("WINDOW", "W")
    assert seen["definition"].endswith("normalization.attn")


class Count:
    passed = failed = 0

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed += 1
        elif report.when == "call" and report.passed:
            self.passed += 1

    def pytest_collectreport(self, report):
        self.failed += report.failed


def main():
    count = Count()
    options = ["-q", "-s", "--tb=short", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "-W", "ignore", "--rootdir", str(TOP / "tests/lsp")]
    pytest.main([*options, *sys.argv[1:], __file__], plugins=[count])
    print(f"{count.passed} passed, {count.failed or int(not count.passed)} failed")
    return 1 if count.failed or not count.passed else 0


if __name__ == "__main__":
    sys.exit(main())
