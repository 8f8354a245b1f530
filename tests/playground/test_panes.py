"""The panes: what each shows, live, and how it leads to the source. And each example in each pane."""

from support import EXAMPLES, PANES, ROOT, PageTest, numbers, pack

CENTERED = """attention centered {
    dim D = 64;
    score(q, k) = dot(q, k) / sqrt(D);
    normalize(s) {
        let mean = rowsum(s) / rowsum(1.0);
        let spread = rowsum((s - mean) * (s - mean));
        return (s - mean) * rsqrt(spread);
    }
}
"""

TEMPERATURE = """attention warm {
    dim D = 64;
    input temperature_of_heads: f32[H];
    score(q, k) = dot(q, k);
    modify(s, b, h) = s * temperature_of_heads[h];
    normalize(s) = s;
}
"""
TWO_SHIFTS = """attention gate {
    dim D = 64;
    score(q, k) = dot(q, k) * rsqrt(D);
    normalize(s) {
        let e = exp((s - rowmax(s)) / 2.0);
        return e / sqrt(rowsum(e * e) + 0.001);
    }
}
"""


def selected(page):
    return page.evaluate("() => document.querySelector('.CodeMirror').CodeMirror.getSelection()")


class Derived(PageTest):
    def test_sections_and_formulas(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "derived")
        heads = pane.locator("h2").all_inner_texts()
        self.assertGreaterEqual(len(heads), 4, heads)
        self.assertIn("One sweep", pane.locator(".summary").inner_text())
        self.assertGreater(pane.locator("math").count(), 8)
        self.assertGreater(pane.locator("math msub, math msup, math munder, math mfrac").count(), 4)
        self.assertTrue(all(box.bounding_box()["height"] > 10 for box in pane.locator(".equation").all()))

    def test_a_term_leads_to_its_source(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "derived")
        own = pane.locator("math [data-range]:not([data-uri])")
        self.assertGreater(own.count(), 0)
        found = set()
        for term in own.all()[:12]:
            term.dispatch_event("click")
            found.add(selected(page))
        self.assertTrue(any("dot(q, k)" in text for text in found), found)

    def test_a_term_of_the_library_opens_it(self):
        page = self.open()
        self.example(page, "softmax")
        pane = self.show(page, "derived")
        pane.locator("math [data-uri]").last.dispatch_event("click")
        page.locator("#peek mark").wait_for()
        self.assertIn("normalization.attn", page.locator("#peek header").inner_text())
        self.assertTrue(page.locator("#peek mark").inner_text())

    def test_terms_by_keyboard(self):
        page = self.open()
        self.example(page, "causal")
        equation = self.show(page, "derived").locator(".equation").first
        equation.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        self.assertEqual(equation.locator(".hot").count(), 1)
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('.CodeMirror').CodeMirror.getSelection() || !document.getElementById('peek').hidden")
        self.assertIn("dot(q, k) * rsqrt(D)", self.source(page))

    def test_the_line_of_the_cursor_marks_its_equations(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "derived")
        line = next(i for i, text in enumerate(self.source(page).split("\n")) if "score" in text)
        page.evaluate("line => document.querySelector('.CodeMirror').CodeMirror.setCursor(line, 4)", line)
        self.assertGreater(pane.locator(".equation.from-here").count(), 0)

    def test_two_sweeps_are_explained(self):
        page = self.open()
        self.type_all(page, CENTERED)
        pane = self.show(page, "derived")
        self.assertIn("2 sweeps", pane.locator(".summary").inner_text())
        self.assertIn("spread", pane.inner_text())

    def test_an_error_keeps_what_was_and_says_why(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "derived")
        before = pane.locator(".body").inner_text()
        text = self.source(page)
        self.type_all(page, text.replace("dot(q, k)", "dot(q, kk)"))
        self.assertIn("kk", pane.locator(".message").inner_text())
        self.assertEqual(pane.locator(".body").inner_text(), before)
        said = "() => getComputedStyle(document.querySelector('#pane-derived .body'), '::before').content"
        self.assertIn("Old", page.evaluate(said))
        self.type_all(page, text)
        self.assertEqual(pane.locator(".message").count(), 0)
        self.assertEqual(page.evaluate(said), "none")

    def test_no_attention_is_calm(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "derived")
        for text in ["", "fn twice(x) = x + x;\n"]:
            self.type_all(page, text)
            self.assertIn("no attention here yet", pane.locator(".message").inner_text())
            self.assertTrue(pane.locator(".body").is_hidden())
            self.assertEqual(page.locator("#state").inner_text(), "No attention yet")
        self.example(page, "causal")
        self.show(page, "derived")
        self.assertTrue(pane.locator(".body").is_visible())
        self.assertEqual(pane.locator(".message").count(), 0)
        self.assertEqual(page.locator("#state").inner_text(), "No problems")

    def test_a_value_of_a_link_between_the_steps(self):
        page = self.open(pack({"source": (ROOT / "stdlib/causal.attn").read_text(encoding="utf-8"), "pane": "mask", "sizes": {"Sq": 77, "Sk": 333}}))
        self.settle(page)
        value = lambda name: page.locator("#pane-mask").get_by_label(f"{name}, as a number").input_value()  # noqa: E731
        self.assertEqual([value("Sq"), value("Sk")], ["77", "333"])

    def test_a_size_is_typed(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "mask")
        field = pane.get_by_label("Sq, as a number")
        for text, shown in [("77", "77"), ("words", "77"), ("0", "1"), ("3.4", "3")]:
            field.fill(text)
            field.press("Enter")
            self.settle(page)
            self.assertEqual(field.input_value(), shown)
            self.assertEqual(pane.get_by_label("Sq", exact=True).get_attribute("aria-valuetext"), shown)


