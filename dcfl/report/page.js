"use strict";
// What every page of dcfl does: the theme, tables that sort, and charts.

const dcflPage = (() => {
  const MISSING = ["", "–"];

  // The number that a cell begins with: "+3.00 ± 1.41", "1,234", "12 of 24", "−2.5"; or null.
  function leadingNumber(text) {
    const found = text.replace(/,(?=\d{3})/g, "").replace("\u2212", "-").match(/^[+-]?\d+(\.\d+)?(e[+-]?\d+)?/);
    return found ? Number(found[0]) : null;
  }

  const cellText = (row, column) => (row.cells[column]?.textContent ?? "").trim().replace(/\s+/g, " ");

  // Cells without a value stay at the end in both directions; equal ones keep their order.
  function sortRows(rows, column, direction) {
    const texts = new Map(rows.map((row) => [row, cellText(row, column)]));
    const known = rows.filter((row) => !MISSING.includes(texts.get(row)));
    const missing = rows.filter((row) => MISSING.includes(texts.get(row)));
    const numeric = known.every((row) => leadingNumber(texts.get(row)) !== null);
    const compare = numeric
      ? (a, b) => leadingNumber(texts.get(a)) - leadingNumber(texts.get(b))
      : (a, b) => texts.get(a).localeCompare(texts.get(b), "en", { numeric: true });
    const sign = direction === "ascending" ? 1 : -1;
    return [...known.sort((a, b) => sign * compare(a, b)), ...missing];
  }

  // A click on a head sorts: first descending, then ascending, then as it was.
  function makeSortable(table, sorted = null) {
    const heads = [...table.tHead.rows[0].cells];
    const [body] = table.tBodies;
    const original = [...body.rows];
    if (original.length < 2) return;
    table.classList.add("sorts");
    const apply = (column, direction) => {
      heads.forEach((head, at) => {
        if (at === column && direction) head.setAttribute("aria-sort", direction);
        else head.removeAttribute("aria-sort");
      });
      body.append(...(direction ? sortRows([...original], column, direction) : original));
    };
    const next = { descending: "ascending", ascending: null };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      head.querySelectorAll("br").forEach((end) => end.before(" ")); // phones show it on one line
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const direction = head.getAttribute("aria-sort");
        apply(column, direction ? next[direction] : "descending");
      });
    });
    if (sorted) apply(sorted.column, sorted.direction);
  }

  function sortingOf(table) {
    const heads = table.tHead ? [...table.tHead.rows[0].cells] : [];
    const column = heads.findIndex((head) => head.hasAttribute("aria-sort"));
    return column < 0 ? null : { column, direction: heads[column].getAttribute("aria-sort") };
  }

  function addThemeButton() {
    const root = document.documentElement;
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const button = document.createElement("button");
    button.type = "button";
    button.className = "theme";
    const show = () => {
      button.textContent = isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", isDark() ? "Show on white" : "Show on black");
      document.dispatchEvent(new Event("dcfl-theme"));
    };
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      show();
    });
    system.addEventListener("change", show);
    let chosen; // paper is white, and charts are painted
    window.addEventListener("beforeprint", () => {
      chosen = root.dataset.theme;
      root.dataset.theme = "light";
      show();
    });
    window.addEventListener("afterprint", () => {
      if (chosen) root.dataset.theme = chosen;
      else delete root.dataset.theme;
      show();
    });
    document.body.prepend(button);
    show();
  }

  // Tables and charts inside `part`; `earlier` has the sorting of tables that stood there before.
  function enliven(part, earlier = []) {
    [...part.querySelectorAll("table")].filter((table) => table.tHead).forEach((table, at) => makeSortable(table, earlier[at]));
    for (const figure of part.querySelectorAll("figure[data-chart]")) {
      if (!figure.dcflChart) figure.dcflChart = dcflCharts.mount(figure, chartOf(figure));
    }
  }

  const chartOf = (figure) => JSON.parse(figure.querySelector("script").textContent);

  function start() {
    document.documentElement.classList.add("scripted");
    addThemeButton();
    enliven(document.body);
  }

  return { start, enliven, chartOf, sortingOf, leadingNumber };
})();
