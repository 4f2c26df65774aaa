"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const [FORWARD, RECOMPUTE, BACKWARD, WEIGHT, TRANSFER, SYNC, OPTIMIZER] = [0, 1, 2, 3, 4, 5, 6];
const KINDS = 7, IDLE = 7, MERGE_ABOVE = 5000, NARROW = 2.5, RUN = 8, APART = 1.5, TOP = 26;
const chart = document.getElementById("chart"), over = document.getElementById("over");
const info = document.getElementById("info"), tip = document.getElementById("tip");
const pen = chart.getContext("2d"), overPen = over.getContext("2d");
const total = data.total, stages = data.stages, views = {all: [0, total], ...data.views};
const visible = new Array(KINDS + 1).fill(true);

// Events: 32-bit columns in little-endian base64, by stage and start; times are shares of the iteration.
function column(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return new Uint32Array(bytes.buffer);
}
function unpacked(part) {
  const events = {at: part.at, start: column(part.start), end: column(part.end), meta: column(part.meta), longest: []};
  if (part.sender) events.sender = column(part.sender);
  for (let s = 0; s < stages.length; s++) {
    let longest = 0;
    for (let i = part.at[s]; i < part.at[s + 1]; i++) longest = Math.max(longest, events.end[i] - events.start[i]);
    events.longest.push(longest);
  }
  return events;
}
const work = unpacked(data.work), beside = unpacked(data.beside);
const TICKS = 4294967295, seconds = tick => tick / TICKS * total;
const kindOf = meta => meta & 7, chunkOf = meta => (meta >>> 3 & 255) - 1, microbatchOf = meta => (meta >>> 11 & 1048575) - 1;
const hasActivations = meta => meta >>> 31 === 1;

/** Range of events of a stage that may reach into [from, to], in ticks. */
function range(events, stage, from, to) {
  const first = value => {
    let low = events.at[stage], high = events.at[stage + 1];
    while (low < high) { const middle = low + high >> 1; if (events.start[middle] < value) low = middle + 1; else high = middle }
    return low;
  };
  return [first(from - events.longest[stage]), first(to)];
}

// -- geometry

const many = stages.length > 24, some = stages.length > 12;
const LANE = many ? 11 : some ? 18 : 30, THIN = many ? 3 : some ? 5 : 8, PITCH = many ? 20 : some ? 34 : 56;
const laneTop = s => TOP + PITCH * s + (many ? 2 : 5), thinTop = s => laneTop(s) + LANE + (many ? 1 : 3);
let t0 = 0, t1 = total, width = 0, gutter = 0, ratio = 1, colours = {}, marks = [], chosen = null, pointed = null, view = "all";
const inner = () => Math.max(1, width - gutter - 8), toX = t => gutter + (t - t0) / (t1 - t0) * inner();
const toT = x => t0 + (x - gutter) / inner() * (t1 - t0);
const label = i => { const m = work.meta[i]; return microbatchOf(m) + 1 + (data.chunks > 1 ? "." + (chunkOf(m) + 1) : "") };

function clipped(pen, text, most) {
  if (pen.measureText(text).width <= most) return text;
  while (text.length > 1 && pen.measureText(text + "…").width > most) text = text.slice(0, -1);
  return text + "…";
}
const heading = s => some ? [`S${s} ${stages[s].group}`, ""]
  : width < 700 ? [`S${s}`, stages[s].group]
  : [`S${s} ${stages[s].group}`, `${stages[s].layers} ${stages[s].layers === 1 ? "layer" : "layers"} × ${stages[s].accelerators}`];
const labelFont = bold => `${bold ? "600 " : ""}${many ? 11 : bold ? 13 : 12}px ${colours.font}`;

function measured() {
  let widest = 0;
  for (let s = 0; s < stages.length; s++) {
    const lines = heading(s);
    pen.font = labelFont(true); widest = Math.max(widest, pen.measureText(lines[0]).width);
    pen.font = labelFont(false); widest = Math.max(widest, pen.measureText(lines[1]).width);
  }
  gutter = Math.ceil(Math.min(widest + 14, width < 700 ? 96 : 220));
}

// -- colours and textures

