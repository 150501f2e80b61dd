// Graphile Worker: a local queue of 500, completions written together, woken by notifications; the verbs of subject.py.
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const wire = require("./wire.cjs");
const { fetchAfter } = require("./http_wait.cjs");

const silent = new Logger(() => () => {});
const UPDATE = "UPDATE counter SET n = n + 1 WHERE id = $1";
const INSERT = "INSERT INTO entry (counter_id) VALUES ($1)";
const fillOf = (queue = "NULL") => `SELECT count(*) FROM graphile_worker.add_jobs(ARRAY(
  SELECT json_populate_record(null::graphile_worker.job_spec, json_build_object('identifier', $1::text,
    'payload', json_build_object('number', n), 'queue_name', ${queue})) FROM generate_series(1, $2::int) AS n))`;
// "unsafe_dedupe" leaves the job that has the key as it is; the default, "replace", changes it.
const KEY_MODES = { fresh: { jobKeyMode: "unsafe_dedupe" }, same: { jobKeyMode: "unsafe_dedupe" }, replace: {} };
const HELD_MS = 3600 * 1000;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

const taskList = {
  noop: async () => wire.count(),
  update: async ({ number }, helpers) => {
    await helpers.query(UPDATE, [number]);
    wire.count();
  },
  write: async ({ number }, helpers) => {
    await helpers.withPgClient(async (client) => {
      await client.query("BEGIN");
      await client.query(INSERT, [number]);
      await client.query(UPDATE, [number]);
      await client.query("COMMIT");
    });
    wire.count();
  },
  wait: async () => {
    await fetchAfter();
    wire.count();
  },
  held: () => sleep(HELD_MS),
  tick: async () => wire.ticked(),
  pause: async ({ number, milliseconds }) => {
    const began = wire.now();
    if (milliseconds) await sleep(milliseconds);
    wire.ran(number, began);
  },
};

const withUtils = async (body) => {
  const utils = await makeWorkerUtils({ connectionString: process.env.NODE_DATABASE_URL, logger: silent });
  await body(utils);
  await utils.release();
};

const query = (utils, text, values) => utils.withPgClient((client) => client.query(text, values));

const verbs = {
  setup: () => withUtils((utils) => utils.migrate()),
  fill: (kind, tasks) =>
    withUtils(async (utils) => {
      await query(utils, "TRUNCATE graphile_worker._private_jobs, graphile_worker._private_job_queues");
      if (kind === "held") await query(utils, fillOf("'held'"), [kind, Number(process.env.BENCH_HELD)]);
      const queue = kind === "keys" ? "'key' || n" : undefined;
      await query(utils, fillOf(queue), [kind === "keys" || kind === "held" ? "noop" : kind, Number(tasks)]);
      await query(utils, "VACUUM ANALYZE graphile_worker._private_jobs");
    }),
  work: async (atOnce, kind) => {
    const batched = { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
    const worker = {
      connectionString: process.env.NODE_DATABASE_URL,
      maxPoolSize: 10,
      pollInterval: 1000,
      ...(kind === "wait" ? { ...batched, concurrentJobs: Number(atOnce), localQueue: { size: Number(atOnce) } } : atOnce ? { concurrentJobs: Number(atOnce) } : { concurrentJobs: 24, ...batched }),
    };
    const runner = await run({ preset: { worker: { ...worker, logger: silent } }, taskList });
    wire.tell("working");
    await runner.promise;
  },
  tick: async () => {
    const worker = { connectionString: process.env.NODE_DATABASE_URL, logger: silent };
    const runner = await run({ preset: { worker }, taskList, crontab: "* * * * * tick" });
    wire.tell("working");
    await runner.promise;
  },
  send: () =>
    withUtils(async (utils) => {
      for await (const line of wire.lines()) {
        const [number, milliseconds] = line.split(" ").map(Number);
        wire.tell("sent", number, wire.now());
        await utils.addJob("pause", { number, milliseconds });
      }
    }),
  enqueue: (how, seconds) =>
    withUtils((utils) => {
      const many = Array.from({ length: 1000 }, () => ({ identifier: "idle", payload: { number: 1 } }));
      return wire.enqueueFor(Number(seconds), async () => {
        if (how === "bulk") await utils.addJobs(many);
        else await utils.addJob("idle", { number: 1 }, { ...KEY_MODES[how], ...wire.keyOf(how, "jobKey") });
        return how === "bulk" ? 1000 : 1;
      });
    }),
};

const [verb, ...words] = process.argv.slice(2);
verbs[verb](...words);
