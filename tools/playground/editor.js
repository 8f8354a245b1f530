// editor.js: the source, in CodeMirror. It has no lexer of its own: colours, problems, completion, hover, definitions and the form of the text come
// from the language service, so they are those of any other editor.
import CodeMirror from "codemirror/lib/codemirror.js";
import "codemirror/addon/hint/show-hint.js";
import "codemirror/addon/edit/matchbrackets.js";
import "codemirror/addon/edit/closebrackets.js";
import "codemirror/addon/comment/comment.js";
import "codemirror/addon/selection/active-line.js";
import { el, say } from "./ui.js";
import { Tokens } from "./tokens.js";
import { markdown } from "./markdown.js";
import { Snippets } from "./snippets.js";

const toLsp = ({ line, ch }) => ({ line, character: ch });
const fromLsp = ({ line, character }) => ({ line, ch: character });
const HOVER_AFTER = 350; // ms that the mouse rests
const HOVER_STAYS = 200; // ms on the way from a word to its box

// The colours are the service's; the mode knows brackets only, for the indentation. What is behind // counts for nothing.
const mode = (tokens) => ({ indentUnit }) => ({
    lineComment: "//",
    electricInput: /^\s*[})\]]$/,
    startState: () => ({ depth: 0, comment: false }),
    token(stream, state) {
        if (stream.sol()) state.comment = false;
        const style = tokens.style(stream);
        const [code, comment] = stream.current().split(/\/\/(.*)/s);
        if (!state.comment) for (const c of code) state.depth = Math.max(0, state.depth + ("{([".includes(c) ? 1 : "})]".includes(c) ? -1 : 0));
        state.comment ||= comment !== undefined;
        return style;
    },
    indent: (state, after) => indentUnit * Math.max(0, state.depth - (/^[})\]]/.test(after) ? 1 : 0)),
});

export class Editor {
    // ask(method, params): of the service, for this document, with its text as of now. changed(), moved(line) tell; reveal(place) shows another file.
    constructor(parent, { ask, changed, moved, reveal }) {
        Object.assign(this, { ask, changed, moved, reveal });
        this.tokens = new Tokens();
        this.marks = [];
        this.lit = [];
        CodeMirror.defineMode("attn", mode(this.tokens));
        this.cm = CodeMirror(parent, {
            inputStyle: "contenteditable", // the focus is then within what scrolls, as it should be
            mode: "attn", lineNumbers: true, lineWrapping: true, matchBrackets: true, autoCloseBrackets: true, styleActiveLine: true, indentUnit: 4,
            gutters: ["CodeMirror-linenumbers", "problems"], screenReaderLabel: "Source of the variant", lineWiseCopyCut: false,
            maxHighlightLength: 2000, viewportMargin: 20, extraKeys: this.keys(),
        });
        this.snippets = new Snippets(this.cm);
        this.cm.getInputField().tabIndex = 0;
        this.cm.on("change", (cm, change) => {
            this.tokens.edit(change);
            this.changed();
        });
        this.cm.on("cursorActivity", () => this.moved(this.cm.getCursor()));
        this.cm.on("inputRead", (cm, change) => this.maybeComplete(change));
        this.cm.on("blur", () => this.hideTip());
        this.cm.on("scroll", () => this.hideTip());
        this.cm.on("renderLine", hang);
        this.cm.refresh();
        this.leaveByTab();
        this.hoverByMouse();
    }

    keys() {
        return {
            Tab: (cm) => (cm.somethingSelected() ? cm.execCommand("indentMore") : cm.execCommand("insertSoftTab")),
            "Shift-Tab": "indentLess",
            "Ctrl-Space": () => this.complete(),
            "Ctrl-I": () => this.hover(this.cm.getCursor()),
            "Ctrl-/": "toggleComment",
            "Cmd-/": "toggleComment",
            F12: () => this.define(this.cm.getCursor()),
            F8: () => this.nextProblem(),
            "Shift-Alt-F": () => this.format(),
        };
    }

    // Tab indents, so there must be a way out: Escape, then Tab (or Shift-Tab) moves the focus, until another key is pressed.
    leaveByTab() {
        const free = { name: "free", Tab: false, "Shift-Tab": false };
        this.cm.on("keydown", (cm, event) => {
            if (event.key === "Escape" && !this.snippets.open.length) {
                cm.removeKeyMap("free");
                cm.addKeyMap(free);
            } else if (!["Tab", "Shift"].includes(event.key)) cm.removeKeyMap("free");
        });
        this.cm.on("blur", () => this.cm.removeKeyMap("free"));
    }

    // ---- text
    get text() {
        return this.cm.getValue();
    }
    set text(text) {
        this.cm.setValue(text);
    }
    focus() {
        this.cm.focus();
    }
    refresh() {
        this.cm.refresh();
    }

