// The Node twin of adapter.py: the same commands, the same shared file of 32 bytes.
import fs from "node:fs";

export const DSN = process.env.DSN, SLOTS = +(process.env.SLOTS ?? 10);
const STATS = process.env.STATS;
const now = () => performance.timeOrigin + performance.now();
const nanoseconds = () => BigInt(Math.round(now() * 1e6));
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const payload = (i, t = 0) => ({ i, t, to: "someone@example.com" });
let count = 0, first = 0n;

export function hit(t) {
  if (count++ === 0) first = nanoseconds();
  if (t) fs.appendFileSync(STATS + ".delays", now() / 1e3 - t + "\n");
}

export async function ready() {
  const file = fs.openSync(STATS, "r+"), flag = Buffer.alloc(8), figures = Buffer.alloc(24);
  flag.writeBigUInt64LE(1n);
  fs.writeSync(file, flag, 0, 8, 24);
  do { await sleep(2); fs.readSync(file, flag, 0, 8, 24); } while (flag.readBigUInt64LE() !== 2n);
  let told = 0;
  setInterval(() => {  // a write for each job would cost more than the job
    if (count === told) return;
    told = count;
    figures.writeBigUInt64LE(BigInt(count), 0);
    figures.writeBigUInt64LE(first, 8);
    figures.writeBigUInt64LE(nanoseconds(), 16);
    fs.writeSync(file, figures, 0, 24, 0);
  }, 20);
}

export function* batches(values, size = 1000) {
  for (let i = 0; i < values.length; i += size) yield values.slice(i, i + size);
}

async function steady(bulk, client, rate, seconds) {
  const began = performance.now();
  let sent = 0, passed;
  while ((passed = (performance.now() - began) / 1e3) < seconds) {
    const due = Math.floor(rate * passed) - sent, t = now() / 1e3;
    if (due > 0) await bulk(client, Array.from({ length: due }, (_, i) => payload(sent + i, (sent + i) % 20 ? 0 : t)));
    sent += Math.max(due, 0);
    await sleep(10);
  }
  return sent;
}

export async function main({ schema, connect, close, bulk, one, worker }) {
  const [command, a, b] = process.argv.slice(2);
  if (command === "schema") { await schema(); process.exit(0); }
  if (command === "worker") return worker();
  const client = await connect(), said = {};
  if (command !== "bulk") await one(client, payload(-1));
  const jobs = command === "bulk" || command === "single" ? Array.from({ length: +a }, (_, i) => payload(i)) : [];
  const began = performance.now();
  if (command === "bulk") await bulk(client, jobs);
  if (command === "single") for (const job of jobs) await one(client, job);
  if (command === "steady") said.n = await steady(bulk, client, +a, +b) + 1;
  if (command === "paced") {
    let following = performance.now();
    for (let i = 0; i < +a; i++) {
      await one(client, payload(i, now() / 1e3));
      following += +b * 1e3;
      await sleep(Math.max(0, following - performance.now()));
    }
  }
  said.s = (performance.now() - began) / 1e3;
  console.log(JSON.stringify(said));
  await close(client);
  process.exit(0);
}
