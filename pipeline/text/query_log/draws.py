"""A sample of the queries of each client and day, drawn while they arrive.

Every query gets a random number, and the sample has the queries with the lowest numbers: a bottom-k sample
(Cohen and Kaplan, "Summarizing data using bottom-k sketches", PODC 2007). Each of a client's n queries is in
it with probability k / n, whatever n is, and samples of several processes are merged by their numbers. A
query is logged if it belongs to the sample of the queries so far, so a log has more lines than its samples:
about k (1 + ln(n / k)) of each client. `sampled` leaves the others out.
"""

import hashlib
import heapq
import hmac
import ipaddress
import secrets
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipeline.text.query_log.lines import LoggedQuery

PER_CLIENT = 128
"""logged queries of a client and a day; fewer if the log would be too large"""
MAX_CLIENTS = 1_024
"""clients of a process and a day whose queries are logged: those with the lowest hashes, a random sample"""
_DRAW_BITS = 53  # what JSON readers with float64 numbers keep
_IPV6_CLIENT = 64  # bits of an address by which networks are given to clients


def client_of_address(address: str) -> str:
    """Return the name of a client by its address. The addresses of one IPv6 network (/64) are one client.

    >>> client_of_address("2001:db8::1") == client_of_address("2001:db8::2:1")
    True
    >>> client_of_address("::ffff:192.0.2.1")
    '192.0.2.1'
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address  # a name that a proxy gave, or a socket without an address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed), _IPV6_CLIENT), strict=False))


@dataclass(frozen=True)
class Draw:
    """The random number of a query that belongs to its client's sample."""

    client: str
    number: int
    per_client: int
    """size of the sample"""


@dataclass
class QueryDraws:
    """QueryDraws the queries of one day in one process. The key of the clients' hashes is in memory only."""

    per_client: int = PER_CLIENT
    max_clients: int = MAX_CLIENTS
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    _name: str = field(default_factory=lambda: secrets.token_hex(4))
    _numbers: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def draw(self, identity: str) -> Draw | None:
        """Draw for a query of a client; None if the query does not belong to the sample."""
        digest = hmac.new(self._key, identity.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
        client, number = f"{self._name}-{digest[:16]}", secrets.randbits(_DRAW_BITS)
        if (numbers := self._numbers.get(client)) is None:
            if not self._make_room(client):
                return None
            numbers = self._numbers.setdefault(client, [])
        while len(numbers) > self.per_client:  # it was lowered
            heapq.heappop(numbers)
        if len(numbers) < self.per_client:
            heapq.heappush(numbers, -number)
        elif number < -numbers[0]:
            heapq.heapreplace(numbers, -number)
        else:
            return None
        return Draw(client, number, self.per_client)

    def _make_room(self, client: str) -> bool:
        """Return whether a new client belongs to the clients with the lowest hashes; remove the highest."""
        if len(self._numbers) < self.max_clients:
            return True
        if (highest := max(self._numbers)) < client:
            return False
        del self._numbers[highest]
        return True


def sampled(queries: Iterable[LoggedQuery]) -> list[LoggedQuery]:
    """Return the queries that belong to the samples of all lines, in the order of the lines.

    The samples of a day have the lowest `per_client` of its lines, so that every client has an equal share.
    """
    by_day: dict[str, list[tuple[int, LoggedQuery]]] = defaultdict(list)
    for position, query in enumerate(queries):
        by_day[query.day].append((position, query))
    kept: list[tuple[int, LoggedQuery]] = []
    for of_day in by_day.values():
        per_client = min(query.per_client for _, query in of_day)
        clients = _lowest_clients({query.client for _, query in of_day})
        numbers: dict[str, list[tuple[int, int, LoggedQuery]]] = defaultdict(list)
        for position, query in of_day:
            numbers[query.client].append((query.draw, position, query))
        for client in clients:
            lowest = sorted(numbers[client], key=lambda each: each[:2])[:per_client]
            kept += [(position, query) for _, position, query in lowest]
    return [query for _, query in sorted(kept, key=lambda each: each[0])]


def _lowest_clients(clients: Iterable[str]) -> list[str]:
    """Return the MAX_CLIENTS lowest clients of each process."""
    by_process: dict[str, list[str]] = defaultdict(list)
    for client in clients:
        by_process[client[:8]].append(client)
    return [client for of_process in by_process.values() for client in sorted(of_process)[:MAX_CLIENTS]]
