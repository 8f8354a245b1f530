// controls.js: the sliders that all panes share: heads, the seed, constants of the source, inputs of the variant. They come from attn/list, and what
// they set goes into the sizes of the page: `const.NAME`, `input.NAME`, the rest by its own name.
import { el, slider, select, number, freshId } from "./ui.js";

const HEADS = [1, 2, 3, 4, 6, 8, 12, 16, 32];
const WHOLE = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096];
const POWERS = [8, 16, 32, 64, 128, 192, 256, 512];
const SCALARS = { min: -8, max: 8, step: 0.25 };

const sorted = (list, value) => [...new Set([...list, value])].sort((a, b) => a - b);

// What a request says of them: constants and inputs that the source has, as attn/list told.
export function common(sizes, list) {
    const constants = {};
    const known = new Map((list?.constants || []).map((c) => [c.name, c]));
    for (const [name, value] of Object.entries(sizes)) if (name.startsWith("const.") && known.has(name.slice(6))) constants[name.slice(6)] = value;
    return { constants };
}

// launch: the sizes of the launch, of which the extents of inputs are made.
export function inputs(sizes, variant, launch) {
    const values = {};
    const known = { B: 1, Hkv: launch.H, D: variant?.D, Dv: variant?.Dv, ...launch };
    for (const { name, shape } of variant?.inputs || []) {
        const extents = shape.map((extent) => (typeof extent === "number" ? extent : known[extent] ?? 1));
        const given = sizes[`input.${name}`];
        if (given === undefined || given === "drawn") continue;
        values[name] = typeof given === "number" ? given : listed(given, extents);
    }
    return values;
}
// "blocks:3" is 0 0 0 1 1 1 2 2 over the last extent; "1, 2, nan" are the elements; anything else is as after --in.
function listed(text, extents) {
    const blocks = /^blocks:(\d+)$/.exec(text);
    if (blocks) {
        const count = extents.reduce((a, b) => a * b, 1);
        const last = extents.at(-1) || 1;
        return Array.from({ length: Math.min(count, 1 << 16) }, (_, i) => Math.floor(((i % last) * Number(blocks[1])) / last));
    }
    const words = text.split(/[\s,]+/).filter(Boolean);
    const value = (word) => (/^[+-]?(nan|inf)$/i.test(word) ? word.toLowerCase().replace("+", "") : Number(word));
    if (words.length && words.every((w) => /^[+-]?(nan|inf)$/i.test(w) || Number.isFinite(Number(w)))) return words.length === 1 && !extents.length ? value(words[0]) : words.map(value);
    return text;
}

// The controls of a pane. heads: whether H and head matter; size names of the pane itself are the pane's.
export class Controls {
    constructor(page, { own = [], heads = true, seed = true, dims = true, inputs = true } = {}) {
        Object.assign(this, { page, heads, seed, dims, inputs });
        this.shared = el("div", { class: "shared" });
        this.node = el("div", { class: "controls" }, own, this.shared);
        this.sliders = new Map();
        this.made = "";
    }

    // Made again only if the source's constants or inputs are others, so that a slider in use stays.
    update() {
        const { list, variant } = this.page;
        const made = JSON.stringify([list?.variants.map((v) => v.name), list?.constants.map((c) => [c.name, c.value]), variant?.name, variant?.inputs.map((i) => [i.name, i.type, i.shape])]);
        if (made !== this.made) {
            this.made = made;
            this.sliders.clear();
            this.shared.replaceChildren(...this.make(list, variant));
        }
        for (const [name, control] of this.sliders) control.set(this.page.size(name, control.initial));
    }

