"""Side-by-side measurements of S3 endpoints; see README.md."""