class Mask(PageTest):
    def counts(self, pane):
        return [int(numbers(text)[0]) for text in pane.locator(".legend li").all_inner_texts()]

    def test_tiles_of_causal(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "mask")
        self.assertEqual(self.counts(pane), [28, 8, 28])
        self.assertIn("8 × 8 tiles of 64 × 64", pane.locator(".facts").inner_text())

    def test_sliders_are_live(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "mask")
        self.slide(page, "mask", "Sq", 256)
        self.assertIn("4 × 8 tiles", pane.locator(".facts").inner_text())
        self.slide(page, "mask", "Sk", 256)
        self.slide(page, "mask", "Keys/tile", 32)
        self.slide(page, "mask", "Queries/tile", 32)
        self.assertEqual(self.counts(pane), [28, 8, 28])
        self.assertIn("8 × 8 tiles of 32 × 32", pane.locator(".facts").inner_text())

    def test_tiles_of_a_target(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "mask")
        pane.get_by_label("Tiles", exact=True).select_option("sm_80")
        self.settle(page)
        self.assertNotIn("tiles of 64 × 64", pane.locator(".facts").inner_text())
        self.assertTrue(pane.get_by_label("Keys/tile", exact=True).is_hidden())

    def test_a_tile_says_which_inequality_decides(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "mask")
        box = pane.locator("canvas").bounding_box()
        page.mouse.click(box["x"] + box["width"] * 0.8, box["y"] + box["height"] * 0.1)
        self.settle(page)
        text = pane.locator(".readout").inner_text()
        self.assertIn("skipped", text)
        self.assertIn("decides", text)
        pane.locator(".readout .formula").first.click()
        page.locator("#peek mark").wait_for()
        self.assertIn("kv_idx <= q_idx", page.locator("#peek mark").inner_text())

    def test_tiles_by_keyboard(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "mask")
        pane.locator(".grid").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        self.settle(page)
        text = pane.locator(".readout").inner_text()
        self.assertIn("Queries 128 to 191, keys 0 to 63", text)
        self.assertIn("full", text)

    def test_documents_are_blocks(self):
        page = self.open()
        self.example(page, "document")
        pane = self.show(page, "mask")
        full, partial, skipped = self.counts(pane)
        self.assertEqual(full + partial + skipped, 256)
        before = skipped
        pane.locator(".field.input .slider:visible input").focus()
        page.keyboard.press("End")
        self.settle(page)
        self.assertGreater(self.counts(pane)[2], before, "more documents, more tiles skipped")


