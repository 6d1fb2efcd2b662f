// Elements, number formats, colours and the tooltip, for every chart. Text enters the page as text only.

const $ = (id) => document.getElementById(id);

function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  return fill(node, attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) if (child !== null && child !== undefined) node.append(child);
  return node;
}

function scaled(value, step, suffixes, digits = 2) {
  let k = 0;
  while (Math.abs(value) >= step * 0.99995 && k < suffixes.length - 1) { value /= step; k += 1; }
  const places = Math.abs(value) >= 100 ? Math.min(digits, 1) : digits;
  return `${k === 0 && Number.isInteger(value) ? value : value.toFixed(places)} ${suffixes[k]}`.trim();
}

const fmt = {
  bytes: (v) => scaled(v, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]),
  rate: (v) => `${scaled(v, 1000, ["B", "kB", "MB", "GB", "TB", "PB"], 1)}/s`,
  flops: (v) => scaled(v, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP", "ZFLOP"]),
  count: (v) => (Math.abs(v) < 1e6 ? Math.round(v).toLocaleString("en-US") : scaled(v / 1e6, 1000, ["M", "B", "T"])),
  percent: (v, places = 1) => (v === null || v === undefined ? "–" : `${(100 * v).toFixed(v !== 0 && Math.abs(v) < 0.001 ? 2 : places)} %`),
  seconds: (v) => {
    if (v === 0) return "0";
    if (v >= 3600) return `${Math.floor(v / 3600)} h ${String(Math.round((v % 3600) / 60)).padStart(2, "0")} min`;
    if (v >= 60) return `${Math.floor(v / 60)} min ${String(Math.round(v % 60)).padStart(2, "0")} s`;
    if (v >= 1) return `${v.toFixed(v >= 100 ? 1 : 2)} s`;
    return v >= 1e-3 ? `${(v * 1e3).toFixed(2)} ms` : v >= 1e-6 ? `${(v * 1e6).toFixed(2)} µs` : `${Math.round(v * 1e9)} ns`;
  },
  // A moment, with enough digits to tell it from its neighbours `step` away.
  moment: (ns, step) => {
    const [unit, name] = ns >= 1e9 || step >= 1e8 ? [1e9, "s"] : ns >= 1e6 || step >= 1e5 ? [1e6, "ms"] : [1e3, "µs"];
    const digits = Math.min(Math.max(Math.ceil(-Math.log10(step / unit) - 1e-9), 0), 9);
    return ns === 0 ? "0" : `${(ns / unit).toFixed(digits)} ${name}`;
  },
  money: (v) => `$${v.toLocaleString("en-US", { minimumFractionDigits: v < 1000 ? 2 : 0, maximumFractionDigits: v < 1000 ? 2 : 0 })}`,
  number: (v) => (v >= 1000 ? Math.round(v).toLocaleString("en-US") : Number(v.toPrecision(3)).toString()),
};

// Splits a value from its unit, which is set smaller: "9.01 s" -> ["9.01", " s"].
function value(text) {
  const found = /^(-?[\d.,$]+)(.*)$/.exec(text);
  return found ? [found[1], h("small", {}, found[2])] : [text];
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim() || "#888888";
}

function parse(hex) {
  const n = parseInt(hex.slice(1), 16);
  return [(n >> 16) & 255, (n >> 8) & 255, n & 255];
}

