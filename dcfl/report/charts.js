"use strict";
// Charts in place of the pictures of a page. Three kinds (dcfl/report/charts.py makes their data):
// "curves" of training, "plot" of lines and points in panels, "matrix" of counts.
// Names are other people's text: they reach the page by textContent and canvas text alone.

const dcflCharts = (() => {
  const COLOURS = 7;
  const DOT_COLOURS = 10;
  const DASHES = [[], [8, 5], [2, 4]];
  const BORDERS = ["solid", "dashed", "dotted"];
  const FONT = "12px system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif";
  const LEAST_POINTS = 5; // percentage points on an axis; fewer would make noise look like progress
  const NEAR = 18; // pixels from the pointer to the point that it means
  const EMA = 0.9; // the smoothing whose result runs record

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

  function key(index, dot = false, dash = dashesOf(index)) {
    const node = element("i", { className: dot ? "key dot" : "key" });
    const paint = `var(--${colourName(index, dot)})`;
    if (dot) node.style.background = paint;
    else node.style.borderTop = `3px ${BORDERS[dash]} ${paint}`;
    return node;
  }

  function written(value, digits) {
    if (value === null || value === undefined) return "–";
    const places = digits ?? (Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 10 ? 2 : 3);
    const text = value.toLocaleString("en", { minimumFractionDigits: digits ?? 0, maximumFractionDigits: places });
    return text.replace("-", "\u2212");
  }

  function finite(values) {
    return values.filter((value) => Number.isFinite(value));
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
      label, values, font: FONT, labelFont: FONT, labelGap: 2, labelSize: 20, size: 32,
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

  // ---- Curves of training

  // The exponential moving average that runs record: the first value starts it. Where points were
  // left out (`steps` apart), a point stands for those before it.
  function smoothed(values, steps, decay) {
    let state = null;
    return values.map((value, at) => {
      if (value === null || decay === 0) return value;
      const gap = at ? steps[at] - steps[at - 1] : 1;
      state = state === null ? value : value + (state - value) * decay ** gap;
      return state;
    });
  }

  function smoothedRun(run, quantity, decay) {
    const recorded = run.y[quantity.ema];
    if (decay === EMA && recorded?.some((value) => value !== null)) return recorded;
    return smoothed(run.y[quantity.name], run.steps, decay);
  }

  // The mean over runs (each a Map from round to [x, y]) where all have a value, and its band.
  function meanOf(runs) {
    const [first, ...others] = runs;
    const table = [[], [], [], []]; // x, mean, lowest, highest
    for (const [round] of first ?? []) {
      if (!others.every((run) => run.has(round))) continue;
      const points = runs.map((run) => run.get(round));
      const mean = (at) => points.reduce((sum, point) => sum + point[at], 0) / points.length;
      const heights = points.map((point) => point[1]);
      [mean(0), mean(1), Math.min(...heights), Math.max(...heights)].forEach((value, at) => table[at].push(value));
    }
    return table;
  }

  function pointsByRound(run, across, values) {
    const points = new Map();
    values.forEach((value, at) => {
      if (value !== null && run.x[across][at] !== null) points.set(run.round[at], [run.x[across][at], value]);
    });
    return points;
  }

  class Curves {
    constructor(place, spec, label) {
      this.choice = { x: spec.x[0].name, y: spec.y[0].name, smoothing: spec.y[0].smoothing };
      this.controls = place.appendChild(element("div", { className: "controls" }));
      this.legend = new Legend(place.appendChild(element("div", { className: "legend" })), () => this.draw());
      this.main = new Plot(place, { label, height: 340 });
      this.lead = new Plot(place, { title: "-", label: "Differences to the first method", height: 210 });
      this.sync = uPlot.sync(`curves-${(Curves.count = (Curves.count ?? 0) + 1)}`);
      this.update(spec);
    }

    update(spec) {
      const offered = JSON.stringify([spec.x, spec.y]);
      this.spec = spec;
      this.legend.fill(spec.methods.map(({ label }, index) => ({ label, mark: key(index) })));
      if (offered !== this.offered) this.fillControls(); // else a reader's hand may be on them
      this.offered = offered;
      this.draw();
    }

    fillControls() {
      const { spec, choice } = this;
      const select = (name, options, label, onChange) => {
        const node = element("select", {}, ...options.map((option) => element("option", { value: option.name, textContent: option.label, selected: option.name === choice[name] })));
        node.addEventListener("change", () => {
          choice[name] = node.value;
          onChange();
          this.draw();
        });
        return options.length > 1 ? [element("label", {}, label, node)] : [];
      };
      this.slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: choice.smoothing });
      this.amount = element("output", {});
      this.slider.addEventListener("input", () => {
        choice.smoothing = Number(this.slider.value);
        this.draw();
      });
      this.reset = element("button", { type: "button", textContent: "Reset zoom", hidden: true });
      this.reset.addEventListener("click", () => [this.main, this.lead].filter((plot) => plot.plot).forEach((plot) => plot.resetZoom()));
      const unzoom = () => [this.main, this.lead].forEach((plot) => (plot.zoomed = false));
      this.controls.replaceChildren(
        ...select("y", spec.y, "Show", () => {
          choice.smoothing = this.quantity().smoothing;
          this.slider.value = choice.smoothing;
          unzoom();
        }),
        ...select("x", spec.x, "over", unzoom),
        element("label", {}, "Smoothing", this.slider, this.amount),
        this.reset,
      );
    }

    quantity() {
      return this.spec.y.find((one) => one.name === this.choice.y);
    }

    draw() {
      const { choice } = this;
      const official = choice.smoothing === EMA && this.quantity().ema;
      this.amount.textContent = choice.smoothing === 0 ? "none" : choice.smoothing.toFixed(2) + (official ? " (EMA)" : "");
      this.drawMain();
      this.drawLead();
    }

    drawMain() {
      const { spec, choice } = this;
      const quantity = this.quantity();
      const across = spec.x.find((one) => one.name === choice.x);
      const tables = [];
      const series = [{}];
      const bands = [];
      const shown = []; // {label, index, at: the number of the mean's series}
      spec.methods.forEach(({ label, runs }, index) => {
        const show = this.legend.shows(label);
        const line = { show, stroke: () => seriesColour(index), dash: DASHES[dashesOf(index)] };
        const several = runs.filter((run) => run.counted).length > 1;
        const pale = { width: 1, stroke: () => seriesColour(index, spec.methods.length > 4 ? 0.25 : 0.4) };
        if (choice.smoothing > 0 || several || runs.some((run) => !run.counted)) {
          for (const run of runs) {
            const points = [...pointsByRound(run, choice.x, run.y[quantity.name]).values()];
            tables.push([points.map(([x]) => x), points.map(([, y]) => y)]);
            series.push({ ...line, ...pale, points: { show: points.length === 1 } });
          }
        }
        const table = meanOf(runs.filter((run) => run.counted).map((run) => pointsByRound(run, choice.x, smoothedRun(run, quantity, choice.smoothing))));
        const at = series.length;
        tables.push(several ? table : table.slice(0, 2));
        series.push({ ...line, width: spec.methods.length > 4 ? 1.6 : 2.2, points: { show: table[0].length === 1, fill: () => seriesColour(index) } });
        if (several) {
          const edge = { ...line, stroke: "transparent", width: 0, points: { show: false } };
          series.push({ ...edge }, { ...edge });
          bands.push({ series: [at + 2, at + 1], fill: () => seriesColour(index, spec.methods.length > 4 ? 0.08 : 0.15) });
        }
        if (show && table[0].length) shown.push({ label, index, at, several });
      });
      const data = uPlot.join(tables);
      const options = {
        series, bands,
        axes: [{ ...axis(across.label, tickText), ...(across.name === "round" ? { incrs: WHOLE } : {}) }, { ...axis(quantity.label, tickText), size: axisSize }],
        scales: { x: { time: false, range: wholeRange }, y: quantity.log ? { distr: 3, range: logRange } : { range: quantity.percent ? percentRange : looseRange } },
        cursor: { dataIdx: nearestValue, points: { size: (_, at) => (shown.some((one) => one.at === at) ? 8 : 0) }, ...this.syncing() },
        hooks: { draw: [(self) => this.ring(self, quantity)] },
      };
      this.main.draw(options, data, (self) => this.read(self, shown, across, quantity.percent ? 2 : 4), (zoomed) => this.zoom(zoomed));
    }

    // Marks the best round of a single method, which its smoothed curve does not show.
    ring(self, quantity) {
      const { methods } = this.spec;
      if (methods.length > 1 || !quantity.percent || !this.legend.shows(methods[0].label)) return;
      for (const run of methods[0].runs.filter((one) => one.counted)) {
        const points = [...pointsByRound(run, this.choice.x, run.y[quantity.name]).values()];
        if (!points.length) continue;
        const [x, y] = points.reduce((best, point) => (point[1] > best[1] ? point : best));
        self.ctx.beginPath();
        self.ctx.arc(self.valToPos(x, "x", true), self.valToPos(y, "y", true), 4.5 * devicePixelRatio, 0, 2 * Math.PI);
        self.ctx.strokeStyle = seriesColour(0);
        self.ctx.lineWidth = 1.5 * devicePixelRatio;
        self.ctx.stroke();
      }
    }

    // Method minus the first, seed by seed, then the mean: curves that overlap come apart.
    drawLead() {
      const { spec, choice } = this;
      const [reference, ...others] = spec.methods;
      const quantity = this.quantity();
      const lines = others.map(({ label, runs }, at) => {
        const pairs = runs.flatMap((run) => reference.runs.filter((one) => one.seed === run.seed && one.counted && run.counted).slice(0, 1).map((one) => [run, one]));
        const leads = pairs.map(([run, one]) => {
          const [mine, theirs] = [run, one].map((each) => pointsByRound(each, "round", smoothedRun(each, quantity, choice.smoothing)));
          return new Map([...mine].filter(([round]) => theirs.has(round)).map(([round, [x, y]]) => [round, [x, y - theirs.get(round)[1]]]));
        });
        return { label, index: at + 1, table: meanOf(leads), several: leads.length > 1 };
      }).filter(({ table }) => table[0].length);
      const visible = lines.length > 0;
      this.lead.heading.hidden = !visible;
      this.lead.holder.hidden = !visible;
      if (!visible) return;
      const unit = quantity.percent ? "points" : "loss";
      this.lead.heading.textContent = `Difference to ${reference.label}, seed by seed`;
      const series = [{}];
      const bands = [];
      const shown = [];
      for (const { label, index, several } of lines) {
        const line = { show: this.legend.shows(label), stroke: () => seriesColour(index), dash: DASHES[dashesOf(index)] };
        const at = series.length;
        const edge = { ...line, stroke: "transparent", width: 0, points: { show: false } };
        series.push({ ...line, width: 2, points: { show: false } }, { ...edge }, { ...edge });
        if (several) bands.push({ series: [at + 2, at + 1], fill: () => seriesColour(index, 0.13) });
        if (line.show) shown.push({ label, index, at, several });
      }
      const zero = (self) => {
        const y = self.valToPos(0, "y", true);
        const { left, width, top, height } = self.bbox;
        if (y < top || y > top + height) return;
        self.ctx.save();
        self.ctx.fillStyle = colour("soft");
        self.ctx.fillRect(left, Math.round(y), width, devicePixelRatio);
        self.ctx.restore();
      };
      const options = {
        series, bands,
        axes: [{ ...axis("round", tickText), incrs: WHOLE }, { ...axis(`difference (${unit})`, tickText), size: axisSize }],
        scales: { x: { time: false, range: wholeRange }, y: { range: (self, low, high) => looseRange(self, Math.min(0, low ?? 0), Math.max(0, high ?? 0)) } },
        cursor: { dataIdx: nearestValue, points: { size: (_, at) => (shown.some((one) => one.at === at) ? 8 : 0) }, ...this.syncing() },
        hooks: { drawAxes: [zero] },
      };
      const round = { name: "round", label: "round" };
      this.lead.draw(options, uPlot.join(lines.map(({ table }) => table)), (self) => this.read(self, shown, round, quantity.percent ? 2 : 4, true), (zoomed) => this.zoom(zoomed));
    }

    // Over rounds, both panels have one cursor and one zoom.
    syncing() {
      return this.choice.x === "round" ? { sync: { key: this.sync.key, scales: ["x", null] } } : {};
    }

    zoom(zoomed) {
      if (!zoomed && this.choice.x === "round") this.main.zoomed = this.lead.zoomed = false;
      if (this.reset) this.reset.hidden = !(zoomed || this.main.zoomed || this.lead.zoomed);
    }

    read(self, shown, across, digits, signed = false) {
      if (!shown.length) return null;
      const value = (series, at) => {
        const number = self.data[series][at];
        return (signed && number > 0 ? "+" : "") + written(number, digits);
      };
      const rows = shown.map(({ label, index, at, several }) => {
        const place = self.cursor.idxs[at] ?? self.cursor.idx;
        const range = several ? ` (${value(at + 1, place)} to ${value(at + 2, place)})` : "";
        return { key: key(index), label, value: value(at, place) + range, height: self.data[at][place] ?? -Infinity };
      });
      rows.sort((a, b) => b.height - a.height);
      const x = self.data[0][self.cursor.idxs[shown[0].at] ?? self.cursor.idx];
      const title = across.name === "round" ? `round ${written(x)}` : `${written(self.posToVal(self.cursor.left, "x"))} ${across.unit}`;
      return { title, rows };
    }

    repaint() {
      this.main.repaint();
      this.lead.repaint();
    }
  }

  // ---- Lines and points in panels

  class Panels {
    constructor(place, spec, label) {
      this.controls = place.appendChild(element("div", { className: "controls" }));
      this.legend = new Legend(place.appendChild(element("div", { className: "legend" })), () => this.draw());
      this.place = place.appendChild(element("div", { className: "panels" }));
      this.label = label;
      this.plots = [];
      this.reset = this.controls.appendChild(element("button", { type: "button", textContent: "Reset zoom", hidden: true }));
      this.reset.addEventListener("click", () => this.plots.forEach((plot) => plot.resetZoom()));
      this.update(spec);
    }

    update(spec) {
      this.spec = spec;
      const labels = new Map(spec.panels.flatMap(({ series }) => series.map((one) => [one.label, one])));
      this.legend.fill([...labels.values()].map((one) => ({ label: one.label, mark: key(one.colour, one.style === "points", one.dash ?? dashesOf(one.colour)) })));
      if (this.plots.length !== spec.panels.length) {
        this.place.replaceChildren();
        this.plots = spec.panels.map(({ title }) => {
          const cell = this.place.appendChild(element("div", { className: "holder" }));
          return new Plot(cell, { title, label: `${this.label} ${title ?? ""}`, height: spec.height ?? 300 });
        });
      }
      this.draw();
    }

    draw() {
      this.spec.panels.forEach((panel, at) => this.drawPanel(this.plots[at], panel));
    }

    drawPanel(plot, panel) {
      const { spec } = this;
      const tables = panel.series.map(({ x, y }) => sparse(x, y));
      const series = panel.series.map((one) => this.seriesOf(one));
      const range = ({ low, high, percent }) => (low !== undefined ? () => [low, high] : percent ? percentRange : looseRange);
      const scale = (one) => (one.log ? { distr: 3, time: false, range: one === spec.x ? wholeRange : logRange } : { range: range(one), time: false });
      const options = {
        series: [{}, ...series],
        axes: [
          { ...axis(spec.x.label, tickText), ...placesOf(spec.x), ...(spec.bare ? BARE : {}) },
          { ...axis(spec.y.label, tickText), size: axisSize, ...(spec.bare ? { ...BARE, size: 24 } : {}) },
        ],
        scales: { x: scale(spec.x), y: scale(spec.y) },
        cursor: { dataIdx: nearestValue, points: { show: !panel.series.every((one) => one.style === "points") } },
      };
      const read = panel.series.some((one) => one.notes) ? (self) => this.readPoint(self, panel) : (self) => this.readLines(self, panel);
      plot.draw(options, together(tables), read, () => {
        this.reset.hidden = !this.plots.some((one) => one.zoomed);
      });
    }

    seriesOf(one) {
      const base = { show: this.legend.shows(one.label), stroke: () => seriesColour(one.colour), dash: DASHES[one.dash ?? dashesOf(one.colour)], width: 2 };
      if (one.style === "points") {
        const size = one.y.length > 400 ? 5 : 8;
        return { ...base, paths: () => null, dash: [], points: { show: true, filter: null, size, width: 0, fill: () => seriesColour(one.colour, one.y.length > 60 ? 0.6 : 0.85, true), stroke: () => seriesColour(one.colour, 0.1, true) } };
      }
      if (one.style === "steps") {
        return { ...base, width: 1.3, paths: uPlot.paths.stepped({ align: 1 }), fill: () => seriesColour(one.colour, 0.28), points: { show: false } };
      }
      return { ...base, points: { show: one.y.length > 2 && one.y.length < 12, size: 6, fill: () => seriesColour(one.colour) } };
    }

    // The point nearest to the pointer, if it is near.
    readPoint(self, panel) {
      const { left, top } = self.cursor;
      let best = null;
      panel.series.forEach((one) => {
        if (!one.notes || !this.legend.shows(one.label)) return;
        one.x.forEach((x, at) => {
          const across = self.valToPos(x, "x");
          const down = self.valToPos(one.y[at], "y");
          const distance = Math.hypot(across - left, down - top);
          if (distance <= NEAR && distance < (best?.distance ?? Infinity)) best = { distance, one, at, across, down };
        });
      });
      if (!best) return null;
      const [title, ...lines] = best.one.notes[best.at].split("\n");
      const rows = lines.map((line) => ({ label: line, value: "" }));
      return { title, rows: [{ key: key(best.one.colour, true), label: best.one.label, value: "" }, ...rows], left: best.across, top: best.down };
    }

    readLines(self, panel) {
      const shown = panel.series.map((one, at) => ({ one, at: at + 1 })).filter(({ one }) => this.legend.shows(one.label));
      if (!shown.length) return null;
      const rows = shown.map(({ one, at }) => {
        const place = self.cursor.idxs[at] ?? self.cursor.idx;
        return { key: key(one.colour, one.style === "points", one.dash ?? dashesOf(one.colour)), label: one.label, value: written(self.data[at][place]) };
      });
      const x = self.data[0][self.cursor.idxs[shown[0].at] ?? self.cursor.idx];
      const { names, label } = this.spec.x;
      return { title: `${label} ${names ? names[x] ?? "" : written(x)}`, rows };
    }

    repaint() {
      this.plots.forEach((plot) => plot.repaint());
    }
  }

  const BARE = { values: () => [], ticks: { show: false } };

  // An axis of places 0, 1, 2 ...: their names below them, or whole numbers.
  function placesOf({ names, whole }) {
    if (whole) return { incrs: WHOLE };
    if (!names) return {};
    return { splits: () => names.map((_, at) => at), values: (_, splits) => splits.map((at) => names[at] ?? ""), grid: { show: false } };
  }

  // Points in order of x, without those that have no value.
  function sparse(x, y) {
    const points = x.map((value, at) => [value, y[at]]).filter(([across, up]) => across !== null && up !== null);
    return points.sort((a, b) => a[0] - b[0]);
  }

  // Aligned as uPlot wants it. Two points of one series may have the same x, which uPlot.join loses.
  function together(tables) {
    const rows = tables.flatMap((table, series) => table.map(([x, y]) => ({ x, y, series }))).sort((a, b) => a.x - b.x);
    const shared = [];
    for (const { x, y, series } of rows) {
      const last = shared.at(-1);
      if (last && last.x === x && !(series in last.values)) last.values[series] = y;
      else shared.push({ x, values: { [series]: y } });
    }
    return [shared.map(({ x }) => x), ...tables.map((_, series) => shared.map(({ values }) => values[series]))];
  }

  // ---- A matrix of counts

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
      this.most = Math.max(1e-9, ...finite(cells.flat()).map(Math.abs));
      this.repaint();
    }

    // From 0 to 1: how deep a cell's colour is.
    depth(row, column) {
      const value = this.spec.cells[row][column];
      if (this.spec.shade === "row") return this.rowSums[row] ? value / this.rowSums[row] : 0;
      if (this.spec.shade === "signed") return Math.abs(value) / Math.max(this.most, 0.5);
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

    paintCells(context) {
      const { cells, shade, digits } = this.spec;
      const gap = Math.min(this.cellWidth, this.cellHeight) > 7 ? 1 : 0;
      const textOf = (value) => (value === null ? "" : (shade === "signed" && value > 0 ? "+" : "") + written(value, digits));
      const widest = this.spec.numbers ? Math.max(...cells.flat().map((value) => context.measureText(textOf(value)).width)) : Infinity;
      const numbers = widest < this.cellWidth - 3 && this.cellHeight >= 13;
      cells.forEach((row, down) => row.forEach((value, across) => {
        const x = this.left + across * this.cellWidth;
        const y = this.top + down * this.cellHeight;
        const depth = value === null ? 0 : this.depth(down, across);
        context.fillStyle = value === null || (value === 0 && shade !== "signed") ? colour("panel") : this.shadeOf(value, depth);
        context.fillRect(x, y, this.cellWidth - gap, this.cellHeight - gap);
        if (numbers && (value || shade === "signed")) {
          context.fillStyle = colour(depth > 0.55 ? "paper" : "ink");
          context.textAlign = "center";
          context.textBaseline = "middle";
          context.fillText(textOf(value), x + this.cellWidth / 2, y + this.cellHeight / 2);
        }
      }));
    }

    shadeOf(value, depth) {
      const [from, to] = this.spec.shade === "signed" ? ["panel", value < 0 ? "heat-minus" : "heat-plus"] : ["heat-low", "heat-high"];
      const [low, high] = [from, to].map((name) => colour(name).match(/[\d.]+/g).map(Number));
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
        { label: spec.value, value: (spec.shade === "signed" && value > 0 ? "+" : "") + written(value, spec.digits) },
        ...(value === null || spec.shade === "signed" ? [] : spec.shade === "row" ? share(this.rowSums[row], spec.row) : share(this.columnSums[column], spec.column)),
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

  function shortened(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let kept = text;
    while (kept && context.measureText(`${kept}…`).width > room) kept = kept.slice(0, -1);
    return `${kept}…`;
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

  // ---- All of them

  const KINDS = { curves: Curves, plot: Panels, matrix: Matrix };
  const charts = new Set();
  document.addEventListener("dcfl-theme", () => charts.forEach((chart) => chart.repaint()));

  // The picture stays where a chart cannot be drawn.
  function mount(figure, spec) {
    const label = figure.dataset.chart;
    const place = element("div", { className: "plot" });
    figure.insertBefore(place, figure.querySelector("img, figcaption"));
    figure.classList.add("live");
    try {
      const chart = new KINDS[spec.kind](place, spec, label);
      charts.add(chart);
      return chart;
    } catch (error) {
      figure.classList.remove("live");
      place.remove();
      console.error(error);
      return null;
    }
  }

  return { mount, smoothed };
})();
