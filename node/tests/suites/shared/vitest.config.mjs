export default { test: { globalSetup: 'portcullis-lock/testing/global-setup', maxWorkers: 2 } }
