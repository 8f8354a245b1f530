// steps.js: the online loop for one query, tile by tile of keys, forward and back: the state before and after, what rescaled it, the error against the
// full row; and the same row split into parts that are merged.
import { el, slider, number, icon } from "../ui.js";
import { Controls } from "../controls.js";
import { Sentence } from "./sentence.js";
import { heading } from "../mathml.js";
import { heat, text } from "../colors.js";

export function create(root, page) {
    const sentence = new Sentence(page);
    const row = slider({ label: "Query", title: "The row that is followed", steps: { min: 0, max: 127 }, value: 127, change: (v) => page.setSize("row", v) });
    const keys = slider({ label: "Tile size", title: "Keys of a tile", steps: [1, 2, 3, 4, 6, 8, 12, 16, 32, 64], value: 4, change: (v) => page.setSize("tile", v), format: (v) => `${v} keys` });
    const parts = slider({ label: "Parts", title: "Parts that the keys are split into", steps: { min: 1, max: 8 }, value: 2, change: (v) => page.setSize("parts", v) });
    const controls = new Controls(page, { own: [...sentence.nodes, row.node, keys.node, parts.node] });
    const stage = el("div", { class: "stage" });
    const about = el("p", { class: "readout", "aria-live": "polite" });
    let at = 0; // 0: before the first tile
    let shown = null;

    const button = (label, name, to) => el("button", { "aria-label": label, title: label, onclick: () => go(to()) }, icon(name));
    const buttons = { first: button("Before the first tile", "first", () => 0), back: button("One tile back", "back", () => at - 1), next: button("Next tile", "next", () => at + 1), last: button("After the last tile", "last", () => shown.steps.length) };
    const where = slider({ label: "Step", steps: { min: 0, max: 1 }, value: 0, change: (v) => go(v), format: (v) => (shown ? `${v} of ${shown.steps.length}` : "") });
    const player = el("div", { class: "player", role: "group", "aria-label": "Steps" }, buttons.first, buttons.back, buttons.next, buttons.last, where.node);
    const body = el("div", { class: "body steps" }, player, about, stage);
    root.append(controls.node, body);
    player.addEventListener("keydown", (event) => {
        if (event.target.matches("input")) return;
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown?.steps.length }[event.key];
        if (to === undefined || !shown) return;
        event.preventDefault();
        go(to);
    });

    function go(to) {
        if (!shown) return;
        at = Math.max(0, Math.min(shown.steps.length, to));
        page.keepSize("step", at);
        draw();
    }
    function draw() {
        const { steps } = shown;
        const step = at ? steps[at - 1] : null;
        const before = at > 1 ? steps[at - 2] : shown.start;
        where.set(at);
        buttons.first.disabled = buttons.back.disabled = at === 0;
        buttons.next.disabled = buttons.last.disabled = at === steps.length;
        stage.replaceChildren(tape(shown, at, page), states(shown, step, before, page), result(shown, step), ...(shown.parts.length ? [merge(shown)] : []));
        about.textContent = step ? `Tile ${at} of ${steps.length}: keys ${step.from} to ${step.to - 1}${shown.sweeps > 1 ? `, sweep ${step.sweep + 1} of ${shown.sweeps}` : ""}.` : "Before the first tile of keys the state is that of an empty row.";
    }
    return {
        request() {
            const params = sentence.parameters();
            const { Sq } = sentence.lengths;
            return params && ["attn/steps", { ...params, row: Math.min(page.size("row", Sq - 1), Sq - 1), keys: page.size("tile", 4), parts: page.size("parts", 2) }];
        },
        missing: "Type a word.",
        show(answer) {
            shown = { ...answer, words: sentence.words };
            where.input.max = answer.steps.length;
            at = Math.max(0, Math.min(page.size("step", 1), answer.steps.length));
            draw();
        },
        controls() {
            controls.update();
            sentence.update();
            const { Sq } = sentence.lengths;
            row.input.max = Math.max(0, Sq - 1);
            row.set(Math.min(page.size("row", Sq - 1), Sq - 1));
            keys.set(page.size("tile", 4));
            parts.set(page.size("parts", 2));
        },
        redraw: () => shown && draw(),
    };
}

