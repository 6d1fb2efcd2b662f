// How full each link is, drawn over the cluster: switches as frames, nodes as boxes, GPU ports and adapters as cells.

function linksCard(picture, summary) {
  const node = card("links", "Links", "Share of the bytes each link could have carried in the step, in its fuller direction.");
  const most = Math.max(...summary.tiers.map((tier) => tier.max_utilisation), 0);
  const end = [0.05, 0.1, 0.25, 0.5, 1].find((limit) => limit >= most) || 1;
  const map = new HeatMap(picture, end);
  node.tools.append(heatScale(end));
  const room = () => h("div", { style: { height: "16px" } });
  const isFlat = picture.boxes.length <= 16, busiest = busiestTable(summary);
  node.append(h("div", { class: "split" }, h("div", {}, map.node, h("p", { class: "hint" }, map.note), isFlat ? [room(), busiest] : null),
    h("div", {}, tierTable(summary), isFlat ? null : [room(), busiest])));
  return node;
}

function heatScale(end) {
  const strip = canvas(10, (context, width) => {
    for (let x = 0; x < width; x += 1) { context.fillStyle = heat(x / width); context.fillRect(x, 0, 1, 10); }
  }, { "aria-hidden": "true" });
  return h("span", { class: "scale" }, "0", strip, fmt.percent(end, 0));
}

class HeatMap {
  constructor(picture, end) {
    this.picture = picture;
    this.end = end;
    this.cells = [];
    this.frames = [];
    const detailed = picture.boxes[0]?.links && picture.boxes.length <= 48;
    const numSwitches = new Set(picture.boxes.map((box) => box.above)).size;
    this.style = detailed ? this.detailed() : picture.boxes.length <= 640 && numSwitches <= 48 ? this.split() : this.plain();
    this.note = detailed ? "Small cells are GPU ports; wide cells below them are network adapters."
      : this.style.name === "split" ? "Each box is a node: its fullest network adapter above, its fullest GPU port below."
        : `Each box is ${picture.nodes_per_box > 1 ? `up to ${picture.nodes_per_box} nodes` : "a node"}, coloured by its fullest link; the bar above them is the fullest uplink of their switch.`;
    this.node = canvas((width) => this.layOut(width), (context) => this.paint(context), {
      tabindex: "0", role: "img", id: "heat",
      "aria-label": `Link load of ${picture.num_nodes} nodes. The fullest links are in the table.` });
    this.node.addEventListener("pointermove", (event) => this.explain(event));
    this.node.addEventListener("pointerleave", untip);
  }

  detailed() {
    const gpus = Math.max(...this.picture.boxes.map((box) => box.links.gpu?.length || 0));
    const across = Math.min(gpus, 8) || 1, count = this.picture.boxes.length;
    const cell = count <= 8 ? 17 : count <= 16 ? 15 : 13;
    return { name: "detailed", cell, width: across * cell + 11, height: Math.ceil(gpus / across) * cell + 34, gap: 8 };
  }

  split() { return { name: "split", narrow: 24, width: 24, height: 19, gap: 4 }; }

  plain() { const size = this.picture.boxes.length > 2000 ? 7 : 10; return { name: "plain", narrow: size, width: size, height: size, gap: 2 }; }

  // Frames from left to right, wrapping; nodes in rows inside their frame. Gives the height it takes.
  layOut(width) {
    this.cells = [];
    this.frames = [];
    const { style } = this;
    const groups = this.groups();
    this.stretch(groups, width);
    let y = this.layOutTop(width);
    let x = 0, tallest = 0;
    if (groups.length > 48) return this.layOutMany(groups, width, y);
    for (const group of groups) {
      const inner = this.columnsFor(group.boxes.length, width);
      const wide = inner * (style.width + style.gap) - style.gap + 16;
      const tall = Math.ceil(group.boxes.length / inner) * (style.height + style.gap) - style.gap + 16 + 18;
      if (x > 0 && x + wide > width) { x = 0; y += tallest + 12; tallest = 0; }
      this.frame(group, x, y, wide, tall);
      group.boxes.forEach((box, k) => this.box(box, x + 8 + (k % inner) * (style.width + style.gap), y + 26 + Math.floor(k / inner) * (style.height + style.gap)));
      x += wide + 12;
      tallest = Math.max(tallest, tall);
    }
    return y + tallest + 4;
  }

