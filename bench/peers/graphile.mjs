// graphile-worker at its best: a local queue of 500, finishes gathered. As its own performance page has it.
import { run, makeWorkerUtils, Logger } from "graphile-worker";
import { main, hit, ready, batches, DSN, SLOTS } from "./adapter.mjs";

const logger = new Logger(() => () => {});
const connect = () => makeWorkerUtils({ connectionString: DSN, logger });

await main({
  schema: async () => { const utils = await connect(); await utils.migrate(); await utils.release(); },
  connect,
  close: (utils) => utils.release(),
  bulk: async (utils, payloads) => {
    for (const some of batches(payloads)) await utils.addJobs(some.map((payload) => ({ identifier: "noop", payload })));
  },
  one: (utils, payload) => utils.addJob("noop", payload),
  worker: async () => {
    await ready();
    const worker = {
      connectionString: DSN, concurrentJobs: SLOTS, maxPoolSize: Math.min(SLOTS + 1, 25), logger,
      localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0,
    };
    await run({ preset: { worker }, taskList: { noop: async (payload) => hit(payload.t) } });
  },
});
