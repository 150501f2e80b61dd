// pg-boss: batches of 1000 without a pause while they are full, woken by notifications; the verbs of subject.py.
const { PgBoss } = require("pg-boss");
const { Pool } = require("pg");
const wire = require("./wire.cjs");
const { fetchAfter } = require("./http_wait.cjs");

const QUEUES = ["noop", "update", "write", "wait", "pause", "idle"];
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

const handlers = {
  noop: async (jobs) => wire.count(jobs.length),
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
      await leave(boss);
    }),
  fill: (kind, tasks) =>
    withBoss(async (boss) => {
      await boss.deleteAllJobs(kind);
      for (let first = 1; first <= Number(tasks); first += 10000) {
        const length = Math.min(10000, Number(tasks) - first + 1);
        await boss.insert(kind, Array.from({ length }, (_, at) => ({ data: { number: first + at } })));
      }
      await pool.query("VACUUM ANALYZE");
      await leave(boss);
    }),
  work: (atOnce) =>
    withBoss(async (boss) => {
      const batched = { batchSize: 1000, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 };
      const single = { localConcurrency: Number(atOnce || 1), pollingIntervalSeconds: 0.5 };
      await boss.work("noop", batched, handlers.noop);
      await boss.work("update", batched, handlers.update);
      await boss.work("write", batched, handlers.write);
      await boss.work("wait", { ...batched, localConcurrency: 2 }, handlers.wait);
      await boss.work("pause", single, handlers.pause);
      wire.tell("working");
    }, {}),
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
        else await boss.send("idle", { number: 1 });
        return how === "bulk" ? 1000 : 1;
      });
      await leave(boss);
    }),
};

const [verb, ...words] = process.argv.slice(2);
verbs[verb](...words);
