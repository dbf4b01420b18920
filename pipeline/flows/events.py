"""Tell a command or a web address of the transitions of a root: release.on_event.

The settings are those of the running command, never those that a root has stored: whoever writes to a root
must not decide what runs on this machine. Nothing here raises an error, because a night is not lost if nobody
hears of it: a failure is a warning, and a counter in the metrics.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Literal

from pipeline.daemon import in_daemon_thread
from pipeline.errors import GatesRefused
from pipeline.exit_codes import describe_end, exit_code_of
from pipeline.flows.workers import metrics
from pipeline.log import announce, at_error
from pipeline.settings import EventSettings
from pipeline.settings.release import check_event_address

EventName = Literal[
    "published",
    "waiting",
    "refused",
    "failed",
    "stopped",
    "superseded",
    "promoted",
    "rolled back",
    "held",
    "released",
]
_PAUSE_S = 1.0  # before the first repetition; doubled before each further one
_MAX_WORDS = 200  # characters of a receiver's own words in a warning


class _Failure(Exception):
    """One attempt failed; `is_final` if another one cannot succeed."""

    def __init__(self, why: str, *, is_final: bool = False) -> None:
        super().__init__(why)
        self.is_final = is_final


def tell(settings: EventSettings, event: EventName, root: str, **facts: Any) -> bool:
    """Tell the receiver of an event. Returns False if there is one and it did not take the event.

    Args:
        root: URI of the root.
        facts: further entries of the JSON object.
    """
    if not settings.command and not settings.url:
        return True
    content = {
        "event": event,
        "id": uuid.uuid4().hex,  # the same in all attempts, so that receivers can drop repetitions
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "root": root,
        "host": socket.gethostname(),
        **facts,
    }
    send = _run if settings.command else _post
    attempts = (
        1 if event == "stopped" else 1 + settings.retries
    )  # whoever stopped the night waits for its end
    why = _attempt(lambda: send(settings, json.dumps(content).encode()), attempts)
    metrics.EVENTS.record(1, event=event, outcome="failed" if why else "told")
    if why:
        announce(f"warning: release.on_event was not told that the event {event!r} happened: {why}")
    return why is None


def _attempt(send: Callable[[], None], attempts: int) -> str | None:
    """Call `send` until it succeeds. Returns why the last attempt failed, or None."""
    why = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(_PAUSE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
        try:
            send()
            return None
        except _Failure as failure:
            why = str(failure)
            if failure.is_final:
                break
        except Exception as error:  # whatever it is, the night goes on
            why = f"{type(error).__name__}: {error}"
    return " ".join(why.split())


def _run(settings: EventSettings, content: bytes) -> None:
    """Run the command with the event on standard input. After the time limit it is killed, with its children.

    Files instead of pipes: a child that the command leaves behind cannot keep this process waiting.
    """
    with tempfile.TemporaryFile() as event, tempfile.TemporaryFile() as words:
        event.write(content)
        event.seek(0)
        try:
            process = subprocess.Popen(
                settings.command, stdin=event, stdout=words, stderr=words, start_new_session=True
            )
        except OSError as error:
            raise _Failure(f"{settings.command[0]}: {error.strerror}", is_final=True) from None
        try:
            code = process.wait(settings.timeout_s)
        except subprocess.TimeoutExpired:
            raise _Failure(f"{settings.command[0]} did not end within {settings.timeout_s:g} s") from None
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code:
            words.seek(0)
            said = words.read(_MAX_WORDS).decode(errors="replace")
            raise _Failure(f"{settings.command[0]} ended with exit code {code}: {said}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which could lead the headers with secrets to another machine."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(settings: EventSettings, content: bytes) -> None:
    """Post the event. Messages name the host alone, because the rest of the address may be a secret."""
    assert settings.url is not None
    url = settings.url
    if url.startswith("$"):
        url = _variable(url[1:])
        try:
            check_event_address(url)
        except ValueError as error:
            raise _Failure(f"{settings.url}: expected {error}", is_final=True) from None
    headers = {name: _variable(variable) for name, variable in settings.headers.items()}
    request = urllib.request.Request(
        url, content, {"Content-Type": "application/json", "User-Agent": "manta", **headers}, method="POST"
    )
    host = urllib.parse.urlsplit(url).hostname
    # A thread, because the limit of urllib is one for each packet.
    posting = in_daemon_thread(lambda: _send(request, settings.timeout_s, f"{host}"), "manta-event")
    try:
        posting.result(settings.timeout_s)
    except TimeoutError:
        raise _Failure(f"{host} did not answer within {settings.timeout_s:g} s") from None


def _send(request: urllib.request.Request, timeout_s: float, host: str) -> None:
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s):
            return
    except urllib.error.HTTPError as error:
        with error:
            is_final = error.code < 500 and error.code not in (408, 425, 429)
            raise _Failure(f"{host} answered with status {error.code}", is_final=is_final) from None
    except urllib.error.URLError as error:
        raise _Failure(f"{host}: {error.reason}") from None
    except ValueError as error:  # a header that is not Latin-1, for example: its text may be a secret
        raise _Failure(f"{host}: {type(error).__name__}", is_final=True) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Failure(f"{host}: {type(error).__name__}") from None


def _variable(name: str) -> str:
    """Return the value of an environment variable."""
    value = os.environ.get(name, "")
    if not value:
        raise _Failure(f"the environment variable {name} is not set", is_final=True)
    return value


@contextlib.contextmanager
def told_of_errors(settings: EventSettings, root: str) -> Iterator[None]:
    """Tell of the error that ends the night in the block, if one does.

    Args:
        root: release.root; its store may be the reason of the error, so it is not opened here.
    """
    uri = root.rstrip("/") if "://" in root else os.path.abspath(os.path.expanduser(root))

    def tell_error(error: BaseException) -> None:
        candidate = error.candidate if isinstance(error, GatesRefused) else None
        tell(
            settings,
            metrics.outcome_of_error(error),
            uri,
            reason=describe_end(error),
            exit_code=exit_code_of(error),
            candidate=candidate,
            report=candidate and f"{candidate}/report.html",
        )

    with at_error(tell_error):
        yield