class Weights(PageTest):
    def table(self, pane):
        return [row.locator("th, td").all_inner_texts() for row in pane.locator(".row-table tbody tr").all()]

    def test_a_sentence(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "weights")
        pane.get_by_label("Sentence").fill("a rose is a rose")
        self.settle(page)
        rows = self.table(pane)
        self.assertEqual([row[0] for row in rows], ["a", "rose", "is", "a", "rose"])
        self.assertEqual(rows[0][1], rows[3][1], "the same word has the same vector")
        weights = [numbers(row[2])[0] for row in rows]
        self.assertAlmostEqual(sum(weights), 1, delta=0.01)
        self.assertEqual([row[2] for row in rows], [row[3] for row in rows], "its weights are those of softmax")

    def test_outside_the_mask(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "weights")
        pane.locator(".grid").nth(1).focus()
        for key in ["PageUp", "PageUp", "End"]:
            page.keyboard.press(key)
        self.assertIn("outside the mask", pane.locator(".readout").inner_text())
        self.assertEqual(numbers(self.table(pane)[0][2]), [1])

    def test_relu_beside_softmax(self):
        page = self.open()
        self.example(page, "relu")
        rows = self.table(self.show(page, "weights"))
        self.assertNotEqual([row[2] for row in rows], [row[3] for row in rows])

    def test_random_and_heads(self):
        page = self.open()
        self.example(page, "alibi")
        pane = self.show(page, "weights")
        pane.get_by_label("Rows of").select_option("random")
        self.settle(page)
        self.slide(page, "weights", "Sq", 8)
        self.slide(page, "weights", "Sk", 8)
        one = self.table(pane)
        self.assertEqual(len(one), 8)
        self.slide(page, "weights", "Head", 0)
        self.assertNotEqual(self.table(pane), one)

    def test_a_nan_is_shown_as_one(self):
        page = self.open()
        self.example(page, "attention_sink")
        pane = self.show(page, "weights")
        pane.locator(".field.input select").select_option("list")
        pane.locator(".field.input input[type=text]").fill("nan, nan")
        page.keyboard.press("Enter")
        self.settle(page)
        self.assertIn("nan", pane.locator(".readout").inner_text().lower())
        self.assertIn("NaN", pane.locator(".legend").inner_text())

    def test_no_word(self):
        page = self.open()
        pane = self.show(page, "weights")
        pane.get_by_label("Sentence").fill("   ")
        self.settle(page)
        self.assertIn("Type a word", pane.locator(".message").inner_text())
        pane.get_by_label("Sentence").fill("one")
        self.settle(page)
        self.assertEqual(pane.locator(".message").count(), 0)
        self.assertEqual(len(self.table(pane)), 1)

    def test_more_words_than_are_shown(self):
        page = self.open(pack({"source": "", "pane": "weights", "sizes": {"text": " ".join(f"w{i}" for i in range(200))}}))
        self.example(page, "causal")
        pane = self.show(page, "weights")
        sentence = pane.get_by_label("Sentence")
        sentence.fill(" ".join(f"w{i}" for i in range(200)))
        self.settle(page)
        self.assertIn("first 128 of 200 words", pane.locator(".controls").inner_text())
        sentence.fill("two words")
        self.settle(page)
        self.assertNotIn("words are shown", pane.locator(".controls").inner_text())

    def test_long_names_are_whole(self):
        page = self.open()
        self.type_all(page, TEMPERATURE)
        pane = self.show(page, "weights")
        label = pane.locator("label", has_text="temperature_of_heads")
        self.assertTrue(label.evaluate("node => node.scrollWidth <= node.clientWidth + 1 && getComputedStyle(node).textOverflow !== 'ellipsis'"))

    def test_a_constant_by_its_slider(self):
        page = self.open()
        self.example(page, "sliding_window")
        pane = self.show(page, "weights")
        self.slide(page, "weights", "WINDOW", 2)
        outside = pane.locator(".row-table tbody tr.outside").count()
        self.assertEqual(outside, len(self.table(pane)) - 2)


