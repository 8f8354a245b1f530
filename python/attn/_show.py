"""What the compiler says, as small objects: text where there is only text, and mathematics, a picture or marked lines in a notebook."""

import html
import re

# Colours by the theme of JupyterLab and VS Code where the page names it, else by the browser's.
_DARK = "--attn-error:#ff8a80;--attn-warning:#ffca5f;--attn-note:#8ab4f8"
_STYLE = f"""<style>
.attn{{--attn-error:#b3261e;--attn-warning:#7a4f00;--attn-note:#0b57d0}}
body[data-jp-theme-light="false"] .attn,body.vscode-dark .attn{{{_DARK}}}
@media(prefers-color-scheme:dark){{body:not([data-jp-theme-light]):not(.vscode-light) .attn{{{_DARK}}}}}
.attn h3{{font-size:1em;margin:.8em 0 .2em}} .attn p{{margin:.3em 0 .3em 1.5em}} .attn math{{display:inline math}}
.attn pre{{margin:0;overflow-x:auto}} .attn .head{{white-space:pre-wrap}}
.attn b.error{{color:var(--attn-error)}} .attn b.warning{{color:var(--attn-warning)}} .attn b.note{{color:var(--attn-note)}}
</style>"""
_HEAD = re.compile(r"(attnc|.+?:\d+:\d+): (error|warning|note): (.*)")
_CARET = re.compile(r"\s*\^~*")


def _page(inside):
    return f'{_STYLE}<div class="attn">{inside}</div>'


class Explanation:
    """The formula of a variant, its online form, and the rule that merges two parts of the keys."""

    def __init__(self, text, mathml):
        self.text, self.mathml = text, mathml

    def __repr__(self):
        return self.text

    def _repr_html_(self):
        return _page(self.mathml)


class Mask:
    """A picture of a mask and its tiles."""

    def __init__(self, svg, text):
        self.svg, self.text = svg, text

    def __repr__(self):
        return self.text

    def _repr_svg_(self):
        return self.svg


class Diagnostics:
    """Errors, warnings and notes: each with its place, the line of the source, and a caret."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text

    def _repr_html_(self):
        lines, kind = [], "error"
        for line in self.text.splitlines():
            head = _HEAD.fullmatch(line)
            if head:
                kind = head[2]
                lines.append(f'<span class="head">{html.escape(head[1])}: <b class="{kind}">{kind}</b>: <b>{html.escape(head[3])}</b></span>')
            elif _CARET.fullmatch(line):
                lines.append(f'<b class="{kind}">{line}</b>')
            else:
                lines.append(html.escape(line))
        return _page("<pre>" + "\n".join(lines) + "</pre>")
