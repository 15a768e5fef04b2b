"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const wish = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (wish.matches ? "dark" : "light")) === "dark";

  const say = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Show in light colours" : "Show in dark colours");
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    say();
  });
  wish.addEventListener("change", say);
  say();

  const tip = document.createElement("div");
  tip.id = "tip";
  document.body.append(tip);

  for (const chart of document.querySelectorAll(".chart")) {
    const plot = chart.querySelector(".plot");
    const cursor = chart.querySelector(".cursor");
    const tips = JSON.parse(chart.dataset.tips);
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      const index = Math.max(0, Math.min(tips.length - 1, Math.floor(share * tips.length)));
      const [when, p50, p95, p99] = tips[index];
      tip.textContent = `${when} UTC\np50  ${p50}\np95  ${p95}\np99  ${p99}`;
      tip.style.display = cursor.style.display = "block";
      cursor.style.left = `${((index + 0.5) / tips.length) * 100}%`;
      const left = box.left + ((index + 0.5) / tips.length) * box.width;
      const beside = left + tip.offsetWidth + 24 > innerWidth ? left - tip.offsetWidth - 12 : left + 12;
      tip.style.left = `${beside + scrollX}px`;
      tip.style.top = `${box.top + scrollY + 8}px`;
    });
    plot.addEventListener("pointerleave", () => {
      tip.style.display = cursor.style.display = "none";
    });
  }

  for (const graph of document.querySelectorAll(".graph")) {
    const edges = graph.querySelectorAll(".edge");
    for (const node of graph.querySelectorAll(".node")) {
      node.addEventListener("pointerenter", () => {
        graph.classList.add("chosen");
        for (const edge of edges) {
          const own = edge.dataset.a === node.dataset.n || edge.dataset.b === node.dataset.n;
          edge.classList.toggle("own", own);
        }
      });
      node.addEventListener("pointerleave", () => graph.classList.remove("chosen"));
    }
  }
})();
