// steps.js: the online loop for one query, tile by tile of keys, forward and back: the state before and after, what rescaled it, the error against the
// full row; and the same row split into parts that are merged.
import { el, slider, number, icon } from "../ui.js";
import { Controls } from "../controls.js";
import { Sentence } from "./sentence.js";
import { heading } from "../mathml.js";
import { heat, text } from "../colors.js";

export const create = (root, page) => new Steps(root, page);

class Steps {
    missing = "Type a word.";

    constructor(root, page) {
        Object.assign(this, { page, shown: null, at: 0 }); // at: how many tiles were met
        this.sentence = new Sentence(page);
        this.row = slider({ label: "Query", title: "The row that is followed", steps: { min: 0, max: 127 }, value: 127, change: (v) => page.setSize("row", v) });
        this.keys = slider({ label: "Tile size", title: "Keys of a tile", steps: [1, 2, 3, 4, 6, 8, 12, 16, 32, 64], value: 4, change: (v) => page.setSize("tile", v), format: (v) => `${v} keys` });
        this.parts = slider({ label: "Parts", title: "Parts that the keys are split into", steps: { min: 1, max: 8 }, value: 2, change: (v) => page.setSize("parts", v) });
        this.sliders = new Controls(page, { own: [...this.sentence.nodes, this.row.node, this.keys.node, this.parts.node] });
        this.stage = el("div", { class: "stage" });
        this.about = el("p", { class: "readout", "aria-live": "polite" });
        root.append(this.sliders.node, el("div", { class: "body steps" }, this.player(), this.about, this.stage));
    }
    player() {
        const button = (label, name, to) => el("button", { "aria-label": label, title: label, onclick: () => this.go(to()) }, icon(name));
        this.backward = [button("Before the first tile", "first", () => 0), button("One tile back", "back", () => this.at - 1)];
        this.forward = [button("Next tile", "next", () => this.at + 1), button("After the last tile", "last", () => this.shown.steps.length)];
        this.where = slider({ label: "Step", steps: { min: 0, max: 1 }, value: 0, change: (v) => this.go(v), format: (v) => (this.shown ? `${v} of ${this.shown.steps.length}` : "") });
        const node = el("div", { class: "player", role: "group", "aria-label": "Steps" }, this.backward, this.forward, this.where.node);
        node.addEventListener("keydown", (event) => {
            const to = { ArrowRight: this.at + 1, ArrowLeft: this.at - 1, Home: 0, End: this.shown?.steps.length }[event.key];
            if (to === undefined || !this.shown || event.target.matches("input")) return;
            event.preventDefault();
            this.go(to);
        });
        return node;
    }

    get query() {
        const { Sq } = this.sentence.lengths;
        return Math.min(this.page.size("row", Sq - 1), Sq - 1);
    }
    request() {
        const params = this.sentence.parameters();
        return params && ["attn/steps", { ...params, row: this.query, keys: this.page.size("tile", 4), parts: this.page.size("parts", 2) }];
    }
    controls() {
        this.sliders.update();
        this.sentence.update();
        this.row.input.max = Math.max(0, this.sentence.lengths.Sq - 1);
        this.row.set(this.query);
        this.keys.set(this.page.size("tile", 4));
        this.parts.set(this.page.size("parts", 2));
    }
    show(answer) {
        this.shown = { ...answer, words: this.sentence.words };
        this.where.input.max = answer.steps.length;
        this.at = Math.max(0, Math.min(this.page.size("step", 1), answer.steps.length));
        this.redraw();
    }
    go(to) {
        if (!this.shown) return;
        this.at = Math.max(0, Math.min(this.shown.steps.length, to));
        this.page.keepSize("step", this.at);
        this.redraw();
    }
    redraw() {
        if (!this.shown) return;
        const { steps, start, parts, sweeps } = this.shown;
        const { at } = this;
        const step = at ? steps[at - 1] : null;
        const before = at > 1 ? steps[at - 2] : start;
        this.where.set(at);
        for (const button of this.backward) button.disabled = at === 0;
        for (const button of this.forward) button.disabled = at === steps.length;
        this.stage.replaceChildren(tape(this.shown, at), states(this.shown, step, before), result(this.shown, step), ...(parts.length ? [merge(this.shown)] : []));
        const sweep = step && sweeps > 1 ? `, sweep ${step.sweep + 1} of ${sweeps}` : "";
        this.about.textContent = step ? `Tile ${at} of ${steps.length}: keys ${step.from} to ${step.to - 1}${sweep}.` : "Before the first tile of keys the state is that of an empty row.";
    }
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
function states({ states: names, shifts, columns }, step, before) {
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
// The error on a scale of powers of ten, from 1e-9 to 1: f32 rounds at 6e-8.
function meter(error) {
    const node = el("span", { class: "meter", "aria-hidden": "true" }, el("span"));
    const share = typeof error === "number" ? Math.max(0, Math.min(1, 1 + Math.log10(Math.max(error, 1e-9)) / 9)) : 1;
    node.firstChild.style.width = `${100 * share}%`;
    return node;
}

// With each part's states and acc, what they are multiplied by when they are merged.
function merge({ parts, merged, states: names }) {
    const head = ["Part", "Keys", ...names.map((s) => heading(s.mathml, s.name)), "acc"];
    const times = (factor) => factor !== undefined && el("div", { class: "times" }, `× ${number(factor)}`);
    const line = (title, keys, { states, acc, rescale, accRescale, empty }) =>
        el("tr", {}, el("th", { scope: "row" }, title), el("td", {}, keys),
            states.map((v, i) => el("td", {}, number(v), !empty && names[i].kind === "sum" && times(rescale?.[i]))),
            el("td", { class: "vector" }, vector(acc.slice(0, 3)).replace(/\)$/, acc.length > 3 ? ", …)" : ")"), !empty && times(accRescale)));
    return el("section", {}, el("h2", {}, "Split and merged"),
        el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Parts and their merge" }, el("table", { class: "state" },
            el("thead", {}, el("tr", {}, head.map((h) => el("th", { scope: "col" }, h)))),
            el("tbody", {}, parts.map((p, i) => line(`part ${i + 1}`, p.from < p.to ? `${p.from} to ${p.to - 1}${p.empty ? ", empty" : ""}` : "none", p)),
                merged && line("merged", "", merged)))),
        merged && el("p", {}, `Error of the merged row: ${number(merged.error)}.`),
        el("p", { class: "note small" }, "× is what a part's sum is multiplied by when the parts are merged."));
}
