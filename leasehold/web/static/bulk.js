// Many jobs at once: those that are picked, or all that match; the latter counted first and confirmed by typing.
import { post, sure, toast } from "./actions.js";
import { refresh } from "./live.js";

const WORDS = {
  retry: { verb: "Retry", more: "the latest", doing: "Retrying", done: "retried", yes: "Retry", note: ", those that were cancelled included" },
  cancel: { verb: "Stop", more: "the first", doing: "Cancelling", done: "cancelled", yes: "Cancel", note: "" },
};
const picked = new Set();
const bar = document.getElementById("bulk");
const number = (value) => value.toLocaleString("en");
const jobs = (count) => `job${count === 1 ? "" : "s"}`;
const boxes = () => [...document.querySelectorAll("[data-pick]")];

function say(text) {
  document.getElementById("chosen").textContent = text;
}

function show() {
  const here = new Set(boxes().map((box) => box.dataset.pick));
  for (const id of [...picked]) if (!here.has(id)) picked.delete(id);
  for (const box of boxes()) {
    box.checked = picked.has(box.dataset.pick);
    box.closest("tr").setAttribute("aria-selected", String(box.checked));
  }
  const every = document.getElementById("pick-all");
  if (every) {
    every.checked = here.size > 0 && picked.size === here.size;
    every.indeterminate = picked.size > 0 && picked.size < here.size;
  }
  say(picked.size ? `${picked.size} selected` : "nothing selected");
  for (const button of bar.querySelectorAll("[data-bulk]")) button.disabled = picked.size === 0;
}

export function toggle(box) {
  if (!box) return;
  if (!picked.delete(box.dataset.pick)) picked.add(box.dataset.pick);
  show();
}

async function some(action) {
  const ids = [...picked];
  const these = ids.length === 1 ? "this job" : `these ${ids.length} jobs`;
  if (action === "cancel" && !(await sure(`Stop ${these} permanently?`, { yes: "Cancel them" }))) return;
  const { ok, message } = await post(`/jobs/${action}`, { ids });
  toast(message, { bad: !ok });
  if (ok) picked.clear();
  await refresh();
  show();
}

async function all(action) {
  const filter = JSON.parse(bar.dataset.filter);
  const { verb, more, done, yes, note } = WORDS[action];
  let answer;
  do answer = await post(`/jobs/matching/${action}`, { filter, dryRun: true, cursor: answer?.cursor });
  while (answer.ok && answer.cursor && !answer.matched);
  const { ok, message, matched, capped } = answer;
  if (!ok) toast(message, { bad: true });
  else if (!matched) toast(`No job matches that could be ${done}.`);
  else {
    const which = `${capped ? more : "all"} ${number(matched)} matching ${jobs(matched)}${capped ? "; there may be more" : ""}`;
    const options = { title: "All that match", yes: `${yes} ${number(matched)}`, word: String(matched) };
    if (await sure(`${verb} ${which}${note}. This cannot be undone.`, options)) await carry(action, filter, matched);
  }
}

// Some at a time, and no more than were counted: a job that dies again meanwhile is not retried twice.
async function carry(action, filter, matched) {
  let changed = 0;
  let cursor;
  toast(`${WORDS[action].doing} ${number(matched)}…`);
  while (changed < matched) {
    const most = Math.min(200, matched - changed);
    const answer = await post(`/jobs/matching/${action}`, { filter, dryRun: false, most, cursor });
    if (!answer.ok) toast(`${answer.message} (${number(changed)} were changed)`, { bad: true });
    if (!answer.ok || !(answer.changed || answer.cursor)) break;
    changed += answer.changed;
    cursor = answer.cursor;
    say(`${number(changed)} of ${number(matched)}`);
  }
  picked.clear();
  await refresh();
  show();
  toast(`${number(changed)} ${jobs(changed)} ${WORDS[action].done}`);
}

if (bar) {
  document.addEventListener("change", ({ target }) => {
    if (target.dataset.pick) toggle(target);
    if (target.id !== "pick-all") return;
    for (const box of boxes()) target.checked ? picked.add(box.dataset.pick) : picked.delete(box.dataset.pick);
    show();
  });
  bar.addEventListener("click", ({ target }) => {
    const { bulk, matching } = target.closest("button")?.dataset ?? {};
    if (bulk) some(bulk);
    if (matching) all(matching);
  });
  document.addEventListener("leasehold:changed", show);
  show();
}