  // Hundreds of switches: no frames, a bar for the uplinks above each row of boxes.
  layOutMany(groups, width, top) {
    this.style = { ...this.plain(), name: "plain" };
    const { width: size } = this.style;
    let x = 0, y = top;
    for (const group of groups) {
      const wide = group.boxes.length * (size + 1) - 1;
      if (x > 0 && x + wide > width) { x = 0; y += size + 13; }
      const worst = Math.max(...group.switch.links, 0);
      this.cell(x, y, wide, 3, worst, group.switch.name, [["fullest uplink", fmt.percent(worst)]]);
      group.boxes.forEach((box, k) => this.box(box, x + k * (size + 1), y + 5));
      x += wide + 8;
    }
    return y + size + 12;
  }

  // Boxes a little wider, so that a row of frames ends where the picture does.
  stretch(groups, width) {
    if (this.style.name === "detailed") return;
    this.style.width = this.style.narrow;
    const most = Math.max(...groups.map((group) => group.boxes.length));
    const inner = this.columnsFor(most, width);
    const wide = inner * (this.style.width + this.style.gap) - this.style.gap + 16;
    const across = Math.min(Math.floor((width + 12) / (wide + 12)), groups.length) || 1;
    const room = (width - 12 * (across - 1)) / across - 16 + this.style.gap;
    this.style.width = Math.min(room / inner - this.style.gap, 2.2 * this.style.narrow) - 0.01;
  }

  columnsFor(count, width) {
    const most = Math.max(Math.floor((width - 16 + this.style.gap) / (this.style.width + this.style.gap)), 1);
    const wanted = this.style.name === "detailed" ? Math.min(count, 4) : count <= 40 ? Math.min(count, 10) : Math.ceil(Math.sqrt(count * 2));
    return Math.max(Math.min(wanted, most), 1);
  }

  groups() {
    const found = new Map();
    for (const box of this.picture.boxes) {
      if (!found.has(box.above)) found.set(box.above, { switch: this.picture.switches[box.above], boxes: [] });
      found.get(box.above).boxes.push(box);
    }
    return [...found.values()];
  }

  // Switches that stand above other switches: a row of wide frames on top.
  layOutTop(width) {
    const below = new Set(this.picture.boxes.map((box) => box.above));
    const upper = this.picture.switches.filter((_, k) => !below.has(k));
    let x = 0, y = 0;
    for (const each of upper) {
      const wide = Math.max(90, each.links.length * 13 + 70);
      if (x > 0 && x + wide > width) { x = 0; y += 32; }
      this.frames.push({ x, y, width: wide, height: 24, text: each.name, soft: !each.links.length });
      this.uplinks(each, x + wide - 8, y + 7);
      x += wide + 10;
    }
    return upper.length ? y + 36 : 0;
  }

  frame(group, x, y, width, height) {
    const above = group.switch;
    this.frames.push({ x, y, width, height, text: above ? above.name : "" });
    if (above) this.uplinks(above, x + width - 8, y + 8, width - 64);
  }

  uplinks(above, right, y, room = 1000) {
    const size = Math.max(Math.min(10, room / Math.max(above.links.length, 1) - 2), 3);
    above.links.forEach((load, k) => {
      const rail = above.links.length > 1 ? `, rail ${k}` : "";
      this.cell(right - (above.links.length - k) * (size + 2), y, size, 10, load, `${above.name}${rail}`, [["uplink", fmt.percent(load)]]);
    });
  }

