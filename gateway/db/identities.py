"""Accounts and their access keys. Secrets lie sealed; what is looked up for signatures is cached."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import asyncpg

from gateway.db.cache import Publish, Recent
from gateway.db.errors import DatabaseError
from gateway.domain.objects import Account
from processing.ports import Conn

ROOT = "root"

ACCOUNT = "a.id, a.canonical_id, a.name, a.display_name, a.email, a.is_root"
_SHORT_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_LONG_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# An access key is part of a credential scope, which slashes and commas take apart.
_ACCESS_KEY = re.compile(r"[A-Za-z0-9._@+=-]{3,128}")
_ACCOUNT_NAME = re.compile(r"[\w.@+=-]{1,64}")
_SECRET_LENGTH = range(8, 257)


class Ring(Protocol):
    """The key ring, as far as secrets need it."""

    def seal(self, plain: bytes, /) -> bytes: ...

    def open(self, sealed: bytes, /) -> bytes: ...


class AccountExists(DatabaseError):
    """Another account has that name."""


class NoSuchAccount(DatabaseError):
    """No account of that name or id."""


class AccessKeyExists(DatabaseError):
    """That access key is taken, by whichever account."""


class NoSuchAccessKey(DatabaseError):
    """No such access key."""


class InvalidIdentity(DatabaseError):
    """A name, access key or secret that cannot be used. The text says why."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who signs with an access key."""

    access_key: str
    secret: str = field(repr=False)
    account: Account


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """An access key as an operator sees it: never with its secret."""

    access_key: str
    account: Account
    enabled: bool
    created: datetime


