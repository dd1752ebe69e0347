/** Addresses of servers, and the URLs that they are parsed from. */

/** The address of one server. */
export interface Node {
  host: string
  port: number
}

/** A node's address as messages show it. */
export function nodeText({ host, port }: Node): string {
  return host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`
}

/** Where the server is, and how to log in. */
export interface Target {
  /** The nodes of one server, of which one leads; or the sentinels. Empty if `path` is set. */
  nodes: Node[]
  /** A unix socket. */
  path?: string
  /** The service that the sentinels watch; undefined if the nodes are not sentinels. */
  service?: string
  tls: boolean
  username?: string
  password?: string
  db: number
  /** Name of the connections. */
  name?: string
}

/** Parameters of a URL. */
const PARAMETERS = ['user', 'username', 'password', 'db', 'name', 'client_name']

const FORMS = 'redis://[user[:password]@]host[:port][,host[:port]…][/db], rediss://…, unix:///path[?db=n], redis+sentinel://host[:port][,…]/service[/db]'

function invalid(url: string, why: string): TypeError {
  // A URL may have a password.
  return new TypeError(`${JSON.stringify(url.replace(/\/\/[^@/]*@/, '//…@').replace(/([?&]password=)[^&]*/, '$1…'))} ${why}; the forms are ${FORMS}`)
}

/**
 * Parses a URL.
 *
 * @throws TypeError if it has none of the forms that the error names.
 */
export function parseUrl(url: string): Target {
  const scheme = /^(redis|rediss|unix|redis\+unix|redis\+sentinel|rediss\+sentinel):\/\//.exec(url)
  if (!scheme) throw invalid(url, 'is no URL of a server')
  const kind = scheme[1] as string
  const [main, query = ''] = url.slice(scheme[0].length).split('?') as [string, string?]
  const parameters = new URLSearchParams(query)
  for (const name of parameters.keys()) {
    if (!PARAMETERS.includes(name)) throw invalid(url, `has the parameter ${JSON.stringify(name)}; there are ${PARAMETERS.join(', ')}`)
  }
  const at = main.lastIndexOf('@')
  const [user, ...rest] = at < 0 ? [''] : main.slice(0, at).split(':')
  const secret = rest.length > 0 ? rest.join(':') : undefined
  const target: Target = {
    nodes: [],
    tls: kind.startsWith('rediss'),
    username: user ? decodeURIComponent(user) : (parameters.get('username') ?? parameters.get('user') ?? undefined),
    password: secret !== undefined ? decodeURIComponent(secret) : (parameters.get('password') ?? undefined),
    db: 0,
    name: parameters.get('name') ?? parameters.get('client_name') ?? undefined,
  }
  const place = main.slice(at + 1)
  let db = parameters.get('db') ?? undefined
  if (kind.endsWith('unix')) {
    target.path = decodeURIComponent(place)
  } else {
    const [hosts, ...path] = place.split('/') as [string, ...string[]]
    const isSentinel = kind.endsWith('sentinel')
    if (isSentinel) target.service = decodeURIComponent(path.shift() || 'mymaster')
    db = path.shift() || db
    if (path.length > 0) throw invalid(url, 'has too many parts after the host')
    target.nodes = hosts.split(',').map((host) => parseNode(url, host, isSentinel ? 26379 : 6379))
  }
  if (db !== undefined) {
    if (!/^\d{1,9}$/.test(db)) throw invalid(url, `has the database ${JSON.stringify(db)}, which is no number`)
    target.db = Number(db)
  }
  return target
}

function parseNode(url: string, text: string, defaultPort: number): Node {
  const scheme = /^rediss?:\/\//.exec(text)
  const parts = /^(\[[^\]]+\]|[^:[\]]*)(?::(\d{1,5}))?$/.exec(scheme ? text.slice(scheme[0].length) : text)
  const port = Number(parts?.[2] ?? defaultPort)
  if (!parts || port > 65_535) throw invalid(url, `has the address ${JSON.stringify(text)}, which is no host and port`)
  return { host: (parts[1] as string).replace(/^\[|\]$/g, '') || '127.0.0.1', port }
}
