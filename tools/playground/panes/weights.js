// weights.js: scores, weights, and softmax of the same scores, as attn/weights gives them; below, the row of the chosen query in numbers.
import { el, number } from "../ui.js";
import { Grid, legend } from "../grid.js";
import { Controls } from "../controls.js";
import { Sentence } from "./sentence.js";
import { heat, named, css } from "../colors.js";

const PICTURES = [["scores", "Scores"], ["weights", "Weights"], ["softmax", "Softmax of the scores"]];

export function create(root, page) {
    const sentence = new Sentence(page);
    const controls = new Controls(page, { own: sentence.nodes });
    const about = el("p", { class: "readout", id: "weights-readout", "aria-live": "polite" });
    const grids = PICTURES.map(([name, title]) => {
        const grid = new Grid({ label: `${title}: rows are queries, columns are keys. The arrows choose a pair.`, choose: (row, column) => choose(row, column), describedBy: "weights-readout" });
        return { name, grid, node: el("figure", {}, el("figcaption", {}, title), grid.node) };
    });
    const table = el("div", { class: "row-table" });
    const key = el("div");
    const body = el("div", { class: "body" }, el("div", { class: "pictures" }, grids.map((g) => g.node)), key, about, table);
    root.append(controls.node, body);
    let shown = null;
    let chosen = null; // at first the last query, which sees most

    function choose(row, column) {
        chosen = { row, column };
        for (const { grid } of grids) grid.select(row, column, true);
        tell(row, column);
    }
    function tell(row, column) {
        const { scores, weights, softmax, mask, sums } = shown;
        const names = namesOf(shown);
        const taking = mask[row][column] === "1";
        about.textContent = `Query ${row} ${quoted(names.rows[row], shown)}, key ${column} ${quoted(names.columns[column], shown)}: score ${number(scores[row][column])}, ` +
            (taking ? `weight ${number(weights[row][column])}, softmax ${number(softmax[row][column])}.` : "outside the mask: no weight.") +
            ` The weights of the row sum to ${number(sums[row])}.` +
            shown.emits.map((e) => ` ${e.name} = ${number(e.values[row])}.`).join("");
        table.replaceChildren(rowTable(shown, row, column, names, (c) => choose(row, c)));
    }
    function show(result) {
        shown = result;
        const names = namesOf(result);
        const outside = named("--skipped");
        for (const { name, grid } of grids) {
            const values = result[name];
            const color = heat(name === "scores" ? largest(values) : Math.max(largest(result.weights), largest(result.softmax)));
            grid.set({ rows: result.queries, columns: result.keys, names, most: 420, tallest: 420, color: (r, c) => (result.mask[r][c] === "1" || name === "scores" ? color(values[r][c]) : outside), marks: name === "scores" ? (g, cell) => cross(g, cell, result.mask) : null });
        }
        const color = heat(1);
        const entries = [[color(0.75), "positive"], [color(0), "0"], [outside, "outside the mask"]];
        if ([result.scores, result.weights].some((rows) => rows.some((row) => row.some((v) => v < 0)))) entries.splice(1, 0, [color(-0.75), "negative"]);
        if (JSON.stringify([result.scores, result.weights]).includes('"nan"')) entries.push([color("nan"), "NaN"]);
        key.replaceChildren(legend(entries));
        if (!chosen) choose(result.queries - 1, 0);
        else choose(Math.min(chosen.row, result.queries - 1), Math.min(chosen.column, result.keys - 1));
    }
    return {
        request: () => {
            const params = sentence.parameters();
            return params && ["attn/weights", params];
        },
        missing: "Type a word.",
        show,
        controls() {
            controls.update();
            sentence.update();
        },
        redraw: () => shown && show(shown),
    };
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
