// node-redis finds the leader of replicated nodes: createSentinel and createCluster.
import { createCluster, createSentinel } from 'redis'
import { cluster, repeated, run, sentinels } from './failover.mjs'

const bySentinel = (RESP) => async () => {
  const client = await createSentinel({
    name: 'mymaster',
    RESP,
    sentinelRootNodes: sentinels,
    nodeClientOptions: { RESP },
    sentinelClientOptions: { RESP },
    maxCommandRediscovers: 100,
  })
    .on('error', () => {})
    .connect()
  return repeated((...words) => client.sendCommand(false, words))
}

const bySlots = (RESP) => async () => {
  const client = await createCluster({
    RESP,
    rootNodes: cluster.map(({ host, port }) => ({ socket: { host, port } })),
    defaults: { socket: { reconnectStrategy: 50 } },
    // Without it, the nodes are not read again before a node answers MOVED, which one that is down does not.
    topologyRefreshOnReconnectionAttemptStrategy: 100,
    maxCommandRedirections: 100,
  })
    .on('error', () => {})
    .connect()
  return repeated((name, key, ...words) => client.sendCommand(key, false, [name, key, ...words]))
}

await run({ 'sentinel RESP2': bySentinel(2), 'sentinel RESP3': bySentinel(3), 'cluster RESP2': bySlots(2), 'cluster RESP3': bySlots(3) })
