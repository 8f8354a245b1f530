// kernel.js: the tile program before and after every pass, as a diff. The line under the cursor and the lines of the source that it came from light
// up together, in both directions.
import { diffArrays } from "diff/lib/index.mjs";
import { el, select, icon } from "../ui.js";
import { Controls } from "../controls.js";

const AROUND = 3; // unchanged lines that are kept around a change

export const create = (root, page) => new Kernel(root, page);

class Kernel {
    constructor(root, page) {
        Object.assign(this, { page, shown: null, at: 0, current: null }); // the result; the pass; the line of the cursor
        this.target = select({ label: "Target", options: [["host", "host"]], value: "host", change: (v) => page.setSize("target", v) });
        this.dtype = select({ label: "Elements", options: [["", "as usual"], ["f32", "f32"], ["f16", "f16"], ["bf16", "bf16"]], value: "", change: (v) => page.setSize("dtype", v) });
        this.pass = select({ label: "Pass", options: [], value: "", change: (v) => this.choose(Number(v)) });
        this.view = select({ label: "Show", options: [["changes", "changes"], ["all", "all lines"], ["after", "only what is after"]], value: "changes", change: (v) => { page.keepSize("show", v); this.draw(); } });
        const step = (name, label, by) => el("button", { "aria-label": label, title: label, onclick: () => this.choose(this.at + by) }, icon(name));
        this.buttons = [step("back", "Pass before", -1), step("next", "Next pass", 1)];
        const passes = el("div", { class: "field wide pass" }, this.pass.node, el("span", { class: "buttons" }, this.buttons));
        this.sliders = new Controls(page, { own: [this.target.node, this.dtype.node, passes, this.view.node], heads: false, seed: false, inputs: false });
        this.title = el("h2", {});
        this.facts = el("p", { class: "note" });
        this.from = el("p", { class: "readout", "aria-live": "polite" });
        this.lines = el("div", { class: "program", role: "listbox", tabindex: "0", "aria-label": "Tile program" });
        root.append(this.sliders.node, el("div", { class: "body kernel" }, this.title, this.facts, this.lines, this.from));
        this.listen();
    }
    listen() {
        this.lines.addEventListener("pointerover", (event) => {
            const node = event.target.closest(".line");
            if (node) this.point(node);
        });
        for (const leave of ["pointerleave", "blur"]) this.lines.addEventListener(leave, () => this.page.light([]));
        this.lines.addEventListener("keydown", (event) => this.key(event));
    }

    request() {
        const dtype = this.page.size("dtype", "");
        return ["attn/kernel", this.page.common({ target: this.page.size("target", "host"), ...(dtype ? { dtype } : {}) })];
    }
    controls() {
        this.sliders.update();
        this.target.fill((this.page.list?.targets || ["host"]).map((t) => [t, t]), this.page.size("target", "host"));
        this.dtype.set(this.page.size("dtype", ""));
        this.view.set(this.page.size("show", "changes"));
    }
    show(result) {
        this.shown = result;
        this.pass.fill(result.stages.map((s, i) => [String(i), `${i + 1}. ${s.name}${s.changed ? "" : " (nothing)"}`]), "0");
        const kept = result.stages.findIndex((s) => s.name === this.page.size("pass", ""));
        this.at = kept >= 0 ? kept : Math.min(this.at, result.stages.length - 1);
        this.draw();
    }
    choose(to) {
        this.at = Math.max(0, Math.min(this.shown.stages.length - 1, to));
        this.page.keepSize("pass", this.shown.stages[this.at].name);
        this.draw();
    }

    draw() {
        const { stages } = this.shown;
        const stage = stages[this.at];
        const before = this.at ? stages[this.at - 1] : null;
        const view = this.view.box.value;
        this.pass.set(String(this.at));
        this.buttons[0].disabled = this.at === 0;
        this.buttons[1].disabled = this.at === stages.length - 1;
        this.title.textContent = `${stage.name}: ${stage.title}`;
        const rows = compare(before, stage, view);
        const count = (kind) => rows.filter((r) => r.kind === kind).length;
        const changes = stage.changed ? `${count("added")} lines more, ${count("removed")} lines less than after ${before?.name}.` : `Nothing to do here: as after ${before?.name}.`;
        this.facts.textContent = (before ? changes : "The program as it is built.") + (stage.cut ? " The text is cut: it is too long for this page." : "");
        this.current = null;
        this.lines.replaceChildren(...(view === "changes" ? fold(rows) : rows).map((r) => this.row(r)));
        this.page.light([]);
        if (this.page.cursor) this.cursor(this.page.cursor);
    }
    // One line, or a fold of unchanged ones that opens.
    row(r) {
        if (r.folded) {
            const unfold = () => {
                node.replaceWith(...r.folded.map((one) => this.row(one)));
                if (this.lit) this.mark(this.lit);
            };
            const node = el("button", { class: "fold", role: "option", "aria-selected": "false", onclick: unfold }, `⋯ ${r.folded.length} unchanged lines`);
            node.folded = r.folded;
            return node;
        }
        const sign = el("span", { class: "sign", "aria-label": r.kind === "same" ? null : r.kind }, { added: "+", removed: "−", same: " " }[r.kind]);
        const node = el("div", { class: `line ${r.kind}`, role: "option", "aria-selected": "false", id: `line-${r.kind}-${r.number}`, "aria-label": r.text.trim() ? null : "empty line" }, sign, el("span", { class: "words" }, colored(r.text)));
        node.row = r;
        return node;
    }

