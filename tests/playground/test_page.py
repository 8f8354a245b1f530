"""The page as a whole: links, files, the keyboard alone, a phone's width, both schemes, what axe finds, bad input, long work, size and speed."""

import gzip
import statistics

from support import INDEX, PANES, SHOTS, PageTest, pack, unpack
from axe_playwright_python.sync_playwright import Axe

LIMIT = 1_500_000  # bytes, compressed
MINE = "attention mine {\n    dim D = 32;\n    score(q, k)  = dot(q, k);\n    normalize(s) = s;\n}\n"


class Links(PageTest):
    def test_a_link_opens_what_it_holds(self):
        page = self.open(pack({"source": MINE, "pane": "mask", "sizes": {"Sq": 128, "Sk": 64, "tile.keys": 16}}))
        self.settle(page)
        self.assertEqual(self.source(page), MINE)
        self.assertEqual(page.locator("[role=tab][aria-selected=true]").inner_text(), "Mask")
        self.assertIn("2 × 4 tiles of 64 × 16", page.locator("#pane-mask .facts").inner_text())

    def test_the_address_follows_and_shares(self):
        page = self.open()
        self.type_all(page, MINE)
        self.show(page, "weights").get_by_label("Sentence").fill("ein Wort, zwei Wörter → ∑")
        page.wait_for_function("() => location.hash.startsWith('#s=')")
        page.wait_for_timeout(600)
        state = unpack(page.url)
        self.assertEqual((state["source"], state["pane"], state["sizes"]["text"]), (MINE, "weights", "ein Wort, zwei Wörter → ∑"))
        other = self.open(page.url[page.url.index("#"):])
        self.assertEqual(self.source(other), MINE)
        self.assertEqual(other.get_by_label("Sentence").input_value(), "ein Wort, zwei Wörter → ∑")

    def test_copy(self):
        page = self.open(permissions=["clipboard-read", "clipboard-write"])
        self.type_all(page, MINE)
        page.click("#share")
        page.locator("#toast.shown").wait_for()
        self.assertEqual(unpack(page.url)["source"], MINE)

    def test_broken_links(self):
        good = pack({"source": MINE})
        bomb = pack(b'{"source":"' + b"a" * 50_000_000 + b'"}')
        broken = ["#s=", "#s=%%%", "#s=AAAA", good[:-7], "#other", pack({"source": 7}), pack([1]), pack(b"null"), pack(b"\xff\xfe"), pack({"source": "x" * 500_000}), bomb]
        for fragment in broken:
            page = self.open(fragment)
            self.assertIn("attention softmax", self.source(page), fragment[:40])
            self.assertIn("This link holds nothing", page.locator("#toast").inner_text(), fragment[:40])
            self.contexts.pop().close()

    def test_strange_values_are_left_out(self):
        sizes = {"Sq": "many", "Sk": -5, "H": 1e300, "head": None, "__proto__": 3, "x y": 1, "tile.keys": 0, "seed": {"a": 1}, "const.D": "nan", "input.none": 3, "text": "x" * 5000}
        for pane in [*PANES, "nothing"]:
            page = self.open(pack({"source": MINE, "pane": pane, "sizes": sizes, "more": [1, 2]}))
            self.settle(page)
            self.assertEqual(self.source(page), MINE)
            self.contexts.pop().close()

    def test_a_link_while_the_page_is_open(self):
        page = self.open()
        page.evaluate("hash => { location.hash = hash; }", pack({"source": MINE, "pane": "kernel"}))
        page.wait_for_function("() => document.querySelector('.CodeMirror').CodeMirror.getValue().startsWith('attention mine')")
        self.settle(page)
        self.assertEqual(page.locator("[role=tab][aria-selected=true]").inner_text(), "Kernel")


