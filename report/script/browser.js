// The browser of trajectories: which section, which filters, which question, and which trajectory is open alone.

const NO_FILTERS = { query: "", show: "all", outcome: "", role: "", kind: "", arm: "", min: "", max: "" };
const view = { section: "", id: "", open: "", limit: PAGE, ...NO_FILTERS };
const sectionOf = (name) => index.sections.find((section) => section.name === name);
const armTitle = (arm) => (arm === "adapter" ? "trained" : arm);

// What a query looks for in a trajectory: its answer and everything that models, searches and tools said in it.

const outputs = new Map();
function outputsOf(question) {
  if (!outputs.has(question)) {
    outputs.set(question, question.runs.map((line, i) => {
      const run = runOf(question, i);
      if (!run) return "";
      return [run.answer, run.explanation, run.error, run.stopped, ...run.turns.map((turn) => turn.said),
        ...run.events.flatMap((e) => [e.text, e.query, e.arguments, e.error, ...(e.entities || [])])].join("\n").toLowerCase();
    }));
  }
  return outputs.get(question);
}

async function search(text) {
  const keys = [];
  for (const question of index.sections.flatMap((section) => section.questions)) {
    if (placeOf(question) === null) continue;
    if (!detailsOf(question)) await readDetails(question);
    outputsOf(question).forEach((said, i) => { if (matches(said, text)) keys.push(question.runs[i].key); });
  }
  return keys;
}

let hits = { text: "", keys: new Set() };  // those of the query before, until the search ends
let searches = 0;
async function searchSoon() {
  const turn = searches += 1;
  await new Promise((done) => setTimeout(done, 250));
  if (turn !== searches) return;  // another query was typed meanwhile
  const text = view.query.trim();
  let keys = [];
  try {
    if (text) keys = await search(text);
  } catch (error) {
    problem(`The trajectories cannot be searched: ${error.message}`);
  }
  if (turn !== searches) return;
  hits = { text, keys: new Set(keys) };
  drawBrowser();
}

// Positions of the question's trajectories that pass all filters.
function passing(question) {
  if (view.kind && question.kind !== view.kind) return [];
  if (view.show === "kept" && !question.kept || view.show === "dropped" && question.kept) return [];
  if (view.show === "gained" && !(gain(question) > 1e-9) || view.show === "lost" && !(gain(question) < -1e-9)) return [];
  const query = view.query.trim();
  const named = !query || matches(`${question.id} ${question.text} ${question.kind} ${question.answers.join(" ")}`, query);
  const [min, max] = [view.min, view.max].map((bound) => (bound === "" ? null : Number(bound)));
  return question.runs.map((run, i) => i).filter((i) => {
    const run = question.runs[i];
    if (view.outcome && !run.outcomes.includes(view.outcome)) return false;
    if (view.role && !run.roles.includes(view.role)) return false;
    if (view.arm && run.arm !== view.arm) return false;
    // Rewards are shown with two digits, and compared as they are shown.
    const reward = run.reward === null ? null : Math.round(run.reward * 100) / 100;
    if (min !== null && (reward === null || reward < min) || max !== null && (reward === null || reward > max)) return false;
    return named || hits.keys.has(run.key);
  });
}

function gain(question) {
  const mean = (arm) => {
    const known = question.runs.filter((r) => r.arm === arm && r.reward !== null).map((r) => r.reward);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  };
  const [before, after] = [mean("base"), mean("adapter")];
  return before === null || after === null ? null : after - before;
}

function change(values) {
  const query = view.query;
  Object.assign(view, { limit: PAGE, open: "" }, values);
  if (view.query !== query) busy(searchSoon());
  drawBrowser();
}

function drawFilters(current) {
  const distinct = (values) => [...new Set(values)].filter(Boolean).sort();
  const runs = current.questions.flatMap((q) => q.runs);
  switcher(byId("section-switch"), index.sections.map((s) => [s.name, s.title]), view.section,
    (name) => change({ ...NO_FILTERS, section: name, id: "" }));
  switcher(byId("question-filter"), current.name === "sampled"
    ? [["all", "All"], ["kept", "Kept"], ["dropped", "Dropped"]]
    : [["all", "All"], ["gained", "Gained"], ["lost", "Lost"]], view.show, (show) => change({ show }));
  const happened = new Set(runs.flatMap((run) => run.outcomes));
  fillSelect(byId("filter-outcome"), [["", "Every outcome"],
    ...Object.keys(index.outcomes).filter((name) => happened.has(name)).map((name) => [name, words(name)])], view.outcome);
  fillSelect(byId("filter-kind"), [["", "Every kind"], ...distinct(current.questions.map((q) => q.kind)).map((k) => [k, k])], view.kind);
  fillSelect(byId("filter-role"), [["", "Every role"], ...distinct(runs.flatMap((r) => r.roles)).map((r) => [r, r])], view.role);
  fillSelect(byId("filter-arm"), [["", "Every arm"], ...distinct(runs.map((r) => r.arm)).map((a) => [a, armTitle(a)])], view.arm);
  for (const [id, name] of [["question-search", "query"], ["filter-min", "min"], ["filter-max", "max"]]) {
    if (byId(id).value !== view[name]) byId(id).value = view[name];
  }
  byId("outcome-meaning").textContent = view.outcome ? `· ${words(view.outcome)}: ${index.outcomes[view.outcome]}` : "";
}

