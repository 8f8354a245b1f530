// snippets.js: the places of a completion that are filled in. In: a snippet as LSP writes it ($1, ${1:name}, $0). Out: its text in the editor, with the
// first place selected; Tab and Shift-Tab go from place to place, Escape ends it. Holds: the places are marks of CodeMirror, so they move with the text
// and grow with what is typed in them; $0, or else the end, is the last place, and what is completed within a place has its turn first.
import CodeMirror from "codemirror/lib/codemirror.js";

// The text without its places, and the places in their order: [{number, from, to}].
export function parse(snippet) {
    const stops = [];
    let text = "";
    let last = 0;
    for (const m of snippet.matchAll(/\\([\\$}])|\$(?:(\d+)|\{(\d+)(?::([^}]*))?\})/g)) {
        text += snippet.slice(last, m.index);
        last = m.index + m[0].length;
        const inner = m[1] ?? m[4] ?? "";
        if (!m[1]) stops.push({ number: Number(m[2] ?? m[3]), from: text.length, to: text.length + inner.length });
        text += inner;
    }
    text += snippet.slice(last);
    if (!stops.some((s) => s.number === 0)) stops.push({ number: 0, from: text.length, to: text.length });
    return { text, stops: stops.sort((a, b) => (a.number || Infinity) - (b.number || Infinity)) };
}

export class Snippets {
    constructor(cm) {
        this.cm = cm;
        this.open = []; // from the outermost to the one that has its turn: {whole, places, at}
        const whileOpen = (f) => () => (this.open.length ? f() : CodeMirror.Pass);
        cm.addKeyMap({ Tab: whileOpen(() => this.go(1)), "Shift-Tab": whileOpen(() => this.go(-1)), Esc: whileOpen(() => this.end()) });
        cm.on("cursorActivity", () => this.left());
    }

    insert(snippet, from, to) {
        const indent = /^\s*/.exec(this.cm.getLine(from.line))[0];
        const { text, stops } = parse(snippet.replaceAll("\n", "\n" + indent));
        this.cm.operation(() => {
            this.cm.replaceRange(text, from, to, "complete");
            const start = this.cm.indexFromPos(from);
            const mark = (a, b, className) => this.cm.markText(this.cm.posFromIndex(start + a), this.cm.posFromIndex(start + b), { inclusiveLeft: true, inclusiveRight: true, clearWhenEmpty: false, className });
            this.open.push({ whole: mark(0, text.length), places: stops.map((s) => mark(s.from, s.to, "place")), at: -1 });
            this.go(1);
        });
    }
    // To the next place or the one before. The last place ends the snippet.
    go(by) {
        const now = this.open.at(-1);
        now.at = Math.max(0, now.at + by);
        const place = now.places[now.at]?.find();
        if (now.at >= now.places.length - 1) this.end();
        if (place) this.cm.setSelection(place.from, place.to);
    }
    end() {
        const { whole, places } = this.open.pop();
        for (const mark of [whole, ...places]) mark.clear();
    }
    // A cursor outside of a snippet has left it.
    left() {
        const inside = ({ whole }) => {
            const range = whole.find();
            return range && this.cm.listSelections().every(({ anchor, head }) => [anchor, head].every((at) => CodeMirror.cmpPos(range.from, at) <= 0 && CodeMirror.cmpPos(at, range.to) <= 0));
        };
        while (this.open.length && !inside(this.open.at(-1))) this.end();
    }
}
