// The page of one run.

function drawRun(data) {
  const { summary, charts } = data;
  const found = hasFindings(summary) ? [["findings", "Findings"]] : [];
  const sections = [
    hero(data), ...(found.length ? [findingsCard(data)] : []), tiles(summary), breakdownCard(summary, charts.classes),
    timelineCard(charts.tracks, charts.step_ns), memoryCard(charts.memory, summary, charts.step_ns), linksCard(charts.picture, summary),
    messagesCard(summary.transactions), h("div", { class: "half" }, basisCard(summary), notesCard(summary)),
  ];
  $("content").append(...sections);
  $("nav").append(...[...found, ["time", "Time"], ["timeline", "Timeline"], ["memory", "Memory"], ["links", "Links"], ["messages", "Messages"], ["notes", "Notes"]]
    .map(([id, name]) => h("a", { href: `#${id}` }, name)));
  footer(summary);
}

function hero(data) {
  const { summary } = data;
  const { cluster, capture } = summary;
  const devices = cluster.devices.map((device) => `${fmt.count(device.num_ranks)} × ${device.name}`).join(", ");
  const changes = Object.entries(summary.what_if).filter(([, v]) => v && Object.keys(Object(v)).length + (typeof v === "object" ? 0 : 1));
  const where = `${fmt.count(summary.world_size)} ranks on ${cluster.title}: ${devices}. ${plural(capture.classes.length, "class", "classes")} of equal ranks, ${plural(capture.captured_ranks.length, "rank", "ranks")} captured.`;
  return h("div", { class: "hero" }, h("h1", {}, data.title), h("p", { class: "where" }, where),
    changes.length ? h("p", { class: "where" }, "What if: ", changes.map(([name, v]) => h("span", { class: "pill" }, `${name} ${JSON.stringify(v)}`))) : null,
    summary.command.length ? h("code", { class: "command", tabindex: "0", "aria-label": "Command" }, summary.command.join(" ")) : null);
}

function tile(name, text, ...more) {
  return h("div", { class: "tile" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value(text)), more.map((each) => (typeof each === "string" ? h("div", { class: "more" }, each) : each)));
}

function tiles(summary) {
  const { efficiency, throughput, cost } = summary;
  const tier = summary.tiers.reduce((a, b) => (a && a.max_utilisation >= b.max_utilisation ? a : b), null);
  const all = [tile("Step", fmt.seconds(summary.step_seconds), `${fmt.number(3600 / summary.step_seconds)} steps per hour`, spread(summary.steps))];
  all.push(efficiency.mfu === null ? tile("Work", fmt.flops(efficiency.model_flops), "per step; no peak is known for this number type")
    : tile("Model FLOPs utilisation", fmt.percent(efficiency.mfu), `${fmt.flops(efficiency.model_flops_per_s_per_device)}/s per GPU, of ${efficiency.dtype}`,
      efficiency.hfu > efficiency.mfu * 1.0005 ? `${fmt.percent(efficiency.hfu)} with recomputation (HFU)` : ""));
  if (throughput?.tokens_per_s) all.push(tile("Tokens per second", fmt.count(throughput.tokens_per_s), `${fmt.count(throughput.tokens_per_s_per_gpu)} per GPU`));
  else if (throughput?.samples_per_s) all.push(tile("Samples per second", fmt.number(throughput.samples_per_s), `${fmt.count(throughput.samples_per_step)} per step`));
  all.push(...memoryTile(summary));
  if (tier) all.push(tile("Fullest link", fmt.percent(tier.max_utilisation), meter(tier.max_utilisation, tier.max_utilisation > 0.8), tier.busiest.length ? `${tier.busiest[0].name}` : tier.title));
  all.push(cost.usd_per_1000_steps !== null
    ? tile("1000 steps cost", fmt.money(cost.usd_per_1000_steps), `${fmt.number(cost.gpu_hours_per_1000_steps)} GPU-hours at ${fmt.money(cost.usd_per_gpu_hour)} each`)
    : tile("1000 steps take", `${fmt.number(cost.gpu_hours_per_1000_steps)} GPU-h`, "no price known; give one with --price"));
  return h("div", { class: "tiles" }, all);
}

