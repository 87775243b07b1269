"""What operators do, by command and by the admin API, against a real server."""

from __future__ import annotations

import json
import secrets

import pytest

from tests.server import Server


def test_accounts_and_keys(server: Server) -> None:
    name = f"acc-{secrets.token_hex(4)}"
    made = json.loads(server.sluice("key", "create", "--account", name, "--email", "a@b.c", "--json").stdout)
    client = server.client(made["access_key"], made["secret_key"])
    client.list_buckets()
    answer = server.sluice("key", "create", "--account", name, "--access-key", made["access_key"], check=False)
    assert answer.returncode == 4
    listed = json.loads(server.sluice("key", "list", "--account", name, "--json").stdout)
    assert [row["access_key"] for row in listed] == [made["access_key"]]
    assert made["secret_key"] not in server.sluice("key", "list", "--json").stdout
    server.sluice("key", "disable", made["access_key"])
    assert denied(client), "word of it reaches the running processes"
    assert server.sluice("key", "delete", made["access_key"], check=False).returncode == 2
    server.sluice("key", "delete", made["access_key"], "--yes")
    assert server.sluice("key", "disable", made["access_key"], check=False).returncode == 3


def program() -> bytes:
    """Content nobody has seen: a known verdict would be lent, and the upload refused at once."""
    return b"MZ" + secrets.token_bytes(16)


def denied(client: object, patience: float = 10.0) -> bool:
    import time

    from botocore.exceptions import ClientError

    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        try:
            client.list_buckets()  # type: ignore[attr-defined]
        except ClientError as error:
            return bool(error.response["Error"]["Code"] == "InvalidAccessKeyId")
        time.sleep(0.02)
    return False


def test_quarantine_and_runs_by_command(server: Server, bucket: str) -> None:
    server.client().put_object(Bucket=bucket, Key="dir/a.exe", Body=program())
    server.wait_state(bucket, "dir/a.exe", "quarantined")
    held = json.loads(server.sluice("quarantine", "list", "--bucket", bucket, "--json").stdout)
    assert [(row["key"], row["code"]) for row in held] == [("dir/a.exe", "blocked-extension")]
    run_id = held[0]["run_id"]
    shown = json.loads(server.sluice("run", "show", str(run_id), "--json").stdout)
    assert shown["state"] == "completed"
    assert "extension_policy" in [step["step"] for step in shown["steps"]]
    runs = json.loads(server.sluice("run", "list", "--bucket", bucket, "--json").stdout)
    assert run_id in [row["run_id"] for row in runs]
    assert server.sluice("run", "retry", str(run_id), check=False).returncode == 4, "it has not failed"
    assert server.sluice("run", "show", "999999999", check=False).returncode == 3
    assert server.sluice("quarantine", "delete", bucket, "dir/a.exe", check=False).returncode == 2
    server.sluice("quarantine", "release", bucket, "dir/a.exe", "--why", "ours")
    assert server.client().get_object(Bucket=bucket, Key="dir/a.exe")["Body"].read().startswith(b"MZ")
    again = json.loads(server.sluice("reprocess", bucket, "dir/a.exe", "--json").stdout)
    assert again["run"] != run_id
    server.wait_state(bucket, "dir/a.exe", "quarantined")
    server.sluice("quarantine", "delete", bucket, "dir/a.exe", "--yes")
    assert json.loads(server.sluice("quarantine", "list", "--bucket", bucket, "--json").stdout) == []


def test_the_same_by_the_admin_api(server: Server, bucket: str) -> None:
    server.client().put_object(Bucket=bucket, Key="dir/b c.exe", Body=program())
    server.wait_state(bucket, "dir/b c.exe", "quarantined")
    assert server.get("/api/v1/quarantine")[0] == 401
    status, text = server.get(f"/api/v1/quarantine?bucket={bucket}", token=True)
    assert (status, len(json.loads(text)["held"])) == (200, 1)
    path = f"/api/v1/objects/{bucket}/dir/b%20c.exe"
    status, text = server.get(f"{path}/processing", token=True)
    found = json.loads(text)
    assert (status, found["state"], found["code"]) == (200, "quarantined", "blocked-extension")
    run_id = found["run"]["run_id"]
    assert server.get(f"/api/v1/runs/{run_id}", token=True)[0] == 200
    assert json.loads(server.get(f"/api/v1/runs/{run_id}/why", token=True)[1])["why"]
    assert server.get(f"/api/v1/runs?bucket={bucket}&state=completed", token=True)[0] == 200
    assert server.get(f"/api/v1/runs/{run_id}/retry", "POST", token=True)[0] == 409
    assert server.get(f"/api/v1/runs/{run_id}/cancel", "POST", token=True)[0] == 409
    assert server.get("/api/v1/runs/999999999/retry", "POST", token=True)[0] == 404
    release = f"/api/v1/quarantine/{bucket}/dir/b%20c.exe/release"
    status, text = server.get(release, "POST", {"why": "ours"}, token=True)
    assert status == 200, text
    assert server.client().get_object(Bucket=bucket, Key="dir/b c.exe")["Body"].read().startswith(b"MZ")
    assert server.get(release, "POST", {"why": "ours"}, token=True)[0] == 404
    status, text = server.get(f"{path}/reprocess", "POST", {"hold": True}, token=True)
    assert status == 200, text


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/metrics", 405),
        ("GET", "/api/v1/runs?state=odd", 400),
        ("GET", "/api/v1/runs?limit=x", 400),
        ("GET", "/api/v1/objects/no-such-bucket/k/processing", 404),
        ("GET", "/api/v1/runs/abc", 404),
    ],
)
def test_refusals_of_the_admin_api(server: Server, method: str, path: str, status: int) -> None:
    answered, text = server.get(path, method, token=True)
    assert answered == status
    assert json.loads(text)["error"]["code"]


