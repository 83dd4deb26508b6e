"use strict";
// Charts in place of the pictures of a page. Three kinds (dcfl/report/charts.py makes their data):
// "curves" of training, "plot" of lines and points in panels, "matrix" of counts.
// Names are other people's text: they reach the page by textContent and canvas text alone.

const dcflCharts = (() => {
  const KINDS = { curves: dcflCurves.Curves, plot: dcflPanels.Panels, matrix: dcflMatrix.Matrix };
  const charts = new Set();
  document.addEventListener("dcfl-theme", () => charts.forEach((chart) => chart.repaint()));

  // The picture stays where a chart cannot be drawn.
  function mount(figure, spec) {
    const label = figure.dataset.chart;
    const place = dcflParts.element("div", { className: "plot" });
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

  return { mount };
})();