class Files(PageTest):
    def test_download_and_open(self):
        page = self.open()
        self.type_all(page, MINE)
        with page.expect_download() as download:
            page.click("#download")
        self.assertEqual(download.value.suggested_filename, "mine.attn")
        path = download.value.path()
        self.assertEqual(path.read_text(encoding="utf-8"), MINE)
        self.example(page, "causal")
        page.set_input_files("#file", {"name": "mine.attn", "mimeType": "text/plain", "buffer": MINE.encode()})
        page.wait_for_function("() => document.querySelector('.CodeMirror').CodeMirror.getValue().startsWith('attention mine')")
        self.assertEqual(page.locator("#examples").input_value(), "")

    def test_drop(self):
        page = self.open()
        transfer = page.evaluate_handle("text => { const t = new DataTransfer(); t.items.add(new File([text], 'mine.attn')); return t; }", MINE)
        page.dispatch_event("#editor", "drop", {"dataTransfer": transfer})
        page.wait_for_function("() => document.querySelector('.CodeMirror').CodeMirror.getValue().startsWith('attention mine')")
        self.settle(page)
        self.assertEqual(self.source(page), MINE)


class Keyboard(PageTest):
    def test_tabs_by_arrows(self):
        page = self.open()
        page.focus("[role=tab][aria-selected=true]")
        seen = []
        for _ in PANES:
            page.keyboard.press("ArrowRight")
            seen.append(page.evaluate("() => document.activeElement.dataset.pane"))
            self.assertEqual(page.locator("[role=tabpanel]:visible").count(), 1)
        self.assertEqual(seen, [*PANES[1:], PANES[0]])
        page.keyboard.press("End")
        self.assertEqual(page.evaluate("() => document.activeElement.dataset.pane"), PANES[-1])

    def test_focus_reaches_everything_and_is_seen(self):
        page = self.open()
        self.example(page, "causal")
        for pane in PANES:
            self.show(page, pane)
            page.focus("#examples")
            reached = []
            for _ in range(80):
                page.keyboard.press("Tab")
                if page.evaluate("() => document.activeElement.closest('.CodeMirror') !== null"):
                    page.keyboard.press("Escape")
                    reached.append("editor")
                    continue
                where = page.evaluate("""() => { const a = document.activeElement; if (a === document.body) return null;
                    const s = getComputedStyle(a), c = a.querySelector('canvas');
                    return [a.id || a.getAttribute('aria-label') || a.textContent.slice(0, 20), s.outlineStyle !== 'none' || (c && getComputedStyle(c).outlineStyle !== 'none') || a.id === 'divider']; }""")
                if where is None:
                    break
                self.assertTrue(where[1], f"{pane}: the focus on {where[0]} is not seen")
                reached.append(where[0])
            for name in ["open", "share", "editor", "divider", f"tab-{pane}"]:
                self.assertIn(name, reached)
            self.assertIn(f"pane-{pane}", reached)

    def test_divider(self):
        page = self.open()
        before = page.locator("#left").bounding_box()["width"]
        page.focus("#divider")
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        self.assertGreater(page.locator("#left").bounding_box()["width"], before + 50)

    def test_help(self):
        page = self.open()
        page.click("#help")
        self.assertTrue(page.locator("#about").is_visible())
        for name in ["CodeMirror", "jsdiff", "STIX", "cJSON"]:
            self.assertIn(name, page.locator("#licences").inner_text())
        page.locator("#licences summary").first.click()
        self.assertIn("Permission is hereby granted", page.locator("#licences pre").first.inner_text())
        page.keyboard.press("Escape")
        self.assertTrue(page.locator("#about").is_hidden())


