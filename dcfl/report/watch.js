// Follows runs: asks the page's own server for news and puts them in place. Charts that are there
// stay there, with their zoom and what was hidden; so do the order of tables and open details.

const dcflWatch = (() => {
  const EVERY = 2000; // milliseconds
  const LONGEST = 30000;

  const status = document.createElement("p");
  status.className = "watching";
  status.setAttribute("role", "status");

  function say(words, lost = false) {
    status.textContent = words;
    status.classList.toggle("lost", lost);
  }

  const clock = () => new Date().toLocaleTimeString("en-GB");
  const tableKey = (table) => table.tHead?.textContent.replace(/\s+/g, "") ?? "";
  const detailKey = (details) => details.querySelector("summary").firstChild.textContent.trim();

  // Figures by what they show, counted where several have one title.
  function figuresOf(part) {
    const found = new Map();
    for (const figure of part.querySelectorAll("figure[data-chart]")) {
      const title = figure.querySelector("h3")?.textContent ?? "";
      let number = 0;
      while (found.has(`${title} ${number}`)) number += 1;
      found.set(`${title} ${number}`, figure);
    }
    return found;
  }

  function keepChart(earlier, fresh) {
    const spec = dcflPage.chartOf(fresh);
    if (!earlier?.dcflChart || earlier.dcflChart.spec.kind !== spec.kind) return;
    earlier.querySelector("figcaption").replaceWith(fresh.querySelector("figcaption"));
    earlier.className = fresh.className;
    fresh.replaceWith(earlier);
    earlier.dcflChart.update(spec);
  }

  function show(news) {
    const place = document.getElementById("content");
    const fresh = new DOMParser().parseFromString(news.content, "text/html").body;
    const orders = new Map([...place.querySelectorAll("table")].map((table) => [tableKey(table), dcflPage.sortingOf(table)]));
    const open = new Set([...place.querySelectorAll("details[open]")].map(detailKey));
    const before = figuresOf(place);
    const focused = document.activeElement;
    const height = window.scrollY;
    document.title = news.title;
    const later = figuresOf(fresh);
    fresh.querySelectorAll("details").forEach((details) => (details.open ||= open.has(detailKey(details))));
    const tables = [...fresh.querySelectorAll("table")].filter((table) => table.tHead);
    const sorted = tables.map((table) => orders.get(tableKey(table)));
    const holder = document.createElement("div");
    holder.id = "content";
    holder.append(...fresh.childNodes);
    place.before(holder); // both are in the page for a moment, so that charts keep their size
    later.forEach((figure, key) => keepChart(before.get(key), figure));
    place.remove();
    dcflPage.enliven(holder, sorted);
    window.scrollTo(0, height);
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
  }

  function start(first) {
    let version = first;
    let wait = EVERY;
    document.body.prepend(status);
    say(`Following since ${clock()}`);
    async function ask() {
      try {
        const answer = await fetch(`state?version=${encodeURIComponent(version)}`, { cache: "no-store" });
        if (!answer.ok) throw new Error(answer.statusText);
        const began = performance.now();
        const news = await answer.json();
        if (news.version !== version) {
          show(news);
          version = news.version;
          say(`Following; last news at ${clock()}`);
        } else if (status.classList.contains("lost")) say(`Following; nothing new at ${clock()}`);
        wait = Math.max(EVERY, 10 * (performance.now() - began));
      } catch {
        wait = Math.min(LONGEST, 2 * wait);
        say("dcfl watch does not answer: it has ended, or is busy. What is below was its last word.", true);
      }
      setTimeout(ask, wait);
    }
    setTimeout(ask, EVERY);
  }

  return { start };
})();
