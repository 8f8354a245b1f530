"""The editor: problems in place, completion, hover, definitions, format, and the keyboard."""

from support import PageTest

WRONG = """attention wrong {
    dim D = 64;
    score(q, k)  = dot(q, kk);
    normalize(s) = s;
}
"""


class Editor(PageTest):
    def test_problem_stands_at_its_place(self):
        page = self.open()
        self.type_all(page, WRONG)
        mark = page.locator(".CodeMirror .problem.error")
        self.assertEqual(mark.all_inner_texts(), ["kk"])
        self.assertIn("kk", page.locator("#problems .error").first.inner_text())
        self.assertIn("3:27", page.locator("#problems .error").first.inner_text())
        self.assertEqual(page.locator("#state").inner_text(), "1 error")
        self.type_all(page, WRONG.replace("kk", "k"))
        self.assertEqual(mark.count(), 0)
        self.assertTrue(page.locator("#problems").is_hidden())
        self.assertEqual(page.locator("#state").inner_text(), "No problems")

    def test_note_of_the_derivation(self):
        page = self.open()
        self.type_all(page, "attention centered {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    normalize(s) {\n        let mean = rowsum(s) / rowsum(1.0);\n"
                      "        let spread = rowsum((s - mean) * (s - mean));\n        return (s - mean) * rsqrt(spread);\n    }\n}\n")
        self.assertIn("sweeps", page.locator("#problems").inner_text())
        self.assertEqual(page.locator(".CodeMirror .problem.error").count(), 0)

    def test_problem_leads_to_its_place(self):
        page = self.open()
        self.type_all(page, WRONG)
        page.locator("#problems button").first.click()
        self.assertEqual(page.evaluate("() => document.querySelector('.CodeMirror').CodeMirror.getSelection()"), "kk")
        page.evaluate("() => document.querySelector('.CodeMirror').CodeMirror.setCursor(0, 0)")
        page.keyboard.press("F8")
        self.assertEqual(page.locator("#position").inner_text(), "Line 3, column 27")

    def test_completion(self):
        page = self.open()
        self.type_all(page, "import std.normalization;\nattention a {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    normalize(s) = sof;\n}\n")
        page.evaluate("() => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(4, 22); }")
        page.keyboard.press("Control+Space")
        page.locator(".CodeMirror-hint").first.wait_for()
        labels = page.locator(".CodeMirror-hint .label").all_inner_texts()
        self.assertIn("softmax", labels)
        self.assertTrue(all(label.startswith("sof") for label in labels), labels)
        page.keyboard.press("Enter")
        self.assertIn("normalize(s) = softmax", self.source(page))

    def test_completion_comes_while_typing(self):
        page = self.open()
        self.type_all(page, "attention a {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    normalize(s) = ;\n}\n")
        page.evaluate("() => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(3, 19); }")
        page.keyboard.type("ex")
        page.locator(".CodeMirror-hint").first.wait_for()
        self.assertIn("exp", page.locator(".CodeMirror-hint .label").all_inner_texts())
        page.keyboard.press("Escape")
        self.assertEqual(page.locator(".CodeMirror-hint").count(), 0)

    def put(self, page, text, line, ch):
        """The text, with the cursor in it."""
        self.type_all(page, text)
        page.evaluate("([line, ch]) => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(line, ch); }", [line, ch])

    def accept(self, page, word):
        page.keyboard.type(word)
        page.keyboard.press("Control+Space")
        page.locator(".CodeMirror-hint-active").wait_for()
        page.keyboard.press("Enter")

    def test_lines_are_indented(self):
        page = self.open()
        self.put(page, "", 0, 0)
        for line in ["attention a {", "dim D = 64;", "normalize(s) {", "let e = exp(s);"]:
            page.keyboard.type(line)
            page.keyboard.press("Enter")
        page.keyboard.type("return e;")
        self.assertEqual(self.source(page), "attention a {\n    dim D = 64;\n    normalize(s) {\n        let e = exp(s);\n        return e;\n    }\n}")
        self.put(page, "attention a { // {\n    normalize(s) {\n        return s;\n        ", 3, 8)
        page.keyboard.type("}")
        page.keyboard.press("Enter")
        page.keyboard.type("}")
        self.assertEqual(self.source(page), "attention a { // {\n    normalize(s) {\n        return s;\n    }\n}")

    def test_completion_of_a_path(self):
        page = self.open()
        self.put(page, "", 0, 0)
        page.keyboard.type("import std.no")
        page.locator(".CodeMirror-hint").first.wait_for()
        page.wait_for_function("() => document.querySelectorAll('.CodeMirror-hint').length === 1")
        page.keyboard.press("Enter")
        self.assertEqual(self.source(page), "import std.normalization")

    def test_completion_brings_the_import(self):
        page = self.open()
        self.put(page, "attention a {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    normalize(s) = ;\n}\n", 3, 19)
        self.accept(page, "softm")
        page.keyboard.press("Tab")
        page.keyboard.type(" * 2.0")
        self.assertTrue(self.source(page).startswith("import std.normalization;\nattention a {"), self.source(page))
        self.assertIn("normalize(s) = softmax(s) * 2.0;", self.source(page))

    def test_a_clause_is_filled_in_at_its_body(self):
        page = self.open()
        self.put(page, "attention a {\n    dim D = 64;\n    \n}\n", 2, 4)
        self.accept(page, "sco")
        page.keyboard.type("dot")
        self.assertIn("    score(q, k) = dot;", self.source(page))

    def test_places_of_a_function(self):
        page = self.open()
        text = "import std.mask;\nattention a {\n    dim D = 64;\n    score(q, k) = dot(q, k);\n    mask(b, h, q_idx, kv_idx) = ;\n    normalize(s) = s;\n}\n"
        self.put(page, text, 4, 32)
        self.accept(page, "windo")
        call = lambda: self.source(page).split("\n")[4].split(" = ")[1]  # noqa: E731
        self.assertEqual(call(), "window(q_idx, kv_idx, size);")
        page.keyboard.type("i")
        page.keyboard.press("Tab")
        page.keyboard.type("jj")
        page.keyboard.press("Shift+Tab")
        page.keyboard.type("q")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.type("100")
        page.keyboard.press("Tab")
        page.keyboard.type(" && true")
        self.assertEqual(call(), "window(q, jj, 100) && true;")
        self.assertEqual(page.locator(".CodeMirror .place").count(), 0)

    def test_places_end_by_escape_and_outside(self):
        page = self.open()
        text = "import std.mask;\nattention a {\n    dim D = 64;\n    mask(b, h, q_idx, kv_idx) = ;\n}\n"
        for leave in [lambda: page.keyboard.press("Escape"), lambda: page.keyboard.press("Control+Home")]:
            self.put(page, text, 3, 32)
            self.accept(page, "windo")
            self.assertGreater(page.locator(".CodeMirror .place").count(), 0)
            leave()
            self.assertEqual(page.locator(".CodeMirror .place").count(), 0)
            page.keyboard.press("ArrowRight")
            before = len(self.source(page))
            page.keyboard.press("Tab")
            self.assertGreater(len(self.source(page)), before, "Tab indents again")

    def test_places_within_places(self):
        page = self.open()
        self.put(page, "", 0, 0)
        self.accept(page, "attenti")
        page.keyboard.type("mine")
        page.keyboard.press("Tab")
        page.keyboard.type("32")
        page.keyboard.press("Tab")
        self.accept(page, "do")
        for word in ["q", "k"]:
            page.keyboard.type(word)
            page.keyboard.press("Tab")
        page.keyboard.type(" * 2.0")
        page.keyboard.press("Tab")
        page.keyboard.type("s")
        self.assertEqual(self.source(page), "attention mine {\n    dim D = 32;\n    score(q, k) = dot(q, k) * 2.0;\n    normalize(s) = s;\n}")

    def test_hover_goes(self):
        page = self.open()
        self.example(page, "causal")
        word = page.locator(".CodeMirror-line", has_text="normalize").get_by_text("softmax")
        box = word.bounding_box()
        tip = page.locator("#tip")

        def point():
            page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            tip.wait_for()

        point()
        inside = tip.bounding_box()
        page.mouse.move(inside["x"] + 20, inside["y"] + 8, steps=4)
        page.wait_for_timeout(500)
        self.assertEqual(tip.count(), 1, "one may go into the box")
        for leave in [lambda: page.mouse.move(1000, 600), lambda: page.mouse.move(box["x"] + 4, box["y"] + 300), lambda: page.click("#tab-mask"), lambda: page.keyboard.press("ArrowDown"), lambda: page.keyboard.press("Control+a")]:
            leave()
            tip.wait_for(state="detached")
            page.mouse.move(1000, 700)
            page.wait_for_timeout(300)
            point()

    def test_hover_by_mouse_and_by_key(self):
        page = self.open()
        self.example(page, "causal")
        word = page.locator(".CodeMirror-line", has_text="normalize").get_by_text("softmax")
        box = word.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.locator("#tip").wait_for()
        self.assertIn("softmax", page.locator("#tip").inner_text())
        page.keyboard.press("Escape")
        at = self.source(page).split("\n")
        line = next(i for i, text in enumerate(at) if "rsqrt" in text)
        page.evaluate("([line, ch]) => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(line, ch); }", [line, at[line].index("rsqrt") + 2])
        page.mouse.move(5, 5)
        page.keyboard.press("Control+i")
        page.wait_for_function("() => document.getElementById('tip')?.textContent.includes('rsqrt')")
        self.assertIn("rsqrt", page.locator("#announce").inner_text())

    def test_definition_in_the_library_and_in_the_text(self):
        page = self.open()
        self.type_all(page, "import std.normalization;\nfn twice(x) = x + x;\nattention a {\n    dim D = 64;\n    score(q, k) = twice(dot(q, k));\n    normalize(s) = softmax(s);\n}\n")
        page.evaluate("() => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(4, 20); }")
        page.keyboard.press("F12")
        page.wait_for_function("() => document.getElementById('position').textContent.startsWith('Line 2,')")
        page.evaluate("() => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(5, 21); }")
        page.keyboard.press("F12")
        page.locator("#peek mark").wait_for()
        self.assertIn("softmax", page.locator("#peek mark").inner_text())
        self.assertIn("normalization.attn", page.locator("#peek header").inner_text())
        page.locator("#peek button").click()
        self.assertTrue(page.locator("#peek").is_hidden())

    def test_format(self):
        page = self.open()
        self.type_all(page, "attention   a{dim D=64;\nscore(q,k)=dot(q,k);normalize(s)=s;}\n")
        page.click("#format")
        page.wait_for_function("() => document.querySelector('.CodeMirror').CodeMirror.getValue().startsWith('attention a {\\n    dim D = 64;\\n')")
        once = self.source(page)
        page.click("#format")
        self.settle(page)
        self.assertEqual(self.source(page), once)

    def test_colours_follow_the_text(self):
        page = self.open()
        self.example(page, "causal")
        colour = "([line, ch]) => document.querySelector('.CodeMirror').CodeMirror.getTokenTypeAt({line, ch})"
        lines = self.source(page).split("\n")
        at = next(i for i, text in enumerate(lines) if text.startswith("import"))
        self.assertEqual(page.evaluate(colour, [at, 3]), "t-keyword")
        self.assertEqual(page.evaluate(colour, [0, 5]), "t-comment")
        page.evaluate("() => document.querySelector('.CodeMirror').CodeMirror.replaceRange('\\n\\n', {line: 0, ch: 0})")
        self.assertEqual(page.evaluate(colour, [at + 2, 3]), "t-keyword", "before the service has answered")
        self.settle(page)
        self.assertEqual(page.evaluate(colour, [at + 2, 3]), "t-keyword")

    def test_colours_stay_while_the_text_does_not_parse(self):
        page = self.open()
        self.example(page, "causal")
        colours = "() => { const cm = document.querySelector('.CodeMirror').CodeMirror; return [...Array(cm.lineCount()).keys()].map((l) => cm.getLineTokens(l).map((t) => [t.string, t.type])); }"
        before = page.evaluate(colours)
        line = next(i for i, text in enumerate(self.source(page).split("\n")) if "normalize" in text)
        page.evaluate("line => document.querySelector('.CodeMirror').CodeMirror.replaceRange('    mo\\n', {line, ch: 0})", line)
        self.settle(page)
        self.assertEqual(page.locator(".CodeMirror .problem.error").count(), 1)
        after = page.evaluate(colours)
        self.assertEqual(after[:line] + after[line + 2:], before[:line] + before[line + 1:])

    def test_escape_then_tab_leaves(self):
        page = self.open()
        inside = "() => document.activeElement.closest('.CodeMirror') !== null"
        page.evaluate("() => document.querySelector('.CodeMirror').CodeMirror.focus()")
        before = self.source(page)
        page.keyboard.press("Tab")
        self.assertTrue(page.evaluate(inside))
        self.assertNotEqual(self.source(page), before)
        page.keyboard.press("Escape")
        page.keyboard.press("Tab")
        self.assertFalse(page.evaluate(inside))
        page.keyboard.press("Shift+Tab")
        self.assertTrue(page.evaluate(inside))
