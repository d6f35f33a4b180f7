"""Compare every dialect with the frameworks that are installed, and write the report.

python -m conformance [--markdown FILE] [--jobs N]

Ends with status 1 where a case is neither exact, nor within roundings, nor a listed deviation, and
where a listed deviation is not what the installed framework does.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import sys
from pathlib import Path

from conformance import report

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    date = dt.datetime.now(dt.UTC).date().isoformat()
    found = report.run_all(options.jobs)
    if options.markdown:
        options.markdown.write_text(report.markdown(date, found))
    wrong = list(report.wrong(found))
    sys.stderr.writelines(line + "\n" for line in wrong)
    sys.exit(bool(wrong))
