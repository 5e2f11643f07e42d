// The page over a run that goes on: it asks for itself every few seconds, and puts the parts that changed in their places.

const EVERY = 3000;
const htmlOf = new Map([...document.querySelector("main").children].map((part) => [part.id, part.outerHTML]));
let indexText = byId("index").textContent;

async function ask(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `status ${response.status}`);
  return response;
}

function problem(text) {
  byId("problem").hidden = !text;
  byId("problem").textContent = text;
}

// The details of a question's trajectories are read when they are shown, and again when one was added.

const fetched = new Map();
const detailKey = (question) => JSON.stringify([question.id, question.runs]);
async function readDetails(question) {
  const key = detailKey(question);
  if (fetched.has(key)) return;
  fetched.set(key, null);
  try {
    fetched.set(key, await (await ask(`details?${new URLSearchParams({ section: view.section, question: question.id })}`)).json());
    drawBrowser();
  } catch (error) {
    fetched.delete(key);
    problem(`The trajectories cannot be opened: ${error.message}`);
  }
}

// What was said in trajectories is searched by the server.

let hits = new Set();
let searches = 0;
function searchSoon() {
  const turn = searches += 1;
  setTimeout(async () => {
    if (turn !== searches) return;
    const text = view.query.trim();
    const keys = text ? await (await ask(`search?${new URLSearchParams({ text })}`)).json() : [];
    if (turn !== searches) return;  // another query was typed meanwhile
    hits = new Set(keys);
    drawBrowser();
  }, 250);
}

function swapParts(main, fresh) {
  let next = main.firstElementChild;
  const changed = [];
  for (const part of [...fresh.children]) {
    const html = part.outerHTML;
    const old = byId(part.id);
    if (!old) main.insertBefore(part, next);
    else {
      next = old.nextElementSibling;
      if (html === htmlOf.get(part.id) || old.contains(document.activeElement) && part.id !== "trajectories") continue;
      if (part.id === "trajectories") old.querySelector(".lead").replaceWith(part.querySelector(".lead"));
      else {
        const before = old.querySelectorAll("details");
        part.querySelectorAll("details").forEach((item, i) => { item.open = Boolean(before[i] && before[i].open); });
        old.replaceWith(part);
      }
    }
    if (!old || part.id !== "trajectories") changed.push(part.id);
    htmlOf.set(part.id, html);
  }
  return changed;
}

async function refresh() {
  const fresh = new DOMParser().parseFromString(await (await ask("./")).text(), "text/html");
  document.title = fresh.title;
  if (document.querySelector("nav").outerHTML !== fresh.querySelector("nav").outerHTML) document.querySelector("nav").replaceWith(fresh.querySelector("nav"));
  const text = fresh.getElementById("index").textContent;
  const isNew = text !== indexText;
  if (isNew) {
    [indexText, index] = [text, JSON.parse(text)];
    places = placesOf();
  }
  const changed = swapParts(document.querySelector("main"), fresh.querySelector("main"));
  if (changed.includes("selection")) selectionList();
  if (changed.includes("trajectories")) browser();
  else if (isNew) drawBrowser();
}

function follow() {
  if (!index.live) return;
  const tick = async () => {
    try {
      if (!document.hidden) await refresh();
      problem("");
    } catch (error) {
      problem(`The page is not up to date: ${error.message}`);
    }
    setTimeout(tick, EVERY);
  };
  setTimeout(tick, EVERY);
}
