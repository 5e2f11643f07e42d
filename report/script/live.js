// The start of the page, and the page over a run that goes on: it asks for itself every few seconds, and puts the parts
// that changed in their places.

const EVERY = 3000;
const htmlOf = new Map([...document.querySelector("main").children].map((part) => [part.id, part.outerHTML]));
let indexText = byId("index").textContent;

async function ask(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `status ${response.status}`);
  return response;
}

async function askForDetails(question) {
  return (await ask(`details?${new URLSearchParams({ section: view.section, question: question.id })}`)).json();
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
    [indexText, index] = [text, await unpack(text)];
    places = placesOf();
  }
  const changed = swapParts(document.querySelector("main"), fresh.querySelector("main"));
  if (changed.includes("selection")) selectionList();
  if (changed.includes("trajectories")) browser();
  else if (isNew) drawBrowser();
}

async function start() {
  try {
    index = await unpack(indexText);
  } catch (error) {
    problem(`The lists of questions and trajectories cannot be shown: ${error.message}`);
    return;
  }
  places = placesOf();
  selectionList();
  browser();
  if (index.live) follow();
}

function follow() {
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
