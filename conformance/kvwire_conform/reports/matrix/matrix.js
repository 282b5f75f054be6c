"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const table = $("matrix");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const features = new Map(data.features.map((f) => [f.id, f]));
  const severity = data.severity;
  const states = ["reads", "unseen", "partly", "blind"];
  const narrow = matchMedia("(max-width: 700px)");
  const cellOf = new Map(data.cells.map((c, i) => [c.producer + "\n" + c.consumer, i]));
  let sorted = -1;

  const el = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    made.append(...children.filter((c) => c !== null && c !== undefined));
    return made;
  };
  const word = (verdict) => el("span", { class: "word v-" + verdict }, verdict);
  const cellAt = (row, column) =>
    data.cells[cellOf.get(row.dataset.producer + "\n" + data.consumers[column].id)];
  const rowOf = (cell, feature) => cell.rows.find((r) => r.feature === feature);
  const rank = (row, column) => {
    const cell = cellAt(row, column);
    const feature = $("feature").value;
    if (!feature) return states.indexOf(cell.state) * 100 + cell.rows.filter((r) => r.verdict !== "exact").length;
    const found = rowOf(cell, feature);
    return found ? severity.indexOf(found.verdict) : -1;
  };

  // ---- what is shown --------------------------------------------------------------------------------------------
  const shownGroups = () => new Set([...document.querySelectorAll("[name=group]:checked")].map((box) => box.value));
  const releasesOf = (row) => row.cells[0].textContent.toLowerCase();
  const fits = (text, row) => text.split(/\s+/).every((part) => releasesOf(row).includes(part) || spans(part, row));
  // "0.24" is looked for in ranges of releases as well: it lies in "0.10.2–0.25.1".
  const numbers = (version) => version.split(/\D+/).filter(Boolean).map(Number);
  const compare = (a, b) => {
    for (let i = 0; i < Math.max(a.length, b.length); i++) if ((a[i] || 0) !== (b[i] || 0)) return (a[i] || 0) - (b[i] || 0);
    return 0;
  };
  const spans = (part, row) => {
    if (!/^\d+(\.\d+)+/.test(part)) return false;
    const wanted = numbers(part);
    const engine = ["vllm", "sglang"].find((name) => $("find").value.toLowerCase().includes(name));
    return releasesOf(row).split(";").some((piece) => {
      if (engine && !piece.includes(engine)) return false;
      const ends = piece.match(/\d[\w.]*/g) || [];
      return ends.length > 0 && compare(numbers(ends[0]), wanted) <= 0 && compare(wanted, numbers(ends[ends.length - 1])) <= 0;
    });
  };

  const paint = () => {
    const feature = $("feature").value;
    for (const button of table.querySelectorAll("[data-cell]")) {
      const cell = data.cells[button.dataset.cell];
      if (!feature) {
        const trouble = cell.rows.filter((r) => r.verdict !== "exact").length;
        button.className = "mark s-" + cell.state;
        button.replaceChildren(data.marks[cell.state], trouble ? el("small", {}, String(trouble)) : "");
      } else {
        const found = rowOf(cell, feature);
        button.className = "mark " + (found ? "v-" + found.verdict : "v-none");
        button.replaceChildren(found ? data.marks[found.verdict] : "·");
      }
      button.title = label(cell, feature);
    }
  };
  const label = (cell, feature) => {
    if (feature) {
      const found = rowOf(cell, feature);
      return `${cell.consumer} on ${cell.producer}, ${features.get(feature).title}: ${found ? found.verdict : "no such payload"}`;
    }
    const trouble = cell.rows.filter((r) => r.verdict !== "exact");
    return `${cell.consumer} on ${cell.producer}: ` + (trouble.length ? trouble.map((r) => `${features.get(r.feature).title} ${r.verdict}`).join(", ") : "everything exact");
  };
  const arrange = () => {
    const text = $("find").value.trim().toLowerCase();
    const state = $("state").value;
    const groups = shownGroups();
    const visible = data.consumers.map((c, i) => (narrow.matches ? String(i) === $("consumer").value : groups.has(c.group)));
    for (const part of table.querySelectorAll("[data-column]")) part.hidden = !visible[part.dataset.column];
    for (const part of table.querySelectorAll(".groups [data-group]")) part.hidden = !groups.has(part.dataset.group);
    for (const part of document.querySelectorAll("article[data-group], .kinds [data-group]")) part.hidden = !groups.has(part.dataset.group);
    let any = false;
    for (const row of rows) {
      const cells = data.consumers.map((_, i) => i).filter((i) => visible[i]).map((i) => cellAt(row, i));
      const troubled = !state || cells.some((c) => c.state === "blind" || (state === "trouble" && c.state === "partly"));
      row.hidden = !(troubled && (!text || fits(text, row)));
      any = any || !row.hidden;
    }
    $("nothing").hidden = any;
    paint();
    sort(sorted, false);
  };
  const sort = (column, chosen) => {
    if (chosen) sorted = column;
    for (const head of table.querySelectorAll("[data-sort]")) {
      if (Number(head.dataset.sort) === column) head.setAttribute("aria-sort", column < 0 ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    }
    const order = (row) => Number(row.dataset.order);
    body.append(...[...rows].sort((a, b) => (column < 0 ? 0 : rank(b, column) - rank(a, column)) || order(a) - order(b)));
  };

  // ---- evidence -------------------------------------------------------------------------------------------------
  const show = (index) => {
    const cell = data.cells[index];
    const column = data.consumers.find((c) => c.id === cell.consumer);
    const producer = data.producers.find((p) => p.id === cell.producer);
    const parts = [
      el("h2", { id: "evidence-title" }, `${cell.consumer} on ${cell.producer}`),
      el("p", { class: "hint" }, `${producer.releases || "no release"} → ${column.language}${column.decoder ? ", " + column.decoder : ""}` +
        (cell.claimed || cell.producer === "any" ? "" : ". It does not claim to read this dialect.")),
    ];
    if (column.notes) parts.push(el("p", { class: "hint" }, column.notes));
    const chosen = $("feature").value;
    for (const row of [...cell.rows].sort((a, b) => severity.indexOf(b.verdict) - severity.indexOf(a.verdict))) {
      const feature = features.get(row.feature);
      const counts = Object.entries(row.counts).map(([verdict, count]) => `${count} ${verdict}`).join(", ") +
        (row.not_judged ? `${Object.keys(row.counts).length ? ", " : ""}${row.not_judged} not judged` : "");
      const box = el("details", {}, el("summary", {}, word(row.verdict), el("b", {}, feature.title), el("span", { class: "counts" }, counts)));
      box.open = chosen ? chosen === row.feature : row.verdict !== "exact" && cell.rows.filter((r) => r.verdict !== "exact").length < 4;
      box.append(el("p", { class: "hint" }, feature.meaning));
      for (const evidence of row.evidence || []) box.append(shown(evidence));
      parts.push(box);
    }
    $("evidence-body").replaceChildren(...parts);
    const dialog = $("evidence");
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
    history.replaceState(null, "", "#" + encodeURIComponent(cell.producer + "/" + cell.consumer));
  };
  const shown = (evidence) => {
    const list = el("dl", {});
    const add = (name, ...value) => list.append(el("dt", {}, name), el("dd", {}, ...value));
    const payload = data.payloads[evidence.vector];
    add("vector", el("code", {}, evidence.vector), ` ${payload.description}`);
    for (const difference of evidence.differences || []) {
      add(difference.where, "expected ", el("code", {}, difference.expected), ", got ", el("code", {}, difference.got));
    }
    if (evidence.said) add("it says", el("q", {}, evidence.said));
    if (evidence.note) add("note", evidence.note);
    const more = payload.size * 2 > payload.hex.length ? " …" : "";
    add(`payload, ${payload.size} bytes`, el("span", { class: "hex" }, (payload.hex.match(/../g) || []).join(" ") + more));
    return el("div", { class: "evidence" }, word(evidence.verdict), list);
  };

  // ---- wiring ---------------------------------------------------------------------------------------------------
  data.consumers.forEach((c, i) => $("consumer").append(el("option", { value: i }, c.id)));
  $("controls").addEventListener("input", arrange);
  narrow.addEventListener("change", arrange);
  table.addEventListener("click", (event) => {
    const cell = event.target.closest("[data-cell]");
    if (cell) return show(Number(cell.dataset.cell));
    const head = event.target.closest("[data-sort]");
    if (head) sort(Number(head.dataset.sort), true);
  });
  document.querySelector(".kinds").addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-feature]");
    if (!chosen) return;
    $("feature").value = chosen.dataset.feature;
    arrange();
    $("controls").scrollIntoView();
  });
  $("evidence").addEventListener("click", (event) => { if (event.target === $("evidence")) $("evidence").close(); });
  $("evidence").addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
  const open = () => {
    const [producer, ...rest] = decodeURIComponent(location.hash.slice(1)).split("/");
    const index = cellOf.get(producer + "\n" + rest.join("/"));
    if (index !== undefined) show(index);
  };
  addEventListener("hashchange", open);
  arrange();
  open();
})();
