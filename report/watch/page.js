// The page over a run: it asks for the state every few seconds, for a page of the list, and for one trajectory.

const LIMIT = 50;
const EVERY = 3000;
const NO_FILTERS = { text: "", store: "", status: "", kept: "", kind: "", role: "", min: "", max: "", order: "first" };
const view = { ...NO_FILTERS, offset: 0, open: "", total: 0, rows: "" };
const STATUSES = ["finished", "unparsed", "out_of_budget", "failed"];
const ORDERS = [["first", "Oldest first"], ["newest", "Newest first"], ["best", "Best reward first"],
  ["worst", "Worst reward first"], ["question", "By question"]];
const armTitle = (arm) => arm;
const count = (number) => number.toLocaleString("en");
const pace = (rate) => (rate >= 1 ? `${rate.toFixed(1)}/s` : `${(60 * rate).toFixed(1)}/min`);

function duration(seconds) {
  const total = Math.round(seconds);
  if (total < 60) return `${total}s`;
  if (total < 3600) return `${Math.floor(total / 60)}m${String(total % 60).padStart(2, "0")}s`;
  return `${Math.floor(total / 3600)}h${String(Math.floor((total % 3600) / 60)).padStart(2, "0")}m`;
}

async function ask(address) {
  const response = await fetch(address);
  const value = await response.json();
  if (!response.ok) throw new Error(value.error || `status ${response.status}`);
  return value;
}

const problems = new Map();
function problem(what, text) {
  if (problems.get(what) === text) return;
  if (text) problems.set(what, text);
  else problems.delete(what);
  byId("problems").hidden = !problems.size;
  byId("problems").replaceChildren(...[...problems.values()].map((line) => el("li", null, line)));
}

// The state: stage, pace, endings, engines.

function drawState(state) {
  const now = state.current;
  const busy = Boolean(state.running) || Boolean(now && now.rate);
  byId("headline").textContent = now ? `${now.title[0].toUpperCase()}${now.title.slice(1)}, round ${now.round}` : "Every stage is done.";
  byId("running").textContent = state.running ? `· running: ${state.running}` : "";
  const share = now && now.total ? Math.min(1, now.done / now.total) : null;
  byId("progress").hidden = share === null;
  if (share !== null) {
    byId("progress").setAttribute("aria-valuenow", String(Math.round(100 * share)));
    byId("progress").firstElementChild.style.width = `${100 * share}%`;
  }
  byId("pace").textContent = !now ? "" : [
    now.unit ? `${count(now.done)}${now.total ? ` of ${count(now.total)}` : ""} ${now.unit}` : "",
    now.rate ? pace(now.rate) : busy ? "" : "nothing is running, or nothing new arrived in the last two minutes",
    now.left !== null ? `${duration(now.left)} left` : "",
  ].filter(Boolean).join(" · ");
  document.title = `${share === null ? "" : `${Math.floor(100 * share)}% `}${byId("headline").textContent}`;
  byId("stage-rows").replaceChildren(...state.stages.map((row) =>
    el("tr", { class: { now: "part", "to do": "later" }[row.state] }, el("td", null, row.round), el("th", { scope: "row" }, row.title),
      el("td", null, row.state), el("td", null, row.note))));
  drawStores(state.stores);
  drawMachine(state);
  problem("damaged", state.damaged.length ? `${state.damaged.length} damaged lines are not shown, such as ${state.damaged[0].path}:${state.damaged[0].line} (${state.damaged[0].problem}).` : "");
  drawOptions(state);
  drawIndexing(state.index);
}

function drawStores(stores) {
  byId("store-rows").replaceChildren(...stores.map((one) => {
    const part = (status) => one.endings[status] || 0;
    return el("tr", null, el("th", { scope: "row" }, one.title),
      el("td", { class: "n" }, count(one.done), one.planned ? el("small", null, ` of ${count(one.planned)}`) : null),
      el("td", { class: "mix", "aria-hidden": "true" }, el("div", null, STATUSES.filter(part).map((status) =>
        el("i", { class: status, style: `width:${100 * part(status) / one.done}%` })))),
      STATUSES.map((status) => el("td", { class: "n" }, count(part(status)), el("small", null, one.done ? ` ${Math.round(100 * part(status) / one.done)}%` : ""))),
      el("td", { class: "n" }, fixed(one.reward), one.rewarded ? el("small", null, ` of ${count(one.rewarded)}`) : null),
      el("td", { class: "n" }, one.selected ? count(one.kept) : "–"));
  }));
}

