// Memory over the step, stacked by category, with the reserved memory and the card's capacity.

function memoryCard(memory, summary, stepNs) {
  const node = card("memory", "Memory", "Allocated memory over the step, by category. The line shows what the allocator has reserved.");
  if (!memory.length) { node.append(h("p", { class: "hint" }, "No allocations were recorded.")); return node; }
  const worst = memory.reduce((a, b) => (Math.max(...b.reserved) > Math.max(...a.reserved) ? b : a));
  const holder = h("div");
  const draw = (which) => holder.replaceChildren(memoryChart(which, stepNs));
  const choice = h("select", { "aria-label": "Rank", onchange: (event) => draw(memory[Number(event.target.value)]) },
    memory.map((each, k) => h("option", { value: k, selected: each === worst }, `rank ${each.rank}`)));
  if (memory.length > 1) node.tools.append(choice);
  draw(worst);
  const used = CATEGORIES.filter((_, k) => memory.some((each) => each.bytes[k].some((v) => v > 0)));
  node.append(legend(used.map((name) => [name, name])), holder, memoryClasses(summary));
  if (summary.capture.num_steps < 2) node.append(h("p", { class: "hint" }, "One step was captured, so optimizer states appear at its end. With --steps 2 they exist from the start, as in a running job."));
  return node;
}

function memoryChart(data, stepNs) {
  const W = 1160, H = 270, left = 66, right = 12, top = 12, bottom = 24;
  const total = data.time.map((_, i) => data.bytes.reduce((sum, column) => sum + column[i], 0));
  const highest = Math.max(...total, ...data.reserved, 1);
  const offChart = data.capacity > 3 * highest;
  const end = (offChart ? highest : Math.max(highest, data.capacity)) * 1.06;
  const x = (t) => left + (W - left - right) * t / stepNs;
  const y = (b) => top + (H - top - bottom) * (1 - b / end);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Memory of rank ${data.rank} over the step, at most ${fmt.bytes(highest)}` });
  for (const tick of ticks(end, 6, 16)) {
    chart.append(svg("line", { class: "grid-line", x1: left, x2: W - right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, fmt.bytes(tick)));
  }
  for (const tick of ticks(stepNs, 9)) chart.append(svg("text", { x: x(tick), y: H - 6, "text-anchor": tick ? "middle" : "start" }, fmt.seconds(tick / 1e9)));
  let below = data.time.map(() => 0);
  CATEGORIES.forEach((name, k) => {
    const above = below.map((value, i) => value + data.bytes[k][i]);
    if (data.bytes[k].some((v) => v > 0)) chart.append(svg("path", { d: area(data.time, below, above, x, y), style: { fill: `var(--${name})` }, "data-category": name }));
    below = above;
  });
  chart.append(svg("path", { class: "res-line", d: steps(data.time, data.reserved, x, y) }));
  if (!offChart) chart.append(svg("line", { class: "cap-line", x1: left, x2: W - right, y1: y(data.capacity), y2: y(data.capacity) }));
  const note = offChart ? `The card's ${fmt.bytes(data.capacity)} are far above this chart.` : `Dashed: the card's ${fmt.bytes(data.capacity)}.`;
  return h("div", {}, memoryHover(chart, data, total, { W, H, left, right, top, bottom, stepNs, x }), h("p", { class: "hint" }, note));
}

function memoryHover(chart, data, total, box) {
  const cross = svg("line", { class: "cross", y1: box.top, y2: box.H - box.bottom, visibility: "hidden" });
  chart.append(cross);
  chart.addEventListener("pointermove", (event) => {
    const frame = chart.getBoundingClientRect();
    const t = ((event.clientX - frame.left) / frame.width * box.W - box.left) / (box.W - box.left - box.right) * box.stepNs;
    if (t < 0 || t > box.stepNs) return;
    let i = data.time.findIndex((moment) => moment > t);
    i = i < 0 ? data.time.length - 1 : Math.max(i - 1, 0);
    cross.setAttribute("x1", box.x(t));
    cross.setAttribute("x2", box.x(t));
    cross.setAttribute("visibility", "visible");
    tip(event, `${fmt.bytes(total[i])} at ${fmt.seconds(t / 1e9)}`, [
      ...CATEGORIES.map((name, k) => [name, data.bytes[k][i] ? fmt.bytes(data.bytes[k][i]) : ""]),
      ["reserved", fmt.bytes(data.reserved[i])]]);
  });
  chart.addEventListener("pointerleave", () => { cross.setAttribute("visibility", "hidden"); untip(); });
  return chart;
}

// Values hold until the next point: memory changes in jumps.
function steps(time, values, x, y) {
  return values.map((v, i) => `${i ? `H${x(time[i]).toFixed(1)}V` : `M${x(time[0]).toFixed(1)} `}${y(v).toFixed(1)}`).join("");
}

function area(time, below, above, x, y) {
  let path = steps(time, above, x, y);
  for (let i = below.length - 1; i >= 0; i -= 1) path += `L${x(time[Math.min(i + 1, time.length - 1)]).toFixed(1)} ${y(below[i]).toFixed(1)}H${x(time[i]).toFixed(1)}`;
  return `${path}Z`;
}

function memoryClasses(summary) {
  const rows = h("div", { class: "rows" });
  const shown = [...summary.memory].sort((a, b) => b.use.peak_reserved_bytes - a.use.peak_reserved_bytes).slice(0, 16);
  for (const row of shown) {
    const { use } = row;
    const fits = use.capacity_bytes > 0 && use.peak_reserved_bytes * 3 > use.capacity_bytes;
    const bar = memoryStack(use, fits ? use.capacity_bytes : Math.max(...shown.map((each) => each.use.reserved_bytes)), { class: "stack thin" });
    rows.append(
      h("div", { class: "label", title: `ranks ${row.ranks}` }, row.ranks), bar,
      h("div", { class: "end" }, `${fmt.bytes(use.peak_reserved_bytes)} reserved, ${fmt.percent(use.peak_reserved_bytes / (use.capacity_bytes || 1), 0)} of the card`));
  }
  const rest = summary.memory.length - shown.length;
  return h("div", {}, h("h3", {}, "At the fullest moment, by class of ranks"), h("div", { style: { height: "8px" } }), rows,
    rest > 0 ? h("p", { class: "hint" }, `${plural(rest, "more class is", "more classes are")} in summary.json.`) : null);
}
