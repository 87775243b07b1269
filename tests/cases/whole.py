"""The whole gateway in this process: database, file tiers, engine with all its steps, S3 port; no process to start.

A scanner that misbehaves lives on the same loop: ``start_whole(scanner=FakeClamd(Behaviour.EMPTY))``.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import boto3
import uvloop
from botocore.config import Config

from gateway.core import build
from gateway.http.listener import Listener
from gateway.http.pipeline import Pipeline
from gateway.settings import EngineSection, Settings
from storage_tiers.tier import Tier
from storage_tiers.wrappers.faulty import Faulty
from tests.activities.fake_clamd import FakeClamd
from tests.operations.asking import headers as headers_of
from tests.operations.house import ROOT

T = TypeVar("T")
PATIENCE = 30.0
QUICK = {"ttl": 4.0, "heartbeat": 0.3, "backoff_base": 0.05, "backoff_cap": 0.2, "wake_spread": 0.1, "sweep": 0.3}
StartWhole = Callable[..., "Whole"]


class Whole:
    """settings are the gateway's; engine holds those of the engine that differ from QUICK."""

    def __init__(
        self, dsn: str, folder: Path, *, scanner: FakeClamd | None = None, engine: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.dsn, self.folder, self.scanner = dsn, folder, scanner
        self.settings = Settings(
            data_dir=folder,
            database_url=dsn,
            engine=EngineSection(**{**QUICK, **(engine or {})}),
            **{
                "pool_size": 8, "read_wait": 15.0, "sync_timeout": 15.0, "verdict_ttl": 0.0, "lifecycle_day": 1000.0,
                "archive_delay": 0.0, "recall_poll": 0.1, "collect_interval": 3600.0, "blob_grace": 0.0, **settings,
            },
        )  # fmt: skip
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.stack = AsyncExitStack()

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> Whole:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.thread.start()
        self.run(self._start())
        return self

    def stop(self) -> None:
        self.run(self.stack.aclose())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the gateway's loop and wait for it."""
        return self.submit(work).result(PATIENCE)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    async def _start(self) -> None:
        if self.scanner is not None:
            await self.stack.enter_async_context(self.scanner)
            self.settings = self.settings.replace(clamd=self.scanner.address)
        self.core = await build(self.settings, self.stack)
        await self.core.services.identities.ensure_root(*ROOT)
        await self.core.engine.start()
        self.stack.push_async_callback(self.core.engine.drain)
        self.pipeline = Pipeline(self.core.services)
        self.listener = Listener(self.pipeline.handle)
        await self.listener.start([socket.create_server(("127.0.0.1", 0))])
        self.stack.push_async_callback(self.listener.stop, 1.0)
        self.port: int = self.listener.ports[0]

    # --- looking inside ------------------------------------------------------------------------------------------

    def rows(self, statement: str, *arguments: Any) -> list[Any]:
        return list(self.run(self.core.services.pool.fetch(statement, *arguments)))

    def value(self, statement: str, *arguments: Any) -> Any:
        return self.run(self.core.services.pool.fetchval(statement, *arguments))

    def metric(self, name: str, **labels: str) -> float:
        self.core.metrics.flush()
        return self.core.metrics.registry.get_sample_value(name, labels) or 0.0

    def processing(self, key: str) -> dict[str, Any]:
        """What finalize recorded about the newest version of a key."""
        found = self.value("SELECT processing FROM version WHERE key = $1 ORDER BY seq DESC LIMIT 1", key.encode())
        return dict(json.loads(found) if isinstance(found, str) else found)

    def attempts(self, step: str) -> list[Any]:
        """The journal's rows of a step: attempt, status, seconds."""
        return self.rows("SELECT * FROM journal_step WHERE step_key = $1 ORDER BY run_id, attempt", step)

    def faulty(self, name: str) -> Faulty:
        """Puts a tier that fails as told between the gateway and a tier."""
        outer: Any = self.core.services.tiers[name]
        inner: Tier = outer.inner
        wrapped = Faulty(inner)
        outer.inner = wrapped
        return wrapped

    def files(self) -> set[Path]:
        """Everything below the data folder that is a file."""
        return {path for path in self.folder.rglob("*") if path.is_file()}

    # --- talking to it -------------------------------------------------------------------------------------------

    def client(self, **options: Any) -> Any:
        """A boto3 client that does not repeat requests unless told."""
        config = Config(
            **{"retries": {"total_max_attempts": 1}, "s3": {"addressing_style": "path"}, "read_timeout": 30, **options}
        )
        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            aws_access_key_id=ROOT[0],
            aws_secret_access_key=ROOT[1],
            region_name="us-east-1",
            config=config,
        )

    def state(self, client: Any, bucket: str, key: str) -> dict[str, str]:
        """The headers of HEAD, whatever it answers."""
        try:
            return headers_of(client.head_object(Bucket=bucket, Key=key))
        except client.exceptions.ClientError as error:
            return headers_of(error.response)

    def reaches(self, client: Any, bucket: str, key: str, state: str) -> dict[str, str]:
        """HEAD's headers once it says that a key is in a state."""
        self.wait(lambda: self.state(client, bucket, key).get("x-sluice-state") == state, f"{key} is not {state}")
        return self.state(client, bucket, key)

    def wait(self, condition: Callable[[], Any], otherwise: str = "the condition did not come true") -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, otherwise
            time.sleep(0.01)
