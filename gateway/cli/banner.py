"""What ``sluice serve`` prints once it serves: where it is, and commands to paste."""

from __future__ import annotations

from pathlib import Path

BANNER = """
  Sluice {version} serves.

    S3        {url}
    Admin     {admin}   (/-/ready, /metrics, /api/v1)
    Data      {data}
    Database  {database}
    Scanner   {scanner}

    Access key  {access_key}
    Secret key  {secret}

  Paste into a shell:

    export AWS_SHARED_CREDENTIALS_FILE={credentials}
    export AWS_ENDPOINT_URL={url} AWS_REGION={region}

    aws s3 mb s3://first
    echo hello > hello.txt && aws s3 cp hello.txt s3://first/
    aws s3 cp s3://first/hello.txt -

    python3 -c "import boto3; print(boto3.client('s3').list_buckets()['Buckets'])"
    rclone lsd ":s3,provider=Other,env_auth=true,region={region},endpoint='{url}':"
    mc alias set sluice {url} {access_key} "$(sed -n 's/^aws_secret_access_key = //p' {credentials})"

  Ctrl-C stops everything.
"""


def banner(
    *,
    version: str,
    url: str,
    admin: str,
    data: Path,
    database: str,
    scanner: str | None,
    access_key: str,
    secret_key: str,
    fresh: bool,
    credentials: Path,
    region: str,
) -> str:
    """The secret is shown when it was made just now; afterwards only where it is kept."""
    return BANNER.format(
        version=version,
        url=url,
        admin=admin,
        data=data,
        database=database,
        scanner=scanner or "none: content is recorded as not scanned (SLUICE_CLAMD=tcp://host:3310 or unix:/path)",
        access_key=access_key,
        secret=f"{secret_key}   (shown once)" if fresh else f"in {credentials}",
        credentials=credentials,
        region=region,
    )
