// Stacked bars: where the step goes, and what fills the card.

const PARTS = [
  ["forward", "forward"], ["backward", "backward"], ["recompute", "recompute"], ["optimizer", "optimizer"],
  ["communication", "exposed communication"], ["bubble", "pipeline bubble"], ["straggler", "waiting for the slowest"],
  ["host", "host-bound"], ["input", "input wait"], ["other", "other"],
];

const CATEGORIES = ["parameters", "gradients", "optimizer", "buffers", "activations", "temporary"];

function amounts(parts) {
  const sum = (axes) => Object.values(axes).reduce((a, b) => a + b, 0);
  return PARTS.map(([key, name]) => ({ key, name, value: Math.max(key === "communication" ? sum(parts.communication) : parts[key], 0) }));
}

function partsTotal(parts) { return amounts(parts).reduce((a, part) => a + part.value, 0); }

// A bar of pieces [{key, name, value}], `end` long; `text` formats a piece's value.
function stack(pieces, end, text, attributes = {}) {
  const node = h("div", { class: "stack", role: "img", ...attributes });
  for (const piece of pieces) {
    const share = end > 0 ? piece.value / end : 0;
    if (share <= 0) continue;
    const span = h("span", { style: { width: `${100 * share}%`, background: `var(--${piece.key})` } });
    onTheme(() => { span.style.color = inkOn(colour(piece.key)); });
    if (share > (attributes.class?.includes("half-wide") ? 0.11 : 0.045) && !attributes.class?.includes("thin")) span.textContent = `${Math.round(100 * piece.value / pieces.total)} %`;
    node.append(tipped(span, piece.name, () => [["", text(piece.value)], ["share", fmt.percent(piece.value / pieces.total)], ...(piece.more || [])]));
  }
  return node;
}

function timeStack(parts, end, attributes = {}) {
  const pieces = amounts(parts);
  pieces.total = partsTotal(parts);
  const axes = Object.entries(parts.communication).sort((a, b) => b[1] - a[1]);
  pieces.find((piece) => piece.key === "communication").more = axes.map(([axis, v]) => [axis || "world", fmt.seconds(v)]);
  const words = pieces.filter((p) => p.value > 0).map((p) => `${p.name} ${fmt.percent(p.value / pieces.total)}`).join(", ");
  return stack(pieces, end, fmt.seconds, { "aria-label": words, ...attributes });
}

function memoryStack(use, end, attributes = {}) {
  const pieces = CATEGORIES.map((key) => ({ key, name: key, value: use.bytes_by_category[key] }));
  pieces.push({ key: "other", name: "fragmentation (reserved, not in use)", value: use.fragmentation_bytes });
  pieces.total = use.reserved_bytes || 1;
  const words = pieces.filter((p) => p.value > 0).map((p) => `${p.name} ${fmt.bytes(p.value)}`).join(", ");
  return stack(pieces, end, fmt.bytes, { "aria-label": words, ...attributes });
}

function timeLegend(all) {
  const used = PARTS.filter(([key]) => all.some((parts) => amounts(parts).find((p) => p.key === key).value > 0.0005 * partsTotal(parts)));
  return legend(used.map(([key, name]) => [name, key]));
}

const WHO = { slowest: "slowest rank", median: "median rank", first: "first rank", mean: "mean of all" };

function breakdownCard(summary, classes) {
  const node = card("time", "Where the step goes",
    "What keeps each rank's device busy or idle. Communication counts only where compute does not hide it.");
  const rows = h("div", { class: "rows" });
  for (const [key, row] of Object.entries(summary.breakdown)) {
    rows.append(
      h("div", { class: "label" }, h("b", {}, WHO[key]), row.rank === null ? "" : ` ${row.rank}`),
      timeStack(row.parts, partsTotal(row.parts)),
      h("div", { class: "end" }, fmt.seconds(partsTotal(row.parts))));
  }
  if (classes.length > 1) rows.append(h("div", { class: "gap" }));
  for (const row of classes.length > 1 ? classes : []) {
    rows.append(
      h("div", { class: "label", title: `ranks ${row.ranks}` }, row.ranks),
      timeStack(row.parts, partsTotal(row.parts), { class: "stack thin" }),
      h("div", { class: "end" }, row.num_ranks > 1 ? `× ${fmt.count(row.num_ranks)}` : ""));
  }
  const everyone = Object.values(summary.breakdown).map((row) => row.parts);
  node.append(timeLegend(everyone.concat(classes.map((row) => row.parts))), rows, breakdownTable(summary));
  return node;
}

function breakdownTable(summary) {
  const who = Object.entries(summary.breakdown);
  const columns = [{ name: "part" }, ...who.map(([key]) => ({ name: WHO[key], num: true }))];
  const axes = [...new Set(who.flatMap(([, row]) => Object.keys(row.parts.communication)))].sort();
  const lines = PARTS.filter(([key]) => key !== "communication").map(([key, name]) => [name, (parts) => parts[key]]);
  lines.splice(4, 0, ...axes.map((axis) => [`communication, ${axis || "world"}`, (parts) => parts.communication[axis] || 0]));
  const rows = lines.map(([name, of]) => [name, ...who.map(([, row]) => fmt.seconds(of(row.parts)))]);
  return h("details", {}, h("summary", {}, "As a table"), table(columns, rows));
}
