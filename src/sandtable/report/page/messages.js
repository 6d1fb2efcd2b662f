// The sizes of messages: for each collective its calls, in bins of powers of two.

const BASE = ["axis-0", "forward", "recompute", "optimizer", "axis-1", "backward", "host", "input"];

function messagesCard(transactions) {
  const node = card("messages", "Messages", "Calls of all ranks in one step, by size. Each bar is a power of two.");
  if (!transactions.length) { node.append(h("p", { class: "hint" }, "No rank communicates with another.")); return node; }
  const holder = h("div");
  const buttons = ["count", "bytes"].map((measure) => h("button", { type: "button", class: "button", onclick: () => draw(measure) }, measure === "count" ? "calls" : "bytes"));
  const draw = (measure) => {
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(["count", "bytes"][k] === measure)));
    holder.replaceChildren(ridges(transactions.slice(0, 12), measure));
  };
  draw("count");
  node.tools.append(...buttons);
  fill(node, {}, [holder, transactions.length > 12 ? h("p", { class: "hint" }, `${plural(transactions.length - 12, "more collective is", "more collectives are")} in summary.json.`) : null, callsTable(transactions)]);
  return node;
}

function ridges(rows, measure) {
  const powers = rows.flatMap((row) => row.bins.map((bin) => Math.log2(bin.from_bytes)));
  const low = Math.min(...powers), high = Math.max(...powers, low + 7);
  const node = h("div", { class: "ridge" });
  rows.forEach((row, index) => {
    const most = Math.max(...row.bins.map((bin) => bin[measure]), 1);
    const bins = h("div", { class: "bins", role: "img", "aria-label": row.bins.map((bin) => `from ${fmt.bytes(bin.from_bytes)} ${fmt.count(bin.count)} calls`).join(", ") });
    for (let power = low; power <= high; power += 1) {
      const bin = row.bins.find((each) => each.from_bytes === 2 ** power);
      const bar = h("i", { style: { height: bin ? `${Math.max(100 * bin[measure] / most, 4)}%` : "0", background: `var(--${BASE[index % BASE.length]})` } });
      bins.append(bin ? tipped(bar, `${row.op}${row.axis ? `, ${row.axis}` : ""}`, [
        ["size", `${fmt.bytes(bin.from_bytes)} to ${fmt.bytes(bin.to_bytes)}`], ["calls", fmt.count(bin.count)], ["bytes", fmt.bytes(bin.bytes)]]) : bar);
    }
    const most_used = Object.keys(row.algorithms || {}).filter(Boolean).slice(0, 2).join(", ");
    node.append(h("div", { class: "label" }, row.op, h("span", {}, row.axis ? ` ${row.axis}` : "")), bins,
      h("div", { class: "end" }, measure === "count" ? `${fmt.count(row.count)} calls` : fmt.bytes(row.bytes), most_used ? h("div", {}, most_used) : null));
  });
  const every = Math.max(Math.ceil((high - low + 1) / 12), 1);
  const marks = h("div", { class: "ticks", "aria-hidden": "true" });
  for (let power = low; power <= high; power += 1) marks.append(h("span", {}, (power - low) % every ? "" : fmt.bytes(2 ** power).replace(/\.00/, "")));
  node.append(h("div"), marks, h("div"));
  return node;
}

function callsTable(transactions) {
  const columns = [{ name: "collective" }, { name: "axis" }, { name: "calls", num: true }, { name: "bytes", num: true }, { name: "algorithms" }];
  const rows = transactions.map((row) => [row.op, row.axis, fmt.count(row.count), fmt.bytes(row.bytes),
    Object.entries(row.algorithms || {}).map(([name, count]) => `${name || "–"} × ${fmt.count(count)}`).join(", ")]);
  return h("details", {}, h("summary", {}, "As a table"), table(columns, rows));
}
