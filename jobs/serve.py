"""Serve searches of the current release over HTTP, and a page to look at the corpus.

manta serve releases
MANTA_SERVE_TOKEN=... manta serve s3://bucket/index --host 0.0.0.0 --port 8000
python -m jobs.serve releases
"""

import contextlib
import importlib
import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.boundary import Say, guarded, refuse_few_addresses
from jobs.command import CommitsRoot, Root, Verbose, options_command, standalone

if TYPE_CHECKING:
    from fastapi import FastAPI

    from pipeline.errors import ConfigError
    from pipeline.serve.canary import CanaryOptions
    from pipeline.serve.query_log import QueryLogOptions

TOKEN = "MANTA_SERVE_TOKEN"
"""environment variable with the token that requests must carry"""


@dataclass(frozen=True)
class ServeOptions:
    """The command line of a service."""

    root: Root
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help=f"Address to listen on. If other machines can reach it, {TOKEN} must hold a token.",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0 takes a free one.")
    ] = 8000
    poll_s: Annotated[
        float,
        typer.Option(
            "--poll-s",
            min=0.1,
            max=86_400,  # a thread cannot wait for any number of seconds
            help="Seconds between checks for a new current release.",
        ),
    ] = 30.0
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            help=f"YAML file of the tokens that requests may carry, instead of the one in {TOKEN}. Each "
            "has a name, the sha256 of its secret, and optionally a filter (where) that limits it to some "
            "rows. The file is read again when it changes.",
        ),
    ] = None
    shadow: Annotated[
        str,
        typer.Option(
            "--shadow",
            metavar="RELEASE|CANDIDATE",
            help="Let this release, or the candidate that waits, answer the same searches, too, in a process "
            "of its own. Its answers are compared with those of the service and go nowhere: see /shadow.",
        ),
    ] = ""
    canary: Annotated[
        str,
        typer.Option(
            "--canary",
            metavar="SHARE",
            help="Let a newly published release answer this share of the searches first, such as 5%. If it "
            "fails or is slow, the service returns to the release of before by itself.",
        ),
    ] = ""
    canary_minutes: Annotated[
        float,
        typer.Option("--canary-minutes", min=0, help="How long a new release answers only its share."),
    ] = 60.0
    canary_p99_ms: Annotated[
        float | None,
        typer.Option(
            "--canary-p99-ms",
            min=1,
            help="Bound of the 99th percentile of the durations of the canary. Default: twice the p99 of the "
            "release of before.",
        ),
    ] = None
    any_space: Annotated[
        bool,
        typer.Option(
            "--any-space",
            help="Also swap to releases of another encoder. Default: such a release is refused, because "
            "scores, and vectors that clients send, would mean something else.",
        ),
    ] = False
    log_queries: Annotated[
        Path | None,
        typer.Option(
            "--log-queries",
            metavar="FILE",
            help="Append a sample of the queries to FILE, which only its owner can read: of each client at "
            "most 128 a day. `manta query-log` makes a file for gates.queries of it. Default: no log.",
        ),
    ] = None
    log_texts: Annotated[
        bool,
        typer.Option(
            "--log-texts", help="Also log the texts of these queries. Default: their vectors, without texts."
        ),
    ] = False
    log_days: Annotated[
        int,
        typer.Option(
            "--log-days", min=1, max=3_650, help="Days after which a query is removed from the log."
        ),
    ] = 14
    commits_root: CommitsRoot = None
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the address, the release and errors as JSON objects."),
    ] = False
    verbose: Verbose = False


@options_command
def serve(options: ServeOptions) -> None:
    """Answer searches over HTTP with the current release of ROOT, until the process is stopped.

    POST /search takes texts or vectors; GET /release, /healthz, /metrics (Prometheus) and /openapi.json
    describe the service; / is a page to look at the corpus. When a night publishes, or somebody rolls back,
    the service opens the new current release and swaps to it between two searches.
    """
    guarded(lambda say: _serve(options, say), as_json=options.as_json, verbose=options.verbose)


def _serve(options: ServeOptions, say: Say) -> None:
    refuse_few_addresses()
    token = _token(options)
    with _bound(options) as listener:
        address, port = listener.getsockname()[:2]
        _check_access(options, token, address)
        from pipeline.serve.canary import release_to_start_with
        from pipeline.serve.follow import open_held
        from pipeline.serve.service import ServiceOptions, make_app

        root = (options.root, options.commits_root) if options.commits_root else options.root
        canary = _canary(options)
        choose = partial(release_to_start_with, minutes=canary.minutes) if canary else (lambda _: None)
        with open_held(root, choose) as (release, held):
            app = make_app(
                release,
                held,
                ServiceOptions(
                    poll_s=options.poll_s,
                    same_space=not options.any_space,
                    token=token,
                    tokens=options.tokens,
                    shadow=options.shadow,
                    canary=canary,
                    hosts=(options.host, address),
                    query_log=_query_log(options),
                ),
            )
            url = f"http://{f'[{address}]' if ':' in address else address}:{port}/"
            facts = {"status": "serving", "url": url, "release": release.number, "rows": len(release)}
            sentence = f"release {release.number} with {len(release):,} rows is served at {url}"
            _run(app, listener, lambda: say(json.dumps(facts) if options.as_json else sentence))