class Looks(PageTest):
    """Every pane in both schemes and on a phone: nothing that axe finds, no overflow; a picture of each is left in shots/."""

    def look(self, name, **context):
        SHOTS.mkdir(exist_ok=True)
        page = self.open(**context)
        for pane, example in zip(PANES, ["causal", "prefix_lm", "alibi", "attention_sink", "softcap"]):
            self.example(page, example)
            self.show(page, pane)
            page.screenshot(path=SHOTS / f"{name}-{pane}.png", full_page=context.get("width") == 360)
            self.clean(page, f"{name}, {pane}")
            wide = page.evaluate("() => Math.max(innerWidth, document.scrollingElement.scrollWidth)")  # a phone makes room for what is too wide
            self.assertLessEqual(wide, context.get("width", 1280), f"{name}, {pane}: the page is wider than its window")
        return page

    def clean(self, page, what):
        found = Axe().run(page).response["violations"]
        self.assertEqual([(v["id"], [n["html"][:200] for n in v["nodes"]]) for v in found], [], what)

    def test_light(self):
        page = self.look("light", color_scheme="light")
        page.click("#help")
        page.screenshot(path=SHOTS / "light-help.png")
        self.clean(page, "help")

    def test_dark(self):
        page = self.look("dark", color_scheme="dark")
        self.type_all(page, MINE.replace("dot(q, k)", "dot(q, kk)"))
        page.screenshot(path=SHOTS / "dark-error.png")
        self.clean(page, "an error")

    def test_phone(self):
        self.look("phone", width=360, height=740, has_touch=True, is_mobile=True)

    def test_switch(self):
        page = self.open(color_scheme="dark")
        background = "() => getComputedStyle(document.querySelector('#left')).backgroundColor"
        dark = page.evaluate(background)
        page.click("#theme")
        light = page.evaluate(background)
        self.assertNotEqual(dark, light)
        self.assertEqual(light, "rgb(255, 255, 255)")
        page.click("#theme")
        self.assertEqual(page.evaluate(background), dark)

    def test_less_motion(self):
        page = self.open(reduced_motion="reduce")
        page.evaluate("() => { document.getElementById('progress').hidden = false; }")
        self.assertEqual(page.evaluate("() => document.getAnimations().length"), 0)


class BadInput(PageTest):
    def lives(self, page):
        """After whatever it was, an edit is answered."""
        self.type_all(page, MINE)
        self.assertEqual(page.locator("#state").inner_text(), "No problems")
        self.assertIn("Mine", self.show(page, "derived").locator("h2").first.inner_text().title())

    def survive(self, text):
        page = self.open()
        for pane in PANES:
            self.show(page, pane)
            self.type_all(page, text)
        shown = page.locator("#state").inner_text()
        self.lives(page)
        return shown

    def body(self, expression):
        return f"attention a {{\n    dim D = 64;\n    score(q, k) = {expression};\n    normalize(s) = s;\n}}\n"

    def test_nesting(self):
        self.assertIn("error", self.survive(self.body("(" * 5000 + "dot(q, k)" + ")" * 5000)))

    def test_a_long_sum(self):
        self.survive(self.body(" + ".join(["dot(q, k)"] * 3000)))

    def test_functions_that_grow(self):
        text = "fn f0(x) = x + x;\n" + "".join(f"fn f{i}(x) = f{i - 1}(f{i - 1}(x)) * f{i - 1}(x);\n" for i in range(1, 24))
        self.survive(text + self.body("f23(dot(q, k))"))

    def test_100000_characters(self):
        page = self.open()
        line = "// " + "x" * 76 + "\n"
        for text in [line * 1250, "x" * 100_000, "attention a { dim D = 64; " * 3850, "{" * 100_000, "\u0000\u2028😀" * 25_000]:
            self.type_all(page, text)
            self.assertGreater(len(page.locator("#state").inner_text()), 0)
        self.lives(page)

    def test_huge_sizes(self):
        page = self.open(pack({"source": MINE, "pane": "mask", "sizes": {"Sq": 16384, "Sk": 16384, "tile.queries": 1, "tile.keys": 1}}))
        self.settle(page)
        self.assertIn("tiles", page.locator("#pane-mask .message").inner_text())
        self.type_all(page, MINE.replace("32", "99999999"))
        self.lives(page)

    def test_nothing_at_all(self):
        page = self.open()
        for text in ["", "\n", "import std.mask;\n"]:
            for pane in PANES:
                self.show(page, pane)
                self.type_all(page, text)
        self.lives(page)

    def test_names_are_text(self):
        page = self.open(pack({"source": MINE, "pane": "weights", "sizes": {"text": "<img/src=x/onerror=alert(1)> </script> &amp;"}}))
        self.settle(page)
        self.assertIn("<img/src=x/onerror=alert(1)>", page.locator("#pane-weights .row-table").inner_text())
        self.assertEqual(page.locator("img").count(), 0)


    def test_a_browser_without_webassembly(self):
        page = self.open(wait=False, script="""
            window.Worker = class {
                postMessage() { setTimeout(() => this.onmessage({data: {crashed: 'no WebAssembly'}})); }
                terminate() {}
            };""")
        page.locator("#pane-derived .message").wait_for()
        self.assertIn("no WebAssembly", page.locator("#pane-derived .message").inner_text())


