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
