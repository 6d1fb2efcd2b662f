// What is wrong with a run, with the script lines it is about, and how far each rank got.

const SEVERITIES = ["error", "warning", "note"];
const STOPPED = { "": "end of the script", "script ended": "end of the script", failed: "the script failed", steps: "step limit", "max-operators": "operator limit" };

function rankNames(ranks) {
  const shown = ranks.slice(0, 8).join(", ") + (ranks.length > 8 ? ", …" : "");
  return `${ranks.length === 1 ? "rank" : "ranks"} ${shown}`;
}

// A line of the script, as in Python's `place_text`.
function placeText(file, line) {
  if (!line) return file;
  return /\.ipynb cell \d+$/.test(file) ? `${file} line ${line}` : `${file}:${line}`;
}

// The lines around a place in the script; the place itself is marked.
function excerpt(source) {
  const width = String(source.first + source.lines.length - 1).length;
  const rows = source.lines.map((text, k) => {
    const number = source.first + k;
    return h("span", { class: number === source.line ? "here" : null }, h("i", {}, String(number).padStart(width)), text || " ", "\n");
  });
  return h("pre", { class: "excerpt", tabindex: "0", "aria-label": `${source.file}, line ${source.line}` }, h("code", {}, rows));
}

function evidenceItem(item, sources, quoted) {
  const place = `${item.file}:${item.line}`;
  const source = quoted.has(place) ? null : sources[place];
  quoted.add(place);
  return h("li", {},
    h("div", { class: "seen" }, h("b", {}, rankNames(item.ranks)), ` ${item.text} `, item.file ? h("code", { class: "at" }, placeText(item.file, item.line)) : null),
    source ? excerpt(source) : null);
}

function findingBlock(finding, { sources, pages }) {
  const quoted = new Set();
  const shown = finding.evidence.slice(0, 12), rest = finding.evidence.length - shown.length;
  return h("article", { class: `finding ${finding.severity}`, "data-severity": finding.severity },
    h("div", { class: "what" }, h("span", { class: "severity" }, finding.severity), h("code", {}, finding.rule),
      finding.ranks.length ? h("span", { class: "hint" }, rankNames(finding.ranks)) : null),
    h("p", { class: "message" }, finding.message),
    shown.length ? h("ul", { class: "evidence" }, shown.map((item) => evidenceItem(item, sources, quoted))) : null,
    rest > 0 ? h("p", { class: "hint" }, `${rest} more in summary.json.`) : null,
    finding.remedy ? h("p", { class: "remedy" }, h("b", {}, "Remedy"), ` ${finding.remedy}`) : null,
    explanation(finding.rule, pages));
}

// Buttons that show and hide the findings of a severity, where there are several.
function severityButtons(counts, node) {
  return counts.map(([severity, count]) => {
    const button = h("button", { type: "button", class: "button", "aria-pressed": "true", "data-severity": severity }, plural(count, severity, `${severity}s`));
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      node.querySelectorAll(`article[data-severity="${severity}"]`).forEach((article) => { article.hidden = !shown; });
    });
    return button;
  });
}

// What a comment in the script or an option silences: one line each.
function silencedList(silenced) {
  const place = (finding) => finding.evidence.find((item) => item.file);
  return h("details", { class: "silenced" }, h("summary", {}, plural(silenced.length, "silenced finding", "silenced findings")),
    h("ul", { class: "notes" }, silenced.slice(0, 50).map((finding) => h("li", {}, `${finding.severity} `, h("code", {}, finding.rule), ` ${finding.message} `,
      place(finding) ? h("code", { class: "at" }, placeText(place(finding).file, place(finding).line)) : null))));
}

function findingsCard(data) {
  const { findings, silenced } = data.summary;
  const counts = SEVERITIES.map((severity) => [severity, findings.filter((finding) => finding.severity === severity).length]).filter(([, count]) => count);
  const node = card("findings", "Findings", counts.length === 1 ? plural(counts[0][1], counts[0][0], `${counts[0][0]}s`) : null);
  const sorted = [...findings].sort((a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity));
  node.append(...sorted.slice(0, 50).map((finding) => findingBlock(finding, data)));
  if (counts.length > 1) node.tools.append(...severityButtons(counts, node));
  if (silenced.length) node.append(silencedList(silenced));
  if (sorted.length > 50) node.append(h("p", { class: "hint" }, `${sorted.length - 50} more in summary.json.`));
  return node;
}

