// service.js PORT: what a service in Node allocates: buffers of requests, text, JSON, and a cache of the last answers.
const crypto = require("crypto");
const http = require("http");

const CACHED = 1500;
const cache = new Map();

const server = http.createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
        const text = Buffer.concat(parts).toString();
        const lines = text.split("\n");
        const kept = Buffer.from(JSON.stringify({ path: request.url, lines }));
        cache.delete(request.url);
        cache.set(request.url, kept);
        if (cache.size > CACHED) cache.delete(cache.keys().next().value);
        const sum = crypto.createHash("md5").update(kept).digest("hex");
        response.end(`${text.length} ${lines.length} ${sum}\n`, () => {
            if (text.length === 0) server.close(), server.closeAllConnections();
        });
    });
});
server.listen(Number(process.argv[2]), "127.0.0.1");
