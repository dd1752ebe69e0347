// ioredis finds the leader of replicated nodes: by Sentinel and by the cluster's slots.
import Redis from 'ioredis'
import { cluster, run, sentinels } from './failover.mjs'

const bySentinel = (protocol) => async () => {
  const settings = {
    sentinels,
    name: 'mymaster',
    protocol,
    maxRetriesPerRequest: 100,
    retryStrategy: () => 50,
    sentinelRetryStrategy: () => 50,
    reconnectOnError: (error) => (error.message.startsWith('READONLY') ? 2 : false),
  }
  const client = new Redis(settings).on('error', () => {})
  return (...words) => client.call(...words)
}

const bySlots = (protocol) => async () => {
  const settings = {
    redisOptions: { protocol, commandTimeout: 2000 },
    clusterRetryStrategy: () => 50,
    retryDelayOnFailover: 50,
    retryDelayOnClusterDown: 50,
    maxRedirections: 100,
  }
  const client = new Redis.Cluster(cluster, settings).on('error', () => {})
  return (...words) => client.call(...words)
}

await run({ 'sentinel RESP2': bySentinel(2), 'sentinel RESP3': bySentinel(3), 'cluster RESP2': bySlots(2), 'cluster RESP3': bySlots(3) })
