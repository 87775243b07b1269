"""Sources, their order, what is refused, and where a value came from."""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path

import pytest

from gateway.cli.arguments import add_settings, given_flags
from gateway.cli.config import template
from gateway.settings import Settings, SettingsError, catalogue
from gateway.sources import load


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "sluice.toml"
    path.write_text(text)
    return path


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    path = file(tmp_path, "s3_port = 1\nadmin_port = 1\nread_wait = 1.5\n[engine]\nslots = 7\n")
    settings = load({"s3_port": "3"}, {"SLUICE_S3_PORT": "2", "SLUICE_ADMIN_PORT": "2"}, path)
    assert (settings.s3_port, settings.admin_port, settings.read_wait, settings.engine.slots) == (3, 2, 1.5, 7)
    assert settings.origin == {
        "s3_port": "flag --s3-port",
        "admin_port": "variable SLUICE_ADMIN_PORT",
        "read_wait": f"{path}: read_wait",
        "engine.slots": f"{path}: engine.slots",
    }


def test_fixed_names() -> None:
    """Scripts rely on these."""
    settings = load(
        environ={
            "SLUICE_DATA_DIR": "/d",
            "SLUICE_S3_PORT": "1",
            "SLUICE_ADMIN_PORT": "2",
            "SLUICE_ROOT_ACCESS_KEY": "ak",
            "SLUICE_ROOT_SECRET_KEY": "sk",
            "SLUICE_CLAMD": "tcp://127.0.0.1:3310",
            "SLUICE_TLS_CERT": "/c",
            "SLUICE_TLS_KEY": "/k",
            "SLUICE_WORKERS": "3",
            "DATABASE_URL": "postgresql://x",
        }
    )
    assert (settings.data_dir, settings.s3_port, settings.admin_port) == (Path("/d"), 1, 2)
    assert (settings.root_access_key, settings.root_secret_key, settings.clamd) == ("ak", "sk", "tcp://127.0.0.1:3310")
    assert (settings.tls_cert, settings.tls_key, settings.workers) == (Path("/c"), Path("/k"), 3)
    assert settings.database_url == "postgresql://x"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"SLUICE_S3_PROT": "1"}, ["SLUICE_S3_PROT", "s3_port"]),
        ({"SLUICE_S3_PORT": "many"}, ["SLUICE_S3_PORT", "many"]),
        ({"SLUICE_S3_PORT": "-1"}, ["SLUICE_S3_PORT", "less than 0"]),
        ({"SLUICE_PROCESSING": "later"}, ["SLUICE_PROCESSING", "async, sync"]),
        ({"SLUICE_TLS_CERT": "/c"}, ["tls_cert and tls_key"]),
        ({"SLUICE_ROOT_SECRET_KEY": "x"}, ["root_access_key and root_secret_key"]),
        ({"SLUICE_CLASSES": '{"GLACIER": "nowhere"}'}, ["classes.GLACIER", "nowhere"]),
        ({"SLUICE_TIERS": '{"cold": {"kind": "file", "pfad": "/x"}}'}, ["tiers.cold.pfad"]),
        ({"SLUICE_ENGINE_HEARTBEAT": "10"}, ["engine.heartbeat"]),
        ({"SLUICE_ENFORCE_TYPE_MATCH": "perhaps"}, ["SLUICE_ENFORCE_TYPE_MATCH", "true or false"]),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_path(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(SettingsError) as refused:
        load(environ=environ)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize("text", ["s3prot = 1", "[engine]\nslotz = 1", "[nothing]\na = 1", "s3_port = 'x'", "= 1"])
def test_mistakes_in_the_file_are_refused(tmp_path: Path, text: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(SettingsError) as refused:
        load(environ={}, file=path)
    assert str(path) in str(refused.value)


def test_secrets_from_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    environ = {"SLUICE_ROOT_ACCESS_KEY": "ak", "SLUICE_ROOT_SECRET_KEY_FILE": str(secret)}
    assert load(environ=environ).root_secret_key == "s3cret"
    with pytest.raises(SettingsError, match="given twice"):
        load(environ={**environ, "SLUICE_ROOT_SECRET_KEY": "other"})
    with pytest.raises(SettingsError, match="cannot be read"):
        load(environ={**environ, "SLUICE_ROOT_SECRET_KEY_FILE": "/nowhere"})
    with pytest.raises(SettingsError, match="no such setting"):
        load(environ={"SLUICE_S3_PORT_FILE": str(secret)})


def test_a_secret_is_never_in_a_message_and_never_a_flag() -> None:
    with pytest.raises(SettingsError) as refused:
        load({"database_url": 7})
    assert "7" not in str(refused.value)
    parser = argparse.ArgumentParser()
    add_settings(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    for item in catalogue().values():
        name = "--" + item.key.replace(".", "-").replace("_", "-")
        assert (name in options) != item.secret
        assert (f"{name}-file" in options) == item.secret


def test_flags_are_settings() -> None:
    parser = argparse.ArgumentParser()
    add_settings(parser)
    args = parser.parse_args(["--s3-port", "7", "--engine-slots", "9", "--blocked-extensions", "exe,bat"])
    settings = load(given_flags(args), {})
    assert (settings.s3_port, settings.engine.slots, settings.blocked_extensions) == (7, 9, ("exe", "bat"))


def test_service_links_of_kubernetes_are_not_ours() -> None:
    load(environ={"SLUICE_SERVICE_HOST": "10.0.0.1", "SLUICE_PORT": "tcp://10.0.0.1:9000", "SLUICE_PORT_9000_TCP": "x"})


def test_an_empty_variable_is_not_given() -> None:
    assert load(environ={"SLUICE_ROOT_ACCESS_KEY": "", "DATABASE_URL": ""}) == load(environ={})


def test_tiers_replace_the_built_in_ones_and_durability_reaches_them(tmp_path: Path) -> None:
    path = file(tmp_path, 'durability = "os"\n[tiers.standard]\nkind = "file"\npath = "/elsewhere"\n')
    configs = load(environ={}, file=path).tier_configs
    assert set(configs) == {"standard", "archive"}
    assert configs["standard"].path == Path("/elsewhere")
    assert not configs["standard"].durable
    assert configs["archive"].archive


def test_the_template_is_a_file_and_holds_every_setting(tmp_path: Path) -> None:
    text = template()
    assert tomllib.loads(text)["engine"] == {}
    everything = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines()
    )
    table = tomllib.loads(everything)
    flat = {*table, *(f"engine.{name}" for name in table["engine"])} - {"engine"}
    assert flat == set(catalogue())


def test_settings_do_not_show_secrets_by_accident() -> None:
    shown = repr(Settings(root_access_key="a", root_secret_key="very-secret", database_url="postgresql://u:pw@h/d"))
    assert "very-secret" not in shown
    assert "pw" not in shown
