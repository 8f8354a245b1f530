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

const toLsp = ({ line, ch }) => ({ line, character: ch });
const fromLsp = ({ line, character }) => ({ line, ch: character });
const HOVER_AFTER = 350; // ms that the mouse rests

export class Editor {
    // ask(method, params): of the service, for this document, with its text as of now. changed(), moved(line) tell; reveal(place) shows another file.
    constructor(parent, { ask, changed, moved, reveal }) {
        Object.assign(this, { ask, changed, moved, reveal });
        this.tokens = new Tokens();
        this.marks = [];
        this.lit = [];
        CodeMirror.defineMode("attn", () => ({ token: (stream) => this.tokens.style(stream), lineComment: "//" }));
        this.cm = CodeMirror(parent, {
            inputStyle: "contenteditable", // the focus is then within what scrolls, as it should be
            mode: "attn", lineNumbers: true, lineWrapping: true, matchBrackets: true, autoCloseBrackets: true, styleActiveLine: true, indentUnit: 4,
            gutters: ["CodeMirror-linenumbers", "problems"], screenReaderLabel: "Source of the variant", lineWiseCopyCut: false,
            maxHighlightLength: 2000, viewportMargin: 20, extraKeys: this.keys(),
        });
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
            if (event.key === "Escape") {
                this.hideTip();
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
        if (/(^|[^\w.])\w{2}$/.test(before) && !before.includes("//")) this.complete();
    }
    complete() {
        this.hideTip();
        this.cm.showHint({ hint: (cm) => this.hints(cm), completeSingle: false, alignWithWord: true, closeOnUnfocus: true });
    }
    async hints(cm) {
        const at = cm.getCursor();
        const answer = await this.ask("textDocument/completion", { position: toLsp(at) }).catch(() => null);
        const word = /\w*$/.exec(cm.getLine(at.line).slice(0, at.ch))[0];
        const from = { line: at.line, ch: at.ch - word.length };
        const fits = (item) => (item.filterText || item.label).toLowerCase().startsWith(word.toLowerCase());
        const items = (Array.isArray(answer) ? answer : answer?.items || []).filter(fits);
        items.sort((a, b) => ((a.sortText || a.label) < (b.sortText || b.label) ? -1 : 1));
        return { from, to: at, list: items.map((item) => this.hint(item, from, at)) };
    }
    hint(item, from, to) {
        const edit = item.textEdit;
        return {
            displayText: item.label,
            from: edit ? fromLsp((edit.range || edit.replace).start) : from,
            to: edit ? fromLsp((edit.range || edit.replace).end) : to,
            render: (node) => node.append(el("span", { class: "label" }, item.label), el("span", { class: "detail" }, item.detail || "")),
            hint: (cm, data, self) => this.insert(edit?.newText ?? item.insertText ?? item.label, item.insertTextFormat === 2, self),
        };
    }
    // A snippet's first gap is selected: ${1:name}, $1, $0.
    insert(text, snippet, { from, to }) {
        let gap = null;
        let plain = text;
        if (snippet) {
            plain = "";
            let last = 0;
            for (const m of text.matchAll(/\\([\\$}])|\$(?:(\d+)|\{(\d+)(?::([^}]*))?\})/g)) {
                plain += text.slice(last, m.index);
                last = m.index + m[0].length;
                if (m[1]) plain += m[1];
                else {
                    const order = Number(m[2] ?? m[3]) || 99;
                    if (!gap || order < gap.order) gap = { order, at: plain.length, length: (m[4] || "").length };
                    plain += m[4] || "";
                }
            }
            plain += text.slice(last);
            const indent = /^\s*/.exec(this.cm.getLine(from.line))[0];
            plain = plain.replaceAll("\n", "\n" + indent);
        }
        const start = this.cm.indexFromPos(from);
        this.cm.replaceRange(plain, from, to, "complete");
        if (gap) this.cm.setSelection(this.cm.posFromIndex(start + gap.at), this.cm.posFromIndex(start + gap.at + gap.length));
    }

    // ---- hover
    hoverByMouse() {
        const wrapper = this.cm.getWrapperElement();
        let timer;
        wrapper.addEventListener("mousemove", (event) => {
            clearTimeout(timer);
            const at = this.cm.coordsChar({ left: event.clientX, top: event.clientY }, "window");
            if (this.tip && this.tipAt && CodeMirror.cmpPos(at, this.tipAt) !== 0) this.hideTip();
            if (at.outside || !event.target.closest(".CodeMirror-line")) return;
            timer = setTimeout(() => this.hover(at, true), HOVER_AFTER);
        });
        wrapper.addEventListener("mouseleave", () => clearTimeout(timer));
        wrapper.addEventListener("click", (event) => {
            if (event.ctrlKey || event.metaKey) this.define(this.cm.coordsChar({ left: event.clientX, top: event.clientY }, "window"));
        });
    }
    async hover(at, byMouse) {
        const here = this.diagnostics.filter(({ range }) => {
            const { from, to } = this.visible(range);
            return CodeMirror.cmpPos(from, at) <= 0 && CodeMirror.cmpPos(at, to) <= 0;
        });
        const answer = await this.ask("textDocument/hover", { position: toLsp(at) }).catch(() => null);
        if (!answer && !here.length) return;
        const parts = here.map((d) => el("p", { class: kind(d.severity) }, d.message));
        if (answer) parts.push(...markdown(answer.contents));
        this.showTip(parts, at, byMouse);
    }
    showTip(parts, at, byMouse) {
        this.hideTip();
        const { left, top, bottom } = this.cm.charCoords(at, "window");
        this.tip = el("div", { class: "tip", role: "tooltip", id: "tip" }, parts);
        this.tipAt = byMouse ? at : null;
        document.body.append(this.tip);
        const box = this.tip.getBoundingClientRect();
        const below = bottom + 6 + box.height < innerHeight || top < box.height + 6;
        this.tip.style.left = `${Math.max(8, Math.min(left, innerWidth - box.width - 8))}px`;
        this.tip.style.top = `${below ? bottom + 6 : top - box.height - 6}px`;
        if (!byMouse) announce(this.tip.textContent);
    }
    hideTip() {
        this.tip?.remove();
        this.tip = null;
    }
}

export const kind = (severity) => ["", "error", "warning", "note", "note"][severity || 1];

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