function pattern(size, paint) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = size * ratio;
  const brush = tile.getContext("2d");
  brush.scale(ratio, ratio);
  paint(brush, size);
  const made = pen.createPattern(tile, "repeat");
  if (made.setTransform) made.setTransform(new DOMMatrix().scale(1 / ratio));
  return made;
}
function readColours() {
  const style = getComputedStyle(document.documentElement), get = name => style.getPropertyValue("--" + name).trim();
  for (const name of ["ground", "ink", "quiet", "line", "idle", "font", "mono", "stripe"]) colours[name] = get(name);
  colours.on = data.kinds.map(kind => get("on-" + kind.css));
  colours.solid = data.kinds.map(kind => get(kind.css));
  marks = colours.solid.slice();
  const filled = (colour, size, paint) => pattern(size, (brush, n) => { brush.fillStyle = colour; brush.fillRect(0, 0, n, n); paint(brush, n) });
  marks[RECOMPUTE] = filled(colours.solid[RECOMPUTE], 6, (brush, n) => {
    brush.strokeStyle = colours.ground; brush.lineWidth = 1.5;
    for (const d of [-n, 0, n]) { brush.beginPath(); brush.moveTo(d - 1, n + 1); brush.lineTo(d + n + 1, -1); brush.stroke() }
  });
  marks[WEIGHT] = filled(colours.solid[WEIGHT], 5, (brush, n) => { brush.fillStyle = colours.stripe; brush.fillRect(4, 0, 1, n) });
  marks[SYNC] = filled(colours.solid[SYNC], 5, (brush, n) => { brush.fillStyle = colours.ground; brush.globalAlpha = .75; brush.fillRect(0, 0, n, 1.4) });
  marks[IDLE] = filled(colours.idle, 6, brush => { brush.fillStyle = colours.quiet; brush.globalAlpha = .55; brush.beginPath(); brush.arc(3, 3, .8, 0, 7); brush.fill() });
}

// -- drawing

let anyShared = false;
const picture = document.createElement("canvas");
const snap = x => Math.round(x * ratio) / ratio;

