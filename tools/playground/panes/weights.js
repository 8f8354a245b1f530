// weights.js: scores, weights, and softmax of the same scores, as attn/weights gives them; below, the row of the chosen query in numbers.
import { el, number } from "../ui.js";
import { Grid, legend } from "../grid.js";
import { Controls } from "../controls.js";
import { Sentence } from "./sentence.js";
import { heat, named, css } from "../colors.js";

const PICTURES = [["scores", "Scores"], ["weights", "Weights"], ["softmax", "Softmax of the scores"]];

export const create = (root, page) => new Weights(root, page);

class Weights {
    missing = "Type a word.";

    constructor(root, page) {
        Object.assign(this, { page, shown: null, chosen: null }); // chosen: at first the last query, which sees most
        this.sentence = new Sentence(page);
        this.sliders = new Controls(page, { own: this.sentence.nodes });
        this.about = el("p", { class: "readout", id: "weights-readout", "aria-live": "polite" });
        this.grids = PICTURES.map(([name, title]) => {
            const grid = new Grid({ label: `${title}: rows are queries, columns are keys. The arrows choose a pair.`, choose: (row, column) => this.choose(row, column), describedBy: "weights-readout" });
            return { name, grid, node: el("figure", {}, el("figcaption", {}, title), grid.node) };
        });
        this.table = el("div", { class: "row-table" });
        this.legend = el("div");
        root.append(this.sliders.node, el("div", { class: "body" }, el("div", { class: "pictures" }, this.grids.map((g) => g.node)), this.legend, this.about, this.table));
    }

    request() {
        const params = this.sentence.parameters();
        return params && ["attn/weights", params];
    }
    controls() {
        this.sliders.update();
        this.sentence.update();
    }
    show(result) {
        this.shown = result;
        this.redraw();
        const { row, column } = this.chosen || { row: result.queries - 1, column: 0 };
        this.choose(Math.min(row, result.queries - 1), Math.min(column, result.keys - 1));
    }
    redraw() {
        if (!this.shown) return;
        const { queries, keys, mask, scores, weights, softmax } = this.shown;
        const outside = named("--skipped");
        const most = { scores: largest(scores), weights: Math.max(largest(weights), largest(softmax)) };
        for (const { name, grid } of this.grids) {
            const values = this.shown[name];
            const ofScores = name === "scores";
            const color = heat(ofScores ? most.scores : most.weights);
            grid.set({ rows: queries, columns: keys, names: namesOf(this.shown), most: 420, tallest: 420, color: (r, c) => (ofScores || mask[r][c] === "1" ? color(values[r][c]) : outside), marks: ofScores ? (g, cell) => cross(g, cell, mask) : null });
        }
        this.legend.replaceChildren(legend(this.meanings(heat(1), outside)));
    }
    meanings(color, outside) {
        const values = [this.shown.scores, this.shown.weights].flat(2);
        return [
            [color(0.75), "positive"],
            ...(values.some((v) => v < 0) ? [[color(-0.75), "negative"]] : []),
            [color(0), "0"],
            [outside, "outside the mask"],
            ...(values.includes("nan") ? [[color("nan"), "NaN"]] : []),
        ];
    }

    choose(row, column) {
        this.chosen = { row, column };
        for (const { grid } of this.grids) grid.select(row, column, true);
        const { scores, weights, softmax, mask, sums, emits } = this.shown;
        const names = namesOf(this.shown);
        const taking = mask[row][column] === "1";
        this.about.textContent = `Query ${row} ${quoted(names.rows[row], this.shown)}, key ${column} ${quoted(names.columns[column], this.shown)}: score ${number(scores[row][column])}, ` +
            (taking ? `weight ${number(weights[row][column])}, softmax ${number(softmax[row][column])}.` : "outside the mask: no weight.") +
            ` The weights of the row sum to ${number(sums[row])}.` +
            emits.map((e) => ` ${e.name} = ${number(e.values[row])}.`).join("");
        this.table.replaceChildren(rowTable(this.shown, row, column, names, (c) => this.choose(row, c)));
    }
}

function namesOf({ queries, keys, tokens }) {
    const numbers = (n) => Array.from({ length: n }, (_, i) => String(i));
    return { rows: tokens?.length ? tokens : numbers(queries), columns: tokens?.length ? tokens : numbers(keys) };
}
const quoted = (name, { tokens }) => (tokens?.length ? `“${name}”` : "");
const largest = (rows) => rows.reduce((most, row) => row.reduce((m, v) => (typeof v === "number" ? Math.max(m, Math.abs(v)) : m), most), 0);

// Scores outside the mask are struck through: nothing comes of them.
function cross(g, cell, mask) {
    if (cell.width < 7) return;
    g.strokeStyle = css("--edge");
    g.lineWidth = 1;
    g.beginPath();
    mask.forEach((row, r) => [...row].forEach((bit, c) => {
        if (bit === "1") return;
        g.moveTo(c * cell.width + 2, (r + 1) * cell.height - 2);
        g.lineTo((c + 1) * cell.width - 2, r * cell.height + 2);
    }));
    g.stroke();
}

function rowTable({ scores, weights, softmax, mask, tokens }, row, column, names, choose) {
    const largestOf = (values) => Math.max(1e-30, ...values.map((v) => (typeof v === "number" ? Math.abs(v) : 0)));
    const most = Math.max(largestOf(weights[row]), largestOf(softmax[row]));
    const bar = (value, kind) => {
        const node = el("span", { class: `bar ${kind}${value < 0 ? " negative" : ""}` });
        node.style.width = `${typeof value === "number" ? (100 * Math.abs(value)) / most : 0}%`;
        return el("td", { class: "bar-cell" }, el("span", { class: "value" }, number(value, 3)), el("span", { class: "track" }, node));
    };
    return el("table", {}, el("caption", {}, `Query ${row}${tokens ? `, “${tokens[row]}”` : ""}`),
        el("thead", {}, el("tr", {}, ["Key", "Score", "Weight", "Softmax"].map((h) => el("th", { scope: "col" }, h)))),
        el("tbody", {}, scores[row].map((score, c) =>
            el("tr", { class: [c === column && "chosen", mask[row][c] !== "1" && "outside"].filter(Boolean).join(" "), onclick: () => choose(c) },
                el("th", { scope: "row" }, names.columns[c]), el("td", { class: "value" }, number(score, 3)), bar(weights[row][c], "weight"), bar(softmax[row][c], "softmax")))));
}
