"""Retries: which failures are retried, and after which pause.

Every RPC of the service is pure, so any of them may be repeated. The rules:

1. A server that is away, starting or shutting down (UNAVAILABLE), and one that is full and says so
   (RESOURCE_EXHAUSTED with RetryInfo), are tried again; so is a call that a stopping server
   dropped (CANCELLED), and a stream that broke without an error of the service. So is what
   changed on its way (DATA_LOSS), and of requests with checksums what may have: INVALID_DATA, since
   this package sends none, and statuses without a reason. Everything else would only fail again.
2. Between tries lies a growing, jittered pause, never shorter than the server asked for.
3. Tries are counted in a row: new result bytes start the count anew.
4. A client whose calls mostly fail stops repeating them, so that retries do not prevent a failing
   server's recovery. A server that refuses at once works, and one that gives a retry delay sets
   the pace itself: such a failure counts an eighth.
5. If the certificate of the only server is not signed by a trusted authority, or if that server
   does not use TLS, there is a second try on another connection, since one address may
   stand for several servers, but no third.
6. With the default policy, a client of a single server that has not answered yet tries to connect
   for 3 s: its target may be wrong.
7. No pause exceeds the deadline: the last error is raised instead.

Pauses, jitter and the budget follow gRPC's proposal A6, client retries. gRPC's own retries are off
even for small calls: they cannot resume a stream, do not know RetryInfo, try the same channel
again, and cost each call 10 to 20 us of processor time in the client. They would silently repeat a
call that meets a closing connection; rule 1 covers it. Nothing is sent twice at once (hedging):
that would add load to a server that is slow because it is full.
"""

from __future__ import annotations

import logging
import math
import random
import time
from dataclasses import dataclass, field

from gradwire.errors import (
    CallCancelledError,
    DataLossError,
    GradwireError,
    OverloadedError,
    ServerError,
    UnavailableError,
)

_log = logging.getLogger("gradwire")