    // ---- the line under the cursor, and where it comes from
    places(node) {
        return node.row?.places.map((i) => this.shown.places[i]) || [];
    }
    point(node, byKey) {
        if (node === this.current) return;
        this.current?.setAttribute("aria-selected", "false");
        this.current = node;
        node.setAttribute("aria-selected", "true");
        if (node.id) this.lines.setAttribute("aria-activedescendant", node.id);
        if (byKey) node.scrollIntoView({ block: "nearest" });
        const places = this.places(node);
        const here = places.filter((p) => p.uri === this.page.uri);
        const smallest = here.filter((p) => !here.some((q) => q !== p && inside(q.range, p.range)));
        this.page.light(smallest.map((p) => p.range));
        this.mark((r) => r.places.some((i) => i === node.row?.places[0]));
        this.from.replaceChildren(...this.origin(places));
    }
    origin(places) {
        if (!places.length) return ["The compiler made this line."];
        const name = ({ uri, range }) => `${uri === this.page.uri ? "" : `${uri.replace(/^.*\//, "")}, `}line ${range.start.line + 1}`;
        const link = (p, i) => [i ? ", " : "", el("button", { class: "link", onclick: () => this.page.reveal(p) }, name(p))];
        return ["From ", ...places.slice(0, 4).flatMap(link), "."];
    }
    // A fold is marked with a line of it.
    mark(lit) {
        this.lit = lit;
        let first = null;
        for (const node of this.lines.children) {
            const on = (node.folded || [node.row]).some(lit);
            node.classList.toggle("lit", on);
            if (on) first ||= node;
        }
        return first;
    }
    // Lines of the program that come from the line of the source where the cursor is.
    cursor({ line }) {
        if (!this.shown || this.lines.contains(document.activeElement)) return;
        const ofLine = ({ uri, range }) => uri === this.page.uri && range.start.line === line && range.end.line === line;
        const here = new Set(this.shown.places.flatMap((p, i) => (ofLine(p) ? [i] : [])));
        const comes = (r) => r.places.some((i) => here.has(i));
        const first = this.mark(comes);
        if (first) this.lines.scrollTop = Math.max(0, first.offsetTop - this.lines.clientHeight / 3);
        const folded = [...this.lines.children].flatMap((node) => node.folded || []).filter(comes).length;
        const count = this.lines.querySelectorAll(".line.lit").length + folded;
        this.from.textContent = here.size ? `${count} lines here come from line ${line + 1} of the source${folded ? `, ${folded} of them in folds` : ""}.` : "";
    }
    key(event) {
        const list = [...this.lines.children];
        const now = list.indexOf(this.current);
        const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: list.length - 1, PageDown: now + 20, PageUp: now - 20 }[event.key];
        if (event.key === "Enter" && this.current) {
            event.preventDefault(); // the editor, which has the focus then, would take it as text
            const place = this.places(this.current).find((p) => p.uri === this.page.uri);
            if (place) this.page.reveal(place);
            else if (!this.current.row) this.current.click();
        }
        if (to === undefined) return;
        event.preventDefault();
        this.point(list[Math.max(0, Math.min(list.length - 1, to))], true);
    }
}

const behind = (a, b) => a.line > b.line || (a.line === b.line && a.character >= b.character);
const inside = (a, b) => behind(a.start, b.start) && behind(b.end, a.end) && JSON.stringify(a) !== JSON.stringify(b);

function rowsOf({ text, lines }, kind) {
    return text.replace(/\n$/, "").split("\n").map((line, i) => ({ text: line, kind, number: i + 1, places: lines[i]?.places || [] }));
}
// Lines of both programs in one list: removed, added, same.
function compare(before, after, view) {
    const now = rowsOf(after, "same");
    if (!before || view === "after") return now;
    const old = rowsOf(before, "removed");
    const rows = [];
    let i = 0;
    let j = 0;
    const texts = (list) => list.map((r) => r.text);
    for (const { count, added, removed } of diffArrays(texts(old), texts(now))) {
        if (removed) rows.push(...old.slice(i, (i += count)));
        else if (added) rows.push(...now.slice(j, (j += count)).map((r) => ({ ...r, kind: "added" })));
        else {
            rows.push(...now.slice(j, (j += count)));
            i += count;
        }
    }
    return rows;
}
// Long runs of unchanged lines become one row.
function fold(rows) {
    const near = rows.map(() => false);
    rows.forEach((r, i) => r.kind !== "same" && near.fill(true, Math.max(0, i - AROUND), i + AROUND + 1));
    if (!near.includes(true)) return rows;
    const out = [];
    for (let i = 0; i < rows.length;) {
        let end = i;
        while (end < rows.length && !near[end]) end++;
        if (end - i > 2) out.push({ folded: rows.slice(i, end) });
        else if (end > i) out.push(...rows.slice(i, end));
        if (end < rows.length) out.push(rows[end++]);
        i = end;
    }
    return out;
}
const colored = (line) => line.split(/(%[\w.]+|\/\/.*|\b\d[\w.]*)/).map((piece) => (/^%/.test(piece) ? el("span", { class: "value-name" }, piece) : /^\/\//.test(piece) ? el("span", { class: "cm-t-comment" }, piece) : /^\d/.test(piece) ? el("span", { class: "cm-t-number" }, piece) : piece));
