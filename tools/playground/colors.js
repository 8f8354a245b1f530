// colors.js: numbers to colours, in the scheme of the page. Sequential for what is not negative, orange for what is.
const SCALES = {
    light: { up: ["#ffffff", "#d9e5fb", "#82a8ee", "#2a56c6", "#122458"], down: ["#ffffff", "#fbe0c2", "#e99b4b", "#a3560a", "#4d2603"] },
    dark: { up: ["#1b2028", "#22375f", "#3f6fd2", "#93b8ff", "#eef5ff"], down: ["#1b2028", "#54371a", "#b86f22", "#f0a860", "#fff0e0"] },
};
const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

export function dark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// value / largest -> [r, g, b]. What is not a number is magenta.
export function heat(largest) {
    const scale = SCALES[dark() ? "dark" : "light"];
    const stops = { up: scale.up.map(rgb), down: scale.down.map(rgb) };
    return (value) => {
        if (value === "inf") return stops.up.at(-1);
        if (value === "-inf") return stops.down.at(-1);
        if (typeof value !== "number") return [200, 0, 160];
        const colors = value < 0 ? stops.down : stops.up;
        const at = Math.min(1, Math.abs(value) / (largest || 1)) * (colors.length - 1);
        const i = Math.min(colors.length - 2, Math.floor(at));
        return colors[i].map((c, k) => Math.round(c + (colors[i + 1][k] - c) * (at - i)));
    };
}
export const named = (name) => rgb(css(name));
export const text = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
