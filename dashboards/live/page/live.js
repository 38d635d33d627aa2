// The live page: takes the parts that changed, draws the figures, and sends what a person switches.
// Texts come from the server; nothing here is shown that it did not escape.

const words = JSON.parse(document.body.dataset.words);
const language = document.body.dataset.language;
const status = document.getElementById("status");
const SPAN_S = 900;
const GAP_S = 12;
const LINES_SHOWN = 6;
document.body.classList.add("scripted");

/* --- parts: only what differs is touched, so that focus and selection stay --- */

function morph(from, to) {
  for (const { name } of [...from.attributes]) if (!to.hasAttribute(name)) from.removeAttribute(name);
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  morphChildren(from, to);
}

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const held = wanted.dataset?.key ? keyed.get(wanted.dataset.key) : undefined;
    if (held) {
      if (held === at) at = at.nextSibling;
      else from.insertBefore(held, at);
      morph(held, wanted);
    } else if (at && !at.dataset?.key && at.nodeName === wanted.nodeName && !wanted.dataset?.key) {
      const next = at.nextSibling;
      if (at.nodeType === Node.ELEMENT_NODE) morph(at, wanted);
      else if (at.nodeValue !== wanted.nodeValue) at.nodeValue = wanted.nodeValue;
      at = next;
    } else {
      from.insertBefore(document.importNode(wanted, true), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function show(parts) {
  for (const [name, html] of Object.entries(parts)) {
    const place = document.querySelector(`[data-section="${name}"]`);
    if (!place) continue;
    const parsed = new DOMParser().parseFromString(html, "text/html");
    morphChildren(place, parsed.body);
  }
}

/* --- figures --- */

const SVG = "http://www.w3.org/2000/svg";
const figures = new Map();
let now = Date.now() / 1000;

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function three(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.005) return "<0.01";
  return String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : 2)));
}

function count(value) {
  for (const [step, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= step) return three(value / step) + letter;
  }
  return three(value);
}

function amount(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "percentunit") return `${three(100 * value)} %`;
  if (unit === "s") return value < 0.9995 ? `${three(1000 * value)} ms` : `${three(value)} s`;
  if (unit === "cps" || unit === "reqps") return `${count(value)}/s`;
  return unit === "bytes" ? `${count(value)}B` : count(value);
}

function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].find((one) => one * power >= value * 0.9999) * power;
}

function highest(lines) {
  if (lines.length <= LINES_SHOWN) return lines;
  const heights = new Map(lines.map((line) => [line, Math.max(0, ...line.points.map(([, value]) => value))]));
  const ranked = [...lines].sort((a, b) => heights.get(b) - heights.get(a) || (a.name < b.name ? -1 : 1));
  const high = ranked.filter((line, k) => !k || heights.get(line) > 0);
  const chosen = new Set(high.slice(0, LINES_SHOWN));
  return lines.filter((line) => chosen.has(line));
}

function spanShown() {
  let oldest = now;
  for (const lines of figures.values()) {
    for (const { points } of lines) if (points.length) oldest = Math.min(oldest, points[0][0]);
  }
  return Math.min(Math.max(60 * Math.ceil((now - oldest) / 60), 120), SPAN_S);
}

