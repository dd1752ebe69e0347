// Under node:test: `node --test orders.node.mjs`.
import { after, afterEach, before, beforeEach, test } from 'node:test'
import './guide-testing.mjs'
import { cases, options } from './orders-cases.mjs'
import { useServer } from 'portcullis-lock/testing'

const server = useServer({ before, beforeEach, afterEach, after }, options)
for (const [name, run] of Object.entries(cases)) test(name, () => run(server))