    async format() {
        try {
            this.apply((await this.ask("textDocument/formatting", { options: { tabSize: 4, insertSpaces: true } })) || []);
        } catch (error) {
            say(error.message);
        }
    }
    apply(edits) {
        const sorted = [...edits].sort((a, b) => b.range.start.line - a.range.start.line || b.range.start.character - a.range.start.character);
        const cursor = this.cm.getCursor();
        this.cm.operation(() => {
            for (const { range, newText } of sorted) this.cm.replaceRange(newText, fromLsp(range.start), fromLsp(range.end), "+format");
            this.cm.setCursor(cursor);
        });
    }

    // ---- colours
    setTokens(data, legend) {
        this.tokens.set(data, legend, this.diagnostics.some((d) => (d.severity || 1) === 1));
        this.cm.setOption("mode", "attn"); // what is in view is coloured again
    }

    // ---- problems: under the text and in the gutter
    setDiagnostics(list) {
        this.diagnostics = list;
        this.cm.operation(() => {
            for (const mark of this.marks) mark.clear();
            this.cm.clearGutter("problems");
            this.marks = list.slice(0, 200).map(({ range, severity }) => {
                const { from, to } = this.visible(range);
                return this.cm.markText(from, to, { className: `problem ${kind(severity)}` });
            });
            const worst = new Map();
            for (const { range, severity } of list) worst.set(range.start.line, Math.min(severity || 1, worst.get(range.start.line) || 4));
            for (const [line, severity] of [...worst].slice(0, 200)) this.cm.setGutterMarker(line, "problems", this.gutterSign(line, severity));
        });
    }
    diagnostics = [];
    gutterSign(line, severity) {
        const text = this.diagnostics.filter((d) => d.range.start.line === line).map((d) => d.message).join("\n");
        return el("span", { class: `sign ${kind(severity)}`, title: text, "aria-hidden": "true" });
    }
    // An empty range, or one behind the end of its line, would not be seen.
    visible(range) {
        const from = this.cm.clipPos(fromLsp(range.start));
        const to = this.cm.clipPos(fromLsp(range.end));
        if (CodeMirror.cmpPos(from, to) < 0) return { from, to };
        if (from.ch > 0 && from.ch >= this.cm.getLine(from.line).length) return { from: { line: from.line, ch: from.ch - 1 }, to: from };
        return { from, to: { line: from.line, ch: from.ch + 1 } };
    }
    nextProblem() {
        const { line, ch } = this.cm.getCursor();
        const starts = this.diagnostics.map((d) => d.range.start).sort((a, b) => a.line - b.line || a.character - b.character);
        const next = starts.find((p) => p.line > line || (p.line === line && p.character > ch)) || starts[0];
        if (next) this.show({ start: next, end: next });
    }

    // ---- places
    show(range) {
        this.cm.setSelection(fromLsp(range.start), fromLsp(range.end));
        this.cm.scrollIntoView({ from: fromLsp(range.start), to: fromLsp(range.end) }, 60);
        this.cm.focus();
    }
    // Lights up ranges, without moving the cursor; the first comes into view.
    light(ranges, scroll) {
        this.cm.operation(() => {
            for (const mark of this.lit) mark.clear();
            this.lit = ranges.map((range) => this.cm.markText(fromLsp(range.start), fromLsp(range.end), { className: "lit" }));
            if (scroll && ranges.length) this.cm.scrollIntoView({ from: fromLsp(ranges[0].start), to: fromLsp(ranges[0].end) }, 40);
        });
    }

    async define(at) {
        const found = await this.ask("textDocument/definition", { position: toLsp(at) }).catch(() => null);
        const place = Array.isArray(found) ? found[0] : found;
        if (place) this.reveal(place.targetUri ? { uri: place.targetUri, range: place.targetSelectionRange } : place);
    }

    // ---- completion
    maybeComplete({ text, origin }) {
        if (origin !== "+input" || this.cm.state.completionActive || !/[A-Za-z_]$/.test(text[0])) return;
        const { line, ch } = this.cm.getCursor();
        const before = this.cm.getLine(line).slice(0, ch);
        if (/(^|[^\w.])\w{2}$|^\s*import\s+[\w.]+$/.test(before) && !before.includes("//")) this.complete();
    }
    complete() {
        this.hideTip();
        this.cm.showHint({ hint: (cm) => this.hints(cm), completeSingle: false, alignWithWord: true, closeOnUnfocus: true });
    }
    // What an item is matched against is what stands where its edit will be: all of `import std.no`, not `no` alone.
    async hints(cm) {
        const at = cm.getCursor();
        const word = { line: at.line, ch: at.ch - /\w*$/.exec(cm.getLine(at.line).slice(0, at.ch))[0].length }; // the line may be gone when the answer comes
        const answer = await this.ask("textDocument/completion", { position: toLsp(at) }).catch(() => null);
        const items = (Array.isArray(answer) ? answer : answer?.items || []).map((item) => ({ ...item, from: startOf(item) || word }));
        const fits = ({ from, filterText, label }) => (filterText || label).toLowerCase().startsWith(cm.getRange(from, at).toLowerCase());
        const list = items.filter(fits).sort((a, b) => ((a.sortText || a.label) < (b.sortText || b.label) ? -1 : 1));
        return { from: list[0]?.from || word, to: at, list: list.map((item) => this.hint(item)) };
    }
    hint(item) {
        return {
            displayText: item.label,
            render: (node) => node.append(el("span", { class: "label" }, item.label), el("span", { class: "detail" }, item.detail || "")),
            hint: () => this.accept(item),
        };
    }
    // The edit goes up to the cursor, which may be further than it was when the service answered.
    accept({ from, textEdit, insertText, label, insertTextFormat, additionalTextEdits }) {
        const text = textEdit?.newText ?? insertText ?? label;
        this.cm.operation(() => {
            if (insertTextFormat === 2) this.snippets.insert(text, from, this.cm.getCursor());
            else this.cm.replaceRange(text, from, this.cm.getCursor(), "complete");
            for (const { range, newText } of additionalTextEdits || []) this.cm.replaceRange(newText, fromLsp(range.start), fromLsp(range.end), "complete");
        });
    }

