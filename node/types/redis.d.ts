// Stands for the types of node-redis while this package is compiled: they are large, and differ from one major version to the next.
// What this package uses of a client is in src/driver/node-redis.ts.
export function createClient(options?: any): any
