"use strict";
// The charts of a page. Three kinds (dcfl/report/charts.py makes their data):
// "curves" of training, "plot" of lines and points in panels, "matrix" of counts.
// Names are other people's text: they reach the page by textContent and canvas text alone.

const dcflCharts = (() => {
  const KINDS = { curves: dcflCurves.Curves, plot: dcflPanels.Panels, matrix: dcflMatrix.Matrix };
  const charts = new Set();
  document.addEventListener("dcfl-theme", () => charts.forEach((chart) => chart.repaint()));

  function mount(figure, spec) {
    const place = dcflParts.element("div", { className: "plot" });
    figure.insertBefore(place, figure.querySelector("figcaption"));
    try {
      const chart = new KINDS[spec.kind](place, spec, figure.dataset.chart);
      charts.add(chart);
      place.after(dcflSvg.button(figure, place, chart));
      return chart;
    } catch (error) { // the others can still be drawn
      place.replaceChildren("This chart could not be drawn.");
      console.error(error);
      return null;
    }
  }

  return { mount };
})();
