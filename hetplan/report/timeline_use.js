// -- words

const inUnit = (t, places) => (t / data.unit.seconds).toFixed(places) + " " + data.unit.name;
function duration(t) {
  const [name, size] = [["s", 1], ["ms", 1e-3], ["us", 1e-6]].find(([, least]) => t >= least * .9995) || ["ns", 1e-9];
  return (t / size >= 999.5 ? (t / size).toFixed(0) : (t / size).toPrecision(3)) + " " + name;
}
/** What a block is, in two lines: [what, when]. */
function words(found) {
  const stage = stages[found.stage], name = `S${found.stage} ${stage.group}`;
  const when = (a, b) => `${duration(b - a)}, ${inUnit(a, 3)} to ${inUnit(b, 3)}`;
  if (found.i < 0) return [`${name}: idle`, when(found.from, found.to)];
  const events = found.thin ? beside : work, meta = events.meta[found.i], kind = kindOf(meta);
  const of = microbatchOf(meta) < 0 ? "" : ` of micro-batch ${microbatchOf(meta) + 1}`;
  const chunk = data.chunks > 1 && chunkOf(meta) >= 0 ? `, virtual stage ${chunkOf(meta) + 1} of ${data.chunks}` : "";
  let what = data.kinds[kind].name;
  if (kind === TRANSFER) {
    const sender = events.sender[found.i];
    what = `${hasActivations(meta) ? "activations" : "gradients"}${of} from S${sender} ${stages[sender].group}`;
  } else what += of;
  if (kind === SYNC && found.thin) what += " behind the work";
  return [`${name}: ${what}${chunk}`, when(seconds(events.start[found.i]), seconds(events.end[found.i]))];
}
function tell(found) {
  info.classList.toggle("chosen", Boolean(found));
  if (!found) { info.textContent = "Point at or click a block for its exact times."; return }
  const [what, when] = words(found), strong = document.createElement("b");
  strong.textContent = what;
  info.replaceChildren(strong, " " + when);
}

// -- what lies where

/** The event of a lane at a time, or the nearest within a few pixels; else the idle time around it. */
function at(events, stage, t, thin) {
  const near = 3 / inner() * (t1 - t0), tick = x => Math.max(0, Math.min(TICKS, x / total * TICKS));
  const [from, to] = range(events, stage, tick(t - near), tick(t + near) + 1);
  let best = null, least = Infinity;
  for (let i = from; i < to; i++) {
    if (!visible[kindOf(events.meta[i])]) continue;
    const away = Math.max(seconds(events.start[i]) - t, t - seconds(events.end[i]));
    if (away <= near && away <= least) { least = away; best = i }
    if (away <= 0 && !thin) return {stage, i, thin};
  }
  if (best !== null && (thin || least <= near / 3)) return {stage, i: best, thin};
  if (thin || !visible[IDLE] || t < 0 || t > data.pipeline) return null;
  const [, next] = range(events, stage, tick(t), tick(t));
  const before = next > events.at[stage] ? seconds(events.end[next - 1]) : 0;
  const after = next < events.at[stage + 1] ? seconds(events.start[next]) : data.pipeline;
  return before <= t && t <= after ? {stage, i: -1, thin: false, from: before, to: after} : null;
}
function under(event) {
  const box = chart.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const stage = Math.floor((y - TOP) / PITCH);
  if (x < gutter || x > width - 8 || stage < 0 || stage >= stages.length) return null;
  if (y >= thinTop(stage) - 1) return y <= thinTop(stage) + THIN + 2 ? at(beside, stage, toT(x), true) : null;
  return y >= laneTop(stage) ? at(work, stage, toT(x), false) : null;
}

// -- moving

function show(from, to, name) {
  const least = Math.min(total, data.least), span = Math.min(total, Math.max(least, to - from));
  t0 = Math.max(0, Math.min(total - span, from)); t1 = t0 + span;
  view = span >= total * .999 ? "all" : name || "";
  for (const button of document.querySelectorAll(".view")) button.setAttribute("aria-pressed", button.dataset.view === view);
  try { history.replaceState(null, "", view && view !== "all" ? "#" + view : location.pathname + location.search) } catch { /* a page without an address */ }
  tip.hidden = true;
  later();
}
function zoom(factor, centre = .5) {
  const middle = t0 + (t1 - t0) * centre, span = (t1 - t0) * factor;
  show(middle - span * centre, middle + span * (1 - centre));
}
const shift = share => show(t0 + (t1 - t0) * share, t1 + (t1 - t0) * share);
function choose(found) {
  chosen = found;
  tell(found);
  if (found && found.i >= 0) {
    const events = found.thin ? beside : work, middle = seconds(events.start[found.i] / 2 + events.end[found.i] / 2);
    if (middle < t0 || middle > t1) { show(middle - (t1 - t0) / 2, middle + (t1 - t0) / 2); return }
  }
  later(false);
}
/** The block beside the chosen one, or on the next stage at the same time. */
function step(sideways, down) {
  if (!chosen || chosen.thin) {
    const [from] = range(work, 0, t0 / total * TICKS, TICKS);
    return choose({stage: 0, i: Math.min(from, work.at[1] - 1), thin: false});
  }
  const {stage, i} = chosen, t = i < 0 ? (chosen.from + chosen.to) / 2 : seconds(work.start[i] / 2 + work.end[i] / 2);
  const row = Math.max(0, Math.min(stages.length - 1, stage + down));
  const [, next] = range(work, row, 0, t / total * TICKS);
  const here = down || i < 0 ? Math.max(work.at[row], next - 1) : i + sideways;
  choose({stage: row, i: Math.max(work.at[row], Math.min(work.at[row + 1] - 1, here)), thin: false});
}

