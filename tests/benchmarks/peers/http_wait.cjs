// As the clients of http_wait.py, for Node.
const http = require("node:http");

const agent = new http.Agent({ keepAlive: true, maxSockets: Infinity });
const path = `/${process.env.BENCH_WAIT_MS}`;

const fetchAfter = () =>
  new Promise((resolve, reject) => {
    const options = { host: "127.0.0.1", port: Number(process.env.BENCH_HTTP_PORT), path, agent };
    http
      .get(options, (answer) => {
        answer.resume();
        answer.on("end", resolve);
      })
      .on("error", reject);
  });

module.exports = { fetchAfter };
