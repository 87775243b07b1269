"""The real process: two commands, locks, signals, credentials, health."""

from __future__ import annotations

import http.client
import json
import os
import signal
import stat
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from tests.server import Server, StartServer


def test_embedded_start_stop_and_again(start_server: StartServer) -> None:
    one = start_server(embedded=True, workers=2)
    client = one.client()
    client.create_bucket(Bucket="kept")
    client.put_object(Bucket="kept", Key="a", Body=b"x" * 100_000)
    assert len(one.children()) == 2
    status, text = one.get("/-/ready")
    assert status == 200, text
    assert json.loads(text)["checks"]["database"]["state"] == "ok"
    family = one.family()
    assert one.stop() == 0
    assert not [each for each in family if each.is_running()], "everything it started has ended"
    one.start()
    assert one.client().get_object(Bucket="kept", Key="a")["Body"].read() == b"x" * 100_000
    secrets = one.data_dir / "credentials"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert one.secret_key in secrets.read_text()
    assert one.secret_key not in one.log_path.read_text(), "configured secrets are not printed"


def test_a_second_instance_on_the_directory_is_refused(start_server: StartServer) -> None:
    one = start_server()
    answer = one.sluice("serve", check=False)
    assert answer.returncode == 6
    assert "in use by another sluice" in answer.stderr
    assert str(one.process.pid) in answer.stderr if one.process else False


def test_a_killed_supervisor_takes_its_processes_along_and_the_next_start_serves(start_server: StartServer) -> None:
    one = start_server(embedded=True)
    client = one.client()
    client.create_bucket(Bucket="kept")
    client.put_object(Bucket="kept", Key="a", Body=b"hello")
    one.wait_state("kept", "a")  # else its run waits for the dead process's lease to end
    family = one.family()
    assert one.process is not None
    os.kill(one.process.pid, signal.SIGKILL)
    one.process.wait()
    _, alive = psutil.wait_procs([each for each in family if "postgres" not in _name(each)], timeout=10)
    assert not alive
    one.process = None
    one.start()
    assert one.client().get_object(Bucket="kept", Key="a")["Body"].read() == b"hello"


def test_a_dead_child_is_started_again(start_server: StartServer) -> None:
    one = start_server(workers=2)
    victim = one.children()[0]
    victim.kill()
    psutil.wait_procs([victim], timeout=10)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and len([c for c in one.children() if c.status() != psutil.STATUS_ZOMBIE]) < 2:
        time.sleep(0.02)
    assert victim.pid not in [each.pid for each in one.children()]
    assert len(one.children()) == 2
    one.client().list_buckets()


def test_an_unusable_database_is_fatal(start_server: StartServer, tmp_path: Path) -> None:
    one = start_server({"DATABASE_URL": f"postgresql://nobody@/none?host={tmp_path}"}, wait=False)
    assert one.process is not None
    assert one.process.wait(30) == 5
    assert "DATABASE_URL" in one.tail()
    assert not (one.data_dir / "postgres").exists(), "no silent fallback to an embedded one"


def test_a_misspelt_setting_is_refused(start_server: StartServer) -> None:
    one = start_server({"SLUICE_S3_PROT": "9000"}, wait=False)
    assert one.process is not None
    assert one.process.wait(30) == 78
    assert "SLUICE_S3_PROT" in one.tail()
    assert "s3_port" in one.tail()


def test_a_foreign_blob_folder_and_a_foreign_key_are_refused(start_server: StartServer) -> None:
    one = start_server()
    two = start_server({"SLUICE_BLOB_DIR": one.environment["SLUICE_BLOB_DIR"]}, wait=False)
    assert two.process is not None
    assert two.process.wait(30) == 78
    assert "belongs to another database" in two.tail()
    three = start_server({"SLUICE_MASTER_KEY": "ab" * 32}, beside=one, wait=False)
    assert three.process is not None
    assert three.process.wait(30) == 78
    assert "master key" in three.tail()


def test_two_instances_on_one_database(start_server: StartServer) -> None:
    one = start_server()
    two = start_server(beside=one)
    one.client().create_bucket(Bucket="shared")
    one.client().put_object(Bucket="shared", Key="a", Body=b"from one" * 5000)
    assert two.client().get_object(Bucket="shared", Key="a")["Body"].read() == b"from one" * 5000


def test_first_start_makes_credentials_and_shows_them_once(start_server: StartServer) -> None:
    one = start_server({"SLUICE_ROOT_ACCESS_KEY": "", "SLUICE_ROOT_SECRET_KEY": ""})
    kept = dict(line.split(" = ") for line in (one.data_dir / "credentials").read_text().splitlines() if " = " in line)
    access_key, secret = kept["aws_access_key_id"], kept["aws_secret_access_key"]
    assert one.log_path.read_text().count(secret) == 1
    one.client(access_key, secret).list_buckets()
    one.restart()
    one.client(access_key, secret).list_buckets()
    assert one.log_path.read_text().count(secret) == 1, "shown once"


def test_term_lets_a_request_end(start_server: StartServer) -> None:
    one = start_server()
    client = one.client(signature_version="s3v4")
    client.create_bucket(Bucket="drain")
    url = urlsplit(client.generate_presigned_url("put_object", Params={"Bucket": "drain", "Key": "k"}))
    conn = http.client.HTTPConnection(url.netloc, timeout=30)
    conn.putrequest("PUT", f"{url.path}?{url.query}")
    conn.putheader("Content-Length", "400000")
    conn.endheaders(b"z" * 200_000)
    deadline = time.monotonic() + 10
    while one.metrics().get("sluice_s3_in_flight") != 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert one.process is not None
    one.process.send_signal(signal.SIGTERM)
    one.wait_log(lambda row: row.get("event") == "stopping")
    conn.send(b"z" * 200_000)
    answer = conn.getresponse()
    assert answer.status == 200, answer.read()
    conn.close()
    assert one.process.wait(20) == 0  # stop() would ask a second time, which ends everything at once
    one.stop()
    one.start()
    assert one.client().get_object(Bucket="drain", Key="k")["Body"].read() == b"z" * 400_000


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


@pytest.mark.parametrize("path", ["/-/live", "/-/startup", "/-/ready", "/metrics"])
def test_health_pages(server: Server, path: str) -> None:
    status, text = server.get(path)
    assert status == 200
    assert "ok" in text or "sluice_" in text
