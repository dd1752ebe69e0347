// PortcullisContainer against the types of Testcontainers itself. It is compiled, and not run: that would need containers.
import { PortcullisContainer, StartedPortcullisContainer } from 'portcullis-lock/testcontainers'
import { GenericContainer, Network, type StartedTestContainer } from 'testcontainers'

const generic: GenericContainer = new PortcullisContainer('portcullis')
const container: PortcullisContainer = new PortcullisContainer('portcullis')
  .withPassword('secret')
  .withFlags('--databases', '64')
  .withNetwork(await new Network().start())
  .withNetworkAliases('locks')
  .withEnvironment({ RUST_LOG: 'debug' })
  .withReuse()
await using started: StartedPortcullisContainer = await container.start()
const either: StartedTestContainer = started
const url: string = started.getConnectionUrl()
const port: number = started.getPort()
await started.exec(['portcullis', '--version'])
await (await generic.start()).stop()
console.log(either.getHost(), url, port, started.getPassword())