  box(box, x, y) {
    const { style } = this;
    const title = box.count > 1 ? `nodes ${box.node} to ${box.node + box.count - 1}` : `node ${box.node}`;
    const facts = [...Object.entries(box.worst).map(([tier, load]) => [`fullest ${TIER[tier] || tier}`, fmt.percent(load)]), ["", box.label], ["", box.used ? "" : "no rank here"]];
    if (style.name === "detailed") { this.detail(box, x, y, title); return; }
    if (style.name === "split") {
      this.cell(x, y, style.width, 7, box.used ? box.worst.nic ?? 0 : null, title, facts);
      this.cell(x, y + 8, style.width, style.height - 8, box.used ? Math.max(box.worst.gpu ?? 0, box.worst.host ?? 0) : null, title, facts);
      return;
    }
    this.cell(x, y, style.width, style.height, box.used ? Math.max(...Object.values(box.worst), 0) : null, title, facts);
  }

  detail(box, x, y, title) {
    const { style } = this;
    this.frames.push({ x, y, width: style.width, height: style.height, text: title, inner: true });
    const gpus = box.links.gpu || [], nics = box.links.nic || [];
    const across = Math.min(gpus.length, 8) || 1;
    gpus.forEach((load, k) => this.cell(x + 6 + (k % across) * style.cell, y + 18 + Math.floor(k / across) * style.cell, style.cell - 2, style.cell - 2, box.used ? load : null, `${title}, GPU ${k}`, [["port", fmt.percent(load)]]));
    const bottom = y + style.height - 13, room = style.width - 12;
    nics.forEach((load, k) => this.cell(x + 6 + k * room / nics.length, bottom, Math.max(room / nics.length - 2, 2), 8, box.used ? load : null, `${title}, adapter ${k}`, [["", fmt.percent(load)]]));
  }

  cell(x, y, width, height, load, title, facts) { this.cells.push({ x, y, width, height, load, title, facts }); }

  paint(context) {
    for (const frame of this.frames) {
      context.beginPath();
      context.roundRect(frame.x + 0.5, frame.y + 0.5, frame.width - 1, frame.height - 1, frame.inner ? 5 : 8);
      context.fillStyle = frame.inner ? colour("card") : colour("page");
      context.fill();
      context.strokeStyle = colour("line");
      context.stroke();
      context.fillStyle = frame.inner ? colour("faint") : colour("soft");
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.fillText(fit(context, frame.text, frame.width - 12), frame.x + (frame.inner ? 6 : 8), frame.y + (frame.inner ? 10 : 13));
    }
    for (const cell of this.cells) {
      context.fillStyle = cell.load === null ? colour("page") : heat(cell.load / this.end);
      context.beginPath();
      context.roundRect(cell.x, cell.y, cell.width, cell.height, Math.min(2, cell.height / 3));
      context.fill();
      if (cell.load === null) { context.strokeStyle = colour("line"); context.stroke(); }
    }
  }

  explain(event) {
    const box = this.node.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const hit = this.cells.find((cell) => x >= cell.x - 1 && x <= cell.x + cell.width + 1 && y >= cell.y - 1 && y <= cell.y + cell.height + 1);
    if (hit) tip(event, hit.title, hit.facts); else untip();
  }
}

const TIER = { gpu: "GPU port", nic: "adapter", host: "PCIe root" };

function tierTable(summary) {
  const columns = [{ name: "tier", keep: true }, { name: "links", num: true }, { name: "each", num: true }, { name: "mean", num: true }, { name: "fullest", num: true }];
  return table(columns, summary.tiers.map((tier) => [tier.title, fmt.count(tier.num_links), fmt.rate(tier.bandwidth_bytes_per_s),
    fmt.percent(tier.mean_utilisation), [fmt.percent(tier.max_utilisation), meter(tier.max_utilisation, tier.max_utilisation > 0.8)]]));
}

function busiestTable(summary) {
  const links = summary.tiers.flatMap((tier) => tier.busiest.slice(0, 4)).sort((a, b) => b.utilisation - a.utilisation).slice(0, 12);
  const columns = [{ name: "fullest links", keep: true }, { name: "bytes per step", num: true }, { name: "used", num: true }];
  return table(columns, links.map((link) => [link.name, fmt.bytes(link.bytes), fmt.percent(link.utilisation)]));
}
