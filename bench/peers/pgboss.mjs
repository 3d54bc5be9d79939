// pg-boss at its best: batches, bursts while they are full, LISTEN.
import { PgBoss } from "pg-boss";
import { main, hit, ready, batches, DSN, SLOTS } from "./adapter.mjs";

const QUEUE = "noop";

async function started(options = {}) {
  const boss = new PgBoss({ connectionString: DSN, ...options });
  boss.on("error", (error) => console.error(String(error)));
  await boss.start();
  return boss;
}

await main({
  schema: async () => {
    const boss = await started();
    await boss.createQueue(QUEUE, { notify: true });
    await boss.stop({ graceful: false });
  },
  connect: () => started({ supervise: false, schedule: false }),
  close: (boss) => boss.stop({ graceful: false }),
  bulk: async (boss, payloads) => {
    for (const some of batches(payloads)) await boss.insert(QUEUE, some.map((data) => ({ data })));
  },
  one: (boss, payload) => boss.send(QUEUE, payload),
  worker: async () => {
    const boss = await started({ useListenNotify: true, max: 10 });
    await ready();
    const options = { batchSize: SLOTS, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
    await boss.work(QUEUE, options, async (jobs) => { for (const job of jobs) hit(job.data.t); });
  },
});
