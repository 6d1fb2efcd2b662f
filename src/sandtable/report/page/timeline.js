// The timeline: one track per stream, zoomed with the wheel, moved by dragging, read with the pointer or the arrow keys.

const PHASES = ["forward", "backward", "optimizer", "recompute"];
const TRACK = 17, GAP = 9, TOP = 24, LEFT = 146;

// A track comes as columns kind, length and gap; the table of kinds is shared by all ranks.
const KIND = ["name", "category", "phase", "axis", "line", "bytes", "flops", "count"];

function unpack(tracks) {
  for (const rank of tracks.ranks) {
    for (const track of rank.tracks) {
      let end = 0;
      track.start = track.gap.map((gap, k) => { const start = end + gap; end = start + track.length[k]; return start; });
      KIND.forEach((name, column) => { track[name] = track.kind.map((kind) => tracks.kinds[kind][column]); });
    }
  }
  return tracks;
}

function timelineCard(tracks, stepNs) {
  unpack(tracks);
  const merged = tracks.num_drawn < tracks.num_spans
    ? ` ${fmt.count(tracks.num_spans)} operators are drawn as ${fmt.count(tracks.num_drawn)} spans: short neighbours are joined.` : "";
  const node = card("timeline", "Timeline", `Streams of ${tracks.ranks.length} chosen ranks. Scroll to zoom, drag to move.${merged}`);
  const view = new TimelineView(tracks, stepNs);
  const button = (text, label, act) => h("button", { type: "button", class: "button", "aria-label": label, onclick: act }, text);
  node.tools.append(
    button("−", "Zoom out", () => view.zoom(2)), button("+", "Zoom in", () => view.zoom(0.5)),
    button("whole step", "Show the whole step", () => view.reset()));
  node.append(timelineLegend(tracks), view.node, view.status);
  return node;
}

function timelineLegend(tracks) {
  const all = tracks.ranks.flatMap((rank) => rank.tracks);
  const used = new Set(all.flatMap((track) => track.phase.filter((_, k) => track.category[k] === 0)));
  const entries = PHASES.map((name, k) => [name, name, k]).filter(([, , k]) => used.has(k)).map(([name, hue]) => [name, hue]);
  const kinds = new Set(all.flatMap((track) => track.category));
  if (kinds.has(1)) axesInUse(tracks).forEach((axis) => entries.push([`communication, ${tracks.axes[axis] || "world"}`, axisHue(tracks, axis)]));
  if (kinds.has(2)) entries.push(["copy", "copy"]);
  if (kinds.has(3)) entries.push(["waiting for others", "wait"]);
  return legend(entries);
}

function axesInUse(tracks) {
  const found = new Set();
  for (const track of tracks.ranks.flatMap((rank) => rank.tracks)) track.axis.forEach((axis, k) => { if (track.category[k] === 1) found.add(axis); });
  return [...found].sort((a, b) => (tracks.axes[a] < tracks.axes[b] ? -1 : 1));
}

function axisHue(tracks, axis) { return `axis-${axesInUse(tracks).indexOf(axis) % 5}`; }

class TimelineView {
  constructor(tracks, stepNs) {
    this.tracks = tracks;
    this.end = stepNs;
    this.from = 0;
    this.to = stepNs;
    this.hues = axesInUse(tracks);
    this.rows = this.layOut();
    this.height = this.rows.length ? this.rows.at(-1).y + TRACK + 6 : TOP;
    this.status = h("p", { class: "hint", id: "range", "aria-live": "polite" });
    this.node = canvas(this.height, (context, width) => this.paint(context, width), {
      class: "drag", tabindex: "0", role: "application", id: "tracks",
      "aria-label": "Timeline of chosen ranks. Arrow keys move, plus and minus zoom, 0 shows the whole step.",
      "aria-describedby": "range",
    });
    this.listen();
    this.say();
  }