class Steps(PageTest):
    def error(self, pane):
        return numbers(pane.locator(".error-row td").inner_text())[0]

    def test_forward_and_back(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "steps")
        pane.get_by_role("button", name="Before the first tile").click()
        self.assertIn("Before the first tile", pane.locator(".readout").inner_text())
        states = []
        errors = []
        for _ in range(3):
            pane.get_by_role("button", name="Next tile").click()
            states.append(pane.locator("table.state").first.inner_text())
            errors.append(self.error(pane))
        self.assertEqual(len(set(states)), 3)
        self.assertGreater(errors[0], 1e-3)
        self.assertLess(errors[-1], 1e-6)
        self.assertTrue(pane.get_by_role("button", name="Next tile").is_disabled())
        pane.get_by_role("button", name="One tile back").click()
        self.assertEqual(pane.locator("table.state").first.inner_text(), states[1])

    def test_steps_by_keyboard(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "steps")
        pane.get_by_label("Step", exact=True).focus()
        page.keyboard.press("Home")
        self.assertIn("Before the first tile", pane.locator(".readout").inner_text())
        page.keyboard.press("End")
        self.assertLess(self.error(pane), 1e-6)

    def test_tile_size_and_row(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "steps")
        self.slide(page, "steps", "Tile size", "2 keys")
        self.assertEqual(pane.locator(".tile").count(), 6)
        self.slide(page, "steps", "Query", 3)
        self.assertEqual(pane.locator(".key:not(.outside)").count(), 4)

    def test_split_and_merge(self):
        page = self.open()
        self.example(page, "softmax")
        pane = self.show(page, "steps")
        self.slide(page, "steps", "Parts", 3)
        merge = pane.locator("section", has_text="Split and merged")
        self.assertEqual(merge.locator("tbody tr").count(), 4)
        self.assertLess(numbers(merge.locator("p").first.inner_text())[0], 1e-6)

    def test_each_state_merges_by_its_own_factor(self):
        page = self.open()
        self.type_all(page, TWO_SHIFTS)
        pane = self.show(page, "steps")
        merge = pane.locator("section", has_text="Split and merged")
        names = merge.locator("thead th").all_inner_texts()
        self.assertEqual(names[-1], "acc")
        rows = [[numbers(cell) for cell in row.locator("td").all_inner_texts()] for row in merge.locator("tbody tr").all()]
        sums = [i for i, cell in enumerate(rows[0]) if 0 < i < len(rows[0]) - 1 and len(cell) == 2]
        self.assertTrue(sums)
        for i in sums:
            self.assertAlmostEqual(sum(row[i][0] * row[i][1] for row in rows[:-1]), rows[-1][i][0], delta=2e-3 * abs(rows[-1][i][0]))
        self.assertNotEqual([row[sums[0]][1] for row in rows[:-1]], [row[-1][-1] for row in rows[:-1]], "acc has another")

    def test_two_sweeps(self):
        page = self.open()
        self.type_all(page, CENTERED)
        pane = self.show(page, "steps")
        pane.get_by_role("button", name="After the last tile").click()
        self.assertIn("sweep 2 of 2", pane.locator(".readout").inner_text())
        self.assertLess(self.error(pane), 1e-6)


