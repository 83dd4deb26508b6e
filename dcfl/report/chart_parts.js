"use strict";
// What charts are made of: colours, the box beside the pointer, the legend, one uPlot.

const dcflParts = (() => {
  const COLOURS = 7;
  const DOT_COLOURS = 10;
  const DASHES = [[], [8, 5], [2, 4], [12, 4, 2, 4], [16, 4]];
  const MARKED = 6; // places on a curve that lies on another
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  const LEAST_POINTS = 5; // percentage points on an axis; fewer would make noise look like progress

  // ---- Small helpers

  function element(tag, properties = {}, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  // Canvases need colours resolved for the present theme.
  const resolved = new Map();
  document.addEventListener("dcfl-theme", () => resolved.clear());
  function colour(name, opacity = 1) {
    if (!resolved.has(name)) {
      const probe = document.body.appendChild(element("i", { hidden: true }));
      probe.style.color = `var(--${name})`;
      resolved.set(name, getComputedStyle(probe).color);
      probe.remove();
    }
    const [red, green, blue] = resolved.get(name).match(/[\d.]+/g);
    return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
  }
  // Lines that have run out of colours get dashes; dots cannot, and have three colours more.
  const colourName = (index, dot = false) => (index < 0 ? "bar" : `series-${index % (dot ? DOT_COLOURS : COLOURS)}`);
  const seriesColour = (index, opacity, dot = false) => colour(colourName(index, dot), opacity);
  const dashesOf = (index) => Math.floor(Math.max(index, 0) / COLOURS) % DASHES.length;
  // Curves of methods may lie on each other: each has dashes and dots in places of its own.
  const curveDash = (index) => index % DASHES.length;
  const marks = (index, count) => (self, series) => {
    const known = [...self.data[series].keys()].filter((at) => self.data[series][at] != null);
    const step = Math.max(1, known.length / MARKED);
    const own = [...Array(MARKED).keys()].map((place) => known[Math.floor((place + (index + 0.5) / count) * step)]);
    return known.length === 1 ? known : own.filter((at) => at !== undefined);
  };

  function key(index, dot = false, dash = dashesOf(index)) {
    const paint = `var(--${colourName(index, dot)})`;
    if (dot) {
      const node = element("i", { className: "key dot" });
      node.style.background = paint;
      return node;
    }
    const [node, line] = ["svg", "line"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
    const set = (one, values) => Object.entries(values).forEach(([name, value]) => one.setAttribute(name, value));
    set(node, { class: "key", viewBox: "0 0 30 4" });
    set(line, { x1: 0, x2: 30, y1: 2, y2: 2, "stroke-width": 3, "stroke-dasharray": DASHES[dash].join(" ") });
    line.style.stroke = paint;
    node.append(line);
    return node;
  }

  function written(value, digits) {
    if (value === null || value === undefined) return "–";
    const places = digits ?? (Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 10 ? 2 : 3);
    const text = value.toLocaleString("en", { minimumFractionDigits: digits ?? 0, maximumFractionDigits: places });
    return text.replace("-", "\u2212");
  }

  function shortened(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let kept = text;
    while (kept && context.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
    return `${kept}…`;
  }

  // ---- The box beside the pointer

  class Tip {
    constructor(holder) {
      this.holder = holder;
      this.box = holder.appendChild(element("div", { className: "tip", hidden: true }));
      this.box.setAttribute("role", "status");
    }
    // Rows are {key, label, value}; left and top are within the holder.
    show(title, rows, left, top) {
      const lines = rows.map((row) =>
        element("div", {}, ...(row.key ? [row.key] : []), element("span", { textContent: row.label }), element("span", { textContent: row.value })));
      this.box.replaceChildren(element("b", { textContent: title }), ...lines);
      this.box.hidden = false;
      const room = this.holder.clientWidth - this.box.offsetWidth;
      const beside = left + 16 <= room ? left + 16 : left - this.box.offsetWidth - 16;
      this.box.style.left = `${Math.max(0, Math.min(beside, room))}px`;
      this.box.style.top = `${Math.max(0, top - this.box.offsetHeight - 8)}px`;
    }
    hide() {
      this.box.hidden = true;
    }
  }

  // ---- The legend: buttons that show and hide

  class Legend {
    constructor(place, onChange) {
      this.place = place;
      this.off = new Set();
      this.onChange = onChange;
    }
    fill(entries) {
      const buttons = entries.map(({ label, mark }) => {
        const button = element("button", { type: "button" }, mark, element("span", { textContent: label }));
        button.setAttribute("aria-pressed", String(!this.off.has(label)));
        button.addEventListener("click", () => {
          if (!this.off.delete(label)) this.off.add(label);
          button.setAttribute("aria-pressed", String(!this.off.has(label)));
          this.onChange();
        });
        return button;
      });
      this.place.replaceChildren(...(buttons.length > 1 ? buttons : []));
    }
    shows(label) {
      return !this.off.has(label);
    }
  }

  // ---- One uPlot

  function axis(label, values) {
    return {
      label, values, font: FONT, labelFont: FONT, labelGap: 2, labelSize: label ? 20 : 0, size: 32,
      stroke: () => colour("soft"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { stroke: () => colour("line"), width: 1, size: 5 },
    };
  }

  const WHOLE = [1, 2, 5].flatMap((digit) => [...Array(7).keys()].map((power) => digit * 10 ** power)).sort((a, b) => a - b);
  const tickText = (_, splits) => splits.map((split) => (split === null ? "" : written(split)));

  // As wide as its longest number.
  function axisSize(self, values) {
    const longest = Math.max(1, ...(values ?? []).map((value) => String(value).length));
    return Math.min(72, 20 + 7 * longest);
  }

  // A y axis in percent: some room around the values, and never a hair's breadth high.
  function percentRange(_, low, high) {
    if (low === null || high === null) return [0, 100];
    const margin = Math.max(0.06 * (high - low), (LEAST_POINTS - (high - low)) / 2);
    return [Math.max(0, low - margin), Math.min(100, high + margin)];
  }

  function looseRange(_, low, high) {
    if (low === null || high === null) return [0, 1];
    const margin = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
    return [low - margin, high + margin];
  }

  function logRange(_, low, high) {
    return low === null || high === null ? [1, 10] : low === high ? [low / 2, 2 * high] : [low / 1.1, high * 1.1];
  }

  function wholeRange(_, low, high) {
    if (low === null || high === null) return [0, 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  // A uPlot in its holder, which follows the holder's width, the theme and the arrow keys.
  // `read(plot)` returns {title, rows} for what is under the cursor, or null.
  class Plot {
    constructor(place, { title, label, height }) {
      this.heading = place.appendChild(element("h4", { textContent: title ?? "", hidden: !title }));
      this.holder = place.appendChild(element("div", { className: "holder", tabIndex: 0 }));
      this.holder.setAttribute("role", "img");
      this.holder.setAttribute("aria-label", label);
      this.height = height;
      this.zoomed = false;
      this.tip = new Tip(this.holder);
      this.holder.addEventListener("keydown", (event) => this.step(event));
      this.holder.addEventListener("blur", () => this.tip.hide());
      new ResizeObserver(() => this.fit()).observe(this.holder);
    }

    draw(options, data, read, onZoom = () => {}) {
      const kept = this.zoomed && this.plot ? { ...this.plot.scales.x } : null;
      this.plot?.destroy();
      this.read = read;
      this.onZoom = onZoom;
      this.plot = new uPlot({
        width: this.width(), height: this.height,
        ...options,
        legend: { show: false },
        cursor: { drag: { x: true, y: true, uni: 40 }, ...options.cursor },
        hooks: {
          ...options.hooks,
          setCursor: [() => this.point()],
          setSelect: [(self) => self.select.width > 0 && this.setZoomed(true)],
          ready: [(self) => self.over.addEventListener("dblclick", () => this.setZoomed(false))],
        },
      }, data, this.holder);
      this.holder.prepend(this.plot.root);
      if (kept) this.plot.setScale("x", { min: kept.min, max: kept.max });
      else this.setZoomed(false);
    }

    width() {
      return Math.max(200, this.holder.clientWidth);
    }
    fit() {
      if (this.plot && this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: this.height });
    }
    setZoomed(zoomed) {
      this.zoomed = zoomed;
      this.onZoom(zoomed);
    }
    resetZoom() {
      this.setZoomed(false);
      this.plot.setData(this.plot.data);
    }
    point() {
      const { left, top } = this.plot.cursor;
      const found = left >= 0 ? this.read(this.plot) : null;
      if (!found) return this.tip.hide();
      const box = this.plot.over;
      return this.tip.show(found.title, found.rows, box.offsetLeft + (found.left ?? left), box.offsetTop + (found.top ?? top));
    }
    step(event) {
      const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.plot.setCursor({ left: -10, top: -10 });
      if (!direction || !this.plot) return;
      event.preventDefault();
      const xs = this.plot.data[0];
      const last = xs.length - 1;
      const from = this.plot.cursor.left >= 0 ? this.plot.cursor.idx ?? 0 : direction > 0 ? -1 : last + 1;
      const at = Math.max(0, Math.min(last, from + direction));
      this.plot.setCursor({ left: this.plot.valToPos(xs[at], "x"), top: this.plot.over.clientHeight / 2 });
    }
    repaint() {
      this.plot?.redraw(false);
    }
    recipe() {
      return { canvas: this.plot.ctx.canvas, draw: () => this.plot.redraw() };
    }
  }

  // The index of the series' own value nearest to the cursor: curves have values at different x.
  function nearestValue(self, series, closest, x) {
    const [xs] = self.data;
    const values = self.data[series];
    if (values[closest] != null) return closest;
    let before = closest;
    let after = closest;
    while (before >= 0 && values[before] == null) before -= 1;
    while (after < xs.length && values[after] == null) after += 1;
    if (before < 0) return after < xs.length ? after : closest;
    if (after >= xs.length) return before;
    return x - xs[before] <= xs[after] - x ? before : after;
  }

  return {
    DASHES, FONT, WHOLE, Legend, Plot, Tip, axis, axisSize, colour, curveDash, dashesOf, element, key,
    logRange, looseRange, marks, nearestValue, percentRange, seriesColour, shortened, tickText,
    wholeRange, written,
  };
})();
