"""Storage: files in a folder or an object store, Arrow schemas, and the records of units and releases."""