class Kernel(PageTest):
    def test_passes_as_diffs(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "kernel")
        passes = pane.get_by_label("Pass", exact=True).locator("option").all_inner_texts()
        self.assertGreaterEqual(len(passes), 3, passes)
        added = 0
        for i in range(len(passes)):
            if i:
                pane.get_by_role("button", name="Next pass").click()
            self.assertGreater(pane.locator(".program > *").count(), 0)
            added += pane.locator(".program .added").count()
        self.assertGreater(added, 5)
        self.assertTrue(pane.get_by_role("button", name="Next pass").is_disabled())
        pane.get_by_label("Show").select_option("all")
        self.assertEqual(pane.locator(".program .fold").count(), 0)

    def test_a_line_lights_up_its_source(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "kernel")
        pane.locator(".program .line", has_text="mma %q").first.hover()
        self.assertIn("dot(q, k)", "".join(page.locator(".CodeMirror .lit").all_inner_texts()))
        self.assertIn("line", pane.locator(".readout").inner_text())

    def test_the_line_of_the_source_lights_up_its_operations(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "kernel")
        line = next(i for i, text in enumerate(self.source(page).split("\n")) if "score" in text)
        page.evaluate("line => { const cm = document.querySelector('.CodeMirror').CodeMirror; cm.focus(); cm.setCursor(line, 4); }", line)
        self.assertIn("mma", "".join(pane.locator(".program .lit").all_inner_texts()))

    def test_marked_lines_in_folds_count(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "kernel")
        line = next(i for i, text in enumerate(self.source(page).split("\n")) if "score" in text)
        page.evaluate("line => document.querySelector('.CodeMirror').CodeMirror.setCursor(line, 4)", line)
        for _ in range(20):
            if "in folds" in pane.locator(".readout").inner_text():
                break
            pane.get_by_role("button", name="Next pass").click()
        self.assertGreater(pane.locator(".fold.lit").count(), 0)
        said = numbers(pane.locator(".readout").inner_text())[0]
        while pane.locator(".fold").count():
            pane.locator(".fold").first.dispatch_event("click")  # the mouse would mark lines itself
        self.assertEqual(pane.locator(".line.lit").count(), said)

    def test_lines_by_keyboard(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "kernel")
        pane.locator(".program").focus()
        for _ in range(5):
            page.keyboard.press("ArrowDown")
        self.assertEqual(pane.locator(".program [aria-selected=true]").count(), 1)

    def test_targets(self):
        page = self.open()
        self.example(page, "causal")
        pane = self.show(page, "kernel")
        texts = set()
        for target in ["host", "sm_80", "sm_90a", "gfx942"]:
            pane.get_by_label("Target").select_option(target)
            self.settle(page)
            self.assertEqual(pane.locator(".message").count(), 0)
            pane.get_by_label("Pass", exact=True).select_option(index=pane.get_by_label("Pass", exact=True).locator("option").count() - 1)
            pane.get_by_label("Show").select_option("after")
            texts.add(pane.locator(".program").inner_text())
        self.assertEqual(len(texts), 4)


class Examples(PageTest):
    def test_ten(self):
        page = self.open()
        self.assertEqual(len(EXAMPLES), 10)
        self.assertEqual([o.get_attribute("value") for o in page.locator("#examples option").all()], [e["name"] for e in EXAMPLES])


def of_example(name):
    def test(self):
        page = self.open()
        self.example(page, name)
        self.assertEqual(page.locator("#state").inner_text(), "No problems" if name != "document" else page.locator("#state").inner_text())
        self.assertEqual(page.locator(".CodeMirror .problem.error").count(), 0)
        for pane in PANES:
            shown = self.show(page, pane)
            self.assertEqual(shown.locator(".message").all_inner_texts(), [], f"{name}, {pane}")
            self.assertGreater(len(shown.locator(".body").inner_text()), 40, f"{name}, {pane}")
            self.assertFalse(page.evaluate("p => { const b = document.getElementById('pane-' + p); return b.scrollWidth > b.clientWidth + 1; }", pane), f"{name}, {pane}: too wide")
    return test


for example in EXAMPLES:
    setattr(Examples, f"test_{example['name']}", of_example(example["name"]))
