"""The ceph s3-tests against a server of ours; see README.md."""
