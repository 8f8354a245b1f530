// mathml.js: formulas of the service. Their elements say which part of the source they come from; a click on one, or Enter, shows it.
import { el } from "./ui.js";

const ELEMENTS = new Set("math mrow mi mo mn ms mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mmultiscripts mprescripts mtable mtr mtd mstyle mpadded mphantom menclose".split(" "));
const ATTRIBUTES = new Set("display displaystyle scriptlevel mathvariant stretchy form fence separator lspace rspace largeop movablelimits symmetric minsize maxsize accent accentunder linethickness width height depth columnalign columnspacing rowspacing data-range data-uri".split(" "));
const MATHML = "http://www.w3.org/1998/Math/MathML";

const LONGEST = 20000; // characters of MathML; what is longer would hold up the page, and is shown as text

// A formula of MathML; `text` says the same.
export const shown = (mathml, text) => (mathml.length <= LONGEST ? formula(mathml) : el("code", { class: "long" }, text.length > 2000 ? `${text.slice(0, 2000)} …` : text));

// The same for the head of a row or column of a table: who listens hears the text.
export const heading = (mathml, text) => [el("span", { class: "unseen" }, text), el("span", { "aria-hidden": "true" }, formula(mathml))];

// Names in a formula come from a source that anyone may have written. So only what is mathematics is taken over.
export function formula(mathml) {
    const copy = (from) => {
        const node = document.createElementNS(MATHML, from.localName);
        for (const { name, value } of from.attributes) if (ATTRIBUTES.has(name)) node.setAttribute(name, value);
        for (const child of from.childNodes) {
            if (child.nodeType === Node.TEXT_NODE) node.append(child.data);
            else if (child.nodeType === Node.ELEMENT_NODE && ELEMENTS.has(child.localName)) node.append(copy(child));
        }
        return node;
    };
    const math = new DOMParser().parseFromString(mathml, "text/html").querySelector("math");
    return math ? copy(math) : document.createTextNode("");
}

export function rangeOf(node) {
    const m = /^(\d+):(\d+)-(\d+):(\d+)$/.exec(node.dataset.range);
    return m && { start: { line: +m[1], character: +m[2] }, end: { line: +m[3], character: +m[4] } };
}
const placeOf = (node, uri) => ({ uri: node.dataset.uri || uri, range: rangeOf(node) });

// Formulas, with prose between them, whose terms lead to the source. parts: MathML, or [{mathml, text}]. `place` is that of the whole; reveal(place)
// shows one.
export function linked(parts, { label, place, uri, reveal, tag = "div", className = "formula" }) {
    const content = typeof parts === "string" ? shown(parts, label) : parts.map((p) => (p.mathml ? shown(p.mathml, p.text) : el("span", { class: "prose" }, p.text)));
    const node = el(tag, { class: className, role: "group", tabindex: "0", "aria-label": label.slice(0, 500), "aria-roledescription": "formula" }, content);
    const terms = () => [...node.querySelectorAll("[data-range]")].filter((t) => rangeOf(t));
    const heat = (term) => {
        for (const hot of node.querySelectorAll(".hot")) hot.classList.remove("hot");
        term?.classList.add("hot");
    };
    let at = -1;
    node.addEventListener("pointermove", (event) => heat(event.target.closest?.("[data-range]")));
    node.addEventListener("pointerleave", () => heat(null));
    node.addEventListener("click", (event) => {
        const term = event.target.closest?.("[data-range]");
        if (term && rangeOf(term)) reveal(placeOf(term, uri));
        else if (place) reveal(place);
    });
    node.addEventListener("blur", () => heat(null));
    node.addEventListener("keydown", (event) => {
        const all = terms();
        if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
            event.preventDefault();
            at = Math.max(0, Math.min(all.length - 1, at + (event.key === "ArrowRight" ? 1 : -1)));
            heat(all[at]);
        } else if (event.key === "Enter") {
            event.preventDefault(); // the editor, which has the focus then, would take it as text
            if (all[at]) reveal(placeOf(all[at], uri));
            else if (place) reveal(place);
        }
    });
    return node;
}
