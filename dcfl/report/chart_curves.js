"use strict";
// Curves of training, and how they differ from the first method's.

const dcflCurves = (() => {
  const {
    DASHES, WHOLE, Legend, Plot, axis, axisSize, colour, curveDash, element, key, logRange,
    looseRange, marks, nearestValue, percentRange, seriesColour, tickText, wholeRange, written,
  } = dcflParts;
  const EMA = 0.9; // the smoothing whose result runs record

  // The exponential moving average that runs record: the first value starts it, and the past keeps
  // `decay` for each round since.
  function smoothed(values, rounds, decay) {
    let state = null;
    let last = 0;
    return values.map((value, at) => {
      if (value === null || decay === 0) return value;
      state = state === null ? value : value + (state - value) * decay ** (rounds[at] - last);
      last = rounds[at];
      return state;
    });
  }

  function smoothedRun(run, quantity, decay) {
    const recorded = run.y[quantity.ema];
    if (decay === EMA && recorded?.some((value) => value !== null)) return recorded;
    return smoothed(run.y[quantity.name], run.round, decay);
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
      spec.methods.filter((one) => one.hidden).forEach((one) => this.legend.off.add(one.label)); // at first
      this.main = new Plot(place, { label, height: 340 });
      this.lead = new Plot(place, { title: "-", label: "Differences to the first method", height: 210 });
      this.sync = uPlot.sync(`curves-${(Curves.count = (Curves.count ?? 0) + 1)}`);
      this.update(spec);
    }

    update(spec) {
      const offered = JSON.stringify([spec.x, spec.y]);
      this.spec = spec;
      this.legend.fill(spec.methods.map(({ label }, index) => ({ label, mark: key(index, false, curveDash(index)) })));
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
      spec.methods.forEach((method, index) => this.addMethod(method, index, { tables, series, bands, shown }));
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

    // Every run pale, their mean bold, and a band from the lowest to the highest.
    addMethod({ label, runs }, index, { tables, series, bands, shown }) {
      const { spec, choice } = this;
      const quantity = this.quantity();
      const show = this.legend.shows(label);
      const line = { show, stroke: () => seriesColour(index), dash: DASHES[curveDash(index)] };
      const several = runs.filter((run) => run.counted).length > 1;
      const pale = { width: 1, dash: [], stroke: () => seriesColour(index, spec.methods.length > 4 ? 0.25 : 0.4) };
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
      series.push({ ...line, width: spec.methods.length > 4 ? 1.6 : 2.2, points: this.dots(index, table[0].length) });
      if (several) {
        const edge = { ...line, stroke: "transparent", width: 0, points: { show: false } };
        series.push({ ...edge }, { ...edge });
        bands.push({ series: [at + 2, at + 1], fill: () => seriesColour(index, spec.methods.length > 4 ? 0.08 : 0.15) });
      }
      if (show && table[0].length) shown.push({ label, index, at, several });
    }

    dots(index, length) {
      const { length: count } = this.spec.methods;
      return { show: length === 1 || count > 1, size: 6, filter: marks(index, count), fill: () => seriesColour(index) };
    }

    // Marks the best round of a single method, which its smoothed curve does not show.
    ring(self, quantity) {
      const { methods } = this.spec;
      if (methods.length > 1 || !quantity.percent || !this.legend.shows(methods[0].label)) return;
      for (const run of methods[0].runs.filter((one) => one.counted)) {
        const points = [...pointsByRound(run, this.choice.x, run.y[quantity.name]).values()];
        if (!points.length) continue;
        const [x, y] = points.reduce((best, point) => (point[1] > best[1] ? point : best));
        const inside = (value, { min, max }) => value >= min && value <= max;
        if (!inside(x, self.scales.x) || !inside(y, self.scales.y)) continue; // zoomed away
        self.ctx.beginPath();
        self.ctx.arc(self.valToPos(x, "x", true), self.valToPos(y, "y", true), 4.5 * devicePixelRatio, 0, 2 * Math.PI);
        self.ctx.strokeStyle = seriesColour(0);
        self.ctx.lineWidth = 1.5 * devicePixelRatio;
        self.ctx.stroke();
      }
    }

    // Method minus the first, seed by seed, then the mean: curves that overlap come apart.
    leads(quantity) {
      const { spec, choice } = this;
      const [reference, ...others] = spec.methods;
      return others.map(({ label, runs }, at) => {
        const pairs = runs.flatMap((run) => reference.runs.filter((one) => one.seed === run.seed && one.counted && run.counted).slice(0, 1).map((one) => [run, one]));
        const leads = pairs.map(([run, one]) => {
          const [mine, theirs] = [run, one].map((each) => pointsByRound(each, "round", smoothedRun(each, quantity, choice.smoothing)));
          return new Map([...mine].filter(([round]) => theirs.has(round)).map(([round, [x, y]]) => [round, [x, y - theirs.get(round)[1]]]));
        });
        return { label, index: at + 1, table: meanOf(leads), several: leads.length > 1 };
      }).filter(({ table }) => table[0].length);
    }

    drawLead() {
      const { spec } = this;
      const [reference] = spec.methods;
      const quantity = this.quantity();
      const lines = this.leads(quantity);
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
        const line = { show: this.legend.shows(label), stroke: () => seriesColour(index), dash: DASHES[curveDash(index)] };
        const at = series.length;
        const edge = { ...line, stroke: "transparent", width: 0, points: { show: false } };
        series.push({ ...line, width: 2, points: this.dots(index, 2) }, { ...edge }, { ...edge });
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
        return { key: key(index, false, curveDash(index)), label, value: value(at, place) + range, height: self.data[at][place] ?? -Infinity };
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

    canvases() {
      return [this.main, ...(this.lead.holder.hidden ? [] : [this.lead])].map((plot) => plot.recipe());
    }
  }

  return { Curves, smoothed };
})();
