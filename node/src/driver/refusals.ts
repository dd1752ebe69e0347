/** Why a connection fails, and whether another attempt can succeed. */
import { ConnectionError, FinalError, NotPortcullisError, ServerError, UnreachableError, refusal } from '../errors.js'

/** Whether the client library's error is the server's reply. */
export function isReply(error: unknown): error is Error {
  if (!(error instanceof Error)) return false
  if (error.name === 'ReplyError') return true
  for (let of = Object.getPrototypeOf(error); of; of = Object.getPrototypeOf(of)) {
    if (of.constructor?.name === 'ErrorReply') return true
  }
  return false
}

/** What to do about an error of TLS, by its code. */
const CERTIFICATES: ReadonlyArray<readonly [RegExp, string]> = [
  [/^(ERR_TLS_CERT_ALTNAME_INVALID|HOSTNAME_MISMATCH)$/, 'connect to a name that it is for'],
  [/^CERT_(HAS_EXPIRED|NOT_YET_VALID)$/, 'give the server one that is valid now'],
  [/^(CERT_|(DEPTH_ZERO_)?SELF_SIGNED|UNABLE_TO_(GET_ISSUER|VERIFY)|INVALID_)/, "give its authority's certificate as `tls: { ca }`"],
]

/** The error of a connection that could not be opened. */
export function notOpened(where: string, error: NodeJS.ErrnoException): ConnectionError {
  const { code = '', message } = error
  const [, advice] = CERTIFICATES.find(([codes]) => codes.test(code)) ?? []
  if (advice) return final(`the certificate of the server ${where} is not accepted (${message}): ${advice}`)
  if (code === 'ERR_SSL_WRONG_VERSION_NUMBER') return final(`the server ${where} does not speak TLS on this port: give the port of its \`--tls-port\`, or use redis://`)
  if (isReply(error)) {
    const refused = refusal(new ServerError(message), where)
    if (refused) return new FinalError(refused)
  }
  return notRedis(where, error) ?? new ConnectionError(message, false)
}

function final(message: string): FinalError {
  return new FinalError(new UnreachableError(message))
}

/** The error of a reply that is none of Redis's protocol; undefined for other errors. */
export function notRedis(where: string, error: unknown): FinalError | undefined {
  if (!(error instanceof Error) || (error.name !== 'ParserError' && !/^Unknown RESP type /.test(error.message))) return undefined
  const text = error.message.replace(/\. Please report this\.$/, '')
  return new FinalError(
    new NotPortcullisError(`what answers at ${where} does not speak Redis's protocol (${text}): is that the port of a Portcullis server? One with TLS needs rediss://`),
  )
}