// Dark or light ink, whichever reads better on a colour.
function inkOn(hex) {
  const [r, g, b] = parse(hex).map((c) => (c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#10161d" : "#ffffff";
}

// Brightness runs one way, so the scale can be read without telling hues apart: towards dark in the light theme, light in the dark one.
const HEAT = {
  light: ["#eef1f4", "#fde6b8", "#f9b26b", "#e2703d", "#b03a2e", "#641a35"],
  dark: ["#222b36", "#4a2750", "#8b2f5d", "#d1523f", "#f59638", "#fde58a"],
};

function heat(share) {
  const stops = HEAT[isDark() ? "dark" : "light"];
  const x = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const k = Math.min(Math.floor(x), stops.length - 2);
  const [a, b] = [parse(stops[k]), parse(stops[k + 1])];
  return `rgb(${a.map((c, i) => Math.round(c + (b[i] - c) * (x - k))).join(",")})`;
}

function isDark() { return document.documentElement.dataset.theme === "dark"; }

const FONT = `11.5px ${getComputedStyle(document.body).fontFamily}`;

const repaints = [];
function onTheme(paint) { repaints.push(paint); paint(); }

// A canvas as sharp as the screen; `paint(context, width, height)` runs again when size or theme change.
function canvas(height, paint, attributes = {}) {
  const node = h("canvas", attributes);
  const draw = () => {
    const width = node.clientWidth || node.parentElement?.clientWidth || 0;
    if (!width) return;
    const tall = typeof height === "function" ? height(width) : height;
    const ratio = window.devicePixelRatio || 1;
    node.style.height = `${tall}px`;
    node.width = Math.round(width * ratio);
    node.height = Math.round(tall * ratio);
    const context = node.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, tall);
    context.font = FONT;
    paint(context, width, tall);
  };
  new ResizeObserver(draw).observe(node);
  repaints.push(draw);
  node.redraw = draw;
  return node;
}

function tip(event, title, rows) {
  const node = $("tip");
  const list = h("dl", {}, rows.filter((row) => row && row[1] !== "").map(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
  node.replaceChildren(h("b", {}, title), list);
  node.hidden = false;
  const box = node.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
  const y = event.clientY + 14 + box.height > innerHeight ? event.clientY - 14 - box.height : event.clientY + 14;
  node.style.left = `${Math.max(x, 4)}px`;
  node.style.top = `${Math.max(y, 4)}px`;
}

function untip() { $("tip").hidden = true; }

// Shows the tooltip while the pointer or the keyboard is on a node.
function tipped(node, title, rows) {
  const show = (event) => tip(event, title, typeof rows === "function" ? rows() : rows);
  node.addEventListener("pointermove", show);
  node.addEventListener("pointerleave", untip);
  return node;
}

function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([name, hue, share]) =>
    h("li", {}, h("i", { style: { background: `var(--${hue})` } }), name, share === undefined ? null : h("b", {}, share))));
}

function card(id, title, text, ...children) {
  const tools = h("div", { class: "tools" });
  const node = h("section", { class: "card", id, "aria-label": title },
    h("div", { class: "head" }, h("h2", {}, title), text ? h("p", {}, text) : null, tools), children);
  node.tools = tools;
  return node;
}

function table(columns, rows) {
  const cell = (tag, column, content) => h(tag, { class: column.num ? "num" : column.keep ? "keep" : null, scope: tag === "th" ? "col" : null }, content);
  return h("div", { class: "scroll", tabindex: "0", role: "group" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((column) => cell("th", column, column.name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((content, k) => cell("td", columns[k], content)))))));
}

function meter(share, warm) {
  return h("div", { class: "meter" }, h("i", { class: warm ? "warm" : null, style: { width: `${Math.min(100 * share, 100)}%` } }));
}

// Round steps for an axis: at most `most` of them up to `end`.
function ticks(end, most, base = 10) {
  if (!(end > 0)) return [0];
  const raw = end / most;
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  const step = (base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16]).map((k) => k * power).find((s) => s >= raw) || base * power;
  const found = [];
  for (let k = 0; k * step <= end * 1.0001; k += 1) found.push(k * step);
  return found;
}

function short(name) { return name.replace(/^(aten|c10d|copy)::/, "").replace(/\.\w+$/, ""); }

function baseName(path) { return path.split("/").pop(); }

function plural(count, one, many) { return `${fmt.count(count)} ${count === 1 ? one : many}`; }
