"""What the tests of the playground share: one Chromium, the page in a fresh context, and the words to say what is on it."""

import base64
import json
import os
import pathlib
import re
import sys
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build/tools/browser"))
from playwright.sync_api import sync_playwright  # noqa: E402

BUILD = pathlib.Path(os.environ.get("BUILD", "build"))
INDEX = (ROOT / BUILD / "playground/index.html").resolve()
SHOTS = INDEX.parent / "shots"
PANES = ["derived", "mask", "weights", "steps", "kernel"]
SLOW = 20000  # ms: more than that is no answer, also on a busy machine

EXAMPLES = json.loads((ROOT / "tools/playground/examples.json").read_text(encoding="utf-8"))


def pack(state):
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    text = state if isinstance(state, bytes) else json.dumps(state).encode()
    return "#s=" + base64.urlsafe_b64encode(deflate.compress(text) + deflate.flush()).decode().rstrip("=")


def unpack(url):
    text = url.partition("#s=")[2]
    return json.loads(zlib.decompress(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), -15))


class Browser:
    """Started with the first test, ended with the program."""

    browser = None

    @classmethod
    def get(cls):
        if not cls.browser:
            cls.playwright = sync_playwright().start()
            cls.browser = cls.playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-dev-shm-usage"])
        return cls.browser

    @classmethod
    def close(cls):
        if cls.browser:
            cls.browser.close()
            cls.playwright.stop()


class PageTest(unittest.TestCase):
    """A test with pages. What a page writes to its console, and every error, fails the test."""

    def setUp(self):
        self.complaints = []
        self.contexts = []

    def tearDown(self):
        for context in self.contexts:
            context.close()
        self.assertEqual(self.complaints, [])

    def open(self, fragment="", width=1280, height=800, wait=True, script="", **context):
        made = Browser.get().new_context(viewport={"width": width, "height": height}, offline=True, **context)
        self.contexts.append(made)
        page = made.new_page()
        page.set_default_timeout(SLOW)
        page.on("console", lambda m: self.complaints.append(f"console: {m.text}"))
        page.on("pageerror", lambda e: self.complaints.append(f"error: {e}"))
        page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or self.complaints.append(f"asks for {r.url}"))
        page.add_init_script(script)
        page.goto(INDEX.as_uri() + fragment)
        if wait:
            page.wait_for_selector("html[data-shown]")
        return page

    def show(self, page, pane):
        """The pane, when it shows the source as it is now."""
        page.click(f"#tab-{pane}")
        self.settle(page)
        return page.locator(f"#pane-{pane}")

    def settle(self, page):
        """Until nothing is asked for any more."""
        page.wait_for_function("() => document.documentElement.dataset.quiet === 'true'")

    def type_all(self, page, text):
        page.evaluate("text => document.querySelector('.CodeMirror').CodeMirror.setValue(text)", text)
        self.settle(page)

    def source(self, page):
        return page.evaluate("() => document.querySelector('.CodeMirror').CodeMirror.getValue()")

    def example(self, page, name):
        page.select_option("#examples", name)
        self.settle(page)

    def slide(self, page, pane, label, to):
        """Moves a slider by the keyboard until it says `to`."""
        slider = page.locator(f"#pane-{pane}").get_by_label(label, exact=True)
        slider.focus()
        page.keyboard.press("Home")
        for _ in range(64):
            if slider.get_attribute("aria-valuetext") == str(to):
                break
            page.keyboard.press("ArrowRight")
        self.assertEqual(slider.get_attribute("aria-valuetext"), str(to))
        self.settle(page)


def numbers(text):
    return [float(n.replace("−", "-")) for n in re.findall(r"[-−]?\d+(?:\.\d+)?(?:e[-−]?\d+)?", text)]