let shown = null;  // the question, and which of its trajectories pass
function drawBrowser() {
  if (!byId("questions")) return;
  const current = sectionOf(view.section) || index.sections[0];
  view.section = current.name;
  drawFilters(current);
  const found = current.questions.map((question) => [question, passing(question)]).filter(([, runs]) => runs.length);
  if (!found.some(([question]) => question.id === view.id)) view.id = found.length ? found[0][0].id : "";
  const place = found.findIndex(([question]) => question.id === view.id);
  while (view.limit <= place) view.limit += PAGE;
  const runs = found.reduce((sum, [, passed]) => sum + passed.length, 0);
  byId("question-count").textContent = `${found.length} of ${current.questions.length} questions, ${runs} trajectories`;
  byId("clear-filters").hidden = Object.entries(NO_FILTERS).every(([name, value]) => view[name] === value);
  drawList(current, found);
  shown = found[place] || null;
  if (shown) openDetails(shown[0]);
  drawShown();
  remember();
}

let drawn = "";
function drawShown() {
  const state = JSON.stringify([view.section, view.open, shown, Boolean(shown && detailsOf(shown[0]))]);
  if (state !== drawn) drawQuestion(shown);  // what is the same stays, with what was opened in it
  drawn = state;
}

async function openDetails(question) {
  if (placeOf(question) === null || detailsOf(question)) return;
  try {
    await busy(readDetails(question));
    drawShown();
  } catch (error) {
    problem(`The trajectories cannot be opened: ${error.message}`);
  }
}

function drawList(current, found) {
  const list = byId("questions");
  const focused = list.contains(document.activeElement);
  list.replaceChildren(...found.slice(0, view.limit).map(([question, passed]) => el("button", {
    type: "button", "data-question": question.id, "aria-current": String(question.id === view.id),
    tabindex: question.id === view.id ? 0 : -1, onclick: () => change({ id: question.id, limit: view.limit }),
  }, el("bdi", null, question.text), el("small", null, summary(question, passed, current.name === "sampled")))));
  if (!found.length) list.append(el("div", { class: "empty" }, hits.text === view.query.trim() ? "No question matches." : "Searching…"));
  if (found.length > view.limit) {
    list.append(el("button", { type: "button", class: "more", onclick: () => { view.limit += PAGE; drawBrowser(); } },
      `${found.length - view.limit} more`));
  }
  const chosen = list.querySelector("[aria-current=true]");
  if (chosen && focused) chosen.focus();
  // Only the list may scroll for it: the page stays where the reader is.
  if (chosen && (chosen.offsetTop < list.scrollTop || chosen.offsetTop + chosen.offsetHeight > list.scrollTop + list.clientHeight)) {
    list.scrollTop = chosen.offsetTop - list.clientHeight / 3;
  }
}

function drawQuestion(found) {
  if (!found) {
    byId("question").replaceChildren();
    byId("runs").replaceChildren();
    return;
  }
  const [question, passed] = found;
  const places = view.open ? passed.filter((i) => question.runs[i].key === view.open) : passed;
  const hidden = question.runs.length - passed.length;
  byId("question").replaceChildren(...heading(question),
    ...(hidden ? [el("p", { class: "hidden-runs" }, `The filters hide ${hidden} of its ${question.runs.length} trajectories.`)] : []));
  const focused = document.activeElement.closest(".run");
  byId("runs").replaceChildren(...places.map((i) => column(question, i)));
  if (focused) focusRun(focused.dataset.key);
  byId("runs").classList.toggle("alone", Boolean(view.open));
  shadeSides();
}

function focusRun(key) {
  const column = byId("runs").querySelector(`[data-key="${CSS.escape(key)}"]`);
  if (column) column.focus({ preventScroll: true });
}

// A shadow at each side where more trajectories are. It lies over them, since they would cover one behind them.
function shadeSides() {
  const shown = byId("runs").parentElement;
  shown.parentElement.classList.toggle("more-left", shown.scrollLeft > 1);
  shown.parentElement.classList.toggle("more-right", shown.scrollWidth - shown.clientWidth - shown.scrollLeft > 1);
}

function summary(question, passed, isSampled) {
  const kind = question.kind ? `${question.kind}, ` : "";
  const match = passed.length < question.runs.length ? ` · ${passed.length} of ${question.runs.length} match` : "";
  if (!isSampled) {
    const by = gain(question);
    return `${kind}${by === null ? `${question.runs.length} trajectories` : `reward ${by >= 0 ? "+" : "−"}${Math.abs(by).toFixed(2)}`}${match}`;
  }
  return `${kind}${question.kept === null ? "not selected yet" : question.kept ? `${question.kept} of ${question.runs.length} kept` : "dropped"}${match}`;
}

