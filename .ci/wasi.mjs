// Runs a WebAssembly program for WASI under Node: node .ci/wasi.mjs PROGRAM ARGS…
// It sees the folder it is started in and the environment.
import { readFile } from "node:fs/promises";
import { argv, cwd, env } from "node:process";
import { WASI } from "node:wasi";

const [program, ...args] = argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [program, ...args], env, preopens: { "/": cwd() }, returnOnExit: true });
const module = await WebAssembly.compile(await readFile(program));
const instance = await WebAssembly.instantiate(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