  // One row per stream, and its position.
  layOut() {
    const rows = [];
    let y = TOP;
    for (const rank of this.tracks.ranks) {
      rank.tracks.forEach((track, position) => {
        rows.push({ rank, track, y, position, last: track.start.length - 1, label: this.trackName(track) });
        y += TRACK + 1;
      });
      y += GAP;
    }
    return rows;
  }

  trackName(track) {
    const time = new Map();
    track.length.forEach((length, k) => {
      const key = track.category[k] === 0 ? "compute" : track.category[k] === 2 ? "copies" : this.tracks.axes[track.axis[k]] || "world";
      time.set(key, (time.get(key) || 0) + length);
    });
    return [...time].sort((a, b) => b[1] - a[1])[0]?.[0] || `stream ${track.stream}`;
  }

  hueOf(track, k) {
    if (track.category[k] === 0) return PHASES[track.phase[k]];
    if (track.category[k] === 1) return `axis-${this.hues.indexOf(track.axis[k]) % 5}`;
    return track.category[k] === 2 ? "copy" : "wait";
  }

  paint(context, width) {
    this.width = width;
    const scale = (width - LEFT) / (this.to - this.from);
    const cache = {};
    const paintOf = (hue) => { if (!cache[hue]) { const fill = colour(hue); cache[hue] = { fill, ink: inkOn(fill) }; } return cache[hue]; };
    this.paintAxis(context, width, scale);
    for (const row of this.rows) {
      context.fillStyle = colour("track");
      context.fillRect(LEFT, row.y, width - LEFT, TRACK);
      this.paintLabel(context, row);
    }
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, this.height);
    context.clip();
    for (const row of this.rows) this.paintTrack(context, row, scale, paintOf);
    context.restore();
  }

  paintAxis(context, width, scale) {
    const span = this.to - this.from;
    const step = ticks(span, Math.max(Math.floor((width - LEFT) / 110), 2))[1] || span;
    context.fillStyle = colour("faint");
    context.strokeStyle = colour("line");
    context.textBaseline = "middle";
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      const x = Math.round(LEFT + (t - this.from) * scale) + 0.5;
      context.beginPath();
      context.moveTo(x, 18);
      context.lineTo(x, this.height);
      context.stroke();
      context.textAlign = x > width - 40 ? "right" : "left";
      context.fillText(fmt.moment(t, step), x + (x > width - 40 ? -3 : 3), 9);
    }
  }

  paintLabel(context, row) {
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = colour("faint");
    context.fillText(row.label.slice(0, 9), LEFT - 8, row.y + TRACK / 2 + 0.5);
    if (row.position) return;
    context.textAlign = "left";
    context.fillStyle = colour("ink");
    context.font = `600 ${FONT}`;
    context.fillText(`rank ${row.rank.rank}`, 0, row.y + TRACK / 2 + 0.5);
    context.font = FONT;
  }

  paintTrack(context, row, scale, paintOf) {
    const { track } = row;
    context.textAlign = "left";
    context.textBaseline = "middle";
    let painted = -1;
    for (let k = this.firstAfter(row, this.from); k <= row.last && track.start[k] < this.to; k += 1) {
      const x = LEFT + (track.start[k] - this.from) * scale;
      const wide = track.length[k] * scale;
      if (x + wide < painted + 0.4) continue;
      const look = paintOf(this.hueOf(track, k));
      const left = Math.max(x, painted, LEFT - 1), right = Math.max(x + wide - (wide > 3 ? 0.7 : 0), left + 0.7);
      context.fillStyle = look.fill;
      context.fillRect(left, row.y, right - left, TRACK);
      painted = right;
      if (right - left > 34) {
        const text = fit(context, this.nameOf(track, k), right - left - 8);
        context.fillStyle = look.ink;
        if (text) context.fillText(text, left + 4, row.y + TRACK / 2 + 0.5);
      }
    }
  }

  nameOf(track, k) {
    const name = short(this.tracks.names[track.name[k]]);
    return track.count[k] > 1 ? `${fmt.count(track.count[k])} × ${name}` : name;
  }

  // The first span of a track that ends after a moment: spans of a stream do not overlap.
  firstAfter(row, moment) {
    let low = 0, high = row.last + 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.track.start[middle] + row.track.length[middle] <= moment) low = middle + 1; else high = middle;
    }
    return low;
  }

  at(event) {
    const box = this.node.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const row = this.rows.find((each) => y >= each.y && y < each.y + TRACK);
    if (!row || x < LEFT) return null;
    const perPixel = (this.to - this.from) / (this.width - LEFT);
    const moment = this.from + (x - LEFT) * perPixel;
    const k = this.firstAfter(row, moment - 2 * perPixel);
    return k <= row.last && row.track.start[k] <= moment + 2 * perPixel ? { row, k } : null;
  }

  explain(event) {
    const found = this.at(event);
    if (!found) { untip(); return; }
    const { row: { rank, track, label }, k } = found;
    const isCompute = track.category[k] === 0;
    tip(event, this.nameOf(track, k), [
      ["takes", fmt.seconds(track.length[k] / 1e9)],
      ["at", fmt.moment(track.start[k], (this.to - this.from) / 1000)],
      ["on", `rank ${rank.rank}${rank.num_ranks > 1 ? ` (and ${fmt.count(rank.num_ranks - 1)} like it)` : ""}, ${label}`],
      ["phase", PHASES[track.phase[k]]],
      ["axis", isCompute ? "" : this.tracks.axes[track.axis[k]]],
      ["bytes", track.bytes[k] ? fmt.bytes(track.bytes[k]) : ""],
      ["work", track.flops[k] ? `${fmt.flops(track.flops[k])}, ${fmt.flops(track.flops[k] / track.length[k] * 1e9)}/s` : ""],
      ["line", this.tracks.lines[track.line[k]]],
    ]);
  }

  show(from, to) {
    const span = Math.min(Math.max(to - from, 200), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - span);
    this.to = this.from + span;
    this.say();
    this.node.redraw();
  }

  say() {
    const step = (this.to - this.from) / 100;
    this.status.textContent = `Shown: ${fmt.moment(this.from, step)} to ${fmt.moment(this.to, step)} of ${fmt.seconds(this.end / 1e9)}`;
    this.node.dataset.from = Math.round(this.from);
    this.node.dataset.to = Math.round(this.to);
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  move(share) { const by = share * (this.to - this.from); this.show(this.from + by, this.to + by); }

  reset() { this.show(0, this.end); }

  listen() {
    const node = this.node;
    node.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = node.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left - LEFT) / (box.width - LEFT), 0), 1);
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move((event.deltaX || event.deltaY) / 600);
      else this.zoom(Math.exp(Math.sign(event.deltaY) * Math.min(Math.abs(event.deltaY), 120) / 300), this.from + share * (this.to - this.from));
      this.explain(event);
    }, { passive: false });
    node.addEventListener("pointerdown", (event) => {
      node.setPointerCapture(event.pointerId);
      this.drag = { x: event.clientX, from: this.from, to: this.to };
    });
    node.addEventListener("pointermove", (event) => {
      if (!this.drag) { this.explain(event); return; }
      const by = (this.drag.x - event.clientX) * (this.drag.to - this.drag.from) / (this.width - LEFT);
      this.show(this.drag.from + by, this.drag.to + by);
      untip();
    });
    const drop = () => { this.drag = null; };
    node.addEventListener("pointerup", drop);
    node.addEventListener("pointercancel", drop);
    node.addEventListener("pointerleave", untip);
    node.addEventListener("dblclick", () => this.reset());
    node.addEventListener("keydown", (event) => {
      const acts = { ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2), "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.reset() };
      if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
    });
  }
}

// As much of a text as fits, or nothing.
function fit(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = Math.floor(room / 6.2) - 1;
  return letters >= 3 ? `${text.slice(0, letters)}…` : "";
}
