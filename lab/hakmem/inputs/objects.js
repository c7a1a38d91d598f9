// objects.js: buffers outside of V8's own heap, objects inside of it, JSON and compression. Prints checksums.
const zlib = require("zlib");

function tree(depth) {
    return depth ? { left: tree(depth - 1), right: tree(depth - 1) } : {};
}

let seed = 12345;
const live = new Array(2000).fill(Buffer.alloc(0));
for (let i = 0; i < 400000; i++) {
    seed = (Math.imul(seed, 1103515245) + 12345) & 0x7fffffff;
    const block = Buffer.allocUnsafeSlow(16 + ((seed >> 8) % 8192));
    block[0] = seed & 255;
    live[seed % live.length] = block;
}
console.log("buffers", live.reduce((sum, block) => sum + block.length + block[0], 0));

const text = JSON.stringify([tree(15), Array.from({ length: 100000 }, (_, i) => "item " + ((i * 7919) % 100003))]);
console.log("json", text.length, JSON.stringify(JSON.parse(text)) === text);
for (let i = 0; i < 20; i++) {
    const packed = zlib.deflateSync(text, { level: 1 });
    if (zlib.inflateSync(packed).toString() !== text) throw new Error("inflate");
}
console.log("zlib", zlib.deflateSync(text).length);