def _check_access(options: ServeOptions, token: str, address: str) -> None:
    """Raise ConfigError if others can reach the service without a token, or its packages are missing."""
    from pipeline.errors import ConfigError

    if not token and not options.tokens and not _is_loopback(address):
        raise ConfigError(
            f"--host {options.host}",
            f"a token in {TOKEN}, or --tokens, because other machines can reach the service",
            "none",
            f"set {TOKEN}, give a file of --tokens, or leave --host out",
        )
    try:
        importlib.import_module("pipeline.serve.service")
    except ModuleNotFoundError as error:
        found = f"no package {error.name}"
        raise ConfigError(
            "manta serve", "the packages of the extra serve", found, "pip install manta-embeddings[serve]"
        ) from None


def _canary(options: ServeOptions) -> "CanaryOptions | None":
    """Return how a new release is tried; None if it takes all searches at once."""
    from pipeline.errors import ConfigError
    from pipeline.serve.canary import CanaryOptions

    if not options.canary:
        return None
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)%", options.canary)
    if not found or not 0 < float(found[1]) < 100:
        raise ConfigError(
            "--canary", "a share above 0% and below 100%", repr(options.canary), "write it like 5%"
        )
    return CanaryOptions(float(found[1]) / 100, options.canary_minutes, options.canary_p99_ms)


def _query_log(options: ServeOptions) -> "QueryLogOptions | None":
    """Return the options of the log of queries, and say what it has; None without a log."""
    from pipeline.errors import ConfigError
    from pipeline.log import announce
    from pipeline.serve.query_log import QueryLogOptions

    if options.log_queries is None:
        if options.log_texts:
            remedy = "add --log-queries FILE, or leave --log-texts out"
            raise ConfigError("--log-texts", "a log of queries (--log-queries)", "none", remedy)
        return None
    content = "texts and vectors" if options.log_texts else "vectors, without texts,"
    announce(f"{content} of a sample of the queries are logged to {options.log_queries}")
    return QueryLogOptions(options.log_queries, options.log_texts, options.log_days)


def _run(app: "FastAPI", listener: socket.socket, when_it_listens: Callable[[], None]) -> None:
    """Serve an application until SIGTERM or Ctrl-C; open requests are answered first."""
    import uvicorn

    from pipeline.serve.connections import server_config

    class Server(uvicorn.Server):
        """A server that calls `when_it_listens` when it has started."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().startup(sockets)
            except OSError as error:  # two services that start together both get the address
                host, port = listener.getsockname()[:2]
                raise _not_free(host, port, error) from None
            when_it_listens()

    with contextlib.suppress(KeyboardInterrupt):
        Server(server_config(app)).run(sockets=[listener])


def _token(options: ServeOptions) -> str:
    """Return the token that requests must carry; "" for none. White space around it is removed.

    Raises:
        ConfigError: no header can carry the token, or there is a file of tokens, too.
    """
    from pipeline.errors import ConfigError

    given = os.environ.get(TOKEN, "")
    token = given.strip()
    if (given and not token) or any(not "!" <= character <= "~" for character in token):
        raise ConfigError(
            TOKEN, "printable ASCII characters without spaces", "other characters", "set another token"
        )
    if token and options.tokens:
        raise ConfigError("--tokens", f"either --tokens or {TOKEN}", "both", f"unset {TOKEN}")
    return token


def _bound(options: ServeOptions) -> socket.socket:
    """Return a socket that is bound to the options' address, but does not listen yet."""
    try:
        family = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0][0]
        bound = socket.socket(family)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((options.host, options.port))
        return bound
    except (OSError, UnicodeError) as error:
        raise _not_free(options.host, options.port, error) from None


def _not_free(host: str, port: int, error: Exception) -> "ConfigError":
    from pipeline.errors import ConfigError

    return ConfigError(
        f"--host {host} --port {port}",
        "an address of this machine that is free",
        str(error),
        "choose another, or end the program that uses it",
    )


def _is_loopback(address: str) -> bool:
    import ipaddress

    return ipaddress.ip_address(address).is_loopback


if __name__ == "__main__":
    standalone(serve)
