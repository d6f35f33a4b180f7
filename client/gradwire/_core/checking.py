"""Whether the messages of a client carry checksums.

They do by default where plain text leaves the machine: TLS has its own, and memory of one machine
is trusted. A server that knows no checksums refuses the first message that has one; it is repeated
without, and so are later ones. Where one server of several is older, all go without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from gradwire._core.options import Options, is_local
from gradwire._wire import checksums
from gradwire._wire.environment import CHECKSUMS_VARIABLE
from gradwire.errors import GradwireError, InvalidRequestError

_log = logging.getLogger("gradwire")
_WORDS = {"": None, "1": True, "true": True, "0": False, "false": False}


class Checking:
    """Whether messages carry checksums, as far as the servers are known.

    is_on  read before each message; the message keeps to it
    """

    def __init__(self, options: Options) -> None:
        self.is_on = _wanted(options)
        if self.is_on and not checksums.AVAILABLE:
            self.is_on = False
            _log.warning("no checksums: google-crc32c is not installed with its compiled code")

    def refused(self, error: GradwireError) -> bool:
        """Whether a server refused a checksum; later messages then carry none."""
        number = error.metadata.get("field_number")
        if not error.checked or error.reason != "UNKNOWN_FIELD" or number != str(checksums.FIELD):
            return False
        if self.is_on:
            self.is_on = False
            _log.warning("no checksums: a server does not know them")
        return True


def _wanted(options: Options) -> bool:
    given = options.checksums
    if given is None:
        word = os.environ.get(CHECKSUMS_VARIABLE, "").strip().lower()
        if word not in _WORDS:
            raise InvalidRequestError.of(CHECKSUMS_VARIABLE, f"is {word!r}; give 1 or 0")
        given = _WORDS[word]
    return _leaves(options.target) and options.credentials is None if given is None else given


def _leaves(target: Sequence[str]) -> bool:
    """Whether calls may leave the machine.

    A list of replicas may tell any address.
    """
    return not all(is_local(address) for address in target)
