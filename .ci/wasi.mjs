// Runs a WebAssembly program for WASI in Node: node --no-warnings .ci/wasi.mjs FILE [ARGUMENTS…]
import { readFile } from "node:fs/promises";
import { WASI } from "node:wasi";

const [file, ...rest] = process.argv.slice(2);
const wasi = new WASI({
  version: "preview1",
  args: [file, ...rest],
  env: process.env,
  preopens: { "/": "/" },
  returnOnExit: true,
});
// Threads, which this kind of program has not: an older C library leaves them out. 6 is EAGAIN.
const threads = {
  pthread_attr_init: () => 0,
  pthread_attr_setstacksize: () => 0,
  pthread_attr_destroy: () => 0,
  pthread_create: () => 6,
  pthread_detach: () => 0,
  pthread_join: () => 6,
};
const module = await WebAssembly.compile(await readFile(file));
const instance = await WebAssembly.instantiate(module, { ...wasi.getImportObject(), env: threads });
process.exitCode = wasi.start(instance);
