// kernel.js: the tile program before and after every pass, as a diff. The line under the cursor and the lines of the source that it came from light
// up together, in both directions.
import { diffArrays } from "diff/lib/index.mjs";
import { el, select, icon } from "../ui.js";
import { Controls } from "../controls.js";

const AROUND = 3; // unchanged lines that are kept around a change

export function create(root, page) {
    const target = select({ label: "Target", options: [["host", "host"]], value: "host", change: (v) => page.setSize("target", v) });
    const dtype = select({ label: "Elements", options: [["", "as usual"], ["f32", "f32"], ["f16", "f16"], ["bf16", "bf16"]], value: "", change: (v) => page.setSize("dtype", v) });
    const pass = select({ label: "Pass", options: [], value: "", change: (v) => choose(Number(v)) });
    const view = select({ label: "Show", options: [["changes", "changes"], ["all", "all lines"], ["after", "only what is after"]], value: "changes", change: (v) => { page.keepSize("show", v); draw(); } });
    const step = (name, label, by) => el("button", { "aria-label": label, title: label, onclick: () => choose(at + by) }, icon(name));
    const buttons = [step("back", "Pass before", -1), step("next", "Next pass", 1)];
    const controls = new Controls(page, { own: [target.node, dtype.node, el("div", { class: "field wide pass" }, pass.node, el("span", { class: "buttons" }, buttons)), view.node], heads: false, seed: false, inputs: false });
    const title = el("h2", {});
    const facts = el("p", { class: "note" });
    const from = el("p", { class: "readout", "aria-live": "polite" });
    const lines = el("div", { class: "program", role: "listbox", tabindex: "0", "aria-label": "Tile program" });
    root.append(controls.node, el("div", { class: "body kernel" }, title, facts, lines, from));
    let shown = null;
    let at = 0;
    let current = null; // the line of the cursor

    function choose(to) {
        at = Math.max(0, Math.min(shown.stages.length - 1, to));
        page.keepSize("pass", shown.stages[at].name);
        draw();
    }
    function draw() {
        const stage = shown.stages[at];
        const before = at ? shown.stages[at - 1] : null;
        pass.set(String(at));
        buttons[0].disabled = at === 0;
        buttons[1].disabled = at === shown.stages.length - 1;
        title.textContent = `${stage.name}: ${stage.title}`;
        const rows = compare(before, stage, view.box.value);
        const count = (kind) => rows.filter((r) => r.kind === kind).length;
        facts.textContent = (before ? (stage.changed ? `${count("added")} lines more, ${count("removed")} lines less than after ${before.name}.` : `Nothing to do here: as after ${before.name}.`) : "The program as it is built.") + (stage.cut ? " The text is cut: it is too long for this page." : "");
        current = null;
        lines.replaceChildren(...(view.box.value === "changes" ? fold(rows) : rows).map(row));
        page.light([]);
        if (page.cursor) cursor(page.cursor);
    }
    // One line, or a fold of unchanged ones that opens.
    function row(r) {
        if (r.folded) {
            const node = el("button", { class: "fold", role: "option", "aria-selected": "false", onclick: () => node.replaceWith(...r.folded.map(row)) }, `⋯ ${r.folded.length} unchanged lines`);
            return node;
        }
        const node = el("div", { class: `line ${r.kind}`, role: "option", "aria-selected": "false", id: `line-${r.kind}-${r.number}`, "aria-label": r.text.trim() ? null : "empty line" },
            el("span", { class: "sign", "aria-label": r.kind === "same" ? null : r.kind }, { added: "+", removed: "−", same: " " }[r.kind]), el("span", { class: "words" }, colored(r.text)));
        node.row = r;
        return node;
    }

    // ---- the line under the cursor, and where it comes from
    const all = () => [...lines.children];
    function point(node, byKey) {
        if (node === current) return;
        current?.setAttribute("aria-selected", "false");
        current = node;
        node.setAttribute("aria-selected", "true");
        if (node.id) lines.setAttribute("aria-activedescendant", node.id);
        if (byKey) node.scrollIntoView({ block: "nearest" });
        const places = node.row?.places.map((i) => shown.places[i]) || [];
        const here = places.filter((p) => p.uri === page.uri);
        const smallest = here.filter((p) => !here.some((q) => q !== p && inside(q.range, p.range)));
        page.light(smallest.map((p) => p.range));
        mark((r) => r.places.some((i) => node.row?.places.slice(0, 1).includes(i)));
        from.replaceChildren(...origin(places));
    }
    function origin(places) {
        if (!places.length) return ["The compiler made this line."];
        return ["From ", ...places.slice(0, 4).flatMap((p, i) => [i ? ", " : "", el("button", { class: "link", onclick: () => page.reveal(p) }, `${p.uri === page.uri ? "" : p.uri.replace(/^.*\//, "") + ", "}line ${p.range.start.line + 1}`)]), "."];
    }
    function mark(lit) {
        let first = null;
        for (const node of all()) {
            const on = Boolean(node.row && lit(node.row));
            node.classList.toggle("lit", on);
            if (on) first ||= node;
        }
        return first;
    }
    // Lines of the program that come from the line of the source where the cursor is.
    function cursor({ line }) {
        if (!shown || lines.contains(document.activeElement)) return;
        const here = new Set(shown.places.map((p, i) => (p.uri === page.uri && p.range.start.line === line && p.range.end.line === line ? i : -1)).filter((i) => i >= 0));
        const first = mark((r) => r.places.some((i) => here.has(i)));
        if (first) lines.scrollTop = Math.max(0, first.offsetTop - lines.clientHeight / 3);
        from.textContent = here.size ? `${all().filter((n) => n.classList.contains("lit")).length} lines here come from line ${line + 1} of the source.` : "";
    }
    lines.addEventListener("pointerover", (event) => {
        const node = event.target.closest(".line");
        if (node) point(node);
    });
    lines.addEventListener("pointerleave", () => page.light([]));
    lines.addEventListener("blur", () => page.light([]));
    lines.addEventListener("keydown", (event) => {
        const list = all();
        const now = list.indexOf(current);
        const to = { ArrowDown: now + 1, ArrowUp: now - 1, Home: 0, End: list.length - 1, PageDown: now + 20, PageUp: now - 20 }[event.key];
        if (event.key === "Enter" && current) {
            event.preventDefault(); // the editor, which has the focus then, would take it as text
            if (current.row) {
                const place = current.row.places.map((i) => shown.places[i]).find((p) => p.uri === page.uri);
                if (place) page.reveal(place);
            } else current.click();
        }
        if (to === undefined) return;
        event.preventDefault();
        point(list[Math.max(0, Math.min(list.length - 1, to))], true);
    });

    return {
        request: () => ["attn/kernel", page.common({ target: page.size("target", "host"), ...(page.size("dtype", "") ? { dtype: page.size("dtype", "") } : {}) })],
        show(result) {
            shown = result;
            pass.fill(result.stages.map((s, i) => [String(i), `${i + 1}. ${s.name}${s.changed ? "" : " (nothing)"}`]), "0");
            const kept = result.stages.findIndex((s) => s.name === page.size("pass", ""));
            at = kept >= 0 ? kept : Math.min(at, result.stages.length - 1);
            draw();
        },
        controls() {
            controls.update();
            target.fill((page.list?.targets || ["host"]).map((t) => [t, t]), page.size("target", "host"));
            dtype.set(page.size("dtype", ""));
            view.set(page.size("show", "changes"));
        },
        cursor,
        redraw() {},
    };
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