for (const button of document.querySelectorAll(".view"))
  button.addEventListener("click", () => show(...views[button.dataset.view], button.dataset.view));
for (const button of document.querySelectorAll(".zoom"))
  button.addEventListener("click", () => zoom(+button.dataset.factor));
for (const button of document.querySelectorAll(".kind"))
  button.addEventListener("click", () => {
    const kind = +button.dataset.kind;
    visible[kind] = !visible[kind];
    button.setAttribute("aria-pressed", visible[kind]);
    strip = null; later();
  });
chart.addEventListener("wheel", event => {
  if (event.ctrlKey || event.metaKey) {
    event.preventDefault();
    const x = event.clientX - chart.getBoundingClientRect().left;
    zoom(2 ** Math.max(-.5, Math.min(.5, event.deltaY / 120)), Math.max(0, Math.min(1, (x - gutter) / inner())));
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    shift(event.deltaX / inner());
  }
}, {passive: false});

let drag = null;
chart.addEventListener("pointerdown", event => { if (event.button === 0) drag = {x: event.clientX, from: t0, to: t1, far: false, touch: event.pointerType === "touch"} });
addEventListener("pointermove", event => {
  if (!drag) return;
  if (Math.abs(event.clientX - drag.x) > 4) drag.far = true;
  if (!drag.far) return;
  chart.classList.add("moving");
  const moved = (drag.x - event.clientX) / inner() * (drag.to - drag.from);
  show(drag.from + moved, drag.to + moved);
});
for (const name of ["pointerup", "pointercancel"])
  addEventListener(name, () => { chart.classList.remove("moving"); if (drag) setTimeout(() => { drag = null }) });
chart.addEventListener("click", event => { if (!drag || !drag.far) choose(under(event)) });
chart.addEventListener("pointermove", event => {
  if (drag && drag.far) return;
  const found = under(event), same = pointed && found && pointed.i === found.i && pointed.stage === found.stage && pointed.thin === found.thin;
  if (!same && (pointed || found)) { pointed = found && found.i >= 0 ? found : null; later(false) }
  tip.hidden = !found || event.pointerType === "touch";
  if (tip.hidden) return;
  const [what, when] = words(found), strong = document.createElement("b");
  strong.textContent = what;
  tip.replaceChildren(strong, when);
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), below = event.clientY + 18;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = (below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below) + "px";
});
chart.addEventListener("pointerleave", () => { tip.hidden = true; if (pointed) { pointed = null; later(false) } });
chart.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const keys = event.shiftKey
    ? {ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1), "+": () => zoom(.6), "_": () => zoom(1 / .6)}
    : {"+": () => zoom(.6), "=": () => zoom(.6), "-": () => zoom(1 / .6), "0": () => show(0, total), ArrowLeft: () => shift(-.2), ArrowRight: () => shift(.2),
      Home: () => show(0, t1 - t0), End: () => show(total - (t1 - t0), total), Enter: () => step(0, 0), Escape: () => choose(null)};
  const act = keys[event.key];
  if (act) { event.preventDefault(); act() }
});

let picking = false;
function pick(event) {
  const box = over.getBoundingClientRect(), t = (event.clientX - box.left - gutter) / inner() * total;
  const span = t1 - t0 > total * .6 ? total * .15 : t1 - t0;
  show(t - span / 2, t + span / 2);
}
over.addEventListener("pointerdown", event => { picking = true; pick(event) });
addEventListener("pointermove", event => { if (picking) pick(event) });
for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => { picking = false });

function fromAddress() {
  const name = location.hash.slice(1);
  if (Object.hasOwn(views, name)) show(...views[name], name);
}
addEventListener("hashchange", fromAddress);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refreshed);
new ResizeObserver(refreshed).observe(chart.parentElement);
tell(null);
refreshed();
fromAddress();