def test_only_the_root_account_administers(server: Server) -> None:
    made = json.loads(server.sluice("key", "create", "--account", f"a{secrets.token_hex(4)}", "--json").stdout)
    root = server.access_key, server.secret_key
    server.access_key, server.secret_key = made["access_key"], made["secret_key"]
    try:
        assert server.get("/api/v1/runs", token=True)[0] == 401
    finally:
        server.access_key, server.secret_key = root


def test_metrics_tell_what_happened(server: Server, bucket: str) -> None:
    before = server.metrics()
    server.client().put_object(Bucket=bucket, Key="a.exe", Body=program())
    server.client().put_object(Bucket=bucket, Key="a.txt", Body=secrets.token_bytes(100_000))
    server.wait_state(bucket, "a.exe", "quarantined")
    server.wait_state(bucket, "a.txt", "ready")
    after = server.metrics()

    def moved(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    assert moved('sluice_s3_requests_total{code="200",operation="PutObject"}') >= 2
    assert moved('sluice_s3_bytes_total{direction="in"}') >= 100_000
    assert moved('sluice_verdicts_total{reason="blocked-extension",verdict="quarantined"}') >= 1
    assert moved('sluice_step_seconds_count{outcome="completed",step="sniff_type"}') >= 1
    assert after["sluice_quarantined"] >= 1
    assert after["sluice_workers"] >= 1
    assert after["sluice_s3_in_flight"] == 0


def test_b225_series_of_a_server_do_not_grow(server: Server, bucket: str) -> None:
    import http.client

    host = server.endpoint.removeprefix("http://")

    def traffic(i: int) -> None:
        conn = http.client.HTTPConnection(host, timeout=20)
        for method, path in (("GET", f"/{bucket}/{i}"), (f"FOO{i}", f"/{bucket}"), ("GET", f"/no-{i}/x?odd{i}")):
            headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential=AK{i}/20260101/us-east-1/s3/aws4_request"}
            conn.request(method, path, headers=headers if i % 2 else {})
            conn.getresponse().read()
        conn.close()

    for i in range(4):
        traffic(i)
    before = {name for name in server.metrics() if name.startswith(("sluice_s3", "sluice_auth"))}
    for i in range(4, 60):
        traffic(i)
    after = {name for name in server.metrics() if name.startswith(("sluice_s3", "sluice_auth"))}
    assert after == before


def test_doctor_health_config_and_migrate(server: Server) -> None:
    rows = json.loads(server.sluice("doctor", "--json").stdout)
    assert {row["check"] for row in rows} >= {"configuration", "database", "tier:standard", "workers"}
    assert not [row for row in rows if row["state"] == "failed"]
    assert server.sluice("health").returncode == 0
    assert json.loads(server.sluice("migrate", "--dry-run", "--json").stdout) == []
    assert server.sluice("config", "check").returncode == 0
    shown = json.loads(server.sluice("config", "show", "--origin", "--json").stdout)
    assert {row["setting"] for row in shown} >= {"data_dir", "database_url"}
    assert [row["value"] for row in shown if row["setting"] == "database_url"] == ["(hidden)"]


def test_buckets_by_command(server: Server) -> None:
    name = f"b-{secrets.token_hex(6)}"
    server.sluice("bucket", "create", name, "--processing", "sync")
    assert server.sluice("bucket", "create", name, check=False).returncode == 4
    assert server.sluice("bucket", "create", "Not_Valid", check=False).returncode == 2
    server.sluice("bucket", "set", name, "--when-failed", "refuse", "--processing", "default")
    rows = json.loads(server.sluice("bucket", "list", "--json").stdout)
    row = next(each for each in rows if each["name"] == name)
    assert (row["processing"], row["when_failed"], row["account"]) == (None, "refuse", "root")
    assert server.sluice("bucket", "set", "no-such-bucket", "--processing", "sync", check=False).returncode == 3


def test_log_lines_tell_of_requests_and_runs_and_hold_no_secret(server: Server, bucket: str) -> None:
    server.client().put_object(Bucket=bucket, Key="seen", Body=b"do not log me " * 10)
    server.wait_state(bucket, "seen")
    line = server.wait_log(lambda row: row.get("key") == "seen" and row.get("operation") == "PutObject")
    assert {"status", "seconds", "request", "bucket", "first_byte"} <= set(line)
    server.wait_log(lambda row: row.get("event") == "run" and "finalize_upload" in row["steps"])
    text = server.log_path.read_text()
    assert server.secret_key not in text
    assert "do not log me" not in text
