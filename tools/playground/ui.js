// ui.js: small makers of elements. What a user or the compiler wrote comes in as text nodes and is never parsed as HTML.

// el("p", {class: "note", onclick: f}, "text", child): attributes by name, listeners by on..., null and false are left out.
export function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
        else if (value === true) node.setAttribute(name, "");
        else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.flat(2).filter((child) => child != null && child !== false));
    return node;
}

export const $ = (id) => document.getElementById(id);

let ids = 0;
export const freshId = (word) => `${word}-${++ids}`;

// A slider with its name and its value. `steps` is a list of values, or {min, max, step}. set() moves it without calling `change`; a value between those
// of the list (of a link, say) is one more of them, as long as it is set. A value without a format of its own may also be typed.
export function slider({ label, title, steps, value, change, format = String }) {
    let list = Array.isArray(steps) ? steps : null;
    const id = freshId("slider");
    const input = el("input", {
        type: "range", id, title,
        min: list ? 0 : steps.min, max: list ? list.length - 1 : steps.max, step: list ? 1 : steps.step || 1,
    });
    const typed = format === String && typeof value === "number" && label;
    const output = typed ? el("input", { type: "text", class: "typed", inputmode: "decimal", autocomplete: "off", "aria-label": `${label}, as a number`, title }) : el("output", { for: id });
    const valueOf = () => (list ? list[Number(input.value)] : Number(input.value));
    const show = () => {
        const said = format(valueOf());
        if (typed) output.value = said;
        else output.textContent = said;
        input.setAttribute("aria-valuetext", said);
    };
    const set = (to) => {
        if (list) {
            list = typeof to !== "number" || steps.includes(to) ? steps : [...steps, to].sort((a, b) => a - b);
            input.max = list.length - 1;
        }
        input.value = list ? nearest(list, to) : to;
        show();
    };
    input.addEventListener("input", () => {
        show();
        change(valueOf());
    });
    if (typed) output.addEventListener("change", () => {
        const [least, most, step] = list ? [steps[0], steps.at(-1), steps.every(Number.isInteger) ? 1 : 0] : [Number(input.min), Number(input.max), Number(input.step)];
        const given = Number(output.value);
        const wanted = step ? Math.round(given / step) * step : given;
        if (output.value.trim() && Number.isFinite(given)) set(Math.max(least, Math.min(most, wanted)));
        else return show();
        change(valueOf());
    });
    set(value);
    return { node: el("div", { class: "slider" }, el("label", { for: id, title }, label), input, output), set, get: valueOf, input };
}

const nearest = (list, to) => list.reduce((best, v, i) => (Math.abs(v - to) < Math.abs(list[best] - to) ? i : best), 0);

// A menu: options are [value, text].
export function select({ label, options, value, change }) {
    const id = freshId("select");
    const box = el("select", { id, onchange: () => change(box.value) });
    const set = (to) => { box.value = to; };
    const fill = (list, to) => {
        box.replaceChildren(...list.map(([v, text]) => el("option", { value: v }, text)));
        set(to);
    };
    fill(options, value);
    return { node: el("div", { class: "field" }, el("label", { for: id }, label), box), set, fill, box };
}

// Tabs as the ARIA practices say: arrows move between tabs and show them, Home and End go to the first and last.
export function tabs(list, choose) {
    const buttons = [...list.querySelectorAll("[role=tab]")];
    const show = (name, focus) => {
        for (const button of buttons) {
            const chosen = button.dataset.pane === name;
            button.setAttribute("aria-selected", chosen);
            button.tabIndex = chosen ? 0 : -1;
            $(button.getAttribute("aria-controls")).hidden = !chosen;
            if (chosen && focus) button.focus();
            if (chosen && list.scrollWidth > list.clientWidth) button.scrollIntoView({ block: "nearest", inline: "nearest" });
        }
        choose(name);
    };
    for (const button of buttons) button.addEventListener("click", () => show(button.dataset.pane));
    list.addEventListener("keydown", (event) => {
        const at = buttons.indexOf(document.activeElement);
        const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
        if (at < 0 || to === undefined) return;
        event.preventDefault();
        show(buttons[(to + buttons.length) % buttons.length].dataset.pane, true);
    });
    return show;
}

// Says a sentence to who listens to the page, and shows it for some seconds.
export function say(text) {
    const box = $("toast");
    box.textContent = text;
    box.classList.add("shown");
    clearTimeout(say.timer);
    say.timer = setTimeout(() => box.classList.remove("shown"), 4000);
}

// Icons that every machine draws: points of triangles and bars in a square of 16.
const ICONS = { first: "M3 3h2v10H3zM13 3v10L6 8z", back: "M11 3v10L4 8z", next: "M5 3l7 5-7 5z", last: "M11 3h2v10h-2zM3 3l7 5-7 5z", close: "M3.5 4.5l1-1L8 7l3.5-3.5 1 1L9 8l3.5 3.5-1 1L8 9l-3.5 3.5-1-1L7 8z" };
export function icon(name) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 16 16");
    svg.setAttribute("class", "icon");
    svg.setAttribute("aria-hidden", "true");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
}

// A number for reading: four digits, no "-0", what is not finite by its name.
export function number(value, digits = 4) {
    if (typeof value !== "number") return { inf: "∞", "-inf": "\u2212∞", nan: "NaN" }[value] ?? String(value);
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e5 || size < 1e-3) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e").replace("-", "\u2212");
    return String(Number(value.toPrecision(digits))).replace("-", "\u2212");
}
