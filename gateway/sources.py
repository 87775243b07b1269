"""Where settings come from: a TOML file, then ``SLUICE_*`` variables, then flags, the later winning.

A key that no setting has is refused with its path. A secret may also be given as ``NAME_file``: the path of a file
that holds it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from gateway.settings import ALIASES, PREFIX, EngineSection, Item, Settings, SettingsError, catalogue

CONFIG_VARIABLE = "SLUICE_CONFIG"  # the path of the TOML file
INTERNAL = frozenset({CONFIG_VARIABLE, "SLUICE_RUN_TOKEN"})  # no settings: the file, and a lease handed to a child
# What Kubernetes sets in every container beside a service called "sluice": not meant for us.
SERVICE_LINK = re.compile(r"SLUICE_(SERVICE_(HOST|PORT)(_.*)?|PORT|PORT_\d+_(TCP|UDP)(_.*)?)")


def load(
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings from all sources. flags are by setting name, None meaning "not given". Raises SettingsError."""
    environ = os.environ if environ is None else environ
    given: dict[str, tuple[Any, str]] = {}
    config = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if config is not None:
        _take(given, _flatten(_read_toml(config)), lambda key: f"{config}: {key}")
    _take(given, _from_environment(environ), lambda key: f"variable {_variable(key, environ)}")
    named = {key: value for key, value in (flags or {}).items() if value is not None}
    _take(given, named, lambda key: f"flag --{key.replace('_', '-')}")
    return _build(given)


def _build(given: Mapping[str, tuple[Any, str]]) -> Settings:
    known = catalogue()
    values: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for key, (raw, where) in given.items():
        item = known[key]
        value = _convert(raw, item, where)
        target = engine if key.startswith("engine.") else values
        target[key.removeprefix("engine.")] = value
        origin[key] = where
    settings = Settings(**values, engine=EngineSection(**engine), origin=MappingProxyType(origin))
    _check_together(settings)
    return settings


def _check_together(settings: Settings) -> None:
    """What no single setting shows."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise SettingsError("tls_cert and tls_key belong together: give both or none.")
    if (settings.root_access_key is None) != (settings.root_secret_key is None):
        raise SettingsError("root_access_key and root_secret_key belong together: give both or none.")
    if settings.engine.heartbeat * 3 > settings.engine.ttl:
        raise SettingsError("engine.heartbeat must be at most a third of engine.ttl.")
    for network in settings.trusted_proxies:
        try:
            ip_network(network, strict=False)
        except ValueError as error:
            raise SettingsError(f"trusted_proxies: {error}.") from error
    names = set(settings.tier_configs)
    for storage_class, tier in settings.classes.items():
        if tier not in names:
            raise SettingsError(
                f"classes.{storage_class}: there is no tier {tier!r}; tiers are {', '.join(sorted(names))}."
            )


def _take(given: dict[str, tuple[Any, str]], values: Mapping[str, Any], where: Callable[[str], str]) -> None:
    """Put one source over those before it; NAME_file of a secret stands for NAME."""
    known = catalogue()
    seen: set[str] = set()
    for key, value in values.items():
        name = key
        if name not in known and key.endswith("_file") and key[:-5] in known and known[key[:-5]].secret:
            name = key[:-5]
            value = _read_secret(Path(str(value)), where(key))
        if name not in known:
            raise SettingsError(f"{where(key)}: there is no such setting.{_nearest(key, known)}")
        if name in seen:
            raise SettingsError(f"{where(key)}: {name} is given twice, as a value and as a file.")
        seen.add(name)
        given[name] = (value, where(key))


def _nearest(key: str, known: Mapping[str, Item]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    return f" Did you mean {close[0]}?" if close else ""


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the engine section get their path; tiers and classes stay tables."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if key == "engine" and isinstance(value, dict):
            flat.update({f"engine.{name}": each for name, each in value.items()})
        else:
            flat[key] = value
    return flat


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    by_variable = {item.variable: key for key, item in catalogue().items()}
    for name, value in environ.items():
        if name in by_variable:
            if value != "" or name not in ALIASES:
                found[by_variable[name]] = value
        elif name.startswith(PREFIX) and name not in INTERNAL and not SERVICE_LINK.fullmatch(name):
            key = name.removeprefix(PREFIX).lower()
            if key.endswith("_file"):
                found[key] = value
            elif key != "database_url":
                raise SettingsError(f"variable {name}: there is no such setting.{_nearest(key, catalogue())}")
            else:
                found.setdefault(key, value)
    return {key: value for key, value in found.items() if value != ""}


def _variable(key: str, environ: Mapping[str, str]) -> str:
    item = catalogue().get(key)
    if item is not None and item.variable in environ:
        return item.variable
    return PREFIX + key.replace(".", "_").upper()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"The configuration file {path} cannot be read: {error.strerror}.") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The configuration file {path} is not TOML: {error}.") from error


def _read_secret(path: Path, where: str) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{where}: {path} cannot be read: {error}.") from error


def _convert(raw: Any, item: Item, where: str) -> Any:
    """A value of the setting's type from TOML or from text. Raises SettingsError with the path."""
    try:
        value = _as(raw, item.kind, item.key)
    except (TypeError, ValueError) as error:
        shown = "" if item.secret else f" {raw!r}"
        raise SettingsError(f"{where}: cannot use{shown} as {item.key}: {error}") from error
    if item.choices and value not in item.choices:
        raise SettingsError(f"{where}: {value!r} is not one of {', '.join(item.choices)}.")
    if item.least is not None and value is not None and value < item.least:
        raise SettingsError(f"{where}: {value} is less than {item.least:g}, the least {item.key} can be.")
    return value


TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off"}


def _as(raw: Any, kind: Any, key: str) -> Any:
    alternatives = [each for each in get_args(kind) if each is not type(None)]
    if type(None) in get_args(kind):
        return _as(raw, alternatives[0], key)
    if get_origin(kind) is tuple:
        if isinstance(raw, str):
            raw = [part.strip() for part in raw.split(",") if part.strip()]
        if not isinstance(raw, list | tuple) or not all(isinstance(each, str) for each in raw):
            raise TypeError("a list of strings is expected")
        return tuple(raw)
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        if str(raw).lower() in TRUE | FALSE:
            return str(raw).lower() in TRUE
        raise ValueError("true or false is expected")
    if kind in (int, float):
        if isinstance(raw, bool) or not isinstance(raw, int | float | str) or (kind is int and isinstance(raw, float)):
            raise TypeError("a number is expected")
        return kind(raw)
    if kind is Path:
        if not isinstance(raw, str | Path):
            raise TypeError("a path is expected")
        return Path(raw).expanduser().absolute()
    if kind is str:
        if not isinstance(raw, str):
            raise TypeError("text is expected")
        return raw
    return _table(raw, get_args(kind)[1], key)


def _table(raw: Any, kind: Any, key: str) -> Mapping[str, Any]:
    """A table of the TOML file, or the same as JSON in a variable."""
    if isinstance(raw, str):
        raw = json.loads(raw)
    if not isinstance(raw, Mapping):
        raise TypeError("a table is expected")
    return MappingProxyType({name: _entry(value, kind, f"{key}.{name}") for name, value in raw.items()})


def _entry(raw: Any, kind: Any, path: str) -> Any:
    if kind is str:
        if not isinstance(raw, str):
            raise TypeError(f"{path}: text is expected")
        return raw
    if not isinstance(raw, Mapping):
        raise TypeError(f"{path}: a table is expected")
    if get_origin(kind) is not None:
        return raw  # pipelines are read, and refused, by those who know their steps
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name.endswith("_file") and name[:-5] in hints and name not in hints:
            name, value = name[:-5], _read_secret(Path(str(value)), f"{path}.{name}")
        if name not in hints:
            raise ValueError(f"{path}.{name}: there is no such setting")
        values[name] = _as(value, hints[name], f"{path}.{name}")
    return kind(**values)
