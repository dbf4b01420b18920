"""Catalogs of Iceberg tables that do not answer, or refuse to."""

import json
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

STATUSES = {401: 2, 403: 2, 429: 75, 500: 75, 503: 75}
"""exit code by the HTTP status that a catalog answers with"""
# pyiceberg reads the addresses of catalogs from the environment when it is imported.
ASK = """
import json, sys
from pipeline.errors import PipelineError
from pipeline.settings import CorpusSettings
from pipeline.text.sources.sources import list_files
errors = {}
for name in sys.argv[1:]:
    try:
        list_files(CorpusSettings(uri=f"iceberg://{name}/ns.t"))
    except PipelineError as error:
        errors[name] = error.exit_code, str(error)
print(json.dumps(errors))
"""


class StatusInPath(BaseHTTPRequestHandler):
    """A catalog whose address names the status of all its answers."""

    def do_GET(self):
        self.send_response(int(self.path.split("/")[1]))
        self.end_headers()

    def log_message(self, *arguments):
        """Keep the output of the tests free of requests."""


def errors_of_catalogs(addresses):
    """Exit code and message of each catalog by name, from one process."""
    environment = {f"PYICEBERG_CATALOG__{name.upper()}__URI": uri for name, uri in addresses.items()}
    command = [sys.executable, "-c", ASK, *addresses]
    result = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_only_a_catalog_that_may_answer_later_is_a_transient_error(tmp_path):
    with HTTPServer(("127.0.0.1", 0), StatusInPath) as server, socket.socket() as unused:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        unused.bind(("127.0.0.1", 0))  # it does not listen, so that connections are refused
        addresses = {f"s{status}": f"http://127.0.0.1:{server.server_port}/{status}" for status in STATUSES}
        addresses["refused"] = f"http://127.0.0.1:{unused.getsockname()[1]}"
        addresses["database"] = f"sqlite:///{tmp_path}/missing/catalog.db"
        addresses["driver"] = "postgresql+missing://127.0.0.1/catalog"
        errors = errors_of_catalogs(addresses)
        server.shutdown()
    expected = {f"s{status}": code for status, code in STATUSES.items()}
    expected |= {"refused": 75, "database": 75, "driver": 2}
    assert {name: code for name, (code, _) in errors.items()} == expected
    for name, (code, message) in errors.items():
        assert f"expected the catalog {name} (PYICEBERG_CATALOG__{name.upper()}__URI" in message
        assert ("run again" in message) == (code == 75)
