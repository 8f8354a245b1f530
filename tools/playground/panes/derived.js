// derived.js: what attn/derived says: row program, online form, end, combine rule and notes, as mathematics that leads to the source.
import { el } from "../ui.js";
import { linked, shown, rangeOf } from "../mathml.js";

export function create(root, page) {
    const body = el("div", { class: "body derived" });
    root.append(body);
    let rows = []; // {node, place}

    const line = (l) => {
        if (l.kind === "equation") {
            const node = linked(l.parts, { label: l.text, place: l.place, uri: page.uri, reveal: page.reveal, className: "formula equation" });
            rows.push({ node, place: l.place });
            return node;
        }
        return el("p", { class: "note" }, l.parts.map((p) => (p.mathml ? shown(p.mathml, p.text) : p.text)));
    };
    return {
        request: () => ["attn/derived", page.common({ formats: ["mathml", "text"] })],
        show(result) {
            rows = [];
            const summary = result.sweeps === 1 ? "One sweep over the keys suffices." : `${result.sweeps} sweeps over the keys are needed.`;
            body.replaceChildren(
                el("p", { class: "summary" }, summary),
                ...result.sections.map((s) => el("section", { class: `part ${s.id}` }, el("h2", {}, sentence(s.title)), el("div", { class: "lines" }, s.lines.map(line)))),
            );
        },
        // The equations that come from the line of the source where the cursor is.
        cursor(at) {
            const here = (range) => range && range.start.line <= at.line && at.line <= range.end.line;
            for (const { node, place } of rows) {
                const terms = [...node.querySelectorAll("[data-range]:not([data-uri])")].map(rangeOf);
                node.classList.toggle("from-here", (place?.uri === page.uri && here(place.range)) || terms.some(here));
            }
        },
    };
}

const sentence = (title) => title[0].toUpperCase() + title.slice(1);
