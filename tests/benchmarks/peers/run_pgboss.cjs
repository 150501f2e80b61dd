// pg-boss: batches of 1000 without a pause while they are full, woken by notifications; the verbs of subject.py.
const { PgBoss } = require("pg-boss");
const { Pool } = require("pg");
const wire = require("./wire.cjs");
const { fetchAfter } = require("./http_wait.cjs");

const QUEUES = ["noop", "update", "write", "wait", "pause", "idle", "tick"];
const ONCE = "once"; // at most one job of a singleton key is queued or active there
const HELD_MS = 3600 * 1000;
const LIMIT = Number(process.env.BENCH_LIMIT);
// A batch larger than the limit is never full, so that the worker would pause after each.
const LIMITED = {
  hot: { batchSize: LIMIT, groupConcurrency: LIMIT },
  keys: { groupConcurrency: 1 },
  held: { groupConcurrency: 1 },
};
const groupOf = { hot: () => "hot", keys: (number) => `key${number}` };
const UPDATE = "UPDATE counter SET n = n + 1 WHERE id = $1";
const INSERT = "INSERT INTO entry (counter_id) VALUES ($1)";
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const pool = new Pool({ connectionString: process.env.NODE_DATABASE_URL });
const settings = { connectionString: process.env.NODE_DATABASE_URL, max: 10, useListenNotify: true };

const write = async (number) => {
  const client = await pool.connect();
  await client.query("BEGIN");
  await client.query(INSERT, [number]);
  await client.query(UPDATE, [number]);
  await client.query("COMMIT");
  client.release();
};

const withBoss = async (body, more = { supervise: false, schedule: false }) => {
  const boss = new PgBoss({ ...settings, ...more });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await body(boss);
};

const leave = async (boss) => {
  await boss.stop({ graceful: true });
  await pool.end();
};

const insert = async (boss, name, jobs, jobOf) => {
  for (let first = 1; first <= jobs; first += 10000) {
    const length = Math.min(10000, jobs - first + 1);
    await boss.insert(name, Array.from({ length }, (_, at) => jobOf(first + at)));
  }
};

// Two that begin at once would both find the group free, and both be held.
let whileHeld = () => {};

const handlers = {
  noop: async (jobs) => {
    const held = jobs.filter((job) => job.data.isHeld).length;
    if (held < jobs.length) wire.count(jobs.length - held);
    if (held) {
      whileHeld();
      await sleep(HELD_MS);
    }
  },
  update: async (jobs) => {
    await Promise.all(jobs.map((job) => pool.query(UPDATE, [job.data.number])));
    wire.count(jobs.length);
  },
  write: async (jobs) => {
    await Promise.all(jobs.map((job) => write(job.data.number)));
    wire.count(jobs.length);
  },
  wait: async (jobs) => {
    await Promise.all(jobs.map(() => fetchAfter().then(() => wire.count())));
  },
  pause: async ([job]) => {
    const began = wire.now();
    if (job.data.milliseconds) await sleep(job.data.milliseconds);
    wire.ran(job.data.number, began);
  },
};

const verbs = {
  setup: () =>
    withBoss(async (boss) => {
      for (const name of QUEUES) await boss.createQueue(name, { notify: true });
      await boss.createQueue(ONCE, { policy: "exclusive", notify: true });
      await leave(boss);
    }),
  fill: (kind, tasks) =>
    withBoss(async (boss) => {
      const name = ["hot", "keys", "held"].includes(kind) ? "noop" : kind;
      await boss.deleteAllJobs(name);
      if (kind === "held") {
        const job = { data: { isHeld: true }, group: { id: "held" } };
        await insert(boss, name, Number(process.env.BENCH_HELD), () => job);
      }
      const group = (number) => (groupOf[kind] ? { group: { id: groupOf[kind](number) } } : {});
      await insert(boss, name, Number(tasks), (number) => ({ data: { number }, ...group(number) }));
      await pool.query("VACUUM ANALYZE");
      await leave(boss);
    }),
  work: (atOnce, kind) =>
    withBoss(async (boss) => {
      const batched = { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
      const single = { localConcurrency: Number(atOnce || 1), pollingIntervalSeconds: 0.5 };
      whileHeld = () => boss.work("noop", { ...batched, ...LIMITED[kind] }, handlers.noop);
      await whileHeld();
      await boss.work("update", batched, handlers.update);
      await boss.work("write", batched, handlers.write);
      await boss.work("wait", { ...batched, localConcurrency: 2 }, handlers.wait);
      await boss.work("pause", single, handlers.pause);
      wire.tell("working");
    }, {}),
  tick: () =>
    withBoss(
      async (boss) => {
        await boss.schedule("tick", "* * * * *");
        await boss.work("tick", { pollingIntervalSeconds: 0.5 }, async () => wire.ticked());
        wire.tell("working");
      },
      { schedule: true, cronMonitorIntervalSeconds: 1, cronWorkerIntervalSeconds: 1 },
    ),
  send: () =>
    withBoss(async (boss) => {
      for await (const line of wire.lines()) {
        const [number, milliseconds] = line.split(" ").map(Number);
        wire.tell("sent", number, wire.now());
        await boss.send("pause", { number, milliseconds });
      }
      await leave(boss);
    }),
  enqueue: (how, seconds) =>
    withBoss(async (boss) => {
      const many = Array.from({ length: 1000 }, () => ({ data: { number: 1 } }));
      await wire.enqueueFor(Number(seconds), async () => {
        if (how === "bulk") await boss.insert("idle", many);
        else if (how === "replace") await boss.upsert(ONCE, { number: 1 }, { singletonKey: "hot" });
        else await boss.send(how === "single" ? "idle" : ONCE, { number: 1 }, wire.keyOf(how, "singletonKey"));
        return how === "bulk" ? 1000 : 1;
      });
      await leave(boss);
    }),
};

const [verb, ...words] = process.argv.slice(2);
verbs[verb](...words);