// The keys in a line, as tiles; each with its score, and once it was met with its weight so far as the height of a bar.
function tape({ steps, words, sweeps }, at) {
    const sweep = at ? steps[at - 1].sweep : 0;
    const tiles = steps.map((s, i) => ({ ...s, index: i + 1 })).filter((s) => s.sweep === sweep);
    const most = Math.max(1e-30, ...tiles.flatMap((s) => (s.elements || []).map((e) => (typeof e === "number" ? Math.abs(e) : 0))));
    const scale = Math.max(1e-30, ...tiles.flatMap((s) => s.scores.map((e) => (typeof e === "number" ? Math.abs(e) : 0))));
    const color = heat(scale);
    return el("section", { class: "tape" }, el("h2", {}, sweeps > 1 ? `Keys, sweep ${sweep + 1} of ${sweeps}` : "Keys"),
        el("div", { class: "tiles", tabindex: "0", role: "group", "aria-label": "Keys by tiles" }, tiles.map((tile) =>
            el("div", { class: `tile${tile.index === at ? " now" : tile.index < at ? " done" : ""}` }, tile.scores.map((score, i) => {
                const outside = tile.mask[i] !== "1";
                const key = tile.from + i;
                const cell = el("div", { class: `key${outside ? " outside" : ""}`, title: `key ${key}${words ? `, ${words[key]}` : ""}: ${outside ? "outside the mask" : `score ${number(score)}`}` },
                    el("span", { class: "column" }, el("span", { class: "fill" })), el("span", { class: "score" }), el("span", { class: "word" }, words ? words[key] : String(key)));
                const element = tile.elements?.[i];
                if (tile.index <= at && !outside && typeof element === "number") cell.querySelector(".fill").style.height = `${(100 * Math.abs(element)) / most}%`;
                if (!outside) cell.querySelector(".score").style.background = text(color(score));
                return cell;
            })))),
        el("p", { class: "note small" }, "Bars: the element of each key in the sum, before the row is finished. Squares: scores."));
}

const vector = (values) => (values ? `(${values.map((v) => number(v, 3)).join(", ")}${values.length === 8 ? ", …" : ""})` : "–");

// What is carried from tile to tile.
function states({ states: names, shifts, columns }, step, before, page) {
    const rows = names.map((s, i) => [s, before.states[i], step?.states[i], step?.rescale[i], s.kind]);
    const line = ([state, old, now, factor, kind]) =>
        el("tr", {}, el("th", { scope: "row" }, heading(state.mathml, state.name)),
            el("td", {}, number(old)), el("td", { class: "times" }, step && kind === "sum" ? `× ${number(factor)}` : kind === "sum" ? "" : kind),
            el("td", { class: "after" }, step ? number(now) : "–"));
    return el("section", {}, el("h2", {}, "State"),
        el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "State" }, el("table", { class: "state" },
            el("thead", {}, el("tr", {}, ["", "Before", "", "After the tile"].map((h) => (h ? el("th", { scope: "col" }, h) : el("td", {}))))),
            el("tbody", {}, rows.map(line),
                shifts.map((s, i) => el("tr", {}, el("th", { scope: "row" }, heading(s.mathml, s.name)), el("td", {}, number(before.shifts[i])), el("td", { class: "times" }, "shift"), el("td", { class: "after" }, step ? number(step.shifts[i]) : "–"))),
                (step ? step.acc : before.acc) && el("tr", {}, el("th", { scope: "row" }, "acc", el("span", { class: "small" }, ` ${columns} of its columns`)), el("td", { class: "vector" }, vector(before.acc)),
                    el("td", { class: "times" }, step ? `× ${number(step.accRescale)}` : ""), el("td", { class: "after vector" }, step ? vector(step.acc) : "–"))))));
}

function result({ steps, end, full }, step) {
    if (!step?.o) return el("section", {}, el("h2", {}, "Output"), el("p", { class: "note" }, step ? "The output is made in the last sweep." : "No key was met yet."));
    const last = step === steps.at(-1);
    const shown = last ? end : step;
    return el("section", {}, el("h2", {}, last ? "Output of the finished row" : "Output if the row ended here"),
        el("table", { class: "state" }, el("tbody", {},
            el("tr", {}, el("th", { scope: "row" }, "o"), el("td", { class: "vector" }, vector(shown.o))),
            el("tr", {}, el("th", { scope: "row" }, "full row"), el("td", { class: "vector" }, vector(full.o))),
            el("tr", { class: "error-row" }, el("th", { scope: "row" }, "error"), el("td", {}, number(shown.error), meter(shown.error))))));
}
// The error on a scale of powers of ten, from 1e-17 to 1.
function meter(error) {
    const node = el("span", { class: "meter", "aria-hidden": "true" }, el("span"));
    const share = typeof error === "number" ? Math.max(0, Math.min(1, 1 + Math.log10(Math.max(error, 1e-17)) / 17)) : 1;
    node.firstChild.style.width = `${100 * share}%`;
    return node;
}

function merge({ parts, merged, states: names }) {
    const head = ["Part", "Keys", ...names.map((s) => heading(s.mathml, s.name)), "acc", "× when merged"];
    const line = (title, keys, states, acc, factor) =>
        el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, keys), states.map((v) => el("td", {}, number(v))), el("td", { class: "vector" }, vector(acc.slice(0, 3)).replace(/\)$/, acc.length > 3 ? ", …)" : ")")), el("td", {}, factor));
    return el("section", {}, el("h2", {}, "Split and merged"),
        el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Parts and their merge" }, el("table", { class: "state" },
            el("thead", {}, el("tr", {}, head.map((h) => el("th", { scope: "col" }, h)))),
            el("tbody", {}, parts.map((p, i) => line(`part ${i + 1}`, p.from < p.to ? `${p.from} to ${p.to - 1}` : "none", p.states, p.acc, p.empty ? "empty" : number(p.accRescale))),
                merged && line("merged", "", merged.states, merged.acc, "")))),
        merged && el("p", {}, `Error of the merged row: ${number(merged.error)}.`));
}
