// The configuration that guide/testing.md shows: one server for all test files.
export default { test: { globalSetup: 'portcullis-lock/testing/global-setup' } }