// How the captured steps differ, where they do.
function spread(steps) {
  if (steps.slowest_seconds <= 1.01 * steps.fastest_seconds) return "";
  return `median of ${fmt.count(steps.num_timed)}: ${fmt.seconds(steps.fastest_seconds)} to ${fmt.seconds(steps.slowest_seconds)}; this page describes step ${fmt.count(steps.described)}`;
}

function memoryTile(summary) {
  const full = summary.memory.reduce((a, b) => (a && a.use.peak_reserved_bytes >= b.use.peak_reserved_bytes ? a : b), null);
  if (!full) return [];
  const share = full.use.capacity_bytes ? full.use.peak_reserved_bytes / full.use.capacity_bytes : 0;
  return [tile("Memory, fullest card", fmt.bytes(full.use.peak_reserved_bytes), meter(share, share > 0.9), `${fmt.percent(share, 0)} of the card, ranks ${full.ranks}`)];
}

function footer(summary) {
  const { effort } = summary;
  const words = effort.gpu_seconds_per_core_second;
  $("footer").textContent = `Rehearsed in ${fmt.seconds(effort.capture_wall_seconds + effort.simulation_wall_seconds)} with ${fmt.bytes(effort.peak_rss_bytes)} of memory${words ? `: ${fmt.number(words)} GPU-seconds per core-second` : ""}. sandtable ${summary.sandtable}.`;
}

const BASIS = { measured: ["measured tables", "optimizer"], fitted: ["formulas fitted to measurements", "forward"], nominal: ["nominal peaks", "communication"] };

function basisCard(summary) {
  const node = card("basis", "What it rests on", "Where compute times and the links' numbers come from.");
  const pieces = Object.entries(summary.basis).map(([key, share]) => ({ key: BASIS[key]?.[1] || "other", name: BASIS[key]?.[0] || key, value: share }));
  pieces.total = pieces.reduce((a, piece) => a + piece.value, 0) || 1;
  node.append(stack(pieces, pieces.total, (v) => fmt.percent(v), { "aria-label": pieces.map((p) => `${p.name} ${fmt.percent(p.value)}`).join(", ") }),
    legend(pieces.filter((p) => p.value > 0.0005).map((p) => [p.name, p.key, fmt.percent(p.value, 0)])));
  if (summary.cluster.links.length) {
    node.append(table([{ name: "links", keep: true }, { name: "nominal", num: true }, { name: "status" }, { name: "source" }],
      summary.cluster.links.map((link) => [link.kind, link.bandwidth_bytes_per_s ? fmt.rate(link.bandwidth_bytes_per_s) : "–", h("span", { class: `pill ${link.status}` }, link.status), link.source])));
  }
  return node;
}

function notesCard(summary) {
  const node = card("notes", "Notes", "What to know about the capture.");
  const { notes, sync_points: syncs } = summary.capture;
  const item = (text, file, line) => h("li", {}, text, file ? h("code", { class: "at" }, placeText(file, line)) : null);
  if (!notes.length && !syncs.length) node.append(h("p", { class: "hint" }, "None."));
  if (notes.length) node.append(h("ul", { class: "notes" }, notes.slice(0, 20).map((note) => item(`${note.kind}: ${note.text}`, note.file, note.line))));
  if (syncs.length) {
    node.append(h("h3", {}, "Where hosts wait for their device"),
      table([{ name: "line" }, { name: "why", keep: true }, { name: "times", num: true }, { name: "ranks", num: true }],
        syncs.slice(0, 8).map((point) => [[placeText(baseName(point.file), point.line), h("div", { class: "hint" }, point.function)], point.kind, fmt.count(point.num_syncs), fmt.count(point.num_ranks)])));
  }
  return node;
}