    make(list, variant) {
        const nodes = [];
        const variants = (list?.variants || []).filter((v) => v.kind === "attention");
        if (variants.length > 1) nodes.push(this.menu("entry", "Variant", variants.map((v) => [v.name, v.name]), variants[0].name));
        if (this.heads) {
            nodes.push(this.slide("H", { label: "Heads", title: "H, the number of heads", steps: HEADS }, 2));
            nodes.push(this.slide("head", { label: "Head", title: "h, the head that is shown", steps: { min: 0, max: 31 } }, 0));
        }
        if (this.inputs) for (const s of variant?.sizes.filter((s) => s.free) || []) nodes.push(this.slide(s.name, { label: s.name, title: "A size that the inputs bring", steps: sorted(WHOLE.slice(1), s.value) }, s.value));
        for (const c of (list?.constants || []).filter((c) => c.kind !== "dim")) nodes.push(this.constant(c));
        if (this.inputs) for (const i of variant?.inputs || []) nodes.push(this.input(i));
        if (this.seed) nodes.push(this.slide("seed", { label: "Seed", title: "Of all that is drawn", steps: { min: 1, max: 20 } }, 1));
        const dims = this.dims ? (list?.constants || []).filter((c) => c.kind === "dim").map((c) => this.constant(c)) : [];
        if (dims.length) nodes.push(el("details", {}, el("summary", {}, "Dimensions"), el("div", { class: "inner" }, dims)));
        return nodes;
    }
    slide(name, options, initial) {
        const control = slider({ ...options, value: this.page.size(name, initial), change: (value) => this.page.setSize(name, value) });
        control.initial = initial;
        this.sliders.set(name, control);
        return control.node;
    }
    menu(name, label, options, initial) {
        const control = select({ label, options, value: this.page.size(name, initial), change: (value) => this.page.setSize(name, value) });
        control.initial = initial;
        this.sliders.set(name, control);
        return control.node;
    }

    constant({ name, kind, type, value }) {
        const title = kind === "dim" ? `dim ${name} of the variant` : `const ${name} of the source`;
        const key = `const.${name}`;
        if (type === "bool") return this.menu(key, name, [["true", "true"], ["false", "false"]], String(value));
        if (typeof value !== "number") return "";
        const now = this.page.size(key, value);
        if (kind === "dim") return this.slide(key, { label: name, title, steps: sorted(sorted(POWERS, value), now) }, value);
        if (Number.isInteger(value) && type !== "f32") return this.slide(key, { label: name, title, steps: sorted(sorted(WHOLE, value), now) }, value);
        const about = value ? [0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 5].map((f) => Number((value * f).toPrecision(6))) : [-4, -2, -1, -0.5, 0, 0.5, 1, 2, 4];
        return this.slide(key, { label: name, title, steps: sorted(sorted(about, value), now), format: (v) => number(v) }, value);
    }

    // An input: drawn, one value by a slider, blocks of equal numbers (documents), or a list that is typed.
    input({ name, type, shape }) {
        const key = `input.${name}`;
        const whole = type === "i32";
        const id = freshId("input");
        const box = el("select", { id });
        for (const [value, text] of [["drawn", whole || type === "bool" ? "zero" : "drawn"], ["value", "value"], ...(whole && shape.length ? [["blocks", "blocks"]] : []), ["list", "list"]])
            box.append(el("option", { value }, text));
        const steps = whole ? WHOLE : SCALARS;
        const label = `${name}, ${type}${shape.length ? `[${shape.join(", ")}]` : ""}`;
        const set = (value) => this.page.setSize(key, value);
        const value = slider({ label: "", steps, value: 0, change: set, format: (v) => number(v) });
        const blocks = slider({ label: "", steps: { min: 1, max: 8 }, value: 3, change: (n) => set(`blocks:${n}`) });
        for (const one of [value, blocks]) one.input.setAttribute("aria-label", label);
        const typed = el("input", { type: "text", "aria-label": label, placeholder: "0.5, 1, nan", spellcheck: "false", onchange: () => set(typed.value) });
        const show = (form) => {
            box.value = form;
            value.node.hidden = form !== "value";
            blocks.node.hidden = form !== "blocks";
            typed.hidden = form !== "list";
        };
        box.addEventListener("change", () => {
            show(box.value);
            set({ drawn: "drawn", value: value.get(), blocks: `blocks:${blocks.get()}`, list: typed.value || "0" }[box.value]);
        });
        this.sliders.set(key, {
            initial: "drawn",
            set: (to) => {
                if (typeof to === "number") value.set(to);
                else if (/^blocks:\d+$/.test(to)) blocks.set(Number(to.slice(7)));
                else if (to !== "drawn" && typed !== document.activeElement) typed.value = to;
                show(typeof to === "number" ? "value" : to === "drawn" ? "drawn" : /^blocks:\d+$/.test(to) ? "blocks" : "list");
            },
        });
        return el("div", { class: "field input" }, el("label", { for: id, title: label }, name), el("div", { class: "choice" }, box, value.node, blocks.node, typed));
    }
}
