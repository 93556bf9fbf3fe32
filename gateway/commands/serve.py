"""``clawstream serve`` and ``clawstream check-config``."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from gateway.commands.exits import CommandError, ExitCode, print_error

if TYPE_CHECKING:
    from engine.models.store import ModelStore
    from gateway.config import GatewayConfig

LISTENING = "listening on"
"""The line on standard output that says the gateway is ready starts like this."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="TOML file; see docs/configuration.md.")
]


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes any free one.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model to serve: a catalogue name or a model.onnx file. Repeat for several; "
            "added to those of the file.",
        ),
    ] = None,
    end_with_parent: Annotated[bool, typer.Option("--end-with-parent", hidden=True)] = False,
) -> None:
    """Start the gateway: WebSocket, HTTP and the page, on one port.

    Listens on 127.0.0.1:8400 unless told otherwise. Ctrl-C or SIGTERM drains and ends with 0.
    Options win over the environment (CLAWSTREAM_SERVER__PORT=…), which wins over the file.

    [bold]Examples[/bold]

      clawstream serve
      clawstream serve --model centerface --model ./yolov8n.onnx
      clawstream serve --config gateway.toml --port 9000
    """
    from gateway.config import load_config

    if end_with_parent:
        _end_with_parent()
    run_gateway(load_config(config, serving_overrides(host, port, model or ())))


def check_config(
    file: Annotated[Path | None, typer.Argument(help="TOML file; none checks the rest.")] = None,
) -> None:
    """Check a configuration without starting anything.

    Prints what would be served and “ok”, or what is wrong: the first bad option, or everything
    about the models. Ends with 2 for an option, with 3 if a model is not there. The environment
    counts too.

    [bold]Examples[/bold]

      clawstream check-config gateway.toml
      CLAWSTREAM_LIMITS__MAX_STREAMS=4 clawstream check-config
    """
    from engine.models.store import ModelStore
    from gateway.config import load_config
    from gateway.serving import check

    config, store = load_config(file), ModelStore()
    findings = check(config, store)
    console = Console(soft_wrap=True, highlight=False)
    server = config.server
    scheme = "http" if server.tls_cert is None else "https"
    console.print(f"address: {scheme}://{server.host}:{server.port}")
    console.print(f"api keys: {len(server.api_keys)}")
    for warning in findings.warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(warning)}")
    for error in findings.errors[1:]:
        print_error(str(error))
    if findings.errors:
        raise findings.errors[0]
    for name in config.models:
        console.print(f"model {name}: {_described(name, config, store)}")
    console.print("[green]ok[/green]")


def _described(name: str, config: GatewayConfig, store: ModelStore) -> str:
    """One line about a model that was checked."""
    from gateway.session.options import TEXT_KINDS

    served = config.models[name]
    if served.upstream is not None:
        return f"{served.upstream.model} at {served.upstream.url}"
    serving, inference = served.serving, config.inference
    options = (
        f"workers {serving.workers}, max_batch_size {serving.max_batch_size}, "
        f"batch_timeout_millis {serving.batch_timeout_millis:g}"
    )
    manifest = store.resolve(served.path or name)
    if manifest.kind in TEXT_KINDS:
        cheaper = f", cheaper {inference.cheaper_weights}" if inference.cheaper_weights else ""
        options = (
            f"weights {inference.weights}{cheaper}, max_batch_size {inference.max_batch_size}, "
            f"max_seq_length {inference.max_seq_length}"
        )
    return f"version {manifest.version}; {options}"


def serving_overrides(host: str | None, port: int | None, models: Sequence[str]) -> dict[str, Any]:
    """The options as configuration tables; what was not given is left out."""
    server = {"host": host, "port": port}
    tables: dict[str, Any] = {"server": {k: v for k, v in server.items() if v is not None}}
    if models:
        tables["models"] = dict(_served(model) for model in models)
    return tables


def run_gateway(config: GatewayConfig, hint: str = "") -> None:
    """Serve until SIGINT or SIGTERM; announces the address once every model is warm, then
    ``hint``."""
    import uvloop

    from gateway.logs import configure_logging

    configure_logging(config.logging)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, hint))


async def _serve(config: GatewayConfig, hint: str) -> None:
    from engine.heap import settle_heap
    from gateway.app import Gateway

    gateway = Gateway(config)

    def announce() -> None:
        settle_heap()
        console = Console(soft_wrap=True, highlight=False)
        console.print(f"{LISTENING} {gateway.url.rstrip('/')} ({', '.join(config.models)})")
        if hint:
            console.print(hint)

    try:
        await gateway.run_until_signal(on_ready=announce)
    except OSError as error:
        raise _listen_error(error, config.server.host, config.server.port) from error
    finally:
        await gateway.aclose()


def check_address(host: str, port: int) -> None:
    """Before the long part of a start: that one could listen there now; 0 always can.

    Raises:
        CommandError: the port is taken or not ours to use.
    """
    from gateway.net.socket_options import open_listeners

    if port == 0:
        return
    try:
        listeners = open_listeners(host, port, user_timeout_s=1.0)  # of nobody: closed at once
    except OSError as error:
        raise _listen_error(error, host, port) from error
    for listener in listeners:
        listener.close()


def _listen_error(error: OSError, host: str, port: int) -> CommandError | OSError:
    if error.errno == errno.EADDRINUSE:
        return CommandError(
            ExitCode.USAGE,
            f"server.port: {port} on {host} is taken; end what listens there or choose another, "
            f"for example --port {port + 1 if port < 65_535 else port - 1}",
        )
    if error.errno in (errno.EACCES, errno.EADDRNOTAVAIL):
        return CommandError(ExitCode.USAGE, f"server.host: cannot listen on {host}:{port}: {error}")
    return error


def _served(model: str) -> tuple[str, dict[str, str]]:
    from engine.models.store import is_file_reference

    return (Path(model).stem, {"path": model}) if is_file_reference(model) else (model, {})


def _end_with_parent() -> None:
    """Drain and end when the process that started us is gone, however it went (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
