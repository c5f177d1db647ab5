// Writes the dashboard into the package: index.html, app.js, app.css, icon.svg and the licences of what is bundled.
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const out = process.argv[2] ?? "../src/forerun/web";
mkdirSync(out, { recursive: true });
await build({
  entryPoints: { app: "src/main.jsx" },
  outdir: out,
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: "es2020",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none", // the licences are in a file of their own
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(`src/${name}`, `${out}/${name}`);
const licences = ["preact", "uplot"].map((name) => {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  return `${name} ${version}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}\n`;
});
writeFileSync(`${out}/LICENSES.txt`, licences.join("\n\n"));
