// As wire.py, for Node.
const fs = require("node:fs");

const TELL_MS = 50;
let pipe, teller;
let counted = 0;
let told = 0;
let keyed = 0;

const now = () => Number(process.hrtime.bigint()) / 1e9; // CLOCK_MONOTONIC

function tell(...words) {
  pipe ??= fs.openSync(process.env.BENCH_PIPE, "w");
  fs.writeSync(pipe, words.join(" ") + "\n");
}

function tellTheCount() {
  if (counted !== told) tell("count", process.pid, (told = counted), now());
}

function count(number = 1) {
  counted += number;
  if (teller) return;
  tellTheCount();
  teller = setInterval(tellTheCount, TELL_MS);
}

const ran = (number, began) => tell("ran", number, began, now());

const ticked = () => tell("ticked", Date.now() / 1000); // by the clock on the wall

// What stands on stdin, line by line.
async function* lines() {
  yield* require("node:readline").createInterface({ input: process.stdin });
}

async function ready() {
  tell("ready");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  process.stdin.pause();
}

// Enqueue again and again for so many seconds; `once` gives the number of tasks it has enqueued.
async function enqueueFor(seconds, once) {
  await ready();
  const began = now();
  let enqueued = 0;
  while (now() - began < seconds) enqueued += await once();
  tell("rate", enqueued, now() - began);
}

// The option with this name for one enqueue: a key of its own, the same key as always, or none.
const keyOf = (how, option) => {
  if (how === "fresh") return { [option]: `${process.pid}-${(keyed += 1)}` };
  return how === "same" || how === "replace" ? { [option]: "hot" } : {};
};

module.exports = { now, tell, count, ran, ticked, lines, enqueueFor, keyOf };
