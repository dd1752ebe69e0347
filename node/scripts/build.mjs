// Builds dist/esm and dist/cjs from the same sources. Each has types of its own, because a type that comes from an ES module cannot
// describe a CommonJS one.
import { spawnSync } from 'node:child_process'
import { mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const tsc = createRequire(import.meta.url).resolve('typescript/bin/tsc')

rmSync(`${root}dist`, { recursive: true, force: true })
for (const [config, folder, type] of [['tsconfig.json', 'esm', 'module'], ['tsconfig.cjs.json', 'cjs', 'commonjs']]) {
  const { status } = spawnSync(process.execPath, [tsc, '-p', `${root}${config}`], { stdio: 'inherit' })
  if (status !== 0) process.exit(status ?? 1)
  mkdirSync(`${root}dist/${folder}`, { recursive: true })
  writeFileSync(`${root}dist/${folder}/package.json`, `{ "type": "${type}" }\n`)
}