# Weight of a refusal, as a fraction of a failure.
_REFUSAL = 0.125
# A6, "Exponential Backoff": a pause is drawn from 0.8 to 1.2 times its nominal length.
_JITTER = 0.2
# Seconds for which a client whose only server has never answered tries to connect, by default.
_FIRST_CONNECT_S = 3.0
# Most tries in a row at a single server after a failure that waiting does not mend.
LASTING_ATTEMPTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how soon a failed call is tried again.

    max_attempts        most tries in a row, the first one included; 1 turns retries off
    initial_backoff_s   seconds before the second try
    max_backoff_s       longest pause in seconds, unless the server asks for more
    backoff_multiplier  ratio of a pause to the one before

    Raises ValueError if one is out of range.
    """

    max_attempts: int = 8
    initial_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    backoff_multiplier: float = 2.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ValueError(f"max_attempts is {self.max_attempts}; at least 1 is needed")
        if not 0 < self.initial_backoff_s <= self.max_backoff_s < float("inf"):
            raise ValueError(
                f"initial_backoff_s is {self.initial_backoff_s} and max_backoff_s "
                f"{self.max_backoff_s}; 0 < initial_backoff_s <= max_backoff_s is needed"
            )
        if not 1 <= self.backoff_multiplier < float("inf"):
            raise ValueError(
                f"backoff_multiplier is {self.backoff_multiplier}; at least 1 is needed"
            )

    def backoff_s(self, failures: int, *, draw: float) -> float:
        """Return the pause in seconds after consecutive failures, at least 1.

        draw  a random number from 0 to 1, which places the pause in its range
        """
        try:
            nominal = self.initial_backoff_s * self.backoff_multiplier ** (failures - 1)
        except OverflowError:
            nominal = self.max_backoff_s
        return min(nominal, self.max_backoff_s) * (1 + _JITTER * (2 * draw - 1))


@dataclass
class RetryBudget:
    """Token bucket shared by all calls of a client.

    It is A6's `retryThrottling`: a failure takes a token, a success gives a fraction of one back,
    and there are retries while more than half of the tokens are left. Updates may get lost between
    threads: a token more or less changes nothing.

    reached  whether a server has answered any call of the client
    """

    # A6 allows up to 1000 tokens: when a server restarts, each of many streams in flight fails
    # several times before it is back.
    max_tokens: float = 1000.0
    token_ratio: float = 0.1
    reached: bool = field(default=False, init=False)
    _taken: float = field(default=0.0, init=False)

    def succeed(self) -> None:
        """Note a call that succeeded."""
        self.reached = True
        self._taken = max(0.0, self._taken - self.token_ratio)

    def fail(self, tokens: float = 1.0) -> None:
        """Note a try that failed."""
        self._taken = min(self.max_tokens, self._taken + tokens)

    @property
    def allows_retry(self) -> bool:
        """Whether a failed call may be tried again."""
        return self._taken < self.max_tokens / 2


@dataclass(slots=True)
class Tries:
    """The tries of one call.

    one_server         whether each try goes to the same server, as far as is known
    connect_timeout_s  seconds to continue while no server can be reached; None for rule 6
    """

    policy: RetryPolicy
    budget: RetryBudget
    one_server: bool = False
    connect_timeout_s: float | None = None
    _failures: int = field(default=0, init=False)
    _unreachable_since: float | None = field(default=None, init=False)

    def pause_s(
        self,
        error: GradwireError,
        *,
        left_s: float,
        progressed: bool = False,
        draw: float | None = None,
    ) -> float:
        """Return the seconds before the next try, or raise the error.

        left_s      seconds until the deadline; infinite without a deadline
        progressed  whether the failed try brought new result bytes
        draw        a number from 0 to 1 in place of a random one
        """
        if progressed:
            self._failures = 0
        else:
            # A running server turned it away before any work.
            refused = isinstance(error, OverloadedError) and error.retry_after_s > 0
            self.budget.fail(_REFUSAL if refused else 1.0)
        self._failures += 1
        draw = random.random() if draw is None else draw  # noqa: S311 - jitter
        pause = self.policy.backoff_s(self._failures, draw=draw)
        if isinstance(error, OverloadedError | UnavailableError):
            pause = max(pause, error.retry_after_s)
        connecting_s = self._left_to_connect_s(error)
        pause = min(pause, connecting_s)  # the last try is at the limit
        most = self.policy.max_attempts
        if isinstance(error, UnavailableError) and error.lasting and self.one_server:
            most = min(most, LASTING_ATTEMPTS)
        if self._failures >= most or connecting_s <= 0 or pause >= left_s:
            raise error
        if not (progressed or self.budget.allows_retry):
            raise error
        _log.info("trying again in %.1f s: %s", pause, error)
        return pause

    def _left_to_connect_s(self, error: GradwireError) -> float:
        if not (isinstance(error, UnavailableError) and error.unreachable):
            self._unreachable_since, self.budget.reached = None, True
            return math.inf
        now = time.monotonic()
        self._unreachable_since = self._unreachable_since or now
        is_new = self.one_server and not self.budget.reached and self.policy == RetryPolicy()
        first_s = _FIRST_CONNECT_S if is_new else math.inf
        timeout_s = first_s if self.connect_timeout_s is None else self.connect_timeout_s
        return self._unreachable_since + timeout_s - now


def is_retryable(error: GradwireError, *, streamed: bool) -> bool:
    """Whether the same call may well succeed if it is repeated."""
    if isinstance(error, OverloadedError | UnavailableError | DataLossError):
        return True
    if error.checked and error.reason == "INVALID_DATA":
        return True
    # A status without a reason of ours comes from grpc or something between. CANCELLED is what a
    # call gets that reaches a server as it stops. On a stream any often stands for another one that
    # got lost, which the next try shows.
    any_status = streamed or error.checked
    retried = ServerError | CallCancelledError if any_status else CallCancelledError
    return isinstance(error, retried) and not error.reason
