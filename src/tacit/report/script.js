"use strict";
(() => {
  const svgSpace = "http://www.w3.org/2000/svg";
  const root = document.documentElement;

  const themes = document.querySelector(".themes");
  themes.hidden = false;
  themes.addEventListener("click", (event) => {
    const chosen = event.target.closest("button");
    if (!chosen) return;
    if (chosen.dataset.theme) root.dataset.theme = chosen.dataset.theme;
    else delete root.dataset.theme;
    for (const button of themes.children) button.setAttribute("aria-pressed", String(button === chosen));
  });

  // Read values off a plot, with a pointer or with the arrow keys.
  for (const canvas of document.querySelectorAll(".canvas")) {
    const plot = JSON.parse(canvas.dataset.plot);
    const svg = canvas.querySelector("svg");
    const stops = [...new Set(plot.lines.flatMap((line) => line.points.map((point) => point[0])))];
    stops.sort((a, b) => a - b);
    if (!stops.length) continue;
    const legend = canvas.parentElement.querySelector(".legend");
    const values = [...legend.querySelectorAll(".now")];
    const where = document.createElement("li");
    where.className = "where";
    where.setAttribute("aria-hidden", "true");
    const spoken = document.createElement("output");
    spoken.className = "unseen";
    canvas.after(spoken);
    canvas.tabIndex = 0;
    canvas.setAttribute("role", "group");
    canvas.setAttribute("aria-label", `${canvas.previousElementSibling.textContent}: arrow keys read values`);
    const cursor = document.createElementNS(svgSpace, "line");
    cursor.setAttribute("class", "cursor");
    cursor.setAttribute("y1", plot.top);
    cursor.setAttribute("y2", plot.bottom);
    let place = -1;

    const nearest = (points, x) =>
      points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
    const show = (at) => {
      place = Math.max(0, Math.min(stops.length - 1, at));
      const x = stops[place];
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
      if (!cursor.isConnected) svg.append(cursor);
      let named = "";
      const told = plot.lines.map((line, i) => {
        const point = line.points.length ? nearest(line.points, x) : null;
        const near = point && Math.abs(point[0] - x) <= 12;
        if (near && point[0] === x) named ||= point[2];
        values[i].textContent = near ? point[3] : "";
        return near ? `${line.name} ${point[3]}` : "";
      });
      where.textContent = `${plot.label} ${named}`;
      if (!where.isConnected) legend.append(where);
      return [where.textContent, ...told.filter(Boolean)].join(", ");
    };
    const hide = () => {
      cursor.remove();
      where.remove();
      for (const value of values) value.textContent = "";
      spoken.textContent = "";
      place = -1;
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      show(stops.indexOf(nearest(stops.map((stop) => [stop]), x)[0]));
    });
    canvas.addEventListener("pointerleave", () => {
      if (document.activeElement !== canvas) hide();
    });
    canvas.addEventListener("blur", hide);
    canvas.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(stops.length / 10));
      const moves = {
        ArrowLeft: place - 1, ArrowRight: place + 1, PageDown: place - far, PageUp: place + far,
        Home: 0, End: stops.length - 1,
      };
      if (event.key === "Escape") hide();
      else if (event.key in moves) spoken.textContent = show(moves[event.key]);
      else return;
      event.preventDefault();
    });
  }

  // Move the threshold of a binary prediction.
  const percent = (share) => `${(100 * share).toFixed(1)} %`;
  const grouped = (count) => count.toLocaleString("en-US");
  const wilson = (hits, total) => {
    if (!total) return [0, 1];
    const z = 1.959964, p = hits / total, z2 = z * z;
    const middle = (p + z2 / (2 * total)) / (1 + z2 / total);
    const half = (z * Math.sqrt((p * (1 - p)) / total + z2 / (4 * total * total))) / (1 + z2 / total);
    return [Math.max(0, middle - half), Math.min(1, middle + half)];
  };
  for (const panel of document.querySelectorAll(".threshold")) {
    const data = JSON.parse(panel.dataset.threshold);
    const find = (selector) => panel.querySelector(selector);
    const slider = find(".slider"), reset = find(".reset"), at = find(".at");
    const key = panel.id.replace(/-threshold$/, "");
    const cut = document.getElementById(`${key}-cut`), spot = document.getElementById(`${key}-spot`);
    const rate = (name, hits, total) => {
      find(`[data-figure="${name}"]`).textContent = total ? percent(hits / total) : "not defined";
      const range = find(`[data-range="${name}"]`);
      const [low, high] = wilson(hits, total);
      if (range) range.textContent = `95 % interval ${(100 * low).toFixed(1)} – ${(100 * high).toFixed(1)} %`;
    };
    const cell = (name, count, total) => {
      const place = find(`[data-cell="${name}"]`), share = total ? count / total : 0;
      place.className = `heat h${Math.round(10 * share)}`;
      place.children[0].textContent = grouped(count);
      place.children[1].textContent = percent(share);
    };
    const show = () => {
      const i = Number(slider.value);
      const tp = data.tp[i], fp = data.fp[i], fn = data.positives - tp, tn = data.negatives - fp;
      at.textContent = data.words[i];
      slider.setAttribute("aria-valuetext", data.words[i]);
      rate("sensitivity", tp, data.positives);
      rate("specificity", tn, data.negatives);
      rate("precision", tp, tp + fp);
      const balanced = 0.5 * (tp / Math.max(data.positives, 1) + tn / Math.max(data.negatives, 1));
      find('[data-figure="balanced"]').textContent = percent(balanced);
      cell("tn", tn, data.negatives);
      cell("fp", fp, data.negatives);
      cell("fn", fn, data.positives);
      cell("tp", tp, data.positives);
      cut.setAttribute("x1", data.cut[i]);
      cut.setAttribute("x2", data.cut[i]);
      spot.setAttribute("cx", data.spot[i][0]);
      spot.setAttribute("cy", data.spot[i][1]);
      reset.disabled = i === data.start;
    };
    slider.addEventListener("input", show);
    reset.addEventListener("click", () => {
      slider.value = data.start;
      show();
      slider.focus();
    });
    slider.value = data.start;
    reset.disabled = true;
    find(".control").hidden = false;
  }
})();
