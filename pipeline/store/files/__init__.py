"""Files below a root: in a folder, in an object store or on S3, with cache, retries and leases."""
