// The page of several runs, side by side. The first run is the baseline.

function drawCompare(data) {
  const { runs } = data;
  $("content").append(compareHero(data), compareTimes(runs), compareFigures(runs), h("div", { class: "half" }, compareMemory(runs), compareLinks(runs)));
  $("nav").append(...[["time", "Time"], ["figures", "Figures"], ["memory", "Memory"], ["links", "Links"]].map(([id, name]) => h("a", { href: `#${id}` }, name)));
  $("footer").textContent = `Differences are relative to ${runs[0].name}. sandtable ${runs[0].summary.sandtable}.`;
}

function compareHero(data) {
  return h("div", { class: "hero" }, h("h1", {}, data.title),
    h("p", { class: "where" }, data.runs.map((run) => `${run.name}: ${fmt.count(run.summary.world_size)} ranks on ${run.summary.cluster.title}`).join("; ")));
}

function isTimed(run) { return run.summary.step_seconds !== null; }

function compareTimes(runs) {
  const node = card("time", "Step time, and where it goes", "The slowest rank of each run, on one scale.");
  const timed = runs.filter(isTimed);
  const longest = Math.max(...timed.map((run) => run.summary.step_seconds), 0);
  const rows = h("div", { class: "rows" });
  for (const run of runs) {
    if (!isTimed(run)) {
      const reason = run.summary.findings[0]?.message || "not every rank was captured";
      rows.append(h("div", { class: "label", title: run.name }, h("b", {}, run.name)), h("div", { class: "hint" }, reason), h("div", { class: "end" }, "no time"));
      continue;
    }
    const { parts } = run.summary.breakdown.slowest;
    rows.append(h("div", { class: "label", title: run.name }, h("b", {}, run.name)), timeStack(parts, longest),
      h("div", { class: "end" }, fmt.seconds(run.summary.step_seconds), difference(run.summary.step_seconds, runs[0].summary.step_seconds, false)));
  }
  node.append(timeLegend(timed.map((run) => run.summary.breakdown.slowest.parts)), rows);
  return node;
}

// Name, value, format, and whether higher is better (null: neither).
const FIGURES = [
  ["step", (s) => s.step_seconds, fmt.seconds, false],
  ["ranks", (s) => s.world_size, fmt.count, null],
  ["MFU", (s) => s.efficiency?.mfu, fmt.percent, true],
  ["HFU", (s) => s.efficiency?.hfu, fmt.percent, true],
  ["work per GPU and second", (s) => s.efficiency?.model_flops_per_s_per_device, (v) => fmt.flops(v), true],
  ["tokens per second", (s) => s.throughput?.tokens_per_s, fmt.count, true],
  ["samples per second", (s) => s.throughput?.samples_per_s, fmt.number, true],
  ["fullest card, reserved", (s) => Math.max(...s.memory.map((m) => m.use.peak_reserved_bytes), 0), fmt.bytes, false],
  ["fullest link", (s) => s.tiers && Math.max(...s.tiers.map((t) => t.max_utilisation), 0), fmt.percent, null],
  ["GPU-hours for 1000 steps", (s) => s.cost?.gpu_hours_per_1000_steps, fmt.number, false],
  ["cost of 1000 steps", (s) => s.cost?.usd_per_1000_steps, fmt.money, false],
  ...PARTS.filter(([key]) => key !== "communication" && key !== "other").map(([key, name]) => [name, (s) => s.breakdown?.slowest.parts[key], fmt.seconds, false]),
];

function difference(value, base, higherIsBetter) {
  if (!base || value === base) return null;
  const share = value / base - 1;
  if (Math.abs(share) < 0.0005) return null;
  const tone = higherIsBetter === null ? "" : share > 0 === higherIsBetter ? "good" : "bad";
  return h("span", { class: `delta ${tone}` }, `${share > 0 ? "▲" : "▼"} ${Math.abs(100 * share).toFixed(Math.abs(share) < 0.1 ? 1 : 0)} %`);
}

function compareFigures(runs) {
  const node = card("figures", "Figures", "Per step; the parts are those of the slowest rank.");
  const axes = [...new Set(runs.filter(isTimed).flatMap((run) => Object.keys(run.summary.breakdown.slowest.parts.communication)))].sort();
  const lines = [...FIGURES, ...axes.map((axis) => [`communication, ${axis || "world"}`, (s) => s.breakdown && (s.breakdown.slowest.parts.communication[axis] || 0), fmt.seconds, false])];
  const rows = lines.map(([name, of, text, better]) => {
    const values = runs.map((run) => of(run.summary));
    if (values.every((v) => v === null || v === undefined || v === 0)) return null;
    return [name, ...values.map((v, k) => (v === null || v === undefined ? "–" : [text(v), k ? difference(v, values[0], better) : null]))];
  });
  node.append(table([{ name: "" }, ...runs.map((run) => ({ name: run.name, num: true }))], rows.filter(Boolean)));
  return node;
}

function compareMemory(runs) {
  const node = card("memory", "Memory of the fullest card", "When most is allocated, on one scale.");
  const fullest = runs.map((run) => run.summary.memory.reduce((a, b) => (a && a.use.peak_reserved_bytes >= b.use.peak_reserved_bytes ? a : b), null));
  const end = Math.max(...fullest.map((row) => row?.use.reserved_bytes || 0), 1);
  const rows = h("div", { class: "rows" });
  runs.forEach((run, k) => {
    if (!fullest[k]) return;
    const { use } = fullest[k];
    rows.append(h("div", { class: "label", title: run.name }, h("b", {}, run.name)), memoryStack(use, end, { class: "stack half-wide" }),
      h("div", { class: "end" }, `${fmt.bytes(use.reserved_bytes)} of ${fmt.bytes(use.capacity_bytes)}`));
  });
  node.append(legend(CATEGORIES.map((name) => [name, name])), rows);
  return node;
}

function compareLinks(runs) {
  const node = card("links", "Fullest link of each tier", "Share of the bytes it could have carried in the step.");
  const names = [...new Map(runs.filter(isTimed).flatMap((run) => run.summary.tiers.map((tier) => [tier.tier, tier.title])))];
  const columns = [{ name: "tier", keep: true }, ...runs.map((run) => ({ name: run.name, num: true }))];
  node.append(table(columns, names.map(([name, title]) => [title, ...runs.map((run) => {
    const tier = run.summary.tiers?.find((each) => each.tier === name);
    return tier ? [fmt.percent(tier.max_utilisation), meter(tier.max_utilisation, tier.max_utilisation > 0.8)] : "–";
  })])));
  return node;
}
