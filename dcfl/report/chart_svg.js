"use strict";
// A chart as an SVG file. Charts are painted on canvases; here they are painted once more while
// what is painted is written down.

const dcflSvg = (() => {
  const { element } = dcflParts;
  const FAMILY = "Helvetica, Arial, sans-serif";
  const PATHS = ["moveTo", "lineTo", "arc", "rect", "bezierCurveTo", "closePath"];
  const near = (value) => Math.round(100 * value) / 100;
  const escaped = (text) => String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

  const SEGMENTS = {
    moveTo: (x, y) => `M${near(x)} ${near(y)}`,
    lineTo: (x, y) => `L${near(x)} ${near(y)}`,
    rect: (x, y, width, height) => `M${near(x)} ${near(y)}h${near(width)}v${near(height)}h${near(-width)}z`,
    bezierCurveTo: (...places) => `C${places.map(near).join(" ")}`,
    closePath: () => "z",
    arc: (x, y, radius) => { // charts have whole circles alone
      const [r, across] = [near(radius), near(2 * radius)];
      return `M${near(x - radius)} ${near(y)}a${r} ${r} 0 1 0 ${across} 0a${r} ${r} 0 1 0 ${-across} 0z`;
    },
  };

  // "#33383d" or "rgba(1, 2, 3, 0.5)", as attributes that programs other than browsers know.
  function paint(which, style, alpha) {
    const [red, green, blue, own = 1] = style.startsWith("#") ? [1, 3, 5].map((at) => parseInt(style.slice(at, at + 2), 16)) : style.match(/[\d.]+/g).map(Number);
    const opacity = near(own * alpha);
    return `${which}="rgb(${red},${green},${blue})"${opacity < 1 ? ` ${which}-opacity="${opacity}"` : ""}`;
  }

  // Runs `draw` and returns what it paints on the canvas, as elements.
  async function recorded(canvas, draw) {
    const context = canvas.getContext("2d");
    const { Path2D } = window;
    const parts = [];
    let clips = []; // of the groups that are open
    const levels = []; // how many were open at each save()
    let path = "";
    class Written extends Path2D {
      constructor(from) {
        super(from);
        this.d = from?.d ?? "";
      }
    }
    // The first line of a path begins it.
    const longer = (d, name, values) => d + SEGMENTS[d || name !== "lineTo" ? name : "moveTo"](...values);
    for (const name of PATHS) {
      Written.prototype[name] = function (...values) {
        this.d = longer(this.d, name, values);
        return Path2D.prototype[name].apply(this, values);
      };
    }
    const matrix = () => {
      const { a, b, c, d, e, f } = context.getTransform();
      const values = [a, b, c, d, e, f].map((value) => Math.round(1e4 * value) / 1e4).join(" ");
      return values === "1 0 0 1 0 0" ? "" : ` transform="matrix(${values})"`;
    };
    const filled = () => paint("fill", context.fillStyle, context.globalAlpha);
    const stroked = () => {
      const dashes = context.getLineDash();
      return `fill="none" ${paint("stroke", context.strokeStyle, context.globalAlpha)} stroke-width="${near(context.lineWidth)}" stroke-linejoin="round"${dashes.length ? ` stroke-dasharray="${dashes.map(near).join(" ")}"` : ""}`;
    };
    const box = (x, y, width, height) => `<rect x="${near(x)}" y="${near(y)}" width="${near(width)}" height="${near(height)}"`;
    const writers = {
      beginPath: () => { path = ""; },
      fill: (shape) => parts.push(`<path d="${shape?.d ?? path}" ${filled()}${matrix()}/>`),
      stroke: (shape) => context.lineWidth && parts.push(`<path d="${shape?.d ?? path}" ${stroked()}${matrix()}/>`),
      fillRect: (...place) => parts.push(`${box(...place)} ${filled()}${matrix()}/>`),
      strokeRect: (...place) => parts.push(`${box(...place)} ${stroked()}${matrix()}/>`),
      fillText: (text, x, y) => {
        const anchor = { center: "middle", right: "end", end: "end" }[context.textAlign] ?? "start";
        const size = parseFloat(context.font.match(/([\d.]+)px/)[1]);
        const down = { top: 0.85, middle: 0.35, bottom: -0.15 }[context.textBaseline] ?? 0;
        parts.push(`<text x="${near(x)}" y="${near(y + down * size)}" font-size="${near(size)}" text-anchor="${anchor}" ${filled()}${matrix()}>${escaped(text)}</text>`);
      },
      clip: (shape) => {
        const id = `clip-${(recorded.clips = (recorded.clips ?? 0) + 1)}`;
        parts.push(`<clipPath id="${id}"><path d="${shape?.d ?? path}"${matrix()}/></clipPath><g clip-path="url(#${id})">`);
        clips.push(id);
      },
      save: () => levels.push(clips.length),
      restore: () => {
        const kept = levels.pop() ?? 0;
        parts.push("</g>".repeat(clips.length - kept));
        clips = clips.slice(0, kept);
      },
    };
    for (const name of PATHS) writers[name] = (...values) => { path = longer(path, name, values); };
    for (const [name, write] of Object.entries(writers)) {
      context[name] = (...values) => {
        write(...values);
        return CanvasRenderingContext2D.prototype[name].apply(context, values);
      };
    }
    window.Path2D = Written;
    try {
      draw();
      await new Promise((done) => setTimeout(done)); // uPlot paints when the script has ended
    } finally {
      window.Path2D = Path2D;
      Object.keys(writers).forEach((name) => delete context[name]);
    }
    return parts.join("\n") + "</g>".repeat(clips.length);
  }

  // Titles of panels and the legend: what a figure says outside its canvases.
  function words(place, within) {
    const colour = (node, name) => paint(name, getComputedStyle(node)[name === "fill" ? "color" : "stroke"], 1);
    const text = (node) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      const { left, top, height } = range.getBoundingClientRect();
      const size = parseFloat(getComputedStyle(node).fontSize);
      return `<text x="${near(left - within.left)}" y="${near(top - within.top + height / 2 + 0.35 * size)}" font-size="${near(size)}" ${colour(node, "fill")}>${escaped(node.textContent)}</text>`;
    };
    const entries = [...place.querySelectorAll(".legend button[aria-pressed=true]")].flatMap((button) => {
      const mark = button.querySelector(".key");
      const { left, top, width, height } = mark.getBoundingClientRect();
      const [x, y] = [left - within.left, top - within.top + height / 2];
      const line = mark.querySelector("line");
      const drawn = line
        ? `<line x1="${near(x)}" x2="${near(x + width)}" y1="${near(y)}" y2="${near(y)}" ${colour(line, "stroke")} stroke-width="2.5" stroke-dasharray="${line.getAttribute("stroke-dasharray") || "none"}"/>`
        : `<circle cx="${near(x + width / 2)}" cy="${near(y)}" r="${near(width / 2)}" ${paint("fill", getComputedStyle(mark).backgroundColor, 1)}/>`;
      return [drawn, text(button.querySelector("span"))];
    });
    return [...entries, ...[...place.querySelectorAll("h4:not([hidden])")].map(text)];
  }

  async function svgOf(place, chart) {
    const boxes = [...place.querySelectorAll(".legend, h4:not([hidden]), canvas")].map((node) => node.getBoundingClientRect()).filter(({ height }) => height);
    const { left: start, width: across } = place.getBoundingClientRect();
    const top = Math.min(...boxes.map((box) => box.top));
    const within = { left: start, top, width: across, height: Math.max(...boxes.map((box) => box.bottom)) - top };
    const parts = words(place, within);
    for (const { canvas, draw } of chart.canvases()) {
      const { left, top: above, width, height } = canvas.getBoundingClientRect();
      const inner = await recorded(canvas, draw);
      parts.push(`<svg x="${near(left - within.left)}" y="${near(above - top)}" width="${near(width)}" height="${near(height)}" viewBox="0 0 ${canvas.width} ${canvas.height}">\n${inner}\n</svg>`);
    }
    const size = `width="${near(within.width)}" height="${near(within.height)}" viewBox="0 0 ${near(within.width)} ${near(within.height)}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="${FAMILY}">\n<rect width="100%" height="100%" fill="white"/>\n${parts.join("\n")}\n</svg>\n`;
  }

  // On white, whatever the page is on.
  async function download(figure, place, chart) {
    const root = document.documentElement;
    const chosen = root.dataset.theme;
    const show = (theme) => {
      if (theme) root.dataset.theme = theme;
      else delete root.dataset.theme;
      document.dispatchEvent(new Event("dcfl-theme"));
    };
    show("light");
    try {
      const title = figure.querySelector("h3")?.textContent || figure.dataset.chart;
      const name = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 80);
      const file = new Blob([await svgOf(place, chart)], { type: "image/svg+xml" });
      const link = element("a", { href: URL.createObjectURL(file), download: `${name || "figure"}.svg` });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } finally {
      show(chosen);
    }
  }

  function button(figure, place, chart) {
    const node = element("button", { type: "button", className: "save", textContent: "SVG", title: "Download this chart as SVG" });
    node.setAttribute("aria-label", "Download this chart as SVG");
    node.addEventListener("click", () => download(figure, place, chart));
    return node;
  }

  return { button, svgOf };
})();
