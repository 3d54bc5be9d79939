// Many jobs at once: those that are picked, or all that match; the latter counted first and confirmed by typing.
import { post, sure, toast } from "./actions.js";
import { refresh } from "./live.js";

const picked = new Set();
const bar = document.getElementById("bulk");

function boxes() {
  return [...document.querySelectorAll("[data-pick]")];
}

function show() {
  const here = new Set(boxes().map((box) => box.dataset.pick));
  for (const id of [...picked]) if (!here.has(id)) picked.delete(id);
  for (const box of boxes()) {
    box.checked = picked.has(box.dataset.pick);
    box.closest("tr").setAttribute("aria-selected", String(box.checked));
  }
  const all = document.getElementById("pick-all");
  if (all) {
    all.checked = here.size > 0 && picked.size === here.size;
    all.indeterminate = picked.size > 0 && picked.size < here.size;
  }
  document.getElementById("chosen").textContent = picked.size ? `${picked.size} selected` : "nothing selected";
  for (const button of bar.querySelectorAll("[data-bulk]")) button.disabled = picked.size === 0;
}

export function toggle(box) {
  if (picked.has(box.dataset.pick)) picked.delete(box.dataset.pick);
  else picked.add(box.dataset.pick);
  show();
}

async function some(action) {
  const ids = [...picked];
  const jobs = ids.length === 1 ? "this job" : `these ${ids.length} jobs`;
  if (action === "cancel" && !(await sure(`Stop ${jobs} for good?`, { yes: "Cancel them" }))) return;
  const { ok, told } = await post(`/jobs/${action}`, { ids });
  toast(told.message, { bad: !ok });
  if (ok) picked.clear();
  await refresh();
  show();
}

async function all(action) {
  const filter = JSON.parse(bar.dataset.filter);
  const count = await post(`/jobs/matching/${action}`, { filter, dryRun: true });
  if (!count.ok) return toast(count.told.message, { bad: true });
  const { matched, capped } = count.told;
  if (!matched) return toast(`No job matches that could be ${action === "retry" ? "retried" : "cancelled"}.`);
  const shown = matched.toLocaleString("en");
  const what = action === "retry" ? `Retry ${capped ? "the latest" : "all"}` : `Stop ${capped ? "the first" : "all"}`;
  const text = `${what} ${shown} matching job${matched === 1 ? "" : "s"}${capped ? "; there are more" : ""}${action === "retry" ? ", those that were cancelled included" : ""}. This cannot be undone.`;
  const yes = action === "retry" ? `Retry ${shown}` : `Cancel ${shown}`;
  if (!(await sure(text, { title: "All that match", yes, word: String(matched) }))) return undefined;
  return carry(action, filter, matched);
}

// Some at a time, and no more than were counted: what dies again meanwhile is not retried for ever.
async function carry(action, filter, matched) {
  let changed = 0;
  toast(`${action === "retry" ? "Retrying" : "Cancelling"} ${matched.toLocaleString("en")}…`);
  while (changed < matched) {
    const { ok, told } = await post(`/jobs/matching/${action}`, { filter, dryRun: false, most: Math.min(200, matched - changed) });
    if (!ok) {
      toast(`${told.message} (${changed.toLocaleString("en")} were changed)`, { bad: true });
      break;
    }
    changed += told.changed;
    document.getElementById("chosen").textContent = `${changed.toLocaleString("en")} of ${matched.toLocaleString("en")}`;
    if (!told.changed) break;
  }
  picked.clear();
  await refresh();
  show();
  toast(`${changed.toLocaleString("en")} job${changed === 1 ? "" : "s"} ${action === "retry" ? "retried" : "cancelled"}`);
}

export function startBulk() {
  if (!bar) return;
  document.addEventListener("change", (event) => {
    if (event.target.dataset?.pick) toggle(event.target);
    if (event.target.id === "pick-all") {
      for (const box of boxes()) event.target.checked ? picked.add(box.dataset.pick) : picked.delete(box.dataset.pick);
      show();
    }
  });
  bar.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.bulk) some(button.dataset.bulk);
    if (button?.dataset.matching) all(button.dataset.matching);
  });
  document.addEventListener("leasehold:changed", show);
  show();
}