class Identities:
    """notifier_publish tells the other processes of a change, once it is committed; ``invalidate`` hears it there."""

    def __init__(
        self,
        pool: asyncpg.Pool,
        ring: Ring,
        notifier_publish: Publish | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._ring, self._publish = pool, ring, notifier_publish
        self._keys: Recent[str, Identity] = Recent(clock)
        self._accounts: Recent[int, Account] = Recent(clock)

    # --- lookups ---------------------------------------------------------------------------------------------------

    async def find(self, access_key: str) -> Identity | None:
        """Who signs with this key, or None when it is unknown or disabled (which is not remembered)."""
        known = self._keys.get(access_key)
        if known is not None or not _ACCESS_KEY.fullmatch(access_key):
            return known
        epoch = self._keys.epoch
        row = await self._pool.fetchrow(
            f"SELECT k.secret, {ACCOUNT} FROM access_key k JOIN account a ON a.id = k.account_id"
            " WHERE k.access_key = $1 AND k.enabled",
            access_key,
        )
        if row is None:
            return None
        identity = Identity(access_key, self._ring.open(row["secret"]).decode(), account_of(row))
        self._keys.put(access_key, identity, epoch)
        return identity

    async def account(self, account_id: int) -> Account | None:
        """The account with this id, cached."""
        known = self._accounts.get(account_id)
        if known is not None:
            return known
        epoch = self._accounts.epoch
        account = await self._account("a.id = $1", account_id)
        if account is not None:
            self._accounts.put(account_id, account, epoch)
        return account

    async def account_by_canonical(self, canonical_id: str) -> Account | None:
        """The account with this canonical id, as grants name it."""
        return await self._account("a.canonical_id = $1", canonical_id)

    async def account_by_name(self, name: str) -> Account | None:
        """The account of this name, as operators call it."""
        return await self._account("a.name = $1", name)

    async def list_accounts(self) -> list[Account]:
        """All accounts by name."""
        return [account_of(row) for row in await self._pool.fetch(f"SELECT {ACCOUNT} FROM account a ORDER BY a.name")]

    async def list_keys(self, account: str | None = None) -> list[KeyInfo]:
        """Access keys, those of one account by its name or all, in the order of their making."""
        rows = await self._pool.fetch(
            f"SELECT k.access_key, k.enabled, k.created_at, {ACCOUNT} FROM access_key k"
            " JOIN account a ON a.id = k.account_id WHERE $1::text IS NULL OR a.name = $1"
            " ORDER BY k.created_at, k.access_key",
            account,
        )
        return [KeyInfo(row["access_key"], account_of(row), row["enabled"], row["created_at"]) for row in rows]

    # --- changes ---------------------------------------------------------------------------------------------------

    async def create_account(self, name: str, display_name: str | None = None, email: str = "") -> Account:
        """A new tenant. Raises AccountExists and InvalidIdentity."""
        if not _ACCOUNT_NAME.fullmatch(name):
            raise InvalidIdentity("an account name has 1 to 64 letters, digits or . _ @ + = -")
        row = await self._insert_account(self._pool, name, display_name or name, email, root=False)
        if row is None:
            raise AccountExists(name)
        return account_of(row)

    async def create_key(
        self, account: str | int, access_key: str | None = None, secret: str | None = None
    ) -> Identity:
        """A key for an account (its name or id), generated as far as it is not given.

        This is the only time the secret is shown. Raises NoSuchAccount, AccessKeyExists and InvalidIdentity.
        """
        access_key = _checked(access_key) if access_key is not None else new_access_key()
        secret = _checked_secret(secret) if secret is not None else new_secret()
        owner = await self._account("a.id = $1" if isinstance(account, int) else "a.name = $1", account)
        if owner is None:
            raise NoSuchAccount(str(account))
        made = await self._pool.fetchval(
            "INSERT INTO access_key (access_key, account_id, secret) VALUES ($1, $2, $3)"
            " ON CONFLICT (access_key) DO NOTHING RETURNING access_key",
            access_key,
            owner.id,
            self._ring.seal(secret.encode()),
        )
        if made is None:
            raise AccessKeyExists(access_key)
        self._changed(access_key)
        return Identity(access_key, secret, owner)

    async def rotate(self, access_key: str, secret: str | None = None) -> Identity:
        """A new secret for a key; the old one stops working. Raises NoSuchAccessKey and InvalidIdentity."""
        secret = _checked_secret(secret) if secret is not None else new_secret()
        row = await self._pool.fetchrow(
            "UPDATE access_key k SET secret = $2 FROM account a"
            f" WHERE k.access_key = $1 AND a.id = k.account_id RETURNING {ACCOUNT}",
            access_key,
            self._ring.seal(secret.encode()),
        )
        if row is None:
            raise NoSuchAccessKey(access_key)
        self._changed(access_key)
        return Identity(access_key, secret, account_of(row))

    async def disable(self, access_key: str) -> None:
        """Refuse what is signed with it from now on. Raises NoSuchAccessKey."""
        await self._write_key("UPDATE access_key SET enabled = false WHERE access_key = $1", access_key)

    async def enable(self, access_key: str) -> None:
        """Undo disable. Raises NoSuchAccessKey."""
        await self._write_key("UPDATE access_key SET enabled = true WHERE access_key = $1", access_key)

    async def delete(self, access_key: str) -> None:
        """Remove a key; its account and what that owns stay. Raises NoSuchAccessKey."""
        await self._write_key("DELETE FROM access_key WHERE access_key = $1", access_key)

    async def ensure_root(self, access_key: str, secret: str) -> Identity:
        """The root account, with this key enabled and this secret: what configuration says wins. Safe to repeat.

        Other keys of the root account are left alone. Raises AccessKeyExists when another account has the key, and
        InvalidIdentity.
        """
        _checked(access_key), _checked_secret(secret)
        async with self._pool.acquire() as conn, conn.transaction():
            await self._insert_account(conn, ROOT, ROOT, "", root=True)
            # The account's row is the lock between processes that start together.
            row = await conn.fetchrow(f"SELECT {ACCOUNT} FROM account a WHERE a.name = $1 FOR UPDATE", ROOT)
            assert row is not None
            key = await conn.fetchrow(
                "SELECT account_id, secret, enabled FROM access_key WHERE access_key = $1 FOR UPDATE", access_key
            )
            if key is not None and key["account_id"] != row["id"]:
                raise AccessKeyExists(access_key)
            same = key is not None and key["enabled"] and self._ring.open(key["secret"]) == secret.encode()
            if not same:
                await conn.execute(
                    "INSERT INTO access_key (access_key, account_id, secret) VALUES ($1, $2, $3)"
                    " ON CONFLICT (access_key) DO UPDATE SET secret = excluded.secret, enabled = true",
                    access_key,
                    row["id"],
                    self._ring.seal(secret.encode()),
                )
        if not same:
            self._changed(access_key)
        return Identity(access_key, secret, account_of(row))

    # --- cache -----------------------------------------------------------------------------------------------------

    def invalidate(self, access_key: str = "") -> None:
        """Forget one access key, or everything (after a gap in the notifications)."""
        if access_key:
            self._keys.drop(access_key)
        else:
            self._keys.clear()
        self._accounts.clear()

    def _changed(self, access_key: str) -> None:
        self.invalidate(access_key)
        if self._publish is not None:
            self._publish("identity", access_key)

    # --- statements ------------------------------------------------------------------------------------------------

    async def _account(self, condition: str, value: object) -> Account | None:
        row = await self._pool.fetchrow(f"SELECT {ACCOUNT} FROM account a WHERE {condition}", value)
        return None if row is None else account_of(row)

    async def _write_key(self, statement: str, access_key: str) -> None:
        if await self._pool.fetchval(statement + " RETURNING access_key", access_key) is None:
            raise NoSuchAccessKey(access_key)
        self._changed(access_key)

    @staticmethod
    async def _insert_account(
        conn: asyncpg.Pool | Conn, name: str, display_name: str, email: str, root: bool
    ) -> asyncpg.Record | None:
        return await conn.fetchrow(
            "INSERT INTO account AS a (canonical_id, name, display_name, email, is_root) VALUES ($1, $2, $3, $4, $5)"
            f" ON CONFLICT (name) DO NOTHING RETURNING {ACCOUNT}",
            secrets.token_hex(32),
            name,
            display_name,
            email,
            root,
        )


def account_of(row: asyncpg.Record) -> Account:
    """A row with ACCOUNT as a value."""
    return Account(row["id"], row["canonical_id"], row["name"], row["display_name"], row["email"], row["is_root"])


def new_access_key() -> str:
    """20 characters, as long as AWS's, without any that are taken for one another."""
    return "".join(secrets.choice(_SHORT_LETTERS) for _ in range(20))


def new_secret() -> str:
    """40 characters, 240 random bits."""
    return "".join(secrets.choice(_LONG_LETTERS) for _ in range(40))


def _checked(access_key: str) -> str:
    if not _ACCESS_KEY.fullmatch(access_key):
        raise InvalidIdentity("an access key has 3 to 128 letters, digits or . _ @ + = -")
    return access_key


def _checked_secret(secret: str) -> str:
    if len(secret) not in _SECRET_LENGTH or not secret.isascii() or not secret.isprintable():
        raise InvalidIdentity("a secret key has 8 to 256 printable ASCII characters")
    return secret
