// Stands for the types of Testcontainers while this package is compiled: they bring those of 170 packages. What this package uses is in
// src/testcontainers.ts; the suites compile the result against the real types.
export interface StartedTestContainer {
  getHost(): string
  getMappedPort(port: number): number
}

export declare class GenericContainer {
  constructor(image: string)
  withExposedPorts(...ports: number[]): this
  withWaitStrategy(strategy: object): this
  withCommand(command: string[]): this
  start(): Promise<StartedTestContainer>
}

export declare class AbstractStartedContainer implements StartedTestContainer {
  constructor(container: StartedTestContainer)
  getHost(): string
  getMappedPort(port: number): number
}

export declare const Wait: { forLogMessage(message: RegExp): object }
