export default { globalSetup: 'portcullis-lock/testing/global-setup', maxWorkers: 2, testMatch: ['**/*.test.mjs'] }
