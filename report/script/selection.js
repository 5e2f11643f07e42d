// The list of what was kept for training: a row opens the question's trajectories.

function selectionList() {
  const body = byId("choices");
  if (!body) return;
  const state = { query: "", show: "all", reason: "", limit: PAGE };
  const cause = (choice) => choice.reason.replace(/\s*\(.*$/, "").replace(/[\d.]+/g, "#");
  const causes = new Map();
  for (const choice of index.choices) causes.set(cause(choice), (causes.get(cause(choice)) || 0) + 1);
  const sorted = [...causes].sort((a, b) => b[1] - a[1]);
  byId("choice-reason").append(el("option", { value: "" }, "Every reason"),
    ...sorted.map(([text, count]) => el("option", { value: text }, `${text}  (${count})`)));
  const shownIds = new Set((sectionOf("sampled") || { questions: [] }).questions.map((q) => q.id));

  function rowOf(choice) {
    const canOpen = shownIds.has(choice.id);
    const openIt = () => { openQuestion("sampled", choice.id); };
    return el("tr", { class: `${choice.kept ? "kept" : "dropped"} ${canOpen ? "open" : ""}`, "data-question": choice.id,
      tabindex: canOpen ? 0 : null, title: canOpen ? "Show its trajectories" : null,
      onclick: canOpen ? openIt : () => {},
      onkeydown: (event) => {
        const next = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
        if (event.key === "Enter" && canOpen) openIt();
        else if (next && event.currentTarget[next]) event.currentTarget[next].focus();
        else return;
        event.preventDefault();
      } },
    el("td", null, el("bdi", null, choice.text || choice.id), " ", choice.kind ? el("small", null, choice.kind) : null),
    el("td", null, choice.reason), el("td", { class: "n", "data-label": "best" }, fixed(choice.best)), el("td", { class: "n", "data-label": "mean" }, fixed(choice.mean)),
    el("td", { class: "n", "data-label": "kept" }, `${choice.kept} of ${choice.sampled}`));
  }

  function draw() {
    const found = index.choices.filter((c) =>
      (state.show === "all" || (state.show === "kept") === c.kept > 0) &&
      (!state.reason || cause(c) === state.reason) && matches(`${c.id} ${c.text} ${c.kind} ${c.reason}`, state.query));
    byId("choice-count").textContent = `${found.length} of ${index.choices.length}`;
    body.replaceChildren(...found.slice(0, state.limit).map(rowOf));
    if (found.length > state.limit) {
      const more = el("button", { type: "button", onclick: () => { state.limit += PAGE; draw(); } }, `${found.length - state.limit} more`);
      body.append(el("tr", null, el("td", { colspan: 5 }, more)));
    }
    switcher(byId("choice-filter"), [["all", "All"], ["kept", "Kept"], ["dropped", "Dropped"]], state.show,
      (value) => { state.show = value; state.limit = PAGE; draw(); });
  }
  byId("choice-search").addEventListener("input", (event) => { state.query = event.target.value; state.limit = PAGE; draw(); });
  byId("choice-reason").addEventListener("change", (event) => { state.reason = event.target.value; draw(); });
  draw();
}
