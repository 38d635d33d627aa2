"use strict";
/* Copy buttons and hover details. The report is complete without this script. */
(() => {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(code);
        const selection = getSelection();
        selection.removeAllRanges();
        selection.addRange(range);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }

  const tip = document.getElementById("tip");
  const series = JSON.parse(document.getElementById("series").textContent);

  function show(text, x, y) {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = x + 14 + box.width > innerWidth ? x - 14 - box.width : x + 14;
    const top = y + 16 + box.height > innerHeight ? y - 12 - box.height : y + 16;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }
  function hide() {
    tip.hidden = true;
    for (const cross of document.querySelectorAll(".cross")) cross.style.visibility = "hidden";
  }
  function amount(value, unit) {
    if (value === null || value === undefined) return "no data";
    return `${value >= 100 ? Math.round(value) : Number(value.toPrecision(3))} ${unit}`;
  }
  function at(seconds) {
    const edges = series.edges_s;
    let bin = edges.length - 2;
    for (let k = 0; k + 1 < edges.length; k += 1) if (seconds < edges[k + 1]) { bin = k; break; }
    if (bin < 0) return `${seconds.toFixed(1)} s\nno data`;
    const lines = [
      `${edges[bin].toFixed(1)}–${edges[bin + 1].toFixed(1)} s`,
      `first token p50 ${amount(series.ttft_p50_ms[bin], "ms")} · p99 ${amount(series.ttft_p99_ms[bin], "ms")}`,
      `between tokens p50 ${amount(series.gap_p50_ms[bin], "ms")} · p99 ${amount(series.gap_p99_ms[bin], "ms")}`,
      `${amount(series.tokens_per_s[bin], "tokens/s")}`,
    ];
    if (series.failures[bin]) lines.push(`${series.failures[bin]} without an answer`);
    for (const span of series.windows) {
      if (span[0] < edges[bin + 1] && span[1] >= edges[bin]) lines.push(`fault active: ${span[2]}`);
    }
    return lines.join("\n");
  }

  for (const chart of document.querySelectorAll("svg.timeline, svg.matrix")) {
    chart.addEventListener("pointermove", (event) => {
      const marked = event.target.closest("[data-tip]");
      const start = Number(chart.dataset.start), end = Number(chart.dataset.end);
      if (marked) { show(marked.dataset.tip, event.clientX, event.clientY); return; }
      if (!chart.dataset.seconds) { hide(); return; }
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
      if (point.x < start || point.x > end) { hide(); return; }
      const cross = chart.querySelector(".cross");
      cross.setAttribute("transform", `translate(${point.x} 0)`);
      cross.style.visibility = "visible";
      show(at((point.x - start) / (end - start) * Number(chart.dataset.seconds)), event.clientX, event.clientY);
    });
    chart.addEventListener("pointerleave", hide);
    /* The script shows its own tips; the browser's would come on top. */
    for (const title of chart.querySelectorAll(".told > title")) {
      title.parentElement.dataset.tip = title.textContent;
      title.remove();
    }
  }
  addEventListener("scroll", hide, { passive: true });
})();
