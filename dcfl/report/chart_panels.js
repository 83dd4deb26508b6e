"use strict";
// Lines and points in panels beside each other.

const dcflPanels = (() => {
  const {
    DASHES, FONT, WHOLE, Legend, Plot, axis, axisSize, dashesOf, element, key, logRange, looseRange,
    nearestValue, percentRange, seriesColour, shortened, tickText, wholeRange, written,
  } = dcflParts;
  const NEAR = 18; // pixels from the pointer to the point that it means

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
      const inOrder = [...labels.values()].sort((a, b) => (a.colour < 0) - (b.colour < 0)); // grey is the rest
      this.legend.fill(inOrder.map((one) => ({ label: one.label, mark: key(one.colour, one.style === "points", one.dash ?? dashesOf(one.colour)) })));
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
      const { y } = this.spec;
      const x = panel.x ?? this.spec.x;
      const tables = panel.series.map((one) => sparse(one.x, one.y));
      const series = panel.series.map((one) => this.seriesOf(one));
      const above = (floor) => (self, low, high) => [floor, looseRange(self, floor, high)[1]];
      const range = ({ low, high, floor, log, percent }, whenLog) => (low !== undefined ? () => [low, high] : floor !== undefined ? above(floor) : log ? whenLog : percent ? percentRange : looseRange);
      const scale = (one, whenLog) => ({ range: range(one, whenLog), time: false, ...(one.log ? { distr: 3 } : {}) });
      const options = {
        series: [{}, ...series],
        axes: [
          { ...axis(x.label, tickText), ...placesOf(x), ...(x.bare ? BARE : {}) },
          { ...axis(y.label, tickText), size: axisSize, ...(y.bare ? { ...BARE, size: 24 } : {}) },
        ],
        scales: { x: scale(x, wholeRange), y: scale(y, logRange) },
        cursor: { dataIdx: nearestValue, points: { show: !panel.series.every((one) => one.style === "points") } },
        hooks: { drawAxes: [(self) => this.drawIntervals(self, panel)] },
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
      const paint = () => seriesColour(one.colour, one.colour < 0 ? 0.45 : 1);
      return { ...base, stroke: paint, width: one.colour < 0 ? 1 : 2, points: { show: one.y.length > 2 && one.y.length < 12, size: 6, stroke: paint, fill: paint } };
    }

    drawIntervals(self, panel) {
      for (const one of panel.series.filter(({ low, label }) => low && this.legend.shows(label))) {
        self.ctx.strokeStyle = seriesColour(one.colour, 0.4, one.style === "points");
        self.ctx.lineWidth = 5 * devicePixelRatio;
        one.x.forEach((x, at) => {
          if (one.low[at] === null || one.high[at] === null) return;
          const [across, bottom, top] = [[x, "x"], [one.low[at], "y"], [one.high[at], "y"]].map(([value, scale]) => self.valToPos(value, scale, true));
          self.ctx.beginPath();
          self.ctx.moveTo(across, bottom);
          self.ctx.lineTo(across, top);
          self.ctx.stroke();
        });
      }
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
      const { names, label } = panel.x ?? this.spec.x;
      return { title: `${label} ${names ? names[x] ?? "" : written(x)}`, rows };
    }

    repaint() {
      this.plots.forEach((plot) => plot.repaint());
    }

    canvases() {
      return this.plots.map((plot) => plot.recipe());
    }
  }

  const BARE = { values: () => [], ticks: { show: false } };

  // An axis of places 0, 1, 2 ...: their names below them, as far as there is room, or whole numbers.
  function placesOf({ names, whole, low, high }) {
    if (whole) return { incrs: WHOLE };
    if (!names) return {};
    const context = element("canvas").getContext("2d");
    const fitted = (self) => {
      context.font = FONT;
      const room = (self.width - 60) / ((high ?? names.length - 1) - (low ?? 0) || 1) - 6;
      return names.map((name) => shortened(context, name, room));
    };
    return {
      splits: () => names.map((_, at) => at),
      values: (self, splits) => splits.map((at) => fitted(self)[at] ?? ""),
      size: 32,
      grid: { show: false },
    };
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

  return { Panels };
})();
