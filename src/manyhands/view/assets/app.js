// What pages do besides being read: keys, the item beside the table, rows on demand, ticks, live rows, copying.
// Every page can be read, and every link and form used, without it.
(() => {
  "use strict";

  const MAX_ROWS = 2000; // rows of a table that stay in the document
  const MAX_TICKS = 1000;
  const MAX_WAIT = 60_000; // milliseconds for an answer
  const TYPING = 400; // milliseconds without a key after which a form is sent
  const HIDDEN = 30_000; // milliseconds out of sight after which a page stops listening
  const SAID = 5000; // milliseconds between two announcements of what goes on

  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const made = (name, values = {}, ...children) => {
    const element = Object.assign(document.createElement(name), values);
    element.append(...children);
    return element;
  };

  // --- HTML that our server made: the only place where text becomes elements

  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("manyhands", { createHTML: (html) => html })
    : { createHTML: (html) => html };

  function parsed(html) {
    const template = document.createElement("template");
    template.innerHTML = policy.createHTML(html);
    return template.content;
  }

  /** A page of our server as elements. Throws if it can't be had. */
  async function fetched(url, controller = new AbortController()) {
    if (url.origin !== location.origin) throw new Error("it lies elsewhere");
    const timer = setTimeout(() => controller.abort(new Error("no answer in a minute")), MAX_WAIT);
    try {
      const answer = await fetch(url, { signal: controller.signal });
      if (!answer.headers.get("Content-Type")?.startsWith("text/html")) throw new Error("it is no page");
      const content = parsed(await answer.text());
      if (!answer.ok) throw new Error(one("p", content)?.textContent || `status ${answer.status}`);
      return content;
    } finally {
      clearTimeout(timer);
    }
  }

  // --- What is kept in the browser, and what is said aloud

  const forgetful = { getItem: () => null, setItem: () => {}, removeItem: () => {} };

  function store(name) {
    try {
      return window[name] || forgetful;
    } catch { return forgetful; }
  }

  const lasting = store("localStorage"), passing = store("sessionStorage");

  function keep(storage, name, value) {
    try {
      if (value === null) storage.removeItem(name);
      else storage.setItem(name, value);
    } catch { /* it is full or off: then it is not kept */ }
  }

  function kept(storage, name) {
    try {
      return JSON.parse(storage.getItem(name));
    } catch { return null; }
  }

  function say(text) {
    const place = one("#announce");
    place.textContent = "";
    setTimeout(() => { place.textContent = text; }, 50);
  }

  // --- Addresses

  const ITEM = /^\/runs\/([^/]+)\/items\/(\d{1,18})$/;

  /** Which item an address is the page of; null if it is another page's. */
  function itemOf(href) {
    const url = new URL(href, location.href);
    const found = url.origin === location.origin && ITEM.exec(url.pathname);
    return found ? { url, run: decodeURIComponent(found[1]), number: found[2] } : null;
  }

  const asked = (parameters) => parameters.toString().replaceAll("%2C", ",").replaceAll("%3A", ":");

  /** The address that a form asks for, without its empty fields. */
  function addressOf(form, base = location.href) {
    const url = new URL(form.getAttribute("action") || base, base);
    const fields = [...new FormData(form)].filter(([, value]) => typeof value === "string" && value.trim());
    url.search = asked(new URLSearchParams(fields));
    url.hash = "";
    return url;
  }

  const isPlain = (event) => event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;

  // --- Rows

  const table = one("table[data-tick]");
  const rows = () => all("table[data-tick] tbody tr[data-href]");
  const runHere = one(".run-head[data-run]")?.dataset.run;

  function rowInUse() {
    return document.activeElement?.closest("table[data-tick] tbody tr[data-href]") || one("table[data-tick] tr.current");
  }

  function focusRow(row) {
    one("th a", row).focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  /** The row ``by`` rows on from another, the first one if there is no other. Loads more at the end. */
  async function rowFrom(row, by, fits = () => true) {
    const find = () => {
      const list = rows(), place = list.indexOf(row);
      return by > 0 ? list.slice(place + 1).find(fits) : list.slice(0, Math.max(0, place)).reverse().find(fits);
    };
    return find() || (by > 0 && (await loadMore()) && find()) || null;
  }

  /** Bring the cells of a row into the order of the table's columns. */
  function aligned(row) {
    const names = all("thead th[data-column]", table).map((heading) => heading.dataset.column);
    if (!names.length) return row;
    const cells = new Map(all("[data-column]", row).map((cell) => [cell.dataset.column, cell]));
    for (const cell of cells.values()) cell.remove();
    row.append(...names.map((name) => cells.get(name) || document.createElement("td")));
    return row;
  }

  // --- More rows

  const pages = []; // pages of rows in the document: how many rows, and the address of those before them
  let loading = null;
  const near = "IntersectionObserver" in window
    ? new IntersectionObserver((seen) => seen.some((each) => each.isIntersecting) && loadMore(), { rootMargin: "800px 0px" })
    : null;

  function watchMore() {
    const link = one("a[data-more]");
    near?.disconnect();
    if (link) near?.observe(link);
    if (table && !pages.length) pages.push({ count: rows().length, before: one(".rows > .pager a[rel=prev]")?.href });
  }

  /** Append the next page of rows; whether there were any. */
  function loadMore() {
    loading ||= appendRows().finally(() => { loading = null; });
    return loading;
  }

  async function appendRows() {
    const link = one("a[data-more]");
    if (!link || !table) return false;
    const url = new URL(link.href);
    const names = all("thead th[data-column]", table).map((heading) => heading.dataset.column);
    if (names.length) url.searchParams.set("columns", names.join(","));
    let page;
    try {
      page = await fetched(url);
    } catch (error) {
      near?.disconnect();
      say(`More rows could not be loaded: ${error.message}`);
      return false;
    }
    const found = all("table[data-tick] tbody tr", page).filter((row) => !document.getElementById(row.id));
    const next = one("a[data-more]", page), hadFocus = document.activeElement === link;
    one("tbody", table).append(...found.map(aligned));
    pages.push({ count: found.length, before: one(".pager a[rel=prev]", page)?.href });
    if (next) link.href = next.href;
    else link.remove();
    dropRows();
    prepare(table);
    say(`${found.length} more rows`);
    if (hadFocus && !next && found.length) focusRow(found[0]);
    watchMore();
    return found.length > 0;
  }

  /** Take the oldest pages of rows out where there are too many, and leave a link to them. */
  function dropRows() {
    const first = rows().at(-1), place = first?.getBoundingClientRect().top;
    let count = rows().length, dropped = false;
    while (count > MAX_ROWS && pages.length > 1) {
      for (const row of rows().slice(0, pages[0].count)) row.remove();
      count -= pages.shift().count;
      dropped = true;
    }
    if (!dropped) return;
    const link = one("#rows-before a") || made("a", { textContent: "← Rows before" });
    link.href = pages[0].before || location.pathname + location.search;
    if (!link.isConnected) table.closest(".scroll").before(made("p", { id: "rows-before", className: "pager" }, link));
    const back = one(".rows > .pager a[rel=prev]");
    if (back) back.href = link.href;
    window.scrollBy(0, first.getBoundingClientRect().top - place);
  }

  // --- The item beside the table

  const panel = one("#panel"), inside = one("#panel-body");
  let shown = null; // the item in the panel, as of itemOf
  let opening = null;

  const isOpen = () => Boolean(panel && !panel.hidden);

  function markCurrent() {
    for (const row of all("tr.current")) row.classList.remove("current");
    if (isOpen() && shown && shown.run === runHere) document.getElementById(`item-${shown.number}`)?.classList.add("current");
  }

  function writeHash() {
    const parameters = new URLSearchParams(shown.url.search);
    parameters.delete("format");
    for (const [name, value] of [...parameters]) if (!value) parameters.delete(name);
    const more = asked(parameters);
    history.replaceState(history.state, "", `${location.pathname}${location.search}#item=${shown.number}${more && `&${more}`}`);
  }

  /** Load an item's page into the panel. */
  async function openItem(href) {
    const wanted = itemOf(href);
    if (!wanted || wanted.run !== runHere) return;
    opening?.abort();
    const controller = opening = new AbortController();
    const isOther = !isOpen() || shown?.number !== wanted.number;
    shown = wanted;
    panel.hidden = false;
    panel.setAttribute("aria-busy", "true");
    one(".items").classList.add("open");
    markCurrent();
    writeHash();
    const url = new URL(wanted.url);
    url.searchParams.set("format", "part");
    url.hash = "";
    let content;
    try {
      content = await fetched(url, controller);
    } catch (error) {
      content = made("p", { className: "note bad", textContent: `The item could not be loaded: ${error.message}` });
    }
    if (opening !== controller) return;
    const focused = inside.contains(document.activeElement) && document.activeElement;
    inside.replaceChildren(content);
    panel.removeAttribute("aria-busy");
    prepare(inside);
    if (isOther || wanted.url.searchParams.has("step")) panel.scrollTop = 0;
    const same = focused && all("a", inside).find((link) => link.textContent === focused.textContent);
    if (focused) (same || panel).focus({ preventScroll: true });
    if (isOther) say(`Item ${wanted.number}: ${one("h1", inside)?.textContent || ""}`);
    const step = wanted.url.hash && document.getElementById(wanted.url.hash.slice(1));
    if (step && inside.contains(step)) readStep(step);
  }

  /** Open a row's item in the tab, and with the parts hidden, that the panel shows already. */
  function openRow(row) {
    const url = new URL(row.dataset.href, location.href);
    for (const name of ["tab", "hide"]) {
      const value = isOpen() && shown?.url.searchParams.get(name);
      if (value) url.searchParams.set(name, value);
    }
    return openItem(url.href);
  }

  function closePanel() {
    opening?.abort();
    opening = null;
    panel.hidden = true;
    inside.replaceChildren();
    window.drawCharts?.(inside);
    one(".items").classList.remove("open");
    const row = one("tr.current");
    shown = null;
    markCurrent();
    history.replaceState(history.state, "", location.pathname + location.search);
    if (row) focusRow(row);
  }

  function openHash() {
    if (!panel) return;
    const parameters = new URLSearchParams(location.hash.slice(1)), number = parameters.get("item");
    if (!/^\d{1,18}$/.test(number || "")) return;
    parameters.delete("item");
    if (shown?.number !== number) openItem(`${location.pathname}/${number}?${parameters}`);
  }

  /** The item that keys are about: run, number and key. */
  function itemInUse() {
    const item = one(".item[data-item]", isOpen() ? panel : document);
    if (item) return { run: item.dataset.run, number: item.dataset.item, key: one(".key", item)?.textContent || "" };
    const row = table?.dataset.tick === "items" && rowInUse();
    return row ? { run: runHere, number: row.id.replace("item-", ""), key: row.dataset.key } : null;
  }

  // --- Steps of a conversation

  const reader = () => (isOpen() ? panel : one("#main"));
  const isInSight = (step) => step.offsetParent !== null || step.closest("details:not([open])");

  function steps() {
    const found = [".step", ".pair:not(.heads)", ".conversation > .message"].map((each) => all(each, reader())).find((each) => each.length);
    return (found || []).filter(isInSight);
  }

  /** Open the folds that something is in; whether there are any. */
  function unfold(element) {
    const first = element.closest("details");
    for (let fold = first; fold; fold = fold.parentElement.closest("details")) fold.open = true;
    return Boolean(first);
  }

  function readStep(step) {
    for (const each of all(".reading")) each.classList.remove("reading");
    unfold(step);
    step.classList.add("reading");
    step.tabIndex = -1;
    step.focus({ preventScroll: true });
    if (isOpen() && panel.contains(step)) panel.scrollTop += step.getBoundingClientRect().top - panel.getBoundingClientRect().top - 12;
    else step.scrollIntoView({ block: "start" });
  }

  function stepBy(by) {
    const list = steps();
    const now = list.indexOf(one(".reading", reader()) || one(":target", reader()));
    const place = now >= 0 ? now + by : list.findIndex((step) => step.getBoundingClientRect().bottom > 100);
    if (list[place]) readStep(list[place]);
    else one(`.talk .pager a[rel=${by > 0 ? "next" : "prev"}]`, reader())?.click();
  }

  /** Hide or show one kind of parts; whether there is something to hide them in. */
  function toggle(button) {
    const item = button.closest("[data-hide]") || one("[data-hide]");
    if (!item) return false;
    const words = new Set(item.dataset.hide.split(" ").filter(Boolean)), name = button.dataset.toggle;
    if (!words.delete(name)) words.add(name);
    item.dataset.hide = [...words].join(" ");
    const buttons = all(".toggle[data-toggle]", button.closest(".item") || document);
    for (const each of buttons) each.setAttribute("aria-pressed", String(!words.has(each.dataset.toggle)));
    rewrite(item, buttons, words);
    const hide = [...words].join(",");
    if (isOpen() && panel.contains(button)) {
      setHide(shown.url, hide);
      writeHash();
    } else {
      const url = new URL(location.href);
      setHide(url, hide);
      history.replaceState(history.state, "", url.pathname + url.search + url.hash);
    }
    say(`${name} ${words.has(name) ? "hidden" : "shown"}`);
    return true;
  }

  function setHide(url, hide) {
    if (hide) url.searchParams.set("hide", hide);
    else url.searchParams.delete("hide");
    url.search = asked(url.searchParams);
  }

  /** Let the links and forms of an item keep what is hidden. */
  function rewrite(item, buttons, words) {
    for (const link of new Set([...all("a[href]", item), ...buttons])) {
      const url = new URL(link.href), mine = new Set(words), name = link.dataset.toggle;
      if (!itemOf(link.href) && !name) continue;
      if (name && !mine.delete(name)) mine.add(name);
      setHide(url, [...mine].join(","));
      if (!link.getAttribute("href").startsWith("#")) link.href = url.pathname + url.search + url.hash;
    }
    for (const form of all("form", item)) {
      const field = one("input[name=hide]", form) || made("input", { type: "hidden", name: "hide" });
      field.value = [...words].join(",");
      field.disabled = !words.size;
      form.append(field);
    }
  }

  // --- Ticks, which stay while the tab does

  const ticks = { items: new Map(kept(passing, "ticked-items") || []), runs: new Map(kept(passing, "ticked-runs") || []) };
  const tickId = (input) => (table.dataset.tick === "items" ? `${runHere}:${input.value}` : input.value);
  const number = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;

  function tick(kind, id, about, isOn) {
    if (!isOn) ticks[kind].delete(id);
    else if (ticks[kind].size < MAX_TICKS) ticks[kind].set(id, about);
    keep(passing, `ticked-${kind}`, JSON.stringify([...ticks[kind]]));
    showTicks();
    say(`${number(ticks[kind].size, kind.slice(0, -1))} ticked`);
  }

  function showTicks() {
    for (const input of all("table[data-tick] .tick input")) {
      const isOn = ticks[table.dataset.tick].has(tickId(input));
      input.hidden = false;
      input.checked = isOn;
      input.closest("tr").classList.toggle("chosen", isOn);
    }
    const compare = one("#compare"), bar = one("#ticked"), untick = one("#untick");
    const count = ticks[table?.dataset.tick]?.size || 0;
    if (untick) untick.hidden = !count;
    if (compare) {
      compare.hidden = false;
      compare.disabled = count < 2;
      compare.textContent = count > 1 ? `Compare the ${count} chosen runs` : "Compare the chosen runs";
    }
    if (bar) {
      bar.hidden = !count;
      one(".count", bar).textContent = `${number(count, "item")} ticked`;
      one("#difference", bar).disabled = count !== 2;
    }
  }

  function clearTicks() {
    ticks[table.dataset.tick].clear();
    keep(passing, `ticked-${table.dataset.tick}`, null);
    showTicks();
    say("Nothing is ticked");
  }

  function compareRuns() {
    if (ticks.runs.size > 1) location.assign(`/compare?runs=${[...ticks.runs.keys()].map(encodeURIComponent).join(",")}`);
  }

  function showDifference() {
    const here = itemInUse(), current = here && `${here.run}:${here.number}`;
    const chosen = [...ticks.items.keys()];
    if (chosen.length === 1 && current && current !== chosen[0]) chosen.push(current);
    if (chosen.length !== 2) say("Tick two items, or one besides that which is open, to see their difference");
    else location.assign(`/difference?${asked(new URLSearchParams({ a: chosen[0], b: chosen[1] }))}`);
  }

  function tickInUse() {
    const input = table && !isOpen() && rowInUse()?.querySelector(".tick input");
    if (input) {
      input.click();
      return;
    }
    const item = itemInUse();
    if (item) tick("items", `${item.run}:${item.number}`, item.key, !ticks.items.has(`${item.run}:${item.number}`));
  }

  /** What is ticked of the run, for the clipboard: keys, or the command that exports them. */
  function tickedText(button) {
    const here = [...ticks.items].filter(([id]) => id.startsWith(`${runHere}:`));
    if (!button.dataset.command) return here.map(([, key]) => key).join("\n");
    return [button.dataset.command, ...here.map(([id]) => `--select item=${id.slice(runHere.length + 1)}`)].join(" ");
  }

  // --- The clipboard

  async function copy(text, button) {
    let isDone = true;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = made("textarea", { value: text, className: "visually-hidden" }), focused = document.activeElement;
      document.body.append(field);
      field.select();
      isDone = document.execCommand("copy");
      field.remove();
      focused?.focus({ preventScroll: true });
    }
    say(isDone ? "Copied" : "The browser does not let this page copy");
    if (!button || !isDone || button.dataset.label) return;
    button.dataset.label = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = button.dataset.label;
      delete button.dataset.label;
    }, 1500);
  }

  function copyLink() {
    const step = one(".reading", reader()), row = rowInUse(), item = one(".item[data-item]", reader());
    const url = new URL(isOpen() && shown ? shown.url : item || !row ? location.href : row.dataset.href, location.href);
    url.searchParams.delete("format");
    if (step?.id) url.hash = step.id;
    copy(url.href);
  }

  // --- The colour scheme

  function switchTheme() {
    const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    keep(lasting, "theme", root.dataset.theme);
    say(root.dataset.theme);
  }

  // --- Forms that are sent by themselves

  let typing = 0, leaving = null;

  function sendForm(form) {
    clearTimeout(typing);
    leaving = form;
    location.assign(addressOf(form));
  }

  /** Keep which field was in use, and what stood in it, for the page that comes. */
  function rememberField() {
    const field = document.activeElement;
    if (!leaving?.contains(field) || !field.name) return;
    const place = "selectionStart" in field ? field.selectionStart : null;
    keep(passing, "field", JSON.stringify({ path: location.pathname, name: field.name, value: field.value, place }));
  }

  function returnToField() {
    const last = kept(passing, "field");
    keep(passing, "field", null);
    if (last?.path !== location.pathname) return;
    const field = all("form[data-auto] [name]").find((each) => each.name === last.name && each.type !== "hidden");
    if (!field) return;
    field.focus({ preventScroll: true });
    if (typeof last.place !== "number") return;
    if (field.value !== last.value) {
      field.value = last.value;
      typing = setTimeout(() => sendForm(field.form), TYPING);
    }
    field.setSelectionRange(last.place, last.place);
  }

  // --- Tables that can be sorted, and lists that can be filtered

  const collator = new Intl.Collator(undefined, { numeric: true });

  function sortRows(sortable, place, heading) {
    const isNumber = heading.classList.contains("n"), old = heading.getAttribute("aria-sort");
    const isDown = old ? old === "ascending" : isNumber;
    const body = sortable.tBodies[0];
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[place], text = cell?.textContent.trim() || "", value = Number(cell?.dataset.value ?? NaN);
      return { row, text, value, isEmpty: !text && Number.isNaN(value) };
    });
    keyed.sort((a, b) => {
      if (a.isEmpty || b.isEmpty) return a.isEmpty - b.isEmpty;
      const order = Number.isNaN(a.value) || Number.isNaN(b.value) ? collator.compare(a.text, b.text) : a.value - b.value;
      return isDown ? -order : order;
    });
    body.append(...keyed.map((each) => each.row));
    for (const each of all("thead th", sortable)) each.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", isDown ? "descending" : "ascending");
  }

  function makeSortable(sortable) {
    const headings = [...(sortable.tHead?.rows[0]?.cells || [])];
    if (one("thead button, thead a", sortable) || sortable.tBodies[0]?.rows.length < 2) return;
    headings.forEach((heading, place) => {
      if (!heading.textContent.trim()) return;
      const button = made("button", { type: "button" }, made("span", {}, ...heading.childNodes));
      button.addEventListener("click", () => sortRows(sortable, place, heading));
      heading.append(button);
    });
  }

  /** Fields above folds that stand next to each other and say by what they are found. */
  function makeFilters(first) {
    const folds = [];
    for (let fold = first; fold?.matches("details.fold"); fold = fold.nextElementSibling) folds.push(fold);
    const values = new Map();
    for (const fold of folds) {
      for (const [name, value] of Object.entries(fold.dataset)) {
        if (name.startsWith("filter")) values.set(name, (values.get(name) || new Set()).add(value));
      }
    }
    const bar = made("div", { className: "list-filters" }), count = made("span", { className: "muted" });
    const show = () => {
      const fits = (fold) => all("select", bar).every((field) => !field.value || fold.dataset[field.name] === field.value.slice(1));
      for (const fold of folds) fold.hidden = !fits(fold);
      count.textContent = `${folds.filter((fold) => !fold.hidden).length} of ${folds.length}`;
    };
    for (const [name, found] of values) {
      if (found.size < 2 || found.size > 100) continue;
      const label = name.slice("filter".length).replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`).trim();
      const option = (value, textContent) => made("option", { value, textContent });
      const options = [...found].sort(collator.compare).map((value) => option(`=${value}`, value || "none"));
      bar.append(made("label", {}, `${label} `, made("select", { name }, option("", "all"), ...options)));
    }
    if (!bar.childElementCount) return;
    bar.append(count);
    bar.addEventListener("change", show);
    show();
    first.before(bar);
  }

  // --- Every piece of a page, when it comes

  function prepare(piece) {
    for (const button of all("button.copy[hidden]", piece)) button.hidden = false;
    for (const sortable of all("table[data-sortable]", piece)) makeSortable(sortable);
    for (const fold of all("details.fold", piece)) {
      const hasFilters = Object.keys(fold.dataset).some((name) => name.startsWith("filter"));
      if (hasFilters && !fold.previousElementSibling?.matches("details.fold, .list-filters")) makeFilters(fold);
    }
    showTicks();
    markCurrent();
    window.drawCharts?.(piece);
  }

  function openTarget() {
    const target = one(":target");
    if (!target) return;
    for (const each of all(".reading")) each.classList.remove("reading");
    if (unfold(target)) target.scrollIntoView({ block: "start" });
  }

  // --- What changes while runs go on

  const listened = one("[data-events]"), news = new Set(), indexNote = one("#index-note");
  let soon = 0, source = null, wasCut = false, hiddenSince = 0, saidAt = 0, lastSaid = "";

  /** Put something in the place of what it replaces, with the focus where it was. */
  function replaced(old, put) {
    const focusable = "a[href], button, input, summary, [tabindex]";
    const place = old.contains(document.activeElement) ? all(focusable, old).indexOf(document.activeElement) : -1;
    const now = put();
    if (place >= 0) all(focusable, now)[place]?.focus({ preventScroll: true });
  }

  function takePart({ id, html }) {
    for (const part of all(`[data-live="${CSS.escape(id)}"]`)) {
      replaced(part, () => {
        part.replaceChildren(parsed(html));
        return part;
      });
      prepare(part);
    }
    if (id === "ledger") sayLedger();
  }

  function sayLedger() {
    if (Date.now() - saidAt < SAID) return;
    const text = one("[data-live=ledger] svg.ledger")?.getAttribute("aria-label") || "";
    if (saidAt && text && text !== lastSaid) say(text);
    lastSaid = text;
    saidAt = Date.now();
  }

  function takeRow({ id, html, new: isNew }) {
    const old = document.getElementById(id);
    if (!table && id === `item-${one("main > .item")?.dataset.item}`) {
      soon ||= setTimeout(refresh, 700);
      return;
    }
    if (!old?.closest("table[data-live-rows]")) {
      if (isNew && news.size < 10_000) showNews(news.add(id).size);
      return;
    }
    const row = one("tr", parsed(html));
    if (!row) return;
    if (old.closest("table") === table) aligned(row);
    const isFresh = row.textContent !== old.textContent;
    replaced(old, () => {
      old.replaceWith(row);
      showTicks();
      markCurrent();
      return row;
    });
    row.classList.toggle("fresh", isFresh);
    setTimeout(() => row.classList.remove("fresh"), 1600);
  }

  function showNews(count) {
    const button = one("#news");
    if (!button) return;
    button.hidden = false;
    button.textContent = `${count.toLocaleString("en")} new, show`;
  }

  /** Steps of a conversation that goes on: those that are new or have changed. */
  function takeSteps(page) {
    const talk = one("[data-live-steps]"), now = page && one("[data-live-steps]", page);
    if (!talk || !now) return;
    for (const step of all(":scope > .step[id]", now)) {
      const old = document.getElementById(step.id);
      if (!old) talk.append(step);
      else if (old.textContent !== step.textContent) old.replaceWith(step);
    }
  }

  /** Bring the page up to date. */
  async function refresh() {
    soon = 0;
    try {
      const page = await fetched(new URL(location.pathname + location.search, location.href));
      for (const part of all("[data-live]", page)) takePart({ id: part.dataset.live, html: part.innerHTML });
      takeSteps(page);
      if (indexNote) indexNote.textContent = one("#index-note", page)?.textContent || "Load the page again to sort and search.";
      if (one("#index-note", page)) setTimeout(refresh, 3000);
      for (const row of all("table[data-live-rows] tbody tr[id]", page)) takeRow({ id: row.id, html: row.outerHTML });
    } catch { /* the next event tells */ }
  }

  function listen() {
    if (!listened || source) return;
    source = new EventSource(listened.dataset.events);
    const take = (name, use) => source.addEventListener(name, (event) => use(JSON.parse(event.data)));
    source.addEventListener("open", () => {
      if (wasCut) refresh();
      wasCut = false;
    });
    source.addEventListener("error", () => { wasCut = true; });
    take("part", takePart);
    take("row", takeRow);
    take("problem", (text) => say(String(text)));
    source.addEventListener("changed", () => { soon ||= setTimeout(refresh, 700); });
    source.addEventListener("ended", async () => {
      stopListening();
      source = "ended";
      if (!table && !one("main > .item")) location.reload();
      await refresh();
      sayLedger();
    });
  }

  function stopListening() {
    if (!(source instanceof EventSource)) return;
    source.close();
    source = null;
  }

  /** Browsers keep few connections to a server open, and pages out of sight need none. */
  function onSight() {
    clearTimeout(hiddenSince);
    if (document.hidden) {
      hiddenSince = setTimeout(() => {
        wasCut ||= Boolean(source instanceof EventSource);
        stopListening();
      }, HIDDEN);
    } else listen();
  }

  // --- Clicks

  function onClick(event) {
    const target = event.target instanceof Element ? event.target : null;
    if (!target || event.defaultPrevented) return;
    for (const menu of all("details.choose[open]")) if (!menu.contains(target)) menu.open = false;
    const button = target.closest("button");
    if (button) onButton(button);
    else if (isPlain(event)) onPlainClick(event, target);
    else openElsewhere(event, target);
  }

  function onButton(button) {
    if (button.dataset.copy !== undefined) copy(button.dataset.copy, button);
    else if (button.dataset.copyTicked !== undefined) copy(tickedText(button), button);
    else BUTTONS[button.id]?.();
  }

  const BUTTONS = {
    theme: switchTheme, compare: compareRuns, difference: showDifference, untick: clearTicks, "close-panel": closePanel,
    news: () => location.reload(),
  };

  function onPlainClick(event, target) {
    const link = target.closest("a[href]");
    if (link ? onLink(link) : onRowClick(target)) event.preventDefault();
  }

  /** Whether a click on a link is done with. */
  function onLink(link) {
    if (link.matches(".toggle[data-toggle]") && toggle(link)) return true;
    if (link.matches("[data-more]") && table) {
      loadMore();
      return true;
    }
    if (!panel || link.matches(".full, [download], [target]")) return false;
    const place = link.getAttribute("href");
    if (panel.contains(link) && place.startsWith("#")) {
      const step = document.getElementById(place.slice(1));
      if (step) readStep(step);
      return Boolean(step);
    }
    const row = link.closest("table[data-tick] tbody tr[data-href]");
    if (itemOf(link.href)?.run !== runHere || !(row || panel.contains(link))) return false;
    if (row && place === row.dataset.href) openRow(row);
    else openItem(link.href);
    return true;
  }

  function onRowClick(target) {
    const row = target.closest("table[data-tick] tbody tr[data-href]");
    if (!row || target.closest("input, label, summary, select") || getSelection().toString()) return false;
    if (target.closest(".tick")) one(".tick input", row)?.click();
    else if (panel) openRow(row);
    else location.assign(row.dataset.href);
    return true;
  }

  function openElsewhere(event, target) {
    const row = !target.closest("a, input") && target.closest("table[data-tick] tbody tr[data-href]");
    if (row && (event.button === 1 || event.ctrlKey || event.metaKey)) window.open(row.dataset.href, "_blank", "noopener");
  }

  // --- Keys

  let isAfterG = 0;

  const follow = (selector, within = document) => one(selector, within)?.click();

  async function moveRow(by) {
    const row = await rowFrom(rowInUse(), by);
    if (row) focusRow(row);
  }

  async function nextItem(by) {
    if (!isOpen()) return follow(`.steer a[rel=${by > 0 ? "next" : "prev"}]`);
    const current = one("tr.current"), row = current && (await rowFrom(current, by));
    if (!row) return follow(`.steer a[rel=${by > 0 ? "next" : "prev"}]`, panel);
    row.scrollIntoView({ block: "nearest" });
    return openRow(row);
  }

  async function nextFailure() {
    if (isOpen() || !table) return follow(".steer a.next-failure", isOpen() ? panel : document);
    const row = await rowFrom(rowInUse(), 1, (each) => one(".state.bad", each));
    if (row) focusRow(row);
    else say("No failed row follows");
  }

  const press = (name) => () => follow(`.toggle[data-toggle=${name}]`, reader());
  const KEYS = {
    s: press("system"), r: press("reasoning"), t: press("tools"), m: press("metadata"),
    "[": () => stepBy(-1), "]": () => stepBy(1), n: () => nextItem(1), p: () => nextItem(-1), f: nextFailure,
    d: showDifference, x: tickInUse, j: () => moveRow(1), k: () => moveRow(-1), L: copyLink,
    g: () => { isAfterG = Date.now(); },
    "/": () => one(".search input")?.select(),
    "?": () => follow(".top a.icon"),
  };
  const AFTER_G = { r: () => follow(".brand"), i: () => follow('.run-head .tabs a[href$="/items"], .crumbs a[href$="/items"]') };

  function isTyping(element) {
    return element instanceof Element
      && element.matches("textarea, select, input:not([type=checkbox], [type=radio]), [contenteditable], dialog[open] *");
  }

  function onEscape() {
    const menu = one("details.choose[open]");
    if (menu) {
      menu.open = false;
      one("summary", menu).focus();
    } else if (isTyping(document.activeElement)) document.activeElement.blur();
    else if (isOpen()) closePanel();
  }

  function onKey(event) {
    if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") onEscape();
    if (event.key === " " && event.target.matches?.("a[role=button]")) {
      event.preventDefault();
      event.target.click();
    }
    if (isTyping(event.target) || kept(lasting, "keys-off")) return;
    const isRow = Boolean(document.activeElement?.closest("table[data-tick] tbody tr"));
    const use = Date.now() - isAfterG < 1500 && AFTER_G[event.key]
      || isRow && { ArrowDown: KEYS.j, ArrowUp: KEYS.k }[event.key]
      || (Object.hasOwn(KEYS, event.key) && KEYS[event.key]);
    isAfterG = 0;
    if (!use) return;
    event.preventDefault();
    use();
  }

  // --- All together

  function onChange(event) {
    const field = event.target;
    if (field.matches("table[data-tick] .tick input")) {
      tick(table.dataset.tick, tickId(field), field.closest("tr").dataset.key || "", field.checked);
    } else if (field.id === "keys-off") keep(lasting, "keys-off", field.checked ? "true" : null);
    else if (field.form?.matches("form[data-auto]")) {
      const isText = "defaultValue" in field && isTyping(field);
      if (!isText || field.value !== field.defaultValue) sendForm(field.form);
    }
  }

  function onInput(event) {
    const form = event.target.form;
    if (event.isComposing || !form?.matches("form[data-auto]") || !event.target.matches("input:not([type=checkbox], [type=radio])")) return;
    clearTimeout(typing);
    typing = setTimeout(() => sendForm(form), TYPING);
  }

  function onSubmit(event) {
    const form = event.target;
    if (panel?.contains(form) && shown) {
      event.preventDefault();
      const url = addressOf(form, shown.url.href);
      if (itemOf(url.href)) openItem(url.href);
      else location.assign(url);
    } else if (form.matches("[data-auto]")) {
      event.preventDefault();
      sendForm(form);
    }
  }

  const root = document.documentElement;
  root.classList.add("js");
  for (const control of all("#theme, [data-needs-script]")) control.hidden = false;
  const keysOff = one("#keys-off");
  if (keysOff) keysOff.checked = Boolean(kept(lasting, "keys-off"));
  if (innerWidth < 760 && !one(".chip")) one(".facet-fold")?.removeAttribute("open");
  prepare(document);
  watchMore();
  returnToField();
  openTarget();
  openHash();
  listen();
  if (indexNote) setTimeout(refresh, 3000);
  document.addEventListener("click", onClick);
  document.addEventListener("auxclick", onClick);
  document.addEventListener("keydown", onKey);
  document.addEventListener("change", onChange);
  document.addEventListener("input", onInput);
  document.addEventListener("submit", onSubmit);
  document.addEventListener("visibilitychange", onSight);
  window.addEventListener("hashchange", () => { openTarget(); openHash(); });
  window.addEventListener("pagehide", () => { rememberField(); stopListening(); });
  window.addEventListener("pageshow", (event) => event.persisted && listen());
})();