/** Blocks of one lane, each at its place; where most are narrow, neighbours together as shares of their time. */
function drawLane(pen, events, from, to, toX, top, height, merged, fine) {
  const scale = toX(total) - toX(0), origin = toX(0), place = tick => origin + tick / TICKS * scale, drawn = [];
  let sum = 0, run = null;
  if (merged) for (let i = from; i < to; i++) sum += events.end[i] - events.start[i];
  const shared = merged && sum / TICKS * scale * ratio < NARROW * (to - from);
  if (shared && fine) anyShared = true;
  for (let i = from; i < to; i++) {
    const a = place(events.start[i]), b = place(events.end[i]);
    if (b < gutter || a > width) continue;
    if (!shared || b - a >= RUN) { drawn.push([i, a, b]); continue }
    if (run && (a - run.end > APART || a - run.start >= RUN)) {
      if (a - run.end <= APART) run.end = a;
      drawRun(pen, run, top, height);
      run = null;
    }
    run = run || {start: a, end: b, sums: new Float32Array(KINDS)};
    run.end = Math.max(run.end, b);
    run.sums[kindOf(events.meta[i])] += b - a;
  }
  if (run) drawRun(pen, run, top, height);
  for (const [i, a, b] of drawn) drawBlock(pen, events, i, a, b, top, height, fine);
  return drawn;
}
function drawBlock(pen, events, i, a, b, top, height, fine) {
  const kind = kindOf(events.meta[i]), x = snap(Math.max(a, gutter - 4));
  const end = snap(Math.min(b, width + 4)), gap = fine && b - a > 6 ? 1 : 0, w = Math.max(1 / ratio, end - x - gap);
  pen.fillStyle = !visible[kind] ? colours.ground : w < 4 || !fine ? colours.solid[kind] : marks[kind];
  pen.fillRect(x, top, w, height);
  const chunk = chunkOf(events.meta[i]);
  if (fine && chunk > 0 && kind <= WEIGHT && w > 3 && visible[kind]) {
    // One light line for each chunk after the first.
    pen.fillStyle = colours.ground; pen.globalAlpha = .8;
    for (let line = 0; line < Math.min(chunk, Math.max(1, Math.floor(height / 8))); line++) pen.fillRect(x, top + 2 + 3 * line, w, 1.2);
    pen.globalAlpha = 1;
  }
}
/** Neighbours that are too narrow to be told apart: the kinds stacked by their shares, or mixed where the lane is low. */
function drawRun(pen, run, top, height) {
  const x = snap(run.start), w = Math.max(1 / ratio, snap(run.end) - x), span = Math.max(run.end - run.start, 1e-9);
  if (height < 5 || run.sums[TRANSFER]) {
    const mixed = [0, 0, 0], own = kind => rgb(visible[kind] ? colours.solid[kind] : colours.ground);
    const ground = rgb(visible[IDLE] && !run.sums[TRANSFER] ? colours.idle : colours.ground);
    const busy = run.sums.reduce((sum, part) => sum + part), full = Math.max(busy / span, run.sums[TRANSFER] ? .4 : 0);
    run.sums.forEach((sum, kind) => own(kind).forEach((c, j) => { mixed[j] += c * sum / busy }));
    pen.fillStyle = `rgb(${mixed.map((c, j) => c * Math.min(1, full) + ground[j] * Math.max(0, 1 - full)).join(" ")})`;
    pen.fillRect(x, top, w, height);
    return;
  }
  let low = 0;
  for (const kind of [FORWARD, RECOMPUTE, BACKWARD, WEIGHT, SYNC, OPTIMIZER]) {
    if (!run.sums[kind]) continue;
    const high = Math.min(1, low + run.sums[kind] / span), y = snap(low * height);
    pen.fillStyle = visible[kind] ? colours.solid[kind] : colours.ground;
    pen.fillRect(x, top + y, w, snap(high * height) - y);
    low = high;
  }
}
const rgb = colour => [1, 3, 5].map(at => parseInt(colour.slice(at, at + 2), 16));
function fitted(canvas, pen, height) {
  const w = Math.round(width * ratio), h = Math.round(height * ratio);
  canvas.style.height = height + "px";
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
}
function axisSteps(span, pixels) {
  const least = span / data.unit.seconds / Math.max(1, pixels / 90), power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= least * (1 - 1e-9));
  return [step * data.unit.seconds, Math.max(0, -Math.floor(Math.log10(step) + 1e-9))];
}
function drawAxis(bottom) {
  const [step, places] = axisSteps(t1 - t0, inner());
  pen.textBaseline = "alphabetic";
  pen.font = `12px ${colours.font}`;
  for (let n = Math.ceil(t0 / step - 1e-9); n * step <= t1 * (1 + 1e-9); n++) {
    const x = toX(n * step), text = (n * step / data.unit.seconds).toFixed(places) + " " + data.unit.name;
    pen.fillStyle = colours.line; pen.fillRect(snap(x), TOP - 6, 1, bottom - TOP + 6);
    const half = pen.measureText(text).width / 2;
    pen.fillStyle = colours.quiet; pen.textAlign = "center";
    const at = Math.min(width - half, Math.max(gutter + half, x));
    pen.fillText(text, at, 14);
    if (some) pen.fillText(text, at, bottom + 14);
  }
}
function drawLabels(s) {
  const [first, second] = heading(s), y = laneTop(s);
  pen.textAlign = "left"; pen.textBaseline = "alphabetic";
  pen.fillStyle = colours.ink; pen.font = labelFont(true);
  pen.fillText(clipped(pen, first, gutter - 8), 0, some ? y + LANE / 2 + 4 : y + 12);
  pen.fillStyle = colours.quiet; pen.font = labelFont(false);
  if (second) pen.fillText(clipped(pen, second, gutter - 8), 0, y + 29);
}
function drawNumbers(drawn, y) {
  if (LANE < 14) return;
  pen.font = `600 ${LANE < 24 ? 10 : 12}px ${colours.mono}`;
  pen.textAlign = "center"; pen.textBaseline = "middle";
  const least = pen.measureText(data.chunks > 1 ? "00.0" : "00").width + 5;
  for (const [i, a, b] of drawn) {
    const kind = kindOf(work.meta[i]);
    if (kind > WEIGHT || kind === RECOMPUTE || !visible[kind] || b - a < least || a < gutter - 1 || b > width + 1) continue;
    const text = label(i);
    if (pen.measureText(text).width + 5 > b - a) continue;
    const middle = (a + b - 1) / 2, half = pen.measureText(text).width / 2 + 2;
    if (kind === WEIGHT) { pen.fillStyle = colours.solid[kind]; pen.fillRect(middle - half, y + 6, 2 * half, LANE - 12) }
    pen.fillStyle = colours.on[kind];
    pen.fillText(text, middle, y + LANE / 2 + (data.chunks > 1 ? 3 : 1));
  }
}
function outline(found, colour) {
  if (!found || found.i < 0) return;
  const events = found.thin ? beside : work, a = toX(seconds(events.start[found.i])), b = toX(seconds(events.end[found.i]));
  if (b < gutter || a > width - 8) return;
  const x = Math.max(a, gutter), end = Math.min(b, width - 8);
  pen.strokeStyle = colour; pen.lineWidth = 2;
  pen.strokeRect(x - 1, (found.thin ? thinTop : laneTop)(found.stage) - 1, Math.max(2, end - x + 1), (found.thin ? THIN : LANE) + 2);
}
function draw() {
  const bottom = TOP + PITCH * stages.length + 2, from = t0 / total * TICKS, to = t1 / total * TICKS;
  fitted(chart, pen, bottom + (some ? 20 : 2));
  const rows = stages.map((_, s) => [range(work, s, from, to), range(beside, s, from, to)]);
  const count = rows.reduce((n, [a, b]) => n + a[1] - a[0] + b[1] - b[0], 0), merged = count > MERGE_ABOVE;
  anyShared = false;
  drawAxis(bottom);
  pen.save();
  pen.beginPath(); pen.rect(gutter, 0, inner(), bottom); pen.clip();
  const end = Math.min(toX(data.pipeline), width), idle = end - toX(0);
  for (let s = 0; s < stages.length; s++) {
    const [own, near] = rows[s], y = laneTop(s);
    pen.fillStyle = visible[IDLE] ? merged ? colours.idle : marks[IDLE] : colours.ground;
    if (idle > 0) pen.fillRect(Math.max(gutter, toX(0)), y, end - Math.max(gutter, toX(0)), LANE);
    const drawn = drawLane(pen, work, own[0], own[1], toX, y, LANE, merged, true);
    drawNumbers(drawn, y);
    drawLane(pen, beside, near[0], near[1], toX, thinTop(s), THIN, merged, false);
  }
  pen.restore();
  for (let s = 0; s < stages.length; s++) {
    drawLabels(s);
    if (s && stages[s].group !== stages[s - 1].group) {
      const y = TOP + PITCH * s - (many ? 0 : 3);
      pen.strokeStyle = colours.quiet; pen.lineWidth = 1; pen.setLineDash([2, 4]);
      pen.beginPath(); pen.moveTo(0, y + .5); pen.lineTo(width - 8, y + .5); pen.stroke(); pen.setLineDash([]);
    }
  }
  drawOver();
  document.getElementById("merged").hidden = !anyShared;
  picture.width = chart.width; picture.height = chart.height;
  picture.getContext("2d").drawImage(chart, 0, 0);
}
/** The picture as it was drawn last, with outlines around what is pointed at and what is chosen. */
function outlined() {
  pen.clearRect(0, 0, width, chart.height / ratio);
  pen.drawImage(picture, 0, 0, chart.width / ratio, chart.height / ratio);
  pen.save();
  pen.beginPath(); pen.rect(gutter - 1, 0, inner() + 2, chart.height / ratio); pen.clip();
  outline(pointed, colours.quiet);
  outline(chosen, colours.ink);
  pen.restore();
}

