"""``python -m tests.fakes.serve_fake TABLES DELAY_S``: a gateway process without a model.

TABLES is the configuration as JSON. Prints the address on one line once it is ready.
"""

from __future__ import annotations

import asyncio
import json
import sys

import uvloop

from gateway.app import Gateway
from gateway.config import parse_config
from gateway.logs import configure_logging
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import size_of


async def serve(tables: str, delay_s: float) -> None:
    config = parse_config(json.loads(tables))
    configure_logging(config.logging)
    gateway = Gateway(config, FakeEngine(delay_s=delay_s, respond=size_of))
    await gateway.run_until_signal(
        on_ready=lambda: print(gateway.url, flush=True)  # noqa: T201 - the test reads it
    )


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], float(sys.argv[2])))
