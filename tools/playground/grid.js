// grid.js: a picture of rows and columns of cells, on a canvas. One cell is chosen: by the pointer, or by the arrows when the picture has the focus.
import { el } from "./ui.js";
import { css, text } from "./colors.js";

export class Grid {
    // label: what the picture is; choose(row, column): a cell was chosen. Both axes may have names (tokens).
    constructor({ label, choose, describedBy }) {
        this.canvas = el("canvas", { "aria-hidden": "true" });
        this.node = el("div", { class: "grid", role: "application", tabindex: "0", "aria-label": label, "aria-describedby": describedBy }, this.canvas);
        this.choose = choose;
        this.at = { row: 0, column: 0 };
        this.node.addEventListener("keydown", (event) => this.key(event));
        this.canvas.addEventListener("pointerdown", (event) => this.point(event));
        new ResizeObserver(() => this.draw()).observe(this.node);
    }

    // rows, columns; color(row, column) -> [r, g, b]; aspect: width over height; names: {rows, columns}; marks(context, cell): drawn on top.
    set(picture) {
        this.picture = picture;
        this.at.row = Math.min(this.at.row, picture.rows - 1);
        this.at.column = Math.min(this.at.column, picture.columns - 1);
        this.draw();
    }

    layout() {
        const { rows, columns, aspect, names, most = 620, tallest = 560 } = this.picture;
        const room = Math.max(120, this.node.clientWidth);
        const left = names ? Math.min(96, 10 + 8 * Math.max(...names.rows.map((n) => n.length))) : 0;
        const longest = names ? Math.min(84, 8 * Math.max(...names.columns.map((n) => n.length))) : 0; // of a name, in pixels
        const top = names ? 12 + 0.87 * longest : 0; // names stand at 60 degrees
        const right = names ? 2 + 0.5 * longest : 0;
        let width = Math.min(room - left - right - 2, most);
        let height = width / (aspect || columns / rows);
        if (height > tallest) {
            height = tallest;
            width = Math.min(width, height * (aspect || columns / rows));
        }
        if (height < 48) height = Math.min(48, rows * 24);
        const cell = { width: width / columns, height: height / rows };
        if (names) cell.width = cell.height = Math.min(cell.width, cell.height, 34);
        return { left, top, right, longest, cell, width: cell.width * columns, height: cell.height * rows };
    }

    draw() {
        if (!this.picture || !this.node.clientWidth) return;
        const { rows, columns, color, names, marks } = this.picture;
        const box = (this.box = this.layout());
        const dpr = devicePixelRatio || 1;
        const [w, h] = [box.left + box.width + box.right + 2, box.top + box.height + 2];
        this.canvas.width = Math.round(w * dpr);
        this.canvas.height = Math.round(h * dpr);
        this.canvas.style.width = `${w}px`;
        this.canvas.style.height = `${h}px`;
        const g = this.canvas.getContext("2d");
        g.scale(dpr, dpr);
        g.translate(box.left + 1, box.top + 1);
        g.imageSmoothingEnabled = false;
        g.drawImage(pixels(rows, columns, color), 0, 0, box.width, box.height);
        if (Math.min(box.cell.width, box.cell.height) >= 5) this.lines(g, rows, columns);
        marks?.(g, box.cell);
        if (names) this.names(g, names);
        this.cursor(g);
    }
    lines(g, rows, columns) {
        g.strokeStyle = css("--paper");
        g.lineWidth = 1;
        g.beginPath();
        for (let c = 1; c < columns; c++) {
            g.moveTo(c * this.box.cell.width, 0);
            g.lineTo(c * this.box.cell.width, this.box.height);
        }
        for (let r = 1; r < rows; r++) {
            g.moveTo(0, r * this.box.cell.height);
            g.lineTo(this.box.width, r * this.box.cell.height);
        }
        g.stroke();
        g.strokeStyle = css("--line");
        g.strokeRect(0, 0, this.box.width, this.box.height);
    }
    names(g, { rows, columns }) {
        const { cell, left, longest } = this.box;
        const every = Math.ceil(11 / cell.height);
        g.font = `${Math.max(10, Math.min(12, cell.height))}px ${css("--text")}`;
        g.textBaseline = "middle";
        rows.forEach((name, r) => {
            if (r !== this.at.row && (r % every || Math.abs(r - this.at.row) < every)) return;
            g.fillStyle = css(r === this.at.row ? "--ink" : "--soft");
            g.textAlign = "right";
            g.fillText(fit(g, name, left - 8), -6, (r + 0.5) * cell.height);
        });
        columns.forEach((name, c) => {
            if (c !== this.at.column && (c % every || Math.abs(c - this.at.column) < every)) return;
            g.save();
            g.fillStyle = css(c === this.at.column ? "--ink" : "--soft");
            g.translate((c + 0.5) * cell.width, -6);
            g.rotate(-Math.PI / 3);
            g.textAlign = "left";
            g.fillText(fit(g, name, longest + 4), 0, 0);
            g.restore();
        });
    }
    cursor(g) {
        const { cell } = this.box;
        const [x, y] = [this.at.column * cell.width, this.at.row * cell.height];
        const [w, h] = [Math.max(cell.width, 4), Math.max(cell.height, 4)];
        g.lineWidth = 4;
        g.strokeStyle = css("--paper");
        g.strokeRect(x, y, w, h);
        g.lineWidth = 2;
        g.strokeStyle = css("--ink");
        g.strokeRect(x, y, w, h);
    }

    select(row, column, quiet) {
        this.at = { row, column };
        this.draw();
        if (!quiet) this.choose(row, column);
    }
    point(event) {
        if (!this.picture) return;
        const { left, top } = this.canvas.getBoundingClientRect();
        const column = Math.floor((event.clientX - left - this.box.left) / this.box.cell.width);
        const row = Math.floor((event.clientY - top - this.box.top) / this.box.cell.height);
        this.select(clamp(row, this.picture.rows), clamp(column, this.picture.columns));
    }
    key(event) {
        if (!this.picture || event.ctrlKey || event.metaKey || event.altKey) return;
        const { rows, columns } = this.picture;
        const far = 8;
        const { row, column } = this.at;
        const to = {
            ArrowUp: [row - 1, column], ArrowDown: [row + 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1],
            PageUp: [row - far, column], PageDown: [row + far, column], Home: [row, 0], End: [row, columns - 1],
        }[event.key];
        if (!to) return;
        event.preventDefault();
        this.select(clamp(to[0], rows), clamp(to[1], columns));
    }
}

const clamp = (value, end) => Math.max(0, Math.min(end - 1, value));

function fit(g, name, width) {
    let short = name;
    while (short.length > 1 && g.measureText(short).width > width) short = short.slice(0, short.endsWith("…") ? -2 : -1) + "…";
    return short;
}

// One pixel for each cell; the browser scales it.
function pixels(rows, columns, color) {
    const image = new ImageData(columns, rows);
    for (let r = 0, i = 0; r < rows; r++)
        for (let c = 0; c < columns; c++, i += 4) {
            image.data.set(color(r, c), i);
            image.data[i + 3] = 255;
        }
    const canvas = el("canvas", { width: columns, height: rows });
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
}

// A legend: [[css colour, what it means], ...]
export const legend = (entries) =>
    el("ul", { class: "legend" }, entries.map(([color, meaning]) => {
        const swatch = el("span", { class: "swatch" });
        swatch.style.background = Array.isArray(color) ? text(color) : color;
        return el("li", {}, swatch, meaning);
    }));