function hasFindings(summary) { return summary.findings.length + summary.silenced.length > 0; }

function progressCard(summary, sources) {
  const { progress } = summary;
  const node = card("progress", "How far each rank got", "One row per class of equal ranks. The bar shows operators executed, against the rank that executed most.");
  if (!progress.length) { node.append(h("p", { class: "hint" }, "No rank recorded anything.")); return node; }
  const classes = new Map(summary.capture.classes.map((row) => [row.representative, row]));
  const most = Math.max(...progress.map((row) => row.num_operators), 1);
  const columns = [{ name: "ranks" }, { name: "steps", num: true }, { name: "operators", num: true }, { name: "" }, { name: "last call" }, { name: "stopped" }];
  const rows = progress.slice(0, 64).map((row) => {
    const known = classes.get(row.rank);
    const source = sources[`${row.file}:${row.line}`];
    const text = source?.lines[row.line - source.first]?.trim();
    return [h("b", {}, known ? known.ranks : String(row.rank)), fmt.count(row.num_steps), fmt.count(row.num_operators), meter(row.num_operators / most, row.num_operators < most),
      [row.last_call || h("span", { class: "hint" }, "no call"), row.file ? h("div", {}, h("code", { class: "at" }, placeText(row.file, row.line))) : null, text ? h("div", {}, h("code", { class: "quoted" }, text)) : null],
      STOPPED[row.stop_reason] || row.stop_reason];
  });
  node.append(h("div", { class: "progress-table" }, table(columns, rows)));
  const rest = progress.length - rows.length;
  const silent = summary.world_size - summary.capture.classes.reduce((sum, row) => sum + row.num_ranks, 0);
  if (rest > 0) node.append(h("p", { class: "hint" }, `${plural(rest, "more class is", "more classes are")} in summary.json.`));
  if (silent > 0) node.append(h("p", { class: "hint" }, `${plural(silent, "rank was", "ranks were")} not captured.`));
  return node;
}

// The page of a run whose step time could not be computed.
function drawUntimed(data) {
  const { summary, sources } = data;
  const sections = [["findings", "Findings", hasFindings(summary) ? findingsCard(data) : null], ["progress", "Progress", progressCard(summary, sources)],
    ["memory", "Memory", summary.memory.some((row) => row.use.peak_reserved_bytes) ? untimedMemory(summary) : null], ["notes", "Notes", notesCard(summary)]].filter(([, , node]) => node);
  $("content").append(hero(data), untimedTiles(summary), ...sections.map(([, , node]) => node));
  $("nav").append(...sections.map(([id, name]) => h("a", { href: `#${id}` }, name)));
  footer(summary);
}

function untimedTiles(summary) {
  const errors = summary.findings.filter((finding) => finding.severity === "error").length;
  const steps = summary.progress.map((row) => row.num_steps);
  const [fewest, most] = [Math.min(...steps), Math.max(...steps)];
  const all = [
    tile("Step", "no time", errors ? `${plural(errors, "error stops", "errors stop")} the run` : "only some of the ranks were captured"),
    tile("Captured", plural(summary.capture.captured_ranks.length, "rank", "ranks"), `of ${fmt.count(summary.world_size)}, in ${plural(summary.capture.classes.length, "class", "classes")}`),
  ];
  if (steps.length) all.push(tile("Steps completed", fewest === most ? fmt.count(most) : `${fmt.count(fewest)} to ${fmt.count(most)}`, `${fmt.count(summary.capture.operators_captured)} operators recorded`));
  all.push(...memoryTile(summary));
  return h("div", { class: "tiles" }, all);
}

function untimedMemory(summary) {
  const node = card("memory", "Memory", "Allocated memory at the fullest moment before the run stopped, by category.");
  node.append(legend([...CATEGORIES.map((name) => [name, name]), ["reserved, not in use", "other"]]), memoryClasses(summary));
  return node;
}