function drawMachine(state) {
  const { tokens } = state;
  const share = tokens.prompt ? tokens.cached / tokens.prompt : 0;
  const bar = (value) => el("div", { class: "meter" }, el("i", { style: `width:${Math.min(100, 100 * value)}%` }));
  const facts = [el("p", null, `${count(tokens.new)} new tokens in ${count(tokens.trajectories)} trajectories`,
    tokens.rate ? `, ${pace(tokens.rate)} in the last two minutes` : "", `; ${Math.round(100 * share)}% of prompt tokens came from a prefix cache.`)];
  for (const engine of state.engines) {
    facts.push(el("p", null, el("b", null, engine.model), ` ${engine.address} `, engine.problem || [
      engine.running === undefined ? "" : `${engine.running} running, ${engine.waiting || 0} waiting`,
      engine.rate ? `${pace(engine.rate)} new tokens` : "",
      engine.cache === undefined ? "" : `cache ${Math.round(100 * engine.cache)}% full`,
    ].filter(Boolean).join(", ")));
  }
  state.gpus.forEach((gpu, i) => {
    facts.push(el("p", null, el("b", null, `GPU ${i}: ${gpu.name}`), el("small", null, ` ${[
      gpu.use === null ? "" : `${gpu.use}% busy`,
      gpu.memory === null ? "" : `${(gpu.memory / 1024).toFixed(1)} of ${(gpu.memory_total / 1024).toFixed(1)} GiB`,
      gpu.watts === null ? "" : `${Math.round(gpu.watts)} W`, gpu.celsius === null ? "" : `${gpu.celsius} °C`].filter(Boolean).join(", ")}`)));
    if (gpu.use !== null) facts.push(bar(gpu.use / 100));
  });
  facts.push(el("p", null, el("small", null, state.gpus.length
    ? `GPUs of ${state.machine}, where this page is served.` : `No GPU is known on ${state.machine}, where this page is served.`)));
  byId("machine-facts").replaceChildren(...facts);
}

function drawIndexing(progress) {
  const share = progress.total ? progress.done / progress.total : 1;
  byId("indexing").hidden = share >= 1;
  byId("indexing").textContent = `The index holds ${(100 * share).toFixed(share > 0.99 ? 1 : 0)}% of ${(progress.total / 1e6).toFixed(1)} MB; what is not in it yet is neither listed nor counted.`;
  problem("index", progress.problem);
}

function drawOptions(state) {
  const form = byId("filters").elements;
  fillSelect(form.store, [["", "Every store"], ...state.stores.map((one) => [one.name, one.title])], view.store);
  fillSelect(form.kind, [["", "Every kind"], ...state.kinds.map((kind) => [kind, kind])], view.kind);
  fillSelect(form.role, [["", "Every role"], ...state.roles.map((role) => [role, role])], view.role);
}

// The list: one page of what passes the filters, as the server finds it.

let asked = 0;
async function drawList() {
  const turn = asked += 1;
  const wanted = Object.entries(NO_FILTERS).filter(([name, none]) => view[name] !== none).map(([name]) => [name, view[name]]);
  byId("clear").hidden = !wanted.length;
  let found;
  try {
    found = await ask(`trajectories?${new URLSearchParams([...wanted, ["offset", view.offset], ["limit", LIMIT]])}`);
    problem("list", "");
  } catch (error) {
    if (turn === asked) problem("list", `The list cannot be shown: ${error.message}`);
    return;
  }
  if (turn !== asked) return;  // a later question was asked meanwhile
  drawIndexing(found.index);
  const rows = JSON.stringify(found.rows);
  view.total = found.total;
  const last = Math.min(view.offset + LIMIT, found.total);
  byId("found").textContent = found.total ? `${count(view.offset + 1)} to ${count(last)} of ${count(found.total)} trajectories` : "No trajectory passes the filters.";
  byId("previous").disabled = !view.offset;
  byId("next").disabled = last >= found.total;
  if (rows === view.rows) return;
  view.rows = rows;
  const focused = byId("list").contains(document.activeElement) ? document.activeElement.dataset.key : "";
  byId("list").replaceChildren(...found.rows.map((row) => el("button", { type: "button", "data-key": row.key, onclick: () => openTrajectory(row.key) },
    el("bdi", { class: "text" }, row.text || row.question),
    el("small", null, [words(row.status), row.reward === null ? "no reward" : `reward ${fixed(row.reward, 2)}`, row.kept ? "kept" : "",
      `sample ${row.sample}`, row.kind, `${row.calls} calls, ${count(row.new_tokens)} tokens`].filter(Boolean).join(" · ")),
    el("small", { class: "text" }, el("bdi", null, row.answer || "no answer")))));
  mark();
  if (focused) (byId("list").querySelector(`[data-key="${CSS.escape(focused)}"]`) || byId("list").firstElementChild || byId("found")).focus();
}