    // ---- hover
    hoverByMouse() {
        const wrapper = this.cm.getWrapperElement();
        const where = (event) => this.cm.coordsChar({ left: event.clientX, top: event.clientY }, "window");
        let rests;
        let leaves = 0;
        document.addEventListener("mousemove", (event) => {
            clearTimeout(rests);
            const at = event.target.closest?.(".CodeMirror-line") && wrapper.contains(event.target) ? where(event) : null;
            const onWord = at && !at.outside && this.tipRange && inRange(this.tipRange, at);
            if (event.target.closest?.("#tip") || onWord) {
                clearTimeout(leaves);
                leaves = 0;
                return;
            }
            if (this.tipRange) leaves ||= setTimeout(() => {
                leaves = 0;
                if (this.tipRange) this.hideTip();
            }, HOVER_STAYS);
            else this.asked++; // an answer on its way is of another place
            if (at && !at.outside) rests = setTimeout(() => this.hover(at, true), HOVER_AFTER);
        });
        document.addEventListener("mousedown", (event) => {
            clearTimeout(rests);
            if (!event.target.closest("#tip")) this.hideTip();
        }, true);
        document.addEventListener("keydown", (event) => {
            clearTimeout(rests);
            const copies = (event.ctrlKey || event.metaKey) && event.key === "c";
            if (!copies && !["Control", "Shift", "Alt", "Meta"].includes(event.key)) this.hideTip();
        }, true);
        document.documentElement.addEventListener("mouseleave", () => {
            clearTimeout(rests);
            if (this.tipRange) this.hideTip();
        });
        wrapper.addEventListener("click", (event) => {
            if (event.ctrlKey || event.metaKey) this.define(where(event));
        });
    }
    async hover(at, byMouse) {
        const asked = ++this.asked;
        const here = this.diagnostics.map((d) => ({ ...d, shown: this.visible(d.range) })).filter((d) => inRange(d.shown, at));
        const answer = await this.ask("textDocument/hover", { position: toLsp(at) }).catch(() => null);
        if (asked !== this.asked || (!answer && !here.length)) return;
        const parts = here.map((d) => el("p", { class: kind(d.severity) }, d.message));
        if (answer) parts.push(...markdown(answer.contents));
        const { anchor, head } = this.cm.findWordAt(at);
        const word = answer?.range ? { from: fromLsp(answer.range.start), to: fromLsp(answer.range.end) } : here[0]?.shown || { from: anchor, to: head };
        this.showTip(parts, at, byMouse ? word : null);
    }
    asked = 0; // for the box: an answer to an older question is not shown
    tipRange = null; // the text of a box that the mouse asked for
    showTip(parts, at, range) {
        this.hideTip();
        const { left, top, bottom } = this.cm.charCoords(at, "window");
        this.tip = el("div", { class: "tip", role: "tooltip", id: "tip" }, parts);
        this.tipRange = range;
        document.body.append(this.tip);
        const box = this.tip.getBoundingClientRect();
        const below = bottom + 6 + box.height < innerHeight || top < box.height + 6;
        this.tip.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
        this.tip.style.top = `${below ? bottom + 6 : top - box.height - 6}px`;
        if (!range) announce(this.tip.textContent);
    }
    hideTip() {
        this.asked++;
        this.tip?.remove();
        this.tip = this.tipRange = null;
    }
}

export const kind = (severity) => ["", "error", "warning", "note", "note"][severity || 1];

const startOf = ({ textEdit }) => textEdit && fromLsp((textEdit.range || textEdit.replace).start);
const inRange = ({ from, to }, at) => CodeMirror.cmpPos(from, at) <= 0 && CodeMirror.cmpPos(at, to) <= 0;

// A long line goes on further to the right than it began.
function hang(cm, line, node) {
    const columns = CodeMirror.countColumn(line.text, null, cm.getOption("tabSize")) + 4;
    const start = Math.round(Math.min(columns, 24) * cm.defaultCharWidth());
    node.style.textIndent = `${-start}px`;
    node.style.paddingLeft = `${6 + start}px`;
}

// For who listens: the tip is not focused.
function announce(text) {
    document.getElementById("announce").textContent = text;
}