function heading(question) {
  return [
    el("h3", null, question.text),
    question.answers.length ? el("p", null, `Expected: ${question.answers.join(" / ")}`) : null,
    question.labels.length ? el("p", null, `Labels: ${question.labels.join(" / ")}`) : null,
    question.nuggets.length ? el("p", null, `Nuggets: ${question.nuggets.join(" · ")}`) : null,
    question.reason ? el("p", null, question.reason) : null,
    ...((detailsOf(question) || {}).notes || []).map((note) => el("p", null, note)),
  ].filter(Boolean);
}

// Permalinks: #t=KEY opens one trajectory alone.

const placesOf = () => new Map(index.sections.flatMap((section) =>
  section.questions.flatMap((question) => question.runs.map((run) => [run.key, [section.name, question.id]]))));
let places = new Map();

function remember() {
  const wanted = view.open ? `#t=${view.open}` : "";
  const now = location.hash.startsWith("#t=") ? location.hash : "";
  if (wanted !== now) history.replaceState(null, "", wanted || "#trajectories");
}

function openTrajectory(key, keepFilters) {
  if (!places.has(key)) return;
  const [section, id] = places.get(key);
  Object.assign(view, keepFilters ? {} : NO_FILTERS, { section, id, open: key });
  drawBrowser();
  byId("runs").firstElementChild.focus({ preventScroll: true });
}

function closeTrajectory() {
  const key = view.open;
  view.open = "";
  drawBrowser();
  focusRun(key);
}

function openQuestion(section, id) {
  Object.assign(view, NO_FILTERS, { section, id, open: "" });
  drawBrowser();
  byId("trajectories").scrollIntoView();
  byId("questions").querySelector("[aria-current=true]").focus({ preventScroll: true });
}

function followLink(hash) {
  if (!hash.startsWith("#t=")) return;
  const key = hash.slice(3);
  if (!places.has(key)) {
    byId("question-count").textContent = "The trajectory of this link is not on the page.";
  } else {
    if (key !== view.open) openTrajectory(key, false);
    byId("trajectories").scrollIntoView();
  }
}

// Keys: up and down in the list, left and right among trajectories, Enter opens, Escape goes back.

function keysOfList(event) {
  const rows = [...byId("questions").querySelectorAll("button")];
  const at = rows.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (event.key === "Enter" && rows[at] && rows[at].getAttribute("aria-current") === "true") {
    if (byId("runs").firstElementChild) byId("runs").firstElementChild.focus();
  } else if (to !== undefined && rows[to]) {
    rows[to].focus();
    rows[to].click();
  } else return;
  event.preventDefault();
}

function keysOfRuns(event) {
  const columns = [...byId("runs").children];
  const column = event.target.closest(".run");
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (event.key === "Escape") {
    const message = event.target.closest("details[open]");
    if (message) {
      message.open = false;
      message.querySelector("summary").focus();
    } else if (view.open) closeTrajectory();
    else byId("questions").querySelector("[aria-current=true]").focus();
  } else if (event.target !== column) return;
  else if (event.key === "Enter") openTrajectory(column.dataset.key, true);
  else if (step && view.open) {
    const question = sectionOf(view.section).questions.find((q) => q.id === view.id);
    const keys = passing(question).map((i) => question.runs[i].key);
    const next = keys[keys.indexOf(view.open) + step];
    if (next) openTrajectory(next, true);
  } else if (step && columns[columns.indexOf(column) + step]) columns[columns.indexOf(column) + step].focus();
  else return;
  event.preventDefault();
}

function browser() {
  if (!byId("questions")) return;
  for (const [id, name] of [["question-search", "query"], ["filter-min", "min"], ["filter-max", "max"]]) {
    byId(id).addEventListener("input", (event) => change({ [name]: event.target.value }));
  }
  for (const name of ["outcome", "kind", "role", "arm"]) {
    byId(`filter-${name}`).addEventListener("change", (event) => change({ [name]: event.target.value }));
  }
  byId("clear-filters").addEventListener("click", () => { change(NO_FILTERS); byId("question-search").focus(); });
  byId("show-control").addEventListener("change", (event) =>
    byId("trajectories").classList.toggle("with-control", event.target.checked));
  byId("questions").addEventListener("keydown", keysOfList);
  byId("runs").addEventListener("keydown", keysOfRuns);
  byId("runs").parentElement.addEventListener("scroll", shadeSides);
  new ResizeObserver(shadeSides).observe(byId("runs").parentElement);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-outcome]");
    if (!button) return;
    const { section, arm, outcome, text } = button.dataset;
    change({ ...NO_FILTERS, section, arm, outcome, query: text || "", id: "" });
    byId("trajectories").scrollIntoView();
    byId("filter-outcome").focus({ preventScroll: true });
  });
  window.addEventListener("hashchange", () => followLink(location.hash));
  const link = location.hash;
  drawBrowser();
  followLink(link);
}
