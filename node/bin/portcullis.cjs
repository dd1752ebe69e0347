#!/usr/bin/env node
// Runs the program of this platform's package: `npx portcullis serve`.
'use strict'
const { spawn } = require('node:child_process')
const { constants } = require('node:os')
const { programPath } = require('../dist/cjs/program.cjs')

let path
try {
  path = programPath()
} catch (error) {
  console.error(`portcullis: ${error.message}`)
  process.exit(127)
}
const child = spawn(path, process.argv.slice(2), { stdio: 'inherit' })
child.on('error', (error) => {
  console.error(`portcullis: ${path}: ${error.message}`)
  process.exit(126)
})
// The program ends with the signal, and this process with the program. Ctrl-C in a terminal reaches both.
const signals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']
for (const signal of signals) process.on(signal, () => child.kill(signal))
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]))