function draw(figure) {
  const lines = highest(figures.get(figure.dataset.figure) ?? []);
  const plot = figure.querySelector(".plot");
  const [width, height] = [plot.clientWidth, plot.clientHeight];
  if (!width) return;
  const unit = figure.dataset.unit;
  const span = spanShown();
  const since = now - span;
  const shown = lines.map((line) => line.points.filter(([t]) => t >= since));
  const limits = figure.dataset.limits ? figure.dataset.limits.split(",").map(Number) : [];
  const largest = Math.max(0, ...shown.flat().map(([, value]) => value));
  const top = Number(figure.dataset.maximum) || ceiling(largest > 0 ? largest * 1.05 : 1);
  const y = (value) => height - 16 - (value / top) * (height - 28);
  const x = (t) => ((t - since) / span) * width;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}` });
  for (const share of [0, 0.5, 1]) {
    svg.append(element("line", { x1: 0, x2: width, y1: y(share * top), y2: y(share * top), class: "rule" }));
    if (share) svg.append(element("text", { x: 0, y: y(share * top) - 3 }, amount(share * top, unit)));
  }
  for (const limit of limits) {
    if (limit <= top) svg.append(element("line", { x1: 0, x2: width, y1: y(limit), y2: y(limit), class: "limit" }));
  }
  svg.append(element("text", { x: 0, y: height - 2 }, `−${span / 60} min`));
  svg.append(element("text", { x: width, y: height - 2, "text-anchor": "end" }, words.now));
  if (!shown.some((points) => points.length)) {
    svg.append(element("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "none" }, words.no_data));
  }
  shown.forEach((points, k) => {
    let path = "";
    let before = -Infinity;
    for (const [t, value] of points) {
      path += `${t - before > GAP_S ? "M" : "L"}${x(t).toFixed(1)} ${y(Math.min(value, top)).toFixed(1)}`;
      before = t;
    }
    if (points.length === 1) path += "h1";
    svg.append(element("path", { d: path, class: `line c${k % 6} d${k % 4}` }));
  });
  if (figure.matches(":hover") && figure.dataset.at) {
    const at = Number(figure.dataset.at);
    svg.append(element("line", { x1: at, x2: at, y1: 10, y2: height - 16, class: "cursor" }));
  }
  plot.replaceChildren(svg);
  legend(figure, lines, shown, unit, (at) => since + (at / width) * span);
}

function legend(figure, lines, shown, unit, timeAt) {
  const body = figure.querySelector("tbody");
  if (!lines.length) return;
  const pointed = figure.matches(":hover") && figure.dataset.at;
  const t = timeAt(Number(figure.dataset.at));
  while (body.rows.length > lines.length) body.deleteRow(-1);
  lines.forEach((line, k) => {
    const row = body.rows[k] ?? body.insertRow();
    if (!row.querySelector("th")) {
      const head = document.createElement("th");
      const key = document.createElement("span");
      head.scope = "row";
      key.className = `key k${k % 6}`;
      key.setAttribute("aria-hidden", "true");
      head.append(key, "");
      row.replaceChildren(head, document.createElement("td"));
    }
    row.cells[0].lastChild.nodeValue = line.name;
    const near = pointed ? shown[k].findLast(([at]) => at <= t && t - at < GAP_S)?.[1] : line.last;
    const text = amount(near, unit);
    if (row.cells[1].textContent !== text) row.cells[1].textContent = text;
  });
}

function drawAll() {
  document.querySelectorAll("[data-figure]").forEach(draw);
}

function take(points) {
  for (const [id, lines] of Object.entries(points)) {
    const held = new Map((figures.get(id) ?? []).map((line) => [line.name, line]));
    figures.set(id, lines.map(([name, value]) => {
      const line = held.get(name) ?? { name, points: [] };
      line.last = value;
      if (value !== null && (line.points.at(-1)?.[0] ?? 0) < now) line.points.push([now, value]);
      while (line.points.length && line.points[0][0] < now - SPAN_S) line.points.shift();
      return line;
    }));
  }
}

async function remember() {
  const answer = await fetch("live/state.json", { cache: "no-store" });
  if (!answer.ok) return;
  const state = await answer.json();
  now = state.wall_s;
  for (const figure of state.figures) figures.set(figure.id, figure.lines);
  drawAll();
}

for (const figure of document.querySelectorAll("[data-figure]")) {
  figure.addEventListener("pointermove", (event) => {
    figure.dataset.at = event.clientX - figure.querySelector(".plot").getBoundingClientRect().left;
    draw(figure);
  });
  figure.addEventListener("pointerleave", () => {
    delete figure.dataset.at;
    draw(figure);
  });
}
new ResizeObserver(drawAll).observe(document.querySelector(".charts"));

/* --- the stream --- */

function say(kind) {
  if (status.dataset.kind === kind) return;
  status.dataset.kind = kind;
  status.className = `status ${kind}`;
  status.textContent = words[kind];
}

function follow() {
  const stream = new EventSource(`live/events?lang=${language}`);
  stream.onopen = () => {
    say("live");
    remember().catch(() => {});
  };
  stream.onmessage = (event) => {
    const frame = JSON.parse(event.data);
    now = frame.wall_s;
    show(frame.sections);
    take(frame.points);
    if (!document.hidden) drawAll();
    say("live");
  };
  stream.onerror = () => {
    say("lost");
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 3000);
  };
}

say("connecting");
follow();

/* --- copying and switching --- */

async function copy(button) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = words.copied;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = words.copy_failed;
  }
  setTimeout(() => { button.textContent = before; }, 2000);
}

const dialog = document.getElementById("switch");
const problem = document.getElementById("switch-problem");
const form = dialog.querySelector("form");
const TOKEN = "tocsin-token";
let wanted = { scope: "everything", profile: "full" };

function ask(button) {
  wanted = { scope: button.dataset.scope, profile: button.dataset.profile };
  const scope = wanted.scope.split(":").pop();
  document.getElementById("switch-title").textContent = words.switch_to
    .replace("{scope}", words[scope] ?? scope)
    .replace("{profile}", button.textContent);
  const weaker = document.getElementById("switch-weaker");
  weaker.hidden = wanted.profile === "full";
  weaker.textContent = words.weaker;
  problem.textContent = "";
  form.elements.token.value = sessionStorage.getItem(TOKEN) ?? "";
  dialog.showModal();
  form.elements.reason.focus();
}

async function send() {
  const [kind, name] = wanted.scope.split(":");
  const order = {
    profile: wanted.profile,
    ttl_s: Number(form.elements.ttl.value),
    reason: form.elements.reason.value.trim(),
    ...(name ? { [kind]: name } : {}),
  };
  const token = form.elements.token.value;
  const answer = await fetch("health/checker_status", {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
    body: JSON.stringify(order),
  });
  if (answer.ok) {
    sessionStorage.setItem(TOKEN, token);
    form.reset();
    dialog.close();
    announce(words.done);
  } else if (answer.status === 401) {
    sessionStorage.removeItem(TOKEN);
    problem.textContent = words.bad_token;
    form.elements.token.focus();
  } else {
    const body = await answer.json().catch(() => ({}));
    problem.textContent = words.failed + (body.error?.message ?? answer.status);
  }
}

function announce(text) {
  const note = document.createElement("p");
  note.className = "done";
  note.setAttribute("role", "status");
  document.body.append(note);
  note.textContent = text;
  setTimeout(() => note.remove(), 5000);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  send().catch((error) => { problem.textContent = words.failed + error.message; });
});
document.getElementById("switch-cancel").addEventListener("click", () => dialog.close());
document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.dataset.copy) copy(button);
  else if (button?.dataset.scope) ask(button);
});
