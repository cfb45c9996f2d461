// Draws the charts of a page from the tables that stand below them, with uPlot. Without scripts the tables are all there is.
// drawCharts(root) draws what is new below an element; it is called once when the page is read.
"use strict";
(() => {
  const FONT = "12px system-ui, sans-serif";
  const SERIES = 6;
  const charts = new Map(); // figure → {data, plot, width}

  // --- Reading

  // The value of a cell: where its text is not the exact number, an attribute has it.
  function valueOf(cell) {
    const value = Number(cell.dataset.value ?? (cell.textContent.replaceAll(",", "") || "none"));
    return Number.isNaN(value) ? null : value;
  }

  const endOf = (cell, name) => (name in cell.dataset ? Number(cell.dataset[name]) : null);

  function marksOf(figure) {
    return [...figure.querySelectorAll(".chart-marks > li")].map((each) => ({
      axis: each.dataset.axis, value: Number(each.dataset.value), label: each.textContent,
    }));
  }

  function readChart(figure) {
    const rows = [...figure.querySelectorAll("tbody > tr")];
    const heads = [...figure.querySelectorAll("thead th")];
    const x = rows.map((row, index) => (figure.dataset.x === "name" ? index : valueOf(row.cells[0])));
    const series = heads.slice(1).map((head, index) => {
      const cells = rows.map((row) => row.cells[index + 1]);
      return { name: head.textContent, tone: head.dataset.tone, y: cells.map(valueOf), low: cells.map((cell) => endOf(cell, "low")),
        high: cells.map((cell) => endOf(cell, "high")), texts: cells.map((cell) => cell.textContent) };
    });
    return { ...figure.dataset, x, xKind: figure.dataset.x, yKind: figure.dataset.y, series, marks: marksOf(figure),
      names: rows.map((row) => row.cells[0].textContent) };
  }

  function readLanes(figure) {
    const names = [], spans = [], kinds = [], laneLinks = [];
    for (const body of figure.querySelectorAll("tbody")) {
      const lane = body.rows[0].cells[0];
      laneLinks.push(lane.querySelector("a"));
      const number = names.push(lane.textContent) - 1;
      for (const row of body.rows) {
        const cells = [...row.cells].slice(row === body.rows[0] ? 1 : 0);
        if (cells.length < 4) continue;
        const kind = cells[0].textContent;
        if (!kinds.includes(kind)) kinds.push(kind);
        const start = valueOf(cells[2]);
        spans.push({ lane: number, kind: kinds.indexOf(kind), text: cells[1].textContent, tone: row.dataset.tone, link: cells[1].querySelector("a"),
          start, end: valueOf(cells[3]) ?? start, when: [cells[2].textContent, cells[3].textContent] });
      }
    }
    return { ...figure.dataset, xKind: figure.dataset.x, names, spans, kinds, laneLinks, marks: [] };
  }

  // --- Values in words

  const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
  const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  const tenths = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const SHOWN = {
    share: (v) => `${tenths.format(v * 100)}%`,
    dollars: (v) => `$${Math.abs(v) < 1e4 ? exact.format(v) : short.format(v)}`,
    seconds: (v) => (Math.abs(v) < 120 ? `${exact.format(v)} s` : Math.abs(v) < 7200 ? `${exact.format(v / 60)} min` : `${exact.format(v / 3600)} h`),
    number: (v) => (Math.abs(v) < 1e4 ? exact.format(v) : short.format(v)),
  };
  const shown = (kind) => SHOWN[kind] || SHOWN.number;

  // Times are in UTC, with the day below the first one of each day.
  function times(splits, step) {
    let day = "";
    return splits.map((value) => {
      if (value === null) return "";
      const text = new Date(value * 1e3).toISOString();
      const [date, clock] = [text.slice(0, 10), text.slice(11, step < 1 ? 23 : step < 60 ? 19 : 16)];
      const isNew = date !== day;
      day = date;
      return step >= 86400 ? date : isNew ? `${clock}\n${date}` : clock;
    });
  }

  // --- Colours: whatever the style sheet says now

  function colours(figure) {
    const probe = figure.appendChild(document.createElement("i"));
    const found = (name) => {
      probe.style.color = `var(--chart-${name})`;
      return getComputedStyle(probe).color;
    };
    const all = { series: Array.from({ length: SERIES }, (_, index) => found(`series-${index}`)) };
    for (const name of ["ink", "dim", "rule", "ground", "good", "bad", "warn", "muted", "active"]) all[name] = found(name);
    probe.remove();
    return all;
  }

  // --- Parts of uPlot's options

  const measure = document.createElement("canvas").getContext("2d");
  function widest(texts) {
    measure.font = FONT;
    return Math.max(0, ...texts.map((text) => measure.measureText(text).width));
  }

  // The lines of a name that is wider than what there is.
  function wrapped(text, width) {
    const lines = [""];
    for (const part of text.match(/[^\s/_-]+[\s/_-]*|[\s/_-]+/g) || [text]) {
      for (const piece of widest([part]) > width ? part : [part]) {
        if (widest([lines.at(-1) + piece.trimEnd()]) > width) lines.push("");
        lines[lines.length - 1] += piece;
      }
    }
    return lines;
  }

  // Names of rows stand beside them, or above them where they would take more than half of the width.
  function rowNames(names, width, line) {
    if (widest(names) <= width / 2) return { size: Math.ceil(widest(names)) + 12, height: line, above: null, top: 6 };
    const above = names.map((name) => wrapped(name, width - 70));
    const most = 14 * Math.max(...above.map((lines) => lines.length));
    return { size: 16, height: line + most, above, top: most + 2 };
  }

  function drawNames(plot, above, scale, palette, gap) {
    above?.forEach((lines, i) => lines.forEach((text, number) => {
      const at = plot.valToPos(i, scale, true) - scaled(gap + 14 * (lines.length - 1 - number));
      write(plot, text, plot.bbox.left, at, palette.ink, "left", "bottom");
    }));
  }

  const rowAxis = (data, palette, rows, more) => axis(palette, { stroke: palette.ink, size: rows.size, grid: { show: false },
    splits: () => data.names.map((_, i) => i), values: () => data.names.map((name) => (rows.above ? "" : name)), ...more });

  function valuesOfX(data, kind) {
    if (data.xKind === "time") return { size: 40, space: 90, values: (_, splits, index, space, step) => times(splits, step) };
    return { values: (_, splits) => splits.map((v) => (v === null ? "" : shown(kind)(v))) };
  }

  function axis(palette, more) {
    return { font: FONT, labelFont: FONT, stroke: palette.dim, labelSize: 20, ticks: { show: false },
      grid: { stroke: palette.rule, width: 1 }, gap: 6, ...more };
  }

  // Long names are cut below a chart, and not all stand there; they are whole where they are pointed at.
  function nameAxis(data, palette, width) {
    const names = data.names.map((name) => (name.length > 20 ? `${name.slice(0, 19)}…` : name));
    const step = Math.max(1, Math.ceil((names.length * (widest(names) + 10)) / width));
    const splits = names.map((_, i) => i).filter((i) => i % step === 0);
    return axis(palette, { size: 28, grid: { show: false }, splits: () => splits, values: () => splits.map((i) => names[i]) });
  }

  function valueAxis(data, palette, horizontal) {
    const words = shown(data.yKind);
    const values = (_, splits) => splits.map((v) => (v === null ? "" : words(v)));
    const label = data.yLabel;
    if (horizontal) return axis(palette, { side: 2, scale: "y", size: 26, space: 70, values, label });
    return axis(palette, { scale: "y", size: (_, texts) => Math.ceil(widest(texts || ["0"])) + 12, space: 44, values, label });
  }

  function stacked(series, length) {
    const sums = new Array(length).fill(0);
    return series.map((each) => each.y.map((y, i) => (sums[i] += y ?? 0)));
  }

  function gapOf(x) {
    let gap = Infinity;
    for (let i = 1; i < x.length; i++) if (x[i] > x[i - 1]) gap = Math.min(gap, x[i] - x[i - 1]);
    return gap === Infinity ? 1 : gap;
  }

  function xRange(data) {
    if (data.xKind === "name") return () => [-0.6, data.names.length - 0.4];
    const half = data.chart === "bars" ? gapOf(data.x) / 2 : 0;
    return (_, low, high) => {
      if (low === null) return [0, 1];
      if (data.x[0] === data.x.at(-1)) [low, high] = [data.x[0], data.x[0]];
      const marks = data.marks.filter((mark) => mark.axis === "x").map((mark) => mark.value);
      const [from, to] = [Math.min(low, ...marks) - half, Math.max(high, ...marks) + half];
      if (data.scale === "log") return [from / 1.3, to * 1.3];
      const room = from === to ? (data.xKind === "time" ? 3600 : 1) : data.chart === "dots" ? (to - from) * 0.02 : 0;
      return [from - room, to + room];
    };
  }

  function yRange(data) {
    const ends = data.series.flatMap((each) => [...each.low, ...each.high]).filter((v) => v !== null);
    const marks = data.marks.filter((mark) => mark.axis === "y").map((mark) => mark.value);
    return (_, low, high) => {
      const from = Math.min(0, low ?? 0, ...ends, ...marks), to = Math.max(high ?? 0, ...ends, ...marks);
      if (data.yKind === "share" && from >= 0 && to <= 1) return [0, data.chart === "dots" && !data.horizontal ? 1.03 : 1];
      return [from, to === from ? from + 1 : to + (to - from) * 0.06];
    };
  }

  // --- What uPlot does not draw by itself

  const scaled = (value) => value * devicePixelRatio;

  function write(plot, text, x, y, colour, align, baseline) {
    const { ctx } = plot;
    ctx.font = FONT.replace("12px", `${scaled(12)}px`);
    ctx.fillStyle = colour;
    ctx.textAlign = align;
    ctx.textBaseline = baseline;
    ctx.fillText(text, x, y);
  }

  function line(plot, from, to, colour, width, dash) {
    const { ctx } = plot;
    ctx.strokeStyle = colour;
    ctx.lineWidth = scaled(width);
    ctx.setLineDash((dash || []).map(scaled));
    ctx.beginPath();
    ctx.moveTo(...from);
    ctx.lineTo(...to);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  function drawMarks(plot, data, palette) {
    const { left, top, width, height } = plot.bbox;
    for (const mark of data.marks) {
      const upright = (mark.axis === "x") !== ("horizontal" in data);
      const at = plot.valToPos(mark.value, mark.axis, true);
      line(plot, upright ? [at, top] : [left, at], upright ? [at, top + height] : [left + width, at], palette.ink, 1, [4, 3]);
      if (upright) {
        const isRight = at > left + width / 2;
        write(plot, mark.label, at + scaled(isRight ? -5 : 5), top + scaled(2), palette.ink, isRight ? "right" : "left", "top");
      } else write(plot, mark.label, left + width, at - scaled(4), palette.ink, "right", "bottom");
    }
  }

  function drawIntervals(plot, data, tones) {
    const across = "horizontal" in data;
    data.series.forEach((each, index) => {
      each.low.forEach((low, i) => {
        if (low === null || each.high[i] === null || !plot.series[index + 1].show) return;
        const at = plot.valToPos(data.x[i], "x", true);
        const ends = [low, each.high[i]].map((value) => plot.valToPos(value, "y", true));
        line(plot, across ? [ends[0], at] : [at, ends[0]], across ? [ends[1], at] : [at, ends[1]], tones[index], 1.5);
      });
    });
  }

  function drawValues(plot, data, palette) {
    const { left, width } = plot.bbox;
    data.series[0].y.forEach((y, i) => {
      const text = y === null ? "" : data.yKind === "share" ? `${(100 * y).toFixed(1)}%` : shown(data.yKind)(y);
      write(plot, text, left + width + scaled(8), plot.valToPos(data.x[i], "x", true), palette.dim, "left", "middle");
    });
  }

  // --- Charts

  function chartOptions(data, width, palette) {
    const across = "horizontal" in data, named = data.xKind === "name";
    const rows = across && named ? rowNames(data.names, width, 22) : null;
    const isSingle = across && data.series.length === 1;
    const tones = data.series.map((each, index) => palette[each.tone] || palette.series[index % SERIES]);
    const isStack = data.chart === "area" || data.chart === "bars";
    const ys = isStack ? stacked(data.series, data.x.length) : data.series.map((each) => each.y);
    const order = data.series.map((_, index) => index);
    if (isStack) order.reverse(); // the whole first, its parts over it
    const series = order.map((index) => ({
      label: data.series[index].name, scale: "y", stroke: tones[index], width: data.chart === "line" ? 1.75 : 0,
      fill: isStack ? tones[index] : undefined,
      paths: data.chart === "bars" ? uPlot.paths.bars({ size: [named ? 0.62 : 0.92, rows ? 14 : 64], radius: 0.05 }) : data.chart === "dots" ? () => null : undefined,
      points: { show: data.chart === "dots" || (data.chart === "line" && data.x.length < 20) || (data.chart === "area" && data.x.length === 1), size: 7, width: 0, fill: tones[index] },
    }));
    const timed = data.xKind === "time";
    const xAxis = rows ? rowAxis(data, palette, rows, { side: 3 }) : named ? nameAxis(data, palette, width)
      : axis(palette, { side: across ? 3 : 2, size: across ? 60 : 26, grid: { show: across || data.chart === "dots", stroke: palette.rule, width: 1 },
        space: 70, label: data.xLabel, ...valuesOfX(data, "number") });
    const drawn = (plot) => {
      if (data.chart === "dots") drawIntervals(plot, data, tones);
      if (rows) drawNames(plot, rows.above, "x", palette, 8);
      if (isSingle) drawValues(plot, data, palette);
      drawMarks(plot, data, palette);
    };
    return {
      options: {
        width, height: rows ? data.names.length * rows.height + 60 : 240, series: [{ label: data.xLabel }, ...series], tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"),
        padding: [rows ? rows.top : 12, isSingle ? 56 : 28, 0, 0],
        scales: {
          x: { time: timed, distr: data.scale === "log" ? 3 : 1, range: xRange(data), ...(across ? { ori: 1, dir: -1 } : {}) },
          y: { range: yRange(data), ...(across ? { ori: 0, dir: 1 } : {}) },
        },
        axes: [xAxis, valueAxis(data, palette, across)], 
        legend: { show: data.series.length > 1, live: false, markers: { width: 0, fill: (_, index) => tones[order[index - 1]] } },
        cursor: { y: false, x: !named && data.chart !== "dots", drag: { x: !named, y: false }, points: { show: false } },
        hooks: { draw: [drawn] },
      },
      rows: [data.x, ...order.map((index) => ys[index])],
      hover: (plot) => (data.chart === "dots" ? nearest(plot, data) : atIndex(plot, data)),
    };
  }

  function atIndex(plot, data) {
    const i = plot.cursor.idx;
    if (i === null || i === undefined) return null;
    return { lines: [data.names[i], ...data.series.filter((each) => each.y[i] !== null).map((each) => `${each.name}: ${each.texts[i]}`)] };
  }

  function nearest(plot, data) {
    const { left, top } = plot.cursor;
    let best = null, least = "horizontal" in data ? Infinity : 24;
    data.series.forEach((each) => each.y.forEach((y, i) => {
      if (y === null) return;
      const [a, b] = [plot.valToPos(data.x[i], "x"), plot.valToPos(y, "y")];
      const far = "horizontal" in data ? Math.abs(a - top) + Math.abs(b - left) / 1e4 : Math.hypot(a - left, b - top);
      if (far < least) [least, best] = [far, { lines: [data.names[i], `${each.name}: ${each.texts[i]}`] }];
    }));
    return best;
  }

  // --- Lanes

  const LOOKS = [{ height: 9, ring: false }, { height: 12, ring: true }, { height: 5, ring: false }];
  const THIN = { height: 3, ring: false };

  function looks(data) { // of each kind: what is muted is a thin line, so that the others stand out
    let next = 0;
    return data.kinds.map((_, index) => (data.spans.some((span) => span.kind === index && span.tone !== "muted") ? LOOKS[next++ % LOOKS.length] : THIN));
  }

  function lanesOptions(data, width, palette) {
    const rows = rowNames(data.names, width, 18);
    const shapes = looks(data);
    const tone = (span) => palette[span.tone] || palette.series[span.kind % SERIES];
    const low = Math.min(...data.spans.map((span) => span.start)), high = Math.max(...data.spans.map((span) => span.end));
    const boxes = (plot) => data.spans.map((span) => {
      const [from, to] = [span.start, span.end].map((value) => plot.valToPos(value, "x"));
      return { span, from, to: Math.max(to, from + 1), y: plot.valToPos(span.lane, "y"), ...shapes[span.kind] };
    });
    const drawn = (plot) => {
      const { ctx } = plot, { left, top, width: across, height } = plot.bbox;
      drawNames(plot, rows.above, "y", palette, 7);
      ctx.save();
      ctx.beginPath();
      ctx.rect(left - scaled(5), top, across + scaled(10), height);
      ctx.clip();
      for (const box of boxes(plot)) {
        ctx.fillStyle = tone(box.span);
        ctx.beginPath();
        if (box.span.start === box.span.end) ctx.arc(left + scaled(box.from), top + scaled(box.y), scaled(4), 0, 7);
        else ctx.rect(left + scaled(box.from), top + scaled(box.y - box.height / 2), scaled(box.to - box.from), scaled(box.height));
        ctx.fill();
        ctx.strokeStyle = palette.ink;
        ctx.lineWidth = scaled(1);
        if (box.ring) ctx.stroke();
      }
      ctx.restore();
    };
    const hover = (plot) => {
      const { left, top } = plot.cursor;
      const hit = boxes(plot).filter((box) => Math.abs(box.y - top) < rows.height / 2 && left >= box.from - 4 && left <= box.to + 4);
      const found = hit.find((box) => box.span.start === box.span.end) || hit[hit.length - 1];
      if (!found) return null;
      const { span } = found;
      return { lines: [data.names[span.lane], `${data.kinds[span.kind]}: ${span.text}`, span.when.filter((text) => text).join(" to ")], link: span.link || data.laneLinks[span.lane] };
    };
    const timed = data.xKind === "time";
    return {
      options: {
        width, height: data.names.length * rows.height + 60, series: [{}, { scale: "y", paths: () => null, points: { show: false } }],
        tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"), padding: [rows.top, 28, 0, 0], legend: { show: false },
        scales: { x: { time: timed, range: (_, from, to) => [from, to] },
          y: { dir: -1, range: () => [-0.6, data.names.length - 0.4] } },
        axes: [axis(palette, { size: 26, space: 80, label: data.xLabel, ...valuesOfX(data, data.xKind) }), rowAxis(data, palette, rows, { scale: "y" })],
        cursor: { y: false, drag: { x: true, y: false }, points: { show: false } }, hooks: { draw: [drawn] },
      },
      rows: [[low, high > low ? high : low + 1], [null, null]], hover,
    };
  }

  function kindList(data, palette) {
    const list = document.createElement("ul");
    const shapes = looks(data);
    list.className = "chart-kinds";
    data.kinds.forEach((kind, index) => {
      const item = list.appendChild(document.createElement("li"));
      const swatch = item.appendChild(document.createElement("i"));
      const spans = data.spans.filter((span) => span.kind === index), tones = new Set(spans.map((span) => span.tone));
      const isMoment = spans.every((span) => span.start === span.end);
      // What is coloured by how it ended has no colour of its own.
      swatch.style.background = tones.size > 1 ? palette.dim : palette[spans[0].tone] || palette.series[index % SERIES];
      swatch.style.height = `${isMoment ? 8 : shapes[index].height}px`;
      if (shapes[index].ring) swatch.style.outline = `1px solid ${palette.ink}`;
      if (isMoment) Object.assign(swatch.style, { borderRadius: "50%", width: "8px" });
      item.append(kind);
    });
    return list;
  }

  // --- Showing

  function tooltip(plot, hover) {
    const tip = plot.over.appendChild(document.createElement("div"));
    tip.className = "chart-tip";
    tip.hidden = true;
    let found = null;
    const show = () => {
      found = plot.cursor.left >= 0 ? hover(plot) : null;
      tip.hidden = !found;
      plot.over.classList.toggle("leads", Boolean(found && found.link));
      if (!found) return;
      tip.replaceChildren(...found.lines.map((text) => Object.assign(document.createElement("div"), { textContent: text })));
      const room = plot.over.clientWidth - plot.cursor.left;
      tip.style.left = room > tip.offsetWidth + 16 ? `${plot.cursor.left + 12}px` : `${Math.max(-plot.over.offsetLeft, plot.cursor.left - tip.offsetWidth - 12)}px`;
      tip.style.top = `${Math.max(0, Math.min(plot.cursor.top, plot.over.clientHeight - tip.offsetHeight))}px`;
    };
    plot.over.addEventListener("mousemove", show);
    plot.over.addEventListener("mouseleave", () => { tip.hidden = true; });
    plot.over.addEventListener("click", () => found && found.link && found.link.click());
  }

  function draw(figure) {
    const chart = charts.get(figure);
    const slot = figure.querySelector(".chart-plot");
    const width = Math.floor(slot.clientWidth);
    if (!width || chart.width === width) return;
    chart.width = width;
    if (chart.plot) chart.plot.destroy();
    const palette = colours(figure);
    const isLanes = figure.dataset.chart === "lanes";
    const { options, rows, hover } = (isLanes ? lanesOptions : chartOptions)(chart.data, width, palette);
    slot.replaceChildren();
    if (isLanes) slot.append(kindList(chart.data, palette));
    slot.classList.toggle("stacked", figure.dataset.chart === "area" || figure.dataset.chart === "bars");
    chart.plot = new uPlot(options, rows, slot);
    tooltip(chart.plot, hover);
  }

  const sizes = new ResizeObserver((entries) => entries.forEach((entry) => draw(entry.target.closest("figure"))));

  function redraw() {
    for (const [figure, chart] of charts) {
      chart.width = 0;
      if (figure.isConnected) draw(figure);
    }
  }

  window.drawCharts = (root = document) => {
    for (const [figure, chart] of charts) {
      if (figure.isConnected) continue;
      if (chart.plot) chart.plot.destroy();
      sizes.unobserve(figure.querySelector(".chart-plot"));
      charts.delete(figure);
    }
    for (const figure of root.querySelectorAll("figure.chart[data-chart]")) {
      if (charts.has(figure)) continue;
      charts.set(figure, { data: figure.dataset.chart === "lanes" ? readLanes(figure) : readChart(figure), plot: null, width: 0 });
      sizes.observe(figure.querySelector(".chart-plot"));
    }
  };

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme", "class"] });
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", () => window.drawCharts());
  else window.drawCharts();
})();
