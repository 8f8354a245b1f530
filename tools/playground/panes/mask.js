// mask.js: the mask in tiles, as attn/mask classes them, and what decides the chosen tile.
import { el, slider, select } from "../ui.js";
import { Grid, legend } from "../grid.js";
import { Controls } from "../controls.js";
import { named, css } from "../colors.js";
import { linked } from "../mathml.js";

const LENGTHS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384];
const TILES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const START = { Sq: 512, Sk: 512, q_offset: 0, tiles: "free", "tile.queries": 64, "tile.keys": 64 };
const PARTIAL = "1"; // digits of classes: 0 skipped, 1 partial, 2 full

export const create = (root, page) => new Mask(root, page);

class Mask {
    constructor(root, page) {
        Object.assign(this, { page, shown: null, own: [] });
        const size = (name, label, title, steps) => {
            const control = slider({ label, title, steps, value: START[name], change: (value) => page.setSize(name, value) });
            this.own.push(() => control.set(this.size(name)));
            return control.node;
        };
        this.tiles = select({ label: "Tiles", options: [["free", "by the sliders"]], value: "free", change: (value) => page.setSize("tiles", value) });
        this.extents = [size("tile.queries", "Queries/tile", "Queries of a tile", TILES), size("tile.keys", "Keys/tile", "Keys of a tile", TILES)];
        const offset = size("q_offset", "Offset", "q_offset: where the first query stands among the keys, as in decoding", [0, ...LENGTHS]);
        this.sliders = new Controls(page, { own: [size("Sq", "Sq", "How many queries", LENGTHS), size("Sk", "Sk", "How many keys", LENGTHS), offset, this.tiles.node, ...this.extents], dims: false });
        this.facts = el("p", { class: "facts" });
        this.formula = el("div", { class: "mask-formula" });
        this.about = el("div", { class: "readout", id: "tile-readout", "aria-live": "polite" });
        this.legend = el("div");
        this.grid = new Grid({ label: "Tiles of the mask: rows are queries, columns are keys. The arrows choose a tile.", choose: (row, column) => this.choose(row, column), describedBy: "tile-readout" });
        const picture = el("div", {}, el("div", { class: "axis" }, "keys →"), this.grid.node);
        root.append(this.sliders.node, el("div", { class: "body" }, this.formula, el("div", { class: "mask-body" }, picture, el("div", {}, this.legend, this.facts, this.about))));
    }

    size(name) {
        return this.page.size(name, START[name]);
    }
    parameters() {
        const offset = this.size("q_offset");
        const tiles = this.size("tiles");
        return {
            ...this.page.launch({ Sq: this.size("Sq"), Sk: this.size("Sk"), ...(offset ? { q_offset: offset } : {}) }),
            ...(tiles === "free" ? { tile: { queries: this.size("tile.queries"), keys: this.size("tile.keys") } } : { target: tiles }),
        };
    }
    request() {
        const params = this.parameters();
        return ["attn/mask", { ...params, at: fitted(params, this.grid.at) }];
    }
    controls() {
        this.sliders.update();
        this.tiles.fill([["free", "by the sliders"], ...(this.page.list?.targets || []).map((t) => [t, `as ${t} takes them`])], this.size("tiles"));
        for (const set of this.own) set();
        for (const node of this.extents) node.hidden = this.size("tiles") !== "free";
    }
    async choose(row, column) {
        const result = await this.page.ask("attn/mask", { ...this.parameters(), at: { row, column } });
        if (result && row === this.grid.at.row && column === this.grid.at.column) this.tell(result);
    }

    show(result) {
        if (result.at) this.grid.at = { row: result.at.row, column: result.at.column };
        this.shown = result;
        this.redraw();
        this.tell(result);
    }
    redraw() {
        if (!this.shown) return;
        const { rows, columns, classes, counts, queries, keys, tile, inside, mask, pairs: bits } = this.shown;
        const [skipped, partial, full] = ["--skipped", "--partial", "--full"].map(named);
        const colors = [skipped, partial, full];
        this.grid.set({ rows, columns, aspect: keys / queries, most: 520, tallest: 520, color: (r, c) => colors[classes[r].charCodeAt(c) - 48], marks: bits ? (g, cell) => pairs(g, this.shown, cell) : null });
        this.legend.replaceChildren(legend([[full, `full: ${counts.full}, no test`], [partial, `partial: ${counts.partial}, pair by pair`], [skipped, `skipped: ${counts.skipped}, no work`]]));
        this.facts.textContent = `${rows} × ${columns} tiles of ${tile.queries} × ${tile.keys}. ${percent(counts.skipped / (rows * columns))} of the tiles cost nothing; ${percent(inside)} of the pairs take part.`;
        this.formula.replaceChildren(mask ? this.linked(mask, "div") : el("p", { class: "note" }, "Without a mask, every pair takes part."));
    }
    linked({ mathml, text, place }, tag) {
        return linked(mathml, { label: text, place, uri: this.page.uri, reveal: this.page.reveal, tag });
    }
    // Of the chosen tile: what holds in it, and which inequality decides.
    tell({ at, terms }) {
        if (!at) return;
        const says = (t, term) => (term.blind ? "skips nothing: it is known for no tile" : t.all ? "holds for every pair" : t.some ? "holds for some pairs" : "holds for no pair");
        const line = (t) => el("p", { class: t.decides ? "decides" : "" }, this.linked(terms[t.term], "span"), ` ${says(t, terms[t.term])}`, t.decides ? ", and decides" : "");
        this.about.replaceChildren(
            el("p", {}, `Queries ${at.queries[0]} to ${at.queries[1] - 1}, keys ${at.keys[0]} to ${at.keys[1] - 1}: `, el("strong", { class: at.class }, at.class), "."),
            at.terms.length ? "" : el("p", {}, at.text),
            ...at.terms.map(line),
        );
    }
}

// The chosen tile, where it is still there; the schedule of a target may have any tiles.
function fitted({ sizes, tile }, at) {
    if (!tile) return { row: 0, column: 0 };
    return { row: Math.min(at.row, Math.ceil(sizes.Sq / tile.queries) - 1), column: Math.min(at.column, Math.ceil(sizes.Sk / tile.keys) - 1) };
}

// In partial tiles, the pairs that take part, where a pair is large enough to be seen.
function pairs(g, { pairs: bits, queries, keys, classes, tile }, cell) {
    const w = cell.width / tile.keys;
    const h = cell.height / tile.queries;
    if (Math.min(w, h) < 1.5) return;
    g.fillStyle = css("--paper");
    g.globalAlpha = 0.62;
    const edge = (i, extent) => Math.round(i * extent); // whole pixels, or seams would be seen
    for (let q = 0; q < queries; q++) {
        const top = edge(q, h);
        for (let k = 0; k < keys; k++) {
            const partial = classes[Math.floor(q / tile.queries)][Math.floor(k / tile.keys)] === PARTIAL;
            if (partial && bits[q][k] === "0") g.fillRect(edge(k, w), top, edge(k + 1, w) - edge(k, w), edge(q + 1, h) - top);
        }
    }
    g.globalAlpha = 1;
}

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 2 : 0)} %`;
