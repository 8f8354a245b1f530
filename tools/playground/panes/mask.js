// mask.js: the mask in tiles, as attn/mask classes them, and what decides the chosen tile.
import { el, slider, select } from "../ui.js";
import { Grid, legend } from "../grid.js";
import { Controls } from "../controls.js";
import { named, css } from "../colors.js";
import { linked } from "../mathml.js";

const LENGTHS = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384];
const TILES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CLASSES = ["skipped", "partial", "full"];

export function create(root, page) {
    const own = {};
    const size = (name, label, title, steps, initial) => {
        const control = slider({ label, title, steps, value: initial, change: (value) => page.setSize(name, value) });
        own[name] = () => control.set(page.size(name, initial));
        return control.node;
    };
    const tiles = select({ label: "Tiles", options: [["free", "by the sliders"]], value: "free", change: (value) => page.setSize("tiles", value) });
    const extents = [size("tile.queries", "Queries/tile", "Queries of a tile", TILES, 64), size("tile.keys", "Keys/tile", "Keys of a tile", TILES, 64)];
    const controls = new Controls(page, {
        own: [size("Sq", "Sq", "How many queries", LENGTHS, 512), size("Sk", "Sk", "How many keys", LENGTHS, 512), size("q_offset", "Offset", "q_offset: where the first query stands among the keys, as in decoding", [0, ...LENGTHS], 0), tiles.node, ...extents], dims: false,
    });
    const facts = el("p", { class: "facts" });
    const formula = el("div", { class: "mask-formula" });
    const about = el("div", { class: "readout", id: "tile-readout", "aria-live": "polite" });
    const key = el("div");
    const grid = new Grid({ label: "Tiles of the mask: rows are queries, columns are keys. The arrows choose a tile.", choose: ask, describedBy: "tile-readout" });
    const body = el("div", { class: "body" }, formula, el("div", { class: "mask-body" }, el("div", {}, el("div", { class: "axis" }, "keys →"), grid.node), el("div", {}, key, facts, about)));
    root.append(controls.node, body);
    let shown = null;

    const free = () => page.size("tiles", "free") === "free";
    const parameters = () => ({
        ...page.launch({ Sq: page.size("Sq", 512), Sk: page.size("Sk", 512), ...(page.size("q_offset", 0) ? { q_offset: page.size("q_offset", 0) } : {}) }),
        ...(free() ? { tile: { queries: page.size("tile.queries", 64), keys: page.size("tile.keys", 64) } } : { target: page.size("tiles", "host") }),
    });
    async function ask(row, column) {
        const result = await page.ask("attn/mask", { ...parameters(), at: { row, column } });
        if (result && row === grid.at.row && column === grid.at.column) tell(result);
    }
    function tell({ at, terms }) {
        if (!at) return;
        const [from, to] = at.queries;
        const head = `Queries ${from} to ${to - 1}, keys ${at.keys[0]} to ${at.keys[1] - 1}: `;
        const says = (t) => (t.all ? "holds for every pair" : t.some ? "holds for some pairs" : "holds for no pair");
        about.replaceChildren(
            el("p", {}, head, el("strong", { class: at.class }, at.class), "."), at.terms.length ? "" : el("p", {}, at.text),
            ...at.terms.map((t) => {
                const term = terms[t.term];
                return el("p", { class: t.decides ? "decides" : "" }, linked(term.mathml, { label: term.text, place: term.place, uri: page.uri, reveal: page.reveal, tag: "span" }),
                    ` ${term.blind ? "skips nothing: it is known for no tile" : says(t)}`, t.decides ? ", and decides" : "");
            }),
        );
    }
    function show(result) {
        shown = result;
        const { rows, columns, classes, counts, queries, keys } = result;
        const colors = [named("--skipped"), named("--partial"), named("--full")];
        grid.set({ rows, columns, aspect: keys / queries, most: 520, tallest: 520, color: (r, c) => colors[classes[r].charCodeAt(c) - 48], marks: result.pairs ? (g, cell) => pairs(g, result, cell) : null });
        key.replaceChildren(legend([[colors[2], `full: ${counts.full}, no test`], [colors[1], `partial: ${counts.partial}, pair by pair`], [colors[0], `skipped: ${counts.skipped}, no work`]]));
        const all = counts.full + counts.partial + counts.skipped;
        facts.textContent = `${rows} × ${columns} tiles of ${result.tile.queries} × ${result.tile.keys}. ${percent(counts.skipped / all)} of the tiles cost nothing; ${percent(result.inside)} of the pairs take part.`;
        formula.replaceChildren(...(result.mask ? [linked(result.mask.mathml, { label: result.mask.text, place: null, uri: page.uri, reveal: page.reveal })] : [el("p", { class: "note" }, "Without a mask, every pair takes part.")]));
        if (result.terms.length === 0 && !result.mask) about.replaceChildren();
    }
    return {
        request: () => ["attn/mask", { ...parameters(), at: fitted(parameters(), grid.at) }],
        show(result) {
            if (result.at) grid.at = { row: result.at.row, column: result.at.column };
            show(result);
            tell(result);
        },
        controls() {
            controls.update();
            tiles.fill([["free", "by the sliders"], ...(page.list?.targets || []).map((t) => [t, `as ${t} takes them`])], page.size("tiles", "free"));
            for (const set of Object.values(own)) set();
            for (const node of extents) node.hidden = !free();
        },
        redraw: () => shown && show(shown),
    };
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
    for (let q = 0; q < queries; q++)
        for (let k = 0; k < keys; k++)
            if (bits[q][k] === "0" && CLASSES[classes[Math.floor(q / tile.queries)].charCodeAt(Math.floor(k / tile.keys)) - 48] === "partial") g.fillRect(k * w, q * h, w, h);
    g.globalAlpha = 1;
}

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.01 ? 2 : 0)} %`;
