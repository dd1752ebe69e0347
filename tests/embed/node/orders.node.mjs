// Under node:test: `node --test orders.node.mjs`. Run by itself, it prints what ../../clients/run.py counts.
import { after, afterEach, before, beforeEach, test } from 'node:test'
import './guide.node.mjs'
import { cases, options } from './orders-cases.mjs'
import { useServer } from './portcullis-server.mjs'

const server = useServer({ before, beforeEach, afterEach, after }, options)
for (const [name, run] of Object.entries(cases)) test(name, () => run(server))