function mark() {
  const rows = [...byId("list").children];
  const current = rows.find((row) => row.dataset.key === view.open);
  for (const row of rows) {
    row.setAttribute("aria-current", String(row === current));
    row.tabIndex = row === (current || rows[0]) ? 0 : -1;  // one stop of the Tab key; the arrows go through the list
  }
}

function change(values) {
  Object.assign(view, { offset: 0 }, values);
  drawList();
}

// One trajectory.

async function openTrajectory(key) {
  view.open = key;
  mark();
  history.replaceState(null, "", `#t=${key}`);
  byId("question").replaceChildren(el("p", null, "Opening…"));
  byId("runs").replaceChildren();
  let found;
  try {
    found = await ask(`trajectories/${encodeURIComponent(key)}`);
  } catch (error) {
    if (view.open === key) byId("question").replaceChildren(el("p", { class: "problem", role: "alert" }, `It cannot be opened: ${error.message}`));
    return;
  }
  if (view.open !== key) return;
  const [question] = found.section.questions;
  question.chunk = 0;
  parsed.set("chunk-0", found.chunk);
  parsed.set("shared", { passages: found.passages, texts: [] });
  byId("question").replaceChildren(
    el("h3", null, question.text),
    ...[["Expected", question.answers], ["Labels", question.labels], ["Nuggets", question.nuggets]]
      .filter(([, list]) => list.length).map(([name, list]) => el("p", null, `${name}: ${list.join(" / ")}`)),
    ...(question.reason ? [el("p", null, question.reason)] : []),
    ...found.notes.map((note) => el("p", null, note)),
    el("ul", { class: "siblings", "aria-label": "Trajectories of this question" }, found.siblings.map((one) => el("li", null,
      el("button", { type: "button", "aria-current": String(one.key === key), onclick: () => openTrajectory(one.key).then(() => byId("shown").focus()),
        "aria-label": `Sample ${one.sample}, ${words(one.status)}, reward ${fixed(one.reward, 2)}${one.kept ? ", kept" : ""}` },
      `${one.sample}: ${fixed(one.reward, 2)}${one.kept ? " kept" : ""}`)))));
  byId("runs").replaceChildren(column(question, 0));
  byId("shown").scrollTop = 0;
}

function closeTrajectory() {}

function keysOfList(event) {
  const rows = [...byId("list").children];
  const at = rows.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (to === undefined || at < 0 || !rows[to]) return;
  rows[to].focus();
  event.preventDefault();
}

function watch() {
  const form = byId("filters").elements;
  fillSelect(form.status, [["", "Every status"], ...STATUSES.map((status) => [status, words(status)])], "");
  fillSelect(form.kept, [["", "Kept or not"], ["yes", "Kept"], ["no", "Not kept"]], "");
  fillSelect(form.order, ORDERS, "first");
  drawOptions({ stores: [], kinds: [], roles: [] });
  let typing = 0;
  for (const name of Object.keys(NO_FILTERS)) {
    form[name].addEventListener("input", (event) => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ [name]: event.target.value }), event.target.tagName === "INPUT" ? 250 : 0);
    });
  }
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("clear").addEventListener("click", () => {
    change(NO_FILTERS);
    for (const [name, value] of Object.entries(NO_FILTERS)) form[name].value = value;
    form.text.focus();
  });
  byId("previous").addEventListener("click", () => change({ offset: Math.max(0, view.offset - LIMIT) }));
  byId("next").addEventListener("click", () => change({ offset: view.offset + LIMIT }));
  byId("show-control").addEventListener("change", (event) =>
    byId("trajectories").classList.toggle("with-control", event.target.checked));
  byId("list").addEventListener("keydown", keysOfList);
  byId("shown").addEventListener("keydown", (event) => {
    const row = event.key === "Escape" && byId("list").querySelector("[aria-current=true]");
    if (row) row.focus();
  });
  const follow = () => { if (location.hash.startsWith("#t=") && location.hash.slice(3) !== view.open) openTrajectory(location.hash.slice(3)); };
  window.addEventListener("hashchange", follow);
  const tick = async () => {
    try {
      drawState(await ask("state"));
      problem("state", "");
    } catch (error) {
      problem("state", `The state cannot be shown: ${error.message}`);
    }
    setTimeout(async () => { if (!document.hidden) await drawList(); tick(); }, EVERY);
  };
  drawList().then(tick);
  follow();
}