class LongWork(PageTest):
    """A worker that never comes to the end of what it does with one source."""

    ENDLESS = "attention endless {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    normalize(s) = s;\n}\n"
    WORKER = """{ const real = onmessage; onmessage = (e) => { while (String(e.data).includes('endless')); real(e); }; }"""

    def open(self):
        return super().open(script=f"""
            window.Blob = class extends window.Blob {{
                constructor(parts, options) {{ super(options?.type === 'text/javascript' ? [...parts, `;{self.WORKER}`] : parts, options); }}
            }};""")

    def begin(self, page):
        page.evaluate("""text => {
            document.querySelector('.CodeMirror').CodeMirror.setValue(text);
            window.gap = 0;
            let last = performance.now();
            setInterval(() => { window.gap = Math.max(window.gap, performance.now() - last); last = performance.now(); }, 10); }""", self.ENDLESS)
        page.locator("#progress").wait_for(state="visible")

    def test_it_is_stopped(self):
        page = self.open()
        self.begin(page)
        page.wait_for_timeout(1000)
        self.assertTrue(page.locator("#progress").is_visible())
        gap = page.evaluate("() => window.gap")
        print(f"long work: the page is held up for at most {gap:.0f} ms")
        self.assertLess(gap, 500, "the page waited for the compiler")
        page.click("#stop")
        page.locator("#progress").wait_for(state="hidden")
        self.assertIn("Stopped", page.locator("#pane-derived .message").inner_text())
        page.wait_for_timeout(700)
        self.assertTrue(page.locator("#progress").is_hidden(), "it does not start again by itself")
        self.type_all(page, MINE)
        self.assertEqual(page.locator("#state").inner_text(), "No problems")
        self.assertEqual(page.locator("#pane-derived .message").count(), 0)

    def test_an_edit_overtakes_it(self):
        page = self.open()
        self.begin(page)
        page.wait_for_timeout(1500)
        self.type_all(page, MINE)
        self.assertEqual(page.locator("#state").inner_text(), "No problems")
        self.assertEqual(page.locator("#pane-derived .message").count(), 0)
        self.assertIn("mine", page.locator("#pane-derived h2").first.inner_text())


class Figures(PageTest):
    def test_size(self):
        size = len(gzip.compress(INDEX.read_bytes(), 9))
        print(f"size: {size} bytes compressed, at most {LIMIT}")
        self.assertLessEqual(size, LIMIT)

    def test_ready(self):
        times = []
        for _ in range(5):
            page = self.open()
            times.append(page.evaluate("() => performance.getEntriesByName('shown')[0].startTime"))
            self.contexts.pop().close()
        print(f"ready: the first pane is shown after {statistics.median(times):.0f} ms (median of {len(times)})")
        self.assertLess(statistics.median(times), 4000)

    def test_an_edit_is_shown(self):
        page = self.open()
        self.example(page, "causal")
        for pane in PANES:
            self.show(page, pane)
            times = page.evaluate("""async () => {
                const cm = document.querySelector('.CodeMirror').CodeMirror, times = [];
                const line = cm.getValue().split('\\n').findIndex((text) => text.includes('score'));
                for (let i = 0; i < 20; i++) {
                    const shown = new Promise((resolve) => {
                        const observer = new MutationObserver(() => { observer.disconnect(); requestAnimationFrame(resolve); });
                        observer.observe(document.documentElement, {attributeFilter: ['data-shown']});
                    });
                    const since = performance.now();
                    cm.replaceRange(i % 2 ? '' : ' * 2', {line, ch: cm.getLine(line).length - 1 - (i % 2 ? 4 : 0)}, {line, ch: cm.getLine(line).length - 1});
                    await shown;
                    times.push(performance.now() - since);
                    await new Promise((resolve) => setTimeout(resolve, 50));
                }
                return times; }""")
            print(f"edit: shown in {pane} after {statistics.median(times):.0f} ms (median of {len(times)}), slowest {max(times):.0f} ms")
            self.assertLess(statistics.median(times), 240, pane)