// The strip is drawn once for each size and theme; the window moves over it.
let strip = null;
function drawOver() {
  fitted(over, overPen, 46);
  const toOverX = t => gutter + t / total * inner();
  if (!strip) {
    const step = 42 / stages.length, height = Math.max(1 / ratio, step - (step > 3 ? 1 : 0));
    for (let s = 0; s < stages.length; s++) {
      const top = snap(2 + step * s);
      overPen.fillStyle = colours.idle;
      if (visible[IDLE]) overPen.fillRect(gutter, top, inner(), height);
      drawLane(overPen, work, work.at[s], work.at[s + 1], toOverX, top, height, work.at[stages.length] > MERGE_ABOVE / 2, false);
    }
    strip = document.createElement("canvas");
    strip.width = over.width; strip.height = over.height;
    strip.getContext("2d").drawImage(over, 0, 0);
  } else overPen.drawImage(strip, 0, 0, width, over.height / ratio);
  if (t1 - t0 < total * .999) {
    const a = toOverX(t0), w = Math.max(3, toOverX(t1) - a);
    overPen.fillStyle = colours.ink; overPen.globalAlpha = .1; overPen.fillRect(a, 1, w, 44); overPen.globalAlpha = 1;
    overPen.strokeStyle = colours.ink; overPen.lineWidth = 1.5; overPen.strokeRect(a, 1, w, 44);
  }
}

let waiting = false, changed = false;
function later(all = true) {
  changed = changed || all;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    if (changed) draw();
    changed = false;
    if (pointed || chosen || !all) outlined();
  });
}
function refreshed() {
  width = chart.clientWidth;
  ratio = window.devicePixelRatio || 1;
  if (!width) return;
  strip = null; readColours(); measured(); draw();
  if (chosen) outlined();
}
