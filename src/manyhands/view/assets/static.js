// Of pages that are files: filters and a word search over the folds of the whole document, filters and sorting of tables, and folds that
// open where a link leads. Without it everything is there and opens by a click.
"use strict";
(() => {
  const PREFIX = "data-filter-";
  const FEW = 8; // values up to which each has a box to tick
  const main = document.getElementById("main");
  const make = (name, properties, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // --- Folds

  const filtersOf = (fold) => {
    const found = new Map();
    for (const { name, value } of fold.attributes) if (name.startsWith(PREFIX)) found.set(name.slice(PREFIX.length), value);
    return found;
  };
  const folds = [...main.querySelectorAll("details.fold")].map((node) => ({ node, filters: filtersOf(node), text: null }))
    .filter((fold) => fold.filters.size);
  const sections = new Set(folds.map((fold) => fold.node.closest("section")));
  const bar = document.getElementById("filters");
  const tests = []; // one for each control: whether a fold fits

  function counted(name) {
    const counts = new Map();
    for (const fold of folds) {
      const value = fold.filters.get(name) ?? "";
      counts.set(value, (counts.get(value) || 0) + 1);
    }
    return counts;
  }

  function boxes(name, counts) {
    const chosen = new Set(counts.keys());
    tests.push((fold) => chosen.has(fold.filters.get(name) ?? ""));
    const labels = [...counts].map(([value, count]) => {
      const box = make("input", { type: "checkbox", checked: true, value });
      box.dataset.filter = name;
      box.addEventListener("change", () => {
        if (box.checked) chosen.add(value); else chosen.delete(value);
        apply();
      });
      return make("label", {}, box, value || "–", make("span", { className: "count" }, count.toLocaleString("en")));
    });
    return make("fieldset", {}, make("legend", {}, name.replaceAll("-", " ")), ...labels);
  }

  function menu(name, counts) {
    const select = make("select", {}, make("option", { value: "0" }, "all"));
    select.dataset.filter = name;
    const values = [...counts.keys()].sort();
    values.forEach((value, place) => select.append(make("option", { value: String(place + 1) }, `${value || "–"} (${counts.get(value).toLocaleString("en")})`)));
    tests.push((fold) => select.value === "0" || values[Number(select.value) - 1] === (fold.filters.get(name) ?? ""));
    select.addEventListener("change", apply);
    return make("label", {}, make("span", { className: "count" }, name.replaceAll("-", " ")), select);
  }

  const shown = make("span", { className: "shown" });
  shown.setAttribute("role", "status");

  function apply() {
    let count = 0;
    for (const fold of folds) {
      fold.node.hidden = !tests.every((fits) => fits(fold));
      count += !fold.node.hidden;
    }
    for (const section of sections) {
      if (section) section.hidden = !section.querySelector(":scope > details.fold:not([hidden])");
    }
    shown.textContent = `${count.toLocaleString("en")} of ${folds.length.toLocaleString("en")} shown`;
  }

  function search() {
    const input = make("input", { type: "search", placeholder: "Words" });
    input.setAttribute("aria-label", "Words in any of them");
    let words = [];
    tests.push((fold) => {
      if (!words.length) return true;
      fold.text ??= fold.node.textContent.toLowerCase();
      return words.every((word) => fold.text.includes(word));
    });
    let waiting = 0;
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        apply();
      }, 120);
    });
    return input;
  }

  if (bar && folds.length > 1) {
    for (const name of new Set(folds.flatMap((fold) => [...fold.filters.keys()]))) {
      const counts = counted(name);
      if (counts.size > 1) bar.append(counts.size <= FEW ? boxes(name, counts) : menu(name, counts));
    }
    bar.append(search(), shown);
    bar.hidden = false;
    apply();
  }

  // A link into the document opens what it leads to.
  function reveal() {
    let name = location.hash.slice(1);
    try { name = decodeURIComponent(name); } catch { /* it is taken as it is */ }
    const target = name && document.getElementById(name);
    if (!target) return;
    for (let node = target; node && node !== main; node = node.parentElement) {
      node.hidden = false;
      if (node.tagName === "DETAILS") node.open = true;
    }
    target.scrollIntoView();
  }
  addEventListener("hashchange", reveal);
  main.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.hash === location.hash) reveal();
  });

  // --- Tables

  const keyOf = (cell) => {
    const text = cell === undefined ? "" : cell.dataset.value ?? cell.textContent.trim();
    const number = text === "" ? NaN : Number(text.replaceAll(",", ""));
    return Number.isNaN(number) ? text : number;
  };
  const order = new Intl.Collator("en", { numeric: true });
  function compared(one, two) {
    if (typeof one === "number" && typeof two === "number") return one - two;
    if (one === "" || two === "") return (one === "") - (two === "");
    return typeof one === typeof two ? order.compare(one, two) : typeof one === "number" ? -1 : 1;
  }

  // Tables inside of folds get their buttons when the fold is opened: there may be thousands.
  function sortable(table) {
    if (table.dataset.sortable || !table.tBodies[0] || table.tBodies[0].rows.length < 2) return;
    table.dataset.sortable = "ready";
    for (const head of table.tHead.rows[0].cells) {
      const button = make("button", { type: "button" }, ...head.childNodes);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const body = table.tBodies[0], place = head.cellIndex;
        const isFirst = !head.hasAttribute("aria-sort");
        const sign = isFirst ? (head.classList.contains("n") ? -1 : 1) : head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        const rows = [...body.rows].map((row) => [keyOf(row.cells[place]), row]);
        rows.sort(([one], [two]) => (one === "" || two === "" ? compared(one, two) : sign * compared(one, two)));
        for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        body.append(...rows.map(([, row]) => row));
      });
    }
  }
  const isSeen = (table) => !table.closest("details:not([open])");
  const prepare = (root) => [...root.querySelectorAll("table[data-sortable='']")].filter(isSeen).forEach(sortable);
  main.addEventListener("toggle", (event) => event.target.open && prepare(event.target), true);
  prepare(main);

  // Rows that have names (what came of a test at each target) are filtered by them.
  for (const table of main.querySelectorAll("table")) {
    const rows = [...table.querySelectorAll("tbody > tr[data-names]")];
    const names = new Map();
    for (const row of rows) for (const name of row.dataset.names.split(" ")) if (name) names.set(name, (names.get(name) || 0) + 1);
    if (names.size < 2) continue;
    const different = rows.filter((row) => row.dataset.names.includes(" ")).length;
    const option = (value, label, count) => make("option", { value }, `${label} (${count.toLocaleString("en")})`);
    const select = make("select", {}, option("", "all", rows.length));
    for (const [name, count] of names) select.append(option(name, name.replaceAll("_", " "), count));
    if (different) select.append(option(" ", "different from each other", different));
    select.addEventListener("change", () => {
      const part = select.value.trim() ? ` ${select.value} ` : select.value; // a space alone: several names
      for (const row of rows) row.hidden = !(part === " " ? row.dataset.names : ` ${row.dataset.names} `).includes(part);
    });
    table.closest(".scroll").before(make("label", { className: "row-filter" }, "Rows", select));
  }

  // --- Light and dark

  const theme = document.getElementById("theme");
  const root = document.documentElement;
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
  });
  root.classList.add("js");
  reveal();
})();
