// Builds dist/esm and dist/cjs from the same sources. Each has types of its own, because a type that comes from an ES module cannot
// describe a CommonJS one.
import { cpSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { spawnSync } from 'node:child_process'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('..', import.meta.url))
const require = createRequire(import.meta.url)
const ts = require('typescript')

rmSync(`${root}dist`, { recursive: true, force: true })
const { status } = spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), '-p', root], { stdio: 'inherit' })
if (status !== 0) process.exit(status ?? 1)

// The sources were checked once. CommonJS is the same code with other imports.
const compilerOptions = { target: ts.ScriptTarget.ES2022, module: ts.ModuleKind.CommonJS, esModuleInterop: true }
for (const file of readdirSync(`${root}src`, { recursive: true })) {
  if (!/\.c?ts$/.test(file)) continue
  const output = join(root, 'dist/cjs', file.replace(/ts$/, 'js'))
  mkdirSync(dirname(output), { recursive: true })
  const source = readFileSync(join(root, 'src', file), 'utf8')
  writeFileSync(output, ts.transpileModule(source, { compilerOptions, fileName: file }).outputText)
}
cpSync(`${root}dist/esm`, `${root}dist/cjs`, { recursive: true, filter: (path) => !/\.c?js$/.test(path) })
for (const [folder, type] of [['esm', 'module'], ['cjs', 'commonjs']]) {
  writeFileSync(`${root}dist/${folder}/package.json`, `{ "type": "${type}" }\n`)
}
