// Keeps a page up to date, opens confirmations in a dialog, and listens to keys. Every page works
// without it. The server tells which topics changed; what a page shows of them is read again, and
// only while somebody looks at it.

const PART = { headers: { "x-gatepost-part": "1" }, credentials: "same-origin" };
const find = (selector, within = document) => within.querySelector(selector);
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

// -- light and dark

const root = document.documentElement;
const stored = localStorage.getItem("gatepost-theme");
if (stored === "light" || stored === "dark") root.dataset.theme = stored;
find("#theme")?.addEventListener("click", () => {
  const isDark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("gatepost-theme", root.dataset.theme);
});

// -- the code of a one-time link: out of the address at once, then into the form

const login = find("#login");
if (login && location.hash.length > 1) {
  find("#code").value = decodeURIComponent(location.hash.slice(1));
  history.replaceState(null, "", "/login");
  login.submit();
}

// -- changes

/** Make `old` look like `fresh`, changing only what differs. */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh.cloneNode(true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (old.getAttribute(name) !== value && name !== "open") old.setAttribute(name, value);
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((child, place) => {
    if (place < before.length) morph(before[place], child);
    else old.append(child.cloneNode(true));
  });
  for (const child of before.slice(after.length)) child.remove();
}

const stale = new Set();
let isReading = false;
let pause = 300;

function partsOf(topics) {
  return findAll("[data-live]").filter((part) =>
    part.dataset.live.split(" ").some((topic) => topics.has(topic)),
  );
}

/** Read what changed again. A slow answer makes the pauses longer. */
async function readChanges() {
  if (isReading || document.hidden || stale.size === 0) return;
  const topics = new Set(stale);
  stale.clear();
  if (partsOf(topics).length === 0) return;
  isReading = true;
  const began = performance.now();
  try {
    const answer = await fetch(location.href.split("#")[0], PART);
    if (answer.status === 401) {
      location.assign("/login");
      return;
    }
    if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html"), topics);
  } catch {
    showState("off", "not reached");
  } finally {
    isReading = false;
  }
  pause = Math.min(5000, Math.max(300, 4 * (performance.now() - began)));
  setTimeout(readChanges, pause);
}

function show(fresh, topics) {
  for (const part of partsOf(topics)) {
    const found = fresh.getElementById(part.id);
    if (!found) continue;
    const log = find("[data-follow]", part);
    const isAtEnd = log && log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    morph(part, found);
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }
  showState("on", "live");
}

const live = find("#live");
function showState(state, text) {
  if (!live) return;
  live.dataset.state = state;
  live.textContent = text;
}

let source = null;
function listen() {
  if (source || document.hidden || !live) return;
  source = new EventSource("/changes");
  source.addEventListener("open", () => showState("on", "live"));
  // The first notice has all topics: something may have changed since the page was made.
  source.addEventListener("change", (event) => {
    for (const topic of JSON.parse(event.data).topics) stale.add(topic);
    setTimeout(readChanges, 0);
  });
  source.addEventListener("error", () => {
    showState("off", "not reached");
    if (source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(listen, 3000);
    }
  });
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    source?.close();
    source = null;
  } else {
    listen();
  }
});
addEventListener("pagehide", () => source?.close());
listen();

// Ages go on by themselves: nothing is asked for.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
function showAges() {
  if (document.hidden) return;
  for (const time of findAll("time[data-at]")) {
    const secs = (Date.now() - Number(time.dataset.at)) / 1000;
    if (secs < 1) continue;
    const [size, unit] = UNITS.find(([size]) => secs >= size);
    const amount = secs / size;
    const text = `${amount < 9.95 && size > 1 ? amount.toFixed(1) : amount.toFixed(0)} ${unit} ago`;
    if (time.textContent !== text) time.textContent = text;
  }
}
setInterval(showAges, 1000);

// -- actions: their confirmation in a dialog

const dialog = find("#action");
async function openAction(address) {
  const answer = await fetch(address, PART);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const content = find("#confirm", page) ?? find("main", page);
  dialog.replaceChildren(document.importNode(content, true));
  dialog.showModal();
  find("button, input:not([type=hidden])", dialog)?.focus();
}

document.addEventListener("click", async (event) => {
  const cancel = event.target.closest("[data-cancel]");
  if (cancel && dialog?.open) {
    event.preventDefault();
    dialog.close();
    return;
  }
  const action = event.target.closest("a[data-action]");
  if (action && dialog && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    await openAction(action.href);
    return;
  }
  const copy = event.target.closest("[data-copy], [data-copy-from]");
  if (copy) {
    const text = copy.dataset.copy ?? (await (await fetch(copy.dataset.copyFrom)).text());
    const before = copy.textContent;
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not copied";
    }
    setTimeout(() => (copy.textContent = before), 1500);
  }
});
document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-action]");
  if (!form || !dialog) return;
  event.preventDefault();
  await openAction(`${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`);
});

// A form that shows what it chooses as soon as it is chosen: the slider of time.
document.addEventListener("change", async (event) => {
  const form = event.target.closest("form[data-auto]");
  if (!form) return;
  const address = `${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`;
  const answer = await fetch(address, PART);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  history.replaceState(null, "", address);
  morph(find("main"), find("main", page));
  showState("on", "live");
});

// -- keys

const PLACES = Object.fromEntries(
  findAll("#keys div").flatMap((row) => {
    const [, key] = find("kbd", row).textContent.split(" ");
    const name = find("dd", row).textContent;
    const link = findAll("#rail a").find((each) => each.firstChild.textContent.trim() === name);
    return key && link ? [[key, link.getAttribute("href")]] : [];
  }),
);
let wasG = false;
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  if (wasG && PLACES[event.key]) location.assign(PLACES[event.key]);
  else if (event.key === "/") {
    event.preventDefault();
    find("#search")?.focus();
  } else if (event.key === "?") find("#keys")?.showModal();
  wasG = event.key === "g" && !wasG;
});
