"use strict";
// A matrix of counts, gains or scores, as shades with numbers.

const dcflMatrix = (() => {
  const {
    FONT, Tip, colour, element, shortened, written,
  } = dcflParts;

  const SIZES = 46; // pixels of the bars above
  const LABELS = 150; // pixels of names beside, at most

  class Matrix {
    constructor(place, spec, label) {
      this.holder = place.appendChild(element("div", { className: "holder", tabIndex: 0 }));
      this.holder.setAttribute("role", "img");
      this.holder.setAttribute("aria-label", label);
      this.canvas = this.holder.appendChild(element("canvas"));
      this.tip = new Tip(this.holder);
      this.cell = null;
      this.canvas.addEventListener("pointermove", (event) => this.select(this.cellAt(event)));
      this.canvas.addEventListener("pointerdown", (event) => this.select(this.cellAt(event)));
      this.holder.addEventListener("pointerleave", () => this.select(null));
      this.holder.addEventListener("blur", () => this.select(null));
      this.holder.addEventListener("keydown", (event) => this.step(event));
      new ResizeObserver(() => this.holder.clientWidth !== this.width && this.repaint()).observe(this.holder);
      this.update(spec);
    }

    update(spec) {
      this.spec = spec;
      const { cells } = spec;
      const sum = (values) => values.reduce((total, value) => total + (value ?? 0), 0);
      this.rowSums = cells.map(sum);
      this.columnSums = spec.columns.map((_, at) => sum(cells.map((row) => row[at])));
      const known = cells.flat().filter(Number.isFinite);
      this.most = Math.max(1e-9, ...known.map(Math.abs));
      this.least = Math.min(this.most, ...known);
      this.counts = spec.shade !== "range"; // which have sums, and none is nothing
      this.repaint();
    }

    // From 0 to 1: how deep a cell's colour is.
    depth(row, column) {
      const value = this.spec.cells[row][column];
      if (this.spec.shade === "row") return this.rowSums[row] ? value / this.rowSums[row] : 0;
      if (this.spec.shade === "range") return (value - this.least) / (this.most - this.least || 1);
      return Math.sqrt(value / this.most); // a few samples stay visible beside hundreds
    }

    layout() {
      const { rows, columns } = this.spec;
      const context = this.canvas.getContext("2d");
      context.font = FONT;
      this.width = this.holder.clientWidth;
      const widest = Math.max(...rows.map((name) => context.measureText(name).width));
      this.left = Math.ceil(Math.min(LABELS, 0.3 * this.width, widest)) + 26;
      this.top = this.spec.sizes ? SIZES + 8 : 4;
      const across = (this.width - this.left - 2) / columns.length;
      this.cellWidth = Math.min(across, Math.max(this.spec.sizes ? 60 : 44, 240 / columns.length));
      const tall = this.spec.sizes ? 22 : Math.max(Math.min(this.cellWidth * 0.7, 40), 18);
      this.cellHeight = Math.max(3, Math.min(tall, 460 / rows.length));
      const names = Math.max(...columns.map((name) => context.measureText(name).width));
      this.turned = names > this.cellWidth * 2 && columns.length > 4;
      this.below = (this.turned ? Math.min(names, 90) : 16) + 26;
      this.height = this.top + rows.length * this.cellHeight + this.below;
    }

    repaint() {
      this.layout();
      const ratio = devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * ratio);
      this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.width = `${this.width}px`;
      this.canvas.style.height = `${this.height}px`;
      this.canvas.style.display = "block";
      const context = this.canvas.getContext("2d");
      context.scale(ratio, ratio);
      context.font = FONT;
      this.paintCells(context);
      if (this.spec.sizes) this.paintSizes(context);
      this.paintNames(context);
      if (this.cell) this.paintFrame(context);
    }

    canvases() {
      return [{ canvas: this.canvas, draw: () => this.repaint() }];
    }

    paintCells(context) {
      const { cells, digits } = this.spec;
      const gap = Math.min(this.cellWidth, this.cellHeight) > 7 ? 1 : 0;
      const textOf = (value) => (value === null ? "" : written(value, digits));
      const widest = this.spec.numbers ? Math.max(...cells.flat().map((value) => context.measureText(textOf(value)).width)) : Infinity;
      const numbers = widest < this.cellWidth - 3 && this.cellHeight >= 13;
      cells.forEach((row, down) => row.forEach((value, across) => {
        const x = this.left + across * this.cellWidth;
        const y = this.top + down * this.cellHeight;
        const depth = value === null ? 0 : this.depth(down, across);
        context.fillStyle = value === null || (value === 0 && this.counts) ? colour("panel") : this.shadeOf(depth);
        context.fillRect(x, y, this.cellWidth - gap, this.cellHeight - gap);
        if (numbers && (value || !this.counts)) {
          context.fillStyle = colour(depth > 0.55 ? "paper" : "ink");
          context.textAlign = "center";
          context.textBaseline = "middle";
          context.fillText(textOf(value), x + this.cellWidth / 2, y + this.cellHeight / 2);
        }
      }));
    }

    shadeOf(depth) {
      const [low, high] = ["heat-low", "heat-high"].map((name) => colour(name).match(/[\d.]+/g).map(Number));
      const mixed = [0, 1, 2].map((at) => Math.round(low[at] + (high[at] - low[at]) * depth));
      return `rgb(${mixed.join(", ")})`;
    }

    paintSizes(context) {
      const most = Math.max(1, ...this.columnSums);
      const gap = this.cellWidth > 7 ? 1 : 0;
      context.fillStyle = colour("bar");
      this.columnSums.forEach((size, at) => {
        const height = (SIZES * size) / most;
        context.fillRect(this.left + at * this.cellWidth, SIZES - height + 4, this.cellWidth - gap, height);
      });
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.textBaseline = "top";
      context.fillText(written(most), this.left - 6, 2);
    }

    paintNames(context) {
      const { rows, columns, row, column } = this.spec;
      context.fillStyle = colour("soft");
      context.textAlign = "right";
      context.textBaseline = "middle";
      const every = Math.max(1, Math.ceil(14 / this.cellHeight));
      rows.forEach((name, at) => {
        if (at % every === 0) context.fillText(shortened(context, name, this.left - 26), this.left - 6, this.top + (at + 0.5) * this.cellHeight);
      });
      const bottom = this.top + rows.length * this.cellHeight + 5;
      const room = this.cellWidth >= 40 ? this.cellWidth - 6 : Infinity; // else some are left out
      const widest = Math.min(room, Math.max(...columns.map((name) => context.measureText(name).width))) + 6;
      const step = Math.max(1, Math.ceil((this.turned ? 14 : widest) / this.cellWidth));
      columns.forEach((name, at) => {
        if (at % step) return;
        const x = this.left + (at + 0.5) * this.cellWidth;
        if (this.turned) turnedText(context, shortened(context, name, 90), x, bottom, "right");
        else {
          context.textAlign = "center";
          context.textBaseline = "top";
          context.fillText(shortened(context, name, room), x, bottom);
        }
      });
      context.textAlign = "center";
      context.textBaseline = "bottom";
      context.fillText(column, this.left + (columns.length * this.cellWidth) / 2, this.height - 2);
      turnedText(context, row, 8, this.top + (rows.length * this.cellHeight) / 2, "center");
    }

    paintFrame(context) {
      const [row, column] = this.cell;
      context.strokeStyle = colour("accent");
      context.lineWidth = 2;
      context.strokeRect(this.left + column * this.cellWidth, this.top + row * this.cellHeight, this.cellWidth, this.cellHeight);
    }

    cellAt(event) {
      const box = this.canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.left - this.left) / this.cellWidth);
      const y = event.clientY - box.top;
      const row = this.spec.sizes && y < this.top ? 0 : Math.floor((y - this.top) / this.cellHeight);
      const inside = row >= 0 && row < this.spec.rows.length && column >= 0 && column < this.spec.columns.length;
      return inside ? [row, column] : null;
    }

    select(cell) {
      if (String(cell) === String(this.cell)) return;
      this.cell = cell;
      this.repaint();
      if (!cell) return this.tip.hide();
      const [row, column] = cell;
      const { spec } = this;
      const value = spec.cells[row][column];
      const title = `${spec.column} ${spec.columns[column]}, ${spec.row} ${spec.rows[row]}`;
      const share = (whole, of) => (whole ? [{ label: `of the ${written(whole)} of this ${of}`, value: `${written((100 * value) / whole, 1)} %` }] : []);
      const rows = [
        { label: spec.value, value: written(value, spec.digits) },
        ...(value === null || !this.counts ? [] : spec.shade === "row" ? share(this.rowSums[row], spec.row) : share(this.columnSums[column], spec.column)),
      ];
      return this.tip.show(title, rows, this.left + (column + 0.5) * this.cellWidth, this.top + row * this.cellHeight);
    }

    step(event) {
      const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
      if (event.key === "Escape") return this.select(null);
      const move = moves[event.key];
      if (!move) return undefined;
      event.preventDefault();
      const [row, column] = this.cell ?? [0, -move[1]];
      const within = (value, count) => Math.max(0, Math.min(count - 1, value));
      return this.select([within(row + (this.cell ? move[0] : 0), this.spec.rows.length), within(column + move[1], this.spec.columns.length)]);
    }
  }

  function turnedText(context, text, x, y, align) {
    context.save();
    context.translate(x, y);
    context.rotate(-Math.PI / 2);
    context.textAlign = align;
    context.textBaseline = "middle";
    context.fillText(text, 0, 0);
    context.restore();
  }

  return { Matrix };
})();
