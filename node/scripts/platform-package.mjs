// Makes the package of one platform from a program: `node platform-package.mjs PROGRAM OUT [PLATFORM]`. PLATFORM is such as linux-x64,
// and otherwise this machine's. The package portcullis-lock depends on these optionally, and npm installs the one that fits.
import { chmodSync, copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const [program, out, platform = `${process.platform}-${process.arch}`] = process.argv.slice(2)
if (!program || !out) {
  console.error('usage: node platform-package.mjs PROGRAM OUT [PLATFORM]')
  process.exit(2)
}
const main = JSON.parse(readFileSync(fileURLToPath(new URL('../package.json', import.meta.url)), 'utf8'))
const name = `${main.name}-${platform}`
if (main.optionalDependencies[name] !== main.version) {
  console.error(`package.json does not depend on ${name} ${main.version}`)
  process.exit(1)
}
const [os, cpu] = platform.split('-')
const { version, license, repository } = main
const manifest = {
  name,
  version,
  description: `The program portcullis for ${platform}; install ${main.name}`,
  license,
  repository,
  os: [os],
  cpu: [cpu],
  files: ['bin'],
  preferUnplugged: true,
}
mkdirSync(join(out, 'bin'), { recursive: true })
copyFileSync(program, join(out, 'bin', 'portcullis'))
chmodSync(join(out, 'bin', 'portcullis'), 0o755)
writeFileSync(join(out, 'package.json'), `${JSON.stringify(manifest, null, 2)}\n`)
writeFileSync(join(out, 'README.md'), `# ${name}\n\nThe program \`portcullis\` for ${platform}. Install \`${main.name}\`, which brings it.\n`)
