"""The command gradwire-server in a process that records its frames.

    python -m shape.recorded_server --address 127.0.0.1:0 ...

Answers each line of its input with one line on stdout: "start" and "settle" with themselves, "stop"
with the number of frames of each module as JSON. The end of its input stops the server.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading

from shape.recording import Recorder


def main() -> None:
    """Serve until the input ends."""
    threading.Thread(target=_obey, args=(Recorder(),), daemon=True).start()
    runpy.run_module("gradwire_server", run_name="__main__")


def _obey(recorder: Recorder) -> None:
    sys.setprofile(None)  # frames of this thread are not the server's
    for line in sys.stdin:
        answer = line.strip()
        if answer == "start":
            recorder.start()
        elif answer == "settle":
            recorder.settle()
        else:
            answer = json.dumps(recorder.stop())
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
